"""Buckets of lengths and rows: few shapes, little waste, bounded pieces."""

import numpy as np
import pytest

from bertjax.inference.buckets import (
    length_bucket,
    pad_rows,
    piece_sizes,
    read_behind,
    row_lengths,
)


@pytest.mark.parametrize("limit", [24, 64, 100, 512])
@pytest.mark.parametrize(("smallest", "steps"), [(8, 4), (32, 1), (64, 1)])
def test_a_bucket_holds_its_lengths_and_there_are_few(limit, smallest, steps):
    buckets = {n: length_bucket(n, limit, smallest=smallest, steps=steps) for n in range(limit + 1)}
    assert all(n <= bucket <= limit for n, bucket in buckets.items())
    assert all(bucket <= max(smallest, 2 * n) for n, bucket in buckets.items())
    assert list(buckets.values()) == sorted(buckets.values())
    assert len(set(buckets.values())) <= (5 if steps == 1 else 20)


@pytest.mark.parametrize("compiling", [0, 30, 500, 10**9])
def test_row_lengths_take_the_least_time(compiling):
    """No other choice of lengths has less padding and compilation, by trying all of them."""
    rng = np.random.default_rng(0)
    coarse, fine = [16, 32, 60], [16, 24, 32, 40, 48, 56, 60]
    for count in (1, 3, 20, 60):
        lengths = rng.integers(1, 61, count).tolist()
        chosen = row_lengths(lengths, 60, smallest=16, compiling=compiling)
        assert all(a <= b and b in fine for a, b in zip(lengths, chosen, strict=True))

        def cost(padded):
            return sum(padded) + compiling * len({*padded} - {*coarse})

        def padded(available, lengths=lengths):
            return [min(x for x in available if x >= n) for n in lengths]

        usable = [
            choice
            for number in range(1, 1 << len(fine))
            if max(choice := [x for i, x in enumerate(fine) if number >> i & 1]) >= max(lengths)
        ]
        assert cost(chosen.tolist()) == min(cost(padded(choice)) for choice in usable)
        if compiling == 10**9:
            assert {*chosen.tolist()} <= {*coarse}
    assert not row_lengths([], 60, smallest=16, compiling=compiling).size


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(("length", "tokens"), [(32, 4096), (512, 4096), (128, 65536), (512, 100)])
def test_pieces_hold_all_rows_in_few_sizes_within_the_budget(length, tokens, devices):
    sizes = set()
    for rows in range(1, 1500):
        pieces = piece_sizes(rows, length, tokens, devices)
        assert 0 <= sum(pieces) - rows < max(devices, pieces[-1] / 2 + devices)
        assert all(size % devices == 0 for size in pieces)
        assert all(size * length <= tokens * devices or size == devices for size in pieces)
        sizes |= set(pieces)
    assert len(sizes) <= 5


def test_no_rows_have_no_pieces():
    assert piece_sizes(0, 32, 4096) == []


def test_rows_are_padded_with_zeros():
    padded = pad_rows(np.ones((2, 3), np.int32), 4)
    np.testing.assert_array_equal(padded, [[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]])


def test_an_item_is_read_when_the_next_one_has_started():
    events = []

    def start():
        for item in range(3):
            events.append(f"start {item}")
            yield item

    for item in read_behind(start()):
        events.append(f"read {item}")
    assert events == ["start 0", "start 1", "read 0", "start 2", "read 1", "read 2"]
