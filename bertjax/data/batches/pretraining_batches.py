"""Pretraining batches: prepared records, shuffled globally, masked, and split over the hosts.

Every training row is a function of the seed, the phase, and the index of the row among all rows
that the phase reads; in a mixture, the weights of the sources determine the source of each row. The
state of the input pipeline is therefore one row index, and a global batch (the batch of all hosts
together) is the same for any number of hosts.
"""

import bisect
import dataclasses
import functools
import itertools
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex

import grain
import numpy as np

from bertjax.base import addresses
from bertjax.base.files import brief
from bertjax.data.batches.batch import Batch, PaddedRows, ranks
from bertjax.data.batches.masking import Masking, choose_tokens, random_bits, replacements
from bertjax.data.metadata import RowSource
from bertjax.data.mixture import source_of_row
from bertjax.data.records import NO_LABEL, Row, ShardReader, decode_row

# How array_record's messages name a failed call of the operating system: "pread() failed: ...".
_FAILED_CALL = re.compile(r"\w\(\) failed: ")
# Files that a run opens besides the shards: checkpoints, logs, libraries, connections.
_OTHER_FILES = 128
_LEAST_SHARDS = 16
ROWS_PER_READ = 1024
# Rows that are masked at once: enough to amortise numpy's calls, few enough for the caches.
ROWS_PER_BLOCK = 128


class Rows:
    """Data source of the rows of the ArrayRecord shards `paths`, with indices across all shards.

    Raises:
        OSError: a shard is missing or cannot be read.
        ValueError: a shard or one of its records is damaged.
    """

    def __init__(self, paths: Sequence[str]):
        self._shards = [str(path) for path in paths]
        # The readers of the shards that are open, the least recently opened one first.
        self._readers: dict[int, ShardReader] = {}
        self._most_open = files_to_keep_open(len(self._shards))
        self._lock = threading.Lock()
        self._counts: list[int] = []
        for shard in range(len(self._shards)):
            try:
                self._counts.append(len(self._reader(shard)))
            except Exception as error:  # array_record raises several kinds
                raise self._explained(shard, None, error) from error
        self._ends = list(itertools.accumulate(self._counts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: SupportsIndex) -> Row:
        return self._getitems([int(index)])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Row]:
        """Reads several rows; Grain calls this method, if there is one, for batches of rows."""
        return [self._row(index) for index in indices]

    def _row(self, index: int) -> Row:
        shard = bisect.bisect_right(self._ends, index)
        position = index - self._ends[shard] + self._counts[shard]
        try:
            return decode_row(self._reader(shard)[position])
        except Exception as error:
            raise self._explained(shard, position, error) from error

    def _reader(self, shard: int) -> ShardReader:
        reader = self._readers.get(shard)
        if reader is None:
            reader = ShardReader(self._shards[shard])
            with self._lock:
                while len(self._readers) >= self._most_open:
                    # It is closed when the last thread that reads from it drops it.
                    del self._readers[next(iter(self._readers))]
                self._readers[shard] = reader
        return reader

    def _explained(self, shard: int, row: int | None, error: Exception) -> Exception:
        reason = brief(error, 200)
        path = self._shards[shard]
        has_failed = _FAILED_CALL.search(str(error))
        try:
            with addresses.naming_bucket_errors(path), addresses.place(path).open("rb") as file:
                while file.read(1 << 22):
                    pass
        except OSError as failure:
            has_failed = True
            reason = brief(failure.strerror or failure, 200)
        if has_failed:
            return OSError(
                f"{path} cannot be read ({reason}): make it readable, then run the same command "
                "again."
            )
        where = path
        if row is not None:
            where = f"Row {row} of {path}"
        return ValueError(
            f"{where} cannot be read, because it is damaged ({reason}): run the prepare command "
            "again, which writes it again."
        )


def files_to_keep_open(wanted: int) -> int:
    """Returns how many of `wanted` files may be open at a time, at least _LEAST_SHARDS.

    Raises the limit of open files (`ulimit -n`) if necessary, as far as the system allows.
    """
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    needed = wanted + _OTHER_FILES
    if soft == unlimited:
        return wanted
    if soft < needed:
        soft = needed
        if hard != unlimited:
            soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(wanted, soft - _OTHER_FILES), _LEAST_SHARDS)


