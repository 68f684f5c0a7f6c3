"""Flash attention (Dao et al. 2022) with the dropout of `model.dropout`, for GPUs and TPUs.

For the backward pass, which recomputes the probabilities and the dropout mask, the Pallas kernels
keep only the output and one float32 number per query and head.

The kernels are written for two compilers, Triton (GPUs) and Mosaic (TPUs). Both support arrays with
two axes, whose sizes Triton wants to be powers of two. A number per query is stored as a row
[1, Q], because the last axis of a TPU's memory is padded to 128 elements. The kernel for keys and
values computes with transposed matrices [K, Q]: Triton takes minutes to compile a multiplication by
the transpose of a matrix that depends on the dropout mask.

A hash of the dropout mask is for four keys, one in each quarter of a row, so that the kernels read
keys as P = 4 parts of W keys. In local attention in blocks (`attend_locally`), these four keys are
no blocks of a row. There, P is 1, every key has a hash of its own, and the loops over keys and
queries leave out the blocks outside of the window.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from bertjax.model.dropout import drop_threshold, keep_scale, split_words, threefry2x32
from bertjax.model.linear import LANES, NORMALIZER, OUTPUT, platform

QUARTERS = 4
# Masked scores. The difference of two of them is finite.
LOWEST = -1e30


class KernelPlan(NamedTuple):
    """What the kernels know when they are compiled.

    `length` is L, the tokens of a row, `head_size` H, before padding, `queries` Q, the queries of a
    block, and `keys` K, the keys of each part of a block. `threshold` is the rate of dropout, as
    `model.dropout.drop_threshold` returns it, and `platform` the platform for whose compiler the
    kernels are written. If `interpret`, they are interpreted, on any device. `window`, `size` (S)
    and `heads` are as in `flash_attention_on_device`.
    """

    causal: bool
    threshold: int
    platform: Literal["gpu", "tpu"]
    interpret: bool
    window: int | None
    size: int
    heads: int
    head_size: int
    length: int
    queries: int
    keys: int

    @property
    def parts(self) -> int:
        """P, the number of parts of the keys."""
        return 1 if self.size else QUARTERS

    @property
    def part(self) -> int:
        """W, the number of keys per part."""
        return self.length // self.parts

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return self.head_size**-0.5

    @property
    def width(self) -> int:
        """The padded head size: Triton wants parts whose sizes are powers of two."""
        if self.platform == "tpu":
            return self.head_size
        return pl.next_power_of_2(self.head_size)

    @property
    def axes(self) -> tuple[int, int, int]:
        """The axes of the grid of row, head and block.

        Consecutive programs have the same row and head, whose keys stay in a cache or on the chip.
        """
        if self.platform == "gpu":
            return (2, 1, 0)
        return (0, 1, 2)

    def block(self) -> jax.Array:
        """Returns the index of the block of queries or keys of this program."""
        return pl.program_id(self.axes[2])

    def head(self, seeds: Any) -> jax.Array:
        """Returns the index, among all heads of the model, of the head of this program."""
        return seeds[0, 2].astype(jnp.int32) + pl.program_id(self.axes[1])

    def _slice(self, index: jax.Array, size: int, total: int) -> Any:
        if size == total:  # which may be less than the number of lanes
            return slice(None)
        return pl.ds(pl.multiple_of(index * size, size), size)

    def queries_part(self, index: jax.Array) -> Any:
        """Returns the slice of a row's queries that the block number `index` holds."""
        return self._slice(index, self.queries, self.length)

    def keys_part(self, index: jax.Array) -> Any:
        """Returns the slice, in each part, of the keys in the block number `index`."""
        return self._slice(index, self.keys, self.part)

    def near_queries(self) -> tuple[Any, Any]:
        """Returns the first block of queries that see this program's keys, and the end."""
        return self._near(self.keys, self.queries, self.length)

    def near_keys(self) -> tuple[Any, Any]:
        """Returns the first block of keys that this program's queries see, and the end."""
        return self._near(self.queries, self.keys, self.part)

    def _near(self, size: int, other: int, total: int) -> tuple[Any, Any]:
        if not self.size or self.window is None:
            return 0, total // other
        reach = self.window // 2
        start = self.block() * size
        first = jnp.maximum(start - reach, 0)
        last = jnp.minimum(start + size - 1 + reach, total - 1)
        return first // other, last // other + 1


