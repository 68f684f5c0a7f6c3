"""The tasks by name; those on the user's own tables (classify, regress, ...) are made here."""

import dataclasses
import functools
import itertools
import operator
import re
import unicodedata
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
from bertjax.tasks.dataset import (
    MULTI_HOT,
    PLACEHOLDERS,
    By,
    Dataset,
    Example,
    Fold,
    whole_or_truth,
)
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.embedding import SIMCSE, ContrastiveTask, DistilledTask, SimilarityTask
from bertjax.tasks.metrics import RELEVANT
from bertjax.tasks.reranking import DISTILLED, RerankTask
from bertjax.tasks.sources import held_out
from bertjax.tasks.sources.columns import KINDS, OwnKind, holds_dates
from bertjax.tasks.sources.conll import CONLL_TASK
from bertjax.tasks.sources.glue import GLUE_TASKS
from bertjax.tasks.sources.own_files import (
    PER_SPLIT,
    OwnDataset,
    count_choices,
    read_tables,
    with_indices,
)
from bertjax.tasks.sources.squad import SQUAD_TASKS
from bertjax.tasks.sources.swag import SWAG_TASK
from bertjax.tasks.sources.tables import read_number, shorten
from bertjax.tasks.tagging import UNLABELLED, TagTask, order_tags
from bertjax.tasks.task import Task

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


def learn_labels(data: Dataset, fold: Fold | None = None) -> tuple[str, ...]:
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
    where = f"{data.path('train')}: "
    splits = [split for split in ("train", "dev") if split == "train" or fold]
    for example in itertools.chain.from_iterable(map(data.examples, splits)):
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
    data = read_tables(
        kind,
        **options.files,
        columns=options.columns,
        label_separator=options.label_separator,
        bad_rows="skip" if options.skip_bad_rows else "refuse",
        can_skip=True,
        single_texts=options.loss == SIMCSE,
    )
    return OWN_KINDS[kind][1](data, options)


def _entity_types(example: Example) -> tuple[str, ...]:
    """Returns "PER" of B-PER and I-PER, or the whole tag where tags mark no entities."""
    tags: Any = example.label
    return tuple(sorted({tag.partition("-")[2] or tag for tag in tags or ()} - {"O", UNLABELLED}))


def _classification(data: OwnDataset, options: TaskOptions) -> Task:
    # Of examples with several labels, by the rarest one.
    by = held_out.BY_RAREST if data.multi_label else held_out.BY_CLASS
    data = held_out.divide(data, options, by)
    data = _without_placeholders(data, options.keep_labels)
    labels = learn_labels(data, options.fold)
    data = data.labelled(labels)
    if not data.multi_label and (separator := _separator_in(labels)):
        print(
            f"warning: labels such as {next(x for x in labels if separator in x)!r} seem to name "
            f"several classes; to predict each of them by itself, give --label_separator "
            f"{separator!r}"
        )
    _warn_of_alike(labels)
    task = MultiLabelTask if data.multi_label else ClassificationTask
    return task(labels=labels, **_fields(data, options))


def _without_placeholders(data: OwnDataset, kept: Sequence[str]) -> OwnDataset:
    """Refuses, or leaves out, the rows whose label marks a missing one, but for those `kept`."""
    splits = sorted({"train", "dev"} & {*data.splits})
    seen = {label for split in splits for x in data.examples(split) for label in _labels(x)}
    missing = {label for label in seen if label.lower() in PLACEHOLDERS}.difference(kept)
    if "+" in seen:
        missing.discard("-")
    numbers = [x for x in map(read_number, seen) if x is not None]
    # Without 0, or beside other negative numbers, -1 is a number as the others.
    if len(numbers) == len(seen) and ("0" not in seen or sorted(numbers)[1] < 0):
        missing.discard("-1")
    for split in splits if missing else ():
        problems = {}
        for example in data.examples(split):
            if found := missing.intersection(_labels(example)):
                problems[example.where] = (
                    f"{example.where}: the label {min(found)!r} usually marks a missing one: "
                    "correct it, or remove the row; if it is the name of a class, give "
                    f"--keep_labels {min(found)}."
                )
        data = data.without(split, problems)
    return data


def _labels(example: Example) -> Sequence[str]:
    label: Any = example.label
    return label if isinstance(label, tuple) else (label,)


def _warn_of_alike(labels: Sequence[str]) -> None:
    if alike := _alike(labels):
        print(f"warning: the labels {' and '.join(map(repr, alike))} are read as different classes")


