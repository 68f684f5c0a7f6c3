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
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import numpy as np

from bertjax.tasks.dataset import Dataset, Example, Leak

DatasetT = TypeVar("DatasetT", bound=Dataset)

SHINGLE = 6  # bytes, so that a shingle is a number of 48 bits
SIMILAR = 0.8
# Texts with a similarity of .8 agree in one of 16 bands of 6 minima with a probability of .99, with
# one of .5 of .22, and with one of .2 of .001.
BANDS, ROWS_PER_BAND = 16, 6
# A text is compared with so many of those that agree with it in a band: more are copies of a form.
MOST_CANDIDATES = 32
BLOCK = 1024  # texts that are hashed together
LONGEST = 1 << 14  # bytes of a text, a multiple of what models read, to bound the memory

_MULTIPLIERS = np.random.default_rng(0).integers(
    1 << 63, size=(BANDS, ROWS_PER_BAND), dtype=np.uint64
) * np.uint64(2) + np.uint64(1)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_BETWEEN = "\x1f"  # the separator of the texts of an example: a space, which no normal text holds


def normalized(text: str) -> str:
    """Returns a text whose Unicode form, case and spaces do not matter any more."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def _text(example: Example) -> bytes:
    """Returns the normalised texts of an example, joined by `_BETWEEN`, cut at `LONGEST` bytes."""
    texts = [" ".join(example.words) if example.words else example.text]
    if example.pair is not None:
        texts.append(example.pair)
    joined = _BETWEEN.join(map(normalized, itertools.chain(texts, example.choices)))
    return joined.encode()[:LONGEST]


def _shingles(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Returns all shingles of `texts`, uint64 [S], and the index of the first of each, int [N].

    A text that is shorter than a shingle is filled up with zeros.
    """
    filled = [text.ljust(SHINGLE, b"\0") for text in texts]
    lengths = np.array([len(text) for text in filled])
    counts = lengths - SHINGLE + 1
    firsts = np.cumsum(counts) - counts
    places = np.arange(counts.sum()) + np.repeat(np.cumsum(lengths) - lengths - firsts, counts)
    buffer = b"".join([*filled, bytes(8)])
    eights = np.ndarray(len(buffer) - 7, "<u8", buffer, strides=(1,))  # overlapping
    return eights[places] & np.uint64((1 << 8 * SHINGLE) - 1), firsts


def band_keys(texts: Sequence[bytes]) -> np.ndarray:
    """Returns a hash of the minima of each band of each text, uint64 [N, BANDS]."""
    shingles, firsts = _shingles(texts)
    hashes = shingles * _MIX
    hashes ^= hashes >> np.uint64(29)
    hashes *= _MIX
    hashes ^= hashes >> np.uint64(32)
    keys = np.zeros((len(texts), BANDS), np.uint64)
    permuted = np.empty_like(hashes)
    for band in range(BANDS):
        for multiplier in _MULTIPLIERS[band]:
            np.multiply(hashes, multiplier, out=permuted)
            minima = np.minimum.reduceat(permuted, firsts)
            keys[:, band] = (keys[:, band] ^ (minima >> np.uint64(17))) * _MIX
    return keys


def similarity(a: bytes, b: bytes) -> float:
    """Returns the similarity of two normalised texts or, of several texts, the lowest of a pair."""
    if a == b:
        return 1.0
    first, second = a.split(_BETWEEN.encode()), b.split(_BETWEEN.encode())
    if len(first) != len(second):
        return 0.0
    return min(map(_jaccard, first, second))


def _jaccard(a: bytes, b: bytes) -> float:
    if a == b:
        return 1.0
    sets = [np.unique(_shingles([text])[0]) for text in (a, b)]
    common = len(np.intersect1d(*sets, assume_unique=True))
    return common / (len(sets[0]) + len(sets[1]) - common)


