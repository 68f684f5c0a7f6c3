"""Makes the tasks on the user's own files: classes, regression, tags and multiple choice."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.files import brief
from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
)
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.embedding import ContrastiveTask, EmbeddingTask, SimilarityTask
from bertjax.tasks.sources.columns import FIELDS, Columns, CustomKind
from bertjax.tasks.sources.held_out import (
    AT_RANDOM,
    BY_CLASS,
    BY_RAREST,
    BY_TARGET,
    Choice,
    Fold,
    grouped,
    grouped_folds,
)
from bertjax.tasks.sources.own_files import BadRows, CustomSource, OwnFiles, data_files
from bertjax.tasks.sources.rows import MULTI_HOT, shorten
from bertjax.tasks.sources.tables import Table, read_number
from bertjax.tasks.tagging import TagTask, order_tags
from bertjax.tasks.task import Example, Source, Task

# Number of examples from which labels and targets are compared with what is usual.
FEWEST_COUNTED = 50
# Number of labels from which labels such as 0.36 and 4.62 are refused: ratings have fewer values.
MOST_DECIMALS = 20
# What may separate labels in one cell.
SEPARATORS = "|;,"
# Numbers whose point may separate thousands: 24.827, but not 0.827 or 1250.827.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
# A column with more different labels most likely holds numbers or texts instead.
MAX_LABELS = 1000


def learn_labels(source: Source, fold: Fold | None = None) -> tuple[str, ...]:
    """Returns the distinct labels of the train split in the order of their class ids.

    Numbers are sorted by value, tags by `order_tags`, and other labels alphabetically.

    Args:
        source: reads the examples.
        fold: the held-out fold of a cross-validation, whose labels are included, so that the models
            of all folds have the same classes; None: no cross-validation.

    Raises:
        ValueError: there are fewer than two different labels, more than `MAX_LABELS`, or, in
            classification with one label per example, almost as many labels as examples or many
            numbers with decimals.
    """
    seen: set[str] = set()
    sizes: set[int] = set()
    count = 0
    tags = several = False
    where = f"{source.path('train')}: " if isinstance(source, CustomSource) else ""
    if fold is not None and isinstance(source, CustomSource):
        examples = source.read("train")
    else:
        examples = source.examples("train")
    for example in examples:
        count += 1
        label = example.label
        tags, several = bool(example.words), isinstance(label, tuple)
        seen.update(label if isinstance(label, tuple) else (str(label),))
        sizes.add(len(label) if isinstance(label, tuple) else 1)
        if len(seen) > MAX_LABELS:
            raise ValueError(
                f"{example.where}: more than {MAX_LABELS:,} different labels so far, the latest "
                f"{shorten(label)}. If the labels are numbers, use --task=regress; if they are "
                "texts, name another column with --label_column."
            )
    if not count:
        raise ValueError(f"{where}There are no examples, only a header or nothing: check the file.")
    if len(seen) < 2:
        only = f"only the label {brief(min(seen))!r}" if seen else "no labels"
        raise ValueError(
            f"{where}The training data has {only}: a classifier needs at least two different "
            "labels. If another column holds the labels, name it with --label_column."
        )
    if tags:
        return order_tags(seen)
    if several and seen <= MULTI_HOT and len(sizes) == 1 and max(sizes) > 1:
        raise ValueError(
            f"{where}Every list of labels has {max(sizes)} values, and all are 0 or 1: they seem "
            'to be multi-hot. Write the names of the labels instead, such as ["good", "short"], '
            "and [] for none."
        )
    numbers = {label: read_number(label) for label in seen}
    measured = len(seen) > MOST_DECIMALS and _are_decimals(numbers.values())
    rare = count >= FEWEST_COUNTED and 10 * len(seen) > 9 * count
    if (rare or measured) and not several:
        raise ValueError(
            f"{where}{len(seen):,} different labels in {count:,} examples, such as "
            f"{brief(min(seen), 60)!r}. If the labels are numbers, use --task=regress; if another "
            "column holds the labels, name it with --label_column."
        )
    if None in numbers.values():
        return tuple(sorted(seen))
    return tuple(sorted(seen, key=lambda label: (numbers[label], label)))


def _are_decimals(numbers: Collection[float | None]) -> bool:
    """Returns whether all values are numbers, and not all of them whole ones."""
    return None not in numbers and any(number % 1 for number in numbers if number is not None)


def _make(kind: CustomKind, options: TaskOptions) -> Task:
    source = CustomSource(
        kind,
        train=options.train,
        dev=options.dev,
        test=options.test,
        columns=options.columns,
        label_separator=options.label_separator,
        bad_rows="skip" if options.skip_bad_rows else "refuse",
        can_skip=True,
    )
    if source.note:
        print(source.note)
    choice = BY_RAREST if source.multi_label else _CHOICES[kind]
    key = functools.partial(_stratum, source)
    held_out = source.hold_out(options.dev_fraction, choice, key, options.fold)
    if note := held_out or source.repeated_in_dev():
        print(note)
    if kind == "regress":
        return _regression(source, options.doc_stride)
    if kind == "choice":
        return _choice(source)
    labels = learn_labels(source, options.fold)
    source.use_classes(labels)
    if kind == "tag":
        return TagTask.of_labels(labels, name=kind, source=source, doc_stride=options.doc_stride)
    if kind == "classify" and not source.multi_label and (separator := _separator_in(labels)):
        print(
            f"warning: labels such as {next(x for x in labels if separator in x)!r} seem to name "
            f"several classes; to predict each of them by itself, give --label_separator "
            f"{separator!r}"
        )
    task = MultiLabelTask if source.multi_label else ClassificationTask
    pairs, stride = source.columns.pair is not None, options.doc_stride
    return task(name=kind, source=source, labels=labels, pairs=pairs, doc_stride=stride)


def _separator_in(labels: Sequence[str]) -> str:
    """Returns the character at which most labels fall into parts that several labels share.

    Such labels most likely name several classes each. The result is "" if there is none.
    """
    for separator in SEPARATORS:
        parts = [part.strip() for label in labels for part in label.split(separator)]
        composed = sum(separator in label for label in labels)
        if composed >= 3 and 2 * len(set(parts)) <= len(parts):
            return separator
    return ""


def _choice(source: CustomSource) -> ChoiceTask:
    """Creates a multiple-choice task.

    Raises:
        ValueError: the labels of the first split count the choices from 1, so that almost every
            label would name another choice than it means.
    """
    count, split = source.num_choices, source.splits[0]
    labels = set(source.written_labels(split))
    if labels <= {str(i) for i in range(1, count + 1)} and str(count) in labels:
        raise ValueError(
            f"{source.path(split)}: the labels in column {source.columns.label!r} count the "
            f"choices from 1 to {count}, but indices of choices count from 0: subtract 1 from "
            "every label, or write the letters or the texts of the correct choices."
        )
    return ChoiceTask(name=source.kind, source=source, num_choices=count)


def _regression(source: CustomSource, doc_stride: int | None) -> RegressionTask:
    """Creates a regression task whose targets are standardised in training.

    The mean is subtracted from a target, which is then divided by the standard deviation. Both are
    those of the train split's targets; without a train split, targets are not standardised.

    Raises:
        ValueError: all targets in the train split are equal.
    """
    pairs = source.columns.pair is not None
    task = RegressionTask(name="regress", source=source, pairs=pairs, doc_stride=doc_stride)
    if "train" not in source.splits:
        return task
    targets = np.array([example.label for example in source.examples("train")], np.float64)
    mean, std = (float(targets.mean()), float(targets.std())) if targets.size else (0.0, 0.0)
    if not std:
        raise ValueError(
            f"{source.path('train')}: all targets are {mean:g}, so there is nothing to learn. If "
            "another column holds the targets, name it with --label_column."
        )
    print(
        f"targets: {targets.min():,.6g} to {targets.max():,.6g}, mean {mean:,.6g}, standard "
        f"deviation {std:,.6g}; they are standardised in training, and the model predicts their "
        "original scale"
    )
    if thousands := _thousands(source.written_labels("train")):
        print(
            f"warning: the targets that contain a point all have three digits after it, such as "
            f"{thousands}, which is read as the decimal number {float(thousands):g}: if the points "
            "separate thousands, remove them from the file."
        )
    squares = (targets - mean) ** 2
    farthest = int(squares.argmax())
    if targets.size >= FEWEST_COUNTED and squares[farthest] > squares.sum() / 2:
        example = next(itertools.islice(source.examples("train"), farthest, None))
        print(
            f"warning: {example.where}: the target {targets[farthest]:,.6g} alone causes "
            f"{squares[farthest] / squares.sum():.1%} of the variance, so that the model learns "
            "little about the others: if it is a mistake, correct or remove the row."
        )
    return dataclasses.replace(task, mean=mean, std=std)


def _thousands(labels: Iterable[str]) -> str:
    """Returns the first label whose point may separate thousands, such as 24.827; "" if none does.

    It may if all points are followed by three digits, unless every label has a point and most have
    other last digits than 00, as decimals that are all written with three digits.
    """
    first, count, rounded, whole = "", 0, 0, False
    for label in labels:
        if "." not in label:
            whole = whole or label.isdecimal()
        elif not _THOUSANDS.fullmatch(label):
            return ""
        else:
            first = first or label
            count += 1
            rounded += label.endswith("00")
    return first if whole or 2 * rounded > count else ""


def _stratum(source: CustomSource, example: Example) -> Any:
    """Returns what a dev split is chosen by: the label of `example` or, in tagging, its types.

    In multiple choice, the result is None, so that examples are chosen regardless of labels.
    """
    if source.kind == "tag" and isinstance(example.label, tuple):
        # "PER" of B-PER and I-PER, or the whole tag where tags mark no entities.
        types = {tag.partition("-")[2] or tag for tag in example.label}
        return tuple(sorted(types - {"O"}))
    return example.label if source.kind in ("classify", "regress") else None


# How the dev split is chosen; of examples with several labels, by the rarest one.
_CHOICES: dict[CustomKind, Choice] = {
    "classify": BY_CLASS,
    "regress": BY_TARGET,
    "tag": BY_RAREST,
    "choice": AT_RANDOM,
}

_KINDS: dict[CustomKind, tuple[type[Task], ...]] = {
    "classify": (ClassificationTask, MultiLabelTask),
    "regress": (RegressionTask,),
    "tag": (TagTask,),
    "choice": (ChoiceTask,),
}
CUSTOM_TASKS = tuple(
    TaskDefinition(
        name=kind,
        kinds=kinds,
        make=functools.partial(_make, kind),
        own_files=True,
        skip_bad_rows=True,
        columns=FIELDS[kind],
        label_separator=kind == "classify",
    )
    for kind, kinds in _KINDS.items()
)


def custom_kind(task: Task) -> CustomKind:
    """Returns the kind of `task`, a task on own files: classify, regress, tag, choice or embed."""
    if isinstance(task, EmbeddingTask):
        return "embed"
    return next(kind for kind, kinds in _KINDS.items() if type(task) in kinds)


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


def _make_embed(options: TaskOptions) -> EmbeddingTask:
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
    make=_make_embed,
    own_files=True,
    skip_bad_rows=True,
    columns=FIELDS["embed"],
)
