"""Chooses the examples of the train split that are held out if there is no dev split."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np


def stratified(labels: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples of each label at random; returns their indices.

    `labels` holds the label of each example. Of a label with two or more examples, at least one is
    chosen and at least one is not; an example that alone has its label is not chosen. The choice is
    the same in every run.
    """
    rng = np.random.default_rng(0)
    by_label: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        by_label.setdefault(label, []).append(index)
    chosen: list[int] = []
    for indices in by_label.values():
        count = min(max(round(fraction * len(indices)), 1), len(indices) - 1)
        chosen += rng.permutation(indices)[:count].tolist()
    return frozenset(chosen)


def stratified_by_rarest(labels: Sequence[Sequence[Hashable]], fraction: float) -> frozenset[int]:
    """Chooses examples as `stratified` does, by the rarest of the labels that each example has.

    There may be almost as many combinations of labels as examples, of which `stratified` would
    choose far more than `fraction`.
    """
    counts = Counter(label for several in labels for label in several)
    rarest = [min(several, key=lambda label: counts[label], default=None) for several in labels]
    return stratified(rarest, fraction)


def spread(values: Sequence[float], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples, evenly over the sorted `values`; returns their indices.

    `values` holds the target of each example. The sorted examples are divided into blocks of about
    equal size, and one example of each block is chosen at random. The choice is the same in every
    run.
    """
    rng = np.random.default_rng(0)
    order = np.argsort(np.asarray(values, np.float64), kind="stable")
    count = min(max(round(fraction * len(order)), 1), len(order) - 1)
    blocks = np.array_split(order, count) if count > 0 else []
    return frozenset(int(rng.choice(block)) for block in blocks)


def grouped(groups: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses whole groups with about `fraction` of the examples; returns the examples' indices.

    `groups` holds the group of each example, such as the passage of a question, so that questions
    about one passage are either all trained on or all evaluated. The groups are chosen at random,
    but the choice is the same in every run.
    """
    by_group: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        by_group.setdefault(group, []).append(index)
    chosen: list[int] = []
    members = [*by_group.values()]
    for number in np.random.default_rng(0).permutation(len(members))[: len(members) - 1]:
        if len(chosen) >= fraction * len(groups):
            break
        chosen += members[number]
    return frozenset(chosen)
