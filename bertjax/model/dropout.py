"""Dropout whose bits belong to a row, and not to the batch that the row is in."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp


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
    words_of_row = (*lead, (last + 1) // 2)
    if "rbg" in str(jax.random.key_impl(key)):  # these keys cannot be mapped over
        words = jax.random.bits(jax.random.fold_in(key, rows[0]), (len(rows), *words_of_row))
    else:
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)
        words = jax.vmap(lambda key: jax.random.bits(key, words_of_row))(keys)
    return jnp.concatenate([words >> 16, words & 0xFFFF], axis=-1)[..., :last]
