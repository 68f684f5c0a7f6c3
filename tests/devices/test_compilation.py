import os
import subprocess
import sys
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


@pytest.mark.parametrize(("set_before", "then"), [(1.0, 0.1), (0.0, 0.0), (30.0, 30.0)])
def test_short_programs_are_kept_unless_the_user_has_another_threshold(start, set_before, then):
    start()
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", set_before)
    compilation.use_compilation_cache()
    assert jax.config.jax_persistent_cache_min_compile_time_secs == then


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


@pytest.mark.parametrize(
    "error, reason",
    [
        (RuntimeError("Unable to initialize backend 'tpu': no libtpu"), "(Unable to initialize"),
        (RuntimeError("Unknown backend cuda.\nAvailable: cpu"), "(Unknown backend cuda.): unset"),
        (AssertionError(), "unset JAX_PLATFORMS (x)"),
    ],
)
def test_devices_that_do_not_exist_are_an_error_in_one_line(error, reason, monkeypatch):
    def devices():
        raise error

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "x")
    monkeypatch.delenv("JAX_PLATFORM_NAME", raising=False)
    with pytest.raises(OSError, match=".*") as refused:
        compilation.check_devices()
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_a_forked_process_is_refused_and_spawn_is_named(monkeypatch):
    compilation.start_jax()
    monkeypatch.setattr("os.getpid", lambda: 1)
    for use in (compilation.refuse_fork, compilation.start_jax):
        with pytest.raises(RuntimeError, match="forked .*get_context.'spawn'"):
            use()


def test_what_decides_bits_is_recorded_and_what_changes_none_is_not(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = compilation.bits_settings()
    harmless = "--xla_dump_to=x --xla_force_host_platform_device_count=3"
    monkeypatch.setenv("XLA_FLAGS", " ".join([harmless, *compilation.FLAGS]))
    assert compilation.bits_settings() == before
    monkeypatch.setenv("XLA_FLAGS", f"{harmless} --xla_b=1 --xla_a=2")
    assert compilation.bits_settings() == before | {"XLA_FLAGS": "--xla_a=2 --xla_b=1"}
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert compilation.bits_settings()["NVIDIA_TF32_OVERRIDE"] == "0"


@pytest.mark.parametrize(
    "name, value",
    [
        ("jax_enable_x64", True),
        ("jax_default_prng_impl", "rbg"),
        ("jax_threefry_partitionable", False),
        ("jax_default_matmul_precision", "bfloat16"),
        ("jax_numpy_dtype_promotion", "strict"),
        ("jax_random_seed_offset", 3),
    ],
)
def test_settings_of_a_script_are_recorded(name, value):
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        assert compilation.bits_settings()[name] == str(value)
    finally:
        jax.config.update(name, getattr(before, "value", before))
    assert name not in compilation.bits_settings()


def test_jax_has_all_settings_and_their_defaults():
    code = "import jax; from bertjax.devices import compilation as c; values = jax.config.values;"
    code += "print([s for s in c._SETTINGS if s not in values]);"
    code += "print(c.bits_settings())"
    env = {name: x for name, x in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    env |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    absent, settings = done.stdout.splitlines()
    # Of the versions after 0.10, 0.12 at least has no such setting any more.
    gone = ("['jax_exec_time_optimization_effort']",) * (jax.__version_info__ >= (0, 11))
    assert absent in ("[]", *gone), done.stderr
    assert settings == "{'jax_disable_most_optimizations': 'True'}", done.stderr
