"""Reads WET, CoNLL-U, FASTA and dumps of MediaWiki, and recognises markup that is not read."""

import contextlib
import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from xml.etree import ElementTree

from bertjax.data.text.sentences import Document, bounded_documents
from bertjax.data.text.streams import MAX_JSON_CHARACTERS, DamagedInput, Stream

# Markup that is read as text, with a warning: its beginning, and a command that extracts the text.
_UNREAD = {
    "HTML": (rb"(?i)\s*<(!doctype html|html)\b", "trafilatura < FILE > FILE.txt"),
    "XML": (
        rb"\s*<(\?xml|TEI)\b",
        'python -c "import sys, xml.etree.ElementTree as E; print(*filter(None, map(str.strip, '
        "E.parse(sys.argv[1]).getroot().itertext())), sep='\\n')\" FILE > FILE.txt",
    ),
    "PO": (rb'(#[^\n]*\n|\s)*msgid "', "po2txt FILE FILE.txt (of translate-toolkit)"),
}
_CSV_COMMAND = (
    'python -c "import sys, pyarrow.csv, pyarrow.parquet as p; p.write_table(pyarrow.csv.read_csv('
    "sys.argv[1]), sys.argv[1] + '.parquet')\" FILE (then name the column with --text_field)"
)
_NO_TEXT = ("ref", "references", "table", "gallery", "math", "timeline")


def unread_markup(head: bytes) -> tuple[str, str] | None:
    """Returns (kind, command that extracts the text) of the markup that a file begins with."""
    for kind, (begin, command) in _UNREAD.items():
        if re.match(begin, head):
            return kind, command
    lines = head.decode("utf-8", "replace").splitlines()[:30]
    for delimiter in ",;\t":
        with contextlib.suppress(csv.Error):
            rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
            if len(rows) > 2 and _is_table(rows):
                return "CSV", _CSV_COMMAND
    return None


def _is_table(rows: list[list[str]]) -> bool:
    header = rows[0]
    if len(header) < 2 or any(cell != cell.strip() for cell in header):
        return False
    return all(len(row) == len(header) for row in rows)


def _conllu(_name: str, _stream: Stream, lines: Iterable[str]) -> Iterator[Document]:
    for section in _sections(lines, "# newdoc"):
        texts = (line[9:] for line in section if line.startswith("# text = "))
        yield from bounded_documents(texts, "lines")


def _fasta(_name: str, _stream: Stream, lines: Iterable[str]) -> Iterator[Document]:
    for section in _sections(lines, ">"):
        residues = (line.strip().rstrip("*") for line in section if line[:1] != ">")
        for document in bounded_documents(residues, "lines"):
            yield Document(document.text.replace("\n", ""), "lines")


def _sections(lines: Iterable[str], begin: str) -> Iterator[Iterator[str]]:
    number = 0

    def section(line: str) -> int:
        nonlocal number
        number += line.startswith(begin)
        return number

    return (group for _, group in itertools.groupby(lines, section))


def _wet(name: str, stream: Stream, _lines: Iterable[str]) -> Iterator[Document]:
    texts = 0
    while head := stream.peek(1 << 14):
        fields, _, _ = head.lower().partition(b"\r\n\r\n")
        length = re.search(rb"\ncontent-length: *(\d{1,9})\r?$", fields, re.MULTILINE)
        size = int(length[1]) if length else MAX_JSON_CHARACTERS + 1
        if not fields.startswith(b"warc/") or size > MAX_JSON_CHARACTERS:
            raise DamagedInput(f"{name} has a damaged WARC record: download it again.")
        stream.read(len(fields) + 4)
        body = stream.read(size)
        stream.read(4)
        if re.search(rb"\nwarc-type: *conversion\b", fields):
            texts += 1
            text = body.decode("utf-8", "replace").replace("\r", "")
            yield from bounded_documents(text.split("\n"), "prose")
    if not texts:
        raise ValueError(
            f"{name} is a WARC file of pages, not of text: use the WET file, or warcio."
        )


def _mediawiki(name: str, stream: Stream, _lines: Iterable[str]) -> Iterator[Document]:
    """Yields articles without headings, tables, templates, references, categories and images."""
    try:
        import mwparserfromhell  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            f"{name} is a dump of MediaWiki: pip install 'bertjax[wiki]' to read it."
        ) from error
    prefixes = {"file", "image", "category"}

    def is_no_text(node: object) -> bool:
        if isinstance(node, mwparserfromhell.nodes.Heading):
            return True
        prefix, _, _ = str(getattr(node, "title", "")).partition(":")
        return prefix.strip().lower() in prefixes or getattr(node, "tag", None) in _NO_TEXT

    events = ElementTree.iterparse(stream, ("start", "end"))
    try:
        _, root = next(events)
        for event, element in events:
            _, _, tag = element.tag.rpartition("}")
            if event == "start":
                continue
            if tag == "namespace" and element.get("key") in ("6", "14"):
                prefixes.add((element.text or "").lower())
            if tag == "page":
                if element.findtext("{*}ns") == "0" and element.find("{*}redirect") is None:
                    source = element.findtext("{*}revision/{*}text") or ""
                    code = mwparserfromhell.parse(source)
                    for node in code.filter(matches=is_no_text):
                        with contextlib.suppress(ValueError):  # it is in a removed node
                            code.remove(node)
                    lines = code.strip_code().split("\n")
                    yield from bounded_documents(lines, "paragraphs")
                root.clear()
    except ElementTree.ParseError as error:
        raise DamagedInput(f"{name} is damaged ({error}): download it again.") from error


_READERS = (
    (re.compile(rb"WARC/"), _wet),
    (re.compile(rb"\s*(<\?xml[^>]*>\s*)?<mediawiki\b"), _mediawiki),
    (re.compile(rb"(#[^\n]*\n)*# text = [^\n]*\n(#[^\n]*\n)*\d[\d.-]*\t"), _conllu),
    (re.compile(rb">[^\s>][^\n]*\n[A-Za-z*-]+\r?\n([A-Za-z*-]*\r?\n|>)"), _fasta),
)


def reader_of(head: bytes) -> Callable[[str, Stream, Iterable[str]], Iterator[Document]] | None:
    """Returns the function that makes documents of a file's name, stream and lines, if any."""
    for begin, read in _READERS:
        if begin.match(head):
            return read
    return None
