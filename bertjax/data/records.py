"""Files of prepared rows: ArrayRecord shards and the `metadata.json` that makes them one data set.

A record is a row of one or several sequences, unpadded and unmasked, little-endian:

    version uint8, bytes per id uint8 (2 or 4), sequences K uint16,
    K x (length uint16, tokens of type 0 uint16, label int16), then all token ids.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from bertjax.data.preparation.objectives import OBJECTIVES, ObjectiveName
from bertjax.data.storage import is_remote, place, written_locally

FORMAT_VERSION = 1
METADATA_FILE = "metadata.json"
MAX_ROW_LENGTH = (1 << 16) - 1
NO_LABEL = -1
# One record a group, for random access. Records this short do not shrink when compressed alone,
# and writing them takes three times as long.
WRITER_OPTIONS = "group_size:1,uncompressed"
_HEAD = struct.Struct("<BBH")
_SEQUENCE = struct.Struct("<HHh")


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One row of the data set.

    Attributes:
        input_ids: ids of all sequences one after the other, each with its [CLS] and [SEP].
        lengths: tokens of each sequence.
        a_lengths: tokens of type 0 of each: the first segment with its special tokens, or all of
            them where the family has no other type. What follows is of type 1.
        labels: class of each sequence (NSP 1 = random, SOP 1 = swapped), -1 = none.
    """

    input_ids: np.ndarray
    lengths: tuple[int, ...]
    a_lengths: tuple[int, ...]
    labels: tuple[int, ...]


def encode_row(row: Row) -> bytes:
    """The bytes of a row.

    Raises:
        ValueError: its lengths do not fit its ids, or ids do not fit 32 bits.
    """
    ids = np.asarray(row.input_ids)
    if not len(row.lengths) == len(row.a_lengths) == len(row.labels) > 0:
        raise ValueError(
            f"A row needs one length, a_length and label a sequence, got {row.lengths}, "
            f"{row.a_lengths} and {row.labels}."
        )
    if sum(row.lengths) != ids.size or ids.size > MAX_ROW_LENGTH:
        raise ValueError(
            f"Lengths {row.lengths} do not add up to {ids.size} ids (at most {MAX_ROW_LENGTH})."
        )
    if ids.size and (ids.min() < 0 or ids.max() >= 1 << 32):
        raise ValueError(f"Token ids {ids.min()}..{ids.max()} do not fit 32 bits.")
    width = 2 if ids.size == 0 or ids.max() < 1 << 16 else 4
    sequences = list(zip(row.lengths, row.a_lengths, row.labels, strict=True))
    return row_head(width, sequences) + ids.astype(f"<u{width}").tobytes()


def row_head(width: int, sequences: Sequence[tuple[int, int, int]]) -> bytes:
    """What stands before the ids of a row.

    Args:
        width: bytes of an id, 2 or 4.
        sequences: length, a_length and label of each.
    """
    head = _HEAD.pack(FORMAT_VERSION, width, len(sequences))
    return head + b"".join([_SEQUENCE.pack(*sequence) for sequence in sequences])


def decode_row(record: bytes) -> Row:
    """Reads what `encode_row` wrote.

    Raises:
        ValueError: the bytes are no row of this format.
    """
    try:
        version, width, count = _HEAD.unpack_from(record)
        if version != FORMAT_VERSION or width not in (2, 4) or count == 0:
            raise ValueError(
                f"version {version}, {width} bytes per id, {count} sequences; expected "
                f"version {FORMAT_VERSION}, 2 or 4 bytes, at least one sequence"
            )
        fields = struct.unpack_from("<" + count * "HHh", record, _HEAD.size)
    except (struct.error, ValueError) as error:
        raise ValueError(
            f"A record of {len(record)} bytes is not a row of bertjax data ({error}): prepare "
            "the data again with this version."
        ) from error
    lengths, a_lengths, labels = fields[::3], fields[1::3], fields[2::3]
    start = _HEAD.size + count * _SEQUENCE.size
    if len(record) - start != width * sum(lengths) or any(
        a > length for a, length in zip(a_lengths, lengths, strict=True)
    ):
        raise ValueError(
            f"A record of {len(record)} bytes announces sequences of {lengths} ids with "
            f"{a_lengths} of type 0, {width} bytes an id: it is damaged; prepare the data again."
        )
    ids = np.frombuffer(record, dtype=f"<u{width}", offset=start).astype(np.int32)
    return Row(ids, lengths, a_lengths, labels)