def forward_kernel(
    plan: KernelPlan, seeds, ids, key_ids, query, key, value, out, normalizer
) -> None:
    """Computes the output of a block of queries: a loop over the keys with a running softmax.

    The references are: seeds uint32 [1, 3], ids [1, L], key_ids [P, W], query [Q, H], key and value
    [P, W, H], out [Q, H], normalizer float32 [1, Q]: the logarithms of the sums of exp(score).
    """
    tile = _Tile(plan, seeds, plan.block(), plan.head(seeds), key_axis=1)
    query_ids = _transpose(plan, ids[:, plan.queries_part(plan.block())])
    q = query[...]

    def step(index: jax.Array, carry: tuple) -> tuple:
        highest, total, weighted = carry
        part = plan.keys_part(index)
        columns = tile.columns(index)
        scores = []
        for i in range(plan.parts):
            visible = query_ids == key_ids[i : i + 1, part]
            scores.append(tile.scores(q, key[i, part, :], visible, i, columns))
        maxima = [score.max(1, keepdims=True) for score in scores]
        new = functools.reduce(jnp.maximum, maxima, highest)
        shrink = jnp.exp(highest - new)
        total = total * shrink
        weighted = weighted * shrink
        kept = tile.kept(columns)
        for i, score in enumerate(scores):
            probs = jnp.exp(score - new)
            total += probs.sum(1, keepdims=True)
            dropped = _drop(plan, probs, kept, i)
            weighted += _dot(dropped.astype(value.dtype), value[i, part, :])
        return new, total, weighted

    highest = jnp.full((plan.queries, 1), LOWEST, jnp.float32)
    total = jnp.zeros_like(highest)
    weighted = jnp.zeros(q.shape, jnp.float32)
    first, end = plan.near_keys()
    carry = jax.lax.fori_loop(first, end, step, (highest, total, weighted))
    highest, total, weighted = carry
    mean = weighted / total
    out[...] = mean.astype(out.dtype)
    log_total = highest + jnp.log(total)
    normalizer[...] = _transpose(plan, log_total)


def query_gradient_kernel(
    plan: KernelPlan, seeds, ids, key_ids, query, key, value, gradient, normalizer, mean, out
) -> None:
    """Computes the gradient of a block of queries: a loop over the keys.

    The references are as in `forward_kernel`, the gradient of the output [Q, H]; mean float32
    [1, Q], the means of the gradients of a query's probabilities; and out [Q, H].
    """
    tile = _Tile(plan, seeds, plan.block(), plan.head(seeds), key_axis=1)
    query_ids = _transpose(plan, ids[:, plan.queries_part(plan.block())])
    q = query[...]
    of_out = gradient[...]
    log_total = _transpose(plan, normalizer[...])
    average = _transpose(plan, mean[...])

    def step(index: jax.Array, total: jax.Array) -> jax.Array:
        part = plan.keys_part(index)
        columns = tile.columns(index)
        kept = tile.kept(columns)
        for i in range(plan.parts):
            k = key[i, part, :]
            visible = query_ids == key_ids[i : i + 1, part]
            scores = tile.scores(q, k, visible, i, columns)
            probs = jnp.exp(scores - log_total)
            of_dropped = _dot(of_out, value[i, part, :], transposed=True)
            of_probs = _drop(plan, of_dropped, kept, i)
            of_scores = probs * (of_probs - average)
            total += _dot(of_scores.astype(k.dtype), k)
        return total

    zero = jnp.zeros(q.shape, jnp.float32)
    first, end = plan.near_keys()
    total = jax.lax.fori_loop(first, end, step, zero)
    total = total * plan.scale
    out[...] = total.astype(out.dtype)


