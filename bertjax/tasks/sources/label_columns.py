"""Labels in several columns, in lists of numbers and in dictionaries, and which columns hold them.

A table may have a column per class, with 0 or 1 ("one-hot") or the probability of the class, or a
column per target of a regression. In JSON and Parquet, one column may hold {class: probability}, or
a list of targets.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.base.files import brief, counted
from bertjax.data.batches.batch import LabelKind
from bertjax.tasks.dataset import MISSING
from bertjax.tasks.sources.advice import holds_dates, names_owner
from bertjax.tasks.sources.columns import Columns, TableKind, holds_texts, plain
from bertjax.tasks.sources.tables import Row, Table, read_number, shorten
from bertjax.tasks.sources.unused import BINARY, SELECTING, is_harmless, written

# {no: yes} in the spellings of `BINARY`; a table has one of them.
SPELLINGS = {"0": "1", "false": "true", "no": "yes", "n": "y", "f": "t"}
YES = frozenset(SPELLINGS.values())
# The sum of the probabilities of a row may differ from 1 by so much, because they are rounded.
SUM_ERROR = 1e-3


class LabelForm(NamedTuple):
    """How the labels of a table are written.

    Attributes:
        kind: the kind of labels: "classes", "multi_label", "distribution", "targets" or, of all
            others, such as one number, "".
        names: the classes or targets, if columns name them, or a list of numbers has them.
    """

    kind: LabelKind | str = ""
    names: tuple[str, ...] = ()


def one_hot_columns(table: Table, kind: TableKind, named: Columns) -> tuple[str, ...]:
    """Guesses the columns of one-hot labels: those with yes or no in one spelling.

    There must be at least two, and nothing else may be the label: each other column that is not
    named holds texts or dates, or has a name that describes a row. () if that is not so. One in ten
    cells may hold something else, but no number: reading the row refuses it.
    """
    if kind.task != "classify" or named.label is not None or named.labels:
        return ()
    found = []
    spellings: set[str] = set()
    taken = named.taken()
    for name in table.columns:
        if name in taken:
            continue
        cells = Counter(map(written, table.first_values(name)))
        del cells[""]
        known = BINARY.intersection(cells)
        is_binary = len(known) == len(cells) > 0
        if not is_binary and (_is_explained(table, kind, name) or holds_dates(cells)):
            continue
        if not _is_mostly_binary(cells):
            return ()
        if is_harmless(name) or plain(name) in (*kind.labels, *SELECTING, *BINARY):
            return ()
        found.append(name)
        spellings.update(SPELLINGS.get(value, value) for value in known)
    if len(found) < 2 or len(spellings) > 1:
        return ()
    return tuple(found)


def _is_mostly_binary(cells: Counter[str]) -> bool:
    words = cells.keys() - BINARY
    count = sum(cells[word] for word in words)
    has_numbers = any(read_number(word) is not None for word in words)
    return 0 < cells.total() >= 10 * count and not has_numbers


def _is_explained(table: Table, kind: TableKind, name: str) -> bool:
    texts = {*kind.texts}.union(*kind.pairs)
    describes_row = is_harmless(name) or names_owner(name)
    return describes_row or plain(name) in texts or holds_texts(table, name)


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
    values: list[Any] = []
    if columns.label and tables and tables[0].is_typed:
        values = tables[0].first_values(columns.label)
    first = next(iter(values), None)
    if kind.label == "class":
        if separator or isinstance(first, list):
            return LabelForm("multi_label")
        if any(map(_is_distribution, values)):
            return LabelForm("distribution")
        return LabelForm("classes")
    if kind.label == "number" and isinstance(first, list):
        names = [f"{columns.label}_{index}" for index in range(len(first))]
        return LabelForm("targets", tuple(names))
    return LabelForm()


def _is_distribution(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(share, int | float | None) for share in value.values())


def _form_of_columns(tables: Sequence[Table], names: tuple[str, ...]) -> LabelForm:
    for row in tables[0].first_rows:
        shares = [read_number(written(row.get(name))) or 0.0 for name in names]
        if any(share % 1 for share in shares) and _is_one(sum(shares)):
            return LabelForm("distribution", names)
    for table in tables:
        for _, row in table.rows_and_errors():
            if isinstance(row, ValueError):
                continue
            cells = [written(row.get(name)) for name in names]
            chosen = sum(cell in YES for cell in cells)
            if chosen != 1 and BINARY.issuperset(cells):
                return LabelForm("multi_label", names)
    return LabelForm("classes", names)


def _is_one(total: float) -> bool:
    return abs(total - 1) <= SUM_ERROR


def form_in_words(form: LabelForm) -> str:
    """Says what labels in several columns, lists of numbers and dictionaries mean, or ""."""
    if form.kind == "distribution":
        return "The labels are probabilities of the classes, and scores compare with the likeliest."
    if not form.names:
        return ""
    labels = counted(len(form.names), "label")
    meanings = {
        "multi_label": "each is 0 or 1, and an example may have several labels",
        "classes": "one of them is 1 in each row, which is the class of the example",
        "targets": "the targets of a regression, of which some may be missing",
    }
    return f"{labels} ({brief(', '.join(form.names), 200)}): {meanings[form.kind]}."


def is_sequence(names: Sequence[str]) -> bool:
    """Returns whether the names of classes are at least three successive whole numbers."""
    numbers = sorted(int(name) for name in names if re.fullmatch("-?[0-9]{1,9}", name))
    is_numbered = len(names) == len(numbers) > 2
    return is_numbered and numbers == [*range(numbers[0], numbers[0] + len(names))]


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
    if form.kind == "distribution":
        return distribution(row, cells)
    chosen = []
    for name, value in cells.items():
        cell = written(value)
        if cell not in BINARY:
            raise row.error(
                f"{shorten(value)} in the column {brief(name, 60)!r} is neither 0 nor 1 (false or "
                "true, no or yes): write 1 in this cell if the row has the label and 0 if it has "
                "not, divide counts by their sum, or use --task=regress for amounts."
            )
        if cell in YES:
            chosen.append(name)
    if form.kind == "multi_label":
        return tuple(chosen)
    if len(chosen) != 1:
        raise row.error(
            f"{len(chosen)} labels are 1 ({brief(', '.join(chosen), 60)}), but each row of the "
            "training data has one class: correct the row."
        )
    return chosen[0]


def distribution(row: Row, probabilities: Mapping[str, Any]) -> dict[str, float]:
    """Returns the {class: probability} of a row.

    Raises:
        ValueError: a probability is no number or below 0, or their sum is not 1.
    """
    numbers = {name: _number(row, name, value) for name, value in probabilities.items()}
    total = sum(numbers.values())
    if not _is_one(total) or min(numbers.values()) < 0:
        raise row.error(
            f"the probabilities {shorten(numbers)} have the sum {total:g}: they must be at least "
            "0, with the sum 1; divide each by their sum."
        )
    return numbers


def targets(row: Row, cells: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the {target: number} of a row; None where the number is missing.

    Raises:
        ValueError: a cell is no number, or all are missing.
    """
    numbers = {}
    for name, value in cells.items():
        numbers[name] = None
        if not is_missing(value):
            numbers[name] = _number(row, name, value)
    if not {*numbers.values()} - {None}:
        raise row.error(f"all targets ({brief(', '.join(cells), 60)}) are missing: remove the row.")
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
    number = None
    if not isinstance(value, bool | list | dict):
        number = read_number(str(value))
    if number is None:
        raise row.error(f"{shorten(value)} in {brief(name, 60)!r} is not a number such as 0.5.")
    return number
