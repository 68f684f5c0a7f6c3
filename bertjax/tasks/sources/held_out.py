"""Holds out examples of the train split if there is no dev split.

Either a fraction of the examples is held out, or the examples are divided into folds, each of which
is held out in one run of a cross-validation. The choices of a fraction are the same in every run.
scikit-learn's splits refuse a class of one example.
"""

import itertools
import operator
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

from bertjax.config.task_options import OwnFilesOptions
from bertjax.tasks.dataset import By, Dataset, Fold, text_digest

DatasetT = TypeVar("DatasetT", bound=Dataset)


def _indices_by(keys: Sequence[Hashable]) -> list[list[int]]:
    """Returns the indices of the examples with each key, in the order in which keys occur."""
    indices: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, []).append(index)
    return [*indices.values()]


def _by_value(values: Sequence[float]) -> np.ndarray:
    """Returns the indices of `values` in ascending order."""
    return np.argsort(np.asarray(values, np.float64), kind="stable")


def _share(fraction: float, size: int) -> int:
    """Returns the number of `size` examples to choose: at least one, but not all."""
    return min(max(round(fraction * size), 1), size - 1)


def stratified(labels: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples of each label at random; returns their indices.

    Of a label with two or more examples, at least one is chosen and at least one is not; an example
    that alone has its label is not chosen.
    """
    rng = np.random.default_rng(0)
    chosen: list[int] = []
    for indices in _indices_by(labels):
        shuffled = rng.permutation(indices)
        chosen += shuffled[: _share(fraction, len(indices))].tolist()
    return frozenset(chosen)


def spread(values: Sequence[float], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples, evenly over the sorted `values`; returns their indices.

    One example of each block of consecutive sorted examples is chosen at random.
    """
    rng = np.random.default_rng(0)
    order = _by_value(values)
    count = _share(fraction, len(order))
    if count < 1:
        return frozenset()
    return frozenset(int(rng.choice(block)) for block in np.array_split(order, count))


def grouped(groups: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses whole groups with about `fraction` of the examples; returns the examples' indices.

    Questions about one passage, for example, are then either all trained on or all evaluated.
    """
    chosen: list[int] = []
    members = _indices_by(groups)
    shuffled = np.random.default_rng(0).permutation(len(members))
    for number in shuffled[:-1]:  # one group is trained on
        if len(chosen) >= fraction * len(groups):
            break
        chosen += members[number]
    return frozenset(chosen)


def stratified_folds(labels: Sequence[Hashable], count: int, seed: int) -> np.ndarray:
    """Divides examples into `count` folds with the same numbers of each label, but for one example.

    The sizes of the folds differ by at most one. Returns the fold of each example, int [N].
    """
    rng = np.random.default_rng(seed)
    order: list[int] = []
    for indices in _indices_by(labels):
        order += rng.permutation(indices).tolist()
    folds = np.zeros(len(labels), np.int64)
    # The remainders of all labels are dealt in turn, so that no fold gets all of them.
    folds[order] = np.arange(len(order)) % count
    return folds


def spread_folds(values: Sequence[float], count: int, seed: int) -> np.ndarray:
    """Divides examples into `count` folds, each of them evenly over the sorted `values`.

    Each fold has one of every `count` consecutive examples. Returns each example's fold, int [N].
    """
    rng = np.random.default_rng(seed)
    order = _by_value(values)
    folds = np.zeros(len(order), np.int64)
    for start in range(0, len(order), count):
        block = order[start : start + count]
        folds[block] = rng.permutation(count)[: len(block)]
    return folds


def grouped_folds(groups: Sequence[Hashable], count: int, seed: int) -> np.ndarray:
    """Divides examples into `count` folds that consist of whole groups, such as passages.

    The shuffled groups are given, the largest first, to the fold with the fewest examples so far.
    Returns the fold of each example, int [N].
    """
    members = _indices_by(groups)
    shuffled = np.random.default_rng(seed).permutation(len(members))
    folds = np.zeros(len(groups), np.int64)
    sizes = np.zeros(count, np.int64)
    for number in sorted(shuffled, key=lambda number: -len(members[number])):
        smallest = sizes.argmin()
        folds[members[number]] = smallest
        sizes[smallest] += len(members[number])
    return folds


def _rarest(labels: Sequence[Sequence[Hashable]]) -> list[Hashable]:
    """Returns the rarest label of each example: most combinations of labels may occur only once."""
    counts = Counter(itertools.chain.from_iterable(labels))
    return [min(several, key=counts.__getitem__, default=None) for several in labels]


def rarest(labels: Sequence[Sequence[Hashable]], fraction: float) -> frozenset[int]:
    """Chooses as `stratified` does, by the rarest of the labels of each example."""
    return stratified(_rarest(labels), fraction)


def rarest_folds(labels: Sequence[Sequence[Hashable]], count: int, seed: int) -> np.ndarray:
    """Divides as `stratified_folds` does, by the rarest of the labels of each example."""
    return stratified_folds(_rarest(labels), count, seed)


_LABEL = operator.attrgetter("label")
BY_CLASS = By(_LABEL, stratified, stratified_folds, "the same share of every class")
BY_RAREST = By(_LABEL, rarest, rarest_folds, "the same share of every label")
BY_TARGET = By(_LABEL, spread, spread_folds, "evenly over the range of the targets")
BY_PASSAGE = By(operator.attrgetter("pair"), grouped, grouped_folds, "whole passages")
# The keys of all examples are equal.
AT_RANDOM = By(lambda _: None, stratified, stratified_folds, "at random")


# Fraction of the user's train file that is held out if there is no dev file.
DEV_FRACTION = 0.1


def divide(data: DatasetT, options: OwnFilesOptions, fold: Fold | None, by: By) -> DatasetT:
    """Holds out a fold, or the fraction that `options` say, if `data` has no dev split.

    Notes for the user are printed.

    Raises:
        ValueError: there are fewer different texts than folds, or a fold is empty.
    """
    if data.note:
        print(data.note)
    if "train" not in data.splits:
        return data
    if "dev" in data.splits:
        known = {text_digest(example) for example in data.usable("train")}
        repeated = [text_digest(example) in known for example in data.usable("dev")]
        if any(repeated):
            print(
                f"warning: {sum(repeated):,} of the {len(repeated):,} examples in "
                f"{data.path('dev')} have a text that is trained on, so that the scores on them "
                "are better than those of new texts would be."
            )
        return data
    fraction = DEV_FRACTION if options.dev_fraction is None else options.dev_fraction
    if fraction or fold:
        data = data.split(by, fraction, fold)
        print(data.note)
    return data