def key_gradient_kernel(
    plan: KernelPlan, seeds, ids, key_ids, query, key, value, gradient, normalizer, mean, *out
) -> None:
    """Computes the gradients of a block of keys and values: a loop over the queries.

    The references are as in `query_gradient_kernel`, but query and gradient are [L, H],
    normalizer and mean [1, L], and key, value and their gradients, `out`, [P, K, H].
    """
    key_gradient, value_gradient = out
    block = plan.block()
    head = plan.head(seeds)
    parts = range(plan.parts)
    keys = [key[i] for i in parts]
    values = [value[i] for i in parts]
    part = plan.keys_part(block)
    ids_of_keys = [_transpose(plan, key_ids[i : i + 1, part]) for i in parts]

    def step(index: jax.Array, totals: tuple) -> tuple:
        of_keys = list(totals[: plan.parts])
        of_values = list(totals[plan.parts :])
        rows = plan.queries_part(index)
        tile = _Tile(plan, seeds, index, head, key_axis=0)
        columns = tile.columns(block)
        q = query[rows, :]
        of_out = gradient[rows, :]
        query_ids = ids[:, rows]
        log_total = normalizer[:, rows]
        average = mean[:, rows]
        kept = tile.kept(columns)
        for i in parts:
            visible = query_ids == ids_of_keys[i]
            scores = tile.scores(keys[i], q, visible, i, columns)
            probs = jnp.exp(scores - log_total)
            dropped = _drop(plan, probs, kept, i)
            of_values[i] += _dot(dropped.astype(of_out.dtype), of_out)
            of_dropped = _dot(values[i], of_out, transposed=True)
            of_probs = _drop(plan, of_dropped, kept, i)
            of_scores = probs * (of_probs - average)
            of_keys[i] += _dot(of_scores.astype(q.dtype), q)
        return (*of_keys, *of_values)

    zero = jnp.zeros(keys[0].shape, jnp.float32)
    first, end = plan.near_queries()
    totals = jax.lax.fori_loop(first, end, step, (zero,) * (2 * plan.parts))
    for i in parts:
        of_key = totals[i] * plan.scale
        of_value = totals[plan.parts + i]
        key_gradient[i] = of_key.astype(key_gradient.dtype)
        value_gradient[i] = of_value.astype(value_gradient.dtype)


