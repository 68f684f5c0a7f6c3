"""How jax is set up: its devices, what decides the bits of results, and its persistent cache."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import zstandard
from jax.experimental.compilation_cache import compilation_cache

from bertjax.base import outputs
from bertjax.base.files import cache_folder
from bertjax.cloud.hub import local_data

Config = TypeVar("Config")

# The first flag replaces scatters and sums with atomic additions by slower operations with a fixed
# order. The second flag turns off autotuning, because it times kernels and may choose other kernels
# in another run.
FLAGS = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")

# Settings of jax and variables of the environment on which the bits of results depend, with the
# values that they have by default. A script may set them; a command ignores those of
# `base.process.IGNORED`.
_SETTINGS = {
    "jax_enable_x64": "False",
    "jax_numpy_dtype_promotion": "standard",
    "jax_default_prng_impl": "threefry2x32",
    "jax_random_seed_offset": "0",
    "jax_threefry_partitionable": "True",
    "jax_threefry_gpu_kernel_lowering": "False",
    "jax_default_matmul_precision": "None",
    "jax_disable_jit": "False",
    "jax_disable_most_optimizations": "False",
    "jax_softmax_custom_jvp": "False",
    "jax_optimization_level": "UNKNOWN",
    "jax_exec_time_optimization_effort": "0.0",
}
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
# Flags of XLA that change no bit, or that stand in the config of the run.
_HARMLESS = (*FLAGS, "--xla_dump", "--xla_hlo_profile", "--xla_force_host_platform_device_count")

# Programs that take less time to compile than this are not kept. Those of small models take less
# than the second that jax has, which is most of the time of a short command.
_LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"
_USUAL, _OURS = 1.0, 0.1


def bits_settings() -> dict[str, str]:
    """Returns {name: value} of all settings that change bits and that are not as by default."""
    settings = {}
    config = jax.config.values
    for name, usual in _SETTINGS.items():
        value = config.get(name, usual)
        text = str(getattr(value, "value", value))
        if text != usual:
            settings[name] = text
    for name in _VARIABLES:
        flags = os.environ.get(name, "").split()
        kept = [flag for flag in flags if not flag.startswith(_HARMLESS)]
        if kept:
            settings[name] = " ".join(sorted(kept))
    return settings


@functools.cache
def _process_with_devices() -> int:
    """Returns the process that has first asked for devices, also in processes forked from it."""
    return os.getpid()


def refuse_fork() -> None:
    """Raises RuntimeError in a process that was forked after its parent has initialised devices."""
    if _process_with_devices() != os.getpid():
        raise RuntimeError(
            "This process was forked by one that uses jax, whose threads it lacks, and would wait "
            "forever: start processes with multiprocessing.get_context('spawn') (in a DataLoader "
            "of PyTorch: multiprocessing_context='spawn')."
        )


def check_devices() -> None:
    """Initialises the devices of jax.

    Raises:
        OSError: jax does not find those that JAX_PLATFORMS or JAX_PLATFORM_NAME asks for, or none.
        RuntimeError: as in `refuse_fork`.
    """
    refuse_fork()
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        raise OSError(
            f"jax has no device that it can use ({str(error).partition(chr(10))[0]}): unset "
            f"JAX_PLATFORMS ({os.environ.get('JAX_PLATFORMS')}) and JAX_PLATFORM_NAME "
            f"({os.environ.get('JAX_PLATFORM_NAME')}), which leaves the choice to jax, or install "
            "bertjax[cuda12], bertjax[cuda13] or bertjax[tpu]."
        ) from error


def use_deterministic_operations(deterministic: bool) -> None:
    """If `deterministic`, adds XLA_FLAGS that allow only deterministic operations on GPUs.

    This must be called before jax initializes its devices. CPUs and TPUs are always deterministic.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    if deterministic:
        missing = [flag for flag in FLAGS if flag not in flags]
        os.environ["XLA_FLAGS"] = " ".join([*flags, *missing])


def use_compilation_cache() -> None:
    """Sets `jax_compilation_cache_dir`, if None, to `bertjax/xla` in the user's cache folder.

    Programs that compile in .1 s or more are kept there, if jax has its usual threshold of 1 s.
    Those that a kill or a full disk has cut off are deleted: jax would not replace them,
    and warn of them in each process. A user without a folder has no cache.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        with contextlib.suppress(OSError):  # nothing is written to a folder that is read-only
            folder = cache_folder() / "xla"
            config.update("jax_compilation_cache_dir", str(folder))
            if config.values[_LEAST_SECONDS] == _USUAL:
                config.update(_LEAST_SECONDS, _OURS)
            _delete_damaged(folder)


def start_jax() -> None:
    """Sets up jax for a computation of this process alone: its cache and its devices."""
    use_compilation_cache()
    check_devices()


def _delete_damaged(folder: Path) -> None:
    """Deletes what zstd cannot read of the programs that were written since the last call."""
    checked = folder / "checked"
    checking = folder / "checking"
    folder.mkdir(parents=True, exist_ok=True)
    checking.touch()
    since = 0
    if checked.exists():
        since = checked.stat().st_mtime_ns
    for path in folder.glob("*-cache"):
        if path.stat().st_mtime_ns >= since:
            try:
                zstandard.ZstdDecompressor().decompress(path.read_bytes())
            except zstandard.ZstdError:
                path.unlink()
    checking.replace(checked)


@contextlib.contextmanager
def no_compilation_cache() -> Iterator[None]:
    """A context in which jax compiles programs without using the persistent compilation cache."""
    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # applies the setting
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def start_command(config: Config, *inputs: str) -> Config:
    """Checks the paths of a command that applies a model, starts jax, and copies its inputs here.

    `inputs` are the fields of `config` that name data, which may be in a bucket or on the Hub.
    Returns the config with the paths of the copies. Raises ValueError if an output would replace an
    input, or a file that bertjax did not write, and OSError if an input cannot be read.
    """
    outputs.check_paths(config)
    start_jax()
    copies = {}
    for name in inputs:
        address = getattr(config, name)
        if address is not None:
            copies[name] = os.path.expanduser(local_data(address))
    return dataclasses.replace(config, **copies)  # type: ignore[type-var]
