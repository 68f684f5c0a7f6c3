"""Reads inputs of all supported formats as one stream of documents, in a deterministic order."""

import contextlib
import html
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, takewhile
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.cloud.copies import ahead, local_copy
from bertjax.cloud.hub import HubDataset, download, is_hub_dataset, open_dataset
from bertjax.data.mixture import Mixture, parse_mixture
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
LONG_LINE = 300  # bytes
VERY_LONG_LINE = 1000

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
    """An input: its entry in `pinned_inputs`, its part of `identity`, its size and its documents.

    `documents` reads them; `files` are the paths of local files.
    """

    pinned: str
    identity: list[list]
    size: int | None
    documents: Callable[[], Iterator[Document]]
    files: Sequence[str] = ()


class Corpus:
    """A text corpus: the constructor finds and checks the inputs, `documents` reads them.

    `inputs` are those of `PrepareConfig.input`; each weighted one is a source of a mixture.

    Attributes:
        identity: one list per input: [path, size, hash of the first and last bytes] of a file,
            [name with version, number of examples] of a TensorFlow dataset, [name with version,
            None] of a Python package whose docstrings are read (`pydocs`).
        pinned_inputs: the names of the inputs with their weights, and with the commits of datasets
            on the Hub, so that another process reads the same files.
        sources: name, weight and number of entries in `identity` of each source; None: no mixture.
        note: a message about the weights for the user; "": none.
        total_bytes: size of the inputs on disk, in bytes; None if unknown.
        counts: Counter of "long_lines_cut", the lines that were split because they are very long,
            "replaced_characters", which stand for invalid bytes, "duplicate_documents" among the
            first MOST_REMEMBERED, and "records_without_text", the lines of JSON and rows of Parquet
            whose text is null.

    Raises FileNotFoundError, or ValueError if there are no inputs, an input cannot be read, or
    weights are missing or not positive.
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
        names = inputs
        if mixture is not None:
            names = [source.name for source in mixture.sources]
        self._opened = [self._open(name) for name in names]
        self.identity = list(chain.from_iterable(opened.identity for opened in self._opened))
        self.pinned_inputs = [opened.pinned for opened in self._opened]
        sizes = [opened.size for opened in self._opened]
        self.total_bytes = None
        if None not in sizes:
            self.total_bytes = sum(size or 0 for size in sizes)
        self.sources: list[dict[str, Any]] | None = None
        self.note = ""
        if mixture is not None:
            self._name_sources(mixture)

    def _name_sources(self, mixture: Mixture) -> None:
        total = sum(source.weight for source in mixture.sources)
        self.sources = sources = []
        self.pinned_inputs = pinned = []
        shares = []
        for (name, weight), opened in zip(mixture.sources, self._opened, strict=True):
            sources.append({"name": name, "weight": weight, "inputs": len(opened.identity)})
            pinned.append(f"{opened.pinned}={weight}")
            shares.append(f"{name} {weight / total:.2%}")
        if abs(mixture.total - 1) > 1e-9:
            self.note = (
                f"note: the weights of --input add up to {mixture.total:g}, not to 1; the shares "
                f"of the rows are {', '.join(shares)}"
            )

    def check_sources(self) -> None:
        """Raises TooLittleText if a source contains no text, before the long work begins.

        Pipes are not checked, because they can be read only once.
        """
        for source in self.sources or ():
            corpus = Corpus([source["name"]], self.options)
            if any(_is_pipe(path) for path, *_ in corpus.identity):
                continue
            if not any(document.text.strip() for document in corpus.documents()):
                raise TooLittleText(
                    f"The source {source['name']!r} of the mixture contains no text: leave it out "
                    "of --input."
                )

    def _open(self, name: str) -> _Opened:
        if name == PYDOCS:
            roots = pydocs.package_roots()
            identity = [[package, None] for package, _ in roots]
            return _Opened(name, identity, None, partial(_pydocs, roots))
        if name.startswith(tables.TFDS_PREFIX):
            return self._open_tfds(name)
        if is_hub_dataset(name):
            dataset = open_dataset(name)
            identity = []
            total = 0
            for file in dataset.files:
                identity.append([f"{dataset.name}/{file.path}", file.size])
                total += file.size
            return _Opened(dataset.pinned, identity, total, partial(self._hub, dataset))
        paths = streams.find_files(str(local_copy(name)))
        identity = []
        total = 0
        for path in paths:
            size = os.path.getsize(path)
            identity.append([path, size, streams.fingerprint(path)])
            total += size
        return _Opened(name, identity, total, partial(self._files, paths), paths)

    def _open_tfds(self, name: str) -> _Opened:
        full_name, splits = tables.open_tfds_splits(
            name.removeprefix(tables.TFDS_PREFIX), self.options.tfds_data_dir, ("train",)
        )
        source = splits["train"]
        identity = [[full_name, len(source)]]
        return _Opened(name, identity, None, partial(self._tfds, full_name, source))

    @property
    def files(self) -> list[str]:
        """The paths of the files that are read, without pipes."""
        paths = chain.from_iterable(opened.files for opened in self._opened)
        return list(filter(os.path.isfile, paths))

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
        for opened in inputs:
            yield from opened.documents()

    def _files(self, paths: Iterable[str]) -> Iterator[Document]:
        for path in paths:
            yield from self._file(path, self.options.text_field)

    def _tfds(self, name: str, source: Any) -> Iterator[Document]:
        for text in tables.read_tfds(name, source, self.options.text_field):
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
        size = os.path.getsize(path)
        if size:  # a pipe has no size, and can be opened only once
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
        errors = self.options.errors
        counts = self.counts
        stream = streams.as_utf8(
            name, stream, encoding=self.options.encoding, errors=errors, counts=counts
        )
        head = stream.peek(SNIFFED_BYTES).removeprefix(b"\xef\xbb\xbf")
        is_json = _is_json(name, head)
        read = _wiki_documents if _WIKI_BEGIN.match(head) else markup.reader_of(head)
        text_format = self.options.text_format
        if not is_json and read is None:
            self._warn_of_markup(name, head)
            if text_format == "auto":
                text_format = self._detected(name, head)
        limit = MAX_LINE_CHARACTERS
        if is_json:
            limit = None
        elif text_format == "documents":
            limit = LONG_DOCUMENT_CHARACTERS
        lines = read_lines(name, stream, errors=errors, counts=counts, limit=limit)
        if read is not None:
            yield from read(name, stream, lines)
        elif is_json:
            yield from self._json_documents(name, lines)
        elif text_format == "lines":
            yield from _blank_line_documents(lines)
        elif text_format == "documents":
            for line in filter(_is_filled, lines):
                yield Document(line, "paragraphs")
        else:
            yield from bounded_documents(lines, "prose")

    def _warn_of_markup(self, name: str, head: bytes) -> None:
        if unread := markup.unread_markup(head):
            kind, command = unread
            self._say(
                kind,
                f"warning: {name} looks like {kind}, and is read as text; to extract its text: "
                f"{command}",
            )

    def _detected(self, name: str, head: bytes) -> str:
        lines = head.decode("utf-8", "replace").splitlines()
        if looks_like_documents(lines):
            self._say(
                "documents",
                f"{name}: its long lines are read as one document each (--text_format prose reads "
                "one document per file)",
            )
            return "documents"
        if looks_like_sentences(lines):
            return "lines"
        return "prose"

    def _say(self, kind: str, message: str) -> None:
        """Prints the first message of each kind."""
        if kind not in self._said:
            self._said.add(kind)
            print(message, flush=True)

    def _json_documents(self, name: str, lines: Iterable[str]) -> Iterator[Document]:
        for number, line in enumerate(lines, 1):
            if not _is_filled(line):
                continue
            where = f"{name}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{where} is not JSON ({brief(error)}): JSON lines contain one object per "
                    f"line. {_ONE_PER_LINE}"
                ) from error
            text = self._json_text(where, record)
            if text and "\\u" in line:
                text = self._without_surrogates(where, text)
            # WikiExtractor's JSON repeats the title as the first line, as its XML does.
            title = None
            if "url" in record:
                title = record.get("title")
            if not isinstance(title, str):
                title = None
            yield from self._from_text(text, title)

    def _json_text(self, where: str, record: Any) -> str | None:
        field = self.options.text_field
        kind = "no"
        with contextlib.suppress(LookupError):
            text = tables.field_of(record, field)
            if text is None or isinstance(text, str):
                return text
            kind = f"a {type(text).__name__}, not a text, in the"
        message = f"{where} has {kind} text field {field!r}."
        if not isinstance(record, dict):
            raise ValueError(f"{message} It is no object. {_ONE_PER_LINE}")
        fields = brief(tables.text_fields(record))
        raise ValueError(f"{message} Its text fields: {fields}. Name one with --text_field.")

    def _without_surrogates(self, where: str, text: str) -> str:
        """Replaces or refuses lone surrogates, which JSON allows but UTF-8 cannot encode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if self.options.errors == "strict":
                surrogate = f"\\u{ord(text[error.start]):04x}"
                raise ValueError(
                    f"{where} contains an unpaired surrogate ({surrogate}): pass --errors replace "
                    "to put U+FFFD in place of such characters."
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
        yield from bounded_documents(text.split("\n"), layout)


def _pydocs(roots: list[tuple[str, str]]) -> Iterator[Document]:
    for text in pydocs.read_pydocs(roots):
        yield from bounded_documents(text.split("\n"), "paragraphs")


def _is_pipe(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)


def _is_json(name: str, head: bytes) -> bool:
    if _JSON_BEGIN.match(head):
        return True
    is_named_so = _JSON_NAME.search(name) is not None
    return is_named_so and head.lstrip().startswith((b"{", b"["))


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
            title = None
            if match is not None:
                title = html.unescape(match[1]).strip()
            yield from bounded_documents(body(), "paragraphs")


def looks_like_documents(lines: Sequence[str]) -> bool:
    """Returns whether `lines` look like one document each: long, and of several sentences.

    They have LONG_LINE bytes, or VERY_LONG_LINE if blank lines separate them, which separate
    paragraphs of prose as well.
    """
    if len(lines) > 20:
        lines = lines[:-1]
    filled = [line for line in lines if line.strip()]
    has_blank = not all(line.strip() for line in lines[:-1])
    shortest = LONG_LINE
    least = max(0.9 * len(filled), 5)
    if has_blank:
        shortest = VERY_LONG_LINE
        least = len(filled)

    def is_document(line: str) -> bool:
        size = len(line.encode())
        if size < shortest:
            return False
        if not has_blank and size >= VERY_LONG_LINE:
            return True
        return sum(map(ends_like_sentence, split_sentences(line))) > 2

    return len(filled) >= 5 and sum(map(is_document, filled)) >= least


def looks_like_sentences(lines: Sequence[str]) -> bool:
    """Returns whether `lines` look like one sentence each, with blank lines between documents."""
    lines = list(lines)
    if len(lines) > 20:
        lines = [line.strip() for line in lines[:-1]]
    filled = [line for line in lines if line.strip()]
    if not filled:
        return False
    if looks_wrapped(lines):
        # Wrapped lines end anywhere; a line that is a sentence ends with punctuation.
        return sum(map(ends_like_sentence, filled)) >= 0.9 * len(filled)
    blocks = 1
    for line, following in pairwise(lines):
        if following.strip() and not line.strip():
            blocks += 1
    sentences = sum(len(split_sentences(line)) for line in filled)
    return len(filled) >= 1.5 * blocks and sentences <= 1.3 * len(filled)
