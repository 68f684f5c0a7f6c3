"""Tables of predictions: CSV, TSV and Parquet files, written from JSON lines.

A row of a table is the prediction for one example. It has the columns of the input, then those of
the prediction, such as `predicted_label` and `probability_yes`. If a value is a list of texts, its
cell in the table holds the texts joined by "|"; any other list or dictionary is a cell of JSON. In
Parquet, whole numbers, numbers and truth values keep their types; dates are texts.
"""

import csv
import itertools
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", ".parquet")
JSON_ARRAY = ".json"
# What ends a field or a line of TSV, for readers that know all line ends of Unicode, too.
_BREAKS = re.compile("\r\n|[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
# Number of rows that are converted at once.
ROWS = 4096


def check_suffix(output: str | Path) -> None:
    """Checks that the suffix of `output` tells the format of the predictions.

    Raises:
        ValueError: the suffix does not tell the format.
    """
    if Path(output).suffix.lower() not in (*JSON_LINES, *TABLES, JSON_ARRAY):
        raise ValueError(
            f"--output {output}: the suffix does not tell the format. Use .jsonl, .json, .csv, "
            ".tsv or .parquet; without --output, JSON lines are printed."
        )


def is_converted(output: str | Path) -> bool:
    """Returns whether `output` is a table or a JSON array and not JSON lines, by its suffix."""
    return Path(output).suffix.lower() in (*TABLES, JSON_ARRAY)


def table_row(line: Mapping[str, Any]) -> dict[str, str | float | None]:
    """Converts a line of predictions to the row of a table, {column: value}.

    Args:
        line: the prediction for one example, a line of the JSON lines file, with the "id" of the
            example and, as "input", the columns of its row in the input file.
    """
    given = dict(line.get("input") or {"id": line["id"]})
    row: dict[str, Any] = {}
    for key, value in line.items():
        if key == "probabilities" and isinstance(value, dict):
            row |= {f"probability_{name}": p for name, p in value.items()}
        elif key in ("error", "problem"):
            row[key] = value
        elif key == "labels" and not value:
            row["predicted_labels"] = ""  # as an empty cell is read, and not "[]"
        elif key not in ("id", "input", "nbest"):
            row[f"predicted_{key}"] = value
    # A column of the input keeps its name, so that the file can be joined with the input.
    row = {name if name not in given else f"{name}_": value for name, value in row.items()}
    return {name: _cell(value) for name, value in (given | row).items()}


def _cell(value: Any) -> str | float | None:
    are_names = isinstance(value, list) and all(isinstance(part, str) for part in value)
    if are_names and value and not any("|" in part for part in value):
        return "|".join(value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value


def write_converted(lines: Path, output: Path, suffix: str) -> list[str]:
    """Writes predictions as a table, or as a JSON array, from a JSON lines file.

    Returns sentences for the user about cells that the format cannot hold as they are.

    Args:
        lines: the JSON lines file of predictions.
        output: the file to write, with a name of any suffix.
        suffix: the format: ".csv", ".tsv", ".parquet" or ".json".
    """
    if suffix == JSON_ARRAY:
        with lines.open("rb") as read, output.open("wb") as write:
            write.write(b"[")
            for index, line in enumerate(read):
                write.write((b",\n" if index else b"\n") + line.rstrip(b"\n"))
            write.write(b"\n]\n")
        return []
    types: dict[str, type | None] = {}  # of the values of each column
    for row in _rows(lines):
        for name, value in row.items():
            types[name] = _common_type(types.get(name), _type_of(value))
    types = types or {"id": str}  # without rows, the file has a header nevertheless
    notes = _renamed(lines)
    if suffix == ".parquet":
        _write_parquet(lines, output, types)
        return notes
    if suffix == ".tsv":
        return notes + _write_tsv(lines, output, types)
    with output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(types), restval="")
        writer.writeheader()
        writer.writerows(_rows(lines))
    return notes


def _renamed(lines: Path) -> list[str]:
    """Returns a sentence if the input has a column that is named like one of the predictions."""
    with lines.open("rb") as file:
        first = json.loads(next(file, b'{"id": ""}'))
    given = first.get("input") or {}
    added = [name for name in table_row(first) if name not in given]
    taken = [name for name in added if name.endswith("_") and name[:-1] in given]
    if not taken:
        return []
    return [
        f"the input has the columns {', '.join(name[:-1] for name in taken)} already, which are "
        f"kept; the new predictions are in {', '.join(taken)}."
    ]


def _write_tsv(lines: Path, output: Path, columns: Iterable[str]) -> list[str]:
    """Writes a TSV file; returns sentences about cells that TSV cannot hold as they are."""
    columns = list(columns)
    broken = quoted = 0
    with output.open("w", encoding="utf-8", newline="") as file:
        for row in itertools.chain([dict(zip(columns, columns, strict=True))], _rows(lines)):
            cells = ["" if row.get(name) is None else str(row[name]) for name in columns]
            written = [_BREAKS.sub(" ", cell) for cell in cells]
            broken += sum(map(operator.ne, cells, written))
            quoted += sum(cell.startswith('"') for cell in cells)
            file.write("\t".join(written) + "\n")
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


def _type_of(value: Any) -> type | None:
    """Returns bool, int, float or str, the type in which Parquet stores a value; None for None."""
    if value is None:
        return None
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str  # it does not fit into 64 bits
    return type(value) if isinstance(value, bool | int | float) else str


def _common_type(first: type | None, second: type | None) -> type | None:
    """Returns the type of a column with values of both types; None if it has no values yet."""
    if first is None or second is None or first is second:
        return second if first is None else first
    return float if {first, second} == {int, float} else str


def _write_parquet(lines: Path, output: Path, types: Mapping[str, type | None]) -> None:
    import pyarrow
    import pyarrow.parquet

    stored = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    fields = [
        (name, stored[kind] if kind in stored else pyarrow.string()) for name, kind in types.items()
    ]
    schema = pyarrow.schema(fields)
    rows = _rows(lines)
    with pyarrow.parquet.ParquetWriter(output, schema) as writer:
        while batch := list(itertools.islice(rows, ROWS)):
            texts = [
                {
                    name: str(value) if types[name] is str and value is not None else value
                    for name, value in row.items()
                }
                for row in batch
            ]
            writer.write_table(pyarrow.Table.from_pylist(texts, schema=schema))


def _rows(lines: Path) -> Iterator[dict[str, Any]]:
    with lines.open("rb") as file:
        yield from (table_row(json.loads(line)) for line in file)
