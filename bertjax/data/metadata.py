"""`metadata.json`, which describes the shards of a directory that `bertjax.prepare` wrote.

A shard is an ArrayRecord file of training rows (records). `prepare` divides the input text into
chunks of whole documents, whose rows are written to a few shards per split and maximum length, in
the order of the chunks. Older versions wrote one shard per chunk, split and maximum length.
"""

import dataclasses
import json
import math
import os
import re
import types
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from bertjax.base.addresses import place
from bertjax.base.checked import Checked, NonNegative, check
from bertjax.base.files import MAX_JSON_BYTES, brief, is_file_name, listed, read_bytes
from bertjax.data.preparation.segments import OBJECTIVES, ObjectiveName
from bertjax.data.records import FORMAT_VERSION, MAX_ROW_LENGTH, count_or_none, has_records

Number = Annotated[int, "[0, 2^63)"]


def _built(kind: Any, value: Any) -> Any:
    """Converts the JSON objects in a value of the type `kind` to instances of dataclasses.

    Raises ValueError if a field is missing or unknown, or its class refuses the value.
    """
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _built(arguments[0], value)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{brief(repr(value))} is not a JSON object")
        hints = get_type_hints(kind, include_extras=True)
        values = {name: _built(hints.get(name), v) for name, v in value.items()}
        try:
            return kind(**values)  # type: ignore[operator]
        except TypeError as error:  # names missing or unknown fields
            raise ValueError(str(error)) from error
    if origin is dict and isinstance(value, dict):
        return {name: _built(arguments[1], v) for name, v in value.items()}
    if origin is list and arguments and isinstance(value, list):
        return [_built(arguments[0], v) for v in value]
    return value


