"""Compiled programs are kept on disk, so that the next run of the same shapes starts at once."""

import os
from pathlib import Path
from typing import Any

import jax


def use_compilation_cache() -> None:
    """Turns on jax's persistent cache in the user's cache folder, unless one is set already."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        config.update("jax_compilation_cache_dir", str(Path(root) / "bertjax" / "xla"))
