"""Rows whose values have types: of JSON lines, JSON arrays, Parquet, Arrow, and objects of Python.

Missing values are None. What is no value of JSON becomes one by `json_value`.
"""

import contextlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.base.files import brief, read_json_or_empty
from bertjax.base.lock import scratch_folder
from bertjax.data.text.tables import open_parquet, parquet_batches
from bertjax.tasks.sources.data_files import (
    DATASET_INFO,
    MAX_LINE,
    check_utf8,
    open_text,
    read_lines,
    row_name,
    saved_files,
    split_named,
)

# Characters that are read at once from a JSON array, and what may stand between its elements.
_BLOCK = 1 << 16
_SEPARATOR = re.compile(r"[\s,]*")
# What may be the first half of a pair of surrogates in JSON, or half a pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
Rows = Iterator[tuple[int, dict[str, Any] | ValueError]]


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
    rows = _array_elements(path) if start == "[" else _json_lines(path)
    for number, row in rows:
        if not isinstance(row, dict | ValueError):
            row = ValueError(
                f"{row_name(path, number)} holds a JSON {type(row).__name__}, not an object: write "
                'one object per line, such as {"text": "...", "label": "..."}.'
            )
        yield number, row


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields (row number, value) of each line; a ValueError is the value of what is not JSON."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            value = _without_surrogates(json.loads(line), line, path, number)
        except (ValueError, RecursionError) as error:
            value = ValueError(
                f"{row_name(path, number)} is not JSON ({brief(error)}): write one object per "
                'line, such as {"text": "...", "label": "..."}.'
            )
        yield number, value


def _without_surrogates(value: Any, text: str, path: Path, number: int) -> Any:
    """Returns `value`, parsed from the JSON `text`, or a ValueError if it has a lone surrogate."""
    try:
        if _SURROGATE.search(text):
            check_utf8(json.dumps(value, ensure_ascii=False), path, number)
    except ValueError as error:
        return error
    return value


