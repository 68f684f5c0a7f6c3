"""Dynamic masking: chooses the tokens to predict and the tokens that replace them in the input.

Masks are drawn when a row is read, so masks differ in every epoch (Liu et al. 2019, 4.1). As in
google-research/bert, a share of the tokens of each sequence (15 % by default) is predicted; 80 % of
the predicted tokens become [MASK], 10 % a random token of the vocabulary, and 10 % are unchanged.
Options of `Masking` select ALBERT's n-gram masking, or exclude special tokens from the random
tokens as in fairseq. For next-token prediction, no token is masked.

All sequences of a block of rows are masked at once. The functions take their tokens in one array,
without padding, and two random numbers of 64 bits for each token (see `random_bits`), so that the
masks of a row do not depend on the other rows.
"""

import codecs
import dataclasses
import functools
import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import regex

from bertjax.data.batches.batch import ranks
from bertjax.tokenization import Tokenizer
from bertjax.tokenization.base import UNSPACED

# A key for sorting has 64 bits: the number of the group (up to 2^24 groups), random bits, and the
# number of the item in its group (of up to 2^16 items, the longest row). Equal random bits are rare
# and leave two items in their order.
_RANDOM_BITS = 24
_ITEM_BITS = 16
_LOWER_HALF = 0xFFFFFFFF  # of the bits of a token


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
            raise ValueError(f"max_ngram={self.max_ngram} counts whole words: set word_starts.")

    @functools.cached_property
    def maskable(self) -> np.ndarray:
        """Bool [vocab_size]: True for the ids of tokens that may be predicted."""
        return ~np.isin(np.arange(self.vocab_size), self.never_masked)


_CONTINUATIONS = bytes(range(0x80, 0xC0))


def _question_marks(error: Any) -> tuple[str, int]:
    wrong_bytes = error.end - error.start
    return "?" * wrong_bytes, error.end


codecs.register_error("bertjax.bytes", _question_marks)


class UnspacedTokens:
    """The tokens of a vocabulary in scripts without spaces, where tokens do not show words.

    Attributes:
        tokens: bool [vocab_size], True for tokens with letters or marks of such scripts.
        starts: bool [vocab_size], True for those that begin with a character, not within one.
    """

    def __init__(self, tokenizer: Tokenizer):
        has_letter = regex.compile(rf"(?V1){UNSPACED}|\p{{lb=SA}}").search
        is_mark = regex.compile(r"\p{M}").match
        self._written = [tokenizer.written(token) for token in tokenizer.tokens]
        size = len(self._written)
        self.tokens = np.zeros(size, bool)
        self.starts = np.zeros(size, bool)
        self._are_parts = np.zeros(size, bool)
        for token, written in enumerate(self._written):
            # Byte-level BPE has parts of characters, which are completed to any character here.
            self._are_parts[token] = "\ufffd" in written.decode(errors="replace")
            begun = written.lstrip(_CONTINUATIONS)
            completed = begun + b"\x81\x81\x81"
            text = completed.decode(errors="ignore").strip()
            if has_letter(text):
                is_begun = written[:1] not in _CONTINUATIONS
                self.tokens[token] = True
                self.starts[token] = is_begun and not is_mark(text)

    def segment(self, ids: np.ndarray) -> np.ndarray:
        """Returns which tokens start a word in such scripts, by ICU's dictionaries: bool [N]."""
        breaker = importlib.import_module("icu4py.breakers").WordBreaker
        starts = np.zeros(len(ids), bool)
        inside = (self.tokens | self._are_parts)[ids]
        changes = np.diff(inside, prepend=False, append=False)
        runs = np.flatnonzero(changes).reshape(-1, 2)  # [runs, (first, last + 1)]
        for start, end in runs.tolist():
            run = ids[start:end]
            if not self.tokens[run].any():
                continue
            pieces = [self._written[token] for token in run.tolist()]
            written = b"".join(pieces)
            text = written.decode("utf-8", "bertjax.bytes")
            sizes = np.array([len(piece) for piece in pieces])
            places = np.cumsum(sizes) - sizes
            word_sizes = [len(word.encode()) for word in breaker(text, "en")]
            word_ends = np.cumsum(word_sizes)
            starts[start:end] = np.isin(places, word_ends)
            starts[start] = True
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
    size = len(lengths)
    candidates = np.flatnonzero(masking.maskable[ids])
    sequence_of_token = np.repeat(np.arange(size), lengths)
    sequences = sequence_of_token[candidates]
    counts = np.bincount(sequences, minlength=size)
    quotas = np.rint(lengths * masking.probability).astype(int)
    quotas = np.minimum(np.maximum(quotas, 1), counts)
    quotas = _limited(quotas, rows, masking.max_predictions)
    if masking.word_starts is None:
        order = _shuffled(counts, bits[candidates])
        is_drawn = ranks(counts) < np.repeat(quotas, counts)
        drawn = order[is_drawn]
        return np.sort(candidates[drawn])
    is_first = masking.word_starts[ids[candidates]]
    if masking.segment is not None:
        is_start = masking.segment(ids)
        is_first |= is_start[candidates]
    # A token that continues a word joins the candidate before it, even across [SEP]; the first
    # candidate of a sequence always starts a word.
    starts = np.cumsum(counts) - counts
    is_first[starts[counts > 0]] = True
    is_drawn = _draw_words(candidates, sequences, is_first, quotas, bits, masking)
    words = np.flatnonzero(is_first)
    sizes = np.diff(words, append=len(is_first))  # of the words, in tokens
    return candidates[np.repeat(is_drawn, sizes)]


