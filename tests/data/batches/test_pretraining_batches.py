"""Batches: what a row says, that order and masks depend on (seed, phase, row) alone."""

import dataclasses

import numpy as np
import pytest

from bertjax.data.batches.masking import Masking, random_bits
from bertjax.data.batches.pretraining_batches import (
    HeldOutRows,
    RowFormat,
    make_batch,
    train_batches,
)
from bertjax.data.metadata import RowSource, unigram_entropy
from bertjax.data.records import Row, write_shard
from tests.rows import encode_row

LENGTH, VOCAB = 24, 200
MASKING = Masking(
    probability=0.15, max_predictions=5, vocab_size=VOCAB, mask_token_id=4, never_masked=(2, 3)
)
ROWS = 50


def row_of(*lengths: int, first: int = 10) -> Row:
    ids = np.concatenate([[2, *range(first, first + n - 3), 3, 3] for n in lengths])
    return Row(ids, lengths, tuple(n - 1 for n in lengths), tuple(1 for _ in lengths))


def make_row(row: Row, masking: Masking, form: RowFormat):
    """Returns the arrays of a batch of one row, without the axis of rows."""
    batch = make_batch([row], masking, form, random_bits((0,), [0], form.row_length))
    return {key: values[0] for key, values in batch.items()}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    rows = [encode_row(row_of(8 + i % 10, first=10 + i)) for i in range(ROWS)]
    paths = [str(folder / f"{i}.array_record") for i in range(2)]
    write_shard(paths[0], rows[:20])
    write_shard(paths[1], rows[20:])
    return paths


def batches(shards, count, *, first_row=0, host_rows=None, seed=0, phase=0, batch_size=8):
    rows = np.arange(batch_size) if host_rows is None else host_rows
    stream = train_batches(
        [RowSource("", 1, shards)],
        MASKING,
        RowFormat(LENGTH, 0),
        seed=seed,
        phase=phase,
        batch_size=batch_size,
        first_row=first_row,
        host_rows=rows,
        num_threads=2,
    )
    return [next(stream) for _ in range(count)]


def same(a, b) -> bool:
    return all(np.array_equal(a[key], b[key]) for key in a)


def original(batch) -> np.ndarray:
    """Ids before masking."""
    ids = batch["input_ids"].copy()
    for row, (positions, labels, weights) in enumerate(
        zip(batch["masked_positions"], batch["masked_labels"], batch["masked_weights"], strict=True)
    ):
        ids[row, positions[weights > 0]] = labels[weights > 0]
    return ids


def test_a_row_of_two_sequences_says_where_each_is():
    row = make_row(row_of(9, 6), MASKING, RowFormat(LENGTH, 0, 3))
    assert row["sequence_ids"].tolist() == [1] * 9 + [2] * 6 + [0] * 9
    assert row["position_ids"].tolist() == [*range(9), *range(6)] + [0] * 9
    assert row["sequence_starts"].tolist() == [0, 9, 0]
    assert row["token_type_ids"].tolist() == [0] * 8 + [1] + [0] * 5 + [1] + [0] * 9
    assert row["labels"].tolist() == [1, 1, -1]
    assert row["masked_weights"].sum() == 2
    assert (row["input_ids"][15:] == 0).all()


def test_labels_are_the_tokens_that_stood_there(shards):
    for batch in batches(shards, 3):
        for ids, sequence_ids in zip(original(batch), batch["sequence_ids"], strict=True):
            real = ids[sequence_ids > 0]
            assert real[0] == 2 and (real[-2:] == 3).all()
            assert (np.diff(real[1:-2]) == 1).all()


