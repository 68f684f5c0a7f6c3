"""Compiled programs are kept on disk, so that the next run of the same shapes starts at once."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache


def use_compilation_cache() -> None:
    """Turns on jax's persistent cache in the user's cache folder, unless one is set already."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        config.update("jax_compilation_cache_dir", str(Path(root) / "bertjax" / "xla"))


@contextlib.contextmanager
def no_compilation_cache() -> Iterator[None]:
    """What is compiled within is compiled anew, and not kept."""
    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # or jax goes on as it began
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
