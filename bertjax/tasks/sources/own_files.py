"""`OwnFiles`, the base class of the sources that read the user's own files."""

import abc
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.tasks.sources.bad_rows import BadRows, error_of
from bertjax.tasks.sources.held_out import Choice, Fold
from bertjax.tasks.task import Example


class OwnFiles(abc.ABC):
    """Base class of the sources that read the user's own files, one file or folder per split.

    Args:
        bad_rows: "refuse": one ValueError names the rows that cannot be used; "skip": they are left
            out; "report": each becomes an example whose `problem` says why.
        can_skip: whether errors about bad rows recommend --skip_bad_rows.

    Attributes:
        splits: the splits that have a file, and "dev" if a part of the train split is held out.
    """

    splits: tuple[str, ...]

    def __init__(self, bad_rows: BadRows = "refuse", *, can_skip: bool = False):
        self._bad_rows_are: BadRows = bad_rows
        self._can_skip = can_skip
        self._bad_rows: dict[str, list[str]] = {}  # split -> problems
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
        """Reads the examples of a split lazily, without those that `leave_out` left out.

        Raises:
            ValueError: the split has no file, or a row is malformed; the message names the row.
        """
        held_out = self._held_out
        if held_out is None or split not in ("train", "dev"):
            examples = self.read(split)
        else:
            numbered = enumerate(self.read("train"))
            examples = (e for index, e in numbered if (index in held_out) == (split == "dev"))
        left_out = self._left_out.get(split, {})
        return (e for e in examples if e.where not in left_out) if left_out else examples

    def _usable(self, split: str, examples: Iterable[Example]) -> Iterator[Example]:
        """Yields the examples without a problem and, if `bad_rows` is "report", all others.

        Raises:
            ValueError: examples have a problem and `bad_rows` is "refuse". After the first problem,
                nothing is yielded; the error is raised at the end and names the rows.
        """
        self._bad_rows[split] = problems = []
        for example in examples:
            if example.problem:
                problems.append(example.problem)
                if self._bad_rows_are == "report":
                    yield example
            elif not problems or self._bad_rows_are != "refuse":
                yield example
        if self._bad_rows_are == "refuse":
            self.refuse(split, problems)

    def refuse(self, split: str, problems: Sequence[str]) -> None:
        """Raises one ValueError about all bad rows of a split, unless `problems` is empty."""
        if problems:
            raise error_of(problems, str(self.path(split)), can_skip=self._can_skip)

    def leave_out(self, split: str, example: Example, problem: str) -> bool:
        """Leaves an example that cannot be encoded out of all later reads of a split.

        `problem` says why it cannot be encoded. Returns True; or returns False, and changes
        nothing, if `bad_rows` is not "skip".
        """
        if self._bad_rows_are != "skip":
            return False
        self._left_out.setdefault(split, {})[example.where] = problem
        return True

    def all_bad_rows(self) -> list[tuple[str, str]]:
        """Returns (split, problem) of each row that could not be read or encoded."""
        read = [(split, text) for split, texts in self._bad_rows.items() for text in texts]
        left_out = self._left_out.items()
        return read + [(split, text) for split, rows in left_out for text in rows.values()]

    def held_out_indices(self) -> list[int]:
        """Returns the index, in the train file, of each example of the held-out dev split.

        The indices are in the order in which `examples` yields the dev split, and count the usable
        examples of the file from 0.
        """
        held_out, left_out = self._held_out or frozenset(), self._left_out.get("dev", {})
        numbered = enumerate(self.read("train"))
        return [i for i, e in numbered if i in held_out and e.where not in left_out]

    def hold_out(
        self,
        fraction: float | None,
        choice: Choice,
        key: Callable[[Example], Any],
        fold: Fold | None = None,
    ) -> str:
        """Makes a part of the train split the dev split, unless there is a dev split already.

        Examples with the same text (the same pair, choices or words) are either all held out or
        all trained on, because otherwise the evaluation would reward what was learnt by heart.

        Args:
            fraction: the fraction of the train split; 0 or None: nothing is held out.
            choice: how the held-out examples are chosen.
            key: a function that returns the property of an example by which they are chosen, such
                as its label.
            fold: the fold of a cross-validation to hold out, instead of a fraction; None: no
                cross-validation.

        Returns:
            A sentence for the user that says what is held out; "" if nothing is held out.

        Raises:
            ValueError: there are fewer different texts than folds, or a fold is empty.
        """
        if "train" not in self.splits or "dev" in self.splits or not (fraction or fold):
            return ""
        keys: dict[bytes, Any] = {}  # of the first example with each text
        text_of = []  # index of each example's text in `keys`
        numbers: dict[bytes, int] = {}
        for example in self.read("train"):
            digest = text_digest(example)
            keys.setdefault(digest, key(example))
            text_of.append(numbers.setdefault(digest, len(numbers)))
        if fold is not None:
            folds = choice.folds(list(keys.values()), fold.count, fold.seed)
            if len(np.unique(folds)) < fold.count:
                raise ValueError(
                    f"--folds {fold.count}: the {len(text_of):,} examples in {self.path('train')} "
                    f"cannot be divided into so many folds ({choice.words}): give fewer folds."
                )
            chosen = frozenset(np.flatnonzero(folds == fold.index).tolist())
        else:
            chosen = choice.fraction(list(keys.values()), fraction or 0.0)
        held_out = frozenset(i for i, text in enumerate(text_of) if text in chosen)
        path = self.path("train")
        if not 0 < len(held_out) < len(text_of):
            return ""
        self._held_out = held_out
        self.splits = (*self.splits, "dev")
        copies = len(text_of) - len(keys)
        return _held_out_note(
            fraction, fold, len(held_out), len(text_of), path.name or path.resolve().name, choice
        ) + (f" {copies:,} examples with a text that occurs before stay with it." if copies else "")

    def repeated_in_dev(self) -> str:
        """Returns a warning if examples of the dev file are in the train file too, else ""."""
        if self._held_out is not None or not {"train", "dev"} <= set(self.splits):
            return ""
        known = {text_digest(example) for example in self.read("train")}
        repeated = [text_digest(example) in known for example in self.read("dev")]
        if not any(repeated):
            return ""
        return (
            f"warning: {sum(repeated):,} of the {len(repeated):,} examples in {self.path('dev')} "
            "have a text that is trained on, so that the scores on them are better than those of "
            "new texts would be."
        )


def _held_out_note(
    fraction: float | None, fold: Fold | None, count: int, total: int, name: str, choice: Choice
) -> str:
    """Returns the sentence that says which `count` of `total` examples of a file are held out."""
    held_out = f"{count:,} of the {total:,} examples in {name} are not trained on, but evaluated"
    if fold is not None:
        return f"Fold {fold.index + 1} of {fold.count}: {held_out} ({choice.words})."
    return (
        f"There is no --dev file: {held_out} (chosen {choice.words}; --dev_fraction {fraction:g}; "
        "with 0, the model is trained on all and not evaluated)."
    )


def text_digest(example: Example) -> bytes:
    """Returns a hash of the texts of an example, which is small where texts are long."""
    texts = (example.text, example.pair, example.words, example.choices)
    return hashlib.blake2b(repr(texts).encode(errors="replace"), digest_size=12).digest()
