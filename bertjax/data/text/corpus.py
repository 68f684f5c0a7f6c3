"""Reads inputs of all supported formats as one stream of documents, in a deterministic order."""

import contextlib
import html
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.cloud.copies import ahead, local_copy
from bertjax.cloud.hub import HubDataset, download, is_hub_dataset, open_dataset
from bertjax.data.mixture import parse_mixture
from bertjax.data.text import markup, pydocs, streams, tables
from bertjax.data.text.sentences import (
    LONG_DOCUMENT_CHARACTERS,
    Document,
    Layout,
    bounded_documents,
    ends_like_sentence,
    looks_wrapped,
    split_sentences,
)
from bertjax.data.text.streams import MAX_LINE_CHARACTERS, ByteCounter, Stream, read_lines

PYDOCS = "pydocs"
PARQUET_MAGIC = b"PAR1"
SNIFFED_BYTES = 1 << 16
MOST_REMEMBERED = 1 << 20  # documents among which duplicates are counted
LONG_LINES = (300, 1000)

_WIKI_BEGIN = re.compile(rb"\s*<doc [^>]*>")
_WIKI_TITLE = re.compile(r'\btitle="(.*?)"(?=\s+\w+=|\s*>)')
_JSON_BEGIN = re.compile(rb'\s*\{\s*"[^"\n]*"\s*:')
_ONE_PER_LINE = (
    "For an array or objects over several lines: jq -c 'if type == \"array\" then .[] else . end' "
    "FILE > FILE.jsonl"
)
_JSON_NAME = re.compile(r"\.(jsonl?|ndjson)(\.\w+)?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for reading text, with the names and meanings of fields of `PrepareConfig`.

    `text_format` is "lines", "prose", "documents" or "auto", detected in each file; `errors` says
    what is done about bytes that are not in `encoding`: "strict" or "replace".
    """

    text_format: str = "auto"
    text_field: str = "text"
    errors: str = "strict"
    encoding: str = "utf-8"
    tfds_data_dir: str | None = None


class TooLittleText(ValueError):
    """Raised if the input or a source contains no text, or too little text for the objective."""


class _Opened(NamedTuple):
    """An input: its entry in `pinned_inputs`, its part of `identity`, its size, and its readers."""

    pinned: str
    identity: list[list]
    size: int | None
    readers: list[tuple[str, Any]]


class Corpus:
    """A text corpus: the constructor finds and checks the inputs, `documents` reads the inputs.

    `inputs` are the inputs of `PrepareConfig.input`; each weighted one is a source of a mixture.

    Attributes:
        identity: one list per input: [path, size, hash of the first and last bytes] of a file,
            [name with version, number of examples] of a TensorFlow dataset, [name with version,
            None] of a Python package whose docstrings are read (`pydocs`).
        pinned_inputs: the names of the inputs, which contain the commits of datasets on the Hub, so
            that another process that opens these names reads the same files, and their weights.
        sources: name, weight and number of entries in `identity` of each source; None: no mixture.
        note: a message about the weights for the user; "": none.
        total_bytes: size of the inputs on disk, in bytes; None if unknown.
        counts: Counter of "long_lines_cut", the lines that were split because they are very long,
            "replaced_characters", which stand for invalid bytes, "duplicate_documents" among the
            first MOST_REMEMBERED, and "records_without_text", the lines of JSON and rows of Parquet
            whose text is null.

    Raises:
        ValueError: there are no inputs, an input cannot be read, a weight is not positive, or a
            source has no weight while others have one.
        FileNotFoundError: an input does not exist.
    """

    def __init__(self, inputs: Sequence[str], options: ReadOptions | None = None):
        if not inputs:
            raise ValueError(
                "No --input: use paths, globs, a directory, tfds:NAME, hf:OWNER/NAME or pydocs."
            )
        self.options = options or ReadOptions()
        self.counts: Counter = Counter()
        self._bytes = ByteCounter()
        self._said: set[str] = set()
        self._seen: set[int] = set()
        mixture = parse_mixture(inputs, streams.input_exists)
        names = inputs if mixture is None else [source.name for source in mixture.sources]
        self._opened = [self._open(name) for name in names]
        self.identity = [entry for opened in self._opened for entry in opened.identity]
        self.pinned_inputs = [opened.pinned for opened in self._opened]
        sizes = [opened.size for opened in self._opened]
        self.total_bytes = None if None in sizes else sum(size or 0 for size in sizes)
        self.sources: list[dict[str, Any]] | None = None
        self.note = ""
        if mixture is None:
            return
        total = sum(source.weight for source in mixture.sources)
        self.sources = [
            {"name": source.name, "weight": source.weight, "inputs": len(opened.identity)}
            for source, opened in zip(mixture.sources, self._opened, strict=True)
        ]
        named = zip(self.pinned_inputs, mixture.sources, strict=True)
        self.pinned_inputs = [f"{pinned}={source.weight}" for pinned, source in named]
        if abs(mixture.total - 1) > 1e-9:
            shares = ", ".join(f"{name} {weight / total:.2%}" for name, weight in mixture.sources)
            self.note = (
                f"note: the weights of --input add up to {mixture.total:g}, not to 1; the shares "
                f"of the rows are {shares}"
            )

    def check_sources(self) -> None:
        """Raises TooLittleText if a source contains no text, before the long work begins.

        Pipes are not checked, because they can be read only once.
        """
        for source in self.sources or ():
            corpus = Corpus([source["name"]], self.options)
            if any(os.path.exists(e[0]) and not os.path.isfile(e[0]) for e in corpus.identity):
                continue
            if not any(document.text.strip() for document in corpus.documents()):
                raise TooLittleText(
                    f"The source {source['name']!r} of the mixture contains no text: use files "
                    "with text, or leave the source out of --input."
                )

    def _open(self, name: str) -> _Opened:
        if name == PYDOCS:
            roots = pydocs.package_roots()
            identity = [[package, None] for package, _ in roots]
            return _Opened(name, identity, None, [(PYDOCS, roots)])
        if name.startswith(tables.TFDS_PREFIX):
            full_name, splits = tables.open_tfds_splits(
                name.removeprefix(tables.TFDS_PREFIX), self.options.tfds_data_dir, ("train",)
            )
            source = splits["train"]
            return _Opened(name, [[full_name, len(source)]], None, [(full_name, source)])
        if is_hub_dataset(name):
            dataset = open_dataset(name)
            identity = [[f"{dataset.name}/{file.path}", file.size] for file in dataset.files]
            readers = [("hub", dataset)]
            return _Opened(dataset.pinned, identity, sum(e[1] for e in identity), readers)
        paths = streams.find_files(str(local_copy(name)))
        identity = [[path, os.path.getsize(path), streams.fingerprint(path)] for path in paths]
        readers = [("file", path) for path in paths]
        return _Opened(name, identity, sum(entry[1] for entry in identity), readers)

    @property
    def files(self) -> list[str]:
        """The paths of the files that are read, without pipes."""
        readers = chain.from_iterable(opened.readers for opened in self._opened)
        return [path for kind, path in readers if kind == "file" and os.path.isfile(path)]

    @property
    def bytes_read(self) -> int:
        """Number of bytes read from disk so far, before decompression."""
        return self._bytes.count

    def documents(self, number: int | None = None) -> Iterator[Document]:
        """Yields the documents of input `number`, or of all inputs in order.

        Raises ValueError if a file is damaged, has bytes that are not in the encoding (few are
        allowed if `errors` is "replace"), or has no text field named `text_field`.
        """
        for document in self._documents(number):
            if len(self._seen) < MOST_REMEMBERED:
                known = len(self._seen)
                self._seen.add(hash(document.text))
                self.counts["duplicate_documents"] += len(self._seen) == known
            yield document

    def _documents(self, number: int | None) -> Iterator[Document]:
        inputs = self._opened if number is None else [self._opened[number]]
        for kind, reader in chain.from_iterable(opened.readers for opened in inputs):
            if kind == "file":
                yield from self._file(reader, self.options.text_field)
            elif kind == "hub":
                yield from self._hub(reader)
            elif kind == PYDOCS:
                for text in pydocs.read_pydocs(reader):
                    yield from bounded_documents(text.split("\n"), "paragraphs")
            else:
                for text in tables.read_tfds(kind, reader, self.options.text_field):
                    yield from self._from_text(text)

    def _hub(self, dataset: HubDataset) -> Iterator[Document]:
        field = self.options.text_field
        for path in ahead(download, dataset.files):
            if path.suffix == ".parquet" and field == ReadOptions.text_field:
                guess = tables.guess_text_column(str(path))
                if guess not in (None, field):
                    print(f"{dataset.name}: the text is read from the column {guess!r}", flush=True)
                    field = guess
            yield from self._file(str(path), field)

    def _file(self, path: str, text_field: str) -> Iterator[Document]:
        is_parquet = False
        # A pipe has no size, and can be opened only once.
        if size := os.path.getsize(path):
            with open(path, "rb") as opened:
                is_parquet = opened.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
        if not is_parquet:
            for name, stream in streams.open_texts(path, self._bytes):
                yield from self._text_file(name, stream)
            return
        for text in tables.read_parquet(path, text_field):
            yield from self._from_text(text)
        self._bytes.count += size

    def _text_file(self, name: str, stream: Stream) -> Iterator[Document]:
        errors, counts = self.options.errors, self.counts
        stream = streams.as_utf8(
            name, stream, encoding=self.options.encoding, errors=errors, counts=counts
        )
        head = stream.peek(SNIFFED_BYTES)
        head = head.removeprefix(b"\xef\xbb\xbf")
        is_json = bool(_JSON_BEGIN.match(head)) or (
            bool(_JSON_NAME.search(name)) and head.lstrip()[:1] in (b"{", b"[")
        )
        read = _wiki_documents if _WIKI_BEGIN.match(head) else markup.reader_of(head)
        text_format = self.options.text_format
        if not (is_json or read) and (found := markup.unread_markup(head)):
            kind, command = found
            message = (
                f"{name} looks like {kind}, and is read as text; to extract its text: {command}"
            )
            self._say(kind, f"warning: {message}")
        if text_format == "auto" and not (is_json or read):
            text_format = self._detected(name, head)
        limit = LONG_DOCUMENT_CHARACTERS if text_format == "documents" else MAX_LINE_CHARACTERS
        lines = read_lines(
            name, stream, errors=errors, counts=counts, limit=None if is_json else limit
        )
        if read is not None:
            yield from read(name, stream, lines)
        elif is_json:
            yield from self._json_documents(name, lines)
        elif text_format == "lines":
            yield from _blank_line_documents(lines)
        elif text_format == "documents":
            yield from (Document(line, "paragraphs") for line in lines if _is_filled(line))
        else:
            yield from bounded_documents(lines, "prose")

    def _detected(self, name: str, head: bytes) -> str:
        lines = head.decode("utf-8", "replace").splitlines()
        if looks_like_documents(lines):
            self._say(
                "documents",
                f"{name}: its long lines are read as one document each (--text_format prose reads "
                "one document per file)",
            )
            return "documents"
        return "lines" if looks_like_sentences(lines) else "prose"

    def _say(self, kind: str, message: str) -> None:
        """Prints the first message of each kind."""
        if kind not in self._said:
            self._said.add(kind)
            print(message, flush=True)

    def _json_documents(self, name: str, lines: Iterable[str]) -> Iterator[Document]:
        field = self.options.text_field
        for number, line in enumerate(lines, 1):
            if not _is_filled(line):
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{name}, line {number} is not JSON ({brief(error)}): JSON lines contain one "
                    f"object per line. {_ONE_PER_LINE}"
                ) from error
            text: Any = self
            with contextlib.suppress(LookupError):
                text = tables.field_of(record, field)
            if text is not None and not isinstance(text, str):
                kind = "no" if text is self else f"a {type(text).__name__}, not a text, in the"
                raise ValueError(
                    f"{name}, line {number} has {kind} text field {field!r}. Its text fields: "
                    f"{brief(tables.text_fields(record))}. Name one with --text_field."
                    f"{'' if isinstance(record, dict) else f' It is no object. {_ONE_PER_LINE}'}"
                )
            if text and "\\u" in line:
                text = self._without_surrogates(text, name, number)
            # WikiExtractor's JSON repeats the title as the first line, as its XML does.
            title = record.get("title") if "url" in record else None
            yield from self._from_text(text, title if isinstance(title, str) else None)

    def _without_surrogates(self, text: str, name: str, number: int) -> str:
        """Replaces or refuses lone surrogates, which JSON allows but UTF-8 cannot encode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if self.options.errors == "strict":
                raise ValueError(
                    f"{name}, line {number} contains an unpaired surrogate "
                    f"(\\u{ord(text[error.start]):04x}). Correct the file, or pass --errors "
                    "replace to put U+FFFD in place of such characters."
                ) from error
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def _from_text(self, text: str | None, title: str | None = None) -> Iterator[Document]:
        """Yields the text of one record, without a first line equal to `title`, as documents."""
        if text is None:
            self.counts["records_without_text"] += 1
            return
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        layout: Layout = "lines" if self.options.text_format == "lines" else "prose"
        if title is not None:
            first, _, rest = text.lstrip().partition("\n")
            if first.strip() == title.strip():
                text = rest
            layout = "paragraphs"
        lines = text.split("\n")
        yield from bounded_documents(lines, layout)


def _blank_line_documents(lines: Iterable[str]) -> Iterator[Document]:
    def body(first: str) -> Iterator[str]:
        yield first
        yield from takewhile(_is_filled, iterator)

    iterator = iter(lines)
    for line in iterator:
        if _is_filled(line):
            yield from bounded_documents(body(line), "lines")


def _is_filled(line: str) -> bool:
    return bool(line) and not line.isspace()


def _wiki_documents(_name: str, _stream: Stream, lines: Iterable[str]) -> Iterator[Document]:
    def body() -> Iterator[str]:
        """Yields HTML-unescaped lines up to `</doc>`, without a first line equal to the title."""
        nonlocal title
        for line in iterator:
            if line.startswith("</doc>"):
                return
            if "&" in line:
                line = html.unescape(line).replace("\n", " ")
            if title is not None and _is_filled(line):
                is_title = line.strip() == title
                title = None
                if is_title:
                    continue
            yield line

    iterator = iter(lines)
    for line in iterator:
        if line.startswith("<doc "):
            match = _WIKI_TITLE.search(line)
            title = html.unescape(match[1]).strip() if match else None
            yield from bounded_documents(body(), "paragraphs")


def looks_like_documents(lines: Sequence[str]) -> bool:
    """Returns whether `lines` look like one document each: long, and of several sentences.

    They have LONG_LINES bytes, more if blank lines separate them, which separate paragraphs of
    prose as well.
    """
    lines = lines[:-1] if len(lines) > 20 else lines
    filled = [line for line in lines if line.strip()]
    blank = any(not line.strip() for line in lines[:-1])

    least = len(filled) if blank else max(0.9 * len(filled), 5)
    long = [line for line in filled if len(line.encode()) >= LONG_LINES[blank]]
    if len(filled) < 5 or len(long) < least:
        return False

    def is_document(line: str) -> bool:
        very_long = not blank and len(line.encode()) >= max(LONG_LINES)
        return very_long or sum(map(ends_like_sentence, split_sentences(line))) > 2

    return sum(map(is_document, long)) >= least


def looks_like_sentences(lines: Sequence[str]) -> bool:
    """Returns whether `lines` look like one sentence each, with blank lines between documents."""
    lines = [line.strip() for line in lines][:-1] if len(lines) > 20 else list(lines)
    filled = [line for line in lines if line.strip()]
    if not filled or looks_wrapped(lines):
        # Wrapped lines end anywhere; a line that is a sentence ends with punctuation.
        return bool(filled) and sum(map(ends_like_sentence, filled)) >= 0.9 * len(filled)
    blocks = 1 + sum(
        not line.strip() and bool(following.strip()) for line, following in pairwise(lines)
    )
    sentences = sum(len(split_sentences(line)) for line in filled)
    return len(filled) >= 1.5 * blocks and sentences <= 1.3 * len(filled)
