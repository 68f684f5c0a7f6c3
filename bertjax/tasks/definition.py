"""Defines `TaskDefinition`, an entry of the task registry, and `TaskOptions`, a user's settings."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bertjax.tasks.metrics import Metric
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.columns import Columns, flag_of
from bertjax.tasks.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """A user's settings of a task: where its data is and how it is read.

    Attributes:
        data_dir: folder of the official files; if None, TensorFlow Datasets provides the data.
        tfds_data_dir: data folder of TensorFlow Datasets; if None, its default folder.
        train, dev, test: the user's own file for each split, if any.
        columns: names of the columns in the user's own files.
        label_separator: the string between the labels of an example with several labels.
        submission: path of the zip to write for GLUE's server; if None, submission.zip in the
            folder of the predictions.
        span_options: {field of `SpanTask`: value}; a field that is left out has its default value.
    """

    data_dir: str | None = None
    tfds_data_dir: str | None = None
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    columns: Columns = Columns()
    label_separator: str | None = None
    submission: str | None = None
    span_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The paths of the user's own files, by split."""
        files = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: file for split, file in files.items() if file is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """Definition of a task for the command line: how to create it and which options it accepts.

    Attributes:
        name: the name of the task on the command line.
        kinds: the subclasses of `Task` of which `make` may return an instance.
        make: function that creates the task, with the source of its examples, from the options.
        metric: the metric of the task; if None, the default metric of its class.
        own_files: whether the task reads the user's own files instead of official ones.
        columns: the fields of `Columns` that the user may set for the task.
        label_separator: whether the task accepts the option `label_separator`.
        submission: whether the task's predictions can be submitted to GLUE's server.
        score_files: function (gold file, predictions file) -> official metrics; None if the task
            has no official file format.
        scores_null_odds: whether `score_files` also accepts `na_probs`, a file with the odds that a
            question has no answer, and `na_prob_thresh`, the threshold for these odds.
    """

    name: str
    kinds: tuple[type[Task], ...]
    make: Callable[[TaskOptions], Task]
    metric: Metric | None = None
    own_files: bool = False
    columns: tuple[str, ...] = ()
    label_separator: bool = False
    submission: bool = False
    score_files: Callable[..., dict[str, float]] | None = None
    scores_null_odds: bool = False

    def check(self, options: TaskOptions) -> None:
        """Checks that the task supports every option that is set.

        Raises:
            ValueError: an option is set that the task does not support; the message names it.
        """
        unused: dict[str, Any]
        if self.own_files:
            reads = "your own files (--train, --dev, --test)"
            unused = {"--data_dir": options.data_dir, "--tfds_data_dir": options.tfds_data_dir}
        else:
            reads = "its official files (--data_dir)"
            unused = {f"--{split}": file for split, file in options.files.items()}
        if not self.label_separator:
            unused["--label_separator"] = options.label_separator
        if not self.submission:
            unused["--submission"] = options.submission
        if SpanTask not in self.kinds:
            unused |= {f"--{field}": value for field, value in options.span_options.items()}
        flags = [flag for flag, value in unused.items() if value is not None]
        accepted = {flag_of(field) for field in self.columns}
        flags = [flag for flag in options.columns.flags if flag not in accepted] + flags
        if flags:
            raise ValueError(
                f"{', '.join(flags)}: without effect for --task={self.name}, which reads {reads}; "
                "leave it out."
            )
