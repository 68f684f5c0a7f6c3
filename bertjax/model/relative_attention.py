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
            table = layer_norm(config, self.dtype, "layer_norm")(table)
        return table.astype(self.dtype)


class RelativeBias(nn.Module):
    """Numbers for the differences of two places, which MPNet adds to attention scores: [N, L, L].

    Far differences share logarithmic buckets, as in T5 (Raffel et al. 2020, 2.1).
    """

    config: BertConfig

    @nn.compact
    def __call__(self, length: int) -> jax.Array:
        config, heads = self.config, self.config.num_attention_heads
        shape = (config.relative_attention_num_buckets, heads)
        table = self.param("embedding", initializer(config), shape, jnp.float32)
        differences = np.arange(1 - length, length)
        distances, ahead, exact = np.abs(differences), 16, 8
        ratios = np.log(np.maximum(distances, exact).astype(np.float32) / np.float32(exact))
        far = exact + (ratios / np.float32(np.log(128 / exact)) * np.float32(ahead - exact)).astype(
            int
        )
        buckets = np.where(distances < exact, distances, np.minimum(far, ahead - 1))
        values = table[buckets + ahead * (differences > 0)].T
        return shifted(jnp.broadcast_to(values[:, None], (heads, length, 2 * length - 1)))


def relative_rows(length: int, config: BertConfig) -> np.ndarray:
    """Returns the rows of the relative embeddings for the differences -(L - 1) to L - 1 of places.

    A difference is the place of the query minus the place of the key. The result is int [2 L - 1].
    """
    differences, span = np.arange(1 - length, length), config.relative_span
    if config.position_buckets > 0:
        differences = _log_buckets(differences, span, config.longest_relative_position)
    return np.clip(differences + span, 0, 2 * span - 1)


def _log_buckets(differences: np.ndarray, buckets: int, longest: int) -> np.ndarray:
    """Numbers differences such that those above half of `buckets` share buckets of growing size."""
    half, numbers = buckets // 2, differences.copy()
    far = differences[np.abs(differences) > half]  # none, if no row is so long
    single = np.float32  # as in transformers, so that rounding decides alike
    ratios = np.log(np.abs(far).astype(single) / single(half))
    ratios /= np.log(single((longest - 1) / half))
    steps = np.ceil(ratios * single(half - 1)) + half
    numbers[np.abs(differences) > half] = np.sign(far) * steps
    return numbers


def relative_scores(x: jax.Array, positions: jax.Array, rows: np.ndarray) -> jax.Array:
    """Computes the scores of contents for relative positions.

    Args:
        x: the contents of the tokens, [B, L, N, H].
        positions: projected relative embeddings, [R, N, H].
        rows: int [2 L - 1], the row of `positions` for each difference, from -(L - 1) to L - 1, of
            the place of another token minus the place of the token.

    Returns:
        [B, N, L, L]: the score of each token for the position of each other token.
    """
    batch, length, heads, size = x.shape
    contents = x.transpose(2, 0, 1, 3).reshape(heads, batch * length, size)
    scores = matmul(contents, positions[rows].swapaxes(0, 1), transposed=True)
    return shifted(scores.reshape(heads, batch, length, -1)).swapaxes(0, 1)


def shifted(x: jax.Array) -> jax.Array:
    """Takes element j - i + L - 1 of row i of x [..., L, 2 L - 1] as element j: [..., L, L]."""
    *lead, length, width = x.shape
    # Behind rows that are longer by one, each row begins one element later than the one before.
    flat = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]).reshape(*lead, -1)
    flat = jax.lax.slice_in_dim(flat, length - 1, length - 1 + length * width, axis=-1)
    return flat.reshape(*lead, length, width)[..., :length]


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
        groups, size = config.conv_groups, config.hidden_size // config.conv_groups
        shape = (config.conv_kernel_size, groups, size, size)
        kernel = self.param("kernel", initializer(config), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (config.hidden_size,), jnp.float32)
        reach, length = config.conv_kernel_size // 2, embedded.shape[1]
        wide_ids = jnp.pad(sequence_ids, [(0, 0), (reach, reach)])
        wide = jnp.pad(embedded.astype(self.dtype), [(0, 0), (reach, reach), (0, 0)])
        total = jnp.zeros(embedded.shape, jnp.float32)
        for tap, matrices in enumerate(kernel.astype(self.dtype)):
            is_own = wide_ids[:, tap : tap + length] == sequence_ids
            x = jnp.where(is_own[..., None], wide[:, tap : tap + length], 0)
            x = x.reshape(*x.shape[:2], groups, size)
            product = jnp.einsum("blgi,gio->blgo", x, matrices, preferred_element_type=jnp.float32)
            total += product.reshape(total.shape)
        total = jnp.where((sequence_ids > 0)[..., None], total + bias[None, None], 0)
        total = Dropout(config.hidden_dropout_prob)(total.astype(self.dtype), dropout_rows)
        norm = layer_norm(config, self.dtype, "layer_norm")
        norm(total)  # creates its parameters
        return total, norm.variables["params"]
