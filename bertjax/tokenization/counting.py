"""How often each word of a corpus occurs, in memory that does not grow with the corpus."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

Report = Callable[[str], None]

MOST_CHARACTERS = 10_000_000
"""Characters of all the words that are remembered, about 1.2 million words of English. Counting
and learning from so many takes about a gigabyte, mostly the trainers' places of pairs of pieces."""
SHARE_KEPT = 0.5
"""Of them, after rare words are forgotten."""


def count_words(
    texts_of_words: Iterable[Iterable[str]],
    report: Report | None = None,
    most_characters: int = MOST_CHARACTERS,
) -> Counter[str]:
    """Counts the words of each text.

    When the words together are longer than `most_characters`, those counted once so far are
    forgotten, then those counted twice, and so on until half is left; one that comes again starts
    from 0. So a count is exact, or too small by about as much as what was forgotten at a time. The
    same texts in the same order give the same counts; the order matters only where words are
    forgotten.

    Args:
        texts_of_words: the words of each text.
        report: is told once, at the end, if words were forgotten.
        most_characters: the limit, overstepped by a text at most.
    """
    counts: Counter[str] = Counter()
    checked = size = forgotten = highest = 0
    for words in texts_of_words:
        if size > most_characters:
            threshold, size = _threshold(counts, int(SHARE_KEPT * most_characters))
            kept: Counter[str] = Counter()
            dict.update(kept, ((word, n) for word, n in counts.items() if n > threshold))
            forgotten, highest = forgotten + len(counts) - len(kept), max(highest, threshold)
            counts, checked = kept, len(kept)
        counts.update(words)
        if len(counts) > checked:
            # The newest stand at the end.
            size += sum(map(len, _last(counts, len(counts) - checked)))
            checked = len(counts)
    if forgotten and report:
        report(
            f"To bound memory, {forgotten:,} times a rare word was forgotten (counted up to "
            f"{highest} times until then); {len(counts):,} words were learnt from."
        )
    return counts


def _last(counts: Counter[str], number: int) -> Iterator[str]:
    words = reversed(counts)
    return (next(words) for _ in range(number))


def _threshold(counts: Counter[str], room: int) -> tuple[int, int]:
    """The count up to which words go so that the others fit `room` characters, and their length."""
    characters: Counter[int] = Counter()
    for word, count in counts.items():
        characters[count] += len(word)
    left = characters.total()
    for count in sorted(characters):
        left -= characters[count]
        if left <= room:
            return count, left
    raise AssertionError("nothing is left of everything")


def repeated(counts: Counter[str]) -> Iterator[str]:
    """Every word as often as it was counted, in alphabetical order, some at a time.

    For trainers that take no counts.
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
