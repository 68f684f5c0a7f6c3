"""Running text for tagging: texts whose entities are marked by the positions of their characters.

A row of a user's file holds a text and a list of entities, each of which is
{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"], such that text[start:end] is the entity.
Texts without such a list can be given to a model for prediction, but not for training or
evaluation.
"""

import bisect
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.tasks.sources.conll import DOCUMENT_START, Sentence
from bertjax.tasks.sources.custom_row import Row, shorten
from bertjax.tasks.sources.row_readers import read_lines
from bertjax.tasks.sources.table_files import NAMED_COLUMNS, suffix_of
from bertjax.tasks.tag_schemes import marks_entities
from bertjax.tasks.words import Word, split_words

# Number of lines of a file that decide whether the file has CoNLL's columns.
_LINES = 200
# A text has more words than a line in CoNLL's format has columns.
_MOST_COLUMNS = 6
_KINDS = ("label", "type", "tag", "entity", "entity_group", "category")


class Span(NamedTuple):
    """An entity in a text: the characters text[start:end], of type `kind`, such as "PER"."""

    start: int
    end: int
    kind: str


def has_columns(path: Path, labels: Collection[str]) -> bool:
    """Returns whether the file `path` has CoNLL's columns, one word and not one text per line.

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
    starts or ends within a word is taken as whole words. If the row has no list of entities, the
    tags of the sentence are None.

    Args:
        row: a row of a user's file.
        text_column: the column with the text.
        entity_column: the column with the list of entities; None: there are no labels.

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


def utf16_hint(row: Row) -> str:
    """Returns a question about the positions in a row whose texts have emoji, or ""."""
    if not any(isinstance(value, str) and _has_pairs(value) for value in row.values.values()):
        return ""
    return " (are emoji counted as two UTF-16 units, as in JavaScript? They are one character)"


def _has_pairs(text: str) -> bool:
    """Returns whether `text` has characters that are two units of UTF-16.

    JavaScript and Java count such characters twice, so that all positions after them are wrong.
    """
    return any(ord(character) > 0xFFFF for character in text)


def _count_characters(text: str) -> str:
    """Returns the remedy for wrong positions in `text`."""
    if _has_pairs(text):
        return "Count Unicode characters from 0; an emoji is one, not two UTF-16 units."
    if not text.isascii():
        return "Count Unicode characters from 0, not bytes."
    return "Correct start and end."


def _tags(row: Row, words: Sequence[Word], spans: list[Span]) -> tuple[str, ...]:
    """Returns the IOB2 tag of each word, from the entities in the order of their positions.

    A word belongs to the entity that has any of its characters; if there are two, ValueError is
    raised, because a word has one tag and one of the entities would be lost or cut.
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
