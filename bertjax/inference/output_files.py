"""Files of predictions: JSON lines and tables, and output that an interrupted command continues.

A command that writes the file OUTPUT first writes the partial file `OUTPUT.HASH.partial` beside it,
and renames the partial file to OUTPUT at the end. HASH is a hash of everything that determines the
content of OUTPUT, such as the model and the input. A partial file with the same HASH is continued;
partial files of OUTPUT with another HASH are deleted.

Tables are written from JSON lines. A row has the columns of the input, then the columns of the
prediction, such as `predicted_label` and `probability_yes`. A list of texts is written joined by
"|", any other list or dictionary as JSON. In Parquet, whole numbers, numbers and truth values keep
their types; dates are texts.
"""

import contextlib
import csv
import dataclasses
import glob
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import jax
import numpy as np

import bertjax
from bertjax.base.files import (
    json_lines,
    naming_write_errors,
    read_json,
    write_json,
    writing,
)
from bertjax.base.lock import Lock, scratch_folder
from bertjax.base.printable import unfiltered
from bertjax.base.process import need_output
from bertjax.base.progress import waiting
from bertjax.inference.predictor import Groups
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.sources.columns import is_usual_text
from bertjax.tasks.sources.tables import COMMA_SEPARATED, DELIMITERS, CsvForm, csv_form
from bertjax.tasks.task import OF_GOLD


@contextlib.contextmanager
def standard_input_as_file() -> Iterator[Path]:
    """Yields the path of a temporary file with all that standard input holds.

    The file is stdin.jsonl (JSON lines) if the first character that is not a space is "{",
    stdin.json if it is an array of objects, and stdin.txt (one text per line) otherwise. If its
    first line seems to name the columns of a table, a warning says that it is read as a text.
    """
    if sys.stdin is None:
        raise ValueError("Standard input is closed: leave out <&-, or give a file or a pipe.")
    with scratch_folder() as folder:
        path = folder / "stdin.txt"
        with naming_write_errors(folder), path.open("wb") as file:
            with waiting("the end of standard input"):
                shutil.copyfileobj(sys.stdin.buffer, file)
        with path.open("rb") as file:
            start = file.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
        if start.startswith(b"{"):
            path = path.rename(folder / "stdin.jsonl")
        elif re.match(rb"\[\s*\{", start):
            path = path.rename(folder / "stdin.json")
        elif _is_header(start.partition(b"\n")[0].decode(errors="replace")):
            print(
                "warning: standard input seems to be a table, but is read as one text per line, "
                "its first line as well: give the table as a file (--input FILE), or JSON lines.",
                file=sys.stderr,
            )
        yield path


def _is_header(line: str) -> bool:
    """Returns whether a line has several fields, one of which is a usual name of a text column."""
    fields = re.split(f"[{re.escape(''.join(DELIMITERS))}]", line)
    return len(fields) > 1 and any(is_usual_text(field.strip('"\r')) for field in fields)


class PartialLines:
    """A partial file of JSON lines, whose first `done` lines an interrupted run has written.

    `keep` must be called before `write`. The file `path` is created if it does not exist.
    """

    def __init__(self, path: Path):
        self.path = path
        self.done = 0
        for line in json_lines(path):
            if line is None:  # damaged: it and the lines after it are written again
                break
            self.done += 1
        self._file = path.open("ab")

    def finished(self) -> Iterator[dict[str, Any]]:
        """Yields the first `done` lines of the file."""
        with self.path.open("rb") as file:
            for _ in range(self.done):
                yield json.loads(file.readline())

    def keep(self, count: int) -> None:
        """Removes all but the first `count` lines, after which `write` appends.

        Lines that are predicted together must be kept or removed together, so that the final output
        is the same as without an interruption.
        """
        with self.path.open("rb") as file:
            for _ in range(count):
                file.readline()
            self._file.truncate(file.tell())

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends `line` to the file as one line of JSON."""
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        """Closes the partial file."""
        self._file.close()


class PartialVectors:
    """A partial .npy file of vectors, float32 [vectors, size], used as `PartialLines` are."""

    def __init__(self, path: Path, size: int):
        self.path = path
        self._size = size
        self._file = path.open("r+b" if path.exists() else "w+b")
        content = path.stat().st_size - len(self._header(0))
        self.done = max(0, content) // (4 * size)

    def _header(self, count: int) -> bytes:
        # All headers have the same length.
        header = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (count, self._size)}
        np.lib.format.write_array_header_1_0(header, shape)
        return header.getvalue()

    def keep(self, count: int) -> None:
        """Removes all but the first `count` vectors, after which `write` appends."""
        self.finish(0)
        end = self._file.seek(4 * self._size * count, os.SEEK_CUR)
        self._file.truncate(end)

    def write(self, vectors: np.ndarray) -> None:
        """Appends `vectors`, an array [n, size], to the file."""
        self._file.write(vectors.astype("<f4").tobytes())

    def finish(self, count: int) -> None:
        """Writes `count`, the final number of vectors, into the header."""
        self._file.seek(0)
        self._file.write(self._header(count))
        self._file.flush()

    def close(self) -> None:
        """Closes the partial file."""
        self._file.close()


class PartialFolder:
    """A partial folder, into which an interrupted run has written the first `done` texts."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir(exist_ok=True)
        self._file = path / "done.json"
        self.done = 0
        if self._file.exists():
            self.done = read_json(self._file)["texts"]

    def finished(self, count: int) -> None:
        """Records that the first `count` texts are written."""
        write_json(self._file, {"texts": count})
        self.done = count

    def close(self) -> None:
        """Does nothing, since no file is open."""


