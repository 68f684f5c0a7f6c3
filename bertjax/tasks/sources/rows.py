"""Converts the rows of a user's file to examples; error messages name the row.

In tagging, a row holds words and tags, or a running text and a list of entities, each of which is
{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"], such that text[start:end] is the entity.
Texts without such a list can be given to a model for prediction, but not for training or
evaluation.
"""

import bisect
import contextlib
import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.sources.columns import Columns, OwnKind
from bertjax.tasks.sources.conll import DOCUMENT_START, Sentence, tagged_example
from bertjax.tasks.sources.tables import (
    CSV_SUFFIXES,
    NAMED_COLUMNS,
    check_utf8,
    read_lines,
    read_number,
    row_name,
    suffix_of,
)
from bertjax.tasks.tagging import Word, marks_entities, split_words
from bertjax.tasks.task import Example


def shorten(value: Any) -> str:
    """Converts a value of a row to JSON text for an error message, cut after 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = f"a nested {type(value).__name__}"
    if len(text) <= 60:
        return text
    # A string is closed after the dots, so that what follows in the message is not read as its end.
    return f"{brief(text[:60])}...{text[-1] if isinstance(value, str) else ''}"


class Row(NamedTuple):
    """One row of a user's file, {column: value} in `values`.

    All methods raise ValueError if a value has a wrong type; the message names the row.
    """

    path: Path
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """The path of the file and the number of the row, for error messages."""
        return row_name(self.path, self.number)

    def text(self, column: str) -> str:
        """Returns the text in a column, which must not be empty."""
        if column not in self.values:
            raise ValueError(
                f"{self.where} has no column {brief(column, 60)!r}, only "
                f"{brief(', '.join(self.values))}. Correct the row."
            )
        return self._checked(self.values[column], column)

    def texts(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the text in each of `columns` or, if it is one column, the texts in its list."""
        if len(columns) == 1:
            return self.listed(columns[0])
        return tuple(self.text(column) for column in columns)

    def listed(self, column: str) -> tuple[str, ...]:
        """Returns the texts in the list in a column, of which there must be at least one."""
        listed = self.values.get(column)
        if not isinstance(listed, list) or not listed:
            raise ValueError(
                f"{self.where}: {brief(column, 60)!r} should be a list of texts, but is "
                f"{shorten(listed)}. Correct the row."
            )
        return tuple(self._checked(value, column) for value in listed)

    def _checked(self, value: Any, column: str) -> str:
        if not isinstance(value, str):
            raise ValueError(
                f"{self.where}: {brief(column, 60)!r} should be a text, but is {shorten(value)}. "
                "Correct the row."
            )
        if not value or value.isspace():
            raise ValueError(
                f"{self.where}: the text in {brief(column, 60)!r} is empty; fill it or remove the "
                "row."
            )
        # JSON can contain a lone surrogate, such as "\ud83d".
        check_utf8(value, self.path, self.number)
        return value

    def name(self, value: Any) -> str:
        """Converts a label to a class name; numbers and booleans become their JSON text.

        The JSON numbers 3 and 3.0 are one class, "3": pandas writes whole numbers as floats if a
        value is missing in their column.
        """
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return json.dumps(value)
        raise ValueError(
            f"{self.where}: the label {shorten(value)} is not the name of a class. For several "
            "labels per example, write lists in every row, or give --label_separator."
        )

    def names(self, values: Any) -> list[str]:
        """Converts a list of labels or tags to a list of class names."""
        if not isinstance(values, list):
            raise ValueError(f"{self.where}: labels should be a list, but are {shorten(values)}.")
        return [self.name(value) for value in values]

    def number_of(self, value: Any) -> float:
        """Converts a label, given as a text or as a JSON number, to a float."""
        number = None if isinstance(value, bool | list | dict) else read_number(str(value))
        if number is None:
            raise ValueError(
                f"{self.where}: the label {shorten(value)} is not a number like 1250.5, with a "
                "decimal point, but without separators of thousands, currency or unit. To train "
                "on names of classes, use --task=classify."
            )
        return number

    def choice_of(self, value: Any, columns: tuple[str, ...], count: int) -> int:
        """Converts a label, the index, text or letter of a choice, to the choice's index.

        Indices count from 0, letters from a.
        """
        written = self.name(value)
        if written.isdecimal() and int(written) < count:
            return int(written)
        texts = [text.strip() for text in self.texts(columns)]
        if texts.count(written) == 1:
            return texts.index(written)
        letters = "abcdefghijklmnopqrstuvwxyz"[:count]
        if len(written) == 1 and written.lower() in letters:
            return letters.index(written.lower())
        raise ValueError(
            f"{self.where}: the label {shorten(value)} is none of the {count} choices: write the "
            f"index, 0 to {count - 1}, the text or the letter of the correct choice."
        )


