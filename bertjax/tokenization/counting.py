"""Counts the words of a corpus in bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

Report = Callable[[str], None]

MOST_CHARACTERS = 10_000_000
"""Maximum total length of the distinct words in memory, in characters: about 1.2 million English
words. Counting and training then take about 1 GB, mostly for the trainers' index of pairs."""
SHARE_KEPT = 0.5
"""Rare words are dropped until the other words have at most this share of `most_characters`."""


def count_words(
    texts_of_words: Iterable[Iterable[str]],
    report: Report | None = None,
    most_characters: int = MOST_CHARACTERS,
) -> Counter[str]:
    """Counts the words of all texts.

    When the distinct words have more than `most_characters` characters in total, words counted once
    so far are dropped, then words counted twice, and so on until the remaining words have at most
    half of `most_characters`. If a dropped word occurs again, its count starts from 0, so a count
    may be too small by about the largest dropped count. The result is deterministic, and depends on
    the order of the texts only if words are dropped.

    Args:
        texts_of_words: the words of each text.
        report: called once, at the end, with a message if words were dropped.
        most_characters: the maximum total length of the distinct words in memory. It is checked
            between texts, so the words of one text may exceed it.
    """
    counts: Counter[str] = Counter()
    checked = size = dropped = highest = 0
    for words in texts_of_words:
        if size > most_characters:
            threshold, size = _threshold(counts, int(SHARE_KEPT * most_characters))
            kept: Counter[str] = Counter()
            dict.update(kept, ((word, n) for word, n in counts.items() if n > threshold))
            dropped, highest = dropped + len(counts) - len(kept), max(highest, threshold)
            counts, checked = kept, len(kept)
        counts.update(words)
        if len(counts) > checked:
            # The new words are at the end of the Counter.
            size += sum(map(len, _last(counts, len(counts) - checked)))
            checked = len(counts)
    if dropped and report:
        report(
            f"To bound memory, {dropped:,} rare words were dropped (each had been counted at most "
            f"{highest} times); the vocabulary is learned from {len(counts):,} words."
        )
    return counts


def _last(counts: Counter[str], number: int) -> Iterator[str]:
    words = reversed(counts)
    return (next(words) for _ in range(number))


def _threshold(counts: Counter[str], room: int) -> tuple[int, int]:
    """Returns the lowest n such that the words counted more than n times fit in `room` characters.

    Also returns the total length of these words in characters.
    """
    characters: Counter[int] = Counter()
    for word, count in counts.items():
        characters[count] += len(word)
    left = characters.total()
    for count in sorted(characters):
        left -= characters[count]
        if left <= room:
            return count, left
    raise AssertionError("unreachable: without any words, no characters remain")


def repeated(counts: Counter[str]) -> Iterator[str]:
    """Yields texts that repeat every word as often as it was counted, in alphabetical order.

    Trainers that accept no counts need such texts. A text repeats one word at most 1000 times.
    """
    at_once = 1000
    for word in sorted(counts):
        whole, rest = divmod(counts[word], at_once)
        if whole:
            text = " ".join([word] * at_once)
            for _ in range(whole):
                yield text
        if rest:
            yield " ".join([word] * rest)
