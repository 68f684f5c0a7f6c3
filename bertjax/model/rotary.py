"""Rotary position embedding: queries and keys are rotated by their positions (Su et al. 2021, 3.2).

As in transformers, element i of the first half of a head and element i of its second half are the
two coordinates of a rotation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Rotation(NamedTuple):
    """The rotations of the tokens of a batch, float32 [B, L, 1, head size / 2] each.

    Attributes:
        cos: the cosines of the angles.
        sin: the sines of the angles.
    """

    cos: jax.Array
    sin: jax.Array


def rotation(position_ids: jax.Array, head_size: int, theta: float) -> Rotation:
    """Computes the rotations for `position_ids` int [B, L], which restart at every sequence.

    Pair i of the `head_size / 2` pairs of coordinates is rotated by the angle position *
    theta^(-2 i / head_size).
    """
    rates = 1.0 / theta ** (jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    angles = position_ids[:, :, None, None].astype(jnp.float32) * rates[None, None, None]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: jax.Array, by: Rotation) -> jax.Array:
    """Rotates queries or keys x [B, L, N, H] in float32; the result has the dtype of x.

    `by` are the rotations of the tokens.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = (first * by.cos - second * by.sin, second * by.cos + first * by.sin)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
