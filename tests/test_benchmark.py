"""What the benchmark says: its work is that of the formula, and its figures fit together."""

import contextlib
import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bertjax import benchmark
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.devices.compilation import no_compilation_cache
from bertjax.devices.flops import Product, Roofline, forward_products, train_flops_per_row
from bertjax.model import named_config


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in ("bert-base-uncased", "albert-base-v2", "bert-tiny")),
        ("modernbert-base", {}),
        ("ultrabert", {"prediction_head_size": 512}),
        ("deberta-v2-xlarge", {"conv_groups": 2, "enhanced_mask_decoder": True}),
    ],
)
def test_the_products_are_those_that_the_formula_counts(name, changes):
    config = named_config(name, **changes)
    products = forward_products(config, 3, 128, 20)
    flops = sum(
        # The product and the gradients of its two operands; a multiply-add counts as two FLOP.
        3 * 2 * max(product.batch, 1) * product.rows * product.inner * product.columns * times
        for product, times in products.items()
    )
    assert flops == 3 * train_flops_per_row(config, 128, 20)


def test_layers_of_the_masked_lm_cost_what_they_multiply():
    """Two of 4,096 x 512, and the output matrix."""
    config = named_config("ultrabert", prediction_head_size=512)
    encoder = train_flops_per_row(config, 128, 0)
    of_head = 4096 * (2 * 512 + config.vocab_size)
    assert train_flops_per_row(config, 128, 20) - encoder == 6 * 20 * of_head


def test_local_layers_cost_their_window():
    """22 layers, of which 8 read all 8,192 tokens, and 14 a window of 129."""
    config = named_config("modernbert-base")
    everywhere = dataclasses.replace(config, global_attn_every_n_layers=1)
    difference = train_flops_per_row(everywhere, 8192, 0) - train_flops_per_row(config, 8192, 0)
    assert difference == 12 * 768 * 8192 * 14 * (8192 - 129)
    # Packed rows of sequences that are shorter than the window have no more to read.
    assert train_flops_per_row(config, 8192, 0, 100) == train_flops_per_row(
        everywhere, 8192, 0, 100
    )
    # What is computed in blocks of 64 is 192 keys for each query.
    products = forward_products(config, 1, 8192, 0)
    assert products[Product(12 * 128, 64, 64, 192)] == 14
    assert products[Product(12, 8192, 64, 8192)] == 8


@pytest.mark.slow
def test_products_alone_take_longer_the_more_there_are(monkeypatch):
    monkeypatch.setattr("bertjax.devices.flops.SECONDS_OF_A_LOOP", 0.005)
    one = Roofline(forward_products(named_config("bert-tiny"), 1, 16, 2), "float32")
    assert one.seconds() > 0
    # Nothing is left out of a loop: a product of 128 times the work takes far longer.
    small, large = (Roofline({Product(0, n, 256, 256): 1}, "float32") for n in (16, 2048))  # type: ignore[arg-type]
    assert large.seconds() > 8 * small.seconds()


@pytest.fixture(scope="module")
def config(prepared, one_layer_config, tokenizer) -> PretrainConfig:
    return PretrainConfig(
        model=dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size),
        phases=(Phase(num_steps=10, max_length=16, batch_size=16),),
        optimizer=OptimizerConfig(warmup_steps=1),
        unroll=1,
        peak_tflops=0.1,
    )


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("with_data", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_figures_fit_together(config, prepared, tmp_path, monkeypatch, capsys, with_data):
    monkeypatch.setattr("bertjax.train.throughput.ROUNDS", 2)
    monkeypatch.setattr("bertjax.devices.flops.SECONDS_OF_A_LOOP", 0.001)
    config = dataclasses.replace(config, data=str(prepared) if with_data else "")
    flags = benchmark.BenchmarkFlags(
        steps=2, json=str(tmp_path / "f.json"), profile=str(tmp_path / "trace")
    )
    found = benchmark.run(config, flags)
    assert json.loads((tmp_path / "f.json").read_text()) == found
    tokens = found["tokens_per_second"] * found["step_seconds"]
    assert (128 < tokens < 257) if with_data else tokens == pytest.approx(256)
    assert found["compile_seconds"] > 0 and found["roofline_ratio"] > 0 and found["mfu"] > 0
    assert (found["input_stall"] is not None) == with_data
    assert found["peak_memory_bytes"] > 1e8
    assert any((tmp_path / "trace").rglob("*.xplane.pb"))
    assert "MFU" in capsys.readouterr().out


def test_impossible_flags_are_refused(config, capsys):
    with pytest.raises(ValueError, match="phase=1"):
        benchmark.run(config, benchmark.BenchmarkFlags(phase=1))
    with pytest.raises(SystemExit, match="2"):
        benchmark.parse(["--steps", "0"])
    assert "steps=0: it must be at least 1" in capsys.readouterr().err


def test_what_is_compiled_without_the_cache_is_not_kept(tmp_path):
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    smallest = "jax_persistent_cache_min_compile_time_secs"
    seconds = getattr(jax.config, smallest)
    x = jnp.ones((3, 3))
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        jax.config.update(smallest, 0.0)
        compilation_cache.reset_cache()
        for function, kept in ((jnp.sin, True), (jnp.cos, False), (jnp.tan, True)):
            found = set(tmp_path.iterdir())
            with contextlib.nullcontext() if kept else no_compilation_cache():
                jax.jit(lambda x, function=function: function(x) @ x)(x)
            assert (set(tmp_path.iterdir()) > found) == kept
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.config.update(smallest, seconds)
        compilation_cache.reset_cache()
