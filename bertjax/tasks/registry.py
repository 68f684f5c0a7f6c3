"""The tasks by name."""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

from bertjax.tasks.classification import ClassificationTask, MultiLabelTask, RegressionTask
from bertjax.tasks.exports import conll_export, glue_export, squad_export
from bertjax.tasks.metrics import METRICS
from bertjax.tasks.multiple_choice import ChoiceTask
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.columns import Columns, CustomKind
from bertjax.tasks.sources.conll import CONLL_LABELS, ConllSource, marks_entities
from bertjax.tasks.sources.custom import CustomSource, learn_labels
from bertjax.tasks.sources.glue import GLUE, GlueSource, GlueSpec
from bertjax.tasks.sources.squad import SquadSource
from bertjax.tasks.sources.swag import SwagSource
from bertjax.tasks.sources.tfds import TfdsSource
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import Source, Task

# What a checkpoint is chosen by, where it is not accuracy.
BEST_METRICS = {
    "cola": "matthews",
    "ax": "matthews",
    "mrpc": "accuracy_f1",
    "qqp": "accuracy_f1",
    "stsb": "pearson_spearman",
    "regress": "pearson_spearman",
    "multi_label": "micro_f1",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Where the data of a task is, and what the user says of it.

    Attributes:
        data_dir: folder of the official files; None: TensorFlow Datasets.
        tfds_data_dir: where TensorFlow Datasets keeps its data.
        train, dev, test: files of the user's own.
        columns: of these files.
        label_separator: between the labels of an example that has several.
        submission: GLUE's zip; None: one beside the predictions.
        span_options: fields of `SpanTask`.
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
        """The user's own files by split."""
        given = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: file for split, file in given.items() if file is not None}


def _official(options: TaskOptions, builder: str, from_files: Callable[[str], Source]) -> Source:
    """The official files where there is a folder of them, else what TFDS has."""
    if options.data_dir is not None:
        return from_files(options.data_dir)
    return TfdsSource(builder, options.tfds_data_dir)


def _glue(spec: GlueSpec, options: TaskOptions) -> Task:
    source = _official(options, f"glue/{spec.name}", functools.partial(GlueSource, spec))
    fields: dict[str, Any] = {
        "name": spec.name,
        "source": source,
        "metric": METRICS[spec.name],
        "best_metric": BEST_METRICS.get(spec.name, "accuracy"),
        "export": glue_export(spec, options.submission),
    }
    if spec.kind == "regression":
        return RegressionTask(**fields)
    return ClassificationTask(labels=spec.labels, **fields)


def _squad(name: str, version: Literal["1.1", "2.0"], options: TaskOptions) -> Task:
    def in_directory(data_dir: str) -> Source:
        return SquadSource.in_directory(data_dir, version)

    return SpanTask(
        name=name,
        source=_official(options, f"squad/v{version}", in_directory),
        with_impossible=version == "2.0",
        export=squad_export,
        **options.span_options,
    )


def _conll(options: TaskOptions) -> Task:
    return TagTask(
        name="conll",
        source=_official(options, "conll2003", ConllSource),
        labels=CONLL_LABELS,
        metric=METRICS["conll"],
        export=conll_export,
    )


def _swag(options: TaskOptions) -> Task:
    if options.data_dir is None:
        raise ValueError("swag has no builder in TensorFlow Datasets: give --data_dir.")
    source = SwagSource(options.data_dir)
    return ChoiceTask(name="swag", source=source, metric=METRICS["swag"], num_choices=4)


def _qa(options: TaskOptions) -> Task:
    if not options.files:
        raise ValueError("--task=qa reads your own files: give --train, --dev or --test.")
    source = SquadSource(options.files)
    with_impossible = any(
        example.label is not None for split in source.splits for example in source.examples(split)
    )
    return SpanTask(
        name="qa",
        source=source,
        with_impossible=with_impossible,
        export=squad_export,
        **options.span_options,
    )


