"""Extends the vocabulary of a tokenizer by words of a new domain; all old ids keep their tokens.

First come the characters that the vocabulary lacks, so that words of a new script are known, and
pieces of such words, which are learnt as for a new vocabulary: each has a character that no old
entry has, so that it occurs in no other word. Their share of the other entries is that of the
unknown characters of the text. Each further entry saves tokens of the text that it was chosen from,
and other words are split as before. How this is achieved depends on the kind of tokenizer:

- WordPiece takes the longest matching entry first. Whole words are added, and other words that
  begin with an added word must become shorter, too (`WordChoice`).
- Byte-level BPE gets merges that are learnt from the text and applied after all old ones, so that
  they join pieces of the old vocabulary and change nothing else.
- The score of a new unigram piece is the sum of the scores of its old pieces, and little more, so
  that it replaces them wherever they were the most probable split. The score of a new character is
  the unknown token's, so that it replaces the unknown token alone.
"""

import bisect
import heapq
import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from tokenizers import models, trainers

from bertjax.base import progress
from bertjax.tokenization.base import Report, Tokenizer, count_words, learnt, numbered
from bertjax.tokenization.bpe import BPETokenizer, ByteLevelBPETokenizer
from bertjax.tokenization.unigram import METASPACE, UnigramTokenizer, with_pieces
from bertjax.tokenization.wordpiece import WordPieceTokenizer, longest_matches

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

    `counts` is {word: how often it occurs}, and `splits` {word: its pieces in the present
    vocabulary}, which are () for a word that it cannot express.
    """

    def __init__(self, counts: Mapping[str, int], splits: Mapping[str, Split], resplit: Resplit):
        self._counts = counts
        self._resplit = resplit
        self._splits = dict(splits)
        self._sorted = sorted(counts)

    def choose(self, add: int, min_frequency: int) -> list[str]:
        """Returns at most `add` words, in the order in which they were chosen.

        All of them occur at least `min_frequency` times, except longer words that another choice
        would change.
        """
        frequent = [word for word in self._sorted if self._counts[word] >= min_frequency]
        several = [word for word in frequent if len(self._splits[word]) > 1]
        heap = [(-self._saved_per_entry(word), word) for word in several]
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
            _, harmed = self._effect(word)
            if len(chosen) + len(harmed) >= add:
                continue
            if any(self._effect(longer)[1] for longer in harmed):
                continue
            for entry in (*harmed, word):
                self._add(entry)
                chosen.append(entry)
        return chosen

    def _saved_per_entry(self, word: str) -> float:
        saved, harmed = self._effect(word)
        return (saved + sum(map(self._own, harmed))) / (1 + len(harmed))

    def _own(self, word: str) -> int:
        return self._counts[word] * (len(self._splits[word]) - 1)

    def _effect(self, word: str) -> tuple[int, list[str]]:
        """Returns the tokens that `word` saves as an entry, and the words that it would harm."""
        saved = self._own(word)
        harmed = []
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
        """Yields (longer word, its pieces, its pieces with `word` added), where they differ."""
        for place in range(bisect.bisect_right(self._sorted, word), len(self._sorted)):
            longer = self._sorted[place]
            if not longer.startswith(word):
                return
            before = self._splits[longer]
            if len(before) > 1:
                after = self._resplit(longer, before, word)
                if after != before:
                    yield longer, before, after


# The log probability by which a new unigram piece exceeds the sum of its old pieces, for each token
# that it saves: above the rounding of float32, and far below the differences between splits.
BONUS = 1e-3
# The log probability of an unknown character is the rarest piece's less this number, in the
# libraries sentencepiece and tokenizers.
_UNKNOWN_PENALTY = 10.0
# Characters are added as long as the words that lack one exceed this share of the characters.
_RARE = 0.005
# Old pieces are characters from here on when new merges are learnt.
_FIRST_CHARACTER = 0x10000


class Extension(NamedTuple):
    """A tokenizer with new entries, and what they save.

    Attributes:
        tokenizer: the tokenizer; its new entries follow the old ones.
        entries: the new entries, in the order of their ids.
        characters: the number of the first entries that are characters which the vocabulary lacked.
        unknown: the share of the characters of the text in unknown tokens, before and after.
        tokens_before: the number of tokens of the text with the old vocabulary and, so that unknown
            words count, the characters that it lacked.
        tokens_after: the number of tokens of the text with the new entries.
        words: the number of words of the text, the fewest tokens that any new entries can lead to.
    """

    tokenizer: Tokenizer
    entries: list[str]
    characters: int
    unknown: tuple[float, float]
    tokens_before: int
    tokens_after: int
    words: int


def extend(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    add: int,
    *,
    min_frequency: int = 2,
    report: Report | None = None,
) -> Extension:
    """Adds up to `add` entries to the vocabulary of `tokenizer`, which is left unchanged.

    The entries are first the characters that the vocabulary lacks, in order of frequency and unless
    they are rare, then pieces of the words that were unknown, and then the words that save the most
    tokens of the texts; all of them occur at least `min_frequency` times. They do not depend on the
    order of the texts, unless `count_words` drops rare words to bound memory; `report` is then
    called with a message. Raises ValueError if the texts contain nothing to add.
    """
    counts = count_words(map(tokenizer.words, texts), report)
    with progress.progress("choosing new entries"):
        size = tokenizer.vocab_size + add
        known = _with_characters(tokenizer, counts, add, min_frequency)
        left = size - known.vocab_size
        _, unknown_before = _count(tokenizer, counts)
        tokens_before, _ = _count(known, counts)
        pieces = _pieces_of_unknown(tokenizer, known, counts, left, min_frequency)
        extended = _with_entries(known, pieces[: round(unknown_before * left)])
        left = size - extended.vocab_size
        extended = _extended(extended, counts, left, min_frequency)
        more = [piece for piece in pieces if piece not in extended.vocab]
        extended = _with_entries(extended, more[: size - extended.vocab_size])
    entries = extended.tokens[tokenizer.vocab_size :]
    if not entries:
        raise ValueError(
            f"The text has no words to add: none of its {len(counts):,} different words occurs at "
            f"least {min_frequency} times and has several pieces or an unknown one in the "
            f"vocabulary of {tokenizer.vocab_size:,} entries. Give more text."
        )
    tokens_after, unknown_after = _count(extended, counts)
    return Extension(
        tokenizer=extended,
        entries=entries,
        characters=known.vocab_size - tokenizer.vocab_size,
        unknown=(unknown_before, unknown_after),
        tokens_before=tokens_before,
        tokens_after=tokens_after,
        words=counts.total(),
    )


def _count(tokenizer: Tokenizer, counts: Counter[str]) -> tuple[int, float]:
    """Returns the number of tokens of the text, and the share of unknown characters."""
    tokens = unknown = 0
    for word, count in counts.items():
        ids = tokenizer.split(word)
        tokens += count * len(ids)
        if tokenizer.unk_token_id in ids:
            unknown += count * len(word)
            for index in ids:
                if index != tokenizer.unk_token_id:
                    unknown -= count * len(tokenizer.tokens[index])
    return tokens, unknown / _characters(counts)


def _characters(counts: Counter[str]) -> int:
    return sum(count * len(word) for word, count in counts.items())


def _with_characters(
    tokenizer: Tokenizer, counts: Counter[str], add: int, min_frequency: int
) -> Tokenizer:
    """Adds up to `add` characters without which words are unknown, the most frequent ones first.

    Rare characters, such as symbols, are left out: further words save more.
    """
    if isinstance(tokenizer, ByteLevelBPETokenizer):
        return tokenizer  # bytes stand for all characters
    unknown = {word: count for word, count in counts.items() if not _pieces(tokenizer, word)}
    inside = getattr(tokenizer, "prefix", "")
    lacking: set[str] = set()
    for word in unknown:
        lacking.update(_letters(word, inside))
    lacking -= tokenizer.vocab.keys()
    everything = _with_entries(tokenizer, sorted(lacking))
    needed: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for word, count in unknown.items():
        for entry in {everything.tokens[index] for index in everything.split(word)}:
            needed[entry] += count
            lost[entry] += count * len(word)
    order = sorted(needed.keys() - tokenizer.vocab.keys(), key=lambda e: (-needed[e], e))
    # The characters that the words of the rare ones have are given up.
    left = sum(lost[entry] for entry in order) - _RARE * _characters(counts)
    chosen: list[str] = []
    for entry in order:
        if left <= 0:
            break
        left -= lost[entry]
        if needed[entry] >= min_frequency:
            # The character may be the first of other words.
            letter = entry.removeprefix(inside)
            chosen += [letter, inside + letter]
    new = [entry for entry in dict.fromkeys(chosen) if entry not in tokenizer.vocab]
    return _with_entries(tokenizer, new[:add])


def _letters(word: str, inside: str) -> list[str]:
    """Returns the characters of a word as entries, with the prefix `inside` but for the first."""
    letters = list(word[:1])
    for letter in word[1:]:
        letters.append(inside + letter)
    return letters


def _pieces_of_unknown(
    tokenizer: Tokenizer, known: Tokenizer, counts: Counter[str], add: int, min_frequency: int
) -> list[str]:
    """Returns up to `add` pieces of words that `tokenizer` does not know, but `known` does.

    They are learnt like a WordPiece vocabulary, the first ones from the most frequent pairs.
    """
    if known is tokenizer or not add or isinstance(tokenizer, BPETokenizer):
        return []
    prefix = ""
    if isinstance(tokenizer, WordPieceTokenizer):
        prefix = tokenizer.prefix

    def parts(entry: str) -> list[str]:
        if prefix and entry.startswith(prefix):
            return [prefix + letter for letter in entry.removeprefix(prefix)]
        return _letters(entry, prefix)

    words: Counter[str] = Counter()
    letters: set[str] = set()
    for word, count in counts.items():
        if not _pieces(tokenizer, word) and _pieces(known, word):
            words[word] = count
            letters.update(parts(word))
    old = {part for token in tokenizer.tokens for part in parts(token)}
    trainer = trainers.BpeTrainer(
        vocab_size=len(letters) + 2 * add,  # some pieces have no new character
        min_frequency=min_frequency,
        special_tokens=sorted(letters),
        continuing_subword_prefix=prefix,
        show_progress=False,
    )
    vocab = learnt(models.BPE(), words, trainer)["vocab"]
    pieces = []
    for piece in sorted(vocab, key=vocab.__getitem__):
        is_new = piece not in known.vocab and not old.issuperset(parts(piece))
        if is_new and all(map(_is_letter, piece.lstrip(f"{prefix}{METASPACE}"))):
            pieces.append(piece)
    return pieces[:add]


def _with_entries(tokenizer: Tokenizer, entries: list[str]) -> Tokenizer:
    if not entries:
        return tokenizer
    if not isinstance(tokenizer, UnigramTokenizer):
        return tokenizer.with_model(vocab=numbered([*tokenizer.tokens, *entries]))
    scores = dict(tokenizer.pieces)
    unknown = min(scores.values()) - _UNKNOWN_PENALTY
    scored = []
    for entry in entries:
        score = unknown
        if pieces := _pieces(tokenizer, entry):
            score = sum(map(scores.__getitem__, pieces)) + BONUS * (len(pieces) - 1)
        scored.append((entry, float(np.float32(score))))
    return with_pieces(tokenizer, scored)


def _extended(
    tokenizer: Tokenizer, counts: Counter[str], add: int, min_frequency: int
) -> Tokenizer:
    if isinstance(tokenizer, BPETokenizer):
        return _extended_bpe(tokenizer, counts, add, min_frequency)
    if isinstance(tokenizer, UnigramTokenizer):
        return _extended_unigram(tokenizer, counts, add, min_frequency)
    assert isinstance(tokenizer, WordPieceTokenizer)
    return _extended_wordpiece(tokenizer, counts, add, min_frequency)


def _extended_wordpiece(
    tokenizer: WordPieceTokenizer, counts: Counter[str], add: int, min_frequency: int
) -> Tokenizer:
    vocab = tokenizer.vocab
    prefix = tokenizer.prefix

    def resplit(word: str, before: Split, new: str) -> Split:
        if len(new) <= len(before[0]):
            return before
        rest = longest_matches(word[len(new) :], vocab, prefix)
        return (new, *rest) if rest else ()

    # An entry that begins with "##" would be read as the rest of a word.
    words = {word: count for word, count in counts.items() if word[:1] != prefix[:1]}
    splits = {word: _pieces(tokenizer, word) for word in words}
    choice = WordChoice(words, splits, resplit)
    return _with_entries(tokenizer, choice.choose(add, min_frequency))


def _extended_bpe(
    tokenizer: BPETokenizer, counts: Counter[str], add: int, min_frequency: int
) -> BPETokenizer:
    vocab = numbered(tokenizer.tokens)
    merges = dict.fromkeys(tokenizer.merges)
    for pair in _new_merges(tokenizer, counts, add, min_frequency):
        if len(vocab) == tokenizer.vocab_size + add:
            break
        if vocab.keys() >= {*pair} and pair not in merges:
            merges[pair] = None
            vocab.setdefault(tokenizer.joined(pair), len(vocab))  # other merges may lead to it, too
    return tokenizer.with_model(vocab=vocab, merges=list(merges))


def _new_merges(
    tokenizer: BPETokenizer, counts: Counter[str], add: int, min_frequency: int
) -> Iterator[tuple[str, str]]:
    """Yields pairs of entries by rank, learnt from texts with one character per old piece."""
    texts: Counter[str] = Counter()
    for word, count in counts.items():
        ids = tokenizer.split(word)
        if len(ids) > 1:
            text = "".join(chr(_FIRST_CHARACTER + index) for index in ids)
            texts[text] += count
    alphabet = sorted(set().union(*texts))
    trainer = trainers.BpeTrainer(
        # Some merges lead to entries that exist already.
        vocab_size=len(alphabet) + 2 * add,
        min_frequency=min_frequency,
        initial_alphabet=alphabet,
        show_progress=False,
    )

    def entry_of(text: str) -> str:
        return tokenizer.joined([tokenizer.tokens[ord(c) - _FIRST_CHARACTER] for c in text])

    for first, second in learnt(models.BPE(), texts, trainer)["merges"]:
        yield entry_of(first), entry_of(second)


def _extended_unigram(
    tokenizer: UnigramTokenizer, counts: Counter[str], add: int, min_frequency: int
) -> Tokenizer:
    def resplit(word: str, before: Split, new: str) -> Split:
        end = 0
        for number, piece in enumerate(before, 1):
            end += len(piece)
            if end == len(new):
                return (new, *before[number:])
        return before

    # Punctuation is part of the words of a unigram tokenizer, but should not be part of entries.
    words: Counter[str] = Counter()
    for word, count in counts.items():
        letters = itertools.takewhile(_is_letter, word[1:])
        words[word[:1] + "".join(letters)] += count
    splits = {}
    for word in words:
        # An old piece of low score may be split into others.
        is_piece = word in tokenizer.vocab
        splits[word] = (word,) if is_piece else _pieces(tokenizer, word)
    choice = WordChoice(words, splits, resplit)
    return _with_entries(tokenizer, choice.choose(add, min_frequency))


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"


def _pieces(tokenizer: Tokenizer, word: str) -> Split:
    """Returns the pieces of a word; () if one of them is unknown."""
    ids = tokenizer.split(word)
    if tokenizer.unk_token_id in ids:
        return ()
    return tuple(tokenizer.tokens[index] for index in ids)
