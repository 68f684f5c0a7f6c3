"""Tag schemes that mark entities word by word: conversion to IOB2, and reading of entities.

The words of an entity of type X, here of three words, have these tags in each scheme (Ramshaw and
Marcus 1995; Ratinov and Roth 2009):

    IOB1    I-X I-X I-X, but B-X I-X I-X after another entity of type X (official CoNLL files)
    IOB2    B-X I-X I-X
    IOBES   B-X I-X E-X, but S-X for an entity of one word (BILOU: L-X for E-X, U-X for S-X)
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

Scheme = Literal["IOB1", "IOB2", "IOBES"]
_ENTITY_TAG = re.compile(r"O|[BIESLU](-.+)?")


def scheme_of(sentences: Iterable[tuple[str, ...]]) -> Scheme | None:
    """Detects the tag scheme, "IOB1", "IOB2" or "IOBES"; None if the tags mark no entities.

    BILOU is reported as IOBES. Sentences in IOB2 are taken for IOB1 if an entity begins with I-X by
    mistake.
    """
    scheme: Scheme = "IOB2"
    for tags in sentences:
        previous = "O"
        for tag in tags:
            if not _ENTITY_TAG.fullmatch(tag):
                return None
            if tag[0] in "ESLU":
                scheme = "IOBES"
            elif tag[0] == "I" and previous[1:] != tag[1:] and scheme == "IOB2":
                scheme = "IOB1"
            previous = tag
    return scheme


def marks_entities(tags: Iterable[str]) -> bool:
    """Returns whether all tags are entity tags (O, B-X, I-X, ...), and not parts of speech."""
    return scheme_of([tuple(tags)]) is not None


def to_iob2(tags: Iterable[str]) -> tuple[str, ...]:
    """Converts the tags of a sentence from IOB1, IOB2, IOBES or BILOU to IOB2."""
    converted = []
    inside = None  # type of the entity that the next word may continue
    for tag in tags:
        if tag == "O":
            converted.append(tag)
            inside = None
            continue
        mark, kind = tag[0], tag[1:]
        converted.append(("B" if mark in "BSU" or kind != inside else "I") + kind)
        inside = None if mark in "ESLU" else kind
    return tuple(converted)


def order_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Returns the tags in the order of their class ids: O, then B-X and I-X for each type X.

    For each type X, B-X and I-X are both included, even if `tags` contains only one of the two.
    If the tags mark no entities, such as parts of speech, they are sorted alphabetically instead.
    """
    tags = set(tags)
    if not marks_entities(tags):
        return tuple(sorted(tags))
    kinds = sorted({tag[1:] for tag in tags if tag != "O"})
    return ("O", *(mark + kind for kind in kinds for mark in "BI"))


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns (first word, last word + 1, type) for each entity that the tags of a sentence mark.

    An entity of type X starts at `B-X`, and at an `I-X` that does not continue an entity of type X.
    Like conlleval, the function accepts IOB1, IOB2 and inconsistent tags. A word with a tag other
    than `B-X` or `I-X` belongs to no entity.
    """
    spans = []
    start, kind = 0, None  # None: no entity is open. Entities tagged B and I have the type "".
    for index, tag in enumerate((*tags, "O")):
        prefix, _, tag_kind = tag.partition("-")
        tag_kind = tag_kind if prefix in ("B", "I") else None
        if kind is not None and (prefix == "B" or tag_kind != kind):
            spans.append((start, index, kind))
        if prefix == "B" or tag_kind != kind:
            start, kind = index, tag_kind
    return spans
