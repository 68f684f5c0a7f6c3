"""Deterministic operations on GPUs, for runs whose results must be reproducible bit by bit."""

import os

# The first flag replaces scatters and sums with atomic additions by slower operations with a fixed
# order. The second flag turns off autotuning, because it times kernels and may choose other kernels
# in another run.
FLAGS = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")


def use_deterministic_operations(deterministic: bool) -> None:
    """If `deterministic`, adds flags to XLA_FLAGS that allow only deterministic operations on GPUs.

    This function must be called before jax initializes its devices. Operations on CPUs and TPUs are
    always deterministic.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    if deterministic:
        missing = [flag for flag in FLAGS if flag not in flags]
        os.environ["XLA_FLAGS"] = " ".join([*flags, *missing])
