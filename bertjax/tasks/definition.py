"""Defines `TaskDefinition`, an entry of the registry, `TaskOptions` and the formats of files."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from bertjax.tasks.dataset import Fold
from bertjax.tasks.embedding import EmbeddingTask
from bertjax.tasks.metrics import Metric
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.columns import Columns, flag_of
from bertjax.tasks.sources.data_files import saved_split
from bertjax.tasks.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The user's settings of a task: where the data of the task is and how to read it.

    Attributes:
        data_dir: folder of the official files; if None, the data comes from TensorFlow Datasets if
            `tfds_data_dir` is set or TFDS has already prepared it, else from the Hugging Face hub.
        train: path of the user's own train file, or None; the same holds for `dev` and `test`.
        dev_fraction: fraction of the train file to hold out if there is no dev file.
        fold: the fold of a cross-validation on the train file to hold out.
        label_separator: the string that separates the labels of an example in the label column; if
            None, a text in this column is a single label.
        keep_labels: labels that are classes, although they usually mark a missing one, such as NA.
        submission: path of the zip file to write for GLUE's server; if None, submission.zip in the
            folder of the predictions.
        doc_stride: maximum number of tokens between the starts of two consecutive windows; None:
            the default of the task.
        loss: the name of the training objective; None: the default of the task and its data.
        span_options: {name of a field of `SpanTask`: value}; other fields have their defaults.
        embedding_options: the same for `EmbeddingTask`, and for the `temperature` of `RerankTask`.
    """

    data_dir: str | None = None
    tfds_data_dir: str | None = None
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    dev_fraction: float | None = None
    fold: Fold | None = None
    skip_bad_rows: bool = False
    columns: Columns = Columns()
    label_separator: str | None = None
    keep_labels: tuple[str, ...] = ()
    submission: str | None = None
    doc_stride: int | None = None
    loss: str | None = None
    span_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    embedding_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def all_span_options(self) -> dict[str, Any]:
        """`span_options` and, unless it is None, `doc_stride`: fields of `SpanTask`."""
        stride = {} if self.doc_stride is None else {"doc_stride": self.doc_stride}
        return {**self.span_options, **stride}

    @property
    def files(self) -> dict[str, Any]:
        """{split: path} of the user's own files; of a saved `DatasetDict`, that of the split."""
        files = {"train": self.train, "dev": self.dev, "test": self.test}
        return {
            split: str(saved_split(Path(file).expanduser(), split))
            for split, file in files.items()
            if file is not None
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """Registry entry of a task: how to create the task and which options the task accepts.

    Attributes:
        kinds: the subclasses of `Task` of which `make` may create an instance.
        metric: the metric of the task; if None, the default metric of the subclass of `Task`.
        own_files: whether the task reads the user's own files instead of official files.
        columns: the fields of `Columns` that the user may set for the task.
        losses: the training objectives that the user may choose from; empty: there is only one.
        score_files: function (gold file, predictions file) -> official metrics; None if the task
            has no official file format.
        scores_null_odds: whether `score_files` also accepts `na_probs`, a file with the
            probability or log-odds that each question has no answer, and `na_prob_thresh`: a
            question with a higher value counts as predicted to have no answer.
    """

    name: str
    kinds: tuple[type[Task], ...]
    make: Callable[[TaskOptions], Task]
    metric: Metric | None = None
    own_files: bool = False
    columns: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    label_separator: bool = False
    submission: bool = False
    score_files: Callable[..., dict[str, float]] | None = None
    scores_null_odds: bool = False

    def check(self, options: TaskOptions) -> None:
        """Raises ValueError, naming the flag, if the task does not support a set option."""
        reads = "its official files (--data_dir)"
        unused: dict[str, Any] = {f"--{split}": file for split, file in options.files.items()}
        unused |= {"--dev_fraction": options.dev_fraction, "--folds": options.fold}
        if self.own_files:
            reads = "your own files (--train, --dev, --test)"
            unused = {"--data_dir": options.data_dir, "--tfds_data_dir": options.tfds_data_dir}
        else:
            unused["--skip_bad_rows"] = options.skip_bad_rows
        if self.losses and options.loss not in (None, *self.losses):
            raise ValueError(
                f"--loss {options.loss}: --task={self.name} has {', '.join(self.losses)}; choose "
                "one of them."
            )
        unused["--loss"] = None if self.losses else options.loss
        unused["--keep_labels"] = () if self.label_separator else options.keep_labels
        for name in ("label_separator", "submission"):
            if not getattr(self, name):
                unused[f"--{name}"] = getattr(options, name)
        if not any(hasattr(kind, "doc_stride") for kind in self.kinds):
            unused["--doc_stride"] = options.doc_stride
        if SpanTask not in self.kinds:
            unused |= {f"--{field}": value for field, value in options.span_options.items()}
        if not any(issubclass(kind, EmbeddingTask) for kind in self.kinds):
            others = options.embedding_options.items()
            known = ("temperature",) if self.losses else ()
            unused |= {f"--{name}": value for name, value in others if name not in known}
        columns = dataclasses.asdict(options.columns).items()
        named = {flag_of(field): name for field, name in columns if field not in self.columns}
        unused = named | unused
        flags = [flag for flag, value in unused.items() if value not in (None, False, ())]
        if flags:
            raise ValueError(
                f"{', '.join(flags)}: without effect for --task={self.name}, which reads {reads}; "
                "leave it out."
            )


_TEXT = (resources.files("bertjax.tasks.sources") / "formats.txt").read_text(encoding="utf-8")
# {task: examples of the formats of its files}, for --help and the documentation.
FORMATS = dict(re.findall(r"^# (\w+)\n(.*?)\s*(?=^# |\Z)", _TEXT, re.MULTILINE | re.DOTALL))


def format_help(task: str) -> str:
    """Returns the formats of the user's files for a task, for --help; "" for official files."""
    return f"Files for --task={task}:\n\n{FORMATS[task]}" if task in FORMATS else ""