def _alike(labels: Sequence[str]) -> list[str]:
    """Returns classes that are written in several ways, such as ["1", "1.0"], or [].

    Other ways are other cases, spaces, hyphens, underscores, and forms of Unicode.
    """
    spelt: dict[str, list[str]] = {}
    for name in sorted(labels):
        letters = unicodedata.normalize("NFKC", name).casefold()
        key = whole_or_truth(name) or re.sub(r"[\s_\u200b-\u200f\ufeff-]", "", letters)
        spelt.setdefault(key, []).append(name)
    return next((names for names in spelt.values() if len(names) > 1), [])


def _fields(data: OwnDataset, options: TaskOptions) -> dict[str, Any]:
    pairs, stride = data.columns.pair is not None, options.doc_stride
    return {"name": data.kind, "source": data, "pairs": pairs, "doc_stride": stride}


def _separator_in(labels: Sequence[str]) -> str:
    """Returns the character at which most labels fall into parts that labels share, or ""."""
    for separator in SEPARATORS:
        parts = [part.strip() for label in labels for part in label.split(separator)]
        composed = sum(separator in label for label in labels)
        if composed >= 3 and 2 * len(set(parts)) <= len(parts):
            return separator
    return ""


def _tagging(data: OwnDataset, options: TaskOptions) -> Task:
    data = held_out.divide(data, options, held_out.BY_RAREST._replace(key=_entity_types))
    labels = learn_labels(data, options.fold)
    _warn_of_alike(labels)
    return TagTask.of_labels(labels, name="tag", source=data, doc_stride=options.doc_stride)


def _multiple_choice(data: OwnDataset, options: TaskOptions) -> Task:
    data = held_out.divide(data, options, held_out.AT_RANDOM)  # regardless of labels
    count = count_choices(data)
    return ChoiceTask(name=data.kind, source=with_indices(data), num_choices=count)


def _regression(data: OwnDataset, options: TaskOptions) -> Task:
    """Creates a task whose targets are standardised by mean and deviation of the train split."""
    data = held_out.divide(data, options, held_out.BY_TARGET)
    task = RegressionTask(**_fields(data, options))
    if "train" not in data.splits:
        return task
    targets = np.array([example.label for example in data.examples("train")], np.float64)
    if not targets.size or targets.min() == targets.max():
        mean = float(targets[0]) if targets.size else 0.0
        raise ValueError(
            f"{data.path('train')}: all targets are {mean:g}, so there is nothing to learn. If "
            "another column holds the targets, name it with --label_column."
        )
    with np.errstate(all="ignore"):
        mean, std = float(targets.mean()), float(targets.std())
        exact = np.isfinite(((targets - mean) ** 2).sum()) and std > SMALLEST_STD
    if not exact:
        raise ValueError(
            f"{data.path('train')}: the targets, {targets.min():g} to {targets.max():g}, have a "
            f"standard deviation of {std:g}, which cannot be computed with: give them in another "
            "unit, so that it is between 1e-150 and 1e150."
        )
    print(
        f"targets: {targets.min():,.6g} to {targets.max():,.6g}, mean {mean:,.6g}, standard "
        f"deviation {std:,.6g}; they are standardised in training, and the model predicts their "
        "original scale"
    )
    if thousands := _thousands(data.written_labels("train")):
        print(
            f"warning: the targets that contain a point all have three digits after it, such as "
            f"{thousands}, which is read as the decimal number {float(thousands):g}: if the points "
            "separate thousands, remove them from the file."
        )
    squares = (targets - mean) ** 2
    farthest = int(squares.argmax())
    if targets.size >= FEWEST_COUNTED and squares[farthest] > squares.sum() / 2:
        example = next(itertools.islice(data.examples("train"), farthest, None))
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


