"""Prepared records to batches: global shuffle, masking, and exactly the rows that a host needs.

Everything is a function of (seed, phase, global row): the state of the input is that row, and a
batch is the same for any number of hosts.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from bertjax.data.batches.batch import Batch, layout, pad_to, stack
from bertjax.data.batches.masking import Masking, choose_positions, corrupt
from bertjax.data.records import NO_LABEL, Row, decode_row


class RowFormat(NamedTuple):
    """Tokens of a row, what fills it up, and how many sequences it may hold."""

    row_length: int
    pad_token_id: int
    max_sequences: int = 1


def make_row(row: Row, masking: Masking, form: RowFormat, rng: np.random.Generator) -> Batch:
    """One record as one row of the batch contract, masked with `rng`.

    Where the next token is predicted, `masked_positions` are all but the last of each sequence, and
    `masked_labels` the tokens behind them.

    Raises:
        ValueError: an id lies beyond the vocabulary, which a model would turn into nan; or the row
            does not fit its format.
    """
    ids = row.input_ids.astype(np.int32)
    if ids.max(initial=0) >= masking.vocab_size:
        raise ValueError(
            f"A record holds the id {ids.max()}, but vocab_size={masking.vocab_size}: the data was "
            "prepared with another tokenizer; prepare it again."
        )
    next_token = masking.predict == "next_token"
    corrupted, positions, start = ids.copy(), [], 0
    token_type_ids = np.zeros(len(ids), np.int32)
    for length, a_length in zip(row.lengths, row.a_lengths, strict=True):
        span = slice(start, start + length)
        if next_token:
            chosen = np.arange(length - 1)
        else:
            free = masking.max_predictions - sum(map(len, positions))
            chosen = choose_positions(ids[span], masking, free, rng)
            corrupted[span] = corrupt(ids[span], chosen, masking, rng)
        token_type_ids[start + a_length : start + length] = 1
        positions.append(chosen + start)
        start += length
    masked = np.concatenate(positions)
    labels = ids[masked + 1] if next_token else ids[masked]
    size = masking.max_predictions
    return {
        "input_ids": pad_to(corrupted, form.row_length, form.pad_token_id),
        "token_type_ids": pad_to(token_type_ids, form.row_length, 0),
        **layout(row.lengths, form.row_length, form.max_sequences),
        "masked_positions": pad_to(masked, size, 0),
        "masked_labels": pad_to(labels, size, 0),
        "masked_weights": pad_to(np.ones(len(masked)), size, 0).astype(np.float32),
        "labels": pad_to(row.labels, form.max_sequences, NO_LABEL),
    }


def empty_row(like: Batch) -> Batch:
    """A row without sequences, which no loss counts: fills up the last batch of an evaluation."""
    return {key: np.full_like(x, -1 if key == "labels" else 0) for key, x in like.items()}


class _Rows(grain.MapDataset):
    """Records, shuffled anew each epoch, as masked rows; endless."""

    def __init__(self, paths, masking, form, seed, *, shuffle):
        source: Any = grain.sources.ArrayRecordDataSource(list(paths))
        records = grain.MapDataset.source(source)
        if shuffle:
            shuffle_seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
            records = records.shuffle(seed=shuffle_seed).repeat()
        super().__init__(records)
        self._seed, self._masking, self._form = tuple(seed), masking, form

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Batch]:
        records: Any = self._parent._getitems(indices)
        return [
            make_row(
                decode_row(record),
                self._masking,
                self._form,
                np.random.default_rng((*self._seed, index)),
            )
            for index, record in zip(indices, records, strict=True)
        ]


class _HostBatches(grain.MapDataset):
    """Batch i is the parent's rows i * batch_size + r for each r of `host_rows`."""

    def __init__(self, parent, batch_size: int, host_rows: np.ndarray, first: int):
        super().__init__(parent)
        self._batch_size, self._host_rows, self._first = batch_size, host_rows, first

    def __len__(self) -> int:
        return min(len(self._parent) // self._batch_size, sys.maxsize) - self._first

    def __getitem__(self, index: Any) -> Any:
        start = (self._first + index) * self._batch_size
        rows: Any = self._parent._getitems([start + int(row) for row in self._host_rows])
        return stack(rows)


def train_batches(
    paths: Sequence[str],
    masking: Masking,
    form: RowFormat,
    *,
    seed: int,
    phase: int,
    batch_size: int,
    first_row: int,
    host_rows: np.ndarray,
    num_threads: int,
) -> Iterator[Batch]:
    """Endless batches of one phase, from the global row `first_row` on, read ahead by threads.

    Args:
        paths: ArrayRecord shards.
        first_row: rows of the phase that came before, a multiple of `batch_size`.
        host_rows: which rows of each global batch this host needs.
    """
    rows = _Rows(paths, masking, form, (seed, phase), shuffle=True)
    batches = _HostBatches(rows, batch_size, host_rows, first_row // batch_size)
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
    return iter(batches.to_iter_dataset(options))


def eval_batches(
    paths: Sequence[str],
    masking: Masking,
    form: RowFormat,
    *,
    seed: int,
    batch_size: int,
    max_rows: int,
    host_rows: np.ndarray,
) -> Iterator[Batch]:
    """The first `max_rows` held-out rows, masked alike each time; the last batch is filled up."""
    rows = _Rows(paths, masking, form, (seed,), shuffle=False)
    count = min(len(rows), max_rows)
    for start in range(0, count, batch_size):
        wanted = [start + int(row) for row in host_rows]
        found = rows._getitems([row for row in wanted if row < count] or [0])
        empty = empty_row(found[0])
        at = {row: content for row, content in zip(wanted, found, strict=False) if row < count}
        yield stack([at.get(row, empty) for row in wanted])
