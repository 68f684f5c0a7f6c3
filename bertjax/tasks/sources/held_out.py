"""Holds out a part of the train split for evaluation, if the user's files have no dev split."""

import abc
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.tasks.sources.bad_rows import BadRow
from bertjax.tasks.task import Example


class OwnFiles(abc.ABC):
    """Base class of the sources that read the user's own files, one per split.

    Attributes:
        splits: the splits that have a file, and "dev" if a part of the train split is held out.
        skips_bad_rows: whether examples that cannot be encoded may be left out.
        bad_rows: {split: rows that could not be used} of the splits that were read.
    """

    splits: tuple[str, ...]

    def __init__(self, *, skips_bad_rows: bool = False):
        self.skips_bad_rows = skips_bad_rows
        self.bad_rows: dict[str, list[BadRow]] = {}
        self._left_out: dict[str, dict[str, str]] = {}  # split -> {where: problem}
        self._held_out: frozenset[int] | None = None

    @abc.abstractmethod
    def read(self, split: str) -> Iterator[Example]:
        """Reads the examples in the file of a split lazily, in the order of the file.

        Raises:
            ValueError: the split has no file, or a row is malformed; the message names the row.
        """

    @abc.abstractmethod
    def path(self, split: str) -> Path:
        """Returns the path of the file of a split; raises ValueError if there is none."""

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split lazily; the errors are those of `read`."""
        held_out = self._held_out
        if held_out is None or split not in ("train", "dev"):
            examples = self.read(split)
        else:
            numbered = enumerate(self.read("train"))
            examples = (e for index, e in numbered if (index in held_out) == (split == "dev"))
        left_out = self._left_out.get(split, {})
        return (e for e in examples if e.where not in left_out) if left_out else examples

    def leave_out(self, split: str, example: Example, problem: str) -> None:
        """Leaves an example out of all later reads of a split, because it cannot be encoded."""
        self._left_out.setdefault(split, {})[example.where] = problem

    def all_bad_rows(self) -> list[tuple[str, str]]:
        """Returns (split, problem) of each row that could not be read or encoded."""
        read = [(split, row.problem) for split, rows in self.bad_rows.items() for row in rows]
        left_out = self._left_out.items()
        return read + [(split, text) for split, rows in left_out for text in rows.values()]

    def hold_out(
        self, fraction: float, choose: Callable[[Sequence[Any], float], frozenset[int]], key: Any
    ) -> str:
        """Makes a part of the train split the dev split, unless there is a dev split already.

        Args:
            fraction: the fraction of the train split; 0: nothing is held out.
            choose: `stratified`, `spread` or `grouped`.
            key: a function of an example whose results are the first argument of `choose`.

        Returns:
            A sentence for the user that says what is held out; "" if nothing is.
        """
        if not fraction or "train" not in self.splits or "dev" in self.splits:
            return ""
        keys = [key(example) for example in self.read("train")]
        held_out = choose(keys, fraction)
        if not 0 < len(held_out) < len(keys):
            return ""
        self._held_out = held_out
        self.splits = (*self.splits, "dev")
        return (
            f"There is no --dev file: {len(held_out):,} of the {len(keys):,} examples in "
            f"{self.path('train').name} are not trained on, but evaluated (--dev_fraction "
            f"{fraction:g}; with 0, the model is trained on all and not evaluated)."
        )


def stratified(labels: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples of each label at random; returns their indices.

    Of a label with two or more examples, at least one is chosen and at least one is not. The choice
    is the same in every run.
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


def spread(values: Sequence[float], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples, evenly over the sorted `values`; returns their indices.

    The choice is the same in every run.
    """
    rng = np.random.default_rng(0)
    order = np.argsort(np.asarray(values, np.float64), kind="stable")
    count = min(max(round(fraction * len(order)), 1), len(order) - 1)
    blocks = np.array_split(order, count) if count > 0 else []
    return frozenset(int(rng.choice(block)) for block in blocks)


def grouped(groups: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses whole groups with about `fraction` of the examples; returns the examples' indices.

    So questions about one passage are either all trained on or all evaluated. The choice is the
    same in every run.
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
