"""Encodes prepared training rows as records and stores the records in ArrayRecord files (shards).

A record is one row of one or more sequences, without padding and [MASK] tokens, little-endian:

    version uint8, bytes per token id uint8 (2 or 4), number of sequences K uint16,
    K x (length uint16, number of tokens with token type 0 uint16, label int16), all token ids.
"""

import contextlib
import dataclasses
import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from bertjax.base.files import brief, is_remote, writing

FORMAT_VERSION = 1
MAX_ROW_LENGTH = (1 << 16) - 1
NO_LABEL = -1
# One record per group, for random access. Compression would not shrink such short records, and
# would make writing three times as slow.
WRITER_OPTIONS = "group_size:1,uncompressed"
# Records are read one by one or in short ranges, for which reading ahead would be wasted.
_READER = {
    "options": "readahead_buffer_size:0,max_parallelism:0",
    "file_reader_buffer_size": 1 << 12,
}
_RECORDS_PER_READ = 1024
_HEAD = struct.Struct("<BBH")
_SEQUENCE = struct.Struct("<HHh")


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One unpadded row, of one or more sequences, of the prepared data set.

    Attributes:
        input_ids: token ids of all sequences, concatenated, with [CLS] and [SEP].
        lengths: number of tokens of each sequence.
        a_lengths: number of tokens with token type 0 in each sequence: the first segment with its
            special tokens, or all tokens if the model family has only one token type.
        labels: label of each sequence: 1 if its second segment is random (NSP; in SOP, only after a
            single sentence) or its segments are swapped (SOP), 0 for other sentence pairs, else -1.
    """

    input_ids: np.ndarray
    lengths: tuple[int, ...]
    a_lengths: tuple[int, ...]
    labels: tuple[int, ...]


def row_head(width: int, sequences: Sequence[tuple[int, int, int]]) -> bytes:
    """Encodes the header of a record, the bytes that precede the token ids.

    `width` is the number of bytes per token id, 2 or 4; a sequence is (number of tokens, number of
    tokens with token type 0, label or -1).
    """
    head = _HEAD.pack(FORMAT_VERSION, width, len(sequences))
    return head + b"".join([_SEQUENCE.pack(*sequence) for sequence in sequences])


def decode_row(record: bytes) -> Row:
    """Decodes a record; raises ValueError if it is not a complete one in this module's format."""
    try:
        version, width, count = _HEAD.unpack_from(record)
        if version != FORMAT_VERSION or width not in (2, 4) or count == 0:
            raise ValueError(
                f"version {version}, {width} bytes per token id, {count} sequences; expected "
                f"version {FORMAT_VERSION}, 2 or 4 bytes, at least one sequence"
            )
        fields = struct.unpack_from("<" + count * "HHh", record, _HEAD.size)
    except (struct.error, ValueError) as error:
        raise ValueError(
            f"A record of {len(record)} bytes is not a row of bertjax data ({error}): prepare "
            "the data again with this version."
        ) from error
    lengths = fields[::3]
    a_lengths = fields[1::3]
    labels = fields[2::3]
    start = _HEAD.size + count * _SEQUENCE.size
    is_complete = len(record) - start == width * sum(lengths)
    if not is_complete or any(map(operator.gt, a_lengths, lengths)):
        raise ValueError(
            f"A record of {len(record)} bytes is damaged, because its header contradicts its size "
            f"or itself: sequence lengths {brief(lengths, 60)}, numbers of tokens with token type "
            f"0 {brief(a_lengths, 60)}, {width} bytes per token id. Prepare the data again."
        )
    ids = np.frombuffer(record, dtype=f"<u{width}", offset=start).astype(np.int32)
    return Row(ids, lengths, a_lengths, labels)


def write_shard(path: str | Path, records: Iterable[bytes], *, unique: bool = False) -> int:
    """Writes `records` to the ArrayRecord file `path` atomically; returns the number of records.

    If there is none, no file is written. `unique` must be set if several processes may write the
    same file at the same time. Raises OSError if the disk is full or fails; the file is then not
    written.
    """
    written = 0
    with writing(path, unique=unique) as temporary:
        writer = _tried(path, ArrayRecordWriter, str(temporary), WRITER_OPTIONS)
        try:
            for record in records:
                _tried(path, writer.write, record)
                written += 1
        except BaseException:
            with contextlib.suppress(Exception):  # only the first error is reported
                writer.close()
            raise
        _tried(path, writer.close)
        if not written:
            temporary.unlink()
        elif (readable := count_or_none(temporary)) != written:
            raise _not_written(path, f"{readable} of {written} records are readable")
    return written


def _tried(path: str | Path, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:  # array_record raises RuntimeError for every failure
        raise _not_written(path, error) from error


def _not_written(path: str | Path, error: object) -> OSError:
    return OSError(
        f"Writing {path} failed ({error}). If the disk is full, free some space; then run the same "
        "command again. Finished chunks are kept."
    )


class ShardReader:
    """Reads single records of an ArrayRecord file, in the same time for a file of any size.

    `grain.sources.ArrayRecordDataSource` reads lists of indices, for which array_record 0.8
    allocates memory for all records of the file: of 1,500,000 records, it reads one in 16 ms. This
    class reads each record as a range of one, in 3 us. A missing or damaged file raises several
    types of exceptions.
    """

    def __init__(self, path: str | Path):
        self._reader = ArrayRecordReader(str(path), **_READER)
        if not self._reader.ok():
            self._reader.close()  # raises the error that the constructor met

    def __len__(self) -> int:
        return self._reader.num_records()

    def __getitem__(self, index: int) -> bytes:
        return self._reader.read(index, index + 1)[0]

    def read(self, start: int, end: int) -> list[bytes]:
        """Returns the records from `start` to `end` - 1."""
        return self._reader.read(start, end)

    def close(self) -> None:
        """Closes the file; raises the error of an earlier call, if there was one."""
        self._reader.close()


def read_shard(path: str | Path) -> Iterator[bytes]:
    """Yields all records of an ArrayRecord file; raises ValueError if it is missing or damaged."""
    try:
        reader = ShardReader(path)
        count = len(reader)
        for start in range(0, count, _RECORDS_PER_READ):
            yield from reader.read(start, min(count, start + _RECORDS_PER_READ))
        reader.close()
    except (RuntimeError, ValueError, IndexError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read ({brief(error, 200)}): delete this file, and run the same "
            "command again, which writes it again."
        ) from error


def count_or_none(path: str | Path) -> int | None:
    """Returns the number of records in a shard, or None if the shard is missing or incomplete."""
    try:
        reader = ShardReader(path)
        count = len(reader)
        reader.close()
    except Exception:  # array_record raises several kinds
        return None
    return count


def has_records(path: Path, records: int) -> bool:
    """Returns whether the shard `path` has `records` records; in a bucket, whether it exists."""
    if is_remote(path):
        return path.exists()
    return count_or_none(path) == records
