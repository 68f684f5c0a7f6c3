"""Finds rows of dev and test splits that are in the train split, too, equal or nearly so.

Texts are normalised before they are compared: compatible characters of Unicode (NFKC), case and
spaces are as one. The similarity of two texts is Jaccard's index of their shingles, the sets of all
runs of `SHINGLE` bytes of UTF-8: six Latin letters, three Cyrillic or two Chinese ones, so that one
changed word in twenty leaves about .8 in any script, with or without spaces.

Pairs to compare are found by MinHash (Broder 1997): the share of equal minima of two texts
estimates their similarity. Texts become candidates if the minima of a band are equal (Leskovec et
al. 2020, "Mining of Massive Datasets", 3.4), and then their shingles are compared. Only texts of
the dev and test splits are kept; those of the train split are read once.
"""

import dataclasses
import functools
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import numpy as np

from bertjax.tasks.dataset import Dataset, Example, Leak

DatasetT = TypeVar("DatasetT", bound=Dataset)

SHINGLE = 6  # bytes, so that a shingle is a number of 48 bits
SIMILAR = 0.8
# Texts with a similarity of .8 agree in one of 16 bands of 6 minima with a probability of .99, with
# one of .5 of .22, and with one of .2 of .001.
BANDS = 16
ROWS_PER_BAND = 6
# A text is compared with so many others, of each band and of all: more are copies of a form.
MOST_CANDIDATES = 32
BLOCK = 1024  # texts that are hashed together
LONGEST = 1 << 14  # bytes of a text, a multiple of what models read, to bound the memory

_MULTIPLIERS = np.random.default_rng(0).integers(
    1 << 63, size=(BANDS, ROWS_PER_BAND), dtype=np.uint64
)
_MULTIPLIERS = 2 * _MULTIPLIERS + 1  # odd ones permute the numbers of 64 bits
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_SIX_BYTES = np.uint64((1 << 8 * SHINGLE) - 1)
_BETWEEN = "\x1f"  # the separator of the texts of an example: a space, which no normal text holds
_SEPARATOR = _BETWEEN.encode()
_NONE = (0.0, "")
_NO_TEXT = (0.0, b"")


def normalized(text: str) -> str:
    """Returns a text whose Unicode form, case and spaces do not matter any more."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def _text(example: Example) -> bytes:
    """Returns the normalised texts of an example, joined by `_BETWEEN`, cut at `LONGEST` bytes."""
    texts = [example.text]
    if example.words:
        texts = [" ".join(example.words)]
    if example.pair is not None:
        texts.append(example.pair)
    texts.extend(example.choices)
    joined = _BETWEEN.join(map(normalized, texts))
    return joined.encode()[:LONGEST]


def _shingles(text: bytes) -> np.ndarray:
    """Returns the shingles of a text in their order, uint64 [S]; a short text is filled up."""
    filled = text.ljust(SHINGLE, b"\0")
    # A number of eight bytes begins at each byte, and the highest of them are no part of it.
    buffer = filled + bytes(8 - SHINGLE)
    eights = np.ndarray(len(buffer) - 7, "<u8", buffer, strides=(1,))
    return eights & _SIX_BYTES


def band_keys(texts: Sequence[bytes]) -> np.ndarray:
    """Returns a hash of the minima of each band of each text, uint64 [N, BANDS]."""
    shingles = [_shingles(text) for text in texts]
    counts = np.array([len(of_text) for of_text in shingles])
    firsts = np.cumsum(counts) - counts
    hashes = _mixed(np.concatenate(shingles))
    keys = np.zeros((len(texts), BANDS), np.uint64)
    permuted = np.empty_like(hashes)
    for band, multipliers in enumerate(_MULTIPLIERS):
        key = keys[:, band]
        for multiplier in multipliers:
            np.multiply(hashes, multiplier, out=permuted)
            minima = np.minimum.reduceat(permuted, firsts)
            key[:] = _mixed(key ^ minima)
    return keys


def _mixed(values: np.ndarray) -> np.ndarray:
    """Returns hashes of numbers, uint64 [N]: nearby numbers have unrelated ones."""
    values = values * _MIX
    values ^= values >> _HALF
    values *= _MIX
    values ^= values >> _HALF
    return values


def similarity(a: bytes, b: bytes) -> float:
    """Returns the similarity of two normalised texts or, of several texts, the lowest of a pair."""
    return _similarity(_sets(a), _sets(b))


def _sets(text: bytes) -> list[np.ndarray]:
    """Returns the sorted different shingles of each of the texts of an example, uint64 [S]."""
    return [np.unique(_shingles(part)) for part in text.split(_SEPARATOR)]


def _similarity(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    if len(a) != len(b):
        return 0.0
    return min(map(_jaccard, a, b))


def _jaccard(a: np.ndarray, b: np.ndarray) -> float:
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


class _Index:
    """Finds those of `texts`, which are different, that may be similar to others."""

    def __init__(self, texts: Sequence[bytes]):
        self._numbers = {text: number for number, text in enumerate(texts)}
        blocks = []
        for start in range(0, len(texts), BLOCK):
            blocks.append(band_keys(texts[start : start + BLOCK]))
        keys = np.concatenate(blocks)
        self._order = np.argsort(keys, axis=0, kind="stable")
        self._keys = np.take_along_axis(keys, self._order, axis=0)

    def candidates(self, texts: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Yields (index in `texts`, number) of pairs that are equal or agree in the most bands.

        Of each of `texts`, there are at most `MOST_CANDIDATES`. The indices ascend.
        """
        agreeing: list[Counter[int]] = []  # of each text: {number: bands in which they agree}
        for text in texts:
            counts = Counter()
            equal = self._numbers.get(text)
            if equal is not None:
                counts[equal] = BANDS
            agreeing.append(counts)
        keys = band_keys(texts)
        for band in range(BANDS):
            known = self._keys[:, band]
            wanted = keys[:, band]
            firsts = np.searchsorted(known, wanted)
            ends = np.searchsorted(known, wanted, side="right")
            ends = np.minimum(ends, firsts + MOST_CANDIDATES)
            for index in np.flatnonzero(firsts < ends).tolist():
                of_key = slice(firsts[index], ends[index])
                agreeing[index].update(self._order[of_key, band].tolist())
        for index, counts in enumerate(agreeing):
            for number, _ in counts.most_common(MOST_CANDIDATES):
                yield index, number


