"""Local attention: every token attends to the tokens of its sequence within a window around it.

This is the sliding window attention of Longformer (Beltagy et al. 2020, 3.1) and of ModernBERT
(Warner et al. 2024, 2.1.2). It is computed in blocks as long as half of the window: the queries of
a block attend to the keys of three blocks. So memory and FLOP grow with L times the window instead
of L squared, in rows of one or several sequences.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.model.masked_softmax import block_softmax
from bertjax.model.matmul import matmul


def is_in_blocks(length: int, window: int) -> bool:
    """Returns whether rows of `length` tokens are computed in blocks for a `window` in tokens.

    Each query has the keys of three blocks, so shorter rows take less without blocks.
    """
    return length > 3 * block_size(window)


def block_size(window: int) -> int:
    """Returns the number of tokens of a block for a window of `window` tokens."""
    return max(window // 2, 1)


def attend_locally(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    window: int,
    dropout: Callable[[jax.Array], jax.Array] = lambda probs: probs,
) -> jax.Array:
    """Computes attention of every token to those at most `window // 2` tokens away.

    Args:
        query: [B, L, N, H], for N heads of size H.
        key: [B, L, N, H].
        value: [B, L, N, H].
        sequence_ids: int [B, L], the number (from 1) of each token's sequence in its row; padding
            has id 0 and attends to padding.
        window: the window in tokens.
        dropout: a function of the probabilities, which are [B, blocks, N, S, 3 S] for blocks of S
            tokens.

    Returns:
        softmax(query key^T / sqrt(H)) value over the keys in the window, [B, L, N, H].
    """
    length, size = query.shape[1], block_size(window)
    # Padding of rows to whole blocks, and blocks outside of the row, belong to no sequence.
    query_ids = _blocks(sequence_ids, size, -1)
    key_ids = _neighbours(query_ids, -1)
    queries, keys, values = (
        x.swapaxes(2, 3)  # [B, M, N, S or 3 S, H]
        for x in (
            _blocks(query, size),
            _neighbours(_blocks(key, size)),
            _neighbours(_blocks(value, size)),
        )
    )
    scores = matmul(queries, keys, transposed=True) * query.shape[-1] ** -0.5
    probs = dropout(block_softmax(scores, query_ids, key_ids, window).astype(query.dtype))
    context = matmul(probs, values).astype(query.dtype).swapaxes(2, 3)  # [B, M, S, N, H]
    return context.reshape(len(query), -1, *query.shape[2:])[:, :length]


def _blocks(x: jax.Array, size: int, fill: int = 0) -> jax.Array:
    """Splits [B, L, ...] into M blocks, [B, M, size, ...]; `fill` pads rows to whole blocks."""
    padding = [(0, 0), (0, -x.shape[1] % size)] + [(0, 0)] * (x.ndim - 2)
    padded = jnp.pad(x, padding, constant_values=fill)
    return padded.reshape(len(x), -1, size, *x.shape[2:])


def _neighbours(blocks: jax.Array, fill: int = 0) -> jax.Array:
    """Joins each of the M blocks [B, M, S, ...] with those beside it, [B, M, 3 S, ...].

    The blocks before the first and after the last block of a row are filled with `fill`.
    """
    padding = [(0, 0), (1, 1)] + [(0, 0)] * (blocks.ndim - 2)
    padded = jnp.pad(blocks, padding, constant_values=fill)
    return jnp.concatenate([padded[:, :-2], blocks, padded[:, 2:]], axis=2)