# The values of multi-hot lists, as names of labels.
MULTI_HOT = frozenset({"0", "1", "0.0", "1.0", "false", "true"})
# A whole number as it is usually written, or as pandas writes it in a column of floats.
_WHOLE = re.compile(r"(0|-?[1-9]\d*)(?:\.0)?")


class KnownClasses:
    """Finds the class, one of `names`, of a label that another program writes in another way.

    It compares whole numbers, such as 1 and 1.0, and truth values, such as true and TRUE.
    """

    def __init__(self, names: Iterable[str]):
        self._names = frozenset(names)
        written: dict[str, list[str]] = {}  # a number or truth value -> the classes that it may be
        for name in self._names:
            if value := _value(name):
                written.setdefault(value, []).append(name)
        self._classes = {value: found[0] for value, found in written.items() if len(found) == 1}

    def of(self, label: Any) -> Any:
        """Returns the class of a label, or of each of a tuple; unknown labels stay as they are."""
        if isinstance(label, tuple):
            return _distinct(tuple(map(self.of, label)))
        if not isinstance(label, str) or label in self._names:
            return label
        return self._classes.get(_value(label), label)


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Removes repetitions, but not from multi-hot lists, which are refused for their length."""
    return names if MULTI_HOT.issuperset(names) else tuple(dict.fromkeys(names))


def _value(name: str) -> str:
    """Returns the whole number or truth value that `name` writes, in one form, or ""."""
    if name.lower() in ("true", "false"):
        return name.lower()
    found = _WHOLE.fullmatch(name)
    return found[1] if found else ""


class RowReader:
    """Converts rows to examples; every method raises ValueError for a bad row and names the row.

    Args:
        separator: the string between several labels; None: several labels are written as a list.
        multi_label: whether an example may have several labels.
        labelled: whether every row must have a label.

    Attributes:
        counts: {what was changed: number of rows}.
    """

    def __init__(
        self,
        kind: OwnKind,
        columns: Columns,
        separator: str | None,
        multi_label: bool,
        *,
        labelled: bool,
    ):
        assert columns.text is not None
        self._kind, self._columns, self._text = kind, columns, columns.text
        self._separator, self._multi_label, self._labelled = separator, multi_label, labelled
        self.counts: Counter[str] = Counter()
        self._cut = ""  # the reason, with the first row, why entities are changed

    def example(self, id: str, row: Row) -> Example:
        """Converts `row` to an example with the id `id`; tags are kept as they are written."""
        if self._kind == "tag":
            sentence = self._sentence(row)
            if sentence.cut_word:
                self._cut = self._cut or (
                    "rows whose entities begin or end within a word (such as "
                    f"{sentence.cut_word!r} in {row.where}{_utf16_hint(row)}) and are taken as "
                    "whole words, in the scores as well"
                )
                self.counts[self._cut] += 1
            return dataclasses.replace(tagged_example(id, row.path, sentence), row=row.values)
        columns = self._columns
        pair = None if columns.pair is None else row.text(columns.pair)
        choices = ()
        if self._kind == "choice":
            start = "" if pair is None else f"{pair} "
            choices = tuple(start + choice for choice in row.texts(columns.choices))
            pair = None
        elif columns.negatives:
            choices = self._negatives(row)
        return Example(
            id=id,
            where=row.where,
            row=row.values,
            text=row.text(self._text),
            pair=pair,
            choices=choices,
            label=self._label(row, len(choices)),
        )

    def _negatives(self, row: Row) -> tuple[str, ...]:
        columns = self._columns.negatives
        if len(columns) == 1 and not isinstance(row.values.get(columns[0]), list):
            return (row.text(columns[0]),)
        return row.texts(columns)

    def _sentence(self, row: Row) -> Sentence:
        """Converts a row with a list of words, or with a running text."""
        text, label = self._text, self._columns.label
        row = _with_lists(row, text, label)
        if isinstance(row.values.get(text), str):
            sentence = text_sentence(row, text, label)
            if sentence.tags is None and self._labelled:
                raise ValueError(
                    f"{row.where} has no list of entities in {brief(label, 60)!r}: write [] for a "
                    "text without entities."
                )
            return sentence
        words = row.listed(text)
        value = row.values.get(label) if label is not None else None
        if value is None and self._labelled:
            raise ValueError(
                f"{row.where} has no tags in {brief(label, 60)!r}: write a list of tags."
            )
        tags = None if value is None else tuple(row.names(value))
        if tags is not None and len(tags) != len(words):
            raise ValueError(
                f"{row.where} has {len(words)} words, but {len(tags)} tags: write one tag per word."
            )
        return Sentence(row.number, words, tags)

    def _label(self, row: Row, num_choices: int) -> str | float | int | tuple[str, ...] | None:
        column = self._columns.label
        value = None if column is None else row.values.get(column)
        empty = value is None or (isinstance(value, str) and not value.strip())
        if empty and self._separator and column in row.values:
            return ()  # a DataFrame marks an empty cell of CSV by a missing value
        if empty and (value is None or not self._multi_label):
            if not self._labelled or column is None:
                return None
            raise ValueError(
                f"{row.where} has no label in column {brief(column, 60)!r}: add one, or remove "
                "the row."
            )
        if self._kind == "choice":
            return row.choice_of(value, self._columns.choices, num_choices)
        if self._kind != "classify":
            return row.number_of(value)
        if not self._multi_label:
            return row.name(value)
        if isinstance(value, str) and self._separator:
            value = [part for part in value.split(self._separator) if part.strip()]
        return _distinct(tuple(row.names(value)))


def _with_lists(row: Row, text: str, label: str | None) -> Row:
    """Converts the cells of CSV that hold JSON lists, of words, tags or entities, to lists.

    Texts that merely begin with "[" remain; an empty label becomes None.
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
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


