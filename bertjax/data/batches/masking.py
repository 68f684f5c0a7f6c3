"""Dynamic masking: chooses the tokens to predict and the tokens that replace them in the input.

Masks are drawn when a row is read, so masks differ in every epoch (Liu et al. 2019, 4.1). As in
google-research/bert, a share of the tokens of each sequence (15 % by default) is predicted; 80 % of
the predicted tokens become [MASK], 10 % a random token of the vocabulary, and 10 % are unchanged.
Options of `Masking` select ALBERT's n-gram masking, or exclude special tokens from the random
tokens as in fairseq. For next-token prediction, no token is masked.

All sequences of a block of rows are masked at once, by array operations. The functions take the
tokens of these sequences in one array, without padding, and two random numbers of 64 bits for each
token (see `random_bits`), so that the masks of a row do not depend on the other rows.
"""

import codecs
import dataclasses
import functools
import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import regex

from bertjax.data.batches.batch import ranks
from bertjax.tokenization import Tokenizer
from bertjax.tokenization.base import UNSPACED

# A key for sorting has 64 bits: the number of the group (up to 2^24 groups), random bits, and the
# number of the item in its group (of up to 2^16 items, the longest row). Equal random bits are rare
# and leave two items in their order.
_RANDOM_BITS, _ITEM_BITS = 24, 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """Settings of masking: how many tokens are predicted, which ones, and what replaces them.

    Raises ValueError if `max_ngram` is above 1 without `word_starts`.
    """

    probability: float
    """Fraction of the tokens of each sequence that is predicted."""
    max_predictions: int
    """Maximum number of predictions per row; in a packed row, the first sequences have priority."""
    vocab_size: int
    """Number of token ids, from which random replacements are drawn."""
    mask_token_id: int
    """Id of [MASK]."""
    never_masked: tuple[int, ...]
    """Ids of the tokens that are never predicted: [CLS] and [SEP]."""
    word_starts: np.ndarray | None = None
    """Bool [vocab_size]: False for tokens that continue a word; None: no whole-word masking."""
    segment: "Callable[[np.ndarray], np.ndarray] | None" = None
    """Function of token ids [N] that tells further tokens that start a word, bool [N]."""
    max_ngram: int = 1
    """Maximum number of words in an n-gram that is masked as a whole; an n-gram has n words with a
    probability proportional to 1/n."""
    never_drawn: tuple[int, ...] = ()
    """Ids of the tokens that are never drawn as random replacements."""
    mask_share: float = 0.8
    """Share of the predicted tokens that become [MASK]."""
    random_share: float = 0.1
    """Share of the predicted tokens that become random tokens; the others are unchanged."""
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


_CONTINUATIONS = bytes(range(0x80, 0xC0))
codecs.register_error("bertjax.bytes", lambda e: ("?" * (e.end - e.start), e.end))  # type: ignore


class UnspacedTokens:
    """The tokens of a vocabulary in scripts without spaces, where tokens do not show words.

    Attributes:
        tokens: bool [vocab_size], True for tokens with letters or marks of such scripts.
        starts: bool [vocab_size], True for those that begin with a character, not within one.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._written = [tokenizer.written(token) for token in tokenizer.tokens]
        # Byte-level BPE has parts of characters, which are completed to any character here.
        self._are_parts = np.array(["\ufffd" in x.decode(errors="replace") for x in self._written])
        texts = [
            (written.lstrip(_CONTINUATIONS) + b"\x81" * 3).decode(errors="ignore").strip()
            for written in self._written
        ]
        has_letter = regex.compile(rf"(?V1){UNSPACED}|\p{{lb=SA}}").search
        is_inside = regex.compile(r"\p{M}").match
        self.tokens = np.array([bool(has_letter(text)) for text in texts])
        self.starts = self.tokens & [
            written[:1] not in _CONTINUATIONS and not is_inside(text)
            for written, text in zip(self._written, texts, strict=True)
        ]

    def segment(self, ids: np.ndarray) -> np.ndarray:
        """Returns which tokens start a word in such scripts, by ICU's dictionaries: bool [N]."""
        breaker = importlib.import_module("icu4py.breakers").WordBreaker
        starts, inside = np.zeros(len(ids), bool), (self.tokens | self._are_parts)[ids]
        runs = np.flatnonzero(np.diff(inside, prepend=False, append=False)).reshape(-1, 2)
        for start, end in runs.tolist():
            if not self.tokens[ids[start:end]].any():
                continue
            pieces = [self._written[token] for token in ids[start:end].tolist()]
            text = b"".join(pieces).decode("utf-8", "bertjax.bytes")
            ends = np.cumsum([len(word.encode()) for word in breaker(text, "en")])
            places = np.cumsum([0, *map(len, pieces[:-1])])
            starts[start:end] = np.isin(places, [0, *ends])
        return starts