class _Tile:
    """Scores and dropout masks of a block of queries and blocks of keys.

    The matrices are [Q, K] if `key_axis` is 1, and transposed, [K, Q], if it is 0.
    """

    def __init__(
        self, plan: KernelPlan, seeds: Any, block: jax.Array, head: jax.Array, *, key_axis: int
    ):
        self.plan = plan
        self.head = head
        self.key_axis = key_axis
        self.key = (seeds[0, 0], seeds[0, 1])
        self.positions = block * plan.queries + self._range(plan.queries, 1 - key_axis)

    def columns(self, block: jax.Array) -> jax.Array:
        return block * self.plan.keys + self._range(self.plan.keys, self.key_axis)

    def scores(
        self, lhs: jax.Array, rhs: jax.Array, visible: jax.Array, part: int, columns: jax.Array
    ) -> jax.Array:
        """Computes the scores float32 [Q, K] of queries [Q, H] and keys [K, H] of a part.

        `lhs` and `rhs` are the queries and the keys, or the keys and the queries if the matrix is
        transposed. Scores that are not `visible`, causal ones of later keys, and those of keys
        outside of the window are `LOWEST`.
        """
        plan = self.plan
        scores = _dot(lhs, rhs, transposed=True) * plan.scale
        if plan.causal:
            places = part * plan.part + columns
            visible &= self.positions >= places
        if plan.window is not None:
            places = part * plan.part + columns
            visible &= abs(self.positions - places) <= plan.window // 2
        return jnp.where(visible, scores, LOWEST)

    def kept(self, columns: jax.Array) -> list[jax.Array] | None:
        """Returns which probabilities of each part are kept, P bool [Q, K]; None: all."""
        plan = self.plan
        if not plan.threshold:
            return None
        # The counts are those of `keep_mask` for shape (N, L, L), or (blocks, N, S, 3 S).
        if plan.size:
            width = -(-3 * plan.size // QUARTERS)
            block, place = _divide(self.positions, plan.size)
            first = (block - 1) * plan.size
            quarter, column = _divide(columns - first, width)
            row = (block * plan.heads + self.head) * plan.size + place
            halves = self._halves(row * width + column)
            for i in range(1, QUARTERS):
                halves[0] = jnp.where(quarter == i, halves[i], halves[0])
        else:
            row = self.head * plan.length + self.positions
            halves = self._halves(row * plan.part + columns)
        return [half.astype(jnp.int32) >= plan.threshold for half in halves[: plan.parts]]

    def _halves(self, counts: jax.Array) -> list[jax.Array]:
        zero = jnp.uint32(0)
        return split_words(threefry2x32(self.key, (zero, counts.astype(jnp.uint32))))

    @staticmethod
    def _range(size: int, axis: int) -> jax.Array:
        shape = (size, 1) if axis == 0 else (1, size)
        return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def _divide(x: jax.Array, by: int) -> tuple[jax.Array, jax.Array]:
    return jax.lax.div(x, jnp.int32(by)), jax.lax.rem(x, jnp.int32(by))


def _drop(plan: KernelPlan, x: jax.Array, kept: list[jax.Array] | None, part: int) -> jax.Array:
    if kept is None:
        return x
    return jnp.where(kept[part], x * keep_scale(plan.threshold), 0.0)


def _dot(lhs: jax.Array, rhs: jax.Array, transposed: bool = False) -> jax.Array:
    """Multiplies two matrices, of which the second may be transposed, with a float32 result."""
    axis = 1 if transposed else 0
    dimensions = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(lhs, rhs, dimensions, preferred_element_type=jnp.float32)


def _transpose(plan: KernelPlan, x: jax.Array) -> jax.Array:
    if plan.platform == "gpu":
        return x.reshape(x.shape[::-1])
    # Mosaic transposes whole tiles.
    rows, columns = x.shape
    if rows == 1:
        return jnp.broadcast_to(x, (LANES, columns)).T[:, :1]
    return jnp.broadcast_to(x, (rows, LANES)).T[:1]


# On TPUs, the keys and values of a row and head are in the vector memory as a whole. Up to this
# number of bytes, the next head's are loaded meanwhile; TPU v4 has 16 MiB of this memory.
DOUBLE_BUFFERED = 2 << 20
TPU_MEMORY = 64 << 20


def flash_attention_on_device(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    seeds: jax.Array,
    *,
    causal: bool,
    window: int | None = None,
    size: int = 0,
    heads: int | None = None,
    rate: float = 0.0,
    platform: Literal["gpu", "tpu"] | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Computes the attention of every token to the tokens of its sequence, with dropout.

    On a mesh, it is called for the rows and heads of each device. query, key, value and the result,
    dropout(softmax(query key^T / sqrt(H))) value, are float32 or bfloat16 [B, L, N, H], where L is
    a multiple of `LANES`, else ValueError is raised; `sequence_ids` is int32 [B, L], 0 for padding,
    which attends to padding.

    Args:
        seeds: uint32 [B, 3]: the two words of the row's dropout key (`Dropout.row_keys`), and the
            index, among all heads of the model, of the first of the N heads.
        causal: whether a token attends only to itself and to earlier tokens.
        window: a token attends only to tokens at most `window // 2` tokens away; None: to all.
        size: S, the tokens of a block of `attend_locally`, whose dropout mask is drawn; 0: the mask
            is that of attention to whole rows.
        heads: the number of heads of the model; None: N.
        rate: the rate of the dropout of the probabilities.
        platform: the platform for whose compiler the kernels are written; None: the current one.
        interpret: whether to use Pallas's interpret mode, which is slow and works on any device.
    """
    length = query.shape[1]
    head_size = query.shape[3]
    if length % LANES:
        raise ValueError(
            f"Rows of {length} tokens: flash attention needs a multiple of {LANES}. Use "
            "attention='xla'."
        )
    platform = platform or _platform()
    token_bytes = head_size * query.dtype.itemsize
    queries, keys = _block_sizes(platform, length, token_bytes, local=size > 0)
    plan = KernelPlan(
        causal=causal,
        threshold=drop_threshold(rate),
        platform=platform,
        interpret=interpret,
        window=window,
        size=size,
        heads=heads or query.shape[2],
        head_size=head_size,
        length=length,
        queries=queries,
        keys=keys,
    )
    return _attention(query, key, value, sequence_ids, seeds, plan)


def _platform() -> Literal["gpu", "tpu"]:
    return "tpu" if platform() == "tpu" else "gpu"


def _block_sizes(platform: str, length: int, token_bytes: int, local: bool) -> tuple[int, int]:
    """Returns the number of queries, and the number of keys of each part, of a block.

    For `local` attention in blocks, they are small: a part of a block may be outside of the window.
    """
    if platform == "gpu":
        # Powers of two, and at least 16 for tensor cores. A block is in shared memory, of which
        # consumer GPUs have 99 KiB per block of threads.
        queries = 64 if token_bytes <= 256 else 32
        keys = 32 if token_bytes <= 128 else 16
        return queries, 2 * keys if local else keys
    if local:
        return LANES, LANES
    queries = 256 if length % 256 == 0 else LANES
    # Along the lanes, a block starts at a multiple of their number, or is the only one.
    quarter = length // QUARTERS
    keys = LANES if quarter % LANES == 0 else quarter
    return queries, keys


# What a program of the grid sees of the tokens of an array [B, L, N, H]: all tokens of a row, a
# block of queries, all keys in their parts, or a block of keys from each part. Of an array
# [B, N, 1, L] with a number per query, it sees the numbers of a block of queries or of all queries.
Part = Literal["rows", "queries", "all keys", "keys", "numbers", "all numbers"]
NUMBERS = ("numbers", "all numbers")
Inputs = list[tuple[Part, jax.Array]]  # the parts and the arrays
Outputs = list[tuple[Part, Any]]  # the parts and the dtypes


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attention(query, key, value, ids, seeds, plan: KernelPlan) -> jax.Array:
    return _forward(query, key, value, ids, seeds, plan)[0]


def _forward(query, key, value, ids, seeds, plan: KernelPlan):
    arrays: Inputs = [("queries", query), ("all keys", key), ("all keys", value)]
    outputs: Outputs = [("queries", query.dtype), ("numbers", jnp.float32)]
    out, normalizer = _call(forward_kernel, plan, ids, seeds, arrays, outputs)
    out = checkpoint_name(out, OUTPUT)
    normalizer = checkpoint_name(normalizer, NORMALIZER)
    return out, (query, key, value, ids, seeds, out, normalizer)


def _backward(plan: KernelPlan, residuals: tuple, gradient: jax.Array):
    query, key, value, ids, seeds, out, normalizer = residuals
    # The mean of the gradients of a query's probabilities, weighted by the probabilities, is the
    # product of the output and its gradient (Dao et al. 2022, B.2), with dropout as well.
    product = gradient.astype(jnp.float32) * out.astype(jnp.float32)
    mean = product.sum(-1)  # [B, L, N]
    mean = mean.swapaxes(1, 2)[:, :, None]  # [B, N, 1, L]
    arrays: Inputs = [
        ("queries", query),
        ("all keys", key),
        ("all keys", value),
        ("queries", gradient),
        ("numbers", normalizer),
        ("numbers", mean),
    ]
    outputs: Outputs = [("queries", query.dtype)]
    (of_query,) = _call(query_gradient_kernel, plan, ids, seeds, arrays, outputs)
    arrays = [
        ("rows", query),
        ("keys", key),
        ("keys", value),
        ("rows", gradient),
        ("all numbers", normalizer),
        ("all numbers", mean),
    ]
    outputs = [("keys", key.dtype), ("keys", value.dtype)]
    of_key, of_value = _call(key_gradient_kernel, plan, ids, seeds, arrays, outputs)
    return of_query, of_key, of_value, None, None


_attention.defvjp(_forward, _backward)


class _Axis(NamedTuple):
    """An axis of an array: its size, and the size of the part of it that a program sees.

    `part` is None for one index, which the program sees without the axis. `moves_by` is the axis of
    the grid (0: rows, 1: heads, 2: blocks) along which the parts move; None: all see the same part.
    """

    size: int
    part: int | None
    moves_by: int | None = None


def _axes(plan: KernelPlan, part: Part, batch: int, heads: int) -> list[_Axis]:
    """Returns the axes of an array in the layout of the kernel on its platform.

    On TPUs, the last two axes of a part are the two of a memory tile, so heads come before tokens.
    """
    row = _Axis(batch, None, moves_by=0)
    head = _Axis(heads, None, moves_by=1)
    width = _Axis(plan.width, plan.width)
    if part in ("queries", "numbers"):
        tokens = [_Axis(plan.length, plan.queries, moves_by=2)]
    elif part == "keys":
        tokens = [_Axis(plan.parts, plan.parts), _Axis(plan.part, plan.keys, moves_by=2)]
    elif part == "all keys":
        tokens = [_Axis(plan.parts, plan.parts), _Axis(plan.part, plan.part)]
    else:
        tokens = [_Axis(plan.length, plan.length)]
    if part in NUMBERS:
        return [row, head, _Axis(1, 1), *tokens]
    if plan.platform == "gpu":
        return [row, *tokens, head, width]
    return [row, head, *tokens, width]


def _spec(plan: KernelPlan, axes: list[_Axis], **options: Any) -> pl.BlockSpec:
    def index(*grid: jax.Array) -> tuple:
        places: list[Any] = []
        for axis in axes:
            places.append(0 if axis.moves_by is None else grid[plan.axes[axis.moves_by]])
        return tuple(places)

    shape = tuple(axis.part for axis in axes)
    return pl.BlockSpec(shape, index, **options)


def _buffering(plan: KernelPlan, part: Part, item_size: int) -> dict[str, Any]:
    if plan.platform == "gpu" or part not in ("rows", "all keys"):
        return {}
    # A vector fills at least the lanes of a tile.
    size = plan.length * max(plan.head_size, LANES) * item_size
    if size > DOUBLE_BUFFERED:
        return {"pipeline_mode": pl.Buffered(1)}
    return {}


def _call(
    kernel: Callable[..., None],
    plan: KernelPlan,
    ids: jax.Array,
    seeds: jax.Array,
    arrays: Inputs,
    outputs: Outputs,
) -> list[jax.Array]:
    """Calls a kernel for every row, head and block; returns [B, L, N, H] or [B, N, 1, L] each."""
    _, query = arrays[0]
    batch, _, heads, _ = query.shape
    gpu = plan.platform == "gpu"
    blocks = plan.length // plan.queries
    if kernel is key_gradient_kernel:
        blocks = plan.part // plan.keys
    sizes = dict(zip(plan.axes, (batch, heads, blocks), strict=True))
    compiler_params, scalars = _options(plan)

    def spec(part: Part) -> pl.BlockSpec:
        axes = _axes(plan, part, batch, heads)
        return _spec(plan, axes, **_buffering(plan, part, query.dtype.itemsize))

    def per_row(*shape: int, **options: Any) -> pl.BlockSpec:
        axes = [_Axis(batch, None, moves_by=0)]
        axes += [_Axis(size, size) for size in shape]
        return _spec(plan, axes, **options)

    def shape(part: Part) -> tuple[int, ...]:
        return tuple(axis.size for axis in _axes(plan, part, batch, heads))

    def pack(part: Part, x: jax.Array) -> jax.Array:
        if part in NUMBERS:
            return x
        missing = plan.width - plan.head_size
        if missing:
            x = jnp.pad(x, [(0, 0), (0, 0), (0, 0), (0, missing)])
        if not gpu:
            x = x.swapaxes(1, 2)
        return x.reshape(shape(part))

    def unpack(part: Part, x: jax.Array) -> jax.Array:
        if part in NUMBERS:
            return x
        if gpu:
            x = x.reshape(batch, plan.length, heads, plan.width)
        else:
            x = x.reshape(batch, heads, plan.length, plan.width)
            x = x.swapaxes(1, 2)
        return x[..., : plan.head_size]

    name = kernel.__name__.removesuffix("_kernel")
    results = pl.pallas_call(
        functools.partial(kernel, plan),
        grid=tuple(sizes[axis] for axis in range(3)),
        in_specs=[
            per_row(1, 3, **scalars),
            per_row(1, plan.length),
            per_row(plan.parts, plan.part),
            *(spec(part) for part, _ in arrays),
        ],
        out_specs=[spec(part) for part, _ in outputs],
        out_shape=[jax.ShapeDtypeStruct(shape(part), dtype) for part, dtype in outputs],
        compiler_params=compiler_params,
        interpret=plan.interpret,
        name=f"{name}_attention",
    )(
        seeds[:, None],
        ids[:, None],
        ids.reshape(batch, plan.parts, plan.part),
        *(pack(part, array) for part, array in arrays),
    )
    return [unpack(part, x) for (part, _), x in zip(outputs, results, strict=True)]


def _options(plan: KernelPlan) -> tuple[Any, dict[str, Any]]:
    """Returns the parameters of the compiler, and where scalars are."""
    if plan.platform == "tpu":
        from jax.experimental.pallas import tpu

        # The programs are independent of each other.
        semantics = ("parallel",) * 3
        params = tpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=TPU_MEMORY)
        return params, {"memory_space": tpu.SMEM}
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=4, num_stages=2), {}
