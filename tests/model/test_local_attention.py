"""Local attention in blocks equals attention to whole rows with the mask of its window."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model.attention import attend_locally, masked_softmax
from bertjax.model.dropout import Dropout
from bertjax.model.fused_attention import is_in_blocks
from tests.cases import WEEKLY


def attend_to_whole_rows(query, key, value, sequence_ids, window):
    """The same with scores [B, N, L, L]."""
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return (masked_softmax(scores, sequence_ids, False, window) @ value).swapaxes(1, 2)


MORE = [(40, 7), (24, 16), (17, 2)]


def packed_rows(length: int) -> np.ndarray:
    """Sequence ids of three rows: three sequences; two and padding; one as long as the row."""
    ids = np.ones((3, length), np.int32)
    ids[0, length // 3 :] = 2
    ids[0, length // 2 :] = 3
    ids[1, 7:], ids[1, length - length // 4 :] = 2, 0
    return ids


@pytest.mark.parametrize(
    ("length", "window"),
    [(29, 8), (5, 64), (9, 1), *(pytest.param(*x, marks=WEEKLY) for x in MORE)],
)
def test_blocks_equal_whole_rows_and_so_do_their_gradients(length, window):
    rng = np.random.default_rng(length)
    arrays = [rng.normal(size=(3, length, 2, 6)).astype(np.float32) for _ in range(4)]
    *operands, weights = map(jnp.asarray, arrays)
    ids = packed_rows(length)

    def run(attend, query, key, value):
        context = attend(query, key, value, ids, window)
        return (context * weights).sum(), context

    found, expected = (
        jax.jit(jax.value_and_grad(functools.partial(run, f), argnums=(0, 1, 2), has_aux=True))(
            *operands
        )
        for f in (attend_locally, attend_to_whole_rows)
    )
    np.testing.assert_allclose(found[0][1], expected[0][1], atol=1e-6)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_token_reads_its_window_and_its_sequence_alone():
    length, window = 30, 8
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(1, length, 1, 4)).astype(np.float32) for _ in range(3))
    ids = np.repeat([1, 2], [12, 18])[None]
    attend = jax.jit(functools.partial(attend_locally, window=window))
    before = attend(query, key, value, ids)
    for moved in (3, 11, 12, 25):
        changed = value.copy()
        changed[0, moved] += 1.0
        reads = np.abs(attend(query, key, changed, ids) - before)[0, :, 0].max(-1) > 0
        expected = [abs(i - moved) <= 4 and ids[0, i] == ids[0, moved] for i in range(length)]
        assert reads.tolist() == expected


def test_short_rows_are_not_worth_blocks():
    assert not is_in_blocks(192, 128)
    assert is_in_blocks(193, 128)


def test_dropout_zeroes_probabilities_of_blocks():
    query = np.ones((2, 20, 1, 4), np.float32)
    ids = np.ones((2, 20), np.int32)
    drop = Dropout(0.5)

    @jax.jit
    def attend(rows):
        return attend_locally(
            *(query, query, query, ids, 4),
            lambda probs: drop.apply({}, probs, rows, rngs={"dropout": jax.random.key(0)}),
        )

    both = attend(jnp.arange(2))
    # The mean of equal values is 1; half of the five probabilities are zero, the others doubled.
    assert 0.5 < both.mean() < 1.5 and both.std() > 0.1
    np.testing.assert_array_equal(both[0], attend(jnp.array([0, 7]))[0])


def test_memory_grows_with_the_window_and_not_with_the_row():
    def peak(length: int) -> int:
        shape = jax.ShapeDtypeStruct((1, length, 4, 16), jnp.float32)
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)

        def loss(query, key, value, ids):
            return attend_locally(query, key, value, ids, 32).sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape, ids)
        analysis = compiled.compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert peak(2048) < 2.2 * peak(1024)