# Number of lines of a file that decide whether the file has CoNLL's columns.
_LINES = 200
# A text has more words than a line in CoNLL's format has columns.
_MOST_COLUMNS = 6
_KINDS = ("label", "type", "tag", "entity", "entity_group", "category")


class Span(NamedTuple):
    """An entity in a text: text[start:end], of a kind such as "PER"."""

    start: int
    end: int
    kind: str


def has_columns(path: Path, labels: Collection[str]) -> bool:
    """Returns whether a file has CoNLL's columns, one word and not one text per line.

    CSV, JSON and Parquet files never have CoNLL's columns. Any other file has them if its first 200
    lines that are not blank all have the same number of fields with spaces between, at most 6, and
    one of these conditions holds: the number is 1; the last fields are all in `labels`, the tags of
    the task, or are all entity tags, such as B-PER; or there are blank lines.
    """
    if suffix_of(path) in NAMED_COLUMNS or not path.is_file():
        return False
    rows: list[list[str]] = []
    blank = False
    for _, line in read_lines(path):
        fields = line.split()
        blank |= bool(rows) and not fields
        if fields and fields[0] != DOCUMENT_START:
            rows.append(fields)
        if len(rows) == _LINES:
            break
    counts = {len(fields) for fields in rows}
    if len(counts) != 1 or max(counts) > _MOST_COLUMNS:
        return False
    tags = {fields[-1] for fields in rows}
    return counts == {1} or tags <= set(labels) or marks_entities(tags) or blank


def text_sentence(row: Row, text_column: str, entity_column: str | None) -> Sentence:
    """Converts a row with a running text to a `Sentence`: its words and their IOB2 tags.

    The words depend on the text alone, so that labels do not help a prediction: an entity that
    starts or ends within a word is taken as whole words. Without a list of entities, the tags are
    None.

    Raises:
        ValueError: the text has no words, an entity is malformed or lies outside of the text, or
            two entities overlap or have a word in common.
    """
    text = row.text(text_column)
    listed = None if entity_column is None else row.values.get(entity_column)
    spans = None if listed is None else _spans(row, text, listed)
    words = split_words(text)
    if not words:
        raise ValueError(f"{row.where}: the text {shorten(text)} has no words; remove the row.")
    tags = None if spans is None else _tags(row, words, spans)
    offsets = tuple((word.start, word.end) for word in words)
    cut_word = _cut_word(words, spans or ())
    return Sentence(row.number, tuple(word.text for word in words), tags, text, offsets, cut_word)