def _stored(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields of a dataclass without those that data of older versions lack."""
    newer = ("size", "sha256", "sources")
    return {name: value for name, value in fields if value is not None or name not in newer}


METADATA_FILE = "metadata.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard(Checked):
    """The description of a shard: file name, number of records, size in bytes, hexadecimal SHA-256.

    Data prepared without checksums lack the size and `sha256`.
    """

    file: str
    records: Number
    size: Number | None = None
    sha256: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthSummary(Checked):
    """Statistics of the rows of one split that were prepared for one maximum length.

    Attributes:
        shards: the shards, in the order of the chunks of text that their rows were made from.
        tokens: number of tokens in all rows, special tokens included.
        labels: {label: number of sequences}: "1" for sentence pairs with a random second segment or
            swapped segments, "0" for other sentence pairs, "-1" for no label.
        random_from_same_document: number of NSP pairs whose random second segment is from the same
            document as the first, because the chunk of text has only one document in the split.
        length_counts: number of sequences of each length, from 0 to the maximum length.
    """

    shards: list[Shard]
    records: Number
    sequences: Number
    tokens: Number
    labels: dict[str, Number]
    random_from_same_document: Number
    length_counts: list[Number]

    @property
    def attended(self) -> float:
        """Average number of tokens that a token attends to: E[n^2] / E[n] for sequence length n."""
        squares = sum(n * n * count for n, count in enumerate(self.length_counts))
        return squares / max(self.tokens, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSummary(Checked):
    """Statistics of one split, "train" or "eval".

    Attributes:
        documents: number of documents that contain text.
        text_bytes: size of the documents as read, in UTF-8 bytes.
        text_tokens: number of tokens in the text of the documents, without special tokens.
        unigram_entropy_nats: entropy, in nats, of the token frequencies in the text, which is the
            lowest loss of a model that ignores the context; None for "train".
        lengths: maps each maximum length, as a string, to the statistics of its rows.
    """

    documents: Number
    sentences: Number
    text_bytes: Number
    text_tokens: Number
    unigram_entropy_nats: NonNegative | None
    lengths: dict[str, LengthSummary]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSummary(Checked):
    """A source of a mixture; its share of the rows is its integer weight / the sum of all weights.

    `name` is the input; `splits` has its "train" and, if documents were held out, "eval".
    """

    name: str
    weight: Number
    splits: dict[str, SplitSummary]


class RowSource(NamedTuple):
    """Shards to read rows from: the name of the source, its weight, and the shards' paths."""

    name: str
    weight: Number
    paths: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata(Checked):
    """The description of a prepared directory, stored as `metadata.json`.

    Attributes:
        settings: values of the flags of `prepare` that determine the rows.
        inputs: names of the inputs with sizes and hashes or versions, see `Corpus.identity`.
        tokenizer_fingerprint: hash of the vocabulary and the settings of the tokenizer.
        max_lengths: the maximum lengths, in tokens, that rows were made for, ascending.
        counts: number of times that text was skipped or cut, by reason: "documents_without_text",
            "long_lines_cut", ...; and "unknown_tokens", the number of unknown tokens ([UNK]).
        splits: statistics of "train" and, if documents were held out, of "eval".
        sources: the sources of a mixture, in the order of their shards in `splits`, or None.
    """

    settings: dict[str, Any]
    inputs: list[list]
    tokenizer_fingerprint: str
    vocab_size: Number
    objective: ObjectiveName
    max_lengths: list[Number]
    chunks: Number
    counts: dict[str, Number]
    splits: dict[str, SplitSummary]
    format_version: int = FORMAT_VERSION
    sources: list[SourceSummary] | None = None

    @property
    def max_sequences(self) -> int:
        """Maximum number of sequences per row; 1 for unpacked rows."""
        if self.settings.get("pack"):
            return self.settings["max_sequences"]
        return 1

    @property
    def has_sentence_pairs(self) -> bool:
        """Whether the sequences are sentence pairs with a label (NSP or SOP)."""
        return OBJECTIVES[self.objective].has_sentence_pairs

    def has_held_out(self, max_length: int) -> bool:
        """Returns whether rows of this maximum length were held out for evaluation."""
        content = _content(self.splits, "eval", str(max_length))
        return content is not None and content.records > 0

    def shards(self, lengths: Collection[int] | None = None) -> list[Shard]:
        """Returns the shards of all splits, in order; of the maximum lengths `lengths`, or all."""
        shards: list[Shard] = []
        for summary in self.splits.values():
            for length, content in summary.lengths.items():
                if lengths is None or int(length) in lengths:
                    shards += content.shards
        return shards

    def attended(self, max_length: int) -> float:
        """Mean number of tokens that a training token attends to: E[n^2] / E[n] for length n."""
        if self.sources is None:
            return self.splits["train"].lengths[str(max_length)].attended
        tokens = squares = 0.0
        for source in self.sources:
            content = source.splits["train"].lengths[str(max_length)]
            drawn = source.weight * content.tokens / max(content.records, 1)
            tokens += drawn
            squares += drawn * content.attended
        return squares / max(tokens, 1)

    def to_json(self) -> str:
        """Returns the metadata as JSON text, with each list of numbers on one line.

        A run identifies its data by a hash of this text, which stays for data of older versions.
        """
        text = json.dumps(dataclasses.asdict(self, dict_factory=_stored), indent=1)
        return re.sub(r"\[[\d,\s]*\]", lambda match: " ".join(match[0].split()), text) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Metadata":
        """Parses the output of `to_json`; raises ValueError if it is not valid."""
        fields = json.loads(text)
        version = None
        if isinstance(fields, dict):
            version = fields.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(
                f"the format version is {brief(version)}, expected {FORMAT_VERSION}: prepare "
                "the data again"
            )
        metadata: Metadata = _built(cls, fields)
        if metadata.settings.get("pack"):
            most = metadata.settings.get("max_sequences")
            check("settings.max_sequences", most, Annotated[int, "[1, 2^63)"])
        for split, summary in metadata.splits.items():
            for length, content in summary.lengths.items():
                _check_summary(f"split {split}, length {brief(length, 20)}", length, content)
        _check_sources(metadata)
        return metadata


def _content(splits: dict[str, SplitSummary], split: str, length: str) -> LengthSummary | None:
    summary = splits.get(split)
    if summary is None:
        return None
    return summary.lengths.get(length)


def _check_summary(where: str, length: str, content: LengthSummary) -> None:
    is_short = length.isdecimal() and len(length) <= 5
    if not is_short or not 0 < int(length) <= MAX_ROW_LENGTH:
        raise ValueError(f"{where}: the length must be a number from 1 to {MAX_ROW_LENGTH}")
    for shard in content.shards:
        if not is_file_name(shard.file):
            raise ValueError(f"{where}: {brief(shard.file, 50)!r} is not a plain file name")
    if sum(shard.records for shard in content.shards) != content.records:
        raise ValueError(f"{where}: the records of the shards do not add up to {content.records}")


def _check_sources(metadata: Metadata) -> None:
    sources = metadata.sources
    if sources is None:
        return
    if not sources or not all(source.weight for source in sources):
        raise ValueError("sources must not be empty, and their weights must be positive")
    for split, summary in metadata.splits.items():
        for length, content in summary.lengths.items():
            shards: list[Shard] = []
            for source in sources:
                where = f"source {brief(source.name, 50)}"
                of_source = _content(source.splits, split, length)
                if of_source is not None:
                    _check_summary(where, length, of_source)
                    shards += of_source.shards
                if split == "train" and not (of_source and of_source.records):
                    raise ValueError(f"{where} has no rows of {length}")
            if shards != content.shards:
                raise ValueError(
                    f"split {split}: the shards of its sources are others than its own"
                )


def read_metadata(directory: str | Path) -> Metadata:
    """Returns the metadata of a prepared directory without checking the shards.

    Raises FileNotFoundError, or ValueError if metadata.json is not valid.
    """
    path = place(directory) / METADATA_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} contains no {METADATA_FILE}: it is incomplete, or not an output of "
            "bertjax.prepare. To complete the directory, run the same prepare command again."
        )
    try:
        content = read_bytes(path, MAX_JSON_BYTES)
        return Metadata.from_json(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read: {brief(error).removesuffix('.')}. Copy the directory again, "
            "or prepare it again with --overwrite."
        ) from error


