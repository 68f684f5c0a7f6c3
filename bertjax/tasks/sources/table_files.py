"""`Table`, a file with named columns, in one of several formats."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.files import brief
from bertjax.tasks.sources.row_readers import (
    DELIMITERS,
    Rows,
    parquet_columns,
    place,
    read_csv,
    read_json_rows,
    read_lines,
    read_parquet,
    read_tsv,
)

CSV_SUFFIXES = (".csv",)
TSV_SUFFIXES = (".tsv", ".tab")
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)
TEXT_SUFFIXES = (".txt",)
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
EXCEL_SUFFIXES = (".xlsx", ".xls", ".xlsm", ".ods")
# Number of rows of TSV that are searched for fields quoted as in CSV.
ROWS_SEARCHED = 10_000
_CSV_QUOTED = re.compile(r'"(?:[^"]|"")+"')
# Suffixes of files whose columns have names, so that they cannot have CoNLL's columns.
NAMED_COLUMNS = (*CSV_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES)


def suffix_of(path: Path) -> str:
    """Returns the suffix of a file in lower case, ".csv" for both a.csv and a.csv.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if len(suffixes) > 1 and suffixes[-1] in COMPRESSED_SUFFIXES:
        return suffixes[-2]
    return suffixes[-1] if suffixes else ""


