"""Dynamic masking: chooses the tokens to predict and the tokens that replace them in the input.

Masks are drawn when a row is read, so masks differ in every epoch (Liu et al. 2019, 4.1). As in
google-research/bert, a share of the tokens of each sequence (15 % by default) is predicted; 80 % of
the predicted tokens become [MASK], 10 % a random token of the vocabulary, and 10 % are unchanged.
Options of `Masking` select ALBERT's n-gram masking, or exclude special tokens from the random
tokens as in fairseq. For next-token prediction, no token is masked.
"""

import dataclasses
import functools
from typing import Literal

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """Settings of masking: how many tokens are predicted, which ones, and what replaces them.

    Raises:
        ValueError: n-grams are to be masked (`max_ngram` is above 1), but `word_starts`, which
            tells which tokens begin a word, is None.
    """

    probability: float
    max_predictions: int
    """Maximum number of predictions per row; in a packed row, the first sequences have priority."""
    vocab_size: int
    mask_token_id: int
    never_masked: tuple[int, ...]
    """Ids of the tokens that are never predicted: [CLS] and [SEP]."""
    word_starts: np.ndarray | None = None
    """Bool [vocab_size]: False for tokens that continue a word; None: no whole-word masking."""
    max_ngram: int = 1
    """Maximum number of words in an n-gram that is masked as a whole; an n-gram has n words with a
    probability proportional to 1/n."""
    never_drawn: tuple[int, ...] = ()
    """Ids of the tokens that are never drawn as random replacements."""
    predict: Literal["masked", "next_token"] = "masked"
    """Tokens to predict: masked predicts masked tokens; next_token predicts the next token at every
    position, without masking."""

    def __post_init__(self):
        if self.max_ngram > 1 and self.word_starts is None:
            raise ValueError(
                f"max_ngram={self.max_ngram} counts whole words: set word_starts as well."
            )

    @functools.cached_property
    def maskable(self) -> np.ndarray:
        """Bool [vocab_size]: True for the ids of tokens that may be predicted."""
        return ~np.isin(np.arange(self.vocab_size), self.never_masked)


def choose_positions(
    ids: np.ndarray, masking: Masking, max_predictions: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws the positions to predict in one sequence; returns the positions in ascending order.

    About `masking.probability` * T positions, but at most `max_predictions`, are drawn for `ids`,
    int [T], the token ids of the sequence. As in google-research/bert, T counts [CLS] and [SEP],
    although the positions of [CLS] and [SEP] are never drawn.
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
    """Draws whole words or n-grams (Lan et al. 2019, 4.2) with at most `wanted` tokens in total.

    `candidates` are the positions that may be predicted, and `starts` tells for each of them
    whether its token begins a word. Returns the positions of all tokens in the drawn words.
    """
    # A token that continues a word joins the candidate before it, even across [SEP]; the first
    # candidate always starts a word.
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
        # An n-gram of more than `free` tokens loses its last words; a single word of more tokens is
        # skipped, since a later word may be shorter.
        for size in range(sizes[index], 0, -1):
            length = sum(map(len, words[index : index + size]))
            if length <= free:
                # An n-gram that overlaps a chosen one is skipped, too.
                if not taken[index : index + size].any():
                    taken[index : index + size] = True
                    free -= length
                break
    chosen = [word for word, is_taken in zip(words, taken, strict=True) if is_taken]
    return np.concatenate(chosen) if chosen else candidates[:0]


def _draw_sizes(
    candidates: np.ndarray, first_of_word: np.ndarray, max_ngram: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws, for each of W words, the size of the n-gram that starts with this word.

    `candidates` are the positions that may be predicted, in ascending order. The first word begins
    at candidates[0], the next ones at candidates[first_of_word], where `first_of_word` is int
    [W - 1]. Returns the sizes in words, int [W]. No n-gram extends beyond a special token.
    """
    heads = np.concatenate([[0], first_of_word])
    # Number of words from each word to the end of its segment.
    breaks = np.flatnonzero(np.diff(candidates) > 1) + 1
    ends = np.append(np.searchsorted(heads, breaks), len(heads))
    left = ends[np.searchsorted(ends, np.arange(len(heads)), side="right")] - np.arange(len(heads))
    cumulative = np.cumsum(1 / np.arange(1, max_ngram + 1))
    draw = rng.random(len(heads)) * cumulative[np.minimum(left, max_ngram) - 1]
    return np.searchsorted(cumulative, draw, side="right") + 1


def corrupt(
    ids: np.ndarray, positions: np.ndarray, masking: Masking, rng: np.random.Generator
) -> np.ndarray:
    """Returns a copy of `ids` [T], masked at `positions` by the 80/10/10 rule of BERT.

    Each token at `positions` independently becomes [MASK] with probability 0.8, becomes a random
    token with probability 0.1, and is unchanged with probability 0.1.
    """
    draw = rng.random(len(positions))
    random_words = rng.integers(0, masking.vocab_size - len(masking.never_drawn), len(positions))
    for never in sorted(masking.never_drawn):
        random_words += random_words >= never  # skips the token id `never`
    replaced = np.where(draw < 0.8, masking.mask_token_id, random_words)
    corrupted = ids.copy()
    corrupted[positions] = np.where(draw < 0.9, replaced, ids[positions])
    return corrupted
