"""Rows in memory (DataFrames, dictionaries, lists) as temporary files, as the readers need them."""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.base.files import brief
from bertjax.base.scratch import scratch_folder


@contextlib.contextmanager
def rows_as_files(**rows: Any) -> Iterator[dict[str, str]]:
    """Yields {argument: path of a file with its rows}; temporary files are removed at the end.

    Rows are counted from 1, like the lines of the file.

    Args:
        rows: the rows of each argument, as for `as_file`; arguments that are None are left out.

    Raises:
        ValueError: the block raises ValueError; the message names the argument, such as "train, row
            3", and not the temporary file.
    """
    given = {name: value for name, value in rows.items() if value is not None}
    with scratch_folder() as folder:
        files = {name: str(folder / f"{name}.jsonl") for name in given}
        try:
            paths = {}
            for name, value in given.items():
                try:
                    paths[name] = as_file(value, Path(files[name]))
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
            yield paths
        except ValueError as error:
            for name, file in files.items():
                error.args = tuple(
                    arg.replace(file, name) if isinstance(arg, str) else arg for arg in error.args
                )
            raise


def as_file(rows: Any, file: Path) -> str:
    """Writes `rows` to `file` as JSON lines; returns the path of `file`.

    If `rows` is itself the path of a file, nothing is written, and this path is returned.

    Args:
        rows: a path, a pandas DataFrame, a dictionary {column: values}, or dictionaries, one per
            row, such as a list of them or a dataset of Hugging Face's `datasets`.
        file: the file to write.

    Raises:
        ValueError: `rows` has another type, its columns have different lengths or equal names, or
            it is empty.
    """
    if isinstance(rows, str | Path):
        return str(rows)
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a DataFrame
        if twice := [name for name, count in Counter(rows.columns).items() if count > 1]:
            raise ValueError(
                f"Several columns are named {brief(repr(twice[0]), 60)}: give each column its own "
                "name."
            )
        records = rows.to_dict("records")
    elif isinstance(rows, Mapping):
        lengths = {key: len(values) for key, values in rows.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"The columns have different lengths, {brief(lengths)}: make them equal."
            )
        records = [
            dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)
        ]
    else:
        records = list(rows) if isinstance(rows, Iterable) else [rows]
    other = next((record for record in records if not isinstance(record, Mapping)), None)
    if other is not None or not records:
        reads = f"{brief(repr(other), 60)} is no row" if records else "There are no rows"
        raise ValueError(
            f"{reads}: give a path, a DataFrame, a dictionary of columns or a list of dictionaries "
            "such as {'text': 'a film', 'label': 'good'}."
        )
    lines = [
        json.dumps({str(key): _in_json(value) for key, value in record.items()}) + "\n"
        for record in records
    ]
    file.write_text("".join(lines), encoding="utf-8")
    return str(file)


def _in_json(value: Any) -> Any:
    """Converts a value of a DataFrame or a dictionary to a JSON value; NaN becomes None."""
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_in_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _in_json(item) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None  # pandas marks missing values with NaN
    if value is None or isinstance(value, str | int | float | bool):
        return value
    text = str(value)
    return None if text in ("<NA>", "NaT") else text
