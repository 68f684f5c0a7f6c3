"""Pallas kernels of fused attention with dropout: output, gradient of queries, of keys and values.

The kernels compute attention block by block (Dao 2023, 3.1) and never store probabilities. See
`model.flash_attention` for the function that calls them. In the comments and names of this file,
Q is the number of queries of a block, K the number of keys of each quarter of a block, H the head
size, and W = L/4 the number of keys of a quarter of a row.

The dropout mask equals, bit for bit, the mask that `model.dropout` draws for an array [B, N, L, L]
of probabilities. There, one Threefry hash decides about four keys: those at the positions c,
c + W, c + 2 W and c + 3 W. Therefore the kernels see keys and values as four quarters [4, W, H],
and each step of their loops computes the same part of all four quarters.

The kernels are written for two compilers, Triton (GPUs) and Mosaic (TPUs). Both support arrays with
two axes, whose sizes Triton wants to be powers of two. A number per query is stored as a row
[1, Q], because the last axis of a TPU's memory is padded to 128 elements. The kernel for keys and
values computes with transposed matrices [K, Q]: Triton takes minutes to compile a multiplication by
the transpose of a matrix that depends on the dropout mask.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertjax.model.dropout import keep_scale, split_words, threefry2x32

QUARTERS = 4
# Masked scores. The difference of two of them is finite.
LOWEST = -1e30
LANES = 128  # of a TPU


class KernelPlan(NamedTuple):
    """What the kernels know when they are compiled.

    Attributes:
        causal: whether a token attends only to itself and to earlier tokens.
        threshold: the rate of dropout, as `model.dropout.drop_threshold` returns it.
        platform: the platform for whose compiler the kernels are written.
        interpret: whether the kernels are interpreted, on any device.
        head_size: H, before padding.
        length: L, the number of tokens of a row.
        queries: Q, the number of queries of a block.
        keys: K, the number of keys of each quarter of a block.
    """

    causal: bool
    threshold: int
    platform: Literal["gpu", "tpu"]
    interpret: bool
    head_size: int
    length: int
    queries: int
    keys: int

    @property
    def quarter(self) -> int:
        """W, the number of keys per quarter."""
        return self.length // QUARTERS

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return self.head_size**-0.5

    @property
    def axes(self) -> tuple[int, int, int]:
        """The axes of the grid of row, head and block.

        Consecutive programs have the same row and head, whose keys stay in a cache or on the chip.
        """
        return (2, 1, 0) if self.platform == "gpu" else (0, 1, 2)

    def block(self) -> jax.Array:
        """Returns the index, an int32 scalar, of the block of queries or keys of this program."""
        return pl.program_id(self.axes[2])

    def head(self, seeds: Any) -> jax.Array:
        """Returns the index, among all heads of the model, of the head of this program.

        `seeds` is uint32 [1, 3], as in `forward_kernel`; the result is an int32 scalar.
        """
        return seeds[0, 2].astype(jnp.int32) + pl.program_id(self.axes[1])

    def _part(self, index: jax.Array, size: int, total: int) -> Any:
        """Returns the slice of the block number `index` of `size` elements, of `total` elements."""
        if size == total:  # which may be less than the number of lanes
            return slice(None)
        return pl.ds(pl.multiple_of(index * size, size), size)

    def queries_part(self, index: jax.Array) -> Any:
        """Returns the slice of a row's queries that the block number `index`, a scalar, holds."""
        return self._part(index, self.queries, self.length)

    def keys_part(self, index: jax.Array) -> Any:
        """Returns the slice, in each quarter, of the keys in the block number `index`, a scalar."""
        return self._part(index, self.keys, self.quarter)