class PartialParts(PartialFolder):
    """A partial folder of `.npz` files, used as `PartialVectors` are: one for each `write`."""

    def keep(self, count: int) -> None:
        """Removes all but the files of the first `count` texts, after which `write` appends."""
        for file in self.files():
            if int(file.stem) >= count:
                file.unlink()
        self.finished(count)

    def files(self) -> list[Path]:
        """Returns the files, in the order of their texts."""
        return sorted(self.path.glob("*.npz"))

    def new_file(self) -> Path:
        """Returns the name of the next file."""
        return self.path / f"{self.done:012}.npz"

    def read(self, name: str) -> Iterator[np.ndarray]:
        """Yields the array of this name in each file."""
        for file in self.files():
            with np.load(file) as arrays:
                yield arrays[name]

    def finish(self, count: int) -> None:
        """Does nothing, since the number of texts is known."""


def write_npz(path: Path, arrays: Mapping[str, tuple[Any, Sequence[int], Iterable[Any]]]) -> None:
    """Writes the file `path` as `numpy.savez` does, with no more than a part in memory.

    `arrays` are {name: (data type, shape, parts, which follow each other)}.
    """
    with zipfile.ZipFile(path, "x") as file:
        for name, (kind, shape, parts) in arrays.items():
            described = {
                "descr": np.lib.format.dtype_to_descr(np.dtype(kind)),
                "fortran_order": False,
                "shape": tuple(map(int, shape)),
            }
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, described)
                for part in parts:
                    member.write(np.asarray(part, kind).tobytes())


Partial = TypeVar("Partial", PartialLines, PartialVectors, PartialFolder)