unspaced_tokens = functools.lru_cache(maxsize=1)(UnspacedTokens)


def choose_tokens(
    ids: np.ndarray, lengths: np.ndarray, rows: np.ndarray, bits: np.ndarray, masking: Masking
) -> np.ndarray:
    """Draws the tokens to predict in S sequences; returns their indices in `ids`, ascending.

    About `masking.probability` * T tokens are drawn from a sequence of T tokens, but in each row at
    most `masking.max_predictions`. As in google-research/bert, T counts [CLS] and [SEP], although
    [CLS] and [SEP] are never drawn.

    Args:
        ids: int [N], the token ids of all sequences, one sequence after the other.
        lengths: int [S], the number of tokens of each sequence.
        rows: int [S], the number of the row that contains the sequence, ascending.
        bits: uint64 [N], random bits of each token.
    """
    candidates = np.flatnonzero(masking.maskable[ids])
    sequences = np.repeat(np.arange(len(lengths)), lengths)[candidates]
    counts = np.bincount(sequences, minlength=len(lengths))
    share = np.rint(lengths * masking.probability).astype(int)
    quotas = _limited(np.minimum(np.maximum(share, 1), counts), rows, masking.max_predictions)
    if masking.word_starts is None:
        order = _shuffled(counts, bits[candidates])
        drawn = ranks(counts) < np.repeat(quotas, counts)
        return np.sort(candidates[order[drawn]])
    is_first = masking.word_starts[ids[candidates]]
    if masking.segment is not None:
        is_first |= masking.segment(ids)[candidates]
    # A token that continues a word joins the candidate before it, even across [SEP]; the first
    # candidate of a sequence always starts a word.
    is_first[(np.cumsum(counts) - counts)[counts > 0]] = True
    is_drawn = _draw_words(candidates, sequences, is_first, quotas, bits, masking)
    sizes = np.diff(np.flatnonzero(is_first), append=len(is_first))  # of the words, in tokens
    return candidates[np.repeat(is_drawn, sizes)]


def _limited(quotas: np.ndarray, rows: np.ndarray, limit: int) -> np.ndarray:
    """Lowers `quotas` [S] to `limit` per row; the first sequences of a row keep theirs."""
    before = np.cumsum(quotas) - quotas
    before -= before[np.searchsorted(rows, rows)]
    return np.clip(limit - before, 0, quotas)


