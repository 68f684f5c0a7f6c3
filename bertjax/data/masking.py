"""Chooses the tokens that masked LM predicts, and what the model sees in their place.

Drawn when a row is read, so every epoch masks other tokens (Liu et al. 2019, 4.1), by the rules of
google-research/bert: of each sequence 15 %, of these 80 % become [MASK], 10 % a random word of the
whole vocabulary, 10 % stay.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """How to mask: shares, limits, and what masking must know of the vocabulary."""

    probability: float
    max_predictions: int
    """Most predictions in one row of one sequence; longer rows of several share it in turn."""
    vocab_size: int
    mask_token_id: int
    never_masked: tuple[int, ...]
    """Ids that are not to be predicted: [CLS] and [SEP]."""
    word_starts: np.ndarray | None = None
    """Bool [vocab_size], False for pieces that continue a word; given, words are masked whole."""


def choose_positions(
    ids: np.ndarray, masking: Masking, max_predictions: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws the positions of one sequence to predict, sorted.

    ids int [T], [CLS] and [SEP] included: they are never drawn, yet count in the length of which
    `probability` is taken, as in google-research/bert.
    """
    wanted = min(max_predictions, max(1, round(len(ids) * masking.probability)))
    candidates = np.flatnonzero(~np.isin(ids, masking.never_masked))
    if masking.word_starts is None:
        return np.sort(rng.permutation(candidates)[:wanted])
    return _choose_whole_words(candidates, masking.word_starts[ids[candidates]], wanted, rng)


def _choose_whole_words(
    candidates: np.ndarray, starts: np.ndarray, wanted: int, rng: np.random.Generator
) -> np.ndarray:
    # A piece belongs to the candidate before it, also across a [SEP]; the first opens a word.
    words = np.split(candidates, np.flatnonzero(starts[1:]) + 1)
    chosen: list[np.ndarray] = []
    free = wanted
    for index in rng.permutation(len(words)):
        if free == 0:
            break
        word = words[index]
        # A word that would overflow is passed over, and a shorter one may still fit.
        if len(word) <= free:
            chosen.append(word)
            free -= len(word)
    return np.sort(np.concatenate(chosen)) if chosen else candidates[:0]


def corrupt(
    ids: np.ndarray, positions: np.ndarray, masking: Masking, rng: np.random.Generator
) -> np.ndarray:
    """Returns `ids` [T] with 80/10/10 applied at `positions`, drawn for each token alone."""
    draw = rng.random(len(positions))
    random_words = rng.integers(0, masking.vocab_size, len(positions))
    replaced = np.where(draw < 0.8, masking.mask_token_id, random_words)
    corrupted = ids.copy()
    corrupted[positions] = np.where(draw < 0.9, replaced, ids[positions])
    return corrupted
