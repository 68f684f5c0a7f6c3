"""Dropout whose mask does not depend on how a batch is split over devices or microbatches."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

# Constants of Threefry-2x32 with 20 rounds (Salmon et al. 2011): the rotation distances of two
# alternating groups of four rounds, and the parity constant of the key schedule.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


class Dropout(nn.Module):
    """Zeroes elements with probability `rate` and divides the other elements by 1 - rate.

    The dropout mask of a row (Srivastava et al. 2014) depends only on the PRNG key "dropout" and on
    the row's index in the global batch, so the mask is the same for any split of the batch over
    devices, microbatches and processes. This does not hold for keys of jax's PRNG "rbg", which is
    faster on accelerators: the bits for all rows of an array are drawn at once.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, rows: jax.Array | None) -> jax.Array:
        """Applies dropout to x [B, ...] of the rows `rows` of the global batch; None: none."""
        if rows is None or self.rate == 0.0:
            return x
        threshold = drop_threshold(self.rate)
        key = self.make_rng("dropout")
        keep = keep_mask(key, rows, x.shape[1:], threshold)
        # A bfloat16 scale would be off by up to .4 %, in every layer in the same direction.
        scale = jnp.float32(keep_scale(threshold))
        wide_type = jnp.promote_types(x.dtype, jnp.float32)
        scaled = x.astype(wide_type) * scale
        scaled = scaled.astype(x.dtype)
        return jnp.where(keep, scaled, jnp.zeros_like(scaled))

    def row_keys(self, rows: jax.Array) -> jax.Array:
        """Returns the Threefry keys of `rows`, uint32 [B, 2], for a fused kernel.

        `__call__` draws the masks of the rows from the same keys. Either of the two methods may be
        called, once, because it uses up a PRNG key.
        """
        key = self.make_rng("dropout")
        return jax.random.key_data(_fold_rows(key, rows))

    def has_row_keys(self) -> bool:
        """Returns whether the PRNG is Threefry, so that each row has a key."""
        scope: Any = self.scope  # make_rng would use up a key
        return not _is_rbg(scope.rngs["dropout"].rng)


def rate_of(*rates: float | None) -> float:
    """Returns the first dropout rate that is not None."""
    return next(rate for rate in rates if rate is not None)


def drop_threshold(rate: float) -> int:
    """Returns the number of 16-bit values, of 65536, for which an element is dropped.

    Each element uses 16 random bits, which cost half as much as 32. So the rate is rounded to a
    multiple of 1/65536; the threshold is in [0, 65535], and 0 only for rate 0.
    """
    if rate == 0:
        return 0
    values = 2**16
    return min(max(round(rate * values), 1), values - 1)


def keep_scale(threshold: int) -> float:
    """Returns 1 / (1 - rate), the factor of kept elements, for the rate rounded to `threshold`."""
    return 2**16 / (2**16 - threshold)


def keep_mask(key: jax.Array, rows: jax.Array, shape: Sequence[int], threshold: int) -> jax.Array:
    """Draws which elements of the B rows of an array are kept, bool `[B, *shape]`.

    Those are kept whose random integer, uniform in [0, 2^16), is at least `threshold`. The integers
    depend on `key` and on the rows' indices in the global batch, `rows` int [B].
    """
    *lead, last = shape
    if _is_rbg(key):  # vmap does not support these keys
        pairs = math.ceil(last / 2)
        first_key = jax.random.fold_in(key, rows[0])
        words = [jax.random.bits(first_key, (len(rows), *lead, pairs))]
    else:
        quarter = math.ceil(last / 4)
        words = _words_of_rows(_fold_rows(key, rows), (*lead, quarter))
    kept = [half >= threshold for half in split_words(words)]
    return jnp.concatenate(kept, axis=-1)[..., :last]


def _words_of_rows(keys: jax.Array, shape: tuple[int, ...]) -> Sequence[jax.Array]:
    """Draws two random uint32 arrays `[B, *shape]`, a row of which depends on its key alone."""
    size = math.prod(shape)
    counts = jnp.arange(size, dtype=jnp.uint32)
    counts = counts.reshape(1, *shape)
    key_words = jnp.moveaxis(jax.random.key_data(keys), -1, 0)  # [2, B]
    ones = (1,) * len(shape)
    first, second = key_words.reshape(2, -1, *ones)
    zeros = jnp.zeros_like(counts)
    return threefry2x32((first, second), (zeros, counts))


def row_uniforms(key: jax.Array, rows: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Draws numbers, uniform in [0, 1), for the B rows of an array: float32 `[B, *shape]`.

    They depend on `key` and on the rows' indices in the global batch, `rows` int [B].
    """
    if _is_rbg(key):
        first_key = jax.random.fold_in(key, rows[0])
        return jax.random.uniform(first_key, (len(rows), *shape))
    draw = functools.partial(jax.random.uniform, shape=shape)
    return jax.vmap(draw)(_fold_rows(key, rows))


def split_words(words: Sequence[jax.Array]) -> list[jax.Array]:
    """Splits each uint32 array into two, of the upper and the lower 16 bits of its elements."""
    halves: list[jax.Array] = []
    for word in words:
        halves += [word >> 16, word & 0xFFFF]
    return halves


def _fold_rows(key: jax.Array, rows: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)


def _is_rbg(key: jax.Array) -> bool:
    return "rbg" in str(jax.random.key_impl(key))


# The compiled program is the same as without this inlined jit, but jax traces the rounds once per
# shape instead of once per call.
@functools.partial(jax.jit, inline=True)
def threefry2x32(
    key: tuple[jax.Array, jax.Array], counts: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Computes the Threefry-2x32 hash (Salmon et al. 2011) of `counts` under `key`.

    Both arguments are the two words of 32-bit pairs, uint32 arrays of any shapes that broadcast.

    It equals the hash in jax's Threefry PRNG. But jax.random returns only the XOR of the hash's
    two words, and on CPUs loops over the rounds. This function returns both words and unrolls the
    rounds, so that XLA fuses the hash with the operation that uses it.
    """
    keys = (*key, key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x = counts[0] + keys[0]
    y = counts[1] + keys[1]
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = x + y
            rotated = y << distance | y >> (32 - distance)
            y = x ^ rotated
        number = group + 1
        x = x + keys[number % 3]
        y = y + keys[(number + 1) % 3] + jnp.uint32(number)
    return x, y
