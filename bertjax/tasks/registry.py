"""The tasks by name; those on the user's own tables (classify, regress, ...) are made here."""

import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.files import brief, did_you_mean
from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
)
from bertjax.tasks.definition import Fold, TaskDefinition, TaskOptions
from bertjax.tasks.embedding import SIMCSE, ContrastiveTask, DistilledTask, SimilarityTask
from bertjax.tasks.metrics import RELEVANT
from bertjax.tasks.reranking import DISTILLED, RerankTask
from bertjax.tasks.sources import held_out
from bertjax.tasks.sources.columns import KINDS, OwnKind, holds_dates
from bertjax.tasks.sources.conll import CONLL_TASK
from bertjax.tasks.sources.glue import GLUE_TASKS
from bertjax.tasks.sources.own_files import (
    MULTI_HOT,
    PER_SPLIT,
    PLACEHOLDERS,
    KnownClasses,
    TableSource,
)
from bertjax.tasks.sources.rows import shorten
from bertjax.tasks.sources.squad import SQUAD_TASKS
from bertjax.tasks.sources.swag import SWAG_TASK
from bertjax.tasks.sources.tables import read_number
from bertjax.tasks.tagging import UNLABELLED, TagTask, order_tags
from bertjax.tasks.task import Example, Task

# Number of examples from which labels and targets are compared with what is usual.
FEWEST_COUNTED = 50
# Number of labels from which labels such as 0.36 and 4.62 are refused: ratings have fewer values.
MOST_DECIMALS = 20
SEPARATORS = "|;,"
# Numbers whose point may separate thousands: 24.827, but not 0.827 or 1250.827.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
# Below it, the squares of differences underflow.
SMALLEST_STD = 1e-150
# A column with more different labels most likely holds numbers or texts instead.
MAX_LABELS = 1000
# The most pairs that are held out if there is no dev file: each is compared with all others.
MOST_HELD_OUT = 10_000
_LABEL = operator.attrgetter("label")


def learn_labels(source: TableSource, fold: Fold | None = None) -> tuple[str, ...]:
    """Returns the distinct labels of the train split in the order of their class ids.

    Numbers are sorted by value, tags by `order_tags`, and other labels alphabetically. Those of the
    held-out `fold` of a cross-validation are included, so that the models of all folds have the
    same classes.

    Raises:
        ValueError: there are fewer than two different labels, more than `MAX_LABELS`, or, in
            classification with one label per example, almost as many labels as examples or many
            numbers with decimals.
    """
    seen: set[str] = set()
    sizes: set[int] = set()
    count = 0
    tags = several = False
    where = f"{source.path('train')}: "
    splits = [split for split in ("train", "dev") if split == "train" or fold]
    for example in itertools.chain.from_iterable(map(source.examples, splits)):
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
    if len(seen - {UNLABELLED}) < 2:
        only = f"only the label {brief(min(seen))!r}" if seen else "no labels"
        raise ValueError(
            f"{where}The training data has {only}: a classifier needs at least two different "
            "labels. If another column holds the labels, name it with --label_column."
        )
    if tags:
        return order_tags(seen - {UNLABELLED})
    if several and seen <= MULTI_HOT and len(sizes) == 1 and max(sizes) > 1:
        raise ValueError(
            f"{where}Every list of labels has {max(sizes)} values, and all are 0 or 1: they seem "
            'to be multi-hot. Write the names of the labels instead, such as ["good", "short"], '
            "and [] for none."
        )
    if len(seen) > MOST_DECIMALS and holds_dates([*seen]):
        raise ValueError(
            f"{where}the {len(seen):,} different labels are dates or times, such as {min(seen)!r}: "
            "name the column that holds the labels with --label_column."
        )
    numbers = {label: read_number(label) for label in seen}
    known = [number for number in numbers.values() if number is not None]
    measured = len(known) == len(seen) > MOST_DECIMALS and any(number % 1 for number in known)
    rare = count >= FEWEST_COUNTED and 10 * len(seen) > 9 * count
    if (rare or measured) and not several:
        raise ValueError(
            f"{where}{len(seen):,} different labels in {count:,} examples, such as "
            f"{brief(min(seen), 60)!r}. If the labels are numbers, use --task=regress; if another "
            "column holds the labels, name it with --label_column."
        )
    if len(known) < len(seen):
        return tuple(sorted(seen))
    return tuple(sorted(seen, key=lambda label: (numbers[label], label)))


def _make(kind: OwnKind, options: TaskOptions) -> Task:
    if kind in PER_SPLIT and not options.train:
        raise ValueError(f"--task={kind} trains on your own files: give --train.")
    source = TableSource(
        kind,
        **options.files,
        columns=options.columns,
        label_separator=options.label_separator,
        bad_rows="skip" if options.skip_bad_rows else "refuse",
        single_texts=options.loss == SIMCSE,
    )
    source.can_skip = True
    return OWN_KINDS[kind][1](source, options)


