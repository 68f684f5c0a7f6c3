"""Reads CSV, TSV and JSON lines files row by row, with row numbers for error messages.

Rows are counted from 1, including the header and blank rows, as in a spreadsheet. The row number
is also the line number, unless an earlier quoted field contains line ends. Each of "\\n", "\\r\\n"
and "\\r" ends a line, even in the same file.
"""

import codecs
import csv
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from bertjax.files import brief

# Maximum length of a field and of a line, in characters. No text is that long, so a longer
# field has an unclosed quote. The limit also bounds the memory of a parsed line of JSON, which is
# up to 24 bytes per character.
MAX_LINE = 1 << 24
CSV_SUFFIXES = (".csv",)
TSV_SUFFIXES = (".tsv", ".tab")
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
TEXT_SUFFIXES = (".txt",)


class Table:
    """A file with named columns: CSV or TSV with a header, JSON lines, or one text per line.

    Attributes:
        path: the path of the file.
        columns: names of the columns; in JSON lines, the keys of the first object.
        is_text: whether the file has one text per line; blank lines are rows with an empty text.
        is_json: whether the file is JSON lines, in which values need not be strings.
    """

    def __init__(self, path: Path | str):
        """Reads the column names from the first row of the file.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the suffix is unknown, the file has no rows, or a column name is empty
                (except that of the first column) or occurs twice.
        """
        self.path = Path(path).expanduser()
        suffix = self.path.suffix.lower()
        if not self.path.is_file():
            raise FileNotFoundError(f"There is no file {self.path}: check its name.")
        if suffix not in (*CSV_SUFFIXES, *TSV_SUFFIXES, *JSON_SUFFIXES, *TEXT_SUFFIXES):
            raise ValueError(
                f"{self.path}: the suffix does not tell the format. Use .csv, .tsv, .jsonl "
                "(one JSON object per line) or .txt (one text per line)."
            )
        self.is_json = suffix in JSON_SUFFIXES
        self.is_text = suffix in TEXT_SUFFIXES
        self._read = read_csv if suffix in CSV_SUFFIXES else read_tsv
        self.columns = self._find_columns()

    def _find_columns(self) -> tuple[str, ...]:
        if self.is_text:
            return ("text",)
        rows = read_json_lines(self.path) if self.is_json else self._read(self.path)
        number, first = next(rows, (1, ()))
        if isinstance(first, ValueError):
            raise first
        columns = tuple(first) if self.is_json else tuple(name.strip() for name in first)
        # The first column may lack a name, because pandas writes its index in a column without one.
        broken = [name for name in columns[1:] if not name or columns.count(name) > 1]
        if not columns or broken:
            reads = f"reads {brief(', '.join(columns))!r}" if columns else "is missing"
            raise ValueError(
                f"{place(self.path, number)} {reads}, but the first row must name the columns, "
                "each with a different name, such as text,label."
            )
        return columns

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (row number, {column: value}) for each row of the table, without the header.

        Raises:
            ValueError: a row is malformed, or does not have as many fields as the header.
        """
        for number, row in self.rows_and_errors():
            if isinstance(row, ValueError):
                raise row
            yield number, row

    def rows_and_errors(self) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
        """Yields as `rows` does, and (row number, ValueError) for a malformed row.

        Raises:
            ValueError: the rows after a malformed one cannot be told apart, as after a quote that
                is not closed.
        """
        if self.is_text:
            yield from ((number, {"text": line}) for number, line in read_lines(self.path))
        elif self.is_json:
            yield from read_json_lines(self.path)
        else:
            rows = self._read(self.path)
            next(rows)
            for number, fields in rows:
                if len(fields) == len(self.columns):
                    yield number, dict(zip(self.columns, fields, strict=True))
                else:
                    yield number, ValueError(self._miscounted(number, len(fields)))

    def _miscounted(self, number: int, count: int) -> str:
        remedy = (
            "put fields that contain a comma or a line end in quotes."
            if self._read is read_csv
            else "tabs separate fields and quotes have no meaning; texts with tabs need a .csv."
        )
        return (
            f"{place(self.path, number)} has {count} fields, but the first row has "
            f"{len(self.columns)} ({brief(', '.join(self.columns))}): {remedy}"
        )


def place(path: Path | str, row: int) -> str:
    """Returns the text "PATH, row ROW", which names a row of a file in error messages."""
    return f"{path}, row {row}"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (row number, line without line end) for each line; skips a byte order mark.

    Raises:
        ValueError: a line is not UTF-8, or is longer than `MAX_LINE` characters.
    """
    with _open(path, newline=None) as file:
        for number, line in enumerate(_bounded(file, path), start=1):
            check_utf8(line, path, number)
            yield number, line.removesuffix("\n")


