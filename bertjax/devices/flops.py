"""FLOP of training, peak FLOP/s of the devices, and the roofline of a training step.

MFU, the model FLOP utilisation, is the achieved FLOP/s over the peak FLOP/s, where recomputation
does not count as achieved (Chowdhery et al. 2022, appendix B).

The roofline is the time of a training step's matrix multiplications when run alone, a lower bound
on the time of the step on this device; the roofline ratio is the roofline over the time of the
step. The term is from Williams et al. 2009, but the bound is measured and not computed from the
peaks of FLOP/s and bandwidth.
"""

import functools
import math
import re
import statistics
import time
import timeit
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.fused_attention import block_size, is_in_blocks
from bertjax.model.linear import matmul

# Peak dense bfloat16 TFLOP/s per jax device, from the data sheets. (A device of TPU v2, v3 or 7x
# is one of the two cores of a chip.)
PEAK_TFLOPS = {
    "TPU v2": 22.5,
    "TPU v3": 61.5,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5": 459.0,
    "TPU v5p": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "TPU7x": 1153.5,
    "NVIDIA A10": 125.0,
    "NVIDIA A100": 312.0,
    "NVIDIA L4": 121.0,
    "NVIDIA L40": 181.0,
    "NVIDIA L40S": 362.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100 NVL": 835.0,
    "NVIDIA H200": 989.0,
    "NVIDIA H200 NVL": 835.0,
    "NVIDIA GH200": 989.0,
    "NVIDIA GeForce RTX 3090": 71.0,
    "NVIDIA GeForce RTX 4090": 165.2,
}