def write_shard(path: str | Path, records: Iterable[bytes]) -> int:
    """Writes records under a temporary name, checks their number, then gives the file its name.

    Returns the number of records; without any, there is no file.

    Raises:
        OSError: the disk is full or fails; nothing is left under `path`.
    """
    with written_locally(path) as local:
        return _write_shard(local, records)


def _write_shard(path: Path, records: Iterable[bytes]) -> int:
    temporary = path.with_name(path.name + ".tmp")
    written = 0
    try:
        with _ShardWriter(path, temporary) as writer:
            for record in records:
                writer.write(record)
                written += 1
        if written:
            found = count_or_none(temporary)
            if found != written:
                raise OSError(_not_written(path, f"{found} of {written} records arrived"))
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return written


class _ShardWriter:
    """An ArrayRecord writer whose failures name the file and what to do."""

    def __init__(self, path: Path, temporary: Path):
        self._path = path
        with self._explained():
            self._writer = ArrayRecordWriter(str(temporary), WRITER_OPTIONS)

    def write(self, record: bytes) -> None:
        try:
            self._writer.write(record)
        except Exception as error:
            raise OSError(_not_written(self._path, error)) from error

    def __enter__(self) -> "_ShardWriter":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            with self._explained():
                self._writer.close()
        else:
            with contextlib.suppress(Exception):  # the first error is the one to report
                self._writer.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # array_record raises RuntimeError for whatever happened
            raise OSError(_not_written(self._path, error)) from error


def _not_written(path: Path, error: object) -> str:
    return (
        f"Writing {path} failed ({error}): is the disk full? Make room, then run the same command "
        "again; finished chunks are kept."
    )


def count_records(path: str | Path) -> int:
    """Number of records in a shard.

    Raises:
        ValueError: the file is no whole shard.
    """
    try:
        reader = ArrayRecordReader(str(path))
        count = reader.num_records()
        reader.close()
    except Exception as error:
        raise ValueError(f"{path} is not a whole ArrayRecord shard: {error}") from error
    return count


def count_or_none(path: str | Path) -> int | None:
    """Number of records in a shard, None if it is missing or no whole shard."""
    try:
        return count_records(path)
    except ValueError:
        return None


def has_records(path: Path, records: int) -> bool:
    """Whether a shard is there with so many records; in a bucket, whether it is there."""
    return path.exists() if is_remote(path) else count_or_none(path) == records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of records."""

    file: str
    records: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthSummary:
    """What one split holds at one length.

    Attributes:
        shards: its files, in order; a chunk that gave no records has none.
        records: rows in all shards.
        sequences: sequences in all rows.
        tokens: tokens in all rows, [CLS] and [SEP] included.
        labels: sequences by label, "0", "1" or "-1".
        random_from_same_document: pairs whose random segment had to come from their own
            document, because their chunk held no other.
        length_counts: sequences by their length, from 0 to the longest allowed.
    """

    shards: list[Shard]
    records: int
    sequences: int
    tokens: int
    labels: dict[str, int]
    random_from_same_document: int
    length_counts: list[int]

    @property
    def attended(self) -> float:
        """How many tokens a token attends to on average: E[length^2] / E[length]."""
        squares = sum(n * n * count for n, count in enumerate(self.length_counts))
        return squares / max(self.tokens, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """What "train" or "eval" holds.

    Attributes:
        documents: documents with text.
        sentences: their sentences.
        text_bytes: UTF-8 bytes of the documents as read.
        text_tokens: token ids of the text, before examples were made of it.
        unigram_entropy_nats: entropy of the tokens of the text; what a model that ignores
            context can reach. None for "train", where it is not counted.
        lengths: by max_length, written as a string.
    """

    documents: int
    sentences: int
    text_bytes: int
    text_tokens: int
    unigram_entropy_nats: float | None
    lengths: dict[str, LengthSummary]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """Everything about a prepared directory; `metadata.json` holds the same.

    Attributes:
        settings: the flags that decided the content.
        inputs: files with sizes and hashes, packages with versions.
        tokenizer_fingerprint: `tokenizer.fingerprint`; the tokenizer lies in the same directory.
        vocab_size: entries of its vocabulary.
        objective: "nsp", "sop", "mlm" or "full_sentences".
        max_lengths: lengths that were prepared, ascending.
        chunks: pieces that the input was cut into.
        counts: what was left out or cut: "documents_without_text", "long_lines_cut", ...
        splits: "train" and, if any document was held out, "eval".
    """

    settings: dict[str, Any]
    inputs: list[list]
    tokenizer_fingerprint: str
    vocab_size: int
    objective: ObjectiveName
    max_lengths: list[int]
    chunks: int
    counts: dict[str, int]
    splits: dict[str, SplitSummary]
    format_version: int = FORMAT_VERSION

    @property
    def max_sequences(self) -> int:
        """Sequences of a row at most: one, where rows are not packed."""
        return self.settings["max_sequences"] if self.settings.get("pack") else 1

    @property
    def has_sentence_pairs(self) -> bool:
        """Whether the sequences are sentence pairs with a label to predict."""
        return OBJECTIVES[self.objective].has_sentence_pairs

    def to_json(self) -> str:
        """JSON, with lists of numbers on one line."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        return re.sub(r"\[[\d,\s]*\]", lambda match: " ".join(match[0].split()), text) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Metadata":
        """Reads `to_json`.

        Raises:
            ValueError: it is of another version, or no such JSON.
        """
        fields = json.loads(text)
        version = fields.get("format_version") if isinstance(fields, dict) else None
        if version != FORMAT_VERSION:
            raise ValueError(
                f"the format is {version}, this bertjax reads {FORMAT_VERSION}: prepare it again"
            )
        fields["splits"] = {
            split: SplitSummary(
                **{
                    **summary,
                    "lengths": {
                        length: LengthSummary(
                            **{**content, "shards": [Shard(**s) for s in content["shards"]]}
                        )
                        for length, content in summary["lengths"].items()
                    },
                }
            )
            for split, summary in fields["splits"].items()
        }
        return cls(**fields)