def _shuffled(counts: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Returns the indices of the items of groups of `counts` [G] items, shuffled in each group."""
    groups = np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
    keys = (groups << np.uint64(_RANDOM_BITS)) | (bits >> np.uint64(64 - _RANDOM_BITS))
    keys = (keys << np.uint64(_ITEM_BITS)) | ranks(counts).astype(np.uint64)
    keys.sort()  # several times as fast as argsort
    items = (keys & np.uint64((1 << _ITEM_BITS) - 1)).astype(int)
    return items + np.repeat(np.cumsum(counts) - counts, counts)


def _draw_words(
    candidates: np.ndarray,
    sequences: np.ndarray,
    is_first: np.ndarray,
    quotas: np.ndarray,
    bits: np.ndarray,
    masking: Masking,
) -> np.ndarray:
    """Draws whole words or n-grams (Lan et al. 2019, 4.2): bool [W], whether a word is drawn."""
    first = np.flatnonzero(is_first)
    edges = np.append(first, len(candidates))
    counts = np.bincount(sequences[first], minlength=len(quotas))
    bits = bits[candidates[first]]
    order, sizes = _shuffled(counts, bits), np.ones(len(first), int)
    if masking.max_ngram > 1:
        sizes = _draw_sizes(candidates, sequences, first, masking.max_ngram, bits)
    starts = np.cumsum(counts) - counts
    taken, free = np.zeros(len(first), bool), quotas.copy()
    active = np.arange(len(quotas))
    # Step i looks at the word that is number i in the random order of its sequence.
    for step in range(counts.max(initial=0)):
        active = active[(free[active] > 0) & (counts[active] > step)]
        if not len(active):
            break
        word = order[starts[active] + step]
        size, largest = np.zeros(len(word), int), int(sizes[word].max())
        overlaps = np.zeros(len(word), bool)
        # An n-gram of more than `free` tokens loses its last words; a single word of more tokens is
        # skipped, since a later word may be shorter.
        for n in range(1, largest + 1):
            end = np.minimum(word + n, len(first))
            fits = (sizes[word] >= n) & (edges[end] - edges[word] <= free[active])
            overlaps |= fits & taken[end - 1]
            size[fits] = n
        size[overlaps] = 0
        for n in range(largest):
            taken[word[size > n] + n] = True
        free[active] -= edges[word + size] - edges[word]
    return taken


def _draw_sizes(
    candidates: np.ndarray,
    sequences: np.ndarray,
    first: np.ndarray,
    max_ngram: int,
    bits: np.ndarray,
) -> np.ndarray:
    """Draws the size of the n-gram that starts with each word, within its segment: int [W]."""
    words = np.arange(len(first))
    breaks = (np.diff(candidates) > 1) | (np.diff(sequences) > 0)
    ends = np.append(np.searchsorted(first, np.flatnonzero(breaks) + 1), len(first))
    left = ends[np.searchsorted(ends, words, side="right")] - words
    cumulative = np.cumsum(1 / np.arange(1, max_ngram + 1))
    # The upper bits of the same number determine the order of the words.
    uniform = (bits & np.uint64(0xFFFFFFFF)) / 2.0**32
    draw = uniform * cumulative[np.minimum(left, max_ngram) - 1]
    return np.searchsorted(cumulative, draw, side="right") + 1


def replacements(ids: np.ndarray, bits: np.ndarray, masking: Masking) -> np.ndarray:
    """Returns what replaces the tokens to predict, `ids` [M], by default BERT's 80/10/10 rule.

    Each token becomes [MASK] with probability `mask_share`, a random token with probability
    `random_share`, and else is unchanged. `bits`, uint64 [M], are random bits.
    """
    draws, shares = bits >> np.uint64(32), (masking.mask_share, masking.random_share)
    ends = [np.uint64(math.ceil(end * 2**32)) for end in itertools.accumulate(shares)]
    drawable = np.uint64(masking.vocab_size - len(masking.never_drawn))
    random_words = (((bits & np.uint64(0xFFFFFFFF)) * drawable) >> np.uint64(32)).astype(ids.dtype)
    for never in sorted(masking.never_drawn):
        random_words += random_words >= never  # skips the token id `never`
    replaced = np.where(draws < ends[0], masking.mask_token_id, random_words)
    return np.where(draws < ends[1], replaced, ids)


# Philox returns 4 numbers of 64 bits for each value of the counter.
_NUMBERS = 4


def random_bits(seed: Sequence[int], rows: Sequence[int], row_length: int) -> np.ndarray:
    """Returns uint64 [R, 2, row_length]: two random numbers for each token of R rows.

    Philox (Salmon et al. 2011) computes its numbers from a key, which `seed` determines, and a
    counter. Each row has its own range of counters, so its numbers depend only on the key and on
    its index in `rows`, among all rows of the phase or data set.
    """
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    generator, counters = np.random.Philox(key=key), -(-2 * row_length // _NUMBERS)
    indices = np.asarray(rows)
    bits = np.empty((len(indices), counters * _NUMBERS), np.uint64)
    position = 0
    # Rows with consecutive indices, as in a host's share of a batch, are drawn together.
    starts = np.flatnonzero(np.diff(indices, prepend=indices[:1] - 2) != 1).tolist()
    for start, end in zip(starts, [*starts[1:], len(indices)], strict=True):
        first = int(indices[start]) * counters
        generator.advance((first - position) % (1 << 256))
        bits[start:end] = generator.random_raw((end - start, counters * _NUMBERS))
        position = first + (end - start) * counters
    return bits[:, : 2 * row_length].reshape(len(indices), 2, row_length)
