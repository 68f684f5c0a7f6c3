"""Rows of CSV, TSV and JSON lines files, one at a time, with their numbers.

Rows are counted from 1, the header and blank ones included: as a spreadsheet numbers them and, but
for line ends inside quotes, an editor. "\\n", "\\r\\n" and "\\r" all end a line, mixed or not.
"""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

# Far longer than any text, far shorter than what an unclosed quote swallows of a large file.
MAX_FIELD_CHARACTERS = 1 << 26
CSV_SUFFIXES = (".csv",)
TSV_SUFFIXES = (".tsv", ".tab")
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
TEXT_SUFFIXES = (".txt",)


class Table:
    """Rows with named columns: CSV or TSV with a header, JSON lines, or a text a line (.txt).

    Attributes:
        path: the file.
        columns: names of the columns; of JSON lines, those of the first object.
        is_json: whether values are JSON's, not text.
    """

    def __init__(self, path: Path | str):
        """Reads the header.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: its name says no format, or it has no header.
        """
        self.path = Path(path).expanduser()
        suffix = self.path.suffix.lower()
        if not self.path.is_file():
            raise FileNotFoundError(f"There is no file {self.path}.")
        if suffix not in (*CSV_SUFFIXES, *TSV_SUFFIXES, *JSON_SUFFIXES, *TEXT_SUFFIXES):
            raise ValueError(
                f"{self.path}: the name does not tell its format. Name it .csv, .tsv, .jsonl "
                "(one JSON object a line) or .txt (one text a line)."
            )
        self.is_json = suffix in JSON_SUFFIXES
        self._is_text = suffix in TEXT_SUFFIXES
        self._read = read_csv if suffix in CSV_SUFFIXES else read_tsv
        self.columns = self._find_columns()

    def _find_columns(self) -> tuple[str, ...]:
        if self._is_text:
            return ("text",)
        rows = read_json_lines(self.path) if self.is_json else self._read(self.path)
        number, first = next(rows, (1, ()))
        columns = tuple(first) if self.is_json else tuple(name.strip() for name in first)
        # A nameless first column is the index that pandas writes.
        broken = [name for name in columns[1:] if not name or columns.count(name) > 1]
        if not columns or broken:
            reads = f"reads {', '.join(columns)[:200]!r}" if columns else "is missing"
            raise ValueError(
                f"{place(self.path, number)} {reads}, but the first row must name the columns, "
                "each by another name: text,label for example."
            )
        return columns

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(row number, values by column) of each row.

        Raises:
            ValueError: a row is damaged, or has another number of fields than the header.
        """
        if self._is_text:
            for number, line in read_lines(self.path):
                if line.strip():
                    yield number, {"text": line}
        elif self.is_json:
            yield from read_json_lines(self.path)
        else:
            rows = self._read(self.path)
            next(rows)
            for number, fields in rows:
                if len(fields) != len(self.columns):
                    raise ValueError(self._miscounted(number, len(fields)))
                yield number, dict(zip(self.columns, fields, strict=True))

    def _miscounted(self, number: int, count: int) -> str:
        remedy = (
            "write fields that hold a comma or a line end in quotes."
            if self._read is read_csv
            else "tabs part fields and quotes mean nothing; texts with tabs need a .csv."
        )
        return (
            f"{place(self.path, number)} has {count} fields, the first row has "
            f"{len(self.columns)} ({', '.join(self.columns)[:200]}): {remedy}"
        )


def place(path: Path | str, row: int) -> str:
    """How messages name a row."""
    return f"{path}, row {row}"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(row number, line without its end); a byte order mark is dropped.

    Raises:
        ValueError: a line is not UTF-8.
    """
    with _open(path, newline=None) as file:
        for number, line in enumerate(file, start=1):
            check_utf8(line, path, number)
            yield number, line.removesuffix("\n")


def read_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(row number, fields) of lines that are not blank; quotes are characters like any other.

    Raises:
        ValueError: a line is not UTF-8.
    """
    for number, line in read_lines(path):
        if line.strip():
            yield number, line.split("\t")


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(row number, fields) of rows that are not blank; quoted fields may hold line ends.

    Fields are apart by commas, or by semicolons where the first line has these alone.

    Raises:
        ValueError: a row is not UTF-8, or a quote is not closed.
    """
    # The module's own limit, 131,072 characters, is the whole process's; a long text exceeds it.
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    number = 0
    with _open(path, newline="") as file:
        header = file.readline()
        file.seek(0)
        delimiter = ";" if ";" in header and "," not in header else ","
        try:
            for number, fields in enumerate(csv.reader(file, delimiter=delimiter, strict=True), 1):
                for field in fields:
                    check_utf8(field, path, number)
                if any(field.strip() for field in fields):
                    yield number, fields
        except csv.Error as error:
            raise ValueError(
                f"{place(path, number + 1)} is no row of CSV ({error}): a field that holds a quote "
                'is written in quotes, with its own quotes doubled ("").'
            ) from error


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number, object) of lines that are not blank.

    Raises:
        ValueError: a line is not UTF-8, or no JSON object.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{place(path, number)} is not JSON ({error}): write one object a line, such as "
                '{"text": "...", "label": "..."}.'
            ) from error
        if not isinstance(row, dict):
            raise ValueError(
                f"{place(path, number)} holds a JSON {type(row).__name__}, not an object: write "
                'one object a line, such as {"text": "...", "label": "..."}.'
            )
        yield number, row


def read_number(text: str) -> float | None:
    """The finite number that a text writes, None if it writes none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def check_utf8(text: str, path: Path | str, row: int) -> None:
    """Refuses text with lone surrogates, which stand for bytes that are not UTF-8.

    Raises:
        ValueError: there is one; the row and the byte are named.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        what = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
        raise ValueError(
            f"{place(path, row)} is not UTF-8: {what} at character {error.start + 1}. "
            "Convert the file: iconv -f LATIN1 -t UTF-8, say, or save it as UTF-8."
        ) from error


def _open(path: Path, newline: str | None) -> TextIO:
    # Strict decoding could not tell which row it failed in: bad bytes become surrogates, and
    # `check_utf8` finds them row by row.
    return open(path, encoding="utf-8-sig", errors="surrogateescape", newline=newline)
