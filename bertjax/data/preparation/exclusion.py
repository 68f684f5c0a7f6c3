"""Finds documents that hold a text of a test set, by runs of words that are in both.

As in published decontaminations (Brown et al. 2020, appendix C), a run has 13 words, without case
and punctuation; a text of fewer words is one run, and one of fewer than 8 is not searched, because
it may be in any document. In scripts without spaces, each character is a word.
"""

import re
from collections.abc import Iterable

MOST_WORDS = 13
FEWEST_WORDS = 8
# Chinese, Japanese, Thai, Lao, Khmer and Burmese.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_WORDS = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.lower())


def _runs(words: list[str], size: int) -> list[str]:
    return [" ".join(words[start : start + size]) for start in range(len(words) - size + 1)]


def runs_of(texts: Iterable[str]) -> frozenset[str]:
    """Returns all runs of the texts that documents must not hold."""
    runs: set[str] = set()
    for text in texts:
        words = _words(text)
        if len(words) >= FEWEST_WORDS:
            runs.update(_runs(words, min(len(words), MOST_WORDS)))
    return frozenset(runs)


class Excluded:
    """Tells whether a document holds one of `runs`."""

    def __init__(self, runs: frozenset[str]):
        self._runs = runs
        self._sizes = sorted({run.count(" ") + 1 for run in runs})
        self._starts = {" ".join(run.split(" ")[:FEWEST_WORDS]) for run in runs}

    def is_in(self, document: str) -> bool:
        """Returns whether a document holds one of the runs."""
        words = _words(document)
        for place, start in enumerate(_runs(words, FEWEST_WORDS)):
            if start in self._starts:
                for size in self._sizes:
                    if " ".join(words[place : place + size]) in self._runs:
                        return True
        return False