def find_leaks(data: Dataset) -> tuple[Leak, ...]:
    """Compares the rows of all other splits with those of the train split.

    Each row that has an equal or similar one on the other side is in at least one of the pairs,
    beside the most similar one.
    """
    if "train" not in data.splits:
        return ()
    rows: dict[bytes, list[tuple[str, str]]] = {}  # the rows of the other splits with each text
    for split in data.splits:
        if split != "train":
            for example in data.examples(split):
                of_text = rows.setdefault(_text(example), [])
                of_text.append((split, example.where))
    if not rows:
        return ()
    texts = [*rows]
    index = _Index(texts)
    sets = functools.lru_cache(BLOCK)(_sets)
    best: dict[bytes, tuple[float, str]] = {}  # the most similar row of train, by text
    of_train: dict[str, tuple[float, bytes]] = {}  # the most similar text, by row of train
    train = data.examples("train")
    while block := list(itertools.islice(train, BLOCK)):
        own = [_text(example) for example in block]
        for number, other in index.candidates(own):
            text = texts[other]
            value = _similarity(sets(own[number]), sets(text))
            if value >= SIMILAR:
                where = block[number].where
                best[text] = max(best.get(text, _NONE), (value, where))
                of_train[where] = max(of_train.get(where, _NO_TEXT), (value, text))
    leaks: dict[Leak, None] = {}
    for text, of_text in rows.items():
        if text not in best:
            continue
        value, where = best[text]
        for split, other in of_text:
            leaks[Leak(split, other, where, value)] = None
    for where, (value, text) in of_train.items():
        split, other = rows[text][0]
        leaks[Leak(split, other, where, value)] = None
    return tuple(leaks)


def without_leaks(
    data: DatasetT, drop: Literal["train", "dev"] | None = None, remedy: str = ""
) -> DatasetT:
    """Returns a dataset with its `leaks`, without those rows of a split that are to be dropped.

    One line with the counts is printed, if there are any, and the `remedy` for those that stay.
    Rows of a test split, which are to be predicted, are never left out.

    Raises:
        ValueError: no row of the split of which they are to be dropped would be left.
    """
    leaks = find_leaks(data)
    places: dict[str, set[str]] = {"train": set(), "dev": set()}
    for leak in leaks:
        places["train"].add(leak.train)
        of_split = places.setdefault(leak.split, set())
        of_split.add(leak.where)
    shares = []
    for split in data.splits:
        count = len(places.get(split, ()))
        if split != "train" and count:
            size = sum(1 for _ in data.examples(split))
            share = count / size
            shares.append(f"{count:,} of the {size:,} examples of {split} ({share:.1%})")
    if leaks:
        said = (
            f"{' and '.join(shares)} are in train, equal or with a similarity of at least "
            f"{SIMILAR:g}"
        )
        are_dropped = drop == "train" or {leak.split for leak in leaks} == {drop}
        if are_dropped:
            print(f"{said}; leaks.jsonl lists them.")
        else:
            print(
                f"warning: {said}, so that scores on them are better than those of new texts; "
                f"leaks.jsonl lists them.{remedy}"
            )
    data = dataclasses.replace(data, leaks=leaks)
    if drop is None or drop not in data.splits:
        return data
    dropped = places[drop]
    if dropped and all(example.where in dropped for example in data.examples(drop)):
        other = "train"
        if drop == "train":
            other = "dev or test"
        raise ValueError(
            f"--drop_leaks {drop}: all {len(dropped):,} examples of {drop} are in {other} as well, "
            "so that none is left: give other files, or leave out --drop_leaks."
        )
    print(f"{len(dropped):,} examples of {drop} are left out (--drop_leaks {drop}).")
    return data.leaving_out(drop, dict.fromkeys(dropped, ""))