def train_flops_per_row(
    config: BertConfig, row_length: int, predictions: int, attended: float | None = None
) -> float:
    """Returns the number of FLOP of the forward and the backward pass for one row of a batch.

    Only matrix multiplications are counted: query, key, value and output projections, feed-forward
    layers, attention, in layers with local attention to the tokens in the window, scores for
    relative positions (the projection of their embeddings, once per batch, is not), convolution,
    projection of factorised embeddings, MLM head and mask decoder. A multiply-add counts as two
    FLOP.

    Args:
        predictions: the number of predicted tokens per row.
        attended: the mean number of tokens that a token attends to, which for packed rows is
            E[length^2] / E[length] over the sequences in the rows; None: `row_length`.
    """
    layers = _layers(config, predictions)
    if attended is None:
        attended = row_length
    near = attended
    if config.local_attention is not None:
        near = min(attended, config.local_attention // 2 * 2 + 1)
    everywhere = sum(map(config.is_global, range(layers)))
    keys = everywhere * attended + (layers - everywhere) * near
    products = 2 * keys  # of a token's query with keys, and of the probabilities with values
    if config.relative_attention:  # scores for the positions of 2 L - 1 differences
        products += 2 * len(config.pos_att_type) * layers * row_length
    flop = 6 * row_length * config.num_attention_heads * config.head_size * products
    for product, count in _dense_products(config, row_length, predictions).items():
        groups = max(product.batch, 1)
        flop += 6 * count * groups * product.rows * product.inner * product.columns
    return float(flop)


def _layers(config: BertConfig, predictions: int) -> int:
    """Returns how many layers a row passes, with two of the enhanced mask decoder."""
    layers = config.num_hidden_layers
    if config.enhanced_mask_decoder and predictions:
        layers += 2
    return layers


def peak_flops(peak_tflops: float | None) -> float:
    """Returns the peak FLOP/s of all devices of the run together.

    `peak_tflops` is the peak of one device; None: it is looked up in PEAK_TFLOPS, or measured.
    """
    if peak_tflops is None:
        kind = jax.devices()[0].device_kind
        peak_tflops = listed_tflops(kind) or _measured_tflops()
    return peak_tflops * 1e12 * jax.device_count()


def listed_tflops(kind: str) -> float | None:
    """Returns the TFLOP/s in PEAK_TFLOPS of a `device_kind`; None if it is not listed.

    The longest name with which the kind, such as "NVIDIA H100 80GB HBM3", begins counts, because
    cards of one name differ: H100 PCIe.
    """
    known = [key for key in PEAK_TFLOPS if re.match(rf"{re.escape(key)}(?!\w)", kind)]
    if not known:
        return None
    return PEAK_TFLOPS[max(known, key=len)]


def _measured_tflops() -> float:
    """Measures the TFLOP/s of one device: float32 on CPUs, else bfloat16, as devices train in."""
    size = 8192
    dtype = jnp.bfloat16
    shared = 1
    if jax.default_backend() == "cpu":
        size = 1024
        dtype = jnp.float32
        # Simulated devices share one processor, so each has a fraction of its FLOP/s.
        shared = jax.local_device_count()
    square = jax.jit(lambda x: x @ x)
    x = jax.device_put(jnp.ones((size, size), dtype), jax.local_devices()[0])
    times = timeit.repeat(lambda: square(x).block_until_ready(), number=1, repeat=6)
    return 2 * size**3 / min(times) / 1e12 / shared


CANDIDATES = (jnp.matmul, matmul)
# The duration of a measured loop in seconds, so long that the time to start it does not matter.
SECONDS_OF_A_LOOP = 0.05


class Product(NamedTuple):
    """The shape of a matrix multiplication [batch, rows, inner] x [batch, inner, columns].

    If `batch` is 0, the matrices have no batch axis.
    """

    batch: int
    rows: int
    inner: int
    columns: int


def forward_products(
    config: BertConfig, rows: int, row_length: int, predictions: int
) -> Counter[Product]:
    """Returns {product: number of occurrences} of a forward pass, see `train_flops_per_row`."""
    tokens = rows * row_length
    products = _dense_products(config, tokens, rows * predictions)
    heads = config.num_attention_heads
    head_size = config.head_size
    layers = _layers(config, predictions)
    window = config.local_attention or 0
    for layer in range(layers):
        count = rows * heads
        queries = row_length
        keys = row_length
        if not config.is_global(layer) and is_in_blocks(row_length, window):
            queries = block_size(window)
            keys = 3 * queries
            count *= math.ceil(row_length / queries)
        products[Product(count, queries, head_size, keys)] += 1
        products[Product(count, queries, keys, head_size)] += 1
    if config.relative_attention and config.pos_att_type:
        positions = Product(heads, tokens, head_size, 2 * row_length)
        products[positions] += layers * len(config.pos_att_type)
    return products


def _dense_products(config: BertConfig, tokens: int, masked: int) -> Counter[Product]:
    """Returns the products with parameters of a forward pass over tokens, some of them masked."""
    d = config.hidden_size
    f = config.intermediate_size
    e = config.output_size
    queries = config.num_attention_heads * config.head_size
    keys = config.key_heads * config.head_size
    layers = _layers(config, masked)
    products: Counter[Product] = Counter()
    products[Product(0, tokens, d, queries)] += layers
    products[Product(0, tokens, d, keys)] += 2 * layers
    products[Product(0, tokens, queries, d)] += layers
    products[Product(0, tokens, d, f)] += layers
    if config.gated_linear_unit:
        products[Product(0, tokens, d, f)] += layers
    products[Product(0, tokens, f, d)] += layers
    if config.conv_kernel_size:
        width = d // config.conv_groups
        products[Product(config.conv_groups, tokens, width, width)] += config.conv_kernel_size
    if config.embedding_size:
        products[Product(0, tokens, config.embedding_size, d)] += 1
    inner = config.prediction_head_size
    if inner is not None:
        products[Product(0, masked, d, inner)] += 1
        products[Product(0, masked, inner, e)] += 1
    elif config.mlm_transform:
        products[Product(0, masked, d, e)] += 1
    products[Product(0, masked, e, config.vocab_size)] += 1
    return products


class Roofline:
    """Measures the time of all matrix multiplications of a training step on the default device.

    `products` are {matrix multiplication of the forward pass: number of occurrences}; the gradients
    of the two operands of each are measured as well. `dtype` is the dtype of the operands.
    """

    def __init__(self, products: Counter[Product], dtype: DTypeLike):
        self._times = products
        self._loops = {product: _Loop(product, dtype) for product in products}

    def seconds(self) -> float:
        """Measures the total seconds of all matrix multiplications, run one after another."""
        return sum(times * self._loops[product]() for product, times in self._times.items())


class _Loop:
    def __init__(self, product: Product, dtype: DTypeLike):
        batch, m, k, n = product
        lead = (batch,) if batch else ()
        x = jnp.full((*lead, m, k), 0.01, dtype)
        w = jnp.full((*lead, k, n), 0.01, dtype)
        dy = jnp.full((*lead, m, n), 0.01, dtype)
        self._operands = (x, w, dy)
        # XLA may compile one of the implementations to a slow program; the faster one is measured.
        programs = [jax.jit(functools.partial(_repeat, multiply)) for multiply in CANDIDATES]
        self._program = min(programs, key=lambda program: self._time(program, 1))
        once = self._time(self._program, 1)
        self._repeats = max(1, round(SECONDS_OF_A_LOOP / once))

    def _time(self, program: Callable[..., Any], repeats: int) -> float:
        jax.block_until_ready(program(*self._operands, 1))
        begin = time.perf_counter()
        jax.block_until_ready(program(*self._operands, repeats))
        return (time.perf_counter() - begin) / repeats

    def __call__(self) -> float:
        """Returns the median of three measurements of the seconds per repetition of the loop."""
        return statistics.median(self._time(self._program, self._repeats) for _ in range(3))


def _repeat(
    multiply: Callable[..., jax.Array],
    x: jax.Array,
    w: jax.Array,
    dy: jax.Array,
    repeats: jax.Array,
):
    def products(x, w, dy):
        product, gradients_of = jax.vjp(multiply, x, w)
        return product.astype(x.dtype), *gradients_of(dy.astype(product.dtype))

    def body(i, carry):
        # The operands depend on the counter, so that XLA does not move the multiplications out of
        # the loop.
        operands, _ = jax.lax.optimization_barrier(((x, w, dy), i))
        del carry
        return products(*operands)

    shapes = jax.eval_shape(products, x, w, dy)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.fori_loop(0, repeats, body, zeros)
