"""Packing: every item once, no row too full, and the rows that a search through all would give."""

import numpy as np
import pytest

from bertjax.data.preparation.packing import pack


def by_search(sizes, row_length, max_sequences, sequences):
    """Best fit, longest first, by looking at every row for every item."""
    rows, room = [], []
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fitting = [
            (tokens - sizes[item], row)
            for row, (tokens, slots) in enumerate(room)
            if tokens >= sizes[item] and slots >= sequences[item]
        ]
        if not fitting:
            fitting = [(0, len(rows))]
            rows.append([])
            room.append((row_length, max_sequences))
        row = min(fitting)[1]
        rows[row].append(item)
        room[row] = (room[row][0] - sizes[item], room[row][1] - sequences[item])
    return rows


def test_packing_puts_every_item_in_one_row_and_no_row_is_too_full():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = rng.integers(1, 60, rng.integers(1, 40)).tolist()
        rows = pack(sizes, 64, 5)
        assert sorted(item for row in rows for item in row) == list(range(len(sizes)))
        assert all(sum(sizes[item] for item in row) <= 64 and len(row) <= 5 for row in rows)
        fullest = sum(sizes) / 64
        assert len(rows) <= max(2 * fullest + 1, -(-len(sizes) // 5) + fullest + 1)


def test_an_item_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="65 tokens"):
        pack([3, 65], 64, 5)


@pytest.mark.parametrize("most", [1, 3])
def test_rows_are_those_of_a_search(most):
    rng = np.random.default_rng(most)
    for _ in range(200):
        sizes = rng.integers(1, 30, rng.integers(0, 60)).tolist()
        counts = rng.integers(1, most + 1, len(sizes)).tolist()
        assert pack(sizes, 30, 4, counts) == by_search(sizes, 30, 4, counts)


def test_many_short_items_fill_their_rows():
    sizes = np.random.default_rng(0).integers(5, 513, 20_000).tolist()
    rows = pack(sizes, 512, 8)
    assert sum(sizes) / (512 * len(rows)) > 0.99
