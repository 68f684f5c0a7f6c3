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
    """Optimizer: google is AdamW without bias correction, as BERT was trained; adamw is AdamW with
    bias correction; lamb is LAMB with bias correction, as NVIDIA trains BERT; albert_lamb is LAMB
    without bias correction, as ALBERT was trained; stable_adamw is StableAdamW, as ModernBERT was
    trained. LAMB, which is meant for large batches, multiplies the update of each tensor that has
    weight decay by a trust ratio. StableAdamW is adamw that takes a smaller step for a tensor whose
    gradient is larger than its second moment has it, instead of clipping all gradients (set
    max_grad_norm=0)."""
    learning_rate: Positive = 1e-4
    """Peak learning rate, to which the warm-up rises (see also schedule)."""
    warmup_steps: AtLeast0 = 10_000
    """Number of steps of linear warm-up, in which the learning rate rises from 0; above 0, it
    requires that warmup_proportion is None."""
    warmup_proportion: Rate | None = None
    """Fraction of the schedule's steps that are warm-up, used instead of warmup_steps, which must
    then be 0; None: the warm-up has warmup_steps steps."""
    schedule: Literal["google", "hf", "trapezoidal"] = "google"
    """Step at which the learning rate starts to decay to 0: google is step 0, so that at the
    end of a warm-up of w of n steps, the learning rate drops from the peak to peak * (1 - w/n); hf
    is the end of the warm-up; trapezoidal stays at the peak after the warm-up, and decays in the
    last decay_steps steps."""
    decay_steps: AtLeast0 = 0
    """Number of steps of the decay at the end of a trapezoidal schedule; 0: the learning rate stays
    at the peak. In a phase that restarts the schedule, phases.N.decay_steps replaces it."""
    decay: Literal["polynomial", "one_minus_sqrt"] = "polynomial"
    """Shape of the decay from the peak to 0, where d is the fraction of the decay that is done:
    polynomial is (1 - d) ** decay_power; one_minus_sqrt is 1 - sqrt(d), as ModernBERT was
    trained."""
    decay_power: Positive = 1.0
    """Power of the polynomial decay: 1 is linear decay; NVIDIA's LAMB uses 0.5."""
    b1: Rate = 0.9
    """Decay rate of Adam's first moment."""
    b2: Rate = 0.999
    """Decay rate of Adam's second moment."""
    eps: NonNegative = 1e-6
    """Adam's epsilon, added to the square root of the second moment."""
    weight_decay: NonNegative = 0.01
    """Weight decay coefficient of all parameters, embeddings included, except biases and
    LayerNorms."""
    decay_all: bool = False
    """Apply weight decay to biases and LayerNorms as well, as fairseq does."""
    fully_decoupled_decay: bool = False
    """Factor of the weight decay in a step: False is the learning rate, as in Loshchilov and
    Hutter's AdamW in most libraries; True is the learning rate over its peak, so that weight_decay
    does not depend on the peak, as ModernBERT was trained (a weight_decay of 1e-5 at a peak of 8e-4
    equals 0.0125 with False)."""
    max_grad_norm: NonNegative = 1.0
    """Global norm that gradients are clipped to; 0: no clipping."""

    def __post_init__(self):
        super().__post_init__()
        if self.schedule != "trapezoidal":
            self.refuse_idle(
                "decay_steps",
                f"with schedule={self.schedule!r}: use 0, or schedule='trapezoidal'; the other "
                "schedules decay until their end.",
            )
        if self.decay == "one_minus_sqrt":
            self.refuse_idle(
                "decay_power",
                "with decay='one_minus_sqrt': leave it out, or use decay='polynomial'.",
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
    """HOST:PORT at which all processes reach process 0; None: auto-detected on TPU pods, under
    SLURM and under Open MPI, else the run has one process; coordinator_address, num_processes and
    process_id must be set together, or none of them."""
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
    """Directory for checkpoints, metrics and the model (required by bertjax.pretrain); repeating
    the same command resumes the run in this directory."""
    overwrite: bool = False
    """What happens if --workdir has checkpoints of a run with another config or other data: True
    deletes that run (checkpoints, also damaged ones, metrics, model, predictions and scores) and
    starts anew, False ends with an error; a run of the same config is always resumed."""
    seed: Annotated[int, "[0, 2^32)"] = 0
    """Seed of initialisation, data order, masks and dropout, below 2^32."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the activations; parameters and optimizer state are always float32."""
    dropout: Rate | None = None
    """Dropout rate of hidden states, attention and classifier, instead of those of the model of
    --init; None: as in the model's config."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and learning-rate schedule."""
    mesh: MeshConfig = MeshConfig()
    """Sizes of the axes of the device mesh."""
    distributed: DistributedConfig = DistributedConfig()
    """Processes of a multi-process run."""
    unroll: Count | None = None
    """Number of layers per iteration of the loop over the layers. With more layers per iteration,
    steps are faster on CPUs, but take longer to compile. None: all layers on CPUs without remat,
    and 1 in all other cases; on CPUs with remat, only 1 is allowed."""
    remat: Literal["none", "selective", "dots", "full"] | None = None
    """Activations that the backward pass recomputes to save memory: none recomputes no activations;
    selective recomputes attention probabilities, dropout masks, GELU and LayerNorm (1 to 2 % more
    FLOP at 512 tokens); dots recomputes all activations except the results of matrix
    multiplications with parameters; full recomputes all activations (about a third more FLOP);
    None: none on CPUs, and selective on GPUs and TPUs, where memory limits the batch."""
    attention: Literal["auto", "xla", "flash", "splash", "cudnn"] = "auto"
    """Attention kernel: xla runs on all devices; flash (NVIDIA GPUs from the A100 on, TPU v4 and
    later) is a fused kernel, which needs memory linear in the row length and draws the same dropout
    masks as xla; splash (TPU v5 and later) and cudnn (NVIDIA GPUs, bfloat16) are fused kernels
    without attention dropout, which xla replaces if the model has attention dropout, as it replaces
    cudnn in layers with local attention; a kernel that does not support the device is an error;
    auto is xla if all rows of the run have fewer than 512 tokens, if a length is no multiple of
    128, or if the model has relative positions, else splash or, with attention dropout or on GPUs,
    flash where it is supported."""
    dropout_prng: Literal["threefry2x32", "rbg"] = "threefry2x32"
    """Pseudorandom number generator of dropout: threefry2x32 draws the same dropout masks on any
    mesh and for any number of microbatches; rbg is faster on accelerators, but its masks depend on
    the mesh and on the number of microbatches."""
    max_bad_steps: AtLeast0 = 10
    """Number of consecutive skipped updates after which the run ends with an error or, with
    rollback_steps, goes back to an earlier checkpoint; 0: no limit. An update is skipped if its
    loss or gradient is not finite, or if the update is a spike (see skip_spikes)."""
    skip_spikes: NonNegative = 0.0
    """Number of standard deviations by which the loss or gradient norm of an update must exceed the
    mean over the last 128 steps for the update to be skipped as a spike (OLMo: 6); the first 64
    steps are never spikes; 0: only updates that are not finite are skipped."""
    rollback_steps: AtLeast0 = 0
    """Minimum number of steps to go back (PaLM: 100) after max_bad_steps consecutive skipped
    updates: the run continues from the last checkpoint at least this many steps before the first
    skipped update, or from step 0 without such a checkpoint, and leaves out the batches from there
    to the last skipped update; a run goes back at most 20 times; 0: the run ends instead."""
    deterministic: bool = False
    """Use only deterministic GPU operations, so that a resumed run is bit-identical to an
    uninterrupted run on GPUs too, possibly at lower speed; if False, sums on GPUs may differ in the
    last bits."""
    push_to_hub: str | None = None
    """Repository OWNER/NAME on the Hugging Face Hub to which the model is uploaded at the end of
    the run; it is created, and the rights to it are checked, before the first step; None: the model
    is not uploaded. If the upload fails, the same command repeats it."""
    hub_private: bool = False
    """Create the repository of --push_to_hub as a private one, if it does not exist."""
    log_every: Count = 100
    """Number of steps between log lines of metrics."""
    track: tuple[str, ...] = ()
    """Experiment trackers that show the metrics of the run (extras wandb, mlflow, trackio), as one
    curve over all resumes; a tracker that fails does not stop the run; empty: none."""
    track_project: str = "bertjax"
    """Project of --track in which the run is shown, under the name of its workdir."""
    stall_seconds: AtLeast0 = 600
    """Number of seconds without progress (a step, a batch of an evaluation, the end of a
    compilation or of a save) after which the run prints where its threads stand and, in a run of
    several processes, which of them are behind and what they are doing; 0: never."""
    reader_threads: Count = 1
    """Number of threads that read rows ahead of the training. On a local disk, one thread is the
    fastest; more threads help only if each read has to wait, for example for a network disk."""
    peak_tflops: Positive | None = None
    """Peak TFLOP/s of one device (TPU v2, v3 and 7x: one core, half a chip), from which MFU (model
    FLOP utilisation) is computed; None: the dense bfloat16 peak in the data sheet, or for an
    unknown device, such as a CPU, the measured speed of a float32 matrix multiplication."""

    def __post_init__(self):
        super().__post_init__()
        if not self.max_bad_steps:
            self.refuse_idle(
                "rollback_steps",
                "with max_bad_steps=0, which sets no limit to the updates that are skipped because "
                "they are spikes or not finite: set both above 0, or both to 0.",
            )
        if self.push_to_hub is None:
            self.refuse_idle("hub_private", "without push_to_hub: add --push_to_hub OWNER/NAME.")
