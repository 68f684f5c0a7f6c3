"""The matrix products of a step run alone: the time that no step of this device can beat.

A step has other work, too; the roofline ratio says how much of its time the products would take.
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

# Ways to the same product.
CANDIDATES = (jnp.matmul, matmul)
# A loop over a product runs about so long, so that starting it costs nothing.
SECONDS_OF_A_LOOP = 0.05


class Product(NamedTuple):
    """[batch, rows, inner] x [batch, inner, columns], without `batch` where it is 0."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Of forward, of the gradient of one operand, or of the other; a multiply-add is two."""
        return 2 * max(self.batch, 1) * self.rows * self.inner * self.columns


def forward_products(
    config: BertConfig, rows: int, row_length: int, predictions: int
) -> Counter[Product]:
    """The products of a forward pass, and how often each occurs.

    What the one formula of FLOP counts (`train.flops`): projections, attention over whole rows,
    feed-forward, and the masked LM head at `predictions` positions of each of the `rows`.
    """
    d, f, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    e, tokens, masked = config.embedding_size or d, rows * row_length, rows * predictions
    head = d // heads
    found: Counter[Product] = Counter()
    layers = config.num_hidden_layers
    found[Product(0, tokens, d, d)] += 4 * layers
    found[Product(0, tokens, d, f)] += layers
    found[Product(0, tokens, f, d)] += layers
    found[Product(rows * heads, row_length, head, row_length)] += layers
    found[Product(rows * heads, row_length, row_length, head)] += layers
    if config.embedding_size:
        found[Product(0, tokens, e, d)] += 1
    found[Product(0, masked, d, e)] += 1
    found[Product(0, masked, e, config.vocab_size)] += 1
    return found


class Roofline:
    """Loops over all products of a training step, compiled for the default device.

    Args:
        products: of the forward pass; their gradients are run, too.
        dtype: of the operands.
    """

    def __init__(self, products: Counter[Product], dtype: DTypeLike):
        self._times = products
        self._loops = {product: _Loop(product, dtype) for product in products}

    @property
    def flops(self) -> int:
        """Of all products, forward and backward."""
        return sum(3 * product.flops * times for product, times in self._times.items())

    def seconds(self) -> float:
        """Measures once: the time of all products, one after the other."""
        return sum(times * self._loops[product]() for product, times in self._times.items())


class _Loop:
    """A product and its two gradients, many times over within one program."""

    def __init__(self, product: Product, dtype: DTypeLike):
        batch, m, k, n = product
        lead = (batch,) if batch else ()
        shapes = [(*lead, m, k), (*lead, k, n), (*lead, m, n)]
        self._operands = [jnp.full(shape, 0.01, dtype) for shape in shapes]
        # A compiler may be slow with one of them; the model has its own for that.
        programs = [jax.jit(functools.partial(_repeat, multiply)) for multiply in CANDIDATES]
        self._program = min(programs, key=lambda program: self._time(program, 1))
        once = self._time(self._program, 1)
        self._repeats = max(1, round(SECONDS_OF_A_LOOP / once))

    def _time(self, program: Callable[..., Any], repeats: int) -> float:
        """Seconds a repeat; the first call of a program compiles, and is not counted."""
        jax.block_until_ready(program(*self._operands, 1))
        begin = time.perf_counter()
        jax.block_until_ready(program(*self._operands, repeats))
        return (time.perf_counter() - begin) / repeats

    def __call__(self) -> float:
        """Median of three, in seconds."""
        return statistics.median(self._time(self._program, self._repeats) for _ in range(3))


def _repeat(
    multiply: Callable[..., jax.Array],
    x: jax.Array,
    w: jax.Array,
    dy: jax.Array,
    repeats: jax.Array,
):
    """x [..., m, k] w [..., k, n] -> [..., m, n] and both gradients, `repeats` times."""

    def products(x, w, dy):
        product, gradients_of = jax.vjp(multiply, x, w)
        return product.astype(x.dtype), *gradients_of(dy.astype(product.dtype))

    def body(i, carry):
        # Products of operands that depend on the counter are not moved out of the loop.
        operands, _ = jax.lax.optimization_barrier(((x, w, dy), i))
        del carry
        return products(*operands)

    shapes = jax.eval_shape(products, x, w, dy)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.fori_loop(0, repeats, body, zeros)
