"""Advice about users' tables: what most likely is not meant as it is read, and what to do then.

Nothing here reads examples or changes how they are read. A function returns its warnings, or "".
"""

import difflib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from bertjax.tasks.sources.data_files import row_name
from bertjax.tasks.sources.tables import CSV_QUOTED, Table, read_number, read_tsv

# Number of rows of TSV that are searched for fields quoted as in CSV.
ROWS_SEARCHED = 10_000
# How programs for SQL escape tabs, line ends and backslashes, and mark a missing value.
_SQL_ESCAPE = re.compile(r"(?<=[\w.,;!?])\\[tnr]|\\\\|\A\\N\Z")
SEPARATORS = "|;,"
# Numbers whose point may separate thousands: 24.827, but not 0.827 or 1250.827.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
# The most warnings of classes with similar names.
MOST_SIMILAR = 5
# A class may be a misspelling of another one that is so many times as frequent, if so large a share
# of their letters agrees and the name has so many letters.
MISSPELT_FACTOR, MISSPELT_SHARE, MISSPELT_LETTERS = 20, 0.85, 5


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


def holds_dates(values: Iterable[Any]) -> bool:
    """Returns whether all are dates or times of ISO 8601, such as 2026-01-31 12:00:00.

    Missing values do not count, but one must be there.
    """
    known = [str(value) for value in values if value not in (None, "")]
    return bool(known) and all(map(_is_date, known))


def _is_date(text: str) -> bool:
    try:
        return not text.isdecimal() and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def separator_note(classes: Sequence[str]) -> str:
    """Returns a warning if most classes fall into parts, at a sign, that several of them have."""
    for separator in SEPARATORS:
        composed = [label for label in classes if separator in label]
        parts = Counter(part.strip() for label in classes for part in label.split(separator))
        if len(composed) >= 3 and 2 * len(parts) <= parts.total():
            return (
                f"warning: labels such as {composed[0]!r} seem to name several classes; to predict "
                f"each of them by itself, give --label_separator {separator!r}"
            )
    return ""


def thousands_note(targets: Iterable[str]) -> str:
    """Returns a warning if the points in targets, as they are written, may separate thousands.

    They may if all are followed by three digits, unless all targets look like decimals that are
    written with three digits.
    """
    pointed = []
    has_whole = False
    for target in targets:
        if "." not in target:
            has_whole |= target.isdecimal()
        elif _THOUSANDS.fullmatch(target):
            pointed.append(target)
        else:
            return ""
    rounded = sum(target.endswith("00") for target in pointed)
    if not pointed or not (has_whole or 2 * rounded > len(pointed)):
        return ""
    return (
        "warning: the targets that contain a point all have three digits after it, such as "
        f"{pointed[0]}, which is read as the decimal number {float(pointed[0]):g}: if the points "
        "separate thousands, remove them from the file."
    )


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
        groups.setdefault(_spelt(label), []).append(label)
    warnings = []
    for key, group in groups.items():
        if key and len(group) > 1:
            warnings.append(
                f"the classes {', '.join(map(repr, group))} differ only in how they are written: "
                "if they are one class, write them alike."
            )
    return warnings


def _spelt(label: str) -> str:
    """Returns the number that a label is, or its letters and digits in one case and form."""
    number = read_number(label)
    if number is not None:
        return str(number)
    letters = unicodedata.normalize("NFKC", label).casefold()
    return re.sub(r"[\W_]+", "", letters)


def _misspelt(labels: Sequence[str], counts: np.ndarray) -> list[str]:
    words = {}
    for label, count in zip(labels, counts.tolist(), strict=True):
        if count and len(label) >= MISSPELT_LETTERS and not re.search(r"\d", label):
            words[label] = count
    warnings = []
    for label, count in words.items():
        frequent = [name for name in words if words[name] >= MISSPELT_FACTOR * count]
        for near in difflib.get_close_matches(label, frequent, 1, MISSPELT_SHARE):
            if _spelt(near) != _spelt(label):  # else `_alike` names them
                warnings.append(
                    f"the class {label!r} ({count:,}) is almost {near!r}: if it is misspelt, "
                    "correct it in the file."
                )
    return warnings
