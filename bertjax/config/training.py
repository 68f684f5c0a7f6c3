"""Configuration that pretraining and fine-tuning share: optimizer, devices, precision, logging."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW or LAMB with decoupled weight decay, linear warm-up, and decay by a power."""

    recipe: Literal["google", "adamw", "lamb", "albert_lamb"] = "google"
    """google: Adam without bias correction, as BERT was trained; adamw: with it. lamb, albert_lamb:
    with LAMB's trust ratio for each decayed tensor, for large batches; lamb with bias correction,
    as NVIDIA's, albert_lamb without."""
    learning_rate: float = 1e-4
    """The peak, reached after the warm-up."""
    warmup_steps: int = 10_000
    warmup_proportion: float | None = None
    """Warm-up as a share of all steps; with it, warmup_steps must be 0."""
    schedule: Literal["google", "hf"] = "google"
    """Decay to 0, counted from step 0 (google) or from the end of the warm-up (hf)."""
    decay_power: float = 1.0
    """1: linear decay; NVIDIA's LAMB takes 0.5."""
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    """Applied to all but biases and LayerNorms; embeddings are decayed too."""
    decay_all: bool = False
    """Apply it to biases and LayerNorms as well, as fairseq does."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 leaves them alone."""

    def __post_init__(self):
        if self.learning_rate <= 0 or self.warmup_steps < 0 or self.max_grad_norm < 0:
            raise ValueError(
                f"learning_rate={self.learning_rate}, warmup_steps={self.warmup_steps}, "
                f"max_grad_norm={self.max_grad_norm}: the rate must be positive, the others at "
                "least 0."
            )
        if self.decay_power <= 0:
            raise ValueError(f"decay_power={self.decay_power}: it must be positive.")
        if self.warmup_proportion is not None and (
            self.warmup_steps or not 0 <= self.warmup_proportion < 1
        ):
            raise ValueError(
                f"warmup_proportion={self.warmup_proportion}, warmup_steps={self.warmup_steps}: "
                "give one of them, the share in [0, 1) with warmup_steps=0, or the steps with "
                "warmup_proportion=None."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Several processes as one run. TPU pods, SLURM and Open MPI are found without these fields."""

    coordinator_address: str | None = None
    """HOST:PORT of process 0, as all others reach it."""
    num_processes: int | None = None
    process_id: int | None = None
    """Which of them this is, from 0."""
    timeout_seconds: int = 300
    """How long to wait until all are there."""

    def __post_init__(self):
        given = (self.coordinator_address, self.num_processes, self.process_id)
        if None in given and given != (None, None, None):
            raise ValueError(
                f"coordinator_address={given[0]!r}, num_processes={given[1]}, process_id="
                f"{given[2]}: give all three, or none where the cluster says them."
            )
        if self.timeout_seconds < 1:
            raise ValueError(f"timeout_seconds={self.timeout_seconds}: it must be at least 1.")
        if self.num_processes is not None and self.process_id is not None:
            if not 0 <= self.process_id < self.num_processes:
                raise ValueError(
                    f"process_id={self.process_id} of num_processes={self.num_processes}: ranks "
                    f"are 0 to {self.num_processes - 1}."
                )
            if ":" not in str(self.coordinator_address):
                raise ValueError(
                    f"coordinator_address={self.coordinator_address!r} has no port: give "
                    "HOST:PORT, as 10.0.0.1:8476."
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices split the rows (data), the parameters (fsdp), the matrices (tensor)."""

    data: int = -1
    """-1: all devices that the other axes leave."""
    fsdp: int = 1
    tensor: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Fields that every training run has; `PretrainConfig` and `FinetuneConfig` extend it."""

    workdir: str = ""
    """Directory for checkpoints, metrics and the model; running again there resumes."""
    seed: int = 0
    """Seed of the initialisation, of the order of the data, of masking and of dropout."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the activations; parameters and optimizer state are float32 in either case."""
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    unroll: int | None = None
    """Unroll factor of the scan over layers: a larger one copies less and compiles longer. None:
    all layers on CPUs without remat, where copies cost most; otherwise 1."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass recomputes instead of keeping it: none; dots, everything but matrix
    multiplications with parameters, which costs a few percent of the time; full, everything, which
    takes the least memory and a third more time."""
    attention: Literal["auto", "xla", "splash", "cudnn"] = "auto"
    """Attention kernel: xla works everywhere; splash (newer TPUs) and cudnn (NVIDIA GPUs, bfloat16)
    are fused and need attention dropout 0; auto takes splash where it is possible and rows are
    long."""
    dropout_prng: Literal["threefry2x32", "rbg"] = "threefry2x32"
    """Random bits of dropout: threefry2x32 gives the same bits on any mesh and with any number of
    microbatches; rbg is cheaper on accelerators, and its bits depend on both."""
    log_every: int = 100
    """Steps between two lines of metrics."""
    reader_threads: int = 1
    """Threads that read ahead."""
    peak_tflops: float | None = None
    """Peak TFLOP/s of one device, for MFU; None: from its data sheet, or measured by a matrix
    multiplication."""

    def __post_init__(self):
        self.check_positive("log_every", "reader_threads")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed}: choose it between 0 and 2^32 - 1.")

    def check_positive(self, *fields: str) -> None:
        """Refuses fields below 1; None is allowed.

        Raises:
            ValueError: names the first such field and its value.
        """
        for field in (*fields, "unroll"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field}={value}: it must be at least 1.")