def _array_elements(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields (number from 1, element) of a JSON array, which may be larger than the memory."""
    decode = json.JSONDecoder().raw_decode
    with open_text(path, newline=None) as file:
        buffer = file.read(_BLOCK)
        at = buffer.index("[") + 1
        for number in itertools.count(1):
            at = _SEPARATOR.match(buffer, at).end()  # pyright: ignore
            size = _BLOCK
            while not buffer.startswith("]", at):
                try:
                    value, end = decode(buffer, at)
                    break
                except (ValueError, RecursionError) as error:
                    more = file.read(size)
                    if not more or len(buffer) - at > MAX_LINE:
                        raise ValueError(
                            f"{path}: element {number} of the array is not JSON, or has more than "
                            f"{MAX_LINE:,} characters ({brief(error)}): correct the file."
                        ) from error
                    buffer = buffer[at:] + more
                    size = 2 * size
                    at = _SEPARATOR.match(buffer).end()  # pyright: ignore
            else:
                return
            element = buffer[at:end]
            check_utf8(element, path, number)
            yield number, _without_surrogates(value, element, path, number)
            at = end


def read_parquet(path: Path) -> Rows:
    """Yields (row number, {column: value}) for each row of a Parquet or Arrow file, from 1.

    If Hugging Face's `datasets` wrote the names of classes, class ids become these names; the id
    -1, which marks an unknown class, becomes None, and a ValueError takes the place of a row with
    an id that has no name. Values become those of JSON as by `json_value`.

    Raises:
        ValueError: the file is damaged, or a text in it is not UTF-8.
    """
    number = 0
    with open_parquet(str(path)) as file:
        # In a dataset that `save_to_disk` wrote, the description of its classes counts first.
        features = _features((file.schema_arrow.metadata or {}).get(b"huggingface"))
        if saved_files(path.parent):
            features |= read_json_or_empty(path.parent / DATASET_INFO).get("features") or {}
        for rows in parquet_batches(str(path), file):
            for row in rows:
                number += 1
                try:
                    yield number, json_row(row, features)
                except ValueError as error:
                    yield number, ValueError(f"{row_name(path, number)}: {error}")


def _features(metadata: bytes | None) -> dict[str, Any]:
    """Returns {column: its type} from what Hugging Face's `datasets` writes into the file."""
    try:
        features = json.loads(metadata or b"{}")["info"]["features"]
    except (ValueError, LookupError, TypeError):
        return {}
    if isinstance(features, dict):
        return features
    return {}


def json_row(row: Mapping[Any, Any], features: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the values of a row as `json_value` does; `features` are the types of columns."""
    return {str(column): json_value(value, features.get(column)) for column, value in row.items()}


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
        if getattr(getattr(value, "dtype", None), "kind", None) in ("m", "M"):
            times = value.astype(str).tolist()
            if times == "NaT":
                return None
            return times
        value = value.tolist()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None  # pandas marks missing values with NaN
    known = feature if isinstance(feature, dict) else {}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        # Lists describe their elements: {"feature": ...}, or [...] before version 4 of datasets.
        inner = known.get("feature")
        if isinstance(feature, list) and feature:
            inner = feature[0]
        return [json_value(item, inner) for item in value]
    if isinstance(value, Mapping):
        if isinstance(inner := known.get("feature"), dict) and "_type" in known:
            known = {key: [part] for key, part in inner.items()}  # an object of lists
        return json_row(value, known)
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"bytes": bytes(value).hex()}
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return _class_name(value, known)
    text = str(value)
    if " at 0x" in text:  # no text of its own
        return {"type": type(value).__name__}
    if text in ("<NA>", "NaT", "NaN"):
        return None
    return text


def _class_name(value: float, feature: Mapping[str, Any]) -> Any:
    """Returns the name of a class id, None for -1, or a number that is no class id itself."""
    names = feature.get("names")
    if feature.get("_type") != "ClassLabel" or not isinstance(names, list):
        return value
    if value not in range(-1, len(names)):
        raise ValueError(
            f"the class id {value} has no name, because the file names {len(names)} classes "
            f"({brief(', '.join(map(str, names)), 60)}), with ids from 0: correct the id."
        )
    if value == -1:
        return None
    return names[int(value)]


@contextlib.contextmanager
def rows_as_files(**rows: Any) -> Iterator[dict[str, str]]:
    """Yields {argument: path of a file with its rows}; temporary files are removed at the end.

    Rows are counted from 1, like the lines of the file. Arguments that are None are left out.

    Raises:
        ValueError: the block raises ValueError; the message names the argument, such as "train, row
            3", and not the temporary file.
    """
    with scratch_folder() as folder:
        paths: dict[str, str] = {}
        try:
            for name, value in rows.items():
                if value is None:
                    continue
                try:
                    paths[name] = as_file(value, folder / f"{name}.jsonl")
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
            yield paths
        except ValueError as error:
            text = re.sub(rf"{re.escape(str(folder))}/(\w+)\.jsonl", r"\1", str(error))
            error.args = (text,)
            raise


def as_file(rows: Any, file: Path) -> str:
    """Writes `rows` to `file` as JSON lines, and returns its path; a path is returned as it is.

    `rows` are a path, a pandas DataFrame, a dictionary {column: values}, or dictionaries, one per
    row, such as a list of them or a dataset of Hugging Face's `datasets`, whose class ids become
    the names of the classes. Of a `DatasetDict`, the split is written that the name of `file` says.

    Raises:
        ValueError: `rows` has another type, its columns have different lengths or equal names, it
            is empty, a class id has no name, or a `DatasetDict` lacks the split.
    """
    if isinstance(rows, str | Path):
        return str(rows)
    parts = []
    if callable(getattr(rows, "values", None)):
        parts = [*rows.values()]
    if parts and all(hasattr(part, "features") for part in parts):
        return as_file(rows[split_named([*rows], file.stem, "The DatasetDict")], file)
    features: Any = getattr(rows, "features", None)
    types = {}
    if hasattr(features, "to_dict"):
        types = features.to_dict()
    records = _records(rows)
    if not records:
        raise ValueError("There are no rows: give at least one, with a text.")
    for record in records:
        if not isinstance(record, Mapping):
            raise ValueError(
                f"{brief(repr(record), 60)} is no row: give a path, a DataFrame, a dictionary of "
                "columns or a list of dictionaries such as {'text': 'a film', 'label': 'good'}."
            )
    with file.open("w", encoding="utf-8") as lines:
        for number, record in enumerate(records, 1):
            try:
                lines.write(json.dumps(json_row(record, types)) + "\n")
            except ValueError as error:
                raise ValueError(f"row {number}: {error}") from error
    return str(file)


def _records(rows: Any) -> list[Any]:
    """Returns the rows of a DataFrame, of a dictionary of columns or of an iterable of rows."""
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a DataFrame
        for name, count in Counter(rows.columns).most_common(1):
            if count > 1:
                raise ValueError(
                    f"Several columns are named {brief(repr(name), 60)}: give each column its own "
                    "name."
                )
        return rows.to_dict("records")
    if isinstance(rows, Mapping):
        lengths = {key: len(values) for key, values in rows.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"The columns have different lengths, {brief(lengths)}: make them equal."
            )
        records = []
        for values in zip(*rows.values(), strict=True):
            records.append(dict(zip(rows, values, strict=True)))
        return records
    if isinstance(rows, Iterable):
        return list(rows)
    return [rows]
