"""Pairs of texts, triplets and scored pairs in the user's own files, to train embeddings."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.embedding import ContrastiveTask, EmbeddingTask, SimilarityTask
from bertjax.tasks.sources.bad_rows import BadRows
from bertjax.tasks.sources.columns import FIELDS, Columns
from bertjax.tasks.sources.custom import CustomSource, data_files
from bertjax.tasks.sources.held_out import BY_TARGET, Choice, grouped, grouped_folds
from bertjax.tasks.sources.own_files import OwnFiles
from bertjax.tasks.sources.table_files import Table
from bertjax.tasks.task import Example

# The most examples that are held out if there is no dev file: each is compared with all others.
MOST_HELD_OUT = 10_000


class PairSource(OwnFiles):
    """Reads pairs of texts from the user's own files, whose columns may differ between splits.

    So a model that is trained on pairs can be evaluated on scored pairs.

    Attributes:
        columns: the column names of the train split.
        note: a message that names the guessed columns of each file.
    """

    def __init__(
        self,
        files: dict[str, str],
        columns: Columns | None = None,
        bad_rows: BadRows = "refuse",
        *,
        can_skip: bool = False,
    ):
        """Reads the headers of the files and finds their columns.

        Args:
            files: {split: path of a file or folder}, with a train split.
            columns: the column names that the user sets; dev and test files that lack one of them
                have columns of their own, which are guessed.
            bad_rows: what becomes of rows that cannot be used, as in `CustomSource`.
            can_skip: whether errors about bad rows recommend --skip_bad_rows.

        Raises:
            FileNotFoundError: a file does not exist.
            ValueError: there is no train split, a file lacks a column or has an unknown suffix, or
                a column cannot be guessed.
        """
        super().__init__(bad_rows, can_skip=can_skip)
        if "train" not in files:
            raise ValueError("--task=embed trains on your own files: give --train.")
        named = columns or Columns()
        self._parts: dict[str, CustomSource] = {}
        for split, path in files.items():
            own: dict[str, Any] = {split: path}
            own["columns"] = _columns_of(split, files, named)
            self._parts[split] = CustomSource("embed", **own, bad_rows=bad_rows, can_skip=can_skip)
        self.splits = tuple(files)
        self.columns = self._parts["train"].columns
        notes = [part.note for part in self._parts.values()]
        self.note = "\n".join(dict.fromkeys(filter(None, notes)))

    @property
    def description(self) -> dict[str, Any]:
        """The column names used in training, for a saved model's task.json."""
        return self._parts["train"].description

    def read(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split lazily, in the order of its file.

        Raises:
            ValueError: the split does not exist, or a row is malformed; the message names the row.
        """
        return self._part(split).read(split)

    def path(self, split: str) -> Path:
        """Returns the path of the file of a split.

        Raises:
            ValueError: the split has no file.
        """
        return self._part(split).path(split)

    def has_scores(self, split: str) -> bool:
        """Returns whether the examples of the split `split` have scores."""
        part = self._parts.get(split, self._parts["train"])  # the dev split may be held out
        return part.columns.label is not None

    def all_bad_rows(self) -> list[tuple[str, str]]:
        read = [entry for part in self._parts.values() for entry in part.all_bad_rows()]
        return read + super().all_bad_rows()

    def _part(self, split: str) -> CustomSource:
        if split not in self._parts:
            raise ValueError(
                f"--task=embed has no split {split!r}: give --{split}, or use one of "
                f"{', '.join(self._parts)}."
            )
        return self._parts[split]


def _columns_of(split: str, files: dict[str, str], named: Columns) -> Columns:
    """Returns those of the named columns that the file of `split` should have; others are guessed.

    A train file has all of them, but may lack a score that another file has. Other files have those
    that they contain, and neither of the two texts if they lack one of them.
    """
    names = {name: set(_names(path)) for name, path in files.items()}
    if split == "train":
        elsewhere = named.label in set().union(*names.values()) - names["train"]
        return dataclasses.replace(named, label=None) if elsewhere else named
    own = names[split]
    texts = (named.text, named.pair) if {named.text, named.pair} - {None} <= own else (None, None)
    return Columns(
        text=texts[0],
        pair=texts[1],
        label=named.label if named.label in own else None,
        id=named.id if named.id in own else None,
        negatives=named.negatives if set(named.negatives) <= own else (),
    )


def _names(path: str) -> Sequence[str]:
    return Table(data_files(Path(path).expanduser(), "embed")[0]).columns


def _make(options: TaskOptions) -> EmbeddingTask:
    source = PairSource(
        options.files,
        options.columns,
        "skip" if options.skip_bad_rows else "refuse",
        can_skip=True,
    )
    if source.note:
        print(source.note)
    scored = source.has_scores("train")
    given: dict[str, Any] = dict(options.embedding_options)
    if scored and "dev" in source.splits and not source.has_scores("dev"):
        raise ValueError(
            f"{source.path('dev')} has no scores, but {source.path('train')} has: a model that "
            "learns scores is evaluated by them. Name the column of the scores of both files with "
            "--label_column, or leave --dev out."
        )
    choice = BY_TARGET if scored else _BY_ANCHOR
    note = source.hold_out(
        options.dev_fraction,
        choice,
        lambda example: example.label if scored else example.text,
        options.fold,
    )
    if note := note or source.repeated_in_dev():
        print(note)
    fields: dict[str, Any] = {"name": "embed", "source": source, "scored": source.has_scores("dev")}
    if scored:
        if given.pop("temperature", None) is not None:
            raise ValueError(
                f"temperature={options.embedding_options['temperature']} has no effect, because "
                f"the pairs have scores ({source.columns.label!r}): leave it out."
            )
        return SimilarityTask(**fields, **given, **_range(source))
    first = next(source.examples("train"), None)
    fields["num_texts"] = 2 + (len(first.choices) if first else 0)
    if fields["scored"]:
        fields["best_metric"] = SimilarityTask.best_metric
    return ContrastiveTask(**fields, **given)


def _held_out(anchors: Sequence[Any], fraction: float) -> frozenset[int]:
    """Chooses all examples of some anchors, about `fraction` of them, or `MOST_HELD_OUT`."""
    return grouped(anchors, min(fraction, MOST_HELD_OUT / max(len(anchors), 1)))


_BY_ANCHOR = Choice(_held_out, grouped_folds, "all pairs with the same first text together")


def _range(source: PairSource) -> dict[str, Any]:
    """Returns the lowest and the highest score of the train split, and prints them.

    Raises:
        ValueError: all scores are equal.
    """
    scores = [float(example.label) for example in source.examples("train")]  # type: ignore[arg-type]
    lowest, highest = (min(scores), max(scores)) if scores else (0.0, 0.0)
    if scores and lowest == highest:
        raise ValueError(
            f"{source.path('train')}: all scores are {lowest:g}, so there is nothing to learn. If "
            "another column holds the scores, name it with --label_column."
        )
    print(
        f"scores: {lowest:g} to {highest:g}; the model learns cosines of 0 for {lowest:g} and of 1 "
        f"for {highest:g}"
    )
    return {"lowest": lowest, "highest": highest if scores else 1.0}


EMBED_TASK = TaskDefinition(
    name="embed",
    kinds=(ContrastiveTask, SimilarityTask),
    make=_make,
    own_files=True,
    skip_bad_rows=True,
    columns=FIELDS["embed"],
)
