"""The persistent compilation cache of jax, from which a run loads programs compiled earlier."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache


def use_compilation_cache() -> None:
    """Sets `jax_compilation_cache_dir`, if None, to `bertjax/xla` in the user's cache folder."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        config.update("jax_compilation_cache_dir", str(Path(root) / "bertjax" / "xla"))


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
