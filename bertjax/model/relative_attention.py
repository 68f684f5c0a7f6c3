"""What DeBERTa and MPNet add to an encoder: relative positions in attention, and a convolution.

In disentangled attention (He et al. 2020, 3.1), the score of a query and a key is a sum: of their
contents, of the content of the query and the position of the key relative to it ("c2p"), and of
the content of the key and the position of the query relative to it ("p2c"). Relative positions have
embeddings, which all layers share; far positions share a bucket (He et al. 2021, "DeBERTa-v2").

Positions in a sequence differ by as much as places in a row, so that packed rows need nothing else.
The scores of a term depend on the difference of two places: they are computed for the 2 L - 1
differences, [B, N, L, 2 L - 1], and each row is shifted to its place (Huang et al. 2018, "Music
Transformer", 3.4.1). A gather would need less memory, but is slow on TPUs, and so is its gradient,
a sum in no fixed order, on GPUs.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.embeddings import layer_norm
from bertjax.model.linear import initializer, matmul


class RelativeEmbeddings(nn.Module):
    """The embeddings of relative positions, [2 * config.relative_span, D]."""

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self) -> jax.Array:
        config = self.config
        shape = (2 * config.relative_span, config.hidden_size)
        table = self.param("embedding", initializer(config), shape, jnp.float32)
        if config.norm_rel_ebd == "layer_norm":
            norm = layer_norm(config, self.dtype, "layer_norm")
            table = norm(table)
        return table.astype(self.dtype)


class RelativeBias(nn.Module):
    """Numbers for the differences of two places, which MPNet adds to attention scores: [N, L, L].

    Far differences share logarithmic buckets, as in T5 (Raffel et al. 2020, 2.1).
    """

    config: BertConfig

    @nn.compact
    def __call__(self, length: int) -> jax.Array:
        config = self.config
        heads = config.num_attention_heads
        shape = (config.relative_attention_num_buckets, heads)
        table = self.param("embedding", initializer(config), shape, jnp.float32)
        buckets = _for_length(_t5_buckets, length, config.max_length)
        values = table[buckets].T  # [N, 2 L - 1]
        width = 2 * length - 1
        rows = jnp.broadcast_to(values[:, None], (heads, length, width))
        return shifted(rows)


def _for_length(numbers_of: Callable[[np.ndarray], np.ndarray], length: int, longest: int) -> Any:
    """Returns `numbers_of` the differences -(L - 1) to L - 1 of two places, int [2 L - 1].

    If the length L is a symbol, as in an export, the result is a part of the numbers for `longest`.
    """
    if isinstance(length, int):
        return numbers_of(np.arange(1 - length, length))
    numbers = numbers_of(np.arange(1 - longest, longest))
    return jax.lax.slice_in_dim(jnp.asarray(numbers), longest - length, longest + length - 1)


def _t5_buckets(differences: np.ndarray) -> np.ndarray:
    """Numbers differences: buckets 0 to 15 for tokens behind, and 16 to 31 for tokens ahead.

    Of each 16, the first 8 are single distances, and the others logarithmic, up to distance 128.
    """
    exact = 8
    per_direction = 16
    longest = 128
    distances = np.abs(differences)
    # In float32, as in transformers, so that rounding decides alike.
    at_least = np.maximum(distances, exact).astype(np.float32)
    ratios = np.log(at_least / exact)
    steps = ratios / math.log(longest / exact) * (per_direction - exact)
    far = exact + steps.astype(int)
    far = np.minimum(far, per_direction - 1)
    buckets = np.where(distances < exact, distances, far)
    return np.where(differences > 0, buckets + per_direction, buckets)


def relative_rows(length: int, config: BertConfig) -> Any:
    """Returns the rows of the relative embeddings for the differences -(L - 1) to L - 1 of places.

    A difference is the place of the query minus the place of the key. The result is int [2 L - 1].
    """
    span = config.relative_span

    def rows_of(differences: np.ndarray) -> np.ndarray:
        if config.position_buckets > 0:
            differences = _log_buckets(differences, span, config.longest_relative_position)
        return np.clip(differences + span, 0, 2 * span - 1)

    return _for_length(rows_of, length, config.max_length)


def _log_buckets(differences: np.ndarray, buckets: int, longest: int) -> np.ndarray:
    """Numbers differences such that those above half of `buckets` share buckets of growing size."""
    half = buckets // 2
    distances = np.abs(differences)
    # In float32, as in transformers, so that rounding decides alike.
    at_least = np.maximum(distances, half).astype(np.float32)
    ratios = np.log(at_least / half)
    longest_ratio = np.float32((longest - 1) / half)
    steps = ratios / np.log(longest_ratio) * (half - 1)
    far = np.ceil(steps).astype(int) + half
    numbers = np.where(distances > half, far, distances)
    return np.sign(differences) * numbers


def relative_scores(x: jax.Array, positions: jax.Array, rows: Any) -> jax.Array:
    """Computes the scores of contents for relative positions.

    x [B, L, N, H] are the contents of the tokens, and `positions` [R, N, H] projected relative
    embeddings, of which `rows` int [2 L - 1] are those of the differences, from -(L - 1) to L - 1,
    of the place of another token minus the place of the token. Returns [B, N, L, L].
    """
    batch, length, heads, size = x.shape
    by_head = x.transpose(2, 0, 1, 3)
    contents = by_head.reshape(heads, batch * length, size)
    differences = positions[rows].swapaxes(0, 1)  # [N, 2 L - 1, H]
    scores = matmul(contents, differences, transposed=True)
    scores = scores.reshape(heads, batch, length, -1)
    return shifted(scores).swapaxes(0, 1)


def shifted(x: jax.Array) -> jax.Array:
    """Takes element j - i + L - 1 of row i of x [..., L, 2 L - 1] as element j: [..., L, L]."""
    *lead, length, width = x.shape
    # Behind rows that are longer by one, each row begins one element later than the one before.
    padding = [(0, 0)] * x.ndim
    padding[-1] = (0, 1)
    longer = jnp.pad(x, padding)
    flat = longer.reshape(*lead, -1)
    first = length - 1
    flat = jax.lax.slice_in_dim(flat, first, first + length * width, axis=-1)
    rows = flat.reshape(*lead, length, width)
    return rows[..., :length]


class Convolution(nn.Module):
    """A convolution over the embeddings, which is added to the output of the first layer.

    It is that of DeBERTa-v2. A token sees the tokens of its own sequence alone.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, embedded: jax.Array, sequence_ids: jax.Array, dropout_rows: jax.Array | None
    ) -> tuple[jax.Array, Any]:
        """Returns what is added, [B, L, D], and the parameters of the LayerNorm behind the sum."""
        config = self.config
        taps = config.conv_kernel_size
        groups = config.conv_groups
        size = config.hidden_size // groups
        shape = (taps, groups, size, size)
        kernel = self.param("kernel", initializer(config), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (config.hidden_size,), jnp.float32)
        length = embedded.shape[1]
        nothing = (0, 0)
        beside = (taps // 2, taps // 2)
        wide_ids = jnp.pad(sequence_ids, [nothing, beside])
        embedded = embedded.astype(self.dtype)
        wide = jnp.pad(embedded, [nothing, beside, nothing])
        total = jnp.zeros(embedded.shape, jnp.float32)
        for tap, matrices in enumerate(kernel.astype(self.dtype)):
            tokens = slice(tap, tap + length)
            is_own = (wide_ids[:, tokens] == sequence_ids)[..., None]
            x = wide[:, tokens]
            x = jnp.where(is_own, x, 0)
            x = x.reshape(-1, length, groups, size)
            product = jnp.einsum("blgi,gio->blgo", x, matrices, preferred_element_type=jnp.float32)
            total += product.reshape(total.shape)
        is_token = (sequence_ids > 0)[..., None]
        total = jnp.where(is_token, total + bias[None, None], 0)
        total = total.astype(self.dtype)
        total = Dropout(config.hidden_dropout_prob)(total, dropout_rows)
        norm = layer_norm(config, self.dtype, "layer_norm")
        norm(total)  # creates its parameters
        return total, norm.variables["params"]
