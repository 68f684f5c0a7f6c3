"""Packed rows for inference hold every sequence once, in few shapes, with little padding."""

import numpy as np
import pytest

from bertjax.data.batches.features import Feature
from bertjax.inference.packed_pieces import packed_pieces


def features_of(lengths, choices=1):
    ids = iter(range(1, 1 << 30))
    return [
        Feature(
            np.array([next(ids) for _ in range(n * choices)], np.int32),
            (n,) * choices,
            (n // 2,) * choices,
            None,
        )
        for n in lengths
    ]


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(("count", "longest"), [(1, 9), (5, 30), (700, 40), (300, 200)])
def test_every_feature_is_in_one_place(count, longest, devices, choices):
    features = features_of(np.random.default_rng(0).integers(3, longest, count), choices)
    pieces = list(
        packed_pieces(
            features, limit=200 * choices, pad_token_id=0, num_choices=choices, devices=devices
        )
    )
    placed = [index for piece in pieces for index in piece.placements]
    assert sorted(placed) == list(range(count))
    for piece in pieces:
        ids, numbers = piece.batch["input_ids"], piece.batch["sequence_ids"]
        assert not len(ids) % devices
        tokens = 0
        for index, (row, slot, start) in piece.placements.items():
            feature = features[index]
            end = start + len(feature.input_ids)
            np.testing.assert_array_equal(ids[row, start:end], feature.input_ids)
            expected = np.repeat(slot + 1 + np.arange(choices), feature.lengths)
            np.testing.assert_array_equal(numbers[row, start:end], expected)
            np.testing.assert_array_equal(piece.batch["sequence_starts"][row, slot], start)
            tokens += len(feature.input_ids)
        assert (ids > 0).sum() == (numbers > 0).sum() == tokens


@pytest.mark.parametrize(("mean", "bound"), [(18, 1.06), (60, 1.12), (280, 1.12)])
def test_many_texts_have_little_padding_and_few_shapes(mean, bound):
    lengths = np.random.default_rng(0).lognormal(np.log(mean), 0.4, 2000).astype(int)
    features = features_of(np.clip(lengths, 3, 512))
    shapes = [
        p.batch["input_ids"].shape for p in packed_pieces(features, limit=512, pad_token_id=0)
    ]
    assert sum(rows * length for rows, length in shapes) <= bound * sum(len(f[0]) for f in features)
    assert len(set(shapes)) <= 16
    assert max(rows * length for rows, length in shapes) <= 2048


def test_texts_one_by_one_share_programs():
    shapes = {
        piece.batch["input_ids"].shape
        for n in range(2, 513)
        for piece in packed_pieces(features_of([n]), limit=512, pad_token_id=0)
    }
    assert shapes == {(1, length) for length in (8, 16, 32, 64, 128, 256, 512)}
