"""Pretraining batches: prepared records, shuffled globally, masked, and split over the hosts.

Every training row is a function of the seed, the phase, and the index of the row among all rows
that the phase reads. The state of the input pipeline is therefore one row index, and a global batch
(the batch of all hosts together) is the same for any number of hosts.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from bertjax.data.batches.batch import Batch, layout, pad_to, stack
from bertjax.data.batches.masking import Masking, choose_positions, corrupt
from bertjax.data.batches.shard_source import Rows
from bertjax.data.metadata import unigram_entropy
from bertjax.data.records import NO_LABEL, Row

ROWS_PER_READ = 1024


class RowFormat(NamedTuple):
    """Format of rows: tokens per row, id of the padding token, and maximum sequences per row."""

    row_length: int
    pad_token_id: int
    max_sequences: int = 1


def make_row(row: Row, masking: Masking, form: RowFormat, rng: np.random.Generator) -> Batch:
    """Converts a prepared row to a row of a batch (see `batch.py`), with masks drawn from `rng`.

    For next-token prediction, `masked_positions` are all positions except the last of each
    sequence, and `masked_labels` are the ids of the tokens at the following positions.

    Raises:
        ValueError: a token id is not below the vocabulary size, which would make the loss NaN; or
            `row` has more tokens or sequences than `form` allows, or more positions to predict than
            `masking.max_predictions`.
    """
    ids = row.input_ids.astype(np.int32)
    if ids.max(initial=0) >= masking.vocab_size:
        raise ValueError(
            f"A record contains the token id {ids.max()}, but vocab_size={masking.vocab_size}: the "
            "data was prepared with another tokenizer; prepare it again."
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


class _Rows(grain.MapDataset):
    """Dataset of masked rows: with `shuffle`, endless and shuffled anew in every epoch.

    Without `shuffle`, the dataset is one epoch in the order of the records.
    """

    def __init__(self, paths, masking, form, seed, *, shuffle):
        source: Any = Rows(paths)
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
        return [
            make_row(row, self._masking, self._form, np.random.default_rng((*self._seed, index)))
            for index, row in zip(indices, self.unmasked(indices), strict=True)
        ]

    def unmasked(self, indices: Sequence[int]) -> Iterator[Row]:
        rows: Any = self._parent._getitems(indices)
        return iter(rows)


class _HostBatches(grain.MapDataset):
    """Dataset whose element i holds this host's rows of the global batch `first + i`.

    This host's rows of global batch b are the rows b * batch_size + r for each r in `host_rows`.
    """

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
    """Returns an endless iterator over this host's rows of a phase's batches, from `first_row` on.

    Args:
        paths: paths of the ArrayRecord shards.
        masking, form: the masking settings and the format of the rows.
        seed: seed that, together with `phase`, determines the shuffling and the masks.
        phase: index of the phase in the run.
        batch_size: number of rows per global batch.
        first_row: index, among all rows that the phase reads, of the first row to read; a multiple
            of `batch_size`.
        host_rows: indices, in each global batch, of the rows that this host needs.
        num_threads: number of threads that read batches.
    """
    rows = _Rows(paths, masking, form, (seed, phase), shuffle=True)
    batches = _HostBatches(rows, batch_size, host_rows, first_row // batch_size)
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
    return iter(batches.to_iter_dataset(options))


class HeldOutRows:
    """The rows of an evaluation: a fixed random sample of the held-out rows.

    The sample has `max_rows` rows, drawn with `seed` and without replacement, in the order of the
    records; if there are at most `max_rows` records, all records are used. The masks of a row
    depend only on `seed` and on the index of the row's record.
    """

    def __init__(
        self, paths: Sequence[str], masking: Masking, form: RowFormat, *, seed: int, max_rows: int
    ):
        self._rows = _Rows(paths, masking, form, (seed,), shuffle=False)
        self._masking = masking
        count = len(self._rows)
        self._sample = np.arange(count)
        if count > max_rows:
            rng = np.random.default_rng((seed, count, max_rows))
            self._sample = np.sort(rng.choice(count, max_rows, replace=False))

    def batches(self, batch_size: int, host_rows: np.ndarray) -> Iterator[Batch]:
        """Yields this host's rows of every batch; rows of padding fill up the last batch."""
        for start in range(0, len(self._sample), batch_size):
            present = self._sample[start + host_rows[start + host_rows < len(self._sample)]]
            # A host without rows in the last batch reads one row to know the shapes.
            rows = self._rows._getitems((present if len(present) else self._sample[:1]).tolist())
            # Empty rows have no weight in any loss.
            empty = {key: np.full_like(x, -(key == "labels")) for key, x in rows[0].items()}
            missing = len(host_rows) - len(present)
            yield stack([*rows[: len(present)], *[empty] * missing])

    @functools.cached_property
    def unigram_entropy(self) -> float:
        """Entropy, in nats, of the token frequencies in the held-out rows that are evaluated.

        [CLS] and [SEP] are not counted. A model that ignores the context cannot have a loss below
        the unigram entropy. Every host reads all these rows, not only its share of them.
        """
        counts = np.zeros(self._masking.vocab_size, np.int64)
        for start in range(0, len(self._sample), ROWS_PER_READ):
            for row in self._rows.unmasked(self._sample[start : start + ROWS_PER_READ].tolist()):
                counts += np.bincount(row.input_ids, minlength=len(counts))
        return unigram_entropy(counts[self._masking.maskable].tolist())