def _limited(quotas: np.ndarray, rows: np.ndarray, limit: int) -> np.ndarray:
    """Lowers `quotas` [S] to `limit` per row; the first sequences of a row keep theirs."""
    before = np.cumsum(quotas) - quotas
    first_of_row = np.searchsorted(rows, rows)
    before -= before[first_of_row]
    return np.clip(limit - before, 0, quotas)


def _shuffled(counts: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Returns the indices of the items of groups of `counts` [G] items, shuffled in each group."""
    numbers = np.arange(len(counts), dtype=np.uint64)
    keys = np.repeat(numbers, counts) << _RANDOM_BITS
    keys |= bits >> (64 - _RANDOM_BITS)
    keys <<= _ITEM_BITS
    keys |= ranks(counts).astype(np.uint64)
    keys.sort()  # several times as fast as argsort
    items = keys & ((1 << _ITEM_BITS) - 1)
    first = np.cumsum(counts) - counts
    return items.astype(int) + np.repeat(first, counts)


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
    count = len(first)
    edges = np.append(first, len(candidates))
    counts = np.bincount(sequences[first], minlength=len(quotas))
    bits = bits[candidates[first]]
    order = _shuffled(counts, bits)
    sizes = np.ones(count, int)
    if masking.max_ngram > 1:
        sizes = _draw_sizes(candidates, sequences, first, masking.max_ngram, bits)
    starts = np.cumsum(counts) - counts
    taken = np.zeros(count, bool)
    free = quotas.copy()
    active = np.arange(len(quotas))
    # Step i looks at the word that is number i in the random order of its sequence.
    for step in range(counts.max(initial=0)):
        is_active = (free[active] > 0) & (counts[active] > step)
        active = active[is_active]
        if not len(active):
            break
        word = order[starts[active] + step]
        room = free[active]
        wanted = sizes[word]
        largest = int(wanted.max())
        size = np.zeros(len(word), int)
        overlaps = np.zeros(len(word), bool)
        # An n-gram of more than `free` tokens loses its last words; a single word of more tokens is
        # skipped, since a later word may be shorter.
        for n in range(1, largest + 1):
            end = np.minimum(word + n, count)
            tokens = edges[end] - edges[word]
            fits = (wanted >= n) & (tokens <= room)
            overlaps |= fits & taken[end - 1]
            size[fits] = n
        size[overlaps] = 0
        for n in range(largest):
            longer = word[size > n]
            taken[longer + n] = True
        tokens = edges[word + size] - edges[word]
        free[active] = room - tokens
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
    is_segment_end = np.diff(candidates) > 1
    is_sequence_end = np.diff(sequences) > 0
    behind = np.flatnonzero(is_segment_end | is_sequence_end) + 1
    ends = np.searchsorted(first, behind)
    ends = np.append(ends, len(first))
    next_end = np.searchsorted(ends, words, side="right")
    left = ends[next_end] - words  # in the segment
    weights = 1 / np.arange(1, max_ngram + 1)
    cumulative = np.cumsum(weights)
    highest = cumulative[np.minimum(left, max_ngram) - 1]
    # The upper bits of the same number determine the order of the words.
    uniform = (bits & _LOWER_HALF) / 2.0**32
    return np.searchsorted(cumulative, uniform * highest, side="right") + 1


def replacements(ids: np.ndarray, bits: np.ndarray, masking: Masking) -> np.ndarray:
    """Returns what replaces the tokens to predict, `ids` [M], by default BERT's 80/10/10 rule.

    Each token becomes [MASK] with probability `mask_share`, a random token with probability
    `random_share`, and else is unchanged. `bits`, uint64 [M], are random bits.
    """
    drawable = masking.vocab_size - len(masking.never_drawn)
    random_words = (bits & _LOWER_HALF) * drawable >> 32
    random_words = random_words.astype(ids.dtype)
    for never in sorted(masking.never_drawn):
        random_words += random_words >= never  # skips the token id `never`
    draws = bits >> 32
    mask_end = math.ceil(masking.mask_share * 2**32)
    changed_share = masking.mask_share + masking.random_share
    random_end = math.ceil(changed_share * 2**32)
    replaced = np.where(draws < mask_end, masking.mask_token_id, random_words)
    return np.where(draws < random_end, replaced, ids)


# Philox returns 4 numbers of 64 bits for each value of the counter.
_NUMBERS = 4


def random_bits(seed: Sequence[int], rows: Sequence[int], row_length: int) -> np.ndarray:
    """Returns uint64 [R, 2, row_length]: two random numbers for each token of R rows.

    Philox (Salmon et al. 2011) computes them from a key, which `seed` determines, and a counter.
    Each of `rows`, indices among all rows of the phase or data set, has a range of counters.
    """
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    generator = np.random.Philox(key=key)
    indices = np.asarray(rows)
    count = len(indices)
    needed = 2 * row_length
    counters = math.ceil(needed / _NUMBERS)
    bits = np.empty((count, counters * _NUMBERS), np.uint64)
    position = 0
    # Rows with consecutive indices, as in a host's share of a batch, are drawn together.
    jumps = np.diff(indices, prepend=indices[:1] - 2) != 1
    starts = np.flatnonzero(jumps).tolist()
    edges = [*starts, count]
    for start, end in itertools.pairwise(edges):
        first = int(indices[start]) * counters
        generator.advance((first - position) % (1 << 256))
        drawn = bits[start:end]
        drawn[:] = generator.random_raw(drawn.shape)
        position = first + len(drawn) * counters
    return bits[:, :needed].reshape(count, 2, row_length)
