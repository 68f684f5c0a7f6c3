import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bertjax.devices import compilation


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Does what a process does that uses the cache of this package, here in `tmp_path`."""
    monkeypatch.setattr(compilation, "cache_folder", lambda: tmp_path)
    before = (
        jax.config.jax_compilation_cache_dir,
        jax.config.jax_persistent_cache_min_compile_time_secs,
    )

    def start():
        jax.clear_caches()
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", None)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        compilation.use_compilation_cache()
        jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8)))
        return {path: path.read_bytes() for path in (tmp_path / "xla").glob("*-cache")}

    yield start
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", before[0])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])


@pytest.mark.parametrize("length", [0, 100])
def test_a_compiled_program_that_was_cut_off_is_replaced(start, length):
    programs = start()
    assert programs and start() == programs
    for path, content in programs.items():
        path.write_bytes(content[:length])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replaced = start()
    assert {*replaced} == {*programs}
    assert all(len(replaced[path]) > length for path in programs)
