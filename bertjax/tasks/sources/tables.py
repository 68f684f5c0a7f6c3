"""`Table`, a file with named columns: CSV, TSV, JSON, Parquet, Arrow or a text per line.

Rows are counted from 1, including the header and blank rows, as in a spreadsheet. In CSV, TSV and
JSON lines, the row number is also the line number, unless an earlier quoted field contains line
ends. Each of "\\n", "\\r\\n" and "\\r" ends a line, even in the same file. All files but Parquet
may be compressed: gz, bz2, xz or zst.
"""

import codecs
import contextlib
import csv
import functools
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from bertjax.base.files import brief, did_you_mean, read_json_or_empty
from bertjax.data.text.streams import decompressed
from bertjax.data.text.tables import ARROW_SUFFIX, open_parquet, parquet_batches

# Maximum length of a field and of a line, in characters: a longer field has an unclosed quote. The
# limit also bounds the memory of a parsed line of JSON, up to 24 bytes per character.
MAX_LINE = 1 << 24
# Characters that are read at once from a JSON array, and what may stand between its elements.
_BLOCK = 1 << 16
_SEPARATOR = re.compile(r"[\s,]*")
# Signs that separate the fields of CSV, and the number of lines that tell which of them it is.
DELIMITERS = (",", ";", "\t", "|")
_FIRST_LINES = 100
# Spreadsheets write the separator of a CSV file in a line before the names of the columns.
_SEPARATOR_LINE = re.compile(r"sep=(.)\s*")
# Fields in quotes, as CSV has them; of single ones, only what apostrophes alone do not explain.
_CSV_QUOTED = re.compile(r'"(?:[^"]|"")+"')
_SINGLE_QUOTED = re.compile(r"'(?:[^']|'')*''(?:[^']|'')*'")
# How programs for SQL escape tabs, line ends and backslashes, and mark a missing value.
_SQL_ESCAPE = re.compile(r"(?<=[\w.,;!?])\\[tnr]|\\\\|\A\\N\Z")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
# What may be the first half of a pair of surrogates in JSON, or half a pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
Rows = Iterator[tuple[int, dict[str, Any] | ValueError]]


def row_name(path: Path | str, row: int) -> str:
    """Returns "PATH, row ROW", which names a row of a file in messages."""
    return f"{path}, row {row}"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (row number, line without line end) for each line; skips a byte order mark.

    Raises:
        ValueError: a line is not UTF-8, or is longer than `MAX_LINE` characters.
    """
    with open_text(path, newline=None) as file:
        for number, line in enumerate(_bounded(file, path), start=1):
            check_utf8(line, path, number)
            yield number, line.removesuffix("\n")


def read_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (row number, fields) for each non-blank line of TSV, where quotes are ordinary text.

    Raises ValueError as `read_lines` does.
    """
    for number, line in read_lines(path):
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
    number = 0
    with open_text(path, newline="") as file:
        lines = _bounded(file, path)
        start = list(itertools.islice(lines, _FIRST_LINES))
        if named := _SEPARATOR_LINE.fullmatch("".join(start[:1])):
            first, delimiter = 2, named[1]
        else:
            first, delimiter = 1, _delimiter(start)
        lines = itertools.chain(start[first - 1 :], lines)
        try:
            quote = _quote(start[first - 1 :], delimiter)
            rows = csv.reader(lines, delimiter=delimiter, quotechar=quote, strict=True)
            for number, fields in enumerate(rows, first):
                for field in fields:
                    check_utf8(field, path, number)
                if any(field.strip() for field in fields):
                    yield number, fields
        except csv.Error as error:
            raise ValueError(
                f"{row_name(path, number + 1)} is not a row of CSV ({error}): a field that "
                'contains a quote must be in quotes, with its own quotes doubled (""), not '
                'escaped (\\"), and columns are separated by a comma, semicolon, tab or |.'
            ) from error


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
        rows = _first_records(lines, delimiter)
        fitting = [row for row in rows if len(row) == len(rows[0]) > 1]
        return sum(1 + all('"' not in field for field in row) for row in fitting)

    return max(DELIMITERS, key=fit)


