"""Dropout: its rate and scale, and that the bits of a row are the row's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model.dropout import Dropout, keep_mask, threefry2x32

SHAPE = (6, 40, 33)  # an odd last axis


def dropped(rate, rows, key, x=None):
    x = jnp.ones((len(rows), *SHAPE)) if x is None else x
    return np.asarray(Dropout(rate).apply({}, x, jnp.asarray(rows), rngs={"dropout": key}))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_elements_are_dropped_at_the_rate_and_the_mean_is_kept(impl, rate):
    found = dropped(rate, range(20), jax.random.key(3, impl=impl))
    sigma = (rate * (1 - rate) / found.size) ** 0.5
    assert abs((found == 0).mean() - rate) < 4 * sigma
    np.testing.assert_allclose(found[found != 0], 1 / (1 - rate), rtol=1e-4)
    # Neighbours, and the two halves of a word, are independent.
    gone = (found == 0).reshape(-1, SHAPE[-1]).astype(float)
    for shift in (1, 17):
        together = (gone[:, :-shift] * gone[:, shift:]).mean()
        assert abs(together - rate**2) < 5 * rate / gone.size**0.5


def test_a_rows_bits_are_its_own_and_differ_from_other_rows_keys_and_sites():
    key = jax.random.key(0)
    every = dropped(0.5, range(8), key)
    np.testing.assert_array_equal(dropped(0.5, [5, 2], key), every[[5, 2]])
    others = [every[3], dropped(0.5, [2], jax.random.key(1))[0]]
    for other in others:
        assert 0.45 < (every[2] == other).mean() < 0.55


def test_the_gradient_is_dropped_likewise():
    rows, key = range(2), jax.random.key(0)
    x = jnp.full((2, *SHAPE), 3.0)
    gradient = jax.grad(
        lambda x: Dropout(0.3).apply({}, x, jnp.arange(2), rngs={"dropout": key}).sum()
    )(x)
    np.testing.assert_allclose(np.asarray(gradient) * 3, dropped(0.3, rows, key, x), rtol=1e-6)


def test_without_rows_or_rate_nothing_is_dropped_and_no_key_is_needed():
    x = jnp.ones((2, *SHAPE))
    assert Dropout(0.5).apply({}, x, None) is x
    assert Dropout(0.0).apply({}, x, jnp.arange(2)) is x


def test_halves_of_words_are_uniform():
    key, rows = jax.random.key(7), jnp.arange(50)
    at_least = [keep_mask(key, rows, SHAPE, i << 12).sum() for i in range(17)]
    size = len(rows) * np.prod(SHAPE)
    assert at_least[0] == size and at_least[-1] == 0
    counts, expected = -np.diff(at_least), size / 16
    assert ((counts - expected) ** 2 / expected).sum() < 40  # chi square, 15 degrees: 1 in 2,000


@pytest.mark.parametrize(
    ("key", "count", "block"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers(key, count, block):
    """Of Random123's own tests, 20 rounds."""
    found = threefry2x32(*(tuple(map(jnp.uint32, words)) for words in (key, count)))
    assert tuple(map(int, found)) == block


def test_threefry_is_jaxs_own():
    key, counts = jax.random.key(11), jnp.arange(1000, dtype=jnp.uint32)
    words = tuple(jax.random.key_data(key))
    first, second = threefry2x32(words, (jnp.zeros_like(counts), counts))
    np.testing.assert_array_equal(first ^ second, jax.random.bits(key, (1000,)))


def test_bfloat16_keeps_the_mean():
    # 1 / .9 is 1.109375 in bfloat16, which would shrink every element by .16 %.
    x = jax.random.uniform(jax.random.key(5), (40, *SHAPE), minval=1.0, maxval=2.0)
    x = x.astype(jnp.bfloat16)
    found = dropped(0.1, range(40), jax.random.key(3), x).astype(np.float64)
    kept = found != 0
    ratio = found[kept].sum() / np.asarray(x, np.float64)[kept].sum()
    np.testing.assert_allclose(ratio, 1 / 0.9, rtol=3e-4)