def read_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (row number, fields) for each non-blank line of TSV, where quotes are ordinary text.

    Raises:
        ValueError: a line is not UTF-8, or is longer than `MAX_LINE` characters.
    """
    for number, line in read_lines(path):
        if line.strip():
            yield number, line.split("\t")


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (row number, fields) for each non-blank row of CSV; quoted fields may span lines.

    Commas separate fields, or semicolons if the first line has semicolons and no commas.

    Raises:
        ValueError: a row is not UTF-8, has misplaced quotes, or exceeds `MAX_LINE` characters.
    """
    # Long texts exceed the default limit of 131,072 characters, which is a global setting.
    csv.field_size_limit(MAX_LINE)
    number = 0
    with _open(path, newline="") as file:
        header = file.readline(MAX_LINE)
        file.seek(0)
        delimiter = ";" if ";" in header and "," not in header else ","
        try:
            lines = _bounded(file, path)
            for number, fields in enumerate(csv.reader(lines, delimiter=delimiter, strict=True), 1):
                for field in fields:
                    check_utf8(field, path, number)
                if any(field.strip() for field in fields):
                    yield number, fields
        except csv.Error as error:
            raise ValueError(
                f"{place(path, number + 1)} is not a row of CSV ({error}): a field that contains a "
                'quote must be in quotes, with its own quotes doubled ("").'
            ) from error


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
    """Yields (row number, JSON object) for each non-blank line of a JSON lines file.

    For a line that is not a JSON object, the second item is a ValueError, which is not raised.

    Raises:
        ValueError: a line is not UTF-8 or exceeds `MAX_LINE` characters.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            row = ValueError(
                f"{place(path, number)} is not JSON ({brief(error)}): write one object per line, "
                "such as "
                '{"text": "...", "label": "..."}.'
            )
        if not isinstance(row, dict | ValueError):
            row = ValueError(
                f"{place(path, number)} holds a JSON {type(row).__name__}, not an object: write "
                'one object per line, such as {"text": "...", "label": "..."}.'
            )
        yield number, row


def read_number(text: str) -> float | None:
    """Converts a text to a float; returns None if the text is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def check_utf8(text: str, path: Path | str, row: int) -> None:
    """Checks that a text has no lone surrogates, which stand for bytes that are not UTF-8.

    Raises:
        ValueError: the text has a lone surrogate; the message names the row and the byte.
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
            "Save the file as UTF-8, or convert it, for example with iconv -f LATIN1 -t UTF-8."
        ) from error


def _bounded(file: TextIO, path: Path) -> Iterator[str]:
    """Yields the lines of a file; raises ValueError if a line exceeds `MAX_LINE` characters."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            raise ValueError(
                f"{path}, line {number} has more than {MAX_LINE:,} characters: check that the file "
                "is a table, and shorten the line."
            )
        if not line:
            return
        yield line


def _open(path: Path, newline: str | None) -> TextIO:
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(
                f"{path} is UTF-16, but must be UTF-8: convert it with iconv -f UTF-16 -t UTF-8."
            )
    # Errors of strict decoding do not name the row. Therefore invalid bytes become surrogates,
    # which `check_utf8` detects in each row.
    return open(path, encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def as_file(rows: Any, file: Path) -> str:
    """Writes `rows`, a DataFrame or a list of dicts, to `file` as JSON lines; returns the path.

    If `rows` is the path of an existing file, nothing is written, and `rows` is returned.
    """
    if isinstance(rows, str | Path):
        return str(rows)
    records = rows if isinstance(rows, list) else rows.to_dict("records")
    # pandas marks missing values with NaN.
    records = [
        {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in r.items()
        }
        for r in records
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")
    return str(file)
