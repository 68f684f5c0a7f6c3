"""The softmax of attention scores over the tokens of a query's sequence, in float32."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def masked_softmax(
    scores: jax.Array, sequence_ids: jax.Array, causal: bool, window: int | None = None
) -> jax.Array:
    """Computes the float32 softmax of scores [B, N, L, L] over the keys of the query's sequence.

    `sequence_ids` int [B, L] numbers the sequences of a row from 1; padding is 0. With `causal`, a
    query attends only to itself and to earlier keys; with `window`, only to keys that are at most
    `window // 2` tokens away. The scores have any floating-point type.
    """
    # The barrier makes the mask depend on the layer: otherwise JAX computes the mask, and the
    # constant in its place, once before the loop over the layers, as arrays [B, N, L, L] that every
    # layer reads from memory.
    lowest = jnp.asarray(jnp.finfo(jnp.float32).min, jnp.float32)
    sequence_ids, lowest, _ = jax.lax.optimization_barrier(
        (sequence_ids, lowest, scores[:, 0, 0, 0])
    )
    # Padding has sequence id 0 and attends to padding, so every query has at least one key.
    mask = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
    length = mask.shape[-1]
    if causal:
        mask &= jnp.tri(length, dtype=bool)[None, None]
    if window is not None:
        places = jnp.arange(length)
        mask &= (abs(places[:, None] - places[None]) <= window // 2)[None, None]
    return jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), lowest))


@masked_softmax.defjvp
def _masked_softmax_jvp(
    causal: bool, window: int | None, primals: tuple, tangents: tuple
) -> tuple[jax.Array, jax.Array]:
    (scores, sequence_ids), (tangent, _) = primals, tangents
    return _with_tangent(masked_softmax(scores, sequence_ids, causal, window), tangent)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def block_softmax(
    scores: jax.Array, query_ids: jax.Array, key_ids: jax.Array, window: int
) -> jax.Array:
    """Computes the float32 softmax of scores [B, M, N, S, 3 S] of local attention in blocks.

    The S queries of each of the M blocks of a row attend to the keys of the block before theirs, of
    their own block and of the block after it, if these belong to their sequence and are at most
    `window // 2` tokens away.

    Args:
        scores: [B, M, N, S, 3 S], of any floating-point type.
        query_ids: int [B, M, S], the sequence of each query.
        key_ids: int [B, M, 3 S], the sequence of each key.
        window: the window of local attention in tokens.
    """
    # The barrier has the purpose of that in `masked_softmax`.
    lowest = jnp.asarray(jnp.finfo(jnp.float32).min, jnp.float32)
    query_ids, lowest, _ = jax.lax.optimization_barrier((query_ids, lowest, scores[:, 0, 0, 0, 0]))
    size = scores.shape[-2]
    distance = jnp.arange(size)[:, None] - jnp.arange(-size, 2 * size)[None]
    mask = query_ids[:, :, None, :, None] == key_ids[:, :, None, None, :]
    mask &= (abs(distance) <= window // 2)[None, None, None]
    return jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), lowest))


@block_softmax.defjvp
def _block_softmax_jvp(window: int, primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    scores, query_ids, key_ids = primals
    return _with_tangent(block_softmax(scores, query_ids, key_ids, window), tangents[0])


def _with_tangent(probs: jax.Array, tangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns `probs`, and the tangent of `probs` for the `tangent` of the scores."""
    # Masked probabilities are 0, and so are their tangents.
    product = probs * tangent.astype(jnp.float32)
    return probs, product - probs * product.sum(-1, keepdims=True)