@contextlib.contextmanager
def continued(
    output: str | Path,
    identity: Mapping[str, Any],
    opened: Callable[[Path], Partial],
    finish: Callable[[Path, Path], None] = os.replace,
) -> Iterator[Partial]:
    """Yields an opened partial file, and turns it into `output` at the end of the `with` block.

    The partial file may also be a folder.

    If the block raises ValueError, the input is wrong, and the partial file is deleted. After any
    other error or a kill, the same command continues the partial file.

    `identity` is everything that determines the content of `output`, as JSON values. `opened` opens
    the partial file, and `finish` writes `output` from the complete one, given both paths, and
    removes it.

    Raises:
        Locked: another process writes `output`.
        OSError: the disk is full or fails; the partial file is kept.
    """
    output = Path(output)
    content = json.dumps(identity, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()[:12]
    path = output.with_name(f"{output.name}.{digest}.partial")
    lock = Lock(
        output.with_name(f"{output.name}.lock"),
        place=str(output),
        what="command",
        remedy="wait until it ends, stop it, or choose another --output",
    )
    with naming_write_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        lock.take()
    try:
        hashes = "[0-9a-f]" * len(digest)
        for other in output.parent.glob(f"{glob.escape(output.name)}.{hashes}.partial"):
            if other != path:
                remove(other)
        if path.is_symlink():
            path.unlink()
        with naming_write_errors(output, "the finished part is kept, and --output is unchanged"):
            partial = opened(path)
            try:
                with contextlib.closing(partial):
                    yield partial
                finish(path, output)
            except ValueError:
                remove(path)
                raise
    finally:
        lock.release()


def remove(path: Path) -> None:
    """Removes a partial file or folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def file_identity(path: str | Path) -> list[Any]:
    """Returns [absolute path, [file name, size in bytes, modification time in ns], ...].

    `path` is a file, a folder of files, or the common prefix of the files of a TF1 checkpoint.
    """
    path = Path(path).expanduser().resolve()
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(path.iterdir())
    else:
        files = sorted(path.parent.glob(f"{path.name}*"))
    identity: list[Any] = [str(path)]
    for file in files:
        if file.is_file():
            stat = file.stat()
            identity.append([file.name, stat.st_size, stat.st_mtime_ns])
    return identity


JSON_ARRAY = ".json"
CONVERTED = (".csv", ".tsv", ".parquet", JSON_ARRAY)  # all others are JSON lines
# What ends a field or a line of TSV, for readers that know all line ends of Unicode, too.
_BREAKS = re.compile("\r\n|[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
ROWS = 4096


def table_row(line: Mapping[str, Any]) -> dict[str, str | float | None]:
    """Converts a line of predictions, with its "id" and "input" row, to {column: value}."""
    of_input = dict(line.get("input") or {"id": line["id"]})
    of_prediction: dict[str, Any] = {}
    for key, value in line.items():
        if key in ("id", "input", "nbest", *OF_GOLD):
            continue
        if key == "probabilities" and isinstance(value, dict):
            for name, probability in value.items():
                of_prediction[f"probability_{name}"] = probability
        elif key == "scores":
            for name, score in value.items():
                of_prediction[f"predicted_{name}"] = score
        elif key in ("error", "problem"):
            of_prediction[key] = value
        elif key == "labels" and not value:
            of_prediction["predicted_labels"] = ""  # as an empty cell is read, and not "[]"
        else:
            of_prediction[f"predicted_{key}"] = value
    row = {name: _cell(value) for name, value in of_input.items()}
    for name, value in of_prediction.items():
        # A column of the input keeps its name, so that the file can be joined with the input.
        if name in of_input:
            name += "_"
        row[name] = _cell(value)
    return row


def _cell(value: Any) -> str | float | None:
    if not isinstance(value, dict | list):
        return value
    is_joined = value and isinstance(value, list)
    if is_joined and all(isinstance(part, str) and "|" not in part for part in value):
        return "|".join(value)
    return json.dumps(value, ensure_ascii=False)


def write_converted(
    lines: Path,
    output: Path,
    suffix: str,
    *,
    spreadsheet_safe: bool = False,
    form: CsvForm = COMMA_SEPARATED,
) -> list[str]:
    """Writes predictions as a table, or as a JSON array, from a JSON lines file.

    `suffix` is the format: ".csv", ".tsv", ".parquet" or ".json". With `spreadsheet_safe`, texts in
    CSV and TSV that a spreadsheet would take as formulas get a ' in front. CSV has the `form` of
    the input. Returns sentences for the user about cells that the format cannot hold as they are.
    """
    if suffix == JSON_ARRAY:
        _write_array(lines, output)
        return []
    types: dict[str, set[type]] = {}  # of the values of each column
    for row in _rows(lines):
        for name, value in row.items():
            types.setdefault(name, set()).add(_type_of(value))
    if not types:
        types["id"] = {str}  # without rows, the file has a header nevertheless
    notes = _renamed(lines)
    if suffix == ".parquet":
        _write_parquet(lines, output, types)
        return notes
    table = itertools.chain([{name: name for name in types}], _rows(lines))
    rows = ([row.get(name) for name in types] for row in table)
    if spreadsheet_safe:
        rows = (list(map(without_formula, row)) for row in rows)
    if suffix == ".tsv":
        with output.open("w", encoding="utf-8", newline="") as file:
            return notes + _write_tsv(rows, file)
    with output.open("w", encoding=form.encoding, newline="") as file:
        csv.writer(file, delimiter=form.delimiter).writerows(rows)
    return notes


def without_formula(cell: Any) -> Any:
    """Returns a cell with a ' in front if it is a text that a spreadsheet takes as a formula."""
    # OWASP's rule; numbers that are cells of their own, such as -1, are no texts.
    if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{cell}"
    return cell


def _renamed(lines: Path) -> list[str]:
    with lines.open("rb") as file:
        first = json.loads(next(file, b'{"id": ""}'))
    of_input = first.get("input") or {}
    added = table_row(first).keys() - of_input.keys()
    taken = [name for name in of_input if f"{name}_" in added]
    if not taken:
        return []
    return [
        f"the input has the columns {', '.join(taken)} already, which are kept; the new "
        f"predictions are in {', '.join(f'{name}_' for name in taken)}."
    ]


def _write_array(lines: Path, output: Path) -> None:
    with lines.open("rb") as read, output.open("wb") as write:
        separator = b"[\n"
        for line in read:
            write.write(separator + line.rstrip(b"\n"))
            separator = b",\n"
        write.write(b"[\n]\n" if separator == b"[\n" else b"\n]\n")


def _write_tsv(rows: Iterable[list[Any]], file: TextIO) -> list[str]:
    broken = quoted = 0
    for row in rows:
        cells = []
        for value in row:
            cell = "" if value is None else str(value)
            quoted += cell.startswith('"')
            cells.append(_BREAKS.sub(" ", cell))
            broken += cells[-1] != cell
        file.write("\t".join(cells) + "\n")
    notes = []
    if broken:
        notes.append(
            f"{broken:,} cells have tabs or line ends, which TSV cannot hold: they are spaces "
            "now. A .csv or .parquet file has them as they are."
        )
    if quoted:
        notes.append(
            f"{quoted:,} cells begin with a quote, which has no meaning in TSV: read the file "
            "without quoting (pandas: quoting=3), or write a .csv file."
        )
    return notes


def _type_of(value: Any) -> type:
    """Returns the type in which Parquet stores a value: bool, int, float, str or that of None."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str  # it does not fit into 64 bits
    if value is None or isinstance(value, bool | int | float):
        return type(value)
    return str


def _write_parquet(lines: Path, output: Path, types: Mapping[str, set[type]]) -> None:
    import pyarrow
    import pyarrow.parquet

    def stored(types: set[type]) -> pyarrow.DataType:
        types = types - {type(None)}
        if types == {bool}:
            return pyarrow.bool_()
        if types == {int}:
            return pyarrow.int64()
        if types and types <= {int, float}:
            return pyarrow.float64()
        return pyarrow.string()

    schema = pyarrow.schema((name, stored(kinds)) for name, kinds in types.items())
    texts = {field.name for field in schema if field.type == pyarrow.string()}
    rows = _rows(lines)
    with pyarrow.parquet.ParquetWriter(output, schema) as writer:
        while batch := list(itertools.islice(rows, ROWS)):
            for row in batch:
                for name in texts & row.keys():
                    if row[name] is not None:
                        row[name] = str(row[name])
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


def _rows(lines: Path) -> Iterator[dict[str, Any]]:
    with lines.open("rb") as file:
        for line in file:
            yield table_row(json.loads(line))


Pair = tuple[Example, Prediction]


@dataclasses.dataclass
class PredictionWriter:
    """Predicts examples, writes the predictions, and counts the rows that have none or no label.

    `predictions` is the method of `Pretrained`. `input` is the path of the examples, for messages;
    None: they are a text of the user, whose problems raise ValueError. If `output` is None,
    predictions are printed as JSON lines. `errors` counts examples without a prediction, and
    `unlabelled` those without a label that can be used, of the `rows` so far.
    """

    predictions: Callable[..., Iterator[Pair]]
    input: str | None
    output: str | None
    rows: int = 0
    errors: int = 0
    unlabelled: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)

    def __call__(
        self, task: Task, examples: Iterator[Example], lines: "PartialLines | _Printed"
    ) -> Iterator[Pair]:
        """Yields (example, prediction) for each of `examples`, and writes predictions to `lines`.

        Predictions that an interrupted run has written are read from `lines` instead of computed.
        Examples of `task` that cannot be predicted or scored are yielded without labels.
        """
        for example, prediction in self._pairs(task, examples, lines):
            problem = prediction.get("error") or prediction.get("problem")
            if problem:
                self.problems.append(problem)
                example = dataclasses.replace(example, label=None, answers=())
            self.rows += 1
            self.errors += "error" in prediction
            self.unlabelled += example.label is None and not example.answers
            yield example, prediction

    def _pairs(
        self, task: Task, examples: Iterator[Example], lines: "PartialLines | _Printed"
    ) -> Iterator[Pair]:
        groups = Groups(task, task.max_length)
        kept = 0
        group: list[Pair] = []
        for line in lines.finished():
            example = next(examples, None)
            if example is None or line.pop("id") != example.id:
                raise ValueError(
                    f"{self.input} changed during the prediction: run the command again."
                )
            for name in ("input", *OF_GOLD):
                line.pop(name, None)
            group.append((example, line))
            if groups.ends_with(example):
                kept += len(group)
                yield from group
                group = []
        lines.keep(kept)
        if kept:
            print(f"continuing {self.output} after {kept:,} lines", flush=True)
        again = [example for example, _ in group]
        pairs = self.predictions(
            task,
            itertools.chain(again, examples),
            report_problems=self.input is not None,
            # A terminal that shows the predictions shows the progress.
            shows_progress=self.output is not None or not sys.stdout.isatty(),
        )
        for example, prediction in pairs:
            line: dict[str, Any] = {"id": example.id}
            if example.row and self.output:
                line["input"] = dict(example.row)
            if self.output:
                line |= task.gold(example)
            lines.write({**line, **prediction})
            yield example, prediction

    def messages(self, *, scored: bool) -> Iterator[str]:
        """Yields what the user should know about rows; `scored`: whether there are metrics."""
        if not self.rows:
            yield f"{self.input} has no rows, so that there are no predictions."
        elif scored and self.unlabelled:
            yield (
                f"{self.unlabelled:,} of the {self.rows:,} rows have no label, or none that can be "
                "used, and are left out of the metrics."
            )
        if self.problems:
            parts = []
            if self.errors:
                parts.append(f"{self.errors:,} could not be predicted")
            unscored = len(self.problems) - self.errors
            if unscored:
                parts.append(f"{unscored:,} were predicted, but could not be scored")
            yield (
                f"Of the {self.rows:,} rows, {' and '.join(parts)}; their lines say why, the "
                f"first: {self.problems[0]}"
            )

    def check(self) -> None:
        """Raises ValueError if there are examples, and none of them could be predicted."""
        if self.rows and self.errors == self.rows:
            raise ValueError(
                f"No row of {self.input} could be predicted; the first: {self.problems[0]}"
            )


@contextlib.contextmanager
def prediction_lines(
    output: str | None, input: str | None, model: Sequence[Any], settings: Mapping[str, Any]
) -> "Iterator[PartialLines | _Printed]":
    """Yields a writer of predictions to the file `output` or, if `output` is None, to stdout.

    The writer continues `output` if an interrupted command had the same `input`, `model`
    (`Pretrained.identity`) and `settings` (JSON values), on the same kind of device and with the
    same version.
    """
    if output is None:
        yield _Printed()
        return
    identity = {
        "version": bertjax.__version__,
        "config": dict(settings),
        "input": None if input is None else file_identity(input),
        "model": model,
        "device": jax.local_devices()[0].device_kind,
    }

    def finish(partial: Path, output: Path) -> None:
        suffix = output.suffix.lower()
        if suffix not in CONVERTED:
            os.replace(partial, output)
            return
        safe = bool(settings.get("spreadsheet_safe"))
        form = csv_form(input or "")
        with writing(output) as temporary:
            notes = write_converted(partial, temporary, suffix, spreadsheet_safe=safe, form=form)
        for note in notes:
            print(f"{output}: {note}", file=sys.stderr)
        partial.unlink()

    with continued(output, identity, PartialLines, finish) as lines:
        yield lines


_LONG_TEXT = re.compile(r'"((?:[^"\\]|\\.){500})(?:[^"\\]|\\.)+"')


class _Printed:
    """Writes JSON lines to standard output; on a terminal, texts end after 500 characters."""

    def __init__(self):
        need_output()

    def finished(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def keep(self, count: int) -> None:
        """Keeps nothing."""

    def write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace").decode()
        if sys.stdout.isatty():
            print(_LONG_TEXT.sub(r'"\1…"', text))
        else:
            print(text, file=unfiltered(sys.stdout))