class RowFormat(NamedTuple):
    """Tokens per row (padding included), the id of the padding token, and sequences per row."""

    row_length: int
    pad_token_id: int
    max_sequences: int = 1


def make_batch(rows: Sequence[Row], masking: Masking, form: RowFormat, bits: np.ndarray) -> Batch:
    """Converts B prepared rows to a batch (see `batch.py`), with masks drawn from random bits.

    For next-token prediction, `masked_positions` are all positions except the last of each
    sequence, and `masked_labels` are the ids of the tokens at the following positions. `bits` is
    uint64 [B, 2, row_length] (see `random_bits`).

    Raises:
        ValueError: a token id is not below the vocabulary size, which would make the loss NaN; or a
            row has more tokens, sequences or positions to predict than fit.
    """
    ids = np.concatenate([row.input_ids for row in rows]).astype(np.int32)
    highest = ids.max(initial=0)
    if highest >= masking.vocab_size:
        raise ValueError(
            f"A record contains the token id {highest}, but vocab_size={masking.vocab_size}: the "
            "data was prepared with another tokenizer; prepare it again."
        )
    lengths = np.concatenate([row.lengths for row in rows])
    a_lengths = np.concatenate([row.a_lengths for row in rows])
    sequence_counts = [len(row.lengths) for row in rows]
    token_counts = [len(row.input_ids) for row in rows]
    sequences = PaddedRows(sequence_counts, form.max_sequences, "sequences")
    tokens = PaddedRows(token_counts, form.row_length, "tokens")
    positions = ranks(lengths)
    if masking.predict == "next_token":
        last = np.repeat(lengths - 1, lengths)
        chosen = np.flatnonzero(positions < last)
        corrupted = ids
        targets = ids[chosen + 1]
    else:
        order = bits[:, 0]
        draw = bits[:, 1]
        chosen = choose_tokens(ids, lengths, sequences.rows, order[tokens.used], masking)
        targets = ids[chosen]
        draw_of_chosen = draw[tokens.used][chosen]
        corrupted = ids.copy()
        corrupted[chosen] = replacements(targets, draw_of_chosen, masking)
    counts = np.bincount(tokens.rows[chosen], minlength=len(rows))
    starts = np.cumsum(lengths) - lengths
    labels = np.concatenate([row.labels for row in rows])
    predictions = PaddedRows(counts, masking.max_predictions, "tokens to predict")
    return {
        "input_ids": tokens.spread(corrupted, form.pad_token_id),
        "token_type_ids": tokens.spread(positions >= np.repeat(a_lengths, lengths)),
        "position_ids": tokens.spread(positions),
        "sequence_ids": tokens.spread(np.repeat(sequences.columns + 1, lengths)),
        "sequence_starts": sequences.spread(tokens.columns[starts]),
        "masked_positions": predictions.spread(tokens.columns[chosen]),
        "masked_labels": predictions.spread(targets),
        "masked_weights": predictions.used.astype(np.float32),
        "labels": sequences.spread(labels, NO_LABEL),
    }


class _DrawByWeights(grain.transforms.DatasetSelectionMap):
    """Map from the index of a row in a mixture to (source, index of the row in the source)."""

    def __init__(self, weights: Sequence[int]):
        self._weights = tuple(weights)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> tuple[int, int]:
        return source_of_row(index, self._weights)


def _endless_rows(sources: Sequence[RowSource], seed: Sequence[int]) -> grain.MapDataset:
    """Returns the rows of all sources, each source endless and shuffled anew in every epoch."""
    rows = []
    for number, source in enumerate(sources):
        # A single source is shuffled as before there were mixtures, so that old runs can resume.
        seed_of_source = seed
        if len(sources) > 1:
            seed_of_source = (*seed, number)
        (shuffle_seed,) = np.random.SeedSequence(seed_of_source).generate_state(1).tolist()
        shards: Any = Rows(source.paths)
        once = grain.MapDataset.source(shards).shuffle(seed=shuffle_seed)
        rows.append(once.repeat())
    if len(rows) == 1:
        return rows[0]
    weights = [source.weight for source in sources]
    return grain.MapDataset.select_from_datasets(rows, _DrawByWeights(weights))


