"""Rows of tagging: a list of words and their tags, or a running text and its entities.

An entity is {"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"], such that text[start:end] is
the entity, or as Label Studio and doccano write it. Texts without a list of entities can be given
to a model for prediction, but not for training or evaluation.
"""

import bisect
import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.dataset import ChangeCounts, Example
from bertjax.tasks.sources.data_files import CSV_SUFFIXES, suffix_of
from bertjax.tasks.sources.tables import Row, shorten
from bertjax.tasks.tags import NO_TAG, PLACEHOLDERS, Word, split_words

# Keys that may have the kind of an entity.
_KINDS = ("label", "type", "tag", "entity", "entity_group", "category")


class Span(NamedTuple):
    """An entity in a text: text[start:end], of a kind such as "PER"."""

    start: int
    end: int
    kind: str


def tagged_example(
    id: str,
    row: Row,
    text_column: str,
    label_column: str | None,
    *,
    labelled: bool,
    overlaps: ChangeCounts | None = None,
) -> Example:
    """Converts a row with a list of words or a running text, and its tags or entities.

    If `labelled`, it must have tags or entities. Tags stay as they are written. With `overlaps`,
    the longest of entities that overlap is kept, and the others are counted there.

    Raises:
        ValueError: the row is bad; the message names it.
    """
    row = _with_lists(row, text_column, label_column)
    label = None if label_column is None else row.values.get(label_column)
    if isinstance(row.values.get(text_column), str):
        text = row.text(text_column)
        if label is None and labelled:
            raise ValueError(
                f"{row.where} has no list of entities in {brief(label_column, 60)!r}: write [] for "
                "a text without entities."
            )
        return _text_example(id, row, text, label, overlaps)
    words = row.listed(text_column)
    if label is None and labelled:
        raise ValueError(
            f"{row.where} has no tags in {brief(label_column, 60)!r}: write a list of tags."
        )
    if isinstance(label, list):  # such as the id -1 of a class
        label = [NO_TAG if tag is None else tag for tag in label]
    tags = None if label is None else row.names(label)
    if tags is not None and len(tags) != len(words):
        raise ValueError(
            f"{row.where} has {len(words)} words, but {len(tags)} tags: write one tag per word."
        )
    return Example(id=id, where=row.where, words=words, label=tags)


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
    for column in {text, label} & values.keys():
        if str(values[column]).strip("[]0123456789., "):  # not a text such as [1]
            row.refuse_written_list(values[column])
    return row._replace(values=values)


def _json_list(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _text_example(
    id: str, row: Row, text: str, label: Any, overlaps: ChangeCounts | None
) -> Example:
    """Converts a running text to its words and, if there is a label, their IOB2 tags.

    The words depend on the text alone, so that labels do not help a prediction: an entity that
    starts or ends within a word has the tags of whole words, and is `cut`.

    Raises:
        ValueError: the text has no words, an entity is malformed or lies outside of the text, or
            two entities overlap or have a word in common.
    """
    words = split_words(text)
    if not words:
        raise row.error(f"the text {shorten(text)} has no words; remove the row.")
    tags = None
    cut = ()
    if label is not None:
        tags, cut = _tags(row, words, _spans(row, text, label, overlaps))
    return Example(
        id=id,
        where=row.where,
        text=text,
        words=tuple(word.text for word in words),
        offsets=tuple((word.start, word.end) for word in words),
        label=tags,
        cut=cut,
    )


def _spans(row: Row, text: str, label: Any, overlaps: ChangeCounts | None) -> list[Span]:
    """Reads the list of entities of a row, sorted by position."""
    spans = set()
    for entity in label if isinstance(label, list) else [label]:
        for of_label in _plain(row, text, entity):
            spans.add(_span(row, text, of_label))
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start - span.end, span)):
        place = bisect.bisect(kept, span)
        for other in kept[max(place - 1, 0) : place + 1]:
            if span.start < other.end and other.start < span.end:
                if overlaps is None:
                    first, second = sorted([span, other])
                    raise row.error(
                        f"the entities {shorten(text[first.start : first.end])} and "
                        f"{shorten(text[second.start : second.end])} overlap "
                        f"({brief(first.kind, 40)}, {brief(second.kind, 40)}): keep one of them."
                    )
                overlaps.add("entities that overlap a longer one, left out", row.where)
                break
        else:
            kept.insert(place, span)
    return kept


def _plain(row: Row, text: str, entity: Any) -> Iterator[Any]:
    """Yields an entity as tables have it, also if Label Studio, doccano or Prodigy wrote it.

    Label Studio counts characters since 2021 (pull request 308 of its frontend), and counted UTF-16
    units before: the text that it repeats tells. doccano counts UTF-16 units since its editor of
    2021 (issue 2290), which writes comments or start_offset, and counted characters before.
    """
    said = None
    match entity:
        case {"start": int(start), "end": int(end), "labels": [_, *_] as kinds}:
            said = entity.get("text")
            is_here = end <= len(text) and covers(text[start:end], said)
            is_utf16 = isinstance(said, str) and not is_here
        case {"start_offset": int(start), "end_offset": int(end), "label": kind}:
            kinds = [kind]
            is_utf16 = True
        case [int(start), int(end), kind] if "Comments" in row.values:
            kinds = [kind]
            is_utf16 = True
        case {"start": int(start), "end": int(end), "label": str(kind)} if (
            "_task_hash" in row.values
        ):
            kinds = [kind]
            is_utf16 = False
        case _:
            yield entity
            return
    if is_utf16:
        start, end = (_from_utf16(text, place) for place in (start, end))
    for kind in kinds:
        label = "_".join(str(kind).split())  # a tag is one word in CoNLL's columns
        yield {"start": start, "end": end, "label": label, "text": said}