def _quote(lines: Sequence[str], delimiter: str) -> str:
    """Returns "'" if single quotes enclose fields of `lines`, and else '"'.

    All rows must have equally many fields then. Single quotes enclose fields if they enclose all
    names of the columns, double a quote within, or hold fields together that would else make rows
    of other lengths.
    """
    double, single = (_first_records(lines, delimiter, quote) for quote in "\"'")
    widths, single_widths = ({len(row) for row in rows} for rows in (double, single))
    if len(single_widths) != 1 or single_widths == {1} or not double:
        return '"'
    named = all(re.fullmatch("'.+'", name) for name in double[0])
    doubled = any(_SINGLE_QUOTED.fullmatch(field) for row in double for field in row)
    held = len(widths) > 1 and not any(_CSV_QUOTED.fullmatch(x) for row in single for x in row)
    return "'" if named or doubled or held else '"'


def read_json_rows(path: Path) -> Rows:
    """Yields (row number, object) for each line of JSON lines, or element of a JSON array.

    A ValueError takes the place of what is not a JSON object. Blank lines are left out.

    Raises:
        ValueError: a line is not UTF-8, a line or an element exceeds `MAX_LINE` characters, or an
            element of an array is not JSON, so that the elements after it cannot be read.
    """
    with open_text(path, newline=None) as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
    if start == "[":
        rows = _array_elements(path)
    else:
        lines = ((number, line) for number, line in read_lines(path) if line.strip())
        rows = ((number, _parsed(path, number, line)) for number, line in lines)
    for number, row in rows:
        if not isinstance(row, dict | ValueError):
            row = ValueError(
                f"{row_name(path, number)} holds a JSON {type(row).__name__}, not an object: write "
                'one object per line, such as {"text": "...", "label": "..."}.'
            )
        yield number, row


def _parsed(path: Path, number: int, line: str) -> Any:
    """Parses a line of JSON lines; if it is not JSON, returns (and does not raise) a ValueError."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return ValueError(
            f"{row_name(path, number)} is not JSON ({brief(error)}): write one object per line, "
            'such as {"text": "...", "label": "..."}.'
        )
    return _without_surrogates(value, line, path, number)


def _without_surrogates(value: Any, text: str, path: Path, number: int) -> Any:
    """Returns `value`, parsed from the JSON `text`, or a ValueError if it has a lone surrogate."""
    try:
        if _SURROGATE.search(text):
            check_utf8(json.dumps(value, ensure_ascii=False), path, number)
    except ValueError as error:
        return error
    return value


def _array_elements(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields (number from 1, element) for each element of a JSON array larger than the memory."""
    decode = json.JSONDecoder().raw_decode
    with open_text(path, newline=None) as file:
        buffer = file.read(_BLOCK)
        at = buffer.index("[") + 1
        for number in itertools.count(1):
            at, size = _SEPARATOR.match(buffer, at).end(), _BLOCK  # pyright: ignore
            while not buffer.startswith("]", at):
                try:
                    value, end = decode(buffer, at)
                    break
                except (ValueError, RecursionError) as error:
                    more = file.read(size)
                    if not more or len(buffer) - at > MAX_LINE:
                        raise ValueError(
                            f"{path}: element {number} of the array is not JSON, or has more than "
                            f"{MAX_LINE:,} characters ({brief(error)}): correct the file, or "
                            "write one object per line."
                        ) from error
                    buffer, size = buffer[at:] + more, 2 * size
                    at = _SEPARATOR.match(buffer).end()  # pyright: ignore
            else:
                return
            check_utf8(buffer[at:end], path, number)
            yield number, _without_surrogates(value, buffer[at:end], path, number)
            at = end


def read_parquet(path: Path) -> Rows:
    """Yields (row number, {column: value}) for each row of a Parquet or Arrow file, from 1.

    If Hugging Face's `datasets` wrote the names of classes, class ids become these names; the id
    -1, which marks an unknown class, becomes None, and a ValueError takes the place of a row with
    an id that has no name. Values become those of JSON as by `json_value`.

    Raises:
        ValueError: the file is damaged, or a text in it is not UTF-8.
    """
    count = itertools.count(1)
    with open_parquet(str(path)) as file:
        # In a dataset that `save_to_disk` wrote, the description of its classes counts first.
        features = _features((file.schema_arrow.metadata or {}).get(b"huggingface"))
        if saved_files(path.parent):
            features |= read_json_or_empty(path.parent / DATASET_INFO).get("features") or {}
        for rows in parquet_batches(str(path), file):
            for number, row in zip(count, rows, strict=False):
                try:
                    values = {
                        column: json_value(row[column], features.get(column)) for column in row
                    }
                except ValueError as error:
                    values = ValueError(f"{row_name(path, number)}: {error}")
                yield number, values