class _OtherTexts:
    """The different texts of the dev and test splits, which have numbers.

    Attributes:
        rows: (split, where) of the rows with each text.
    """

    def __init__(self, data: Dataset):
        self.rows: list[list[tuple[str, str]]] = []
        self._numbers: dict[bytes, int] = {}
        for split in data.splits:
            for example in data.examples(split) if split != "train" else ():
                number = self._numbers.setdefault(_text(example), len(self.rows))
                if number == len(self.rows):
                    self.rows.append([])
                self.rows[number].append((split, example.where))
        self._texts = [*self._numbers]
        keys = [np.zeros((0, BANDS), np.uint64)]
        for start in range(0, len(self._texts), BLOCK):
            keys.append(band_keys(self._texts[start : start + BLOCK]))
        joined = np.concatenate(keys)
        self._order = np.argsort(joined, axis=0, kind="stable")
        self._keys = np.take_along_axis(joined, self._order, axis=0)

    def matches(self, texts: Sequence[bytes]) -> Iterator[tuple[int, int, float]]:
        """Yields (index in `texts`, number, similarity) of pairs that are at least `SIMILAR`."""
        for index, number in self._candidates(texts):
            value = similarity(texts[index], self._texts[number])
            if value >= SIMILAR:
                yield index, number, value

    def _candidates(self, texts: Sequence[bytes]) -> set[tuple[int, int]]:
        pairs = set()
        for index, text in enumerate(texts):
            if text in self._numbers:
                pairs.add((index, self._numbers[text]))
        keys = band_keys(texts)
        for band in range(BANDS):
            known, wanted = self._keys[:, band], keys[:, band]
            firsts = np.searchsorted(known, wanted)
            ends = np.searchsorted(known, wanted, side="right")
            for index in np.flatnonzero(firsts < ends):
                last = min(ends[index], firsts[index] + MOST_CANDIDATES)
                for number in self._order[firsts[index] : last, band]:
                    pairs.add((int(index), int(number)))
        return pairs


def find_leaks(data: Dataset) -> tuple[Leak, ...]:
    """Compares the rows of all other splits with those of the train split.

    Each row that has an equal or similar one on the other side is in at least one of the pairs,
    beside the most similar one.
    """
    if "train" not in data.splits:
        return ()
    others = _OtherTexts(data)
    best: dict[int, tuple[float, str]] = {}  # the most similar row of train, by number
    of_train: dict[str, tuple[float, int]] = {}  # the most similar text, by place
    train = data.examples("train") if others.rows else iter(())
    while block := list(itertools.islice(train, BLOCK)):
        for index, number, value in others.matches([_text(example) for example in block]):
            where = block[index].where
            best[number] = max(best.get(number, (0.0, "")), (value, where))
            of_train[where] = max(of_train.get(where, (0.0, 0)), (value, number))
    leaks: dict[Leak, None] = {}
    for number, (value, where) in sorted(best.items()):
        for split, other in others.rows[number]:
            leaks[Leak(split, other, where, value)] = None
    for where, (value, number) in of_train.items():
        leaks[Leak(*others.rows[number][0], where, value)] = None
    return tuple(leaks)


def without_leaks(data: DatasetT, drop: Literal["train", "dev"] | None = None) -> DatasetT:
    """Returns a dataset with its `leaks`, without those rows of a split that are to be dropped.

    One line with the counts is printed, if there are any. Rows of a test split, which are to be
    predicted, are never left out.
    """
    leaks = find_leaks(data)
    places: dict[str, set[str]] = {"train": set(), "dev": set()}
    for leak in leaks:
        places["train"].add(leak.train)
        places.setdefault(leak.split, set()).add(leak.where)
    shares = []
    for split in data.splits:
        if split != "train" and (count := len(places.get(split, ()))):
            size = sum(1 for _ in data.examples(split))
            shares.append(f"{count:,} of the {size:,} examples of {split} ({count / size:.1%})")
    if leaks:
        print(
            f"warning: {' and '.join(shares)} are in train, equal or with a similarity of at least "
            f"{SIMILAR:g}, so that scores on them are better than those of new texts would be; "
            "leaks.jsonl lists them."
        )
    data = dataclasses.replace(data, leaks=leaks)
    if drop is None:
        return data
    print(f"{len(places[drop]):,} examples of {drop} are left out (--drop_leaks {drop}).")
    return data.leaving_out(drop, dict.fromkeys(places[drop], ""))
