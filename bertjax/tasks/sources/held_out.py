"""Holds out examples of the train split if there is no dev split.

Either a fraction of the examples is held out, or the examples are divided into folds, each of which
is held out in one run of a cross-validation. The choices of a fraction are the same in every run.
scikit-learn's splits refuse a class of one example.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.tasks.definition import Fold, TaskOptions
from bertjax.tasks.task import Example, Source, text_digest


def _indices_by(keys: Sequence[Hashable]) -> list[list[int]]:
    """Returns the indices of the examples with each key, in the order in which keys occur."""
    indices: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, []).append(index)
    return [*indices.values()]


def stratified(labels: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples of each label at random; returns their indices.

    Of a label with two or more examples, at least one is chosen and at least one is not; an example
    that alone has its label is not chosen.
    """
    rng = np.random.default_rng(0)
    chosen: list[int] = []
    for indices in _indices_by(labels):
        count = min(max(round(fraction * len(indices)), 1), len(indices) - 1)
        chosen += rng.permutation(indices)[:count].tolist()
    return frozenset(chosen)


def spread(values: Sequence[float], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples, evenly over the sorted `values`; returns their indices.

    One example of each block of consecutive sorted examples is chosen at random.
    """
    rng = np.random.default_rng(0)
    order = np.argsort(np.asarray(values, np.float64), kind="stable")
    count = min(max(round(fraction * len(order)), 1), len(order) - 1)
    blocks = np.array_split(order, count) if count > 0 else []
    return frozenset(int(rng.choice(block)) for block in blocks)


def grouped(groups: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses whole groups with about `fraction` of the examples; returns the examples' indices.

    Questions about one passage, for example, are then either all trained on or all evaluated.
    """
    chosen: list[int] = []
    members = _indices_by(groups)
    for number in np.random.default_rng(0).permutation(len(members))[: len(members) - 1]:
        if len(chosen) >= fraction * len(groups):
            break
        chosen += members[number]
    return frozenset(chosen)


def stratified_folds(labels: Sequence[Hashable], count: int, seed: int) -> np.ndarray:
    """Divides examples into `count` folds with the same numbers of each label, but for one example.

    The sizes of the folds differ by at most one. Returns the fold of each example, int [N].
    """
    rng = np.random.default_rng(seed)
    order = [index for indices in _indices_by(labels) for index in rng.permutation(indices)]
    folds = np.zeros(len(labels), np.int64)
    # The remainders of all labels are dealt in turn, so that no fold gets all of them.
    folds[np.array(order, np.int64)] = np.arange(len(order)) % count
    return folds


def spread_folds(values: Sequence[float], count: int, seed: int) -> np.ndarray:
    """Divides examples into `count` folds, each of them evenly over the sorted `values`.

    Each fold has one of every `count` consecutive examples. Returns each example's fold, int [N].
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(np.asarray(values, np.float64), kind="stable")
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
    shuffled = [members[number] for number in np.random.default_rng(seed).permutation(len(members))]
    folds, sizes = np.zeros(len(groups), np.int64), np.zeros(count, np.int64)
    for indices in sorted(shuffled, key=len, reverse=True):
        smallest = int(sizes.argmin())
        folds[indices] = smallest
        sizes[smallest] += len(indices)
    return folds


class Choice(NamedTuple):
    """How held-out examples are chosen, by a key of each example, such as its label.

    `fraction` and `folds` are functions of this module; `words` describe the choice to the user.
    """

    fraction: Callable[[Sequence[Any], float], frozenset[int]]
    folds: Callable[[Sequence[Any], int, int], np.ndarray]
    words: str


def _rarest(labels: Sequence[Sequence[Hashable]]) -> list[Hashable]:
    """Returns the rarest label of each example: most combinations of labels may occur only once."""
    counts = Counter(label for several in labels for label in several)
    return [min(several, key=lambda label: counts[label], default=None) for several in labels]


BY_CLASS = Choice(stratified, stratified_folds, "the same share of every class")
BY_RAREST = Choice(
    lambda labels, fraction: stratified(_rarest(labels), fraction),
    lambda labels, count, seed: stratified_folds(_rarest(labels), count, seed),
    "the same share of every label",
)
BY_TARGET = Choice(spread, spread_folds, "evenly over the range of the targets")
BY_PASSAGE = Choice(grouped, grouped_folds, "whole passages")
AT_RANDOM = Choice(stratified, stratified_folds, "at random")  # the keys of all examples are equal


def divide(
    source: Source, options: TaskOptions, choice: Choice, key: Callable[[Example], Any]
) -> None:
    """Holds out a dev split if `source` has none, and tells the user about it and its `note`.

    Examples with the same text (the same pair, choices or words) are either all held out or all
    trained on, because otherwise the evaluation would reward what was learnt by heart.

    Args:
        options: says which fraction of the train split or which fold is held out, if any.
        key: function (example) -> by what it is chosen, such as its label.

    Raises:
        ValueError: there are fewer different texts than folds, or a fold is empty.
    """
    if source.note:
        print(source.note)
    if "train" not in source.splits:
        return
    if "dev" in source.splits:
        known = {text_digest(example) for example in source.usable("train")}
        repeated = [text_digest(example) in known for example in source.usable("dev")]
        if any(repeated):
            print(
                f"warning: {sum(repeated):,} of the {len(repeated):,} examples in "
                f"{source.path('dev')} have a text that is trained on, so that the scores on them "
                "are better than those of new texts would be."
            )
    elif options.dev_fraction or options.fold:
        _hold_out(source, options.dev_fraction or 0.0, options.fold, choice, key)


def _hold_out(
    source: Source,
    fraction: float,
    fold: Fold | None,
    choice: Choice,
    key: Callable[[Example], Any],
) -> None:
    keys: dict[bytes, Any] = {}  # of the first example with each text
    digests = []
    for example in source.usable("train"):
        digests.append(text_digest(example))
        keys.setdefault(digests[-1], key(example))
    total, path = len(digests), source.path("train")
    name = path.name or path.resolve().name
    if fold is not None:
        folds = choice.folds([*keys.values()], fold.count, fold.seed)
        if len(np.unique(folds)) < fold.count:
            raise ValueError(
                f"--folds {fold.count}: the {total:,} examples in {path} cannot be divided into so "
                f"many folds ({choice.words}): give fewer folds."
            )
        chosen = set(np.flatnonzero(folds == fold.index).tolist())
    else:
        chosen = choice.fraction([*keys.values()], fraction)
    texts = {digest for index, digest in enumerate(keys) if index in chosen}
    held_out = frozenset(i for i, digest in enumerate(digests) if digest in texts)
    if not 0 < len(held_out) < total:
        print(
            f"warning: there is no --dev file, and none of the {total:,} examples in {name}, with "
            f"{len(keys):,} different texts, can be held out ({choice.words}), so that the model "
            "is not evaluated: check the column of the texts, or give --dev."
        )
        return
    source.hold_out(held_out)
    message = (
        f"{len(held_out):,} of the {total:,} examples in {name} are not trained on, but held out "
        "for evaluation"
    )
    if fold is not None:
        message = f"Fold {fold.index + 1} of {fold.count}: {message} ({choice.words})."
    else:
        message = (
            f"There is no --dev file: {message} (--dev_fraction {fraction:g}: {choice.words}; "
            "--dev_fraction 0 trains on all, without evaluation)."
        )
    if copies := total - len(keys):
        message += (
            f" {copies:,} examples repeat the text of an earlier one: of each text, all examples "
            "are held out, or none."
        )
    print(message)
