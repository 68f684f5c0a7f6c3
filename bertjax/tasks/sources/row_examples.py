"""Converts the rows of a user's file to examples, for each kind of task on own files."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any

from bertjax.base.files import brief
from bertjax.tasks.sources.columns import Columns, CustomKind
from bertjax.tasks.sources.conll import Sentence
from bertjax.tasks.sources.custom_row import Row
from bertjax.tasks.sources.table_files import CSV_SUFFIXES, suffix_of
from bertjax.tasks.sources.tagged_text import text_sentence
from bertjax.tasks.task import Example

# The values of multi-hot lists, as names of labels.
MULTI_HOT = frozenset({"0", "1", "0.0", "1.0", "false", "true"})
# A whole number as it is usually written, or as pandas writes it in a column of floats.
_WHOLE = re.compile(r"(0|-?[1-9]\d*)(?:\.0)?")


class KnownClasses:
    """Finds the class of a label that is written in another way by another program.

    These are whole numbers, such as 1 and 1.0, and the truth values true and false, which may be
    written as TRUE or False.

    Args:
        names: the names of the classes.
    """

    def __init__(self, names: Iterable[str]):
        self._names = frozenset(names)
        written: dict[str, list[str]] = {}  # a number or truth value -> the classes that it may be
        for name in self._names:
            if value := _value(name):
                written.setdefault(value, []).append(name)
        self._classes = {value: found[0] for value, found in written.items() if len(found) == 1}

    def of(self, label: str) -> str:
        """Returns the class of `label`, or `label` itself if it is a class or no class is found."""
        return label if label in self._names else self._classes.get(_value(label), label)


def _value(name: str) -> str:
    """Returns the whole number or truth value that `name` writes, in one form, or ""."""
    if name.lower() in ("true", "false"):
        return name.lower()
    found = _WHOLE.fullmatch(name)
    return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class RowExamples:
    """Converts rows to examples; every method raises ValueError for a bad row and names the row.

    Attributes:
        kind: the kind of task: classify, regress, tag, choice or embed.
        columns: the names of the columns.
        separator: the string between the labels of an example with several labels; None: several
            labels are written as a list.
        multi_label: whether an example may have several labels.
        classes: finds the class of a label; empty: the label is the class.
    """

    kind: CustomKind
    columns: Columns
    separator: str | None
    multi_label: bool
    classes: KnownClasses

    def example(self, id: str, row: Row, *, labelled: bool) -> Example:
        """Converts `row` to an example with the id `id`, for all kinds of task except tagging.

        Raises:
            ValueError: a column of the row is missing or has a wrong type, the label is malformed,
                or `labelled` is True and the row has no label.
        """
        columns = self.columns
        assert columns.text is not None
        pair = None if columns.pair is None else row.text(columns.pair)
        choices = ()
        if self.kind == "choice":
            start = "" if pair is None else f"{pair} "
            choices = tuple(start + choice for choice in row.texts(columns.choices))
            pair = None
        elif self.kind == "embed":
            choices = self._negatives(row)
        return Example(
            id=id,
            where=row.where,
            row=row.values,
            text=row.text(columns.text),
            pair=pair,
            choices=choices,
            label=self._label(row, len(choices), labelled=labelled),
        )

    def _negatives(self, row: Row) -> tuple[str, ...]:
        """Returns the hard negatives of a row: the texts of several columns, or a list in one."""
        columns = self.columns.negatives
        if len(columns) == 1 and not isinstance(row.values.get(columns[0]), list):
            return (row.text(columns[0]),)
        return row.texts(columns) if columns else ()

    def sentence(self, row: Row, *, labelled: bool) -> Sentence:
        """Converts `row`, a list of words or a running text, to a sentence with its tags.

        Raises:
            ValueError: the row is malformed, or `labelled` is True and it has no tags or entities.
        """
        columns = self.columns
        assert columns.text is not None
        row = _with_lists(row, columns.text, columns.label)
        if isinstance(row.values.get(columns.text), str):
            sentence = text_sentence(row, columns.text, columns.label)
            if sentence.tags is None and labelled:
                raise ValueError(
                    f"{row.where} has no list of entities in {brief(columns.label, 60)!r}: write "
                    "[] for a text without entities."
                )
            return sentence
        words = row.listed(columns.text)
        value = row.values.get(columns.label) if columns.label is not None else None
        if value is None and labelled:
            raise ValueError(
                f"{row.where} has no tags in {brief(columns.label, 60)!r}: write a list of tags."
            )
        tags = None if value is None else tuple(row.names(value))
        if tags is not None and len(tags) != len(words):
            raise ValueError(
                f"{row.where} has {len(words)} words, but {len(tags)} tags: write one tag per word."
            )
        return Sentence(row.number, words, tags)

    def _label(
        self, row: Row, num_choices: int, *, labelled: bool
    ) -> str | float | int | tuple[str, ...] | None:
        column = self.columns.label
        value = None if column is None else row.values.get(column)
        empty = value is None or (isinstance(value, str) and not value.strip())
        if empty and self.separator and column in row.values:
            return ()  # a DataFrame marks an empty cell of CSV by a missing value
        if empty and (value is None or not self.multi_label):
            if not labelled or column is None:
                return None
            raise ValueError(
                f"{row.where} has no label in column {brief(column, 60)!r}: add one, or remove "
                "the row."
            )
        if self.kind in ("regress", "embed"):
            return row.number_of(value)
        if self.kind == "choice":
            return row.choice_of(value, self.columns, num_choices)
        if not self.multi_label:
            return self.classes.of(row.name(value))
        if isinstance(value, str) and self.separator:
            value = [part for part in value.split(self.separator) if part.strip()]
        names = tuple(map(self.classes.of, row.names(value)))
        # A label that is listed twice is one label; multi-hot lists are refused for their length.
        return names if MULTI_HOT.issuperset(names) else tuple(dict.fromkeys(names))


def _with_lists(row: Row, text: str, label: str | None) -> Row:
    """Converts the cells of CSV that hold JSON lists, of words, tags or entities, to lists.

    `text` and `label` are the names of the two columns. An empty cell of the label becomes None.
    Other values remain, among them texts that merely begin with "[", and all rows of other formats.
    """
    if suffix_of(row.path) not in CSV_SUFFIXES:
        return row
    values = dict(row.values)
    words = _json_list(values.get(text))
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        values[text] = words
    if label is not None and isinstance(values.get(label), str):
        values[label] = _json_list(values[label]) if values[label].strip() else None
    return row._replace(values=values)


def _json_list(value: Any) -> Any:
    """Converts a text that is a JSON list to that list; returns any other value unchanged."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value
