"""Labels in several columns, in lists of numbers and in dictionaries, and which columns hold them.

A table may have a column per class, with 0 or 1 ("one-hot") or the probability of the class, or a
column per target of a regression. In JSON and Parquet, one column may hold {class: probability}, or
a list of targets.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.dataset import MISSING
from bertjax.tasks.sources.advice import holds_dates
from bertjax.tasks.sources.columns import IDS, TEXTS, Columns, TableKind, holds_texts, plain
from bertjax.tasks.sources.tables import Row, Table, read_number, shorten
from bertjax.tasks.sources.unused import BINARY, OBEYED, SELECTING, is_harmless, written

# Spellings of no and yes; a table has one of them.
SPELLINGS = (("0", "1"), ("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"))
TRUTHS = {word: number for words in SPELLINGS for number, word in enumerate(words)}
# Probabilities of a row may miss 1 by so much, because they are rounded.
SUM_ERROR = 1e-3


Form = Literal["one", "several", "distribution", "targets"]


class LabelForm(NamedTuple):
    """How the labels of a table are written.

    Attributes:
        kind: a class or a number per row; several classes; a probability of each class; or several
            numbers, the targets of a regression.
        names: the classes or targets, if columns name them, or a list of numbers has them.
    """

    kind: Form = "one"
    names: tuple[str, ...] = ()


def one_hot_columns(table: Table, kind: TableKind, named: Columns) -> tuple[str, ...]:
    """Guesses the columns of one-hot labels: those with yes or no in one spelling.

    There must be at least two, and nothing else may be the label: each other column that is not
    named holds texts or dates, or has a name that describes a row. () if that is not so.
    """
    if kind.task != "classify" or table.is_text or named.label is not None or named.labels:
        return ()
    taken = named.taken()
    found = []
    spellings = set()
    for name in table.columns:
        key = plain(name)
        if name in taken or key in IDS:
            continue
        values = set(map(written, table.first_values(name))) - {""}
        if not values or not BINARY.issuperset(values):
            if not (key in TEXTS or is_harmless(name) or holds_texts(table, name)):
                if not holds_dates(values):
                    return ()
            continue
        is_meant = key in SELECTING or key in OBEYED or key in kind.labels or key in BINARY
        if is_meant or is_harmless(name):
            return ()
        spellings |= {words for words in SPELLINGS if not values.isdisjoint(words)}
        found.append(name)
    return tuple(found) if len(found) > 1 and len(spellings) == 1 else ()


def form_of(
    kind: TableKind, tables: Sequence[Table], columns: Columns, separator: str | None
) -> LabelForm:
    """Finds out how the labels of the first split are written, from its first rows.

    Whether each row of one-hot columns has exactly one class, all its rows tell.
    """
    if columns.labels and kind.label == "number":
        return LabelForm("targets", columns.labels)
    if columns.labels:
        return _form_of_columns(tables, columns.labels)
    if kind.label == "class" and separator:
        return LabelForm("several")
    for table in tables[:1]:
        if not table.is_typed or not table.first_rows or columns.label is None:
            continue
        values = table.first_values(columns.label)
        is_list = isinstance(values[0], list)
        if kind.label == "class" and any(isinstance(value, dict) for value in values):
            return LabelForm("distribution")
        if kind.label == "class" and is_list:
            return LabelForm("several")
        if kind.label == "number" and is_list:
            names = (f"{columns.label}_{index}" for index in range(len(values[0])))
            return LabelForm("targets", tuple(names))
    return LabelForm()


def _form_of_columns(tables: Sequence[Table], names: tuple[str, ...]) -> LabelForm:
    rows = tables[0].first_rows if tables else []
    divided = []  # the sums of rows that have a part of a class
    for row in rows:
        numbers = [read_number(str(row.get(name))) or 0.0 for name in names]
        if any(0 < number < 1 for number in numbers):
            divided.append(sum(numbers))
    right = sum(abs(total - 1) <= SUM_ERROR for total in divided)
    if divided and 2 * right >= len(divided):
        return LabelForm("distribution", names)
    for table in tables:
        for _, row in table.rows_and_errors():
            if isinstance(row, ValueError):
                continue
            truths = [truth(row.get(name)) for name in names]
            if None not in truths and sum(filter(None, truths)) != 1:
                return LabelForm("several", names)
    return LabelForm("one", names)


def form_in_words(form: LabelForm) -> str:
    """Says what labels in several columns, lists of numbers and dictionaries mean, or ""."""
    if form.kind == "distribution":
        return "The labels are probabilities of the classes, and scores compare with the likeliest."
    if not form.names:
        return ""
    count = len(form.names)
    if form.kind == "several":
        return f"The {count} columns of labels are 0 or 1: an example may have several labels."
    if form.kind == "one":
        return f"Each row has 1 in one of the {count} columns of labels: it is the example's class."
    return f"An example has {count} targets: {brief(', '.join(form.names), 200)}."


def is_sequence(names: Sequence[str]) -> bool:
    """Returns whether the names of classes are at least three successive whole numbers."""
    numbers = sorted(int(name) for name in names if re.fullmatch("-?[0-9]{1,9}", name))
    first = numbers[0] if numbers else 0
    return len(names) > 2 and numbers == [*range(first, first + len(names))]


def truth(value: Any) -> int | None:
    """Converts a cell of one-hot columns to 0 or 1; None: it is neither, or missing."""
    return TRUTHS.get(written(value))


def is_missing(value: Any) -> bool:
    """Returns whether a cell is empty, null or NaN, or holds what programs write there."""
    return value is None or str(value).strip().lower() in ("", *MISSING)


def label_of_columns(row: Row, form: LabelForm) -> Any:
    """Returns the label that the columns `form.names` of a row hold.

    It is a class, a tuple of classes, {class: probability} or {target: number or None}.

    Raises:
        ValueError: a cell has a wrong value, or cells do not fit together; the message names the
            row and the column.
    """
    cells = {name: row.values.get(name) for name in form.names}
    if form.kind == "targets":
        return targets(row, cells)
    for name, value in cells.items():
        if is_missing(value):
            raise row.error(
                f"the column {brief(name, 60)!r} has no value: write 0 or 1, or remove the row."
            )
    if form.kind == "distribution":
        return distribution(row, cells)
    chosen = []
    for name, value in cells.items():
        number = truth(value)
        if number is None:
            raise row.error(
                f"{shorten(value)} in the column {brief(name, 60)!r} is neither 0 nor 1 (false or "
                "true, no or yes): correct it. Of counts, write each one's share of the row's sum, "
                "which are probabilities; for amounts, use --task=regress."
            )
        if number:
            chosen.append(name)
    if form.kind == "several":
        return tuple(chosen)
    if len(chosen) != 1:
        raise row.error(
            f"{len(chosen)} columns of labels are 1 ({brief(', '.join(chosen), 60) or 'none'}), "
            "but each row of the training data has one class: correct the row."
        )
    return chosen[0]


def distribution(row: Row, probabilities: Mapping[str, Any]) -> dict[str, float]:
    """Returns the {class: probability} of a row; a class that is None there is left out.

    Raises:
        ValueError: a probability is no number from 0 to 1, or their sum is not 1.
    """
    numbers = {}
    for name, value in probabilities.items():
        if value is None:  # Parquet has each class in each row
            continue
        number = _number(row, name, value)
        if number < 0:
            raise row.error(f"the probability {number:g} of {brief(name, 60)!r} is below 0.")
        numbers[row.name(name)] = number
    total = sum(numbers.values())
    if abs(total - 1) > SUM_ERROR:
        raise row.error(
            f"the probabilities of the classes have the sum {total:g}, not 1: divide each by "
            "their sum. For several labels, of which each has 0 or 1, correct the other cells."
        )
    return numbers


def targets(row: Row, cells: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the {target: number} of a row; None where the number is missing.

    Raises:
        ValueError: a cell is no number, or all are missing.
    """
    numbers = {}
    for name, value in cells.items():
        numbers[name] = None if is_missing(value) else _number(row, name, value)
    if all(number is None for number in numbers.values()):
        raise row.error(
            f"all targets ({brief(', '.join(cells), 60)}) are missing: add one, or remove the row."
        )
    return numbers


def listed_targets(row: Row, values: Any, names: Sequence[str]) -> dict[str, float | None]:
    """Returns the {target: number} of a list, which must have a number or null for each of `names`.

    Raises:
        ValueError: it is no list, or has another length.
    """
    if not isinstance(values, list) or len(values) != len(names):
        raise row.error(
            f"the label {shorten(values)} is not a list of {len(names)} numbers, as in other rows: "
            "write null where a target is missing."
        )
    return targets(row, dict(zip(names, values, strict=True)))


def _number(row: Row, name: str, value: Any) -> float:
    number = None if isinstance(value, bool | list | dict) else read_number(str(value))
    if number is None:
        raise row.error(
            f"{shorten(value)} in {brief(name, 60)!r} is not a number like 0.5, with a decimal "
            "point: correct it."
        )
    return number