@dataclasses.dataclass
class _MaskedRows:
    """Rows of prepared data, masked; the masks of a row depend on `seed` and on its index."""

    rows: grain.MapDataset
    masking: Masking
    form: RowFormat
    seed: Sequence[int]

    def read(self, indices: Sequence[int]) -> Any:
        return self.rows._getitems(indices)

    def batch(self, indices: Sequence[int]) -> Batch:
        blocks = []
        for start in range(0, len(indices), ROWS_PER_BLOCK):
            block = indices[start : start + ROWS_PER_BLOCK]
            bits = random_bits(self.seed, block, self.form.row_length)
            rows = self.read(block)
            blocks.append(make_batch(rows, self.masking, self.form, bits))
        batch = {}
        for key in blocks[0]:
            batch[key] = np.concatenate([block[key] for block in blocks])
        return batch


class _HostBatches(grain.MapDataset):
    """Dataset of the rows `host_rows` of each global batch, which begin at row `first_row`."""

    def __init__(self, rows: _MaskedRows, batch_size: int, host_rows: np.ndarray, first_row: int):
        super().__init__(rows.rows)
        self._rows = rows
        self._batch_size = batch_size
        self._host_rows = host_rows
        self._first_row = first_row

    def __len__(self) -> int:
        rows = min(len(self._parent), sys.maxsize)
        return (rows - self._first_row) // self._batch_size

    def __getitem__(self, index: Any) -> Any:
        start = self._first_row + index * self._batch_size
        return self._rows.batch([start + row for row in self._host_rows.tolist()])


def train_batches(
    sources: Sequence[RowSource],
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
        seed: determines the shuffling and the masks, together with `phase`.
        phase: index of the phase in the run.
        batch_size: number of rows per global batch.
        first_row: index of the first row to read, among all rows that the phase reads.
        host_rows: int [rows of this host], their indices in each global batch.
    """
    seeds = (seed, phase)
    rows = _MaskedRows(_endless_rows(sources, seeds), masking, form, seeds)
    batches = _HostBatches(rows, batch_size, host_rows, first_row)
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
    return iter(batches.to_iter_dataset(options))


class HeldOutRows:
    """The rows of one source for an evaluation: a fixed random sample of its held-out rows.

    The sample has at most `max_rows` rows of the shards `paths`, drawn with `seed` without
    replacement, in the order of the records. The masks of a row depend only on `seed` and on the
    index of the row's record.
    """

    def __init__(
        self, paths: Sequence[str], masking: Masking, form: RowFormat, *, seed: int, max_rows: int
    ):
        shards: Any = Rows(paths)
        rows = grain.MapDataset.source(shards)
        self._rows = _MaskedRows(rows, masking, form, (seed,))
        count = len(self._rows.rows)
        self._sample = np.arange(count)
        if count > max_rows:
            rng = np.random.default_rng((seed, count, max_rows))
            self._sample = np.sort(rng.choice(count, max_rows, replace=False))

    def __len__(self) -> int:
        return len(self._sample)

    def batches(self, batch_size: int, host_rows: np.ndarray) -> Iterator[Batch]:
        """Yields this host's rows of every batch; rows of padding fill up the last batch.

        `host_rows`, int [rows of this host], are their indices in each global batch.
        """
        for start in range(0, len(self._sample), batch_size):
            places = start + host_rows
            present = self._sample[places[places < len(self._sample)]]
            # A host without rows in the last batch reads one row to know the shapes.
            batch = self._rows.batch(present.tolist() or [int(self._sample[0])])
            # Empty rows have no weight in any loss.
            for key, values in batch.items():
                fill = NO_LABEL if key == "labels" else 0
                shape = (len(host_rows), *values.shape[1:])
                padded = np.full(shape, fill, values.dtype)
                padded[: len(present)] = values[: len(present)]
                batch[key] = padded
            yield batch

    @functools.cached_property
    def token_counts(self) -> np.ndarray:
        """How often each maskable token occurs in all hosts' rows, int64 [maskable tokens]."""
        masking = self._rows.masking
        counts = np.zeros(masking.vocab_size, np.int64)
        for start in range(0, len(self._sample), ROWS_PER_READ):
            indices = self._sample[start : start + ROWS_PER_READ]
            for row in self._rows.read(indices.tolist()):
                counts += np.bincount(row.input_ids, minlength=len(counts))
        return counts[masking.maskable]
