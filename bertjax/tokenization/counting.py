"""Counts the words of a corpus in bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

Report = Callable[[str], None]

MOST_CHARACTERS = 10_000_000
"""Default limit on the total length, in characters, of the distinct words that `count_words` keeps
in memory. The limit corresponds to about 1.2 million English words, for which counting and training
take about 1 GB of memory, mostly for the index of token pairs in the tokenizers library."""
SHARE_KEPT = 0.5
"""`count_words` drops rare words until the total length of the remaining words is at most
`SHARE_KEPT * most_characters`."""


def count_words(
    texts_of_words: Iterable[Iterable[str]],
    report: Report | None = None,
    most_characters: int = MOST_CHARACTERS,
) -> Counter[str]:
    """Counts how often each word occurs in the texts; returns {word: count}.

    When the distinct words have more than `most_characters` characters in total, words counted once
    so far are dropped, then words counted twice, and so on until the total length of the remaining
    words is at most half of `most_characters`. If a dropped word occurs again, counting restarts at
    0 for this word, so the returned count of the word lacks all occurrences before the drop.
    The returned counts depend on the order of the texts only if words are dropped.

    Args:
        texts_of_words: for each text, an iterable of its words.
        report: a function that is called with a message after all texts, if words were dropped;
            None: nothing is reported.
        most_characters: the maximum total length of the distinct words in memory, in characters.
            The limit is checked between texts, so the words of a single text may exceed the limit.
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
    """Returns the highest count of the words to drop, and the total length of the words to keep.

    Lengths and `room` are numbers of characters. The highest count to drop is the lowest n for
    which all words that were counted more than n times have at most `room` characters in total.
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
    """Yields texts, sorted by word, that together contain each word `counts[word]` times.

    The trainers of the tokenizers library accept texts, but no word counts. Each text that this
    function yields consists of one word, repeated at most 1000 times.
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
