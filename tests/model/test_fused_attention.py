"""The fused kernel of attention, interpreted, and what decides whether it is taken."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import MeshConfig
from bertjax.model import BertConfig
from bertjax.model.attention import SelfAttention
from bertjax.model.fused_attention import splash_attention
from bertjax.train import sharding
from bertjax.train.attention import choose_attention

ROWS, LENGTH = 2, 256


@pytest.fixture(scope="module")
def packed() -> jax.Array:
    """A row of three sequences and padding, and one of a single sequence."""
    ids = np.zeros((ROWS, LENGTH), np.int32)
    ids[0, :100], ids[0, 100:130], ids[0, 130:230] = 1, 2, 3
    ids[1, :200] = 1
    return jnp.asarray(ids)


@pytest.fixture
def interpreted(monkeypatch):
    """Lets the model's kernel run without a TPU."""
    from bertjax.model import attention

    def run(*args, causal):
        return splash_attention(*args, causal=causal, interpret=True)

    monkeypatch.setitem(attention.FUSED, "splash", run)


@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_gradients_are_those_of_the_compilers_attention(packed, causal, interpreted):
    config = BertConfig(hidden_size=128, num_attention_heads=2, is_decoder=causal)
    x = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, 128))
    real = (packed > 0)[..., None]
    params = SelfAttention(config).init(jax.random.key(1), x, packed, None)

    def total(params, kernel):
        out = SelfAttention(config, kernel=kernel).apply(params, x, packed, None)
        return jnp.sum(jnp.where(real, out, 0.0) ** 2), out

    (expected, outputs), gradients = jax.value_and_grad(total, has_aux=True)(params, "xla")
    (found, fused_outputs), fused = jax.value_and_grad(total, has_aux=True)(params, "splash")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(fused_outputs * real, outputs * real, atol=1e-5)
    for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, float(jnp.abs(b).max())))


def test_dropout_and_visible_probabilities_are_kept_whatever_the_kernel(packed):
    config = BertConfig(hidden_size=128, num_attention_heads=2, attention_probs_dropout_prob=0.5)
    x = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, 128))
    params = SelfAttention(config).init(jax.random.key(1), x, packed, None)
    # Without a TPU the fused kernel cannot be lowered: these two do not take it.
    module = SelfAttention(config, kernel="splash")
    _, seen = module.apply(params, x, packed, None, mutable="intermediates")
    assert seen["intermediates"]["attention_probs"][0].shape == (ROWS, 2, LENGTH, LENGTH)
    outputs = [
        module.apply(params, x, packed, jnp.arange(ROWS), rngs={"dropout": jax.random.key(i)})
        for i in range(2)
    ]
    assert jnp.abs(outputs[0] - outputs[1]).max() > 1e-4


def test_on_a_mesh_each_device_computes_its_rows_and_heads(packed):
    rng = np.random.default_rng(0)
    shape = (ROWS, LENGTH, 4, 64)
    inputs = [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3)]
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=2, tensor=4))

    def attend(*inputs):
        return splash_attention(*inputs, causal=False, interpret=True)

    expected = jax.jit(attend)(*inputs, packed)
    placed = jax.device_put((*inputs, packed), sharding.batch_sharding(mesh))
    split = jax.jit(sharding.within(mesh, attend))
    assert "1x256x1x64" in split.lower(*placed).as_text()  # a row and a head a device
    found = split(*placed)
    np.testing.assert_allclose(found, expected, atol=1e-6)


PLAIN = BertConfig(attention_probs_dropout_prob=0.0)


@pytest.mark.parametrize(
    ("asked", "lengths", "device", "kernel", "reason"),
    [
        ("auto", [128, 512], "TPU v5 lite", "splash", "TPU v5 lite"),
        ("auto", [128], "TPU v5 lite", "xla", "no row has 512"),
        ("splash", [128], "TPU v6 lite", "splash", "rows of"),
        ("auto", [512], "TPU v3", "xla", "no fused kernel for TPU v3"),
        ("auto", [500], "TPU v5p", "xla", "no multiples of 128"),
        ("auto", [512], "cpu", "xla", "no fused kernel for cpu"),
        ("xla", [512], "TPU v5p", "xla", "as asked"),
    ],
)
def test_the_kernel_follows_device_and_rows(asked, lengths, device, kernel, reason):
    found = choose_attention(asked, PLAIN, lengths, device)
    assert found.kernel == kernel and reason in found.reason


def test_dropout_of_attention_is_not_given_up_for_a_kernel():
    config = dataclasses.replace(PLAIN, attention_probs_dropout_prob=0.1)
    for asked in ("splash", "auto"):
        found = choose_attention(asked, config, [512], "TPU v5p")
        assert found.kernel == "xla" and "0.1" in found.reason


@pytest.mark.parametrize(("lengths", "device"), [([512], "cpu"), ([100], "TPU v5p")])
def test_a_kernel_that_cannot_be_is_refused(lengths, device):
    with pytest.raises(ValueError, match=r"attention='splash': .*Leave attention='auto'"):
        choose_attention("splash", PLAIN, lengths, device)
