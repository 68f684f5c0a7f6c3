"""The fused kernels of attention, off their devices, and what decides whether one is taken."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import MeshConfig
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_attention
from bertjax.model import BertConfig, named_config
from bertjax.model.attention import BY_HEAD, SelfAttention, attend_locally
from bertjax.model.dropout import Dropout, drop_threshold, keep_mask
from bertjax.model.encoder import REMAT_POLICIES, PreNormEncoder
from bertjax.model.fused_attention import (
    FUSED,
    cudnn_attention,
    flash_attention,
    splash_attention,
)
from tests.cases import WEEKLY, others_weekly

ROWS, LENGTH = 2, 256


@pytest.fixture(scope="module")
def packed() -> jax.Array:
    """A row of three sequences and padding, and one of a single sequence."""
    ids = np.zeros((ROWS, LENGTH), np.int32)
    ids[0, :100], ids[0, 100:130], ids[0, 130:230] = 1, 2, 3
    ids[1, :200] = 1
    return jnp.asarray(ids)


@functools.partial(jax.jit, static_argnums=0)
def initial(module, x, ids):
    """The first parameters of a module."""
    return module.init(jax.random.key(1), x, ids, None)


# The kernels without their devices.
ANYWHERE = {
    "splash": functools.partial(splash_attention, interpret=True),
    "cudnn": functools.partial(cudnn_attention, implementation="xla"),
    "flash": functools.partial(flash_attention, interpret=True),
}
# The kernel with dropout, as it is written for each compiler.
FLASH = {name: functools.partial(ANYWHERE["flash"], platform=name) for name in ("gpu", "tpu")}


@pytest.mark.parametrize(
    ("causal", "dtype"),
    [
        (False, jnp.float32),
        (True, jnp.bfloat16),
        pytest.param(True, jnp.float32, marks=WEEKLY),
        pytest.param(False, jnp.bfloat16, marks=WEEKLY),
    ],
)
def test_attention_head_by_head_is_that_of_all_heads(packed, causal, dtype):
    config = BertConfig(hidden_size=96, num_attention_heads=6, is_decoder=causal)
    x = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, 96), dtype)
    attention = SelfAttention(config, dtype)
    params = initial(attention, x, packed)
    by_head = attention.clone(kernel=BY_HEAD)
    whole, found = (
        jax.jit(module.apply)(params, x, packed, None) for module in (attention, by_head)
    )
    tolerance = 1e-6 if dtype == jnp.float32 else 1e-2
    np.testing.assert_allclose(*map(np.float32, (found, whole)), atol=tolerance)
    text = jax.jit(by_head.apply).lower(params, x, packed, None).as_text()
    assert f"{ROWS}x1x{LENGTH}x{LENGTH}x" in text and f"{ROWS}x6x{LENGTH}x{LENGTH}x" not in text
    seen = functools.partial(by_head.apply, mutable=["intermediates"])
    _, sown = jax.eval_shape(seen, params, x, packed, None)
    assert sown["intermediates"]["attention_probs"][0].shape == (ROWS, 6, LENGTH, LENGTH)


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kernel", others_weekly(FUSED, "flash", slow=("cudnn", "splash")))
def test_outputs_and_gradients_are_those_of_the_compilers_attention(
    packed, causal, kernel, monkeypatch
):
    monkeypatch.setitem(FUSED, kernel, FUSED[kernel]._replace(attend=ANYWHERE[kernel]))
    config = BertConfig(hidden_size=128, num_attention_heads=2, is_decoder=causal)
    x = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, 128))
    real = (packed > 0)[..., None]
    params = initial(SelfAttention(config), x, packed)

    def total(params, kernel):
        out = SelfAttention(config, kernel=kernel).apply(params, x, packed, None)
        return jnp.sum(jnp.where(real, out, 0.0) ** 2), out

    gradient = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1)
    (expected, outputs), gradients = gradient(params, "xla")
    (found, fused_outputs), fused = gradient(params, kernel)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(fused_outputs * real, outputs * real, atol=1e-5)
    for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, float(jnp.abs(b).max())))


def attend_with(kernel, config, params, x, ids, rows, key=7):
    module = SelfAttention(config, kernel=kernel)
    return module.apply(params, x, ids, rows, rngs={"dropout": jax.random.key(key)})


def assert_close_trees(found, expected, tolerance: float) -> None:
    """The tolerance is relative to the largest value of all: gradients of key biases are zero."""
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize(
    ("platform", "heads", "causal"),
    [
        pytest.param("gpu", 2, False, marks=pytest.mark.slow),
        pytest.param("tpu", 8, False, marks=pytest.mark.slow),
        *(pytest.param("tpu", *x, marks=WEEKLY) for x in ((2, False), (4, True))),
        *(pytest.param("gpu", *x, marks=WEEKLY) for x in ((4, True), (8, False))),
    ],
)
def test_flash_attention_drops_what_the_compilers_attention_drops(
    packed, platform, heads, causal, monkeypatch
):
    """Heads of 48 (odd), 24 and 12 elements, packed rows with padding; float32."""
    monkeypatch.setitem(FUSED, "flash", FUSED["flash"]._replace(attend=FLASH[platform]))
    config = BertConfig(
        hidden_size=96,
        num_attention_heads=heads,
        is_decoder=causal,
        attention_probs_dropout_prob=0.2,
    )
    x = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, 96))
    params = initial(SelfAttention(config), x, packed)
    # Larger weights than at the start of training, so that attention is not almost uniform.
    params = jax.tree.map(lambda p: 8 * p, params)
    weights = jax.random.normal(jax.random.key(2), x.shape)

    def total(params, x, kernel):
        out = attend_with(kernel, config, params, x, packed, jnp.array([5, 3]))
        return jnp.sum(out * weights) / x.size, out

    with jax.default_matmul_precision("highest"):
        gradient = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True), static_argnums=2)
        (_, outputs), expected = gradient(params, x, "xla")
        (_, fused), found = gradient(params, x, "flash")
    assert_close_trees(fused, outputs, 1e-6)
    assert_close_trees(found, expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("platform", FLASH)
@pytest.mark.parametrize("length", [pytest.param(128, marks=WEEKLY), 512])
def test_the_bits_of_flash_attention_are_those_of_dropout(platform, length):
    heads, rate, rows = 3, 0.3, jnp.array([4, 9])
    key = jax.random.key(2)
    row_keys = jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, rows))
    zeros = jnp.zeros((2, length, heads, 128))

    @jax.jit
    def attend(values):
        ids = jnp.ones((2, length), jnp.int32)
        options = {"causal": False, "row_keys": row_keys, "rate": rate}
        return FLASH[platform](zeros, zeros, values, ids, **options)

    # With equal scores and one-hot values, the outputs are the probabilities of 128 keys.
    found = []
    for start in range(0, length, 128):
        one_hot = jnp.eye(length, 128, -start)[None, :, None]
        found.append(attend(jnp.broadcast_to(one_hot, zeros.shape)))
    probs = jnp.concatenate(found, -1).swapaxes(1, 2)  # [B, N, L, L]
    kept = keep_mask(key, rows, (heads, length, length), drop_threshold(rate))
    np.testing.assert_array_equal(probs > 0, kept)
    np.testing.assert_allclose(probs, kept / (1 - rate) / length, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_flash_attention_on_a_mesh_equals_that_of_one_device(packed, monkeypatch):
    """Rows and heads are split: a device draws the bits of its own rows and heads."""
    monkeypatch.setitem(FUSED, "flash", FUSED["flash"]._replace(attend=ANYWHERE["flash"]))
    config = BertConfig(hidden_size=128, num_attention_heads=4, attention_probs_dropout_prob=0.3)
    x = jax.random.normal(jax.random.key(0), (4, LENGTH, 128))
    ids = jnp.concatenate([packed, packed])
    params = initial(SelfAttention(config), x, ids)
    rows = jnp.arange(4)

    def gradients(kernel, params, x, ids, rows):
        def total(params):
            return jnp.sum(attend_with(kernel, config, params, x, ids, rows) ** 2)

        return jax.value_and_grad(total)(params)

    expected = jax.jit(functools.partial(gradients, "xla"))(params, x, ids, rows)
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    placed = jax.device_put((x, ids, rows), sharding.batch_sharding(mesh))
    split = sharding.within(mesh, functools.partial(gradients, "flash"))
    found = jax.jit(split)(params, *placed)
    assert_close_trees(found, expected, 1e-5)


def test_rows_that_flash_attention_cannot_have_are_refused_or_left_to_the_compiler(packed):
    x = jnp.zeros((1, 100, 2, 8))
    with pytest.raises(ValueError, match=r"Rows of 100 tokens: .* a multiple of 128"):
        flash_attention(x, x, x, jnp.ones((1, 100), jnp.int32), causal=False)
    # Without an accelerator, the kernel could not be lowered.
    config = BertConfig(hidden_size=16, num_attention_heads=2)
    x, ids = jnp.zeros((1, 100, 16)), jnp.ones((1, 100), jnp.int32)
    params = initial(SelfAttention(config), x, ids)
    jax.jit(attend_with, static_argnums=(0, 1))("flash", config, params, x, ids, jnp.arange(1))
    x, ids = jnp.zeros((1, 128, 16)), jnp.ones((1, 128), jnp.int32)
    rbg = {"dropout": jax.random.key(1, impl="rbg")}
    apply = jax.jit(SelfAttention(config, kernel="flash").apply)
    apply(params, x, ids, jnp.arange(1), rngs=rbg)


def test_dropout_and_visible_probabilities_are_kept_whatever_the_kernel(packed):
    config = BertConfig(hidden_size=128, num_attention_heads=2, attention_probs_dropout_prob=0.5)
    x = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, 128))
    params = initial(SelfAttention(config), x, packed)
    # Without a TPU the fused kernel cannot be lowered: these two do not take it.
    module = SelfAttention(config, kernel="splash")
    visible = jax.jit(functools.partial(module.apply, mutable="intermediates"))
    _, seen = visible(params, x, packed, None)
    assert seen["intermediates"]["attention_probs"][0].shape == (ROWS, 2, LENGTH, LENGTH)
    apply = jax.jit(module.apply)
    outputs = [
        apply(params, x, packed, jnp.arange(ROWS), rngs={"dropout": jax.random.key(i)})
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
        ("auto", [600], "TPU v5p", "xla", "not multiples of 128"),
        ("auto", [512], "cpu", "xla", "not on cpu"),
        ("auto", [512], "NVIDIA H200", "flash", "NVIDIA H200"),
        ("auto", [128], "NVIDIA H200", "xla", "all rows have fewer than 512"),
        ("flash", [128], "NVIDIA H200", "flash", "NVIDIA H200"),
        ("auto", [512], "TPU v4", "flash", "TPU v4"),
        ("cudnn", [128, 512], "NVIDIA H200", "cudnn", "NVIDIA H200"),
        ("xla", [512], "TPU v5p", "xla", "requested"),
    ],
)
def test_the_kernel_follows_device_and_rows(asked, lengths, device, kernel, reason):
    found = choose_attention(asked, PLAIN, lengths, device, "bfloat16")
    assert found.kernel == kernel and reason in found.reason


@pytest.mark.parametrize(
    ("asked", "device", "prng", "kernel", "reason"),
    [
        ("splash", "TPU v5p", "threefry2x32", "xla", "splash does not support .*0.1"),
        ("cudnn", "NVIDIA H100", "threefry2x32", "xla", "cudnn does not support .*0.1"),
        ("auto", "TPU v5p", "threefry2x32", "flash", "TPU v5p, rows of .512. tokens, dropout 0.1"),
        ("auto", "NVIDIA H100 80GB HBM3", "threefry2x32", "flash", "dropout 0.1"),
        ("auto", "NVIDIA H100 80GB HBM3", "rbg", "xla", "flash draws .* threefry2x32, not rbg"),
        ("flash", "TPU v4", "rbg", "xla", "not rbg"),
        ("auto", "Tesla V100", "threefry2x32", "xla", "not on Tesla V100"),
    ],
)
def test_dropout_of_attention_is_not_given_up_for_a_kernel(asked, device, prng, kernel, reason):
    config = dataclasses.replace(PLAIN, attention_probs_dropout_prob=0.1)
    found = choose_attention(asked, config, [512], device, "bfloat16", prng)
    assert found.kernel == kernel and re.search(reason, found.reason)


@pytest.mark.parametrize(
    ("asked", "lengths", "device", "dtype"),
    [
        ("splash", [512], "cpu", "bfloat16"),
        ("splash", [100], "TPU v5p", "bfloat16"),
        ("cudnn", [512], "TPU v5p", "bfloat16"),
        ("cudnn", [512], "NVIDIA H200", "float32"),
        ("cudnn", [127], "NVIDIA H200", "bfloat16"),
        ("flash", [512], "TPU v3", "bfloat16"),
        ("flash", [200], "NVIDIA H200", "bfloat16"),
    ],
)
def test_a_kernel_that_cannot_be_is_refused(asked, lengths, device, dtype):
    with pytest.raises(ValueError, match=rf"attention='{asked}': .*Use attention='auto'"):
        choose_attention(asked, PLAIN, lengths, device, dtype)


def local_dropout(rate: float, rows: jax.Array):
    """Returns the row keys of a dropout of probabilities, and the dropout as XLA draws it."""
    rngs = {"dropout": jax.random.key(2)}
    keys = Dropout(rate).apply({}, rows, rngs=rngs, method="row_keys")
    return keys, lambda probs: Dropout(rate).apply({}, probs, rows, rngs=rngs)


@pytest.mark.parametrize(
    ("platform", "window"),
    [
        pytest.param("tpu", 2, marks=pytest.mark.slow),
        *(pytest.param(platform, 90, marks=WEEKLY) for platform in ("gpu", "tpu")),
    ],
)
def test_the_bits_of_local_flash_attention_are_those_of_blocks(platform, window):
    """With one-hot values, the outputs are the probabilities of the first 128 keys."""
    zeros = jnp.zeros((1, LENGTH, 2, 128))
    values = jnp.broadcast_to(jnp.eye(LENGTH, 128, -60)[None, :, None], zeros.shape)
    ids = jnp.repeat(jnp.array([[1, 2, 0]]), jnp.array([100, 120, 36]), axis=1)
    keys, drop = local_dropout(0.3, jnp.array([9]))
    expected = attend_locally(zeros, zeros, values, ids, window, drop)
    found = FLASH[platform](
        *(zeros, zeros, values, ids), causal=False, window=window, row_keys=keys, rate=0.3
    )
    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# Rows and windows in tokens: a window that is no multiple of a block, one that is, one as wide as a
# block, one wider than it, and rows that are not in blocks.
LOCAL = [(384, 40), (512, 128), (256, 1), (512, 300), (256, 200), (128, 1000)]
RATES = {"gpu": 0.3, "tpu": 0.3, "splash": 0.0}


CASES = [
    *((*kernel, "float32", *sizes) for kernel in RATES.items() for sizes in LOCAL),
    *((*kernel, "bfloat16", 512, 128) for kernel in RATES.items()),
    *((kernel, 0.0, "float32", 512, 128) for kernel in FLASH),
]
# Each kernel and each kind of window; a data type and a rate of their own.
COVERING = [
    *(("gpu", 0.3, "float32", *sizes) for sizes in ((256, 1), (128, 1000))),
    *(("tpu", 0.3, "float32", 256, 200), ("splash", 0.0, "float32", 384, 40)),
    ("gpu", 0.3, "bfloat16", 512, 128),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "rate", "dtype", "length", "window"),
    [pytest.param(*x, marks=() if x in COVERING else pytest.mark.exhaustive) for x in CASES],
)
def test_local_attention_and_its_gradients_are_those_of_the_compilers_attention(
    kernel, rate, dtype, length, window, monkeypatch
):
    """Packed rows with padding, a head size that is no power of two."""
    name = "splash" if kernel == "splash" else "flash"
    attend = (ANYWHERE | FLASH)[kernel]
    monkeypatch.setitem(FUSED, name, FUSED[name]._replace(attend=attend))
    config = BertConfig(hidden_size=72, num_attention_heads=3, attention_probs_dropout_prob=rate)
    sizes = jnp.array([length // 3, length // 6, length // 4, length // 4])
    ids = jnp.repeat(jnp.array([[1, 2, 3, 0]]), sizes, axis=1, total_repeat_length=length)
    ids = jnp.concatenate([ids, jnp.ones_like(ids)])
    x = jax.random.normal(jax.random.key(0), (2, length, 72), dtype)
    params = initial(SelfAttention(config), x, ids)
    params = jax.tree.map(lambda p: 8 * p, params)
    weights = jax.random.normal(jax.random.key(2), x.shape) * (ids > 0)[..., None]

    def total(params, x, kernel):
        module = SelfAttention(config, jnp.dtype(dtype), kernel, window)
        rngs = {"dropout": jax.random.key(7)}
        out = module.apply(params, x, ids, jnp.array([5, 3]), rngs=rngs)
        return jnp.sum(out * weights) / x.size, out * (ids > 0)[..., None]

    with jax.default_matmul_precision("highest"):
        gradient = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True), static_argnums=2)
        (_, outputs), expected = gradient(params, x, "xla")
        (_, fused), found = gradient(params, x, name)
    exact = dtype == "float32"
    assert_close_trees(*jax.tree.map(jnp.float32, (fused, outputs)), 1e-6 if exact else 1e-2)
    assert_close_trees(*jax.tree.map(jnp.float32, (found, expected)), 1e-5 if exact else 2e-2)


@pytest.mark.slow
def test_local_flash_attention_on_a_mesh_drops_what_that_of_one_device_drops():
    """The bits of a head depend on the number of all heads."""
    shape, ids = (2, LENGTH, 4, 16), jnp.ones((2, LENGTH), jnp.int32)
    inputs = [jax.random.normal(jax.random.key(i), shape) for i in range(3)]
    keys, drop = local_dropout(0.3, jnp.array([4, 9]))
    expected = jax.jit(functools.partial(attend_locally, window=64, dropout=drop))(*inputs, ids)
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=2, tensor=4))

    def attend(query, key, value, ids, keys):
        options = {"causal": False, "window": 64, "row_keys": keys, "rate": 0.3}
        return ANYWHERE["flash"](query, key, value, ids, **options)

    placed = jax.device_put((*inputs, ids, keys), sharding.batch_sharding(mesh))
    found = jax.jit(sharding.within(mesh, attend))(*placed)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "remat"),
    [
        *(("flash", "selective"), ("splash", "none")),
        *(
            pytest.param(*x, marks=pytest.mark.exhaustive)
            for x in (("flash", "none"), ("splash", "selective"))
        ),
    ],
)
@pytest.mark.exhaustive
def test_modernbert_with_a_kernel_equals_modernbert_without(kernel, remat, monkeypatch):
    monkeypatch.setitem(FUSED, kernel, FUSED[kernel]._replace(attend=ANYWHERE[kernel]))
    rate = 0.1 if kernel == "flash" else 0.0
    config = named_config(
        "modernbert-base",
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        local_attention=48,
        pad_token_id=0,
        attention_probs_dropout_prob=rate,
    )
    rows, places = jnp.array([0, 1]), jnp.arange(LENGTH)[None]
    ids = jnp.concatenate([places // 100 + 1, jnp.where(places < 200, 1, 0)])
    x = jax.random.normal(jax.random.key(0), (2, LENGTH, 32))
    positions = jnp.concatenate([places % 100, places])
    params = PreNormEncoder(config).init(jax.random.key(1), x, ids, None, positions)

    def total(params, kernel):
        module = PreNormEncoder(config, remat=remat, attention_kernel=kernel)
        rngs = {"dropout": jax.random.key(3)}
        out, _ = module.apply(params, x, ids, rows, positions, rngs=rngs)
        return jnp.sum((out * (ids > 0)[..., None]) ** 3) / x.size

    with jax.default_matmul_precision("highest"):
        gradient = jax.jit(jax.value_and_grad(total), static_argnums=1)
        expected, gradients = gradient(params, "xla")
        found, fused = gradient(params, kernel)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert_close_trees(fused, gradients, 1e-5)


@pytest.mark.parametrize(("window", "calls"), [(None, 2), (128, 3)])
def test_the_backward_pass_of_selective_remat_calls_no_forward_kernel(packed, window, calls):
    config = BertConfig(hidden_size=256, num_attention_heads=2)
    attention = SelfAttention(config, kernel="splash", window=window)
    x = jnp.zeros((ROWS, LENGTH, 256))
    params = initial(attention.clone(kernel="xla"), x, packed)

    def total(params):
        return attention.apply(params, x, packed, None).sum()

    total = jax.checkpoint(total, policy=REMAT_POLICIES["selective"])
    lowered = jax.jit(jax.grad(total)).trace(params).lower(lowering_platforms=("tpu",))
    assert lowered.as_text().count("@tpu_custom_call") == calls


def test_the_reason_says_which_kernel_has_the_windows():
    config = named_config("modernbert-base")
    reasons = [
        choose_attention(asked, config, [1024], device, "bfloat16").reason
        for asked, device in (("auto", "TPU v5p"), ("flash", "TPU v4"), ("cudnn", "NVIDIA H100"))
    ]
    assert [reason.rpartition(", ")[2] for reason in reasons] == [
        "windows of 128 tokens",
        "windows of 128 tokens",
        "windows of 128 tokens by xla",
    ]