def _from_utf16(text: str, place: int) -> int:
    """Converts a position from UTF-16 units to characters; one after the end remains after it."""
    units = text.encode("utf-16-le")
    before = units[: 2 * place].decode("utf-16-le", "ignore")
    if 2 * place <= len(units):
        return len(before)
    return place


def covers(inside: str, said: Any) -> bool:
    """Returns whether a part of a text is what a tool says, if it does, but for spaces.

    Label Studio writes line ends as a backslash and an n.
    """
    if not isinstance(said, str):
        return True
    return said.replace("\\n", " ").split() == inside.replace("\\n", " ").split()


def _span(row: Row, text: str, entity: Any) -> Span:
    start, end, kind = _parts(entity)
    if not _is_whole(start) or not _is_whole(end) or not _is_kind(kind):
        raise row.error(
            f"{shorten(entity)} is not an entity: for a text, write "
            '{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"], with whole numbers and a '
            "label without spaces; tags need a list of words."
        )
    named = f"the entity {shorten(entity)}"
    if start == end:
        raise row.error(f"{named} is empty: `end` is the position after its last character.")
    if not 0 <= start < end <= len(text):
        raise row.error(
            f"{named} is not within the text, which has {len(text)} characters. "
            f"{_count_characters(text)}"
        )
    inside = text[start:end]
    said = None
    if isinstance(entity, dict):
        said = entity.get("text")
    if not covers(inside, said):
        raise row.error(
            f"the entity {shorten(said)} has start {start} and end {end}, but there "
            f"the text is {shorten(inside)}. {_count_characters(text)}"
        )
    # Spaces at the edges of an entity are of no word.
    start += len(inside) - len(inside.lstrip())
    end -= len(inside) - len(inside.rstrip())
    if start >= end:
        raise row.error(f"{named} has no words: remove it.")
    return Span(start, end, kind)


def _parts(entity: Any) -> tuple[Any, Any, Any]:
    """Returns start, end and kind of an entity in one of its two forms."""
    if isinstance(entity, dict):
        kinds = [entity[key] for key in _KINDS if key in entity]
        entity = [entity.get("start"), entity.get("end"), *kinds[:1]]
    if not isinstance(entity, list) or len(entity) != 3:
        return None, None, None
    start, end, kind = entity
    return start, end, kind.strip() if isinstance(kind, str) else kind


def _is_whole(position: Any) -> bool:
    return isinstance(position, int) and not isinstance(position, bool)


def _is_kind(kind: Any) -> bool:
    if not isinstance(kind, str) or kind in PLACEHOLDERS:
        return False
    return re.fullmatch(r"\S+", kind) is not None


def utf16_hint(row: Row) -> str:
    """Returns a question about the positions in a row whose texts have emoji, or ""."""
    if not any(isinstance(value, str) and _has_pairs(value) for value in row.values.values()):
        return ""
    return " (are emoji counted as two UTF-16 units, as in JavaScript? They are one character)"


def _has_pairs(text: str) -> bool:
    """Returns whether a text has characters that JavaScript and Java count as two."""
    return not text.isascii() and max(text) > "\uffff"


def _count_characters(text: str) -> str:
    """Returns the remedy for wrong positions in `text`."""
    if _has_pairs(text):
        return "Count Unicode characters from 0; an emoji is one, not two UTF-16 units."
    if not text.isascii():
        return "Count Unicode characters from 0, not bytes."
    return "Correct start and end."


def _tags(
    row: Row, words: Sequence[Word], spans: list[Span]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the IOB2 tag of each word, and the first words of entities that cut a word.

    An entity has all words with any of its characters. Two entities in a word raise ValueError,
    because one of them would be lost or cut.
    """
    tags = ["O"] * len(words)
    cut = []
    starts = [word.start for word in words]
    ends = [word.end for word in words]
    free = 0  # the words before it are tagged or passed
    for start, end, kind in spans:
        first = bisect.bisect_right(ends, start)
        if first < free:
            raise row.error(
                f"two entities have the word {shorten(words[first].text)} in common, "
                "but a word has one tag: separate them by a space, or keep one of them."
            )
        free = bisect.bisect_left(starts, end)
        if first == free:
            continue
        tags[first:free] = [f"I-{kind}"] * (free - first)
        tags[first] = f"B-{kind}"
        if starts[first] < start or end < ends[free - 1]:
            cut.append(first)
    return tuple(tags), tuple(cut)