def files_in(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Returns [`path`] or, if it is a folder, the files in it whose suffixes are in `suffixes`.

    Raises:
        FileNotFoundError: there is no file or folder at `path`, or the folder has no such file.
    """
    if not path.is_dir():
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}: check its name.")
        return [path]
    files = sorted(
        file
        for file in path.iterdir()
        if file.is_file() and not file.name.startswith(".") and suffix_of(file) in suffixes
    )
    if not files:
        raise FileNotFoundError(
            f"The folder {path} has no data files ({', '.join(suffixes)}): check its name."
        )
    return files


def unread_files(path: Path, read: Sequence[Path]) -> str:
    """Returns a sentence that names the files and folders in a folder that are not in `read`.

    The result is "" if `path` is a file, and if all that is left are hidden files.
    """
    if not path.is_dir():
        return ""
    others = sorted(
        file.name + "/" * file.is_dir()
        for file in path.iterdir()
        if file not in read and not file.name.startswith(".")
    )
    if not others:
        return ""
    return (
        f"warning: not read in {path}: {brief(', '.join(others), 120)}. Only data files of a "
        "known suffix, directly in the folder, are read."
    )


class Table:
    """A file with named columns.

    Formats are CSV and TSV with a header, JSON lines, a JSON array of objects, Parquet, and one
    text per line. All but Parquet may be compressed (gz, bz2, xz, zst).

    Attributes:
        path: the path of the file.
        columns: names of the columns; in JSON, the keys of the first object; "text" if `is_text`.
        is_text: whether the file has one text per line; blank lines are rows with an empty text.
        is_typed: whether the file is JSON or Parquet, in which values need not be strings.
    """

    def __init__(self, path: Path | str):
        """Reads the column names, unless the file has one text per line.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the suffix is unknown, the row that names the columns is missing or
                malformed, or a column name is empty (except the first one) or occurs twice.
        """
        self.path = Path(path).expanduser()
        suffix = suffix_of(self.path)
        if not self.path.is_file():
            raise FileNotFoundError(f"There is no file {self.path}: check its name.")
        if suffix in EXCEL_SUFFIXES:
            raise ValueError(
                f"{self.path} is a spreadsheet: save it as CSV in UTF-8, or convert it "
                "(pip install pandas openpyxl) "
                f'with python -c "import pandas; pandas.read_excel({str(self.path)!r})'
                ".to_csv('data.csv', index=False)\"."
            )
        if suffix not in (*NAMED_COLUMNS, *TSV_SUFFIXES, *TEXT_SUFFIXES):
            raise ValueError(
                f"{self.path}: the suffix does not tell the format. Use .csv, .tsv, .jsonl "
                "(one JSON object per line), .json, .parquet or .txt (one text per line)."
            )
        self.is_parquet = suffix in PARQUET_SUFFIXES
        self.is_typed = self.is_parquet or suffix in JSON_SUFFIXES
        self.is_text = suffix in TEXT_SUFFIXES
        self._read = read_csv if suffix in CSV_SUFFIXES else read_tsv
        self.columns = self._find_columns()

    def _find_columns(self) -> tuple[str, ...]:
        if self.is_text:
            return ("text",)
        if self.is_parquet:
            number, columns = 1, parquet_columns(self.path)
        else:
            rows = read_json_rows(self.path) if self.is_typed else self._read(self.path)
            number, first = next(rows, (1, ()))
            if isinstance(first, ValueError):
                raise first
            columns = (
                tuple(first)
                if self.is_typed
                else _with_last_names(tuple(name.strip() for name in first))
            )
        if self._read is read_tsv and not self.is_typed and len(columns) == 1:
            _check_tabs(self.path, columns[0])
        _check_names(columns, place(self.path, number))
        return columns

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (row number, {column: value}) for each row of the table, without the header.

        Rows are counted from 1, and the header and blank rows count.

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
            ValueError: a row is malformed in such a way that the rows after it cannot be read, for
                example by a quote that is not closed.
        """
        if self.is_text:
            yield from ((number, {"text": line}) for number, line in read_lines(self.path))
        elif self.is_typed:
            yield from (read_parquet if self.is_parquet else read_json_rows)(self.path)
        else:
            rows = self._read(self.path)
            next(rows)
            for number, fields in rows:
                if problem := self._problem_of(number, fields):
                    yield number, ValueError(problem)
                else:
                    yield number, dict(zip(self.columns, fields, strict=True))

    def first_quoted_row(self) -> int | None:
        """Returns the number of the first row of TSV with a field that seems quoted as in CSV.

        The first `ROWS_SEARCHED` rows are searched.
        Such a field is in quotes, with its own quotes doubled. Quotes have no meaning in TSV, so
        that they become a part of the text. The result is None for other formats and if there is no
        such row.
        """
        if self.is_text or self.is_typed or self._read is not read_tsv:
            return None
        for number, fields in itertools.islice(read_tsv(self.path), ROWS_SEARCHED):
            if any('""' in field and _CSV_QUOTED.fullmatch(field.strip()) for field in fields):
                return number
        return None

    def _problem_of(self, number: int, fields: Sequence[str]) -> str | None:
        """Returns why a row of CSV or TSV cannot be used; None if it can be."""
        if len(fields) == len(self.columns):
            # Files that were joined line by line contain the header of each of them.
            if len(fields) == 1 or tuple(field.strip() for field in fields) != self.columns:
                return None
            return f"{place(self.path, number)} repeats the names of the columns: remove the row."
        remedy = (
            "put fields that contain a separator or a line end in quotes."
            if self._read is read_csv
            else "tabs separate fields and quotes have no meaning; texts with tabs need a .csv."
        )
        return (
            f"{place(self.path, number)} has {len(fields)} fields, but the first row has "
            f"{len(self.columns)} ({brief(', '.join(self.columns))}): {remedy}"
        )


def _check_names(columns: Sequence[str], where: str) -> None:
    """Raises ValueError if a header lacks names, or has one twice; `where` names its row.

    The first column may lack a name, because pandas writes its index in a column without one.
    """
    broken = [i for i, name in enumerate(columns) if i and (not name or columns.count(name) > 1)]
    if not columns:
        problem = "is missing"
    elif broken and columns[broken[0]]:
        name = brief(columns[broken[0]], 40)
        problem = f"reads {brief(', '.join(columns))!r}, in which {name!r} occurs twice"
    elif broken:
        problem = (
            f"reads {brief(', '.join(columns))!r}, in which column {broken[0] + 1} has no name"
        )
    else:
        return
    raise ValueError(
        f"{where} {problem}, but the first row must name the columns, each with a different name, "
        "such as text,label."
    )


def _with_last_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Names the last columns of a header that have no name, as spreadsheets write empty columns.

    The names are "column N", where N counts from 1. If more than half of the columns have no name,
    which is not how a header looks, nothing is named.
    """
    named = len(columns)
    while named and not columns[named - 1]:
        named -= 1
    if 2 * named < len(columns):
        return columns
    return columns[:named] + tuple(f"column {i + 1}" for i in range(named, len(columns)))


def _check_tabs(path: Path, header: str) -> None:
    """Raises ValueError if the header of a TSV file is separated by another sign than tabs."""
    sign = next((sign for sign in DELIMITERS if sign in header), None)
    if sign is not None:
        raise ValueError(
            f"{place(path, 1)} has no tab, but {sign!r}: {brief(header, 80)!r}. Tabs separate the "
            "columns of .tsv files; if the file is CSV, name it .csv."
        )
