"""Measures the roofline: the time of a training step's matrix multiplications when run alone.

The roofline is a lower bound on the time of a training step on this device. The roofline ratio of a
training step is the roofline divided by the time of the step. The term is that of Williams et al.
2009, but the bound is measured and not computed from the peaks of FLOP/s and bandwidth.
"""

import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.local_attention import block_size, is_in_blocks
from bertjax.model.matmul import matmul

# Implementations of matrix multiplication; for each shape, the faster one is used.
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

    @property
    def flops(self) -> int:
        """The number of FLOP of the product; the gradient of each operand needs as many FLOP."""
        return 2 * max(self.batch, 1) * self.rows * self.inner * self.columns


def forward_products(
    config: BertConfig, rows: int, row_length: int, predictions: int
) -> Counter[Product]:
    """Returns {matrix multiplication: number of occurrences} of a forward pass.

    The pass encodes `rows` rows of `row_length` tokens by a model with the config `config`. The
    matrix multiplications are those that `devices.flops` counts: projections, attention over whole
    rows or, where it is local, over windows, feed-forward layers, and the masked LM head at
    `predictions` positions per row.
    """
    d, f, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    e, tokens, masked = config.embedding_size or d, rows * row_length, rows * predictions
    head = d // heads
    products: Counter[Product] = Counter()
    layers = config.num_hidden_layers
    products[Product(0, tokens, d, d)] += 4 * layers
    products[Product(0, tokens, d, f)] += 2 * layers if config.gated_linear_unit else layers
    products[Product(0, tokens, f, d)] += layers
    for layer in range(layers):
        blocks, queries, keys = 1, row_length, row_length
        if not config.is_global(layer) and is_in_blocks(row_length, config.local_attention or 0):
            queries = block_size(config.local_attention or 0)
            blocks, keys = -(-row_length // queries), 3 * queries
        products[Product(rows * heads * blocks, queries, head, keys)] += 1
        products[Product(rows * heads * blocks, queries, keys, head)] += 1
    if config.embedding_size:
        products[Product(0, tokens, e, d)] += 1
    products[Product(0, masked, d, e)] += 1
    products[Product(0, masked, e, config.vocab_size)] += 1
    return products


class Roofline:
    """Measures the time of all matrix multiplications of a training step on the default device.

    Args:
        products: {matrix multiplication of the forward pass: number of occurrences}. For each
            matrix multiplication, the gradients of the two operands are measured as well.
        dtype: the dtype of the operands.
    """

    def __init__(self, products: Counter[Product], dtype: DTypeLike):
        self._times = products
        self._loops = {product: _Loop(product, dtype) for product in products}

    @property
    def flops(self) -> int:
        """The total FLOP of all matrix multiplications in the forward and the backward pass."""
        return sum(3 * product.flops * times for product, times in self._times.items())

    def seconds(self) -> float:
        """Measures the total seconds of all matrix multiplications, run one after another."""
        return sum(times * self._loops[product]() for product, times in self._times.items())


class _Loop:
    """A compiled loop that repeats a matrix multiplication and the gradients of its operands."""

    def __init__(self, product: Product, dtype: DTypeLike):
        batch, m, k, n = product
        lead = (batch,) if batch else ()
        shapes = [(*lead, m, k), (*lead, k, n), (*lead, m, n)]
        self._operands = [jnp.full(shape, 0.01, dtype) for shape in shapes]
        # XLA may compile one of the implementations to a slow program; the faster one is measured.
        programs = [jax.jit(functools.partial(_repeat, multiply)) for multiply in CANDIDATES]
        self._program = min(programs, key=lambda program: self._time(program, 1))
        once = self._time(self._program, 1)
        self._repeats = max(1, round(SECONDS_OF_A_LOOP / once))

    def _time(self, program: Callable[..., Any], repeats: int) -> float:
        """Measures the seconds per repetition of `program`, after a first call that compiles it."""
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
    """Computes x [..., m, k] @ w [..., k, n] and the gradients of x and w, `repeats` times.

    The gradients are computed from `dy` [..., m, n], the gradient of the product.
    """

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
