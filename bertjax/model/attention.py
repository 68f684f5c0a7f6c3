"""Multi-head self-attention within each sequence of a row that may hold several sequences.

It is the scaled dot-product attention of Vaswani et al. 2017, 3.2. In local attention, the sliding
window of Longformer (Beltagy et al. 2020, 3.1) and of ModernBERT (Warner et al. 2024, 2.1.2), every
token attends to the tokens of its sequence within a window around it. Without a fused kernel, it is
computed in blocks as long as half of the window: the queries of a block attend to the keys of three
blocks. So memory and FLOP grow with L times the window instead of L squared.

Rotary position embeddings rotate queries and keys by their positions (Su et al. 2021, 3.2). As in
transformers, element i of the first half of a head and element i of its second half are the two
coordinates of a rotation.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.embeddings import layer_norm
from bertjax.model.fused_attention import FUSED, block_size, is_in_blocks
from bertjax.model.linear import Linear, matmul, residual_stddev
from bertjax.model.relative_attention import relative_rows, relative_scores


class Rotation(NamedTuple):
    """Cosines and sines of the angles of the tokens, float32 [B, L, 1, head size / 2] each."""

    cos: jax.Array
    sin: jax.Array


def rotation_rates(head_size: int, theta: float) -> jax.Array:
    """Returns the angles from one position to the next, float32 [head size / 2].

    Pair i of the `head_size / 2` pairs of coordinates is rotated by theta^(-2 i / head_size).
    """
    exponents = jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size
    return 1.0 / theta**exponents


def slowed_rotation(config: BertConfig, position_ids: jax.Array, theta: float) -> Rotation:
    """Computes the rotations that `config.rope_type` slows, as transformers 5 does.

    Of YaRN, it is Peng et al. 2023, 3.2 and 3.4; pairs of coordinates are counted in whole numbers.
    """
    size, factor = config.head_size, config.rope_factor
    original = config.rope_original_max_position_embeddings / math.tau
    pairs = np.arange(size // 2)
    kept = 0.0 * pairs  # the shares of the rates that are not slowed
    magnitude = 1.0
    if config.rope_type == "llama3":
        slow, fast = config.rope_low_freq_factor, config.rope_high_freq_factor
        rotations = original / theta ** (2 * pairs / size)
        kept = (rotations - slow) / (fast - slow)
    if config.rope_type == "yarn":
        bounds = np.log([original / config.rope_beta_fast, original / config.rope_beta_slow])
        first, last = bounds * size / (2 * np.log(theta))
        first, last = max(np.floor(first), 0), min(np.ceil(last), size - 1)
        if first == last:
            last += 0.001
        kept = (last - pairs) / (last - first)
        usual = 0.1 * math.log(max(factor, 1.0)) + 1.0
        magnitude = config.rope_attention_factor or usual
    kept = kept.clip(0.0, 1.0)
    slowed = kept + (1.0 - kept) / factor
    rates = rotation_rates(size, theta) * slowed.astype(np.float32)
    cos, sin = rotation(position_ids, rates)
    return Rotation(cos * magnitude, sin * magnitude)


def rotation(position_ids: jax.Array, rates: jax.Array) -> Rotation:
    """Computes the rotations for `position_ids` int [B, L], which restart at every sequence."""
    positions = position_ids[:, :, None, None].astype(jnp.float32)
    angles = positions * rates[None, None, None]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def position_table(positions: int, head_size: int, theta: float) -> np.ndarray:
    """Computes sines and cosines of the angles in `rotation`, float32 [positions, head size].

    The sines of a position are the first half. They are computed in float64, as for the tables in
    RoFormer's files.
    """
    exponents = np.arange(0, head_size, 2) / head_size
    angles = np.arange(positions)[:, None] / np.power(theta, exponents)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


@jax.named_scope("rotate")
def rotate(x: jax.Array, by: Rotation, interleaved: bool = False) -> jax.Array:
    """Rotates queries or keys x [B, L, N, H] in float32; the result has the dtype of x.

    If `interleaved`, elements 2 i and 2 i + 1 of a head are the coordinates of a rotation.
    """
    wide = x.astype(jnp.float32)
    if interleaved:
        first, second = wide[..., ::2], wide[..., 1::2]
    else:
        first, second = jnp.split(wide, 2, axis=-1)
    turned_first = first * by.cos - second * by.sin
    turned_second = second * by.cos + first * by.sin
    if interleaved:
        rotated = jnp.stack([turned_first, turned_second], axis=-1).reshape(x.shape)
    else:
        rotated = jnp.concatenate([turned_first, turned_second], axis=-1)
    return rotated.astype(x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@jax.named_scope("softmax")
def _softmax(mask_of: Callable[..., jax.Array], scores: jax.Array, *ids: jax.Array) -> jax.Array:
    """Computes the float32 softmax of scores [B, ..., keys] where `mask_of(*ids)` is True."""
    # The barrier makes the mask depend on the layer: otherwise JAX computes the mask, and the
    # constant in its place, once before the loop over the layers, as arrays [B, N, L, L] that every
    # layer reads from memory.
    query_ids, *key_ids = ids
    lowest = jnp.asarray(jnp.finfo(jnp.float32).min, jnp.float32)
    one_score = (slice(None), *(0,) * (scores.ndim - 1))  # of each row
    query_ids, lowest, _ = jax.lax.optimization_barrier((query_ids, lowest, scores[one_score]))
    mask = mask_of(query_ids, *key_ids)
    masked = jnp.where(mask, scores.astype(jnp.float32), lowest)
    return jax.nn.softmax(masked)


@_softmax.defjvp
@jax.named_scope("softmax")
def _softmax_jvp(mask_of: Callable[..., jax.Array], primals: tuple, tangents: tuple):
    probs = _softmax(mask_of, *primals)
    # Masked probabilities are 0, and so are their tangents.
    product = probs * tangents[0].astype(jnp.float32)
    return probs, product - probs * product.sum(-1, keepdims=True)


def masked_softmax(
    scores: jax.Array, sequence_ids: jax.Array, causal: bool, window: int | None = None
) -> jax.Array:
    """Computes the float32 softmax of scores [B, N, L, L] over the keys of the query's sequence.

    `sequence_ids` int [B, L] numbers the sequences of a row from 1; padding is 0. A token of the
    sequence i to which no token attends has the number -i. With `causal`, a query attends only to
    itself and to earlier keys; with `window`, only to keys that are at most `window // 2` tokens
    away. The scores have any floating-point type.
    """

    def mask_of(ids: jax.Array) -> jax.Array:
        # Padding has sequence id 0 and attends to padding, so every query has at least one key.
        mask = abs(ids)[:, None, :, None] == ids[:, None, None, :]
        length = mask.shape[-1]
        if causal:
            mask &= jnp.tri(length, dtype=bool)[None, None]
        if window is not None:
            places = jnp.arange(length)
            is_near = abs(places[:, None] - places[None]) <= window // 2
            mask &= is_near[None, None]
        return mask

    return _softmax(mask_of, scores, sequence_ids)


# The sequence id of what is outside of a row, in `attend_locally`.
_NO_SEQUENCE = 1 << 30


def attend_locally(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    window: int,
    dropout: Callable[[jax.Array], jax.Array] = lambda probs: probs,
) -> jax.Array:
    """Computes attention of every token to the tokens at most `window // 2` tokens away.

    query, key, value and the result, softmax(query key^T / sqrt(H)) value, are [B, L, N, H];
    `sequence_ids` are as in `masked_softmax`, and padding attends to padding. `dropout` is a
    function of the probabilities, which are [B, blocks, N, S, 3 S] for blocks of S tokens: the S
    queries of a block attend to the keys of their own block and of the two beside it.
    """
    length = query.shape[1]
    size = block_size(window)
    # Padding of rows to whole blocks, and blocks outside of the row, belong to no sequence.
    query_ids = _blocks(sequence_ids, size, _NO_SEQUENCE)
    key_ids = _neighbours(query_ids, _NO_SEQUENCE)
    queries = _blocks(query, size)
    keys = _neighbours(_blocks(key, size))
    values = _neighbours(_blocks(value, size))
    queries = queries.swapaxes(2, 3)  # [B, M, N, S, H]
    keys = keys.swapaxes(2, 3)  # [B, M, N, 3 S, H]
    values = values.swapaxes(2, 3)

    def mask_of(query_ids: jax.Array, key_ids: jax.Array) -> jax.Array:
        distance = jnp.arange(size)[:, None] - jnp.arange(-size, 2 * size)[None]
        mask = abs(query_ids)[:, :, None, :, None] == key_ids[:, :, None, None, :]
        is_near = abs(distance) <= window // 2
        return mask & is_near[None, None, None]

    scale = query.shape[-1] ** -0.5
    scores = matmul(queries, keys, transposed=True) * scale
    probs = _softmax(mask_of, scores, query_ids, key_ids)
    probs = dropout(probs.astype(query.dtype))
    context = matmul(probs, values).astype(query.dtype)
    context = context.swapaxes(2, 3)  # [B, M, S, N, H]
    rows = context.reshape(len(query), -1, *query.shape[2:])
    return rows[:, :length]


def _blocks(x: jax.Array, size: int, fill: int = 0) -> jax.Array:
    """Splits [B, L, ...] into M blocks, [B, M, size, ...]; `fill` pads rows to whole blocks."""
    padded = _padded(x, 0, -x.shape[1] % size, fill)
    return padded.reshape(len(x), -1, size, *x.shape[2:])


def _neighbours(blocks: jax.Array, fill: int = 0) -> jax.Array:
    """Joins each block of [B, M, S, ...] with the two beside it, or `fill`: [B, M, 3 S, ...]."""
    padded = _padded(blocks, 1, 1, fill)
    return jnp.concatenate([padded[:, :-2], blocks, padded[:, 2:]], axis=2)


def _padded(x: jax.Array, before: int, after: int, fill: int) -> jax.Array:
    padding = [(0, 0)] * x.ndim
    padding[1] = (before, after)
    return jnp.pad(x, padding, constant_values=fill)


# The name by which rematerialisation policies know the result of attention, the weighted mean of
# the values, before the output projection.
CONTEXT = "attention_context"
# The kernel that computes long rows one head at a time, and its shortest row in tokens. On CPUs,
# the scores of one head stay in the caches; for short rows, the loop takes longer than it saves.
BY_HEAD = "by_head"
SHORTEST_BY_HEAD = 128
# How rows with local attention are computed without a fused kernel, see `attend_locally`.
IN_BLOCKS = "in_blocks"


class SelfAttention(nn.Module):
    """Attention of every token to the tokens of its own sequence (Vaswani et al. 2017, 3.2).

    If `config.is_decoder` is set, a token attends only to itself and to earlier tokens.

    `kernel` selects the attention kernel: "xla", `BY_HEAD` (without gradients and dropout, the
    fastest on CPUs) or a key of `fused_attention.FUSED`. The kernel "xla" replaces one that does
    not support what is asked for. The module sows `attention_probs` [B, N, L, L] into the
    collection "intermediates" if the collection is mutable.

    `window` is the window of local attention in tokens; None: global attention. `dtype` is the
    dtype of the activations; parameters are float32.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    kernel: str = "xla"
    window: int | None = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
        rotation: Rotation | None = None,
        relative: jax.Array | None = None,
        queries: jax.Array | None = None,
    ) -> jax.Array:
        """Applies self-attention to x [B, L, D] -> [B, L, D].

        `sequence_ids` int [B, L] numbers the sequences of a row from 1; padding is 0.
        `dropout_rows` int [B] are the rows' indices in the global batch; None: no dropout.
        `rotation` holds the rotary position embeddings of the tokens, and `relative` the embeddings
        of relative positions, [R, D], or what is added to the scores, [N, L, L]; None: there are
        none. `queries` [B, L, D] are what the queries are made of; None: x.
        """
        config = self.config
        query_layer = self._head_layer("query")
        key_layer = self._head_layer("key")
        query = query_layer(x if queries is None else queries)
        key = key_layer(x)
        value = self._head_layer("value")(x)
        if config.query_key_norm:
            query = self._norm_of_heads(query, "query_norm")
            key = self._norm_of_heads(key, "key_norm")
        if rotation is not None:
            query = rotate(query, rotation, config.rope_interleaved)
            key = rotate(key, rotation, config.rope_interleaved)
            if config.rotary_value:
                value = rotate(value, rotation, config.rope_interleaved)
        if config.key_heads < config.num_attention_heads:
            shared_by = config.num_attention_heads // config.key_heads
            key = jnp.repeat(key, shared_by, axis=2)
            value = jnp.repeat(value, shared_by, axis=2)
        dropout = Dropout(config.attention_probs_dropout_prob)
        positions: dict[str, jax.Array] = {}
        bias = relative
        if relative is not None and relative.ndim == 2:
            positions = self._positions(relative, query_layer, key_layer, dropout_rows)
            bias = None
        kernel = "xla"
        if relative is None:
            kernel = self._choose_kernel(x.shape[1], dropout, dropout_rows)
        if kernel in FUSED:
            options = self._fused_options(dropout, dropout_rows)
            context = FUSED[kernel].attend(query, key, value, sequence_ids, **options)
        elif kernel == BY_HEAD:
            context = attend_by_head(query, key, value, sequence_ids, config.is_decoder)
        elif kernel == IN_BLOCKS:
            assert self.window is not None
            drop = functools.partial(dropout, rows=dropout_rows)
            context = attend_locally(query, key, value, sequence_ids, self.window, drop)
        else:
            scores = _scores(config, query, key, positions, bias)
            probs = masked_softmax(scores, sequence_ids, config.is_decoder, self.window)
            probs = probs.astype(self.dtype)
            self.sow("intermediates", "attention_probs", probs)
            probs = dropout(probs, dropout_rows)
            context = matmul(probs, value.swapaxes(1, 2)).astype(self.dtype)  # [B, N, L, H]
            context = context.swapaxes(1, 2)
        if kernel not in FUSED:  # which name their results themselves
            context = checkpoint_name(context, CONTEXT)
        output = Linear(
            config,
            config.hidden_size,
            self.dtype,
            axes=2,
            use_bias=config.attention_bias,
            stddev=residual_stddev(config),
            name="output",
        )
        return output(context)

    def _head_layer(self, name: str) -> Linear:
        """Returns a layer [B, L, D] -> [B, L, N, H], with N heads of keys and values for these."""
        config = self.config
        heads = config.num_attention_heads
        if name in ("key", "value"):
            heads = config.key_heads
        shape = (heads, config.head_size)
        return Linear(config, shape, self.dtype, use_bias=config.attention_bias, name=name)

    def _norm_of_heads(self, x: jax.Array, name: str) -> jax.Array:
        """Applies a LayerNorm to the vectors of all heads together, [B, L, N, H]."""
        norm = layer_norm(self.config, self.dtype, name, use_bias=False)
        joined = x.reshape(*x.shape[:2], -1)
        return norm(joined).reshape(x.shape)

    def _choose_kernel(self, length: int, dropout: Dropout, rows: jax.Array | None) -> str:
        """Returns how rows of `length` tokens without relative positions are computed.

        It is a key of `FUSED`, `BY_HEAD`, `IN_BLOCKS` or "xla", which can do everything.
        """
        is_symbol = not isinstance(length, int)  # in an export, for rows of any length
        if is_symbol or self.is_mutable_collection("intermediates"):
            return "xla"
        drops = rows is not None and dropout.rate > 0
        fused = FUSED.get(self.kernel)
        if fused is not None:
            fits = length % fused.tokens == 0 and (fused.windows or self.window is None)
            if fits and (not drops or (fused.dropout and dropout.has_row_keys())):
                return self.kernel
        if self.window is not None:
            if is_in_blocks(length, self.window):
                return IN_BLOCKS
            return "xla"
        if self.kernel == BY_HEAD and length >= SHORTEST_BY_HEAD and not drops:
            return BY_HEAD
        return "xla"

    def _fused_options(self, dropout: Dropout, rows: jax.Array | None) -> dict[str, Any]:
        options: dict[str, Any] = {"causal": self.config.is_decoder}
        if self.window is not None:
            options["window"] = self.window
        if rows is not None and dropout.rate > 0:
            options["row_keys"] = dropout.row_keys(rows)
            options["rate"] = dropout.rate
        return options

    def _positions(
        self,
        embeddings: jax.Array,
        query_layer: Linear,
        key_layer: Linear,
        dropout_rows: jax.Array | None,
    ) -> dict[str, jax.Array]:
        """Projects embeddings of relative positions [R, D] for each term of the scores."""
        config = self.config
        if not config.share_att_key:
            query_layer = self._head_layer("pos_query")
            key_layer = self._head_layer("pos_key")
        # The mask is the same for all rows of a batch.
        first_row = None if dropout_rows is None else jnp.zeros(1, int)
        dropout = Dropout(config.hidden_dropout_prob)
        embeddings = dropout(embeddings[None], first_row)[0]
        layers = {"c2p": key_layer, "p2c": query_layer}
        return {term: layers[term](embeddings) for term in config.pos_att_type}


