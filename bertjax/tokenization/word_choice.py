"""Chooses the words of a text that save the most tokens as entries of a vocabulary."""

import bisect
import heapq
from collections.abc import Callable, Iterator, Mapping

Split = tuple[str, ...]
"""The pieces that a word is split into."""
Resplit = Callable[[str, Split, str], Split]
"""A function (word, its pieces, new entry) -> its pieces if the new entry is added; () if the word
could not be expressed any more. The new entry is a prefix of the word."""


class WordChoice:
    """Chooses words one by one, each time the word that saves the most tokens of the text.

    A word as an entry saves count x (number of its pieces - 1) tokens, and also shortens longer
    words that begin with it, such as its plural. Other words change only for the better: if a
    longer word would be split into other, but not into fewer, pieces, this word becomes an entry as
    well, so that the model sees no unknown combination of pieces; both are then chosen only if the
    tokens that they save per entry are among the highest.

    Args:
        counts: {word: how often it occurs}.
        splits: {word: its pieces in the present vocabulary}, for the same words; a word that the
            vocabulary cannot express has no pieces, and is not chosen.
        resplit: splits a word with one more entry.
    """

    def __init__(self, counts: Mapping[str, int], splits: Mapping[str, Split], resplit: Resplit):
        self._counts, self._resplit = counts, resplit
        self._splits = dict(splits)
        self._sorted = sorted(counts)

    def choose(self, add: int, min_frequency: int) -> list[str]:
        """Returns at most `add` words, in the order in which they were chosen.

        All of them occur at least `min_frequency` times, except longer words that another choice
        would change. Of words that save equally many tokens, the alphabetically first is chosen.
        """
        heap = [
            (-self._saved_per_entry(word), word)
            for word in self._sorted
            if self._counts[word] >= min_frequency and len(self._splits[word]) > 1
        ]
        heapq.heapify(heap)
        chosen: list[str] = []
        while heap and len(chosen) < add:
            _, word = heapq.heappop(heap)
            if len(self._splits[word]) == 1:
                continue  # chosen for the sake of a shorter word
            # Earlier choices may have shortened the word.
            saved = self._saved_per_entry(word)
            if heap and -heap[0][0] > saved:
                heapq.heappush(heap, (-saved, word))
                continue
            _, changed = self._effect(word)
            if len(changed) < add - len(chosen) and not any(self._effect(w)[1] for w in changed):
                for entry in (*changed, word):
                    self._add(entry)
                    chosen.append(entry)
        return chosen

    def _saved_per_entry(self, word: str) -> float:
        saved, changed = self._effect(word)
        return (saved + sum(map(self._own, changed))) / (1 + len(changed))

    def _own(self, word: str) -> int:
        return self._counts[word] * (len(self._splits[word]) - 1)

    def _effect(self, word: str) -> tuple[int, list[str]]:
        """Returns the tokens that `word` saves as an entry, and the words that it would harm.

        These words would be split into other, but not into fewer, pieces; they do not count.
        """
        saved, harmed = self._own(word), []
        for longer, before, after in self._changes(word):
            if after and len(after) < len(before):
                saved += self._counts[longer] * (len(before) - len(after))
            else:
                harmed.append(longer)
        return saved, harmed

    def _add(self, word: str) -> None:
        for longer, _, after in list(self._changes(word)):
            self._splits[longer] = after
        self._splits[word] = (word,)

    def _changes(self, word: str) -> Iterator[tuple[str, Split, Split]]:
        """Yields (longer word, its pieces, its pieces with `word` as an entry), where they differ.

        Entries of the vocabulary and words that it cannot express do not change.
        """
        for place in range(bisect.bisect_right(self._sorted, word), len(self._sorted)):
            longer = self._sorted[place]
            if not longer.startswith(word):
                return
            before = self._splits[longer]
            if len(before) > 1 and (after := self._resplit(longer, before, word)) != before:
                yield longer, before, after
