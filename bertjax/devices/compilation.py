"""How programs are compiled: with deterministic operations, and with jax's persistent cache."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import zstandard
from jax.experimental.compilation_cache import compilation_cache

from bertjax.base.files import cache_folder

# The first flag replaces scatters and sums with atomic additions by slower operations with a fixed
# order. The second flag turns off autotuning, because it times kernels and may choose other kernels
# in another run.
FLAGS = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")


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

    Programs there that a kill or a full disk has cut off are deleted: jax would not replace them,
    and warn of them in each process.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        folder = cache_folder() / "xla"
        with contextlib.suppress(OSError):  # nothing is written to a folder that is read-only
            _delete_damaged(folder)
        config.update("jax_compilation_cache_dir", str(folder))


def _delete_damaged(folder: Path) -> None:
    """Deletes what zstd cannot read of the programs that were written since the last call."""
    checked, checking = folder / "checked", folder / "checking"
    folder.mkdir(parents=True, exist_ok=True)
    checking.touch()
    since = checked.stat().st_mtime_ns if checked.exists() else 0
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