def _features(metadata: bytes | None) -> dict[str, Any]:
    """Returns {column: its type} from what Hugging Face's `datasets` writes into the file."""
    try:
        features = json.loads(metadata or b"{}")["info"]["features"]
    except (ValueError, LookupError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def json_value(value: Any, feature: Any = None) -> Any:
    """Converts a value from Parquet or Python to a JSON value.

    Bytes become their text, sets sorted lists, missing values None, and dates, decimals and so on
    texts. What has no such form, such as an image, becomes an object: neither a text nor a label.
    Class ids become names where `feature`, the type of the value in `datasets`, has them.

    Raises ValueError for a class id without a name.
    """
    if type(value) in (str, int, type(None)) and "names" not in (feature or ()):
        return value
    if hasattr(value, "tolist"):  # numpy, whose times would become numbers of nanoseconds
        is_time = getattr(getattr(value, "dtype", None), "kind", None) in ("m", "M")
        value = (value.astype(str) if is_time else value).tolist()
        value = None if is_time and value == "NaT" else value
    if value is None:
        return None
    known = feature if isinstance(feature, dict) else {}
    if isinstance(value, list | tuple | set | frozenset):
        # Lists describe their elements: {"feature": ...}, or [...] before version 4 of datasets.
        inner = feature[0] if isinstance(feature, list) and feature else known.get("feature")
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [json_value(item, inner) for item in items]
    if isinstance(value, Mapping):
        if isinstance(inner := known.get("feature"), dict) and "_type" in known:
            known = {key: [part] for key, part in inner.items()}  # an object of lists
        return {str(key): json_value(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None  # pandas marks missing values with NaN
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"bytes": bytes(value).hex()}
    names = known.get("names") if known.get("_type") == "ClassLabel" else None
    if isinstance(names, list) and isinstance(value, int | float) and not isinstance(value, bool):
        if value not in range(-1, len(names)):
            raise ValueError(
                f"the class id {value} has no name, because the file names {len(names)} classes "
                f"({brief(', '.join(map(str, names)), 60)}), with ids from 0: correct the id, or "
                "write names."
            )
        return None if value == -1 else names[int(value)]
    if isinstance(value, str | int | float | bool):
        return value
    text = str(value)
    if " at 0x" in text:  # no text of its own
        return {"type": type(value).__name__}
    return None if text in ("<NA>", "NaT", "NaN") else text


def read_number(text: str) -> float | None:
    """Converts a text to a float; returns None if the text is not a finite number.

    Python's own forms, such as 1_000, are no numbers, and digits are those of ASCII, as in pandas.
    """
    text = text.strip()
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def check_utf8(text: str, path: Path | str, row: int) -> None:
    """Raises ValueError, naming row and byte, for a lone surrogate (a byte that is not UTF-8)."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if not 0xDC80 <= code <= 0xDCFF:
            raise ValueError(
                f"{row_name(path, row)} is not UTF-8: \\u{code:04x} is half a character (a lone "
                f"surrogate), in {brief(ascii(text[max(0, error.start - 20) : error.end]), 60)}: "
                "remove it, or write both halves."
            ) from error
        raise ValueError(
            f"{row_name(path, row)} is not UTF-8: byte 0x{code - 0xDC00:02x} at character "
            f"{error.start + 1}. Save the file as UTF-8, or convert it: iconv -f WINDOWS-1252 -t "
            "UTF-8 FILE > NEW_FILE, if it comes from a Windows program of Western Europe or "
            "America."
        ) from error


def _bounded(file: TextIO, path: Path) -> Iterator[str]:
    """Yields the lines of a file; raises ValueError if one exceeds `MAX_LINE` characters."""
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


def open_text(path: Path, newline: str | None, errors: str = "surrogateescape") -> TextIO:
    """Opens a text file, which may be compressed, with or without a byte order mark.

    By default, bytes that are not UTF-8 become lone surrogates, which `check_utf8` finds in each
    row, because errors of strict decoding do not name the row.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is UTF-16, UTF-32 or a ZIP file. A damaged compressed file raises
            ValueError when it is read.
    """
    file = open(path, "rb")
    try:
        stream = decompressed(str(path), file)
        if stream.peek(4) == b"PK\x03\x04":
            raise ValueError(
                f"{path} is a ZIP file, such as a spreadsheet of Excel: save the spreadsheet as "
                "CSV in UTF-8, or unpack the file."
            )
        if encoding := _utf16(stream.peek(256)):
            raise ValueError(
                f"{path} is {encoding}, but must be UTF-8: convert it with iconv -f {encoding} -t "
                "UTF-8 FILE > NEW_FILE."
            )
    except BaseException:
        file.close()
        raise
    raw = cast(BinaryIO, stream)
    return _Text(raw, file, encoding="utf-8-sig", errors=errors, newline=newline)


def _utf16(start: bytes) -> str:
    """Returns the name of the UTF-16 or -32 encoding of a text that begins with `start`, or "".

    Without a byte order mark, every other byte of mostly ASCII text is 0, which UTF-8 never has.
    """
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    pairs = len(start) // 2
    if pairs and 2 * start[1 : 2 * pairs : 2].count(0) > pairs:
        return "UTF-16LE"
    return "UTF-16BE" if pairs and 2 * start[: 2 * pairs : 2].count(0) > pairs else ""


class _Text(io.TextIOWrapper):
    """A text stream whose `close` also closes the file from which the stream reads."""

    def __init__(self, stream: BinaryIO, file: BinaryIO, **options: Any):
        super().__init__(stream, **options)
        self._file = file

    def close(self) -> None:
        super().close()
        self._file.close()


CSV_SUFFIXES = (".csv",)
TSV_SUFFIXES = (".tsv", ".tab")
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
# Files of Arrow are read like those of Parquet.
PARQUET_SUFFIXES = (".parquet", ARROW_SUFFIX)
TEXT_SUFFIXES = (".txt",)
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
EXCEL_SUFFIXES = (".xlsx", ".xls", ".xlsm", ".ods")
FIRST_ROWS = 100
# Number of rows of TSV that are searched for fields quoted as in CSV.
ROWS_SEARCHED = 10_000
# Suffixes of files whose columns have names, so that they cannot have CoNLL's columns.
NAMED_COLUMNS = (*CSV_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES)


def suffix_of(path: Path) -> str:
    """Returns the suffix of a file in lower case, ".csv" for both a.csv and a.csv.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if len(suffixes) > 1 and suffixes[-1] in COMPRESSED_SUFFIXES:
        return suffixes[-2]
    return suffixes[-1] if suffixes else ""


def files_in(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Returns [`path`] or, if it is a folder, the files in it with one of `suffixes`.

    Of a folder that `save_to_disk` of `datasets` wrote, the files are those that it lists.

    Raises:
        FileNotFoundError: there is no file or folder at `path`, or the folder has no such file.
        ValueError: the folder holds several splits, or files of Arrow without their list.
    """
    if not path.is_dir():
        if not path.is_file():
            raise FileNotFoundError(_no_file(path))
        return [path]
    if saved := saved_files(path):
        return saved
    if any(path.glob("*.arrow")) or (path / DATASET_SPLITS).is_file():
        raise ValueError(
            f"The folder {path} holds splits or files of Arrow, which are not read together: give "
            "the folder of one split, as save_to_disk of datasets writes it, or one file."
        )
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


def _no_file(path: Path) -> str:
    """Returns the message for a file that does not exist, with the most similar name beside it."""
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, beside)
    return f"There is no file {path}: check its name. {hint}".rstrip()


# What `save_to_disk` of `datasets` writes beside the files of a dataset, and beside its splits.
DATASET_STATE, DATASET_INFO, DATASET_SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def saved_files(folder: Path) -> list[Path]:
    """Returns the files of the dataset that `save_to_disk` of `datasets` wrote to a folder, or [].

    Versions before 1.6 may have written the order of the rows to a file of its own: [], too.
    """
    state = read_json_or_empty(folder / DATASET_STATE)
    listed = () if state.get("_indices_data_files") else state.get("_data_files", ())
    return [folder / entry["filename"] for entry in listed]


def saved_split(path: Path, split: str) -> Path:
    """Returns the folder of a split in a folder that `save_to_disk` wrote, or `path`.

    Raises ValueError if the folder holds splits, but none is named like `split`.
    """
    known = read_json_or_empty(path / DATASET_SPLITS).get("splits", ())
    return path / split_named(known, split, str(path))


def split_named(known: Sequence[str], split: str, where: str) -> str:
    """Returns the one of the splits `known` that is read as `split`; "" if there are no splits.

    Raises ValueError, which begins with `where`, if there are splits, but not this one.
    """
    names = ("validation", "dev", "val") if split == "dev" else (split,)
    found = [name for name in names if name in known]
    if known and not found:
        raise ValueError(
            f"{where} holds the splits {', '.join(known)}, but none named {names[0]}: give one."
        )
    return found[0] if found else ""


def unread_files(path: Path, read: Sequence[Path]) -> str:
    """Returns a warning about what a folder holds besides the files `read`, or ""."""
    if not path.is_dir():
        return ""
    if splits := read_json_or_empty(path.parent / DATASET_SPLITS).get("splits"):
        return f"{path} is read, one of the splits {', '.join(splits)}."
    others = sorted(
        file.name + "/" * file.is_dir()
        for file in path.iterdir()
        if file not in read
        and not file.name.startswith(".")
        and file.name not in (DATASET_STATE, DATASET_INFO)
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
        columns: names of the columns; in JSON, the keys of the first objects; "text" if `is_text`.
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
            raise FileNotFoundError(_no_file(self.path))
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
            with open_parquet(str(self.path)) as file:
                number, columns = 1, tuple(file.schema_arrow.names)
        else:
            rows = read_json_rows(self.path) if self.is_typed else self._read(self.path)
            number, first = next(rows, (1, ()))
            if isinstance(first, ValueError):
                raise first
            if self._read is read_tsv and first and all(map(_CSV_QUOTED.fullmatch, first)):
                self._read = read_csv  # a table with quotes, as pandas and R write it
                return self._find_columns()
            if self.is_typed:  # a key that the first object lacks is a column as well
                keys = dict.fromkeys(first)
                for _, row in itertools.islice(rows, FIRST_ROWS):
                    if isinstance(row, dict):
                        keys |= dict.fromkeys(row)
                first = tuple(keys)
            columns = (
                tuple(first)
                if self.is_typed
                else _with_last_names(tuple(name.strip() for name in first))
            )
        if self._read is read_tsv and not self.is_typed and len(columns) == 1:
            _check_tabs(self.path, columns[0])
        _check_names(columns, row_name(self.path, number))
        return columns

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

    def quoting_note(self) -> str:
        """Returns a warning about the first row of TSV that seems quoted or escaped, or "".

        Quotes and backslashes have no meaning in TSV, so that they become a part of the text. The
        first `ROWS_SEARCHED` rows are searched.
        """
        if self.is_text or self.is_typed or self._read is not read_tsv:
            return ""
        for number, fields in itertools.islice(read_tsv(self.path), ROWS_SEARCHED):
            if any('""' in field and _CSV_QUOTED.fullmatch(field.strip()) for field in fields):
                return (
                    f"warning: {row_name(self.path, number)} seems to be quoted as in CSV, but "
                    "quotes have no meaning in TSV and are read as text: save the table as CSV."
                )
            if escaped := next(filter(None, map(_SQL_ESCAPE.search, fields)), None):
                return (
                    f"warning: {row_name(self.path, number)} holds {escaped[0]}, as MySQL and "
                    "PostgreSQL escape texts in TSV, but it is read as it stands: if it is an "
                    "escape, export CSV."
                )
        return ""

    def _problem_of(self, number: int, fields: Sequence[str]) -> str | None:
        """Returns why a row of CSV or TSV cannot be used; None if it can be."""
        if any("\0" in field for field in fields):
            return (
                f"{row_name(self.path, number)} holds a NUL character, which no text has: remove "
                "it (tr -d '\\000'), or export the table again."
            )
        if len(fields) == len(self.columns):
            # Files that were joined line by line contain the header of each of them.
            if len(fields) == 1 or tuple(field.strip() for field in fields) != self.columns:
                return None
            return (
                f"{row_name(self.path, number)} repeats the names of the columns: remove the row."
            )
        remedy = (
            "put fields that contain a separator or a line end in quotes."
            if self._read is read_csv
            else "tabs separate fields and quotes have no meaning; texts with tabs need a .csv."
        )
        return (
            f"{row_name(self.path, number)} has {len(fields)} fields, but the first row has "
            f"{len(self.columns)} ({brief(', '.join(self.columns))}): {remedy}"
        )


def _check_names(columns: Sequence[str], where: str) -> None:
    """Raises ValueError if a name is repeated or, except for the index of pandas, is missing."""
    counts = Counter(columns)
    broken = [i for i, name in enumerate(columns) if i and (not name or counts[name] > 1)]
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
    """Names the last unnamed columns, as spreadsheets write, unless most columns are unnamed."""
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
            f"{row_name(path, 1)} has no tab, but {sign!r}: {brief(header, 80)!r}. Tabs separate "
            "the columns of .tsv files; if the file is CSV, name it .csv."
        )
