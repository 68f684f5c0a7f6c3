"""Chooses the tokens that a language model predicts, and what it sees in their place.

Drawn when a row is read, so every epoch masks other tokens (Liu et al. 2019, 4.1), by the rules of
google-research/bert: of each sequence 15 %, of these 80 % become [MASK], 10 % a random word of the
whole vocabulary, 10 % stay. ALBERT's n-grams and fairseq's random words are settings. A model that
predicts each token from those before it sees the text as it is.
"""

import dataclasses
import functools
from typing import Literal

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """How to mask: shares, limits, and what masking must know of the vocabulary.

    Raises:
        ValueError: n-grams are asked for, but not where words start.
    """

    probability: float
    max_predictions: int
    """Most predictions in one row of one sequence; longer rows of several share it in turn."""
    vocab_size: int
    mask_token_id: int
    never_masked: tuple[int, ...]
    """Ids that are not to be predicted: [CLS] and [SEP]."""
    word_starts: np.ndarray | None = None
    """Bool [vocab_size], False for pieces that continue a word; given, words are masked whole."""
    max_ngram: int = 1
    """Most whole words that are masked together; n of them with a probability ~ 1/n."""
    never_drawn: tuple[int, ...] = ()
    """Ids that replace no token at random."""
    predict: Literal["masked", "next_token"] = "masked"
    """next_token: nothing is masked, and every position predicts the token behind it."""

    def __post_init__(self):
        if self.max_ngram > 1 and self.word_starts is None:
            raise ValueError(
                f"max_ngram={self.max_ngram} counts whole words: give word_starts, too."
            )

    @functools.cached_property
    def maskable(self) -> np.ndarray:
        """Bool [vocab_size], which ids may be predicted."""
        return ~np.isin(np.arange(self.vocab_size), self.never_masked)


def choose_positions(
    ids: np.ndarray, masking: Masking, max_predictions: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws the positions of one sequence to predict, sorted.

    ids int [T], [CLS] and [SEP] included: they are never drawn, yet count in the length of which
    `probability` is taken, as in google-research/bert.
    """
    wanted = min(max_predictions, max(1, round(len(ids) * masking.probability)))
    candidates = np.flatnonzero(masking.maskable[ids])
    if masking.word_starts is None:
        return np.sort(rng.permutation(candidates)[:wanted])
    starts = masking.word_starts[ids[candidates]]
    return _choose_whole_words(candidates, masking, starts, wanted, rng)


def _choose_whole_words(
    candidates: np.ndarray, masking: Masking, starts: np.ndarray, wanted: int, rng
) -> np.ndarray:
    """Whole words, or n-grams of them (Lan et al. 2019, 4.2), drawn until `wanted` are found."""
    # A piece belongs to the candidate before it, also across a [SEP]; the first opens a word.
    first_of_word = np.flatnonzero(starts[1:]) + 1
    words = np.split(candidates, first_of_word)
    sizes = np.ones(len(words), int)
    if masking.max_ngram > 1:
        sizes = _draw_sizes(candidates, first_of_word, masking.max_ngram, rng)
    taken = np.zeros(len(words), bool)
    free = wanted
    for index in rng.permutation(len(words)):
        if free == 0:
            break
        # An n-gram that would overflow loses words; a word that would is passed over, and a
        # shorter one may still fit.
        for size in range(sizes[index], 0, -1):
            length = sum(map(len, words[index : index + size]))
            if length <= free:
                # One that meets another is passed over, too.
                if not taken[index : index + size].any():
                    taken[index : index + size] = True
                    free -= length
                break
    chosen = [word for word, is_taken in zip(words, taken, strict=True) if is_taken]
    return np.concatenate(chosen) if chosen else candidates[:0]


def _draw_sizes(
    candidates: np.ndarray, first_of_word: np.ndarray, max_ngram: int, rng: np.random.Generator
) -> np.ndarray:
    """How many words the n-gram from each word on has, int [W]; none crosses a special token."""
    heads = np.concatenate([[0], first_of_word])
    # Words from each one on, to the end of its part of the sequence.
    breaks = np.flatnonzero(np.diff(candidates) > 1) + 1
    ends = np.append(np.searchsorted(heads, breaks), len(heads))
    left = ends[np.searchsorted(ends, np.arange(len(heads)), side="right")] - np.arange(len(heads))
    cumulative = np.cumsum(1 / np.arange(1, max_ngram + 1))
    draw = rng.random(len(heads)) * cumulative[np.minimum(left, max_ngram) - 1]
    return np.searchsorted(cumulative, draw, side="right") + 1


def corrupt(
    ids: np.ndarray, positions: np.ndarray, masking: Masking, rng: np.random.Generator
) -> np.ndarray:
    """Returns `ids` [T] with 80/10/10 applied at `positions`, drawn for each token alone."""
    draw = rng.random(len(positions))
    random_words = rng.integers(0, masking.vocab_size - len(masking.never_drawn), len(positions))
    for never in sorted(masking.never_drawn):
        random_words += random_words >= never  # as if it had no number
    replaced = np.where(draw < 0.8, masking.mask_token_id, random_words)
    corrupted = ids.copy()
    corrupted[positions] = np.where(draw < 0.9, replaced, ids[positions])
    return corrupted