def _scores(
    config: BertConfig,
    query: jax.Array,
    key: jax.Array,
    positions: dict[str, jax.Array],
    bias: jax.Array | None,
) -> jax.Array:
    """Computes the scores [B, N, L, L] of queries and keys [B, L, N, H].

    `positions` are the projected relative positions [R, N, H] of each term of disentangled
    attention, and `bias` [N, L, L] is added to the scores.
    """
    scores = matmul(query.swapaxes(1, 2), key.swapaxes(1, 2), transposed=True)
    length, _, head_size = query.shape[1:]
    rows = relative_rows(length, config) if positions else np.zeros(0)
    if "c2p" in positions:
        scores += relative_scores(query, positions["c2p"], rows[::-1])
    if "p2c" in positions:
        scores += relative_scores(key, positions["p2c"], rows).swapaxes(2, 3)
    terms = 1 + len(config.pos_att_type)
    scores *= (head_size * terms) ** -0.5
    if bias is not None:
        scores += bias[None].astype(scores.dtype)
    return scores


def attend_by_head(
    query: jax.Array, key: jax.Array, value: jax.Array, sequence_ids: jax.Array, causal: bool
) -> jax.Array:
    """Computes the attention [B, L, N, H] with a loop over heads, which needs little memory.

    An iteration computes two heads, each by operations of its own, so that two cores share them.
    """
    length, count, size = query.shape[1:]
    together = math.gcd(count, 2)

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:  # [B, 1, L, H]
        scores = matmul(query, key, transposed=True) * size**-0.5
        probs = masked_softmax(scores, sequence_ids, causal)
        return matmul(probs.astype(query.dtype), value).astype(query.dtype)

    def attend_together(heads: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        query, key, value = heads  # [2, B, 1, L, H]
        return jnp.stack([attend(query[i], key[i], value[i]) for i in range(together)])

    def by_head(x: jax.Array) -> jax.Array:  # [B, L, N, H] -> [N / 2, 2, B, 1, L, H]
        return x.transpose(2, 0, 1, 3).reshape(-1, together, len(x), 1, length, size)

    context = jax.lax.map(attend_together, (by_head(query), by_head(key), by_head(value)))
    context = context.reshape(count, -1, length, size)
    return context.transpose(1, 2, 0, 3)