def open_prepared(directory: str | Path, lengths: Collection[int] | None = None) -> Metadata:
    """Returns the metadata of a prepared directory; checks that the shards are complete.

    Only the shards of the maximum `lengths`, if set, are checked. Raises FileNotFoundError if
    files are missing, or ValueError if one is not valid or has another number of records.
    """
    metadata = read_metadata(directory)
    missing: list[str] = []
    wrong: list[str] = []
    for shard in metadata.shards(lengths):
        path = place(directory) / shard.file
        if not path.exists():
            missing.append(shard.file)
        elif not has_records(path, shard.records):
            wrong.append(f"{shard.file} ({count_or_none(path)} of {shard.records})")
    remedy = "Copy the directory again, or prepare it again with --overwrite."
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} shards are missing from {directory}: {listed(missing)}. {remedy}"
        )
    if wrong:
        raise ValueError(
            f"{len(wrong)} shards of {directory} differ from {METADATA_FILE} in their number of "
            f"records: {listed(wrong)}. {remedy}"
        )
    return metadata


def shard_paths(directory: str | Path, split: str, max_length: int) -> list[str]:
    """Returns the paths of the shards of one split and maximum length, in metadata.json's order.

    Raises ValueError if there is no such split or length.
    """
    metadata = read_metadata(directory)
    if split not in metadata.splits:
        raise ValueError(
            f"{directory} has no split {split!r}, only {listed(list(metadata.splits))}: to hold "
            "out documents for the split 'eval', prepare the data with --eval_fraction."
        )
    lengths = metadata.splits[split].lengths
    if str(max_length) not in lengths:
        raise ValueError(
            f"{directory} has no rows of {max_length} tokens, only of {', '.join(lengths)}: "
            f"prepare the data with --max_length {max_length}."
        )
    return _paths(directory, lengths[str(max_length)])


def _paths(directory: str | Path, content: LengthSummary) -> list[str]:
    return [os.path.join(directory, shard.file) for shard in content.shards]


def row_sources(directory: str | Path, split: str, max_length: int) -> list[RowSource]:
    """Returns the sources of the rows of one split and maximum length, with the shards of each.

    Data that are no mixture have a single source, "". Sources without rows in the split are left
    out. Raises ValueError if there is no such split or length.
    """
    paths = shard_paths(directory, split, max_length)
    metadata = read_metadata(directory)
    if metadata.sources is None:
        return [RowSource("", 1, paths)]
    with_rows = []
    for source in metadata.sources:
        content = _content(source.splits, split, str(max_length))
        if content is not None and content.records:
            paths = _paths(directory, content)
            with_rows.append(RowSource(source.name, source.weight, paths))
    return with_rows


def unigram_entropy(counts: Iterable[float]) -> float:
    """Returns the entropy, in nats, of the token frequencies, given the count of each token."""
    counts = [count for count in counts if count]
    total = sum(counts)
    shares = [count / total for count in counts]
    return -sum(share * math.log(share) for share in shares)