def _cut_word(words: Sequence[Word], spans: Iterable[Span]) -> str:
    """Returns the first word within which an entity starts or ends; "" if none does."""
    edges = sorted({edge for span in spans for edge in span[:2]})
    for word in words:
        next_edge = bisect.bisect_right(edges, word.start)
        if next_edge < len(edges) and edges[next_edge] < word.end:
            return word.text
    return ""


def _spans(row: Row, text: str, listed: Any) -> list[Span]:
    """Reads the list of entities of a row, sorted by position."""
    if not isinstance(listed, list):
        listed = [listed]
    spans = sorted(_span(row, text, entity) for entity in listed)
    for before, span in zip(spans, spans[1:], strict=False):
        if span.start < before.end:
            raise ValueError(
                f"{row.where}: the entities {shorten(text[before.start : before.end])} and "
                f"{shorten(text[span.start : span.end])} overlap: keep one of them."
            )
    return spans


def _span(row: Row, text: str, entity: Any) -> Span:
    start: Any = None
    end: Any = None
    kind: Any = None
    if isinstance(entity, dict):
        start, end = entity.get("start"), entity.get("end")
        kind = next((entity[key] for key in _KINDS if key in entity), None)
    elif isinstance(entity, list) and len(entity) == 3:
        start, end, kind = entity
    kind = kind.strip() if isinstance(kind, str) else kind
    whole = all(isinstance(edge, int) and not isinstance(edge, bool) for edge in (start, end))
    if not whole or not isinstance(kind, str) or not re.fullmatch(r"\S+", kind):
        raise ValueError(
            f"{row.where}: {shorten(entity)} is not an entity: for a text, write "
            '{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"], with whole numbers and a '
            "label without spaces; tags need a list of words."
        )
    if start == end:
        raise ValueError(
            f"{row.where}: the entity {shorten(entity)} is empty: `end` is the position after its "
            "last character. Correct or remove it."
        )
    if not 0 <= start < end <= len(text):
        raise ValueError(
            f"{row.where}: the entity {shorten(entity)} is not within the text, which has "
            f"{len(text)} characters. {_count_characters(text)}"
        )
    # Spaces at the edges of an entity are of no word.
    inside = text[start:end]
    said = entity.get("text") if isinstance(entity, dict) else None
    if isinstance(said, str) and said.strip() != inside.strip():
        raise ValueError(
            f"{row.where}: the entity {shorten(said)} has start {start} and end {end}, but there "
            f"the text is {shorten(inside)}. {_count_characters(text)}"
        )
    start += len(inside) - len(inside.lstrip())
    end -= len(inside) - len(inside.rstrip())
    if start >= end:
        raise ValueError(f"{row.where}: the entity {shorten(entity)} has no words: remove it.")
    return Span(start, end, kind)


def _utf16_hint(row: Row) -> str:
    """Returns a question about the positions in a row whose texts have emoji, or ""."""
    if not any(isinstance(value, str) and _has_pairs(value) for value in row.values.values()):
        return ""
    return " (are emoji counted as two UTF-16 units, as in JavaScript? They are one character)"


def _has_pairs(text: str) -> bool:
    """Returns whether a text has characters that JavaScript and Java count as two."""
    return any(ord(character) > 0xFFFF for character in text)


def _count_characters(text: str) -> str:
    """Returns the remedy for wrong positions in `text`."""
    if _has_pairs(text):
        return "Count Unicode characters from 0; an emoji is one, not two UTF-16 units."
    if not text.isascii():
        return "Count Unicode characters from 0, not bytes."
    return "Correct start and end."


def _tags(row: Row, words: Sequence[Word], spans: list[Span]) -> tuple[str, ...]:
    """Returns the IOB2 tag of each word; an entity has all words with any of its characters.

    Two entities in a word raise ValueError, because one of them would be lost or cut.
    """
    tags = ["O"] * len(words)
    starts, ends = [word.start for word in words], [word.end for word in words]
    free = 0  # the words before it are tagged or passed
    for start, end, kind in spans:
        first = bisect.bisect_right(ends, start)
        if first < free:
            raise ValueError(
                f"{row.where}: two entities have the word {shorten(words[first].text)} in common, "
                "but a word has one tag: separate them by a space, or keep one of them."
            )
        free = bisect.bisect_left(starts, end)
        for index in range(first, free):
            tags[index] = f"{'B' if index == first else 'I'}-{kind}"
    return tuple(tags)
