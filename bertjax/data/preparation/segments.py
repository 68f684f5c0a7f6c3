"""Chooses which sentences make an example: next-sentence or sentence-order pairs, single segments,
or rows filled across documents.

Input: documents as boundaries, the positions in one long array of token ids where sentences begin
and end: [10, 14, 20] is a document of two sentences, ids 10..13 and 14..19. Output: examples as
positions in the same array, so no token is touched here. Nothing is masked: masks change every
epoch, so they are drawn at read time.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

Objective = Literal["nsp", "sop", "mlm", "full_sentences"]
Boundaries = Sequence[int]

# Those whose examples have two segments.
PAIRED: tuple[Objective, ...] = ("nsp", "sop")
SHORTEST_PAIR = 2
# Tries to draw another document than the current one.
REDRAWS = 10


class Example(NamedTuple):
    """Positions of one example: A is ids[a_start:a_end], B is empty in single segments.

    label: NSP 1 = B is random, 0 = B follows A; SOP 1 = swapped (or random), 0 = in order;
    -1 = none.
    """

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    label: int


def make_examples(
    documents: Sequence[Boundaries],
    objective: Literal["nsp", "sop", "mlm"],
    *,
    max_tokens: int,
    short_seq_prob: float,
    rng: np.random.Generator,
    shift: bool = False,
) -> Iterator[Example]:
    """Examples of at most `max_tokens` tokens of text; special ones come on top of them.

    Args:
        documents: boundaries of each; no sentence is empty.
        objective: "nsp" (Devlin et al. 2018), "sop" (Lan et al. 2019) or "mlm" (no pairs).
        max_tokens: text of the longest example.
        short_seq_prob: share of documents whose pairs aim at a random shorter length; "mlm" has
            none.
        rng: all randomness.
        shift: for duplicates of single segments: cut them from a random place on, and amid
            sentences, since whole sentences would soon fall into the same segments again.
    """
    if objective == "mlm":
        return _single_segments(documents, max_tokens, rng, shift)
    return _pairs(documents, objective, max_tokens, short_seq_prob, rng)


def _pairs(
    documents: Sequence[Boundaries],
    objective: Objective,
    max_tokens: int,
    short_seq_prob: float,
    rng: np.random.Generator,
) -> Iterator[Example]:
    random = rng.random
    for number, bounds in enumerate(documents):
        # The target is drawn once a document, not once an example.
        target = max_tokens
        if random() < short_seq_prob:
            target = SHORTEST_PAIR + int(random() * (max_tokens - SHORTEST_PAIR + 1))
        last = len(bounds) - 1
        first = 0
        while first < last:
            # Sentences first..end-1 are the fewest that reach the target.
            end = bisect_left(bounds, bounds[first] + target, first + 1, last)
            middle = first + 1
            if end - first > 1:
                middle += int(random() * (end - first - 1))
            a = (bounds[first], bounds[middle])
            if end == middle or (objective == "nsp" and random() < 0.5):
                # A single sentence is always paired at random.
                b = _random_segment(documents, number, target - (a[1] - a[0]), random)
                label = 1
                first = middle  # the unused sentences are put back
            else:
                b = (bounds[middle], bounds[end])
                label = 0
                first = end
                if objective == "sop" and random() < 0.5:
                    a, b, label = b, a, 1
            yield Example(*_truncate(*a, *b, max_tokens, rng), label)


def _random_segment(
    documents: Sequence[Boundaries], number: int, wanted: int, random: Callable[[], float]
) -> tuple[int, int]:
    """Sentences of another document that reach `wanted` tokens, at least one."""
    other = number
    for _ in range(REDRAWS):
        other = int(random() * len(documents))
        if other != number:
            break
    bounds = documents[other]
    last = len(bounds) - 1
    start = int(random() * last)
    stop = bisect_left(bounds, bounds[start] + wanted, start + 1, last)
    return bounds[start], bounds[stop]


def _truncate(
    a_start: int, a_end: int, b_start: int, b_end: int, max_tokens: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Trims the longer segment (B on a tie) token by token, each at the front or the back.

    Done at once: how many tokens each segment loses is certain, and how many of them at the front
    is binomial.
    """
    a_length, b_length = a_end - a_start, b_end - b_start
    excess = a_length + b_length - max_tokens
    if excess <= 0:
        return a_start, a_end, b_start, b_end
    level = min(excess, abs(a_length - b_length))
    b_loss = (excess - level + 1) // 2
    a_loss = (excess - level) // 2
    if a_length > b_length:
        a_loss += level
    else:
        b_loss += level
    if a_loss:
        front = int(rng.binomial(a_loss, 0.5))
        a_start, a_end = a_start + front, a_end - (a_loss - front)
    if b_loss:
        front = int(rng.binomial(b_loss, 0.5))
        b_start, b_end = b_start + front, b_end - (b_loss - front)
    return a_start, a_end, b_start, b_end


def _single_segments(
    documents: Sequence[Boundaries], max_tokens: int, rng: np.random.Generator, shift: bool
) -> Iterator[Example]:
    """Whole sentences of one document as long as they fit; a longer sentence is cut, not lost."""
    for bounds in documents:
        start = bounds[0]
        room = _first_room(max_tokens, rng, shift)
        while start < bounds[-1]:
            end = _reach(bounds, start, room, whole=not shift)
            if end == start:
                end = start + room
            yield Example(start, end, end, end, -1)
            start, room = end, max_tokens


def full_sentences(
    documents: Sequence[Boundaries],
    *,
    max_tokens: int,
    rng: np.random.Generator,
    shift: bool = False,
) -> Iterator[list[tuple[int, int]]]:
    """Rows of contiguous sentences that go on in the next document (Liu et al. 2019, 4.2).

    Args:
        documents: boundaries of each; no sentence is empty.
        max_tokens: of a row, text and one separator between two documents.
        rng: all randomness.
        shift: as of `make_examples`.

    Yields:
        (start, end) of the part of each document in a row, in order. A row ends before the
        sentence that does not fit; one longer than a row is cut. No token is lost.
    """
    row: list[tuple[int, int]] = []
    room = _first_room(max_tokens, rng, shift)
    for bounds in documents:
        start = bounds[0]
        while start < bounds[-1]:
            free = room - 1 if row else room  # a separator stands before the document
            end = _reach(bounds, start, free, whole=not shift)
            if end == start and not row:
                end = start + room
            if end > start:
                row.append((start, end))
                room, start = free - (end - start), end
            if start < bounds[-1]:
                yield row
                row, room = [], max_tokens
    if row:
        yield row


def _first_room(max_tokens: int, rng: np.random.Generator, shift: bool) -> int:
    return 1 + int(rng.random() * max_tokens) if shift else max_tokens


def _reach(bounds: Boundaries, start: int, room: int, *, whole: bool) -> int:
    """The last boundary (or position, unless `whole`) within `room` tokens of `start`.

    `start` itself if there is none.
    """
    if room < 1:
        return start
    if whole:
        return max(start, bounds[bisect_left(bounds, start + room + 1) - 1])
    return min(start + room, bounds[-1])
