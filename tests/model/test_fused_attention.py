"""The fused kernels of attention, off their devices, and what decides whether one is taken."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import MeshConfig
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_attention
from bertjax.model import BertConfig
from bertjax.model.attention import SelfAttention
from bertjax.model.fused_attention import FUSED, cudnn_attention, splash_attention

ROWS, LENGTH = 2, 256


@pytest.fixture(scope="module")
def packed() -> jax.Array:
    """A row of three sequences and padding, and one of a single sequence."""
    ids = np.zeros((ROWS, LENGTH), np.int32)
    ids[0, :100], ids[0, 100:130], ids[0, 130:230] = 1, 2, 3
    ids[1, :200] = 1
    return jnp.asarray(ids)


# The kernels without their devices.
ANYWHERE = {
    "splash": functools.partial(splash_attention, interpret=True),
    "cudnn": functools.partial(cudnn_attention, implementation="xla"),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", FUSED)
def test_outputs_and_gradients_are_those_of_the_compilers_attention(
    packed, causal, kernel, monkeypatch
):
    monkeypatch.setitem(FUSED, kernel, FUSED[kernel]._replace(attend=ANYWHERE[kernel]))
    config = BertConfig(hidden_size=128, num_attention_heads=2, is_decoder=causal)
    x = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, 128))
    real = (packed > 0)[..., None]
    params = SelfAttention(config).init(jax.random.key(1), x, packed, None)

    def total(params, kernel):
        out = SelfAttention(config, kernel=kernel).apply(params, x, packed, None)
        return jnp.sum(jnp.where(real, out, 0.0) ** 2), out

    (expected, outputs), gradients = jax.value_and_grad(total, has_aux=True)(params, "xla")
    (found, fused_outputs), fused = jax.value_and_grad(total, has_aux=True)(params, kernel)
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


@pytest.mark.parametrize("kernel", FUSED)
def test_on_a_mesh_each_device_computes_its_rows_and_heads(packed, kernel):
    rng = np.random.default_rng(0)
    shape = (ROWS, LENGTH, 4, 64)
    inputs = [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3)]
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=2, tensor=4))

    attend = functools.partial(ANYWHERE[kernel], causal=False)
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
        ("auto", [128], "TPU v5 lite", "xla", "all rows have fewer than 512"),
        ("splash", [128], "TPU v6 lite", "splash", "rows of"),
        ("auto", [512], "TPU v3", "xla", "not on TPU v3"),
        ("auto", [500], "TPU v5p", "xla", "not multiples of 128"),
        ("auto", [512], "cpu", "xla", "not on cpu"),
        ("auto", [512], "NVIDIA H200", "xla", "not on NVIDIA H200"),
        ("cudnn", [128, 512], "NVIDIA H200", "cudnn", "NVIDIA H200"),
        ("xla", [512], "TPU v5p", "xla", "requested"),
    ],
)
def test_the_kernel_follows_device_and_rows(asked, lengths, device, kernel, reason):
    found = choose_attention(asked, PLAIN, lengths, device, "bfloat16")
    assert found.kernel == kernel and reason in found.reason


def test_dropout_of_attention_is_not_given_up_for_a_kernel():
    config = dataclasses.replace(PLAIN, attention_probs_dropout_prob=0.1)
    for asked, device in (("splash", "TPU v5p"), ("auto", "TPU v5p"), ("cudnn", "NVIDIA H100")):
        found = choose_attention(asked, config, [512], device, "bfloat16")
        assert found.kernel == "xla" and "0.1" in found.reason


@pytest.mark.parametrize(
    ("asked", "lengths", "device", "dtype"),
    [
        ("splash", [512], "cpu", "bfloat16"),
        ("splash", [100], "TPU v5p", "bfloat16"),
        ("cudnn", [512], "TPU v5p", "bfloat16"),
        ("cudnn", [512], "NVIDIA H200", "float32"),
        ("cudnn", [127], "NVIDIA H200", "bfloat16"),
    ],
)
def test_a_kernel_that_cannot_be_is_refused(asked, lengths, device, dtype):
    with pytest.raises(ValueError, match=rf"attention='{asked}': .*Use attention='auto'"):
        choose_attention(asked, PLAIN, lengths, device, dtype)
