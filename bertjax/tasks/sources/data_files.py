"""The files of the user's data: which there are, their formats by suffix, and their lines of text.

Text files may be compressed: gz, bz2, xz or zst. Each of "\\n", "\\r\\n" and "\\r" ends a line,
even in the same file.
"""

import codecs
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from bertjax.base.files import brief, did_you_mean, read_json_or_empty
from bertjax.data.text.streams import BLOCK_BYTES, decompressed, likely_encodings
from bertjax.data.text.tables import ARROW_SUFFIX

# Maximum length of a field and of a line, in characters: a longer field has an unclosed quote. The
# limit also bounds the memory of a parsed line of JSON, up to 24 bytes per character.
MAX_LINE = 1 << 24
CSV_SUFFIXES = (".csv",)
TSV_SUFFIXES = (".tsv", ".tab")
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
# Files of Arrow are read like those of Parquet.
PARQUET_SUFFIXES = (".parquet", ARROW_SUFFIX)
TEXT_SUFFIXES = (".txt",)
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
EXCEL_SUFFIXES = (".xlsx", ".xls", ".xlsm", ".ods")
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
        check_exists(path)
        return [path]
    if saved := saved_files(path):
        return saved
    if any(path.glob("*.arrow")) or (path / DATASET_SPLITS).is_file():
        raise ValueError(
            f"The folder {path} holds splits or files of Arrow, which are not read together: give "
            "the folder of one split, as save_to_disk of datasets writes it, or one file."
        )
    files = [file for file in _visible(path) if file.is_file() and suffix_of(file) in suffixes]
    if not files:
        raise FileNotFoundError(
            f"The folder {path} has no data files ({', '.join(suffixes)}): check its name."
        )
    return files


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def check_exists(path: Path) -> None:
    """Raises FileNotFoundError, with the most similar name beside it, if `path` is no file."""
    if path.is_file():
        return
    beside = []
    if path.parent.is_dir():
        beside = [other.name for other in path.parent.iterdir()]
    hint = did_you_mean(path.name, beside)
    raise FileNotFoundError(f"There is no file {path}: check its name. {hint}".rstrip())


# What `save_to_disk` of `datasets` writes beside the files of a dataset, and beside its splits.
DATASET_STATE = "state.json"
DATASET_INFO = "dataset_info.json"
DATASET_SPLITS = "dataset_dict.json"


def saved_files(folder: Path) -> list[Path]:
    """Returns the files of the dataset that `save_to_disk` of `datasets` wrote to a folder, or [].

    Versions before 1.6 may have written the order of the rows to a file of its own: [], too.
    """
    state = read_json_or_empty(folder / DATASET_STATE)
    if state.get("_indices_data_files"):
        return []
    return [folder / entry["filename"] for entry in state.get("_data_files", ())]


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
    names = [split]
    if split == "dev":
        names = ["validation", "dev", "val"]
    for name in names:
        if name in known:
            return name
    if known:
        raise ValueError(
            f"{where} holds the splits {', '.join(known)}, but none named {names[0]}: give one."
        )
    return ""


def unread_files(path: Path, read: Sequence[Path]) -> str:
    """Returns a warning about what a folder holds besides the files `read`, or ""."""
    if not path.is_dir():
        return ""
    if splits := read_json_or_empty(path.parent / DATASET_SPLITS).get("splits"):
        return f"{path} is read, one of the splits {', '.join(splits)}."
    known = {DATASET_STATE, DATASET_INFO, *(file.relative_to(path).parts[0] for file in read)}
    others = []
    for other in _visible(path):
        if other.name not in known:
            others.append(f"{other.name}/" if other.is_dir() else other.name)
    if not others:
        return ""
    return (
        f"warning: not read in {path}: {brief(', '.join(others), 120)}. Only data files of a "
        "known suffix, directly in the folder, are read."
    )


def row_name(path: Path | str, row: int) -> str:
    """Returns "PATH, row ROW", which names a row of a file in messages."""
    return f"{path}, row {row}"


def read_lines(path: Path, *, has_header: bool = False) -> Iterator[tuple[int, str]]:
    """Yields (row number, line without line end) for each line; skips a byte order mark.

    `has_header` says whether errors call the first line the header.

    Raises:
        ValueError: a line is not UTF-8, or is longer than `MAX_LINE` characters.
    """
    with open_text(path, newline=None) as file:
        for number, line in enumerate(bounded_lines(file, path), start=1):
            check_utf8(line, path, number, is_header=has_header and number == 1)
            yield number, line.removesuffix("\n")


def check_utf8(text: str, path: Path, row: int, *, is_header: bool = False) -> None:
    """Raises ValueError, naming row and byte, for a lone surrogate (a byte that is not UTF-8)."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        where = f"{path}, the header" if is_header else row_name(path, row)
        if not 0xDC80 <= code <= 0xDCFF:
            before = ascii(text[max(0, error.start - 20) : error.end])
            raise ValueError(
                f"{where} is not UTF-8: \\u{code:04x} is half a character (a lone surrogate), in "
                f"{brief(before, 60)}: remove it, or write both halves."
            ) from error
        raise ValueError(
            f"{where} is not UTF-8: byte 0x{code - 0xDC00:02x} at character {error.start + 1}. "
            f"{_guesses(path, text)}Save the file as UTF-8, or convert it with iconv -f ENCODING "
            "-t UTF-8 FILE > NEW_FILE."
        ) from error


def _guesses(path: Path, line: str) -> str:
    """Says in which encodings a file may be, by its beginning and a line that is not UTF-8."""
    block = line.encode(errors="surrogateescape") + b"\n"
    if path.is_file():  # not rows of Python
        with open(path, "rb") as file:
            block += decompressed(str(path), file).read(BLOCK_BYTES)
    likely = likely_encodings(block)
    if not likely:
        return ""
    return f"Its encoding is probably {likely}: the one whose word is right. "


def bounded_lines(file: TextIO, path: Path) -> Iterator[str]:
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
    if 2 * start[1::2].count(0) > pairs:
        return "UTF-16LE"
    if 2 * start[0 : 2 * pairs : 2].count(0) > pairs:
        return "UTF-16BE"
    return ""


class _Text(io.TextIOWrapper):
    """A text stream whose `close` also closes the file from which the stream reads."""

    def __init__(self, stream: BinaryIO, file: BinaryIO, **options: Any):
        super().__init__(stream, **options)
        self._file = file

    def close(self) -> None:
        super().close()
        self._file.close()