def _entity_types(example: Example) -> tuple[str, ...]:
    """Returns "PER" of B-PER and I-PER, or the whole tag where tags mark no entities."""
    tags: Any = example.label
    return tuple(sorted({tag.partition("-")[2] or tag for tag in tags or ()} - {"O", UNLABELLED}))


def _classification(source: TableSource, options: TaskOptions) -> Task:
    # Of examples with several labels, by the rarest one.
    choice = held_out.BY_RAREST if source.multi_label else held_out.BY_CLASS
    held_out.divide(source, options, choice, _LABEL)
    _refuse_placeholders(source, options.keep_labels)
    labels = learn_labels(source, options.fold)
    source.use_classes(labels)
    if not source.multi_label and (separator := _separator_in(labels)):
        print(
            f"warning: labels such as {next(x for x in labels if separator in x)!r} seem to name "
            f"several classes; to predict each of them by itself, give --label_separator "
            f"{separator!r}"
        )
    _warn_of_alike(labels)
    task = MultiLabelTask if source.multi_label else ClassificationTask
    return task(labels=labels, **_fields(source, options))


def _refuse_placeholders(source: TableSource, kept: Sequence[str]) -> None:
    """Refuses, or leaves out, the rows whose label marks a missing one, but for those `kept`."""
    splits = sorted({"train", "dev"} & {*source.splits})
    seen = {label for split in splits for x in source.examples(split) for label in _labels(x)}
    missing = {label for label in seen if label.lower() in PLACEHOLDERS}.difference(kept)
    if "+" in seen:
        missing.discard("-")
    numbers = [x for x in map(read_number, seen) if x is not None]
    # Without 0, or beside other negative numbers, -1 is a number as the others.
    if len(numbers) == len(seen) and ("0" not in seen or sorted(numbers)[1] < 0):
        missing.discard("-1")
    for split in splits if missing else ():
        problems = []
        for example in source.examples(split):
            if found := missing.intersection(_labels(example)):
                problem = (
                    f"{example.where}: the label {min(found)!r} usually marks a missing one: "
                    "correct it, or remove the row; if it is the name of a class, give "
                    f"--keep_labels {min(found)}."
                )
                if not source.leave_out(split, example, problem):
                    problems.append(problem)
        source.refuse(split, problems)


def _labels(example: Example) -> Sequence[str]:
    label: Any = example.label
    return label if isinstance(label, tuple) else (label,)


def _warn_of_alike(labels: Sequence[str]) -> None:
    if alike := KnownClasses(labels).alike():
        print(f"warning: the labels {' and '.join(map(repr, alike))} are read as different classes")


def _fields(source: TableSource, options: TaskOptions) -> dict[str, Any]:
    pairs, stride = source.columns.pair is not None, options.doc_stride
    return {"name": source.kind, "source": source, "pairs": pairs, "doc_stride": stride}


def _separator_in(labels: Sequence[str]) -> str:
    """Returns the character at which most labels fall into parts that labels share, or ""."""
    for separator in SEPARATORS:
        parts = [part.strip() for label in labels for part in label.split(separator)]
        composed = sum(separator in label for label in labels)
        if composed >= 3 and 2 * len(set(parts)) <= len(parts):
            return separator
    return ""


def _tagging(source: TableSource, options: TaskOptions) -> Task:
    held_out.divide(source, options, held_out.BY_RAREST, _entity_types)
    labels = learn_labels(source, options.fold)
    _warn_of_alike(labels)
    return TagTask.of_labels(labels, name="tag", source=source, doc_stride=options.doc_stride)


def _multiple_choice(source: TableSource, options: TaskOptions) -> Task:
    held_out.divide(source, options, held_out.AT_RANDOM, lambda _: None)  # regardless of labels
    count = source.num_choices
    next(source.examples(source.splits[0]), None)  # refuses labels that do not tell the choice
    return ChoiceTask(name=source.kind, source=source, num_choices=count)


