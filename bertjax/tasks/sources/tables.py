"""`Table`, a file with named columns, and `Row`: CSV, TSV, JSON, Parquet, Arrow, a text per line.

Rows are counted from 1, including the header and blank rows, as in a spreadsheet. In CSV, TSV and
JSON lines, the row number is also the line number, unless an earlier quoted field contains line
ends.
"""

import codecs
import contextlib
import csv
import functools
import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.data.text.tables import open_parquet
from bertjax.tasks.sources.data_files import (
    EXCEL_SUFFIXES,
    JSON_SUFFIXES,
    MAX_LINE,
    NAMED_COLUMNS,
    PARQUET_SUFFIXES,
    TEXT_SUFFIXES,
    TSV_SUFFIXES,
    bounded_lines,
    check_exists,
    check_utf8,
    open_text,
    read_lines,
    row_name,
    suffix_of,
)
from bertjax.tasks.sources.typed_rows import Rows, read_json_rows, read_parquet

# Number of rows that tell what columns hold.
FIRST_ROWS = 100
# Signs that separate the fields of CSV, and the number of lines that tell which of them it is.
DELIMITERS = (",", ";", "\t", "|")
_FIRST_LINES = 100
# Spreadsheets write the separator of a CSV file in a line before the names of the columns.
_SEPARATOR_LINE = re.compile(r"sep=(.)\s*")
# Fields in quotes, as CSV has them; of single ones, only what apostrophes alone do not explain.
CSV_QUOTED = re.compile(r'"(?:[^"]|"")+"')
_SINGLE_QUOTED = re.compile(r"'(?:[^']|'')*''(?:[^']|'')*'")
SQL_MISSING = r"\N"
# Lists as pandas, NumPy and Python write them into a cell, and JSON's.
_WRITTEN_LIST = re.compile(
    r"""\s*(?:\[[\d\s.,-]*\]|[\[({]\s*(['"]).*\1,?\s*[\])}])\s*""", re.DOTALL
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def read_number(text: str) -> float | None:
    """Converts a text to a float; returns None if the text is not a finite number.

    Python's own forms, such as 1_000, are no numbers, and digits are those of ASCII, as in pandas.
    """
    text = text.strip()
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def read_tsv(path: Path, *, has_header: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yields (row number, fields) for each non-blank line of TSV, where quotes are ordinary text.

    `has_header` and errors are those of `read_lines`.
    """
    for number, line in read_lines(path, has_header=has_header):
        if line.strip():
            yield number, line.split("\t")


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (row number, fields) for each non-blank row of CSV; quoted fields may span lines.

    Fields are separated by the one of `DELIMITERS` that divides the first lines into rows of
    equally many fields, or by the one that a first line such as "sep=;" names. Quotes are double
    or, if the first lines tell it, single ones.

    Raises:
        ValueError: a row is not UTF-8, has misplaced quotes, or exceeds `MAX_LINE` characters.
    """
    # Long texts exceed the default limit of 131,072 characters, which is a global setting.
    csv.field_size_limit(MAX_LINE)
    with open_text(path, newline="") as file:
        lines = bounded_lines(file, path)
        start = list(itertools.islice(lines, _FIRST_LINES))
        number = 0
        is_header = True  # of the next row that is not blank
        if start and (separator := _SEPARATOR_LINE.fullmatch(start[0])):
            delimiter = separator[1]
            del start[0]
            number = 1
        else:
            delimiter = _delimiter(start)
        quote = _quote(start, delimiter)
        rows = csv.reader(
            itertools.chain(start, lines), delimiter=delimiter, quotechar=quote, strict=True
        )
        try:
            for fields in rows:
                number += 1
                for field in fields:
                    check_utf8(field, path, number, is_header=is_header)
                if any(field.strip() for field in fields):
                    is_header = False
                    yield number, fields
        except csv.Error as error:
            raise ValueError(
                f"{row_name(path, number + 1)} is not a row of CSV ({error}): a field that "
                'contains a quote must be in quotes, with its own quotes doubled (""), not '
                'escaped (\\"), and columns are separated by a comma, semicolon, tab or |.'
            ) from error


class CsvForm(NamedTuple):
    """What separates the fields of a CSV file, and its encoding, with or without a mark."""

    delimiter: str = ","
    encoding: str = "utf-8"


COMMA_SEPARATED = CsvForm()


def csv_form(path: Path | str) -> CsvForm:
    """Returns the form of a CSV file, in which results are opened by the same program.

    Of what is no CSV file, such as a folder, it is the usual form.
    """
    path = Path(path)
    if suffix_of(path) != ".csv" or not path.is_file():
        return COMMA_SEPARATED
    with open_text(path, newline="") as file:
        delimiter = _delimiter([*itertools.islice(file, _FIRST_LINES)])
    with path.open("rb") as file:
        if file.read(3) == codecs.BOM_UTF8:
            return CsvForm(delimiter, "utf-8-sig")
    return CsvForm(delimiter)


def _first_records(lines: Sequence[str], delimiter: str, quote: str = '"') -> list[list[str]]:
    """Parses the rows of `lines` that are not blank, up to the first malformed one."""
    rows = []
    with contextlib.suppress(csv.Error):  # the last row may continue after `lines`
        rows.extend(csv.reader(lines, delimiter=delimiter, quotechar=quote, strict=True))
    return [row for row in rows if row]


def _delimiter(lines: Sequence[str]) -> str:
    """Returns the one of `DELIMITERS` that best divides `lines` into rows of equally many fields.

    Rows with quotes in a field count less, because a wrong sign may have divided a quoted field.
    """

    def fit(delimiter: str) -> int:
        score = 0
        rows = _first_records(lines, delimiter)
        for row in rows:
            if len(row) == len(rows[0]) > 1:
                score += 1 if '"' in "".join(row) else 2
        return score

    return max(DELIMITERS, key=fit)


def _quote(lines: Sequence[str], delimiter: str) -> str:
    """Returns "'" if single quotes enclose fields of `lines`, and else '"'.

    All rows must have equally many fields then. Single quotes enclose fields if they enclose all
    names of the columns, double a quote within, or hold fields together that would else make rows
    of other lengths.
    """
    double = _first_records(lines, delimiter)
    single = _first_records(lines, delimiter, "'")
    widths = {len(row) for row in single}
    if len(widths) != 1 or widths == {1} or not double:
        return '"'
    if all(re.fullmatch("'.+'", name) for name in double[0]):
        return "'"
    if any(map(_SINGLE_QUOTED.fullmatch, itertools.chain(*double))):
        return "'"
    held = len({len(row) for row in double}) > 1
    if held and not any(map(CSV_QUOTED.fullmatch, itertools.chain(*single))):
        return "'"
    return '"'


class Table:
    """A file with named columns.

    Formats are CSV and TSV with a header, JSON lines, a JSON array of objects, Parquet, and one
    text per line. All but Parquet may be compressed (gz, bz2, xz, zst).

    Attributes:
        columns: names of the columns; in JSON, the keys of the first objects; "text" if `is_text`.
        is_text: whether the file has one text per line; blank lines are rows with an empty text.
        is_typed: whether the file is JSON or Parquet, in which values need not be strings.
        is_tsv: whether the file is TSV without quotes.
    """

    def __init__(self, path: Path | str):
        """Reads the column names, unless the file has one text per line.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the suffix is unknown, the row that names the columns is missing or
                malformed, or a column name is empty (except the first one) or occurs twice.
        """
        self.path = Path(path).expanduser()
        check_exists(self.path)
        suffix = suffix_of(self.path)
        if suffix in EXCEL_SUFFIXES:
            raise ValueError(f"{self.path} is a spreadsheet: save it as CSV in UTF-8.")
        if suffix not in (*NAMED_COLUMNS, *TSV_SUFFIXES, *TEXT_SUFFIXES):
            raise ValueError(
                f"{self.path}: the suffix does not tell the format. Use .csv, .tsv, .jsonl "
                "(one JSON object per line), .json, .parquet or .txt (one text per line)."
            )
        self.is_parquet = suffix in PARQUET_SUFFIXES
        self.is_typed = self.is_parquet or suffix in JSON_SUFFIXES
        self.is_text = suffix in TEXT_SUFFIXES
        self.is_tsv = suffix in TSV_SUFFIXES and not self._is_quoted()
        number, self.columns = self._find_columns()
        if self.is_tsv and len(self.columns) == 1:
            self._check_tabs()
        _check_names(self.columns, row_name(self.path, number))

    def _is_quoted(self) -> bool:
        """Returns whether a TSV file has quotes as CSV does, as pandas and R write it."""
        _, names = next(read_tsv(self.path, has_header=True), (1, []))
        return bool(names) and all(map(CSV_QUOTED.fullmatch, names))

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        if self.is_tsv:
            return read_tsv(self.path, has_header=True)
        return read_csv(self.path)

    def _find_columns(self) -> tuple[int, tuple[str, ...]]:
        """Returns the row that names the columns, and the names."""
        if self.is_text:
            return 1, ("text",)
        if self.is_parquet:
            with open_parquet(str(self.path)) as file:
                return 1, tuple(file.schema_arrow.names)
        if self.is_typed:
            return self._find_keys()
        number, names = next(self._records(), (1, []))
        return number, _with_last_names([name.strip() for name in names])

    def _find_keys(self) -> tuple[int, tuple[str, ...]]:
        """Returns the row of the first object, and the keys of the first objects."""
        rows = read_json_rows(self.path)
        number, first = next(rows, (1, {}))
        if isinstance(first, ValueError):
            raise first
        keys = dict.fromkeys(first)
        for _, row in itertools.islice(rows, FIRST_ROWS):
            if isinstance(row, dict):
                keys |= dict.fromkeys(row)
        return number, tuple(keys)

    @functools.cached_property
    def first_rows(self) -> list[dict[str, Any]]:
        """The well-formed ones of the first `FIRST_ROWS` rows, which tell what columns hold."""
        rows = itertools.islice(self.rows_and_errors(), FIRST_ROWS)
        return [row for _, row in rows if isinstance(row, dict)]

    def first_values(self, column: str) -> list[Any]:
        """Returns the values of a column in `first_rows`."""
        return [row.get(column) for row in self.first_rows]

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (row number, {column: value}) for each row of the table, without the header.

        Raises:
            ValueError: a row is malformed, or does not have as many fields as the header.
        """
        for number, row in self.rows_and_errors():
            if isinstance(row, ValueError):
                raise row
            yield number, row

    def rows_and_errors(self) -> Rows:
        """Yields (row number, {column: value}), or (row number, ValueError) for a malformed row.

        Raises:
            ValueError: the rows after a malformed one cannot be read, as after an unclosed quote.
        """
        if self.is_text:
            for number, line in read_lines(self.path):
                yield number, {"text": line}
        elif self.is_parquet:
            yield from read_parquet(self.path)
        elif self.is_typed:
            yield from read_json_rows(self.path)
        else:
            rows = self._records()
            next(rows)
            for number, fields in rows:
                if problem := self._problem_of(fields):
                    yield number, ValueError(f"{row_name(self.path, number)} {problem}")
                else:
                    yield number, dict(zip(self.columns, fields, strict=True))

    def _problem_of(self, fields: Sequence[str]) -> str:
        """Returns why a row of CSV or TSV cannot be used; "" if it can be."""
        if any("\0" in field for field in fields):
            return "holds a NUL character, which no text has: remove it (tr -d '\\000')."
        if len(fields) == len(self.columns):
            # Files that were joined line by line contain the header of each of them.
            if len(fields) > 1 and tuple(field.strip() for field in fields) == self.columns:
                return "repeats the names of the columns: remove the row."
            return ""
        remedy = "put fields that contain a separator or a line end in quotes."
        if self.is_tsv:
            remedy = "tabs separate fields and quotes have no meaning; texts with tabs need a .csv."
        return (
            f"has {len(fields)} fields, but the first row has {len(self.columns)} "
            f"({brief(', '.join(self.columns))}): {remedy}"
        )

    def _check_tabs(self) -> None:
        """Raises ValueError if the header of a TSV file is separated by another sign than tabs."""
        (header,) = self.columns
        for sign in DELIMITERS:
            if sign in header:
                raise ValueError(
                    f"{row_name(self.path, 1)} has no tab, but {sign!r}: {brief(header, 80)!r}. "
                    "Tabs separate the columns of .tsv files; if the file is CSV, name it .csv."
                )


def _check_names(columns: Sequence[str], where: str) -> None:
    """Raises ValueError if a name is repeated or, except for the index of pandas, is missing."""
    counts = Counter(columns)
    problem = "" if columns else "is missing"
    for number, name in enumerate(columns[1:], 2):
        if not name:
            problem = f"reads {brief(', '.join(columns))!r}, in which column {number} has no name"
        elif counts[name] > 1:
            problem = (
                f"reads {brief(', '.join(columns))!r}, in which {brief(name, 40)!r} occurs twice"
            )
        if problem:
            break
    if problem:
        raise ValueError(
            f"{where} {problem}, but the first row must name the columns, each with a different "
            "name, such as text,label."
        )


def _with_last_names(columns: Sequence[str]) -> tuple[str, ...]:
    """Names the last unnamed columns, as spreadsheets write, unless most columns are unnamed."""
    named = len(columns)
    while named and not columns[named - 1]:
        named -= 1
    if 2 * named < len(columns):
        return tuple(columns)
    numbers = range(named + 1, len(columns) + 1)
    return (*columns[:named], *(f"column {number}" for number in numbers))


def shorten(value: Any) -> str:
    """Converts a value of a row to JSON text for an error message, cut after 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = f"a nested {type(value).__name__}"
    if len(text) <= 60:
        return text
    # A string is closed after the dots, so that what follows in the message is not read as its end.
    return f"{brief(text[:60])}...{text[-1] if isinstance(value, str) else ''}"


def is_blank(text: str) -> bool:
    """Returns whether a text has only spaces and characters that have no width, such as U+200B."""
    return not text or all(
        character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text
    )


class Row(NamedTuple):
    """One row of a user's file, {column: value} in `values`.

    All methods raise ValueError if a value has a wrong type; the message names the row.
    """

    path: Path
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """The path of the file and the number of the row, for error messages."""
        return row_name(self.path, self.number)

    def error(self, problem: str) -> ValueError:
        """Returns the error about a problem of the row, which it names."""
        return ValueError(f"{self.where}: {problem}")

    def text(self, column: str) -> str:
        """Returns the text in a column, which must not be empty."""
        if column not in self.values:
            raise ValueError(
                f"{self.where} has no column {brief(column, 60)!r}, only "
                f"{brief(', '.join(self.values))}. Correct the row."
            )
        return self._checked(self.values[column], column)

    def texts(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the text in each of `columns` or, if it is one column, the texts in its list."""
        if len(columns) == 1:
            return self.listed(columns[0])
        return tuple(map(self.text, columns))

    def listed(self, column: str) -> tuple[str, ...]:
        """Returns the texts in the list in a column, of which there must be at least one."""
        listed = self.values.get(column)
        if not isinstance(listed, list) or not listed:
            raise self.error(
                f"{brief(column, 60)!r} should be a list of texts, but is "
                f"{shorten(listed)}. Correct the row."
            )
        return tuple(self._checked(value, column, i) for i, value in enumerate(listed, 1))

    def _checked(self, value: Any, column: str, entry: int = 0) -> str:
        if not isinstance(value, str):
            remedy = "Correct the row."
            if isinstance(value, dict | list) and suffix_of(self.path) == ".json":
                remedy = "pandas writes one object per row with to_json(orient='records')."
            raise self.error(
                f"{brief(column, 60)!r} should be a text, but is {shorten(value)}. {remedy}"
            )
        if value != SQL_MISSING and not is_blank(value):
            # JSON can contain a lone surrogate, such as "\ud83d".
            check_utf8(value, self.path, self.number)
            return value
        state = "empty"
        if value == SQL_MISSING:
            state = f"{value}, a missing value of SQL"
        elif not value.isspace() and value:
            state = f"{value!a}, which shows nothing"
        what = "the text"
        remedy = "fill it or remove the row"
        if entry:
            what = f"entry {entry} of the list"
            remedy = "remove it, and its tag, if any"
        raise self.error(f"{what} in {brief(column, 60)!r} is {brief(state, 60)}; {remedy}.")

    def name(self, value: Any) -> str:
        """Converts a label to a class name; numbers and booleans become their JSON text.

        The JSON numbers 3 and 3.0 are one class, "3": pandas writes whole numbers as floats if a
        value is missing in their column.
        """
        if isinstance(value, str) and value.strip():
            check_utf8(value, self.path, self.number)
            return value.strip()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return json.dumps(value)
        raise self.error(
            f"the label {shorten(value)} is not the name of a class. For several "
            "labels per example, write lists in every row, or give --label_separator."
        )

    def names(self, values: Any) -> tuple[str, ...]:
        """Converts a list of labels or tags to class names."""
        if not isinstance(values, list):
            raise self.error(f"labels should be a list, but are {shorten(values)}. Write a list.")
        return tuple(map(self.name, values))

    def refuse_written_list(self, value: Any) -> None:
        """Raises ValueError if `value` is a text in which a program wrote a list."""
        if isinstance(value, str) and _WRITTEN_LIST.fullmatch(value):
            raise self.error(
                f"{shorten(value)} is a list that was written as a text: write JSON "
                "lines or Parquet, which hold lists; labels in CSV may stand as a|b with "
                "--label_separator, and words and tags as JSON lists."
            )
