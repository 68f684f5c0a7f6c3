"""Dropout whose bits belong to a row, and not to the batch that the row is in."""

import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

# Threefry-2x32 with 20 rounds (Salmon et al. 2011): how far each of four rounds turns a word, and
# what the third word of the key is made of.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


class Dropout(nn.Module):
    """Zeroes elements with probability `rate`, and scales the others up (Srivastava et al. 2014).

    The bits of a row are drawn from the rng "dropout" and the row's number alone, so that they are
    the same however rows are split over devices, microbatches and processes. That holds for
    Threefry keys; "rbg" keys, cheaper on accelerators, draw for all rows at once.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, rows: jax.Array | None) -> jax.Array:
        """x [B, ...], rows int [B], the numbers of the rows, or None: without dropout."""
        if rows is None or self.rate == 0.0:
            return x
        # Bits come in halves of a word, which cost half of whole ones: the rate is rounded to
        # 1/65536, and the scale is that of the rounded rate.
        threshold = min(max(round(self.rate * 2**16), 1), 2**16 - 1)
        keep = random_halves(self.make_rng("dropout"), rows, x.shape[1:]) >= threshold
        return jnp.where(keep, x * (2**16 / (2**16 - threshold)), 0)


def random_halves(key: jax.Array, rows: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Uniform in 0..65535, uint32 [B, *shape], of a key and numbers of rows, int [B]."""
    *lead, last = shape
    if "rbg" in str(jax.random.key_impl(key)):  # these keys cannot be mapped over
        of_rows = (len(rows), *lead, -(-last // 2))
        words = (jax.random.bits(jax.random.fold_in(key, rows[0]), of_rows),)
    else:
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)
        of_row = (*lead, -(-last // 4))
        counts = jnp.arange(math.prod(of_row), dtype=jnp.uint32).reshape(1, *of_row)
        key_words = jnp.moveaxis(jax.random.key_data(keys), -1, 0)
        first, second = key_words.reshape(2, -1, *(1 for _ in of_row))
        words = threefry2x32((first, second), (jnp.zeros_like(counts), counts))
    halves = [half for word in words for half in (word >> 16, word & 0xFFFF)]
    return jnp.concatenate(halves, axis=-1)[..., :last]


def threefry2x32(
    key: tuple[jax.Array, jax.Array], counts: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Blocks of two words, uint32, each of the shape that key and counts have together.

    The bits are those of jax's own Threefry, which keeps 32 of a block's 64 and, on CPUs, is a loop
    over arrays; written out it is one expression that XLA fuses with what uses the bits.
    """
    keys = (*key, key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x, y = counts[0] + keys[0], counts[1] + keys[1]
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ (y << distance | y >> (32 - distance))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y