def _regression(source: TableSource, options: TaskOptions) -> Task:
    """Creates a task whose targets are standardised by mean and deviation of the train split."""
    held_out.divide(source, options, held_out.BY_TARGET, _LABEL)
    task = RegressionTask(**_fields(source, options))
    if "train" not in source.splits:
        return task
    targets = np.array([example.label for example in source.examples("train")], np.float64)
    if not targets.size or targets.min() == targets.max():
        mean = float(targets[0]) if targets.size else 0.0
        raise ValueError(
            f"{source.path('train')}: all targets are {mean:g}, so there is nothing to learn. If "
            "another column holds the targets, name it with --label_column."
        )
    with np.errstate(all="ignore"):
        mean, std = float(targets.mean()), float(targets.std())
        exact = np.isfinite(((targets - mean) ** 2).sum()) and std > SMALLEST_STD
    if not exact:
        raise ValueError(
            f"{source.path('train')}: the targets, {targets.min():g} to {targets.max():g}, have a "
            f"standard deviation of {std:g}, which cannot be computed with: give them in another "
            "unit, so that it is between 1e-150 and 1e150."
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
    """Returns the first label whose point may separate thousands, such as 24.827; else "".

    It may if all points are followed by three digits, unless all labels look like decimals that
    are written with three digits.
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


def _embedding(source: TableSource, options: TaskOptions) -> SimilarityTask | ContrastiveTask:
    scored, loss = source.has_scores("train"), options.loss
    kind = DistilledTask if loss in DistilledTask.objectives else ContrastiveTask
    _check_loss(SimilarityTask if scored else kind, source, options)
    if scored:
        held_out.divide(source, options, held_out.BY_TARGET, _LABEL)
    elif loss != SIMCSE:  # without dropout, the texts of a pair are equal
        held_out.divide(source, options, _BY_ANCHOR, lambda example: example.text)
    given: dict[str, Any] = {"temperature": 1.0} if loss == "kl" else {}
    given |= {**options.embedding_options, "loss": loss or ""}
    if scored and "dev" in source.splits and not source.has_scores("dev"):
        raise ValueError(
            f"{source.path('dev')} has no scores, but {source.path('train')} has: a model that "
            "learns scores is evaluated by them. Name the column of the scores of both files with "
            "--label_column, or leave --dev out."
        )
    fields: dict[str, Any] = {"name": "embed", "source": source, "scored": source.has_scores("dev")}
    if scored:
        return SimilarityTask(**fields, **given, **_range(source))
    first = next(source.examples("train"), None)
    fields["num_texts"] = 2 + (len(first.choices) if first else 0)
    if fields["scored"]:
        fields["best_metric"] = SimilarityTask.best_metric
    return kind(**fields, **given)


def _check_loss(kind: Any, source: TableSource, options: TaskOptions) -> None:
    """Raises ValueError if the loss does not fit the columns, or an option the loss."""
    columns, loss = source.columns, options.loss or kind.objectives[0]
    what = f"scores of pairs ({columns.label!r})" if columns.label else "no scores"
    what += " of a teacher" * (taught := kind is DistilledTask)
    if loss not in kind.objectives or (taught and not columns.scores):
        raise ValueError(
            f"--loss {loss}: {source.path('train')} has {what}: similarity and cosent take scores "
            "of pairs, margin and kl those of a teacher (--score_columns). Choose another."
        )
    unused = {"temperature"} if loss in ("similarity", "margin") else set()
    unused |= set() if kind is ContrastiveTask else {"false_negative_margin"}
    for name in unused & options.embedding_options.keys():
        value = options.embedding_options[name]
        raise ValueError(f"{name}={value} has no effect on --loss {loss}: leave it out.")


def _reranking(source: TableSource, options: TaskOptions) -> RerankTask:
    held_out.divide(source, options, _BY_QUERY, lambda example: example.text)
    first = next(source.examples("train"), None)
    count, scores = (len(first.choices), first.scores) if first else (0, ())
    loss = options.loss or ("listwise" if count else "binary")
    temperature = options.embedding_options.get("temperature")
    lacks = "negatives (--negative_columns)" if loss != "binary" and not count else ""
    if loss in DISTILLED and not scores:
        lacks = lacks or "a teacher's scores (--score_columns)"
    if lacks:
        raise ValueError(
            f"--loss {loss}: {source.path('train')} lacks {lacks}. binary takes queries, passages "
            "and labels; listwise queries, positives and negatives; margin and kl also a teacher's "
            "scores. Choose another."
        )
    used = {"score_columns": loss in DISTILLED, "temperature": loss == "kl"}
    for name, value in {
        "score_columns": options.columns.scores,
        "temperature": temperature,
    }.items():
        if value and not used[name]:
            raise ValueError(f"{name}={value} has no effect on --loss {loss}: leave it out.")
    _check_positives(source)
    fields = {"num_texts": 1 + count, "loss": loss, "temperature": temperature or 1.0}
    return RerankTask(name="rerank", source=source, **fields)


def _check_positives(source: TableSource) -> None:
    """Refuses, or leaves out, the rows of queries without a positive in the train or dev split."""
    for split in sorted({"train", "dev"} & {*source.splits}):
        labels = ((example.text, example.label) for example in source.examples(split))
        found = {text for text, label in labels if isinstance(label, float) and label >= RELEVANT}
        problems: dict[str, str] = {}
        for example in source.examples(split):
            if example.text not in found:
                problem = (
                    f"{example.where}: the query {shorten(example.text)} has no positive: give one "
                    "of its passages the label 1, or remove its rows."
                )
                if not source.leave_out(split, example, problem):
                    problems.setdefault(example.text, problem)
        source.refuse(split, [*problems.values()])


def _range(source: TableSource) -> dict[str, Any]:
    """Returns the lowest and the highest score of the train split, and prints them."""
    scores = [float(example.label) for example in source.examples("train")]  # type: ignore[arg-type]
    lowest, highest = (min(scores), max(scores)) if scores else (0.0, 0.0)
    if scores and lowest == highest:
        raise ValueError(
            f"{source.path('train')}: all scores are {lowest:g}, so there is nothing to learn. If "
            "another column holds the scores, name it with --label_column; to train on the pairs "
            f"as texts that belong together, give --ignore_columns {source.columns.label}."
        )
    if {score for score in scores if score < 0} == {-1.0} and highest > 1:
        raise ValueError(
            f"{source.path('train')}: the scores are from 0 to {highest:g}, but for some that are "
            "-1, which marks missing ones: remove their rows, or add 1 to all scores."
        )
    print(
        f"scores: {lowest:g} to {highest:g}; the model learns cosines of 0 for {lowest:g} and of 1 "
        f"for {highest:g}"
    )
    return {"lowest": lowest, "highest": highest if scores else 1.0}


def _held_out(anchors: Sequence[Any], fraction: float) -> frozenset[int]:
    """Chooses all examples of some anchors, about `fraction` of them, or `MOST_HELD_OUT`."""
    return held_out.grouped(anchors, min(fraction, MOST_HELD_OUT / max(len(anchors), 1)))


_BY_QUERY = held_out.Choice(
    held_out.grouped, held_out.grouped_folds, "all rows with the same query together"
)
_BY_ANCHOR = held_out.Choice(
    _held_out, held_out.grouped_folds, "all pairs with the same first text together"
)

OWN_KINDS: dict[
    OwnKind, tuple[tuple[type[Task], ...], Callable[[TableSource, TaskOptions], Task]]
] = {
    "classify": ((ClassificationTask, MultiLabelTask), _classification),
    "regress": ((RegressionTask,), _regression),
    "tag": ((TagTask,), _tagging),
    "choice": ((ChoiceTask,), _multiple_choice),
    "embed": ((ContrastiveTask, SimilarityTask, DistilledTask), _embedding),
    "rerank": ((RerankTask,), _reranking),
}


def kind_of(task: Task) -> OwnKind:
    """Returns the kind of `task`, a task on own files."""
    return next(kind for kind, (tasks, _) in OWN_KINDS.items() if isinstance(task, tasks))


OWN_TASKS = tuple(
    TaskDefinition(
        name=kind,
        kinds=tasks,
        make=functools.partial(_make, kind),
        own_files=True,
        columns=(*KINDS[kind].fields, "ignored"),
        losses=sum((getattr(task, "objectives", ()) for task in tasks), ()),
        label_separator=kind == "classify",
    )
    for kind, (tasks, _) in OWN_KINDS.items()
)
TASKS: Mapping[str, TaskDefinition] = {
    task.name: task for task in (*GLUE_TASKS, *SQUAD_TASKS, SWAG_TASK, CONLL_TASK, *OWN_TASKS)
}


def check_task(name: str, *others: str) -> str:
    """Checks that `name` is a task, or in `others`; returns it in lower case.

    Raises:
        ValueError: there is no such task; the message suggests the nearest name.
    """
    known = (*TASKS, *others)
    if not name:
        own = [task for task in TASKS if TASKS[task].own_files]
        rest = [task for task in known if task not in own]
        raise ValueError(
            f"No task is set: give --task, for files of your own one of {', '.join(own)}, and else "
            f"the name of a benchmark, {', '.join(rest)}."
        )
    if name.lower() not in known:
        hint = did_you_mean(name, known)
        raise ValueError(f"Unknown task {name!r}. {hint}Known: {', '.join(known)}.")
    return name.lower()


def make_task(name: str, options: TaskOptions) -> Task:
    """Creates the task named `name`, with the source of its examples, from the user's options.

    Raises:
        ValueError: no task is named `name`, or the task does not accept an option that is set.
        FileNotFoundError: the data of the task does not exist.
    """
    name = check_task(name)
    TASKS[name].check(options)
    files = {split: Path(path).resolve() for split, path in options.files.items()}
    if "train" in files and files["train"] == files.get("dev"):
        print(
            f"warning: {options.dev} is both --train and --dev, so the scores do not tell how well "
            "other texts are predicted: leave --dev out to hold out a part of --train."
        )
    return TASKS[name].make(options)
