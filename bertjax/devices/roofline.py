"""Roofline: the time of the matrix multiplications of a step when they are run alone.

No step on this device can be faster. The roofline ratio is this time over the time of a step.
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
from bertjax.model.matmul import matmul

# Implementations of matrix multiplication; the faster one is taken for each shape.
CANDIDATES = (jnp.matmul, matmul)
# Duration of a measured loop, long enough that starting it costs nothing.
SECONDS_OF_A_LOOP = 0.05


class Product(NamedTuple):
    """The matrix multiplication [batch, rows, inner] x [batch, inner, columns]; batch 0: none."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """FLOP of the multiplication, which are also those of the gradient of each operand."""
        return 2 * max(self.batch, 1) * self.rows * self.inner * self.columns


def forward_products(
    config: BertConfig, rows: int, row_length: int, predictions: int
) -> Counter[Product]:
    """The matrix multiplications of a forward pass, and how often each occurs.

    They are those that `devices.flops` counts: projections, attention over whole rows, feed-forward
    layers, and the masked LM head at `predictions` positions of each of the `rows`.
    """
    d, f, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    e, tokens, masked = config.embedding_size or d, rows * row_length, rows * predictions
    head = d // heads
    products: Counter[Product] = Counter()
    layers = config.num_hidden_layers
    products[Product(0, tokens, d, d)] += 4 * layers
    products[Product(0, tokens, d, f)] += layers
    products[Product(0, tokens, f, d)] += layers
    products[Product(rows * heads, row_length, head, row_length)] += layers
    products[Product(rows * heads, row_length, row_length, head)] += layers
    if config.embedding_size:
        products[Product(0, tokens, e, d)] += 1
    products[Product(0, masked, d, e)] += 1
    products[Product(0, masked, e, config.vocab_size)] += 1
    return products


class Roofline:
    """Loops over all matrix multiplications of a training step, on the default device.

    Args:
        products: those of the forward pass; the gradients are run as well.
        dtype: of the operands.
    """

    def __init__(self, products: Counter[Product], dtype: DTypeLike):
        self._times = products
        self._loops = {product: _Loop(product, dtype) for product in products}

    @property
    def flops(self) -> int:
        """FLOP of all multiplications, forward and backward."""
        return sum(3 * product.flops * times for product, times in self._times.items())

    def seconds(self) -> float:
        """Measures the time of all multiplications, one after the other."""
        return sum(times * self._loops[product]() for product, times in self._times.items())


class _Loop:
    """A matrix multiplication and its two gradients, repeated in one compiled program."""

    def __init__(self, product: Product, dtype: DTypeLike):
        batch, m, k, n = product
        lead = (batch,) if batch else ()
        shapes = [(*lead, m, k), (*lead, k, n), (*lead, m, n)]
        self._operands = [jnp.full(shape, 0.01, dtype) for shape in shapes]
        # XLA may be slow with one of the implementations; the model then uses the other.
        programs = [jax.jit(functools.partial(_repeat, multiply)) for multiply in CANDIDATES]
        self._program = min(programs, key=lambda program: self._time(program, 1))
        once = self._time(self._program, 1)
        self._repeats = max(1, round(SECONDS_OF_A_LOOP / once))

    def _time(self, program: Callable[..., Any], repeats: int) -> float:
        """Seconds per repetition; the first call of a program compiles and is not counted."""
        jax.block_until_ready(program(*self._operands, 1))
        begin = time.perf_counter()
        jax.block_until_ready(program(*self._operands, repeats))
        return (time.perf_counter() - begin) / repeats

    def __call__(self) -> float:
        """Returns the median of three measurements in seconds."""
        return statistics.median(self._time(self._program, self._repeats) for _ in range(3))


def _repeat(
    multiply: Callable[..., jax.Array],
    x: jax.Array,
    w: jax.Array,
    dy: jax.Array,
    repeats: jax.Array,
):
    """Computes x [..., m, k] @ w [..., k, n] and the gradients of x and w, `repeats` times."""

    def products(x, w, dy):
        product, gradients_of = jax.vjp(multiply, x, w)
        return product.astype(x.dtype), *gradients_of(dy.astype(product.dtype))

    def body(i, carry):
        # Multiplications whose operands depend on the counter are not moved out of the loop.
        operands, _ = jax.lax.optimization_barrier(((x, w, dy), i))
        del carry
        return products(*operands)

    shapes = jax.eval_shape(products, x, w, dy)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.fori_loop(0, repeats, body, zeros)
