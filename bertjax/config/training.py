"""Configs that pretraining and fine-tuning share: optimizer, devices, precision, logging."""

import dataclasses
from typing import Annotated, Literal

from bertjax.base.checked import AtLeast0, Checked, Count, NonNegative, Positive, Rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Checked):
    """Config of the optimizer, its decoupled weight decay and the learning-rate schedule.

    AdamW follows Loshchilov and Hutter 2019, LAMB You et al. 2019, and StableAdamW Wortsman et al.
    2023.

    Raises:
        ValueError: a value is out of its range, warm-up is set both by steps and by proportion, or
            a setting has no effect with the others.
    """

    recipe: Literal["google", "adamw", "lamb", "albert_lamb", "stable_adamw"] = "google"
    """google is AdamW without bias correction (BERT), adamw AdamW, lamb LAMB (NVIDIA), albert_lamb
    LAMB without bias correction (ALBERT), stable_adamw StableAdamW (ModernBERT)."""
    learning_rate: Positive = 1e-4
    """Peak learning rate, to which the warm-up rises (see also schedule)."""
    warmup_steps: AtLeast0 = 10_000
    """Number of steps of linear warm-up from 0; above 0, warmup_proportion must be None."""
    warmup_proportion: Rate | None = None
    """Fraction of the steps that are warm-up, with warmup_steps=0; None: warmup_steps."""
    schedule: Literal["google", "hf", "trapezoidal"] = "google"
    """Step at which the decay to 0 begins: google is step 0, hf the end of the warm-up, trapezoidal
    the last decay_steps steps."""
    decay_steps: AtLeast0 = 0
    """Number of steps of the decay at the end of a trapezoidal schedule; 0: no decay."""
    decay: Literal["polynomial", "one_minus_sqrt"] = "polynomial"
    """Shape of the decay, where d is the part of it that is done: (1 - d) ** decay_power, or 1 -
    sqrt(d), as ModernBERT was trained."""
    decay_power: Positive = 1.0
    """Power of the polynomial decay: 1 is linear decay; NVIDIA's LAMB uses 0.5."""
    b1: Rate = 0.9
    """Decay rate of Adam's first moment."""
    b2: Rate = 0.999
    """Decay rate of Adam's second moment."""
    eps: NonNegative = 1e-6
    """Adam's epsilon, added to the square root of the second moment."""
    weight_decay: NonNegative = 0.01
    """Weight decay coefficient of all parameters except biases and LayerNorms."""
    decay_all: bool = False
    """Apply weight decay to biases and LayerNorms as well, as fairseq does."""
    fully_decoupled_decay: bool = False
    """Multiply the weight decay by the learning rate over its peak, as ModernBERT was trained,
    instead of by the learning rate."""
    max_grad_norm: NonNegative = 1.0
    """Global norm that gradients are clipped to; 0: no clipping."""

    def __post_init__(self):
        super().__post_init__()
        if self.schedule != "trapezoidal":
            self.refuse_set(
                ("decay_steps",), f"with schedule={self.schedule!r}", "only 'trapezoidal' has them"
            )
        if self.decay == "one_minus_sqrt":
            self.refuse_set(
                ("decay_power",), "with decay='one_minus_sqrt'", "only 'polynomial' has a power"
            )
        if self.fully_decoupled_decay and self.recipe in ("lamb", "albert_lamb"):
            raise ValueError(
                f"fully_decoupled_decay with recipe={self.recipe!r}: the trust ratio of LAMB "
                "includes the weight decay; use another recipe, or leave it out."
            )
        if self.warmup_proportion is not None and self.warmup_steps:
            raise ValueError(
                f"warmup_proportion={self.warmup_proportion}, warmup_steps={self.warmup_steps}: "
                "use either warmup_proportion in [0, 1) and warmup_steps=0, or warmup_steps and "
                "warmup_proportion=None."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedConfig(Checked):
    """Config of a multi-process run; not needed on TPU pods, under SLURM or under Open MPI.

    Raises:
        ValueError: only some of the first three fields are set, `process_id` is not below
            `num_processes`, the address has no port, or `timeout_seconds` is below 1 second.
    """

    coordinator_address: str | None = None
    """HOST:PORT at which all processes reach process 0; None: detected on TPU pods, under SLURM and
    Open MPI, else there is one process."""
    num_processes: int | None = None
    """Number of processes of the run; None: auto-detected, or one process (see
    coordinator_address)."""
    process_id: int | None = None
    """Index of this process, counted from 0; None: auto-detected, or one process (see
    coordinator_address)."""
    timeout_seconds: Count = 300
    """Time to wait, in seconds, until all processes have connected."""

    def __post_init__(self):
        super().__post_init__()
        fields = (self.coordinator_address, self.num_processes, self.process_id)
        if None in fields and fields != (None, None, None):
            raise ValueError(
                f"coordinator_address={fields[0]!r}, num_processes={fields[1]}, process_id="
                f"{fields[2]}: set all three fields, or none of them on TPU pods, with SLURM and "
                "with Open MPI."
            )
        if self.num_processes is not None and self.process_id is not None:
            if not 0 <= self.process_id < self.num_processes:
                raise ValueError(
                    f"process_id={self.process_id} of num_processes={self.num_processes}: ranks "
                    f"are 0 to {self.num_processes - 1}."
                )
            host, _, port = str(self.coordinator_address).rpartition(":")
            if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
                raise ValueError(
                    f"coordinator_address={self.coordinator_address!r} has no port from 1 to "
                    "65535: write HOST:PORT, such as 10.0.0.1:8476."
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig(Checked):
    """Sizes of the device mesh: batches are sharded over the axes data and fsdp, parameter matrices
    over the axes fsdp and tensor."""

    data: int = -1
    """Number of devices along the data axis, over which batches are sharded; -1: the number of
    devices divided by fsdp * tensor."""
    fsdp: int = 1
    """Number of devices along the fsdp axis, over which both batches and parameters are sharded."""
    tensor: int = 1
    """Number of devices along the tensor axis, over which the matrix multiplications are
    sharded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(Checked):
    """Fields of every training run; the base class of `PretrainConfig` and `FinetuneConfig`.

    Raises:
        ValueError: a value is out of its range, or a setting has no effect with the others.
    """

    workdir: str = ""
    """Directory for checkpoints, metrics and the model, required by bertjax.pretrain; repeating the
    command resumes the run in it."""
    overwrite: bool = False
    """Delete a run of another config or data in --workdir, instead of ending with an error."""
    seed: Annotated[int, "[0, 2^32)"] = 0
    """Seed of initialisation, data order and dropout."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the activations; parameters are float32."""
    dropout: Rate | None = None
    """Dropout rate instead of those of the model of --init; None: as in its config."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and learning-rate schedule."""
    mesh: MeshConfig = MeshConfig()
    """Sizes of the axes of the device mesh."""
    distributed: DistributedConfig = DistributedConfig()
    """Processes of a run on several hosts."""
    unroll: Count | None = None
    """Number of layers per iteration of the loop over layers; None: by device and remat."""
    remat: Literal["none", "selective", "dots", "full"] | None = None
    """Activations that the backward pass recomputes; None: by the device."""
    attention: Literal["auto", "xla", "flash", "splash", "cudnn"] = "auto"
    """Attention kernel; auto is a fused one for rows of 512 tokens or more, where there is one."""
    dropout_prng: Literal["threefry2x32", "rbg"] = "threefry2x32"
    """threefry2x32 draws the same dropout masks on any mesh; rbg is faster."""
    max_bad_steps: AtLeast0 = 10
    """Number of skipped updates in a row that end the run, or roll it back; 0: no limit."""
    skip_spikes: NonNegative = 0.0
    """Standard deviations above the mean loss or gradient norm from which an update is skipped; 0:
    none."""
    rollback_steps: AtLeast0 = 0
    """Minimum number of steps to go back after max_bad_steps skipped updates; 0: the run ends."""
    deterministic: bool = False
    """Deterministic GPU operations, so that runs on GPUs resume bit for bit."""
    push_to_hub: str | None = None
    """Repository OWNER/NAME on the Hugging Face Hub for the model at the end; None: no upload."""
    hub_private: bool = False
    """Create it as a private repository."""
    log_every: Count = 100
    """Number of steps between log lines."""
    track: tuple[str, ...] = ()
    """Experiment trackers of the run, such as wandb or mlflow; empty: none."""
    track_project: str = "bertjax"
    """Project of --track."""
    stall_seconds: AtLeast0 = 600
    """Number of seconds without progress after which the run prints where it stands; 0: never."""
    reader_threads: Count = 1
    """Number of threads that read rows ahead."""
    peak_tflops: Positive | None = None
    """Peak TFLOP/s of a device, for the MFU; None: that of its data sheet."""

    def __post_init__(self):
        super().__post_init__()
        if not self.max_bad_steps:
            self.refuse_set(
                ("rollback_steps",),
                "with max_bad_steps=0",
                "no number of bad steps is too many",
            )
        if self.push_to_hub is None:
            self.refuse_set(("hub_private",), "without --push_to_hub", "there is no repository")