def _embedding(data: OwnDataset, options: TaskOptions) -> SimilarityTask | ContrastiveTask:
    scored, loss = data.has_scores("train"), options.loss
    kind = DistilledTask if loss in DistilledTask.objectives else ContrastiveTask
    _check_loss(SimilarityTask if scored else kind, data, options)
    if scored:
        data = held_out.divide(data, options, held_out.BY_TARGET)
    elif loss != SIMCSE:  # without dropout, the texts of a pair are equal
        data = held_out.divide(data, options, _BY_ANCHOR)
    given: dict[str, Any] = {"temperature": 1.0} if loss == "kl" else {}
    given |= {**options.embedding_options, "loss": loss or ""}
    if scored and "dev" in data.splits and not data.has_scores("dev"):
        raise ValueError(
            f"{data.path('dev')} has no scores, but {data.path('train')} has: a model that "
            "learns scores is evaluated by them. Name the column of the scores of both files with "
            "--label_column, or leave --dev out."
        )
    fields: dict[str, Any] = {"name": "embed", "source": data, "scored": data.has_scores("dev")}
    if scored:
        return SimilarityTask(**fields, **given, **_range(data))
    first = next(data.examples("train"), None)
    fields["num_texts"] = 2 + (len(first.choices) if first else 0)
    if fields["scored"]:
        fields["best_metric"] = SimilarityTask.best_metric
    return kind(**fields, **given)


def _check_loss(kind: Any, data: OwnDataset, options: TaskOptions) -> None:
    """Raises ValueError if the loss does not fit the columns, or an option the loss."""
    columns, loss = data.columns, options.loss or kind.objectives[0]
    what = f"scores of pairs ({columns.label!r})" if columns.label else "no scores"
    what += " of a teacher" * (taught := kind is DistilledTask)
    if loss not in kind.objectives or (taught and not columns.scores):
        raise ValueError(
            f"--loss {loss}: {data.path('train')} has {what}: similarity and cosent take scores "
            "of pairs, margin and kl those of a teacher (--score_columns). Choose another."
        )
    unused = {"temperature"} if loss in ("similarity", "margin") else set()
    unused |= set() if kind is ContrastiveTask else {"false_negative_margin"}
    for name in unused & options.embedding_options.keys():
        value = options.embedding_options[name]
        raise ValueError(f"{name}={value} has no effect on --loss {loss}: leave it out.")


def _reranking(data: OwnDataset, options: TaskOptions) -> RerankTask:
    data = held_out.divide(data, options, _BY_QUERY)
    first = next(data.examples("train"), None)
    count, scores = (len(first.choices), first.scores) if first else (0, ())
    loss = options.loss or ("listwise" if count else "binary")
    temperature = options.embedding_options.get("temperature")
    lacks = "negatives (--negative_columns)" if loss != "binary" and not count else ""
    if loss in DISTILLED and not scores:
        lacks = lacks or "a teacher's scores (--score_columns)"
    if lacks:
        raise ValueError(
            f"--loss {loss}: {data.path('train')} lacks {lacks}. binary takes queries, passages "
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
    data = _with_positives(data)
    fields = {"num_texts": 1 + count, "loss": loss, "temperature": temperature or 1.0}
    return RerankTask(name="rerank", source=data, **fields)


def _with_positives(data: OwnDataset) -> OwnDataset:
    """Refuses, or leaves out, the rows of queries without a positive in the train or dev split."""
    for split in sorted({"train", "dev"} & {*data.splits}):
        positive = set()
        for example in data.examples(split):
            if isinstance(example.label, float) and example.label >= RELEVANT:
                positive.add(example.text)
        problems = {}
        for example in data.examples(split):
            if example.text not in positive:
                problems[example.where] = (
                    f"{example.where}: the query {shorten(example.text)} has no positive: give one "
                    "of its passages the label 1, or remove its rows."
                )
        data = data.without(split, problems)
    return data


def _range(data: OwnDataset) -> dict[str, Any]:
    """Returns the lowest and the highest score of the train split, and prints them."""
    scores = [float(example.label) for example in data.examples("train")]  # type: ignore[arg-type]
    lowest, highest = (min(scores), max(scores)) if scores else (0.0, 0.0)
    if scores and lowest == highest:
        raise ValueError(
            f"{data.path('train')}: all scores are {lowest:g}, so there is nothing to learn. If "
            "another column holds the scores, name it with --label_column; to train on the pairs "
            f"as texts that belong together, give --ignore_columns {data.columns.label}."
        )
    if {score for score in scores if score < 0} == {-1.0} and highest > 1:
        raise ValueError(
            f"{data.path('train')}: the scores are from 0 to {highest:g}, but for some that are "
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


_TEXT = operator.attrgetter("text")
_BY_QUERY = By(
    _TEXT, held_out.grouped, held_out.grouped_folds, "all rows with the same query together"
)
_BY_ANCHOR = By(
    _TEXT, _held_out, held_out.grouped_folds, "all pairs with the same first text together"
)

OWN_KINDS: dict[
    OwnKind, tuple[tuple[type[Task], ...], Callable[[OwnDataset, TaskOptions], Task]]
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
