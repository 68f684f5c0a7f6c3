"""Entries of the registry of tasks, and the parts of which the options of tasks are made."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from bertjax.base.checked import Count, Rate
from bertjax.cloud.hub import local_data
from bertjax.config.task_options import OwnFilesOptions, TaskOptions
from bertjax.tasks.dataset import Fold
from bertjax.tasks.metrics import Measure, Metric
from bertjax.tasks.sources.columns import Columns, TableKind
from bertjax.tasks.sources.data_files import saved_split
from bertjax.tasks.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowOptions(TaskOptions):
    """The option of tasks that can read long texts in windows."""

    doc_stride: Count | None = None
    """Maximum number of tokens between the starts of two windows of a text of more than max_length
    tokens; None: 128 in question answering, half of a window in tagging, else truncated texts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassOptions(TaskOptions):
    """Options of the losses of tasks with classes."""

    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    """Loss weight of each class, in the order of id2label in config.json; balanced: inversely
    proportional to class frequency; None: all are 1."""
    label_smoothing: Rate = 0.0
    """Share of each label that is spread evenly over all classes in the training loss; not for
    several labels per example."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationOptions(TaskOptions):
    """The option of tasks with one class per example."""

    calibrate: bool = False
    """Fit a temperature on the dev split, by which predict divides the logits to compute
    probabilities; the predicted classes do not change."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions(OwnFilesOptions):
    """Options of tasks on tables: names of columns; None: guessed, and the guess is printed.

    `table` says what the kind of task reads from tables.
    """

    table: ClassVar[TableKind]

    text_column: str | None = None
    """Column of the text or first text, in tagging, of the words (a name or, in column files, a
    number from 1); None: guessed."""
    label_column: str | None = None
    """Column of the label, tags or score (in column files, -1 is the last); None: guessed."""
    id_column: str | None = None
    """Column of the ids; None: guessed, or the index of the row."""

    @property
    def columns(self) -> Columns:
        """The columns of the tables, as their readers take them."""
        return Columns(
            text=self.text_column,
            label=self.label_column,
            id=self.id_column,
            ignored=self.ignore_columns,
            dividing=self.dividing_columns,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairOptions(TableOptions):
    """Options of tasks on tables with a text or a pair of texts per row."""

    pair_column: str | None = None
    """Column of the second text, the positive or the passage; None: guessed, unless --text_column
    is given."""

    @property
    def columns(self) -> Columns:
        return dataclasses.replace(super().columns, pair=self.pair_column)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralLabelsOptions(PairOptions):
    """Options of tasks on tables whose labels may stand in several columns.

    Raises:
        ValueError: there is one such column, or one twice, or `label_column` as well.
    """

    label_columns: tuple[str, ...] = ()
    """Columns of the labels, one per class (0 or 1, or probabilities) or per target of a
    regression; empty: one column has the label, or all others are explained and hold 0 or 1."""

    def __post_init__(self):
        super().__post_init__()
        names = self.label_columns
        are_two = len(names) > 1 and len({*names}) == len(names)
        if names and (self.label_column is not None or not are_two):
            raise ValueError(
                f"--label_columns {' '.join(names)}: give at least two different columns, and no "
                "--label_column, which names the only one."
            )

    @property
    def columns(self) -> Columns:
        return dataclasses.replace(super().columns, labels=self.label_columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalOptions(PairOptions):
    """Options of tasks on tables of texts to be found, with hard negatives and scores of them."""

    negative_columns: tuple[str, ...] = ()
    """Columns of hard negatives, or the one column with lists of them; empty: guessed."""
    score_columns: tuple[str, ...] = ()
    """Columns of a teacher's scores of the positive and of each negative, or the one with lists of
    them; empty: the column scores, if there are hard negatives."""
    # They learn from the scores of a teacher in the table instead of a teacher at hand.
    recipes = ("lora",)

    @property
    def columns(self) -> Columns:
        return dataclasses.replace(
            super().columns, negatives=self.negative_columns, scores=self.score_columns
        )


def change_times(options: TaskOptions) -> Iterator[float]:
    """Yields when each file of examples was changed, in seconds since 1970; infinite: gone."""
    for name in ("train", "dev", "test", "data_dir"):
        value = getattr(options, name, None)
        if value is not None:
            yield changed(Path(value).expanduser())


def changed(path: Path) -> float:
    """Returns when a file or folder was changed last, in seconds since 1970; infinite: gone."""
    if not path.exists():
        return math.inf
    return max(file.stat().st_mtime for file in (path, *path.rglob("*")))


def files_of(options: OwnFilesOptions) -> dict[str, Path]:
    """Returns {split: path} of the user's own files, some of which may be downloaded first.

    Of a saved `DatasetDict`, the path is that of the split.
    """
    files = {}
    for split in ("train", "dev", "test"):
        address = getattr(options, split)
        if address is not None:
            path = Path(local_data(address)).expanduser()
            files[split] = saved_split(path, split)
    if "train" in files and files["train"].resolve() == files.get("dev", Path()).resolve():
        print(
            f"warning: {options.dev} is both --train and --dev, so the scores do not tell how well "
            "other texts are predicted: leave --dev out to hold out a part of --train."
        )
    return files


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """Registry entry of a task.

    Attributes:
        name: the name of the task, the value of --task.
        kinds: the subclasses of `Task` of which `make` may create an instance.
        options: the class of the options of the task.
        make: function (options, the fold to hold out or None) -> the task.
        metric: the metric of the task; if None, the default metric of the subclass of `Task`.
        score_files: function (gold file, predictions file) -> the `Measure` of the official
            metrics; None if the task has no official file format.
        scores_null_odds: whether `score_files` also accepts `na_probs`, a file with the
            probability or log-odds that each question has no answer, and `na_prob_thresh`: a
            question with a higher value counts as predicted to have no answer.
    """

    name: str
    kinds: tuple[type[Task], ...]
    options: type[TaskOptions]
    make: Callable[[Any, Fold | None], Task]
    metric: Metric | None = None
    score_files: Callable[..., Measure] | None = None
    scores_null_odds: bool = False

    @property
    def own_files(self) -> bool:
        """Whether the task reads the user's own files instead of official ones."""
        return issubclass(self.options, OwnFilesOptions)
