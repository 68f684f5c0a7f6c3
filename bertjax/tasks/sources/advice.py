"""Advice about users' tables: what most likely is not meant as it is read, and what to do then."""

import difflib
import itertools
import re
from collections.abc import Sequence

import numpy as np

from bertjax.tasks.sources.data_files import row_name
from bertjax.tasks.sources.tables import CSV_QUOTED, Table, read_number, read_tsv

# Number of rows of TSV that are searched for fields quoted as in CSV.
ROWS_SEARCHED = 10_000
# How programs for SQL escape tabs, line ends and backslashes, and mark a missing value.
_SQL_ESCAPE = re.compile(r"(?<=[\w.,;!?])\\[tnr]|\\\\|\A\\N\Z")


def escape_note(table: Table) -> str:
    """Returns a warning about the first row of TSV that seems quoted or escaped, or "".

    Quotes and backslashes have no meaning in TSV, so that they become a part of the text. The first
    `ROWS_SEARCHED` rows are searched.
    """
    if not table.is_tsv:
        return ""
    for number, fields in itertools.islice(read_tsv(table.path), ROWS_SEARCHED):
        where = row_name(table.path, number)
        for field in fields:
            if '""' in field and CSV_QUOTED.fullmatch(field.strip()):
                return (
                    f"warning: {where} seems to be quoted as in CSV, but quotes have no meaning in "
                    "TSV and are read as text: save the table as CSV."
                )
            if escaped := _SQL_ESCAPE.search(field):
                return (
                    f"warning: {where} holds {escaped[0]}, as MySQL and PostgreSQL escape texts in "
                    "TSV, but it is read as it stands: if it is an escape, export CSV."
                )
    return ""


# The most warnings of classes with similar names.
MOST_SIMILAR = 5
# A class may be a misspelling of another one that is so many times as frequent, if so large a share
# of their letters agrees and the name has so many letters.
MISSPELT_FACTOR, MISSPELT_SHARE, MISSPELT_LETTERS = 20, 0.85, 5


def similar_classes(labels: Sequence[str], counts: np.ndarray) -> list[str]:
    """Returns warnings of classes that may be one in several spellings; `counts` are int [classes].

    They differ only in how they are written, or a rare one may be a misspelling of a frequent one.
    """
    warnings = [*_alike(labels), *_misspelt(labels, counts)]
    lines = [f"warning: {warning}" for warning in warnings[:MOST_SIMILAR]]
    if len(warnings) > MOST_SIMILAR:
        lines.append(f"warning: and {len(warnings) - MOST_SIMILAR} more such groups of classes")
    return lines


def _alike(labels: Sequence[str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for label in labels:
        number = read_number(label)
        if key := _letters(label) if number is None else str(number):
            groups.setdefault(key, []).append(label)
    warnings = []
    for group in groups.values():
        if len(group) > 1:
            warnings.append(
                f"the classes {', '.join(map(repr, group))} differ only in how they are written: "
                "if they are one class, write them alike."
            )
    return warnings


def _letters(label: str) -> str:
    return re.sub(r"[\W_]+", "", label.casefold())


def _misspelt(labels: Sequence[str], counts: np.ndarray) -> list[str]:
    words = {}
    for label, count in zip(labels, counts.tolist(), strict=True):
        if count and len(label) >= MISSPELT_LETTERS and not re.search(r"\d", label):
            words[label] = count
    warnings = []
    for label, count in words.items():
        frequent = [name for name in words if words[name] >= MISSPELT_FACTOR * count]
        for near in difflib.get_close_matches(label, frequent, 1, MISSPELT_SHARE):
            if _letters(near) != _letters(label):  # else `_alike` names them
                warnings.append(
                    f"the class {label!r} ({count:,}) is almost {near!r}: if it is misspelt, "
                    "correct it in the file."
                )
    return warnings