def test_an_epoch_holds_every_row_once_and_the_next_has_another_order_and_other_masks(shards):
    found = batches(shards, 4, batch_size=25)
    epochs = [np.concatenate([original(b)[:, 1] for b in found[i : i + 2]]) for i in (0, 2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [10 + i for i in range(ROWS)]
    assert (epochs[0] != epochs[1]).any()
    masks = [
        dict(
            zip(epoch, np.concatenate([b["masked_positions"] for b in pair]).tolist(), strict=True)
        )
        for epoch, pair in zip(epochs, (found[:2], found[2:]), strict=True)
    ]
    assert masks[0] != masks[1]


def test_reading_from_the_middle_gives_what_reading_through_gives(shards):
    through = batches(shards, 20)
    assert all(
        same(a, b) for a, b in zip(through[13:], batches(shards, 7, first_row=13 * 8), strict=True)
    )


def test_hosts_read_their_rows_of_the_same_global_batches(shards):
    whole = batches(shards, 10)
    for rows in (np.array([0, 1]), np.array([2, 5, 7])):
        for complete, part in zip(whole, batches(shards, 10, host_rows=rows), strict=True):
            assert same({key: value[rows] for key, value in complete.items()}, part)


def test_seed_and_phase_both_change_the_order(shards):
    (first,), (other_seed,), (other_phase,) = (
        batches(shards, 1, seed=s, phase=p) for s, p in ((0, 0), (1, 0), (0, 1))
    )
    assert not same(first, other_seed)
    assert not same(first, other_phase)


def sample(shards, max_rows, seed=0):
    return HeldOutRows(shards, MASKING, RowFormat(LENGTH, 0), seed=seed, max_rows=max_rows)


def held_out(shards, max_rows, batch_size=8):
    return list(sample(shards, max_rows).batches(batch_size, np.arange(batch_size)))


def first_tokens(batches):
    """The first word of every row, by which rows are told apart."""
    return [int(ids[1]) for b in batches for ids in original(b)[b["sequence_ids"].any(axis=1)]]


def test_evaluation_reads_each_row_once_and_masks_alike(shards):
    first, second = held_out(shards, 1000), held_out(shards, 1000)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    assert sum((b["labels"] >= 0).sum() for b in first) == ROWS
    assert sum((b["labels"] >= 0).sum() for b in held_out(shards, 13)) == 13


def test_evaluation_rows_are_a_fixed_random_sample(shards):
    rows = first_tokens(held_out(shards, 13))
    assert rows == sorted(set(rows)) and rows != [10 + i for i in range(13)]
    assert rows == first_tokens(held_out(shards, 13, batch_size=5))
    other = sample(shards, 13, seed=1).batches(13, np.arange(13))
    assert rows != first_tokens(other)
    assert first_tokens(held_out(shards, ROWS)) == [10 + i for i in range(ROWS)]
    some, every = held_out(shards, 13, batch_size=13)[0], held_out(shards, ROWS, batch_size=ROWS)[0]
    assert same(some, {key: values[np.array(rows) - 10] for key, values in every.items()})


def test_hosts_evaluate_their_rows_of_the_same_batches(shards):
    for rows in (np.array([0, 1, 2]), np.array([3, 5, 7])):
        local = sample(shards, 9).batches(8, rows)
        for complete, part in zip(held_out(shards, 9), local, strict=True):
            assert same({key: value[rows] for key, value in complete.items()}, part)


@pytest.mark.parametrize("max_rows", [13, 1000])
def test_the_unigram_entropy_is_that_of_the_evaluated_tokens(shards, max_rows):
    ids = np.concatenate([original(b).ravel() for b in held_out(shards, max_rows)])
    _, counts = np.unique(ids[~np.isin(ids, [0, 2, 3])], return_counts=True)
    shares = counts / counts.sum()
    expected = -(shares * np.log(shares)).sum()
    entropy = unigram_entropy(sample(shards, max_rows).token_counts.tolist())
    assert entropy == pytest.approx(expected, abs=1e-12)


def test_the_size_of_evaluation_batches_changes_no_row(shards):
    small, large = (
        np.concatenate([b["input_ids"] for b in held_out(shards, ROWS, size)])[:ROWS]
        for size in (8, 32)
    )
    np.testing.assert_array_equal(small, large)


def test_ids_beyond_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="contains the token id 204, but vocab_size=200"):
        make_row(row_of(18, first=190), MASKING, RowFormat(LENGTH, 0))


def test_a_row_longer_than_the_batch_is_refused():
    with pytest.raises(ValueError, match="A row has 30 tokens, but only 24 fit"):
        make_row(row_of(30), MASKING, RowFormat(LENGTH, 0))


def test_more_sequences_than_the_batch_has_places_are_refused():
    with pytest.raises(ValueError, match="A row has 2 sequences, but only 1 fit"):
        make_row(row_of(9, 6), MASKING, RowFormat(LENGTH, 0))


def test_a_row_is_the_same_in_a_batch_of_any_rows():
    form, packed = RowFormat(LENGTH, 0, 3), dataclasses.replace(MASKING, max_predictions=4)
    rows = [row_of(9, 6), row_of(20), row_of(5, 7, 8), row_of(24)]
    whole = make_batch(rows, packed, form, random_bits((0, 1), [3, 4, 5, 99], LENGTH))
    for place, (row, index) in enumerate(zip(rows, (3, 4, 5, 99), strict=True)):
        alone = make_batch([row], packed, form, random_bits((0, 1), [index], LENGTH))
        assert same(alone, {key: values[place : place + 1] for key, values in whole.items()})


def test_random_bits_depend_on_the_seed_and_the_row_alone():
    every = random_bits((5, 1), range(40), 9)
    assert every.shape == (40, 2, 9) and len(np.unique(every)) == every.size
    for rows in ([0], [7, 8, 9], [30, 2, 3, 4, 39, 0]):
        assert (random_bits((5, 1), rows, 9) == every[rows]).all()
    far = random_bits((5, 1), [1 << 60], 9)
    assert not np.isin(far, every).any() and not np.isin(random_bits((5, 2), [0], 9), every).any()


def test_the_next_token_of_each_sequence_is_predicted_and_nothing_is_masked():
    masking = dataclasses.replace(MASKING, predict="next_token", max_predictions=LENGTH)
    packed = row_of(9, 6)
    row = make_row(packed, masking, RowFormat(LENGTH, 0, 2))
    assert row["input_ids"][:15].tolist() == packed.input_ids.tolist()
    real = row["masked_weights"] > 0
    positions = row["masked_positions"][real]
    # All but the last of each sequence, each with the token behind it in its own sequence.
    assert positions.tolist() == [*range(8), *range(9, 14)]
    assert (row["masked_labels"][real] == row["input_ids"][positions + 1]).all()
    assert (row["sequence_ids"][positions] == row["sequence_ids"][positions + 1]).all()
    assert row["masked_positions"].shape == (LENGTH,)
