"""Objectives of pretraining and their examples: sentence pairs, segments, rows of full sentences.

The objectives are next sentence prediction (Devlin et al. 2018, 3.1 and A.2), sentence order
prediction (Lan et al. 2019, 3.1), and masked language modelling alone (Liu et al. 2019, 4.2).

A document is a list of boundaries, the positions in one long array of token ids where its
sentences begin and end: [10, 14, 20] is a document of two sentences, at the positions 10..13 and
14..19. An example consists of positions in this array of token ids, so no token is copied.
"""

import dataclasses
import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from numpy.random import Generator  # the config imports this module, and needs no numpy
Boundaries = Sequence[int]
Segments = list[tuple[int, int]]

SHORTEST_PAIR = 2
# Attempts to draw a document other than the current one.
REDRAWS = 10


class ExampleOptions(NamedTuple):
    """Options of the functions that make examples from documents.

    Attributes:
        max_tokens: largest number of text tokens per example; special tokens are not counted.
        short_seq_prob: probability that the sentence pairs of a document have a shorter target
            length, which is drawn at random.
        shift: whether examples without sentence pairs may begin and end within sentences; the first
            one then has a random length, so that each of `dupe_factor` passes yields others.
    """

    max_tokens: int
    short_seq_prob: float = 0.0
    shift: bool = False


class Pair(NamedTuple):
    """Positions of a sentence pair: segment A is ids[a_start:a_end], B is ids[b_start:b_end].

    The label is 0 if segment B follows segment A in the document. The label is 1 if segment B is
    random (in NSP, and in SOP for an example with one sentence of the document), or if segment A
    follows segment B (in SOP).
    """

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    label: int


def sentence_pairs(
    documents: Sequence[Boundaries],
    options: ExampleOptions,
    rng: "Generator",
    *,
    negatives: Literal["random", "swapped"],
) -> Iterator[Pair]:
    """Yields positive and negative sentence pairs for next-sentence or sentence-order prediction.

    A pair is made from the next sentences of a document that reach the target length, which is
    `options.max_tokens` or shorter. A negative pair has a random segment B (NSP) or swapped
    segments (SOP). If a single sentence reaches the target length or is the last of its document,
    segment B is random. No sentence may be empty.
    """
    max_tokens = options.max_tokens
    random = rng.random
    for number, bounds in enumerate(documents):
        # The target length is drawn once per document, not once per example.
        target = max_tokens
        if random() < options.short_seq_prob:
            target = SHORTEST_PAIR + int(random() * (max_tokens - SHORTEST_PAIR + 1))
        last = len(bounds) - 1
        first = 0
        while first < last:
            # Sentences first..end-1 are the fewest that reach the target length.
            end = bisect_left(bounds, bounds[first] + target, first + 1, last)
            middle = first + 1
            if end - first > 1:
                middle += int(random() * (end - first - 1))
            a = (bounds[first], bounds[middle])
            if end == middle or (negatives == "random" and random() < 0.5):
                b = _random_segment(documents, number, target - (a[1] - a[0]), random)
                label = 1
                first = middle  # the unused sentences begin the next pair
            else:
                b = (bounds[middle], bounds[end])
                label = 0
                first = end
                if negatives == "swapped" and random() < 0.5:
                    a, b, label = b, a, 1
            yield Pair(*_truncate(*a, *b, max_tokens, rng), label)


def _random_segment(
    documents: Sequence[Boundaries], number: int, wanted: int, random: Callable[[], float]
) -> tuple[int, int]:
    """Draws the (start, stop) of a segment of a document, if possible not of documents[number].

    It has `wanted` tokens or more, or goes up to the end of its document.
    """
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
    a_start: int, a_end: int, b_start: int, b_end: int, max_tokens: int, rng: "Generator"
) -> tuple[int, int, int, int]:
    """Shortens the segments A and B to at most `max_tokens` tokens together.

    It is as if one token at a time went from the longer segment (from B if both are equally long),
    at random from its beginning or its end.
    """
    a_length = a_end - a_start
    b_length = b_end - b_start
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
        a_start += front
        a_end -= a_loss - front
    if b_loss:
        front = int(rng.binomial(b_loss, 0.5))
        b_start += front
        b_end -= b_loss - front
    return a_start, a_end, b_start, b_end


def single_segments(
    documents: Sequence[Boundaries], options: ExampleOptions, rng: "Generator"
) -> Iterator[Segments]:
    """Yields examples of one segment of one document, with up to `options.max_tokens` tokens.

    A segment consists of whole sentences unless `options.shift` is True. A sentence of more than
    `options.max_tokens` tokens is split over several examples, so no token is lost. No sentence in
    `documents` may be empty.
    """
    for bounds in documents:
        start = bounds[0]
        room = _first_room(options, rng)
        while start < bounds[-1]:
            end = _reach(bounds, start, room, whole=not options.shift)
            if end == start:
                end = start + room
            yield [(start, end)]
            start = end
            room = options.max_tokens


def full_sentences(
    documents: Sequence[Boundaries], options: ExampleOptions, rng: "Generator"
) -> Iterator[Segments]:
    """Yields examples of consecutive sentences across documents (Liu et al. 2019, 4.2).

    An example is a list of segments, one per document; `options.max_tokens` includes one separator
    token between two documents. Unless `options.shift` is True, an example ends before a sentence
    for which it has no room. Longer sentences are split; none may be empty.
    """
    row: Segments = []
    room = _first_room(options, rng)
    for bounds in documents:
        start = bounds[0]
        while start < bounds[-1]:
            free = room - 1 if row else room  # a separator precedes the document
            end = _reach(bounds, start, free, whole=not options.shift)
            if end == start and not row:
                end = start + room
            if end > start:
                row.append((start, end))
                room = free - (end - start)
                start = end
            if start < bounds[-1]:
                yield row
                row = []
                room = options.max_tokens
    if row:
        yield row


def _first_room(options: ExampleOptions, rng: "Generator") -> int:
    if not options.shift:
        return options.max_tokens
    return 1 + int(rng.random() * options.max_tokens)


def _reach(bounds: Boundaries, start: int, room: int, *, whole: bool) -> int:
    """Returns the end of a segment from `start` on; if `whole`, a sentence boundary or `start`."""
    if room < 1:
        return start
    if whole:
        return max(start, bounds[bisect_left(bounds, start + room + 1) - 1])
    return min(start + room, bounds[-1])


ObjectiveName = Literal["nsp", "sop", "mlm", "full_sentences"]


@dataclasses.dataclass(frozen=True)
class Objective:
    """A pretraining objective: the function that makes examples, and the structure of examples.

    Attributes:
        make_examples: function of the documents, the `ExampleOptions` and a NumPy random generator
            that returns an iterator of examples.
        pairs: names of the labels 0 and 1 of an example, a `Pair`; empty if it is a list of
            segments, which becomes `[CLS] segment [SEP] segment [SEP] ...`.
        needs_second_document: whether the input must have at least two documents, as for NSP.
    """

    make_examples: Callable[..., Iterator[Any]]
    pairs: tuple[str, ...] = ()
    needs_second_document: bool = False

    @property
    def has_sentence_pairs(self) -> bool:
        """Whether an example is a `Pair` with a label to predict."""
        return bool(self.pairs)


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "nsp": Objective(
        functools.partial(sentence_pairs, negatives="random"),
        pairs=("consecutive", "random"),
        needs_second_document=True,
    ),
    "sop": Objective(
        functools.partial(sentence_pairs, negatives="swapped"), pairs=("in order", "swapped")
    ),
    "mlm": Objective(single_segments),
    "full_sentences": Objective(full_sentences),
}