def read_metadata(directory: str | Path) -> Metadata:
    """The metadata of a prepared directory, its shards unchecked.

    Raises:
        FileNotFoundError: there is none, so the directory is half-written or something else.
        ValueError: it cannot be read.
    """
    path = place(directory) / METADATA_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} holds no {METADATA_FILE}: it is half-written, or not made by "
            "bertjax.prepare. Run its prepare command again; it goes on where it stopped."
        )
    try:
        return Metadata.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def open_prepared(directory: str | Path) -> Metadata:
    """The metadata of a prepared directory whose shards are all there and whole.

    Raises:
        FileNotFoundError: there is no metadata.json, or shards are missing.
        ValueError: the metadata cannot be read, or shards hold other numbers of records.
    """
    metadata = read_metadata(directory)
    missing: list[str] = []
    wrong: list[str] = []
    for summary in metadata.splits.values():
        for content in summary.lengths.values():
            for shard in content.shards:
                path = place(directory) / shard.file
                if not path.exists():
                    missing.append(shard.file)
                elif not has_records(path, shard.records):
                    wrong.append(f"{shard.file} ({count_or_none(path)} of {shard.records})")
    remedy = "Copy the directory again, or prepare it again with --overwrite."
    if missing:
        raise FileNotFoundError(
            f"{directory} lacks {len(missing)} of its shards: {missing[:5]}. {remedy}"
        )
    if wrong:
        raise ValueError(
            f"{directory} has {len(wrong)} shards with another number of records than "
            f"{METADATA_FILE} says: {wrong[:5]}. {remedy}"
        )
    return metadata


def shard_paths(directory: str | Path, split: str, max_length: int) -> list[str]:
    """Shards of one split and length, in order.

    Raises:
        ValueError: the directory has no such split or length.
    """
    metadata = read_metadata(directory)
    lengths = metadata.splits[split].lengths if split in metadata.splits else {}
    if str(max_length) not in lengths:
        known = {
            name: [int(n) for n in summary.lengths] for name, summary in metadata.splits.items()
        }
        raise ValueError(
            f"{directory} holds no {split!r} rows of length {max_length}. It holds {known}: choose "
            "one of these, or prepare another --max_length."
        )
    return [os.path.join(directory, shard.file) for shard in lengths[str(max_length)].shards]


def unigram_entropy(counts: Iterable[int]) -> float:
    """Returns the entropy, in nats, of tokens that occur `counts` times each."""
    counts = [count for count in counts if count]
    total = sum(counts)
    return -sum(n / total * math.log(n / total) for n in counts)
