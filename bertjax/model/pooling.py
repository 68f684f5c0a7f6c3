"""Pooling: one vector per sequence from the hidden states of its tokens."""

import jax
import jax.numpy as jnp

POOLINGS = ("mean", "cls")


def pooled(
    x: jax.Array, sequence_ids: jax.Array, sequence_starts: jax.Array, pooling: str
) -> jax.Array:
    """Pools the hidden states of each of the K sequences of a row (Reimers and Gurevych 2019, 3).

    Args:
        x: float [B, L, D], the hidden states.
        sequence_ids: int [B, L], which of the sequences 1..K of its row each token belongs to; 0
            for padding.
        sequence_starts: int [B, K], the position in the row of each sequence's [CLS] token.
        pooling: "mean" for the mean over all tokens of a sequence, or "cls" for the hidden state of
            its [CLS] token.

    Returns:
        float32 [B, K, D]; the vectors of unused entries of a row have no meaning, but are finite.
    """
    x = x.astype(jnp.float32)
    if pooling == "cls":
        return jnp.take_along_axis(x, sequence_starts[:, :, None], axis=1)
    numbers = 1 + jnp.arange(sequence_starts.shape[1])
    inside = sequence_ids[:, None, :] == numbers[None, :, None]  # [B, K, L]
    counts = inside.sum(-1, keepdims=True)
    sums = jnp.einsum("bkl,bld->bkd", inside.astype(jnp.float32), x, precision="highest")
    return sums / jnp.maximum(counts, 1)


def unit(x: jax.Array) -> jax.Array:
    """Divides vectors [..., D] by their Euclidean length, or by 1e-12 if they are shorter.

    The gradient of a vector of zeros is finite.
    """
    squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x / jnp.sqrt(jnp.maximum(squares, 1e-24))