def forward_kernel(
    seeds, ids, key_ids, query, key, value, out, normalizer, *, plan: KernelPlan
) -> None:
    """Computes the output of a block of queries: a loop over the keys with a running softmax.

    The references are: seeds uint32 [1, 3], ids [1, L], key_ids [4, W], query [Q, H], key and value
    [4, W, H], out [Q, H], normalizer float32 [1, Q]: the logarithms of the sums of exp(score).
    `plan` has the sizes L, W, Q, H and the dropout rate.
    """
    tile = _Tile(plan, seeds, plan.block(), plan.head(seeds), key_axis=1)
    query_ids = _transpose(plan, ids[:, plan.queries_part(plan.block())])
    q = query[...]

    def step(index: jax.Array, carry: tuple) -> tuple:
        highest, total, weighted = carry
        part, columns = plan.keys_part(index), tile.columns(index)
        scores = []
        for i in range(QUARTERS):
            visible = query_ids == key_ids[i : i + 1, part]
            scores.append(tile.scores(q, key[i, part, :], visible, i, columns))
        maxima = [score.max(1, keepdims=True) for score in scores]
        new = functools.reduce(jnp.maximum, maxima, highest)
        shrink = jnp.exp(highest - new)
        total, weighted = total * shrink, weighted * shrink
        kept = tile.kept(columns)
        for i, score in enumerate(scores):
            probs = jnp.exp(score - new)
            total += probs.sum(1, keepdims=True)
            dropped = _drop(plan, probs, kept, i).astype(value.dtype)
            weighted += _dot(dropped, value[i, part, :])
        return new, total, weighted

    highest = jnp.full((plan.queries, 1), LOWEST, jnp.float32)
    start = (highest, jnp.zeros_like(highest), jnp.zeros(q.shape, jnp.float32))
    highest, total, weighted = jax.lax.fori_loop(0, plan.quarter // plan.keys, step, start)
    out[...] = (weighted / total).astype(out.dtype)
    normalizer[...] = _transpose(plan, highest + jnp.log(total))


def query_gradient_kernel(
    seeds,
    ids,
    key_ids,
    query,
    key,
    value,
    gradient,
    normalizer,
    mean,
    query_gradient,
    *,
    plan: KernelPlan,
) -> None:
    """Computes the gradient of a block of queries: a loop over the keys.

    The references seeds, ids, key_ids, query, key, value and normalizer, and `plan`, are those of
    `forward_kernel`. The other references are the gradient of the output [Q, H]; mean float32
    [1, Q], the means of the gradients of a query's probabilities; and query_gradient [Q, H].
    """
    tile = _Tile(plan, seeds, plan.block(), plan.head(seeds), key_axis=1)
    query_ids = _transpose(plan, ids[:, plan.queries_part(plan.block())])
    q, of_out = query[...], gradient[...]
    log_total, average = _transpose(plan, normalizer[...]), _transpose(plan, mean[...])

    def step(index: jax.Array, total: jax.Array) -> jax.Array:
        part, columns = plan.keys_part(index), tile.columns(index)
        kept = tile.kept(columns)
        for i in range(QUARTERS):
            k = key[i, part, :]
            visible = query_ids == key_ids[i : i + 1, part]
            probs = jnp.exp(tile.scores(q, k, visible, i, columns) - log_total)
            of_probs = _drop(plan, _dot(of_out, value[i, part, :], transposed=True), kept, i)
            total += _dot((probs * (of_probs - average)).astype(k.dtype), k)
        return total

    zero = jnp.zeros(q.shape, jnp.float32)
    total = jax.lax.fori_loop(0, plan.quarter // plan.keys, step, zero)
    query_gradient[...] = (total * plan.scale).astype(query_gradient.dtype)


def key_gradient_kernel(
    seeds,
    ids,
    key_ids,
    query,
    key,
    value,
    gradient,
    normalizer,
    mean,
    key_gradient,
    value_gradient,
    *,
    plan: KernelPlan,
) -> None:
    """Computes the gradients of a block of keys and values: a loop over the queries.

    The references seeds, ids and key_ids, and `plan`, are those of `query_gradient_kernel`; query
    and gradient are [L, H], normalizer and mean [1, L], and key, value, key_gradient and
    value_gradient [4, K, H].
    """
    block = plan.block()
    head = plan.head(seeds)
    keys = [key[i] for i in range(QUARTERS)]
    values = [value[i] for i in range(QUARTERS)]
    part = plan.keys_part(block)
    ids_of_keys = [_transpose(plan, key_ids[i : i + 1, part]) for i in range(QUARTERS)]

    def step(index: jax.Array, totals: tuple) -> tuple:
        of_keys, of_values = list(totals[:QUARTERS]), list(totals[QUARTERS:])
        rows = plan.queries_part(index)
        tile = _Tile(plan, seeds, index, head, key_axis=0)
        columns = tile.columns(block)
        q, of_out, query_ids = query[rows, :], gradient[rows, :], ids[:, rows]
        log_total, average = normalizer[:, rows], mean[:, rows]
        kept = tile.kept(columns)
        for i in range(QUARTERS):
            visible = query_ids == ids_of_keys[i]
            probs = jnp.exp(tile.scores(keys[i], q, visible, i, columns) - log_total)
            dropped = _drop(plan, probs, kept, i).astype(of_out.dtype)
            of_values[i] += _dot(dropped, of_out)
            of_probs = _drop(plan, _dot(values[i], of_out, transposed=True), kept, i)
            of_keys[i] += _dot((probs * (of_probs - average)).astype(q.dtype), q)
        return (*of_keys, *of_values)

    zeros = (jnp.zeros(keys[0].shape, jnp.float32),) * (2 * QUARTERS)
    totals = jax.lax.fori_loop(0, plan.length // plan.queries, step, zeros)
    for i in range(QUARTERS):
        key_gradient[i] = (totals[i] * plan.scale).astype(key_gradient.dtype)
        value_gradient[i] = totals[QUARTERS + i].astype(value_gradient.dtype)


class _Tile:
    """Scores and dropout masks of a block of queries and blocks of keys.

    Args:
        plan: the plan.
        seeds: the reference to the seeds of the kernel.
        block: the index of the block of queries.
        head: the index of the head among all heads of the model.
        key_axis: the axis of the keys: 1 for matrices [Q, K], 0 for transposed ones [K, Q].
    """

    def __init__(
        self, plan: KernelPlan, seeds: Any, block: jax.Array, head: jax.Array, *, key_axis: int
    ):
        self.plan, self.head, self.key_axis = plan, head, key_axis
        self.key = (seeds[0, 0], seeds[0, 1])
        self.positions = block * plan.queries + self._range(plan.queries, 1 - key_axis)

    def columns(self, block: jax.Array) -> jax.Array:
        """Returns the positions int32 [1, K] of the keys of a block in their quarter."""
        return block * self.plan.keys + self._range(self.plan.keys, self.key_axis)

    def scores(
        self, lhs: jax.Array, rhs: jax.Array, visible: jax.Array, quarter: int, columns: jax.Array
    ) -> jax.Array:
        """Computes the scores float32 [Q, K] of queries [Q, H] and keys [K, H] of a quarter.

        `lhs` and `rhs` are the queries and the keys, or the keys and the queries if the matrix is
        transposed. Where `visible` [Q, K] is False, the score is `LOWEST`; if attention is causal,
        so are the scores of later keys.
        """
        scores = _dot(lhs, rhs, transposed=True) * self.plan.scale
        if self.plan.causal:
            visible &= self.positions >= quarter * self.plan.quarter + columns
        return jnp.where(visible, scores, LOWEST)

    def kept(self, columns: jax.Array) -> list[jax.Array] | None:
        """Returns which probabilities of each quarter are kept, four bool [Q, K]; None: all."""
        plan = self.plan
        if not plan.threshold:
            return None
        # The count is that of `model.dropout.random_halves` for the shape (N, L, L).
        before = (self.head * plan.length + self.positions) * plan.quarter
        words = threefry2x32(self.key, (jnp.uint32(0), (before + columns).astype(jnp.uint32)))
        return [half.astype(jnp.int32) >= plan.threshold for half in split_words(words)]

    @staticmethod
    def _range(size: int, axis: int) -> jax.Array:
        shape = (size, 1) if axis == 0 else (1, size)
        return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def _drop(plan: KernelPlan, x: jax.Array, kept: list[jax.Array] | None, quarter: int) -> jax.Array:
    if kept is None:
        return x
    return jnp.where(kept[quarter], x * keep_scale(plan.threshold), 0.0)


def _dot(lhs: jax.Array, rhs: jax.Array, transposed: bool = False) -> jax.Array:
    """Multiplies two matrices, of which the second may be transposed, with a float32 result."""
    contracted = ((1,), (1,)) if transposed else ((1,), (0,))
    return jax.lax.dot_general(lhs, rhs, (contracted, ((), ())), preferred_element_type=jnp.float32)


def _transpose(plan: KernelPlan, x: jax.Array) -> jax.Array:
    """Returns a row [1, n] as a column [n, 1], or a column as a row."""
    if plan.platform == "gpu":
        return x.reshape(x.shape[::-1])
    # Mosaic transposes whole tiles.
    if x.shape[0] == 1:
        return jnp.broadcast_to(x, (LANES, x.shape[1])).T[:, :1]
    return jnp.broadcast_to(x, (x.shape[0], LANES)).T[:1]