def _custom(kind: CustomKind, options: TaskOptions) -> Task:
    source = CustomSource(
        kind,
        **options.files,
        columns=options.columns,
        label_separator=options.label_separator,
    )
    if source.note:
        print(source.note)
    name = "multi_label" if source.multi_label else kind
    fields: dict[str, Any] = {
        "name": kind,
        "source": source,
        "metric": METRICS[name],
        "best_metric": BEST_METRICS.get(name, "accuracy"),
    }
    if kind == "regress":
        return RegressionTask(**fields)
    if kind == "choice":
        return ChoiceTask(num_choices=source.num_choices, **fields)
    labels = learn_labels(source)
    if kind == "tag":
        if marks_entities(labels):
            fields["best_metric"] = "f1"
        else:
            fields["metric"] = METRICS["tag_words"]
        return TagTask(labels=labels, export=conll_export, **fields)
    task = MultiLabelTask if source.multi_label else ClassificationTask
    return task(labels=labels, **fields)


TASKS: Mapping[str, Callable[[TaskOptions], Task]] = {
    **{name: functools.partial(_glue, spec) for name, spec in GLUE.items()},
    "squad": functools.partial(_squad, "squad", "1.1"),
    "squad2": functools.partial(_squad, "squad2", "2.0"),
    "swag": _swag,
    "conll": _conll,
    "classify": functools.partial(_custom, "classify"),
    "regress": functools.partial(_custom, "regress"),
    "tag": functools.partial(_custom, "tag"),
    "qa": _qa,
    "choice": functools.partial(_custom, "choice"),
}
# Those of them on files of the user's own.
CUSTOM = ("classify", "regress", "tag", "qa", "choice")
# Those that answer questions.
SPAN_TASKS = ("squad", "squad2", "qa")
# The columns that each of them reads.
_READS = {
    "classify": ("text", "pair", "label", "id"),
    "regress": ("text", "pair", "label", "id"),
    "tag": ("text", "label", "id"),
    "choice": ("text", "pair", "label", "id", "choices"),
}


def check_task(name: str) -> None:
    """Refuses the name of a task that there is not.

    Raises:
        ValueError: with the nearest name.
    """
    if not name:
        raise ValueError(f"No task: give --task, one of {', '.join(TASKS)}.")
    if name not in TASKS:
        nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown task {name!r}. Did you mean {nearest!r}? Known: {', '.join(TASKS)}."
        )


def make_task(name: str, options: TaskOptions) -> Task:
    """The task of a name, with its data.

    Raises:
        ValueError: there is none of that name, or the options do not suit it.
        FileNotFoundError: its data is not there.
    """
    check_task(name)
    if options.submission and name not in GLUE:
        raise ValueError(f"--submission={options.submission}: {name} is no task of GLUE.")
    own, official = options.files, options.data_dir or options.tfds_data_dir
    if own and name not in CUSTOM:
        raise ValueError(
            f"--task={name} reads its official files, but --{next(iter(own))} was given: use "
            f"--data_dir, or one of --task={'|'.join(CUSTOM)} for files of your own."
        )
    if official and name in CUSTOM:
        raise ValueError(f"--task={name} reads your own files: give --train instead of {official}.")
    _refuse_idle(name, options)
    return TASKS[name](options)


def _refuse_idle(name: str, options: TaskOptions) -> None:
    """Refuses options that would be without effect."""
    columns = dataclasses.asdict(options.columns)
    names = {"choices": "--choice_columns"}
    idle = [
        names.get(key, f"--{key}_column")
        for key, value in columns.items()
        if value and key not in _READS.get(name, ())
    ]
    if options.label_separator is not None and name != "classify":
        idle.append("--label_separator")
    if name not in SPAN_TASKS:
        idle += [f"--{key}" for key in options.span_options]
    if idle:
        raise ValueError(f"{', '.join(idle)}: without effect for --task={name}; leave it out.")
