"""Deterministic operations on GPUs, for runs that must repeat the same bits there."""

import os

# Scatter and sums with atomic additions are replaced by slower operations with a fixed order, and
# kernels are not chosen by timing them, because another run could choose another kernel.
FLAGS = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")


def use_deterministic_operations(deterministic: bool) -> None:
    """Makes XLA use only deterministic operations on GPUs; call it before jax lists its devices.

    CPUs and TPUs are deterministic without it.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    if deterministic:
        missing = [flag for flag in FLAGS if flag not in flags]
        os.environ["XLA_FLAGS"] = " ".join([*flags, *missing])
