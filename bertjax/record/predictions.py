"""Summarises the predictions for a labelled split: what `report.html` shows beside the curves.

While the predictions pass by, `PredictionSummary` counts how often they are right at which
confidence, and keeps the most confident mistakes with their texts. The result is written to
`predictions/SPLIT.summary.json`, so that a report can be made while the run goes on, and after it.
"""

import csv
import dataclasses
import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from bertjax.base import printable
from bertjax.base.files import (
    brief,
    counted,
    did_you_mean,
    read_json,
    read_json_or_empty,
    write_json,
    writing,
)
from bertjax.config import FinetuneConfig
from bertjax.config.finetune_config import LAST
from bertjax.inference.output_files import without_formula
from bertjax.record.labels import held_out_label, label
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.dataset import Dataset
from bertjax.tasks.metrics import entities, higher_is_better, is_fraction, normalize_answer
from bertjax.tasks.sources.own_files import OwnDataset
from bertjax.tasks.sources.tables import COMMA_SEPARATED, csv_form
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import Observer

Scores = Mapping[str, Mapping[str, float]]


def splits_of(task: Task, kind: str) -> list[str]:
    """Returns the names of all dev splits (`kind` "dev") or test splits ("test") of a task."""
    if task.source is None:
        return []
    return [split for split in task.source.splits if split.split("_")[0] == kind]


def split_prefix(split: str) -> str:
    """Returns the prefix of a dev split's metric names: "mismatched_" for "dev_mismatched".

    The prefix of the split "dev" is empty.
    """
    if split == "dev":
        return ""
    return split.removeprefix("dev_") + "_"


def split_label(split: str) -> str:
    """Returns what printed tables call a split: "held-out", "held-out (mismatched)" or "test"."""
    kind, _, name = split.partition("_")
    label = "held-out" if kind == "dev" else kind
    if name:
        label += f" ({name})"
    return label


def score_label(key: str) -> str:
    """Returns what printed tables call a score: "held-out macro F1" for "dev/macro_f1"."""
    split, _, metric = key.partition("/")
    return f"{split_label(split)} {label(metric)}"


def best_metric(task: Task) -> str:
    """Returns the dev metric that selects the best checkpoint, such as "matched_accuracy"."""
    dev = splits_of(task, "dev")
    if not dev:
        return task.best_metric
    return split_prefix(dev[0]) + task.best_metric


def grading_metric(task: Task) -> str | None:
    """Returns the score that compares runs, such as "dev/accuracy"; None without a dev split."""
    dev = splits_of(task, "dev")
    if dev:
        return f"{dev[0]}/{task.best_metric}"
    return None


def selected_by(task: Task, metric: str | None, others: Sequence[str] = ()) -> Task:
    """Returns a copy of the task in which the dev metric `metric` selects the best checkpoint.

    It is a metric of the task or one of `others`. None, and "last", which selects the last step,
    change nothing.

    Raises:
        ValueError: the task does not have this metric, or has no dev split.
    """
    if metric in (None, LAST):
        return task
    if metric not in (names := [*task.metric_names(), *others]):
        raise ValueError(
            f"--select_by {metric}: {task.name} has no such metric. "
            f"{did_you_mean(metric, names)}Choose one of {', '.join(names)}."
        )
    if not splits_of(task, "dev"):
        raise ValueError(f"--select_by {metric} needs a dev split: give --dev.")
    return dataclasses.replace(task, best_metric=metric)


def best_run(scores: Scores, metric: str | None) -> str:
    """Returns the first of the runs, {name: scores}, whose score `metric` is the best.

    The lowest loss or error is the best, and the highest of other scores.
    """
    sign = -1
    if metric is None or higher_is_better(metric):
        sign = 1
    return max(scores, key=lambda name: sign * scores[name].get(metric or "", 0.0))


# The keys of the intervals, and of the scores of baselines and of classes, in scores.json and in
# other files.
INTERVALS = "intervals"
BASELINES = "baselines"
BY_CLASS = "by_class"
# {score: (low, high)}, with the keys of the scores.
Intervals = Mapping[str, Sequence[float]]


def read_scores(path: Path) -> dict[str, float]:
    """Reads the scores of a run from its scores.json, without intervals, baselines and classes."""
    scores = read_json(path)
    for key in (INTERVALS, BASELINES, BY_CLASS):
        scores.pop(key, None)
    return scores


def read_intervals(path: Path) -> dict[str, Any]:
    """Reads the intervals of the scores of a run from its scores.json; {} if it has none."""
    return read_json_or_empty(path).get(INTERVALS, {})


def print_scores(
    scores: Scores,
    task: Task,
    best: str | None = None,
    intervals: Mapping[str, Intervals] | None = None,
    of_mean: Mapping[str, Intervals] | None = None,
) -> None:
    """Prints a table with the scores of each run on `task`.

    For several runs, it has the scores that all have, means and standard deviations, and the name
    of the `best` one follows. `intervals` are those of the scores of each run, and `of_mean` those
    of the means, by what they cover.
    """
    names = []
    if scores:
        names = sorted(set.intersection(*map(set, scores.values())))
    intervals = intervals or {}
    of_mean = of_mean or {}
    if not names:
        return
    if len(scores) == 1:
        ((name, run),) = scores.items()
        of_run = intervals.get(name, {})
        table = Table("metric", "score", title=task.name)
        if of_run:
            table.add_column("95 % interval")
        for key in names:
            cells = [score_label(key), shown_score(key, run[key])]
            if of_run:
                cells.append(shown_interval(key, of_run))
            table.add_row(*cells)
        printable.console(width=80).print(table)
        return
    table = Table("", *map(score_label, names), title=task.name)
    values = []  # [runs, names]
    for name, run in scores.items():
        of_run = intervals.get(name, {})
        cells = []
        for key in names:
            cell = f"{shown_score(key, run[key])}\n{shown_interval(key, of_run)}"
            cells.append(cell.rstrip())
        table.add_row(name, *cells)
        values.append([run[key] for key in names])
    table.add_section()
    means = np.mean(values, axis=0)
    deviations = np.std(values, axis=0, ddof=1)
    table.add_row("mean", *map(shown_score, names, means))
    table.add_row("std", *map(shown_score, names, deviations))
    for covered, of_names in of_mean.items():
        cells = [shown_interval(key, of_names) for key in names]
        table.add_row(f"95 %: {covered}", *cells)
    printable.console(width=max(80, 24 * (len(names) + 1))).print(table)
    if of_mean:
        meanings = [COVERED[covered] for covered in of_mean]
        print(f"95 % intervals of the mean cover {'; '.join(meanings)}")
    metric = grading_metric(task)
    if best is not None and metric is not None and metric in names:
        print(f"best by {score_label(metric)}: {best}")


# What an interval of the mean of several runs covers.
COVERED = {
    "rows": "rows: other rows of the same kind, predicted by these models",
    "seeds": "seeds: other models of the same data, on these rows",
    "both": "both: other models on other rows",
}


def shown_interval(key: str, intervals: Intervals) -> str:
    """Returns "90.12 to 93.45" for the interval of a score, or ""."""
    if key not in intervals:
        return ""
    bounds = []
    for bound in intervals[key]:
        bounds.append(shown_score(key, bound).removesuffix(" %"))
    return " to ".join(bounds)


def shown_score(key: str, value: float) -> str:
    """Returns "91.00 %" for a score of .91, and other numbers with four digits."""
    if is_fraction(key):
        return f"{100 * value:.2f} %"
    if abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:,.0f}"


def model_facts(config: FinetuneConfig, updates: int, features: int) -> dict[str, Any]:
    """Returns {name: value} for the model card of a fine-tuned model.

    `updates` counts the updates of the exported parameters, `features` the encoded training
    examples.
    """
    facts: dict[str, Any] = {"task": config.task, "started from": config.init}
    if config.tagger is not None:
        facts["trained"] = f"the {config.tagger.kind} tagger alone"
    if config.teacher is not None:
        facts["taught by"] = config.teacher.model
    return facts | {
        "training features": f"{features:,}",
        "updates": f"{updates:,} of {config.batch_size} features",
        "learning rate": f"{config.optimizer.learning_rate:g}",
        "seed": config.seed,
    }


# Of checkpoints that are equally good by the metric that selects them, the one with the lowest
# value of this metric is the best, or else the last.
TIE_BREAKER = "eval/loss"


def best_in_words(values: Mapping[int, float], step: int, metric: str) -> str:
    """Says which checkpoint is the best, and how many of {step: value} are as good as its own."""
    name = held_out_label(metric)
    count = [*values.values()].count(values.get(step, math.nan))
    if count < 2:
        return f"the one of step {step}, which has the best {name}"
    return f"the one of step {step}, one of {count} evaluations with the best {name}"


WIDTH = 80
LONGEST_NAME = 100
# Numbers of classes and of confusions that are printed; the files contain all of them.
MOST_CLASSES = 40
PRINTED_CONFUSIONS = 15


class ClassScores(NamedTuple):
    """Precision, recall and F1 of a class or entity type, as fractions; 0 if the denominator is 0.

    `support` is the number of labelled examples or entities.
    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int


class ClassReport(Observer):
    """Counts the right and wrong predictions of the labelled examples of a split.

    Tasks with one class per example have a confusion matrix and scores per class, tasks with
    several labels per example have scores per label, and the tagging of entities has scores per
    entity type. For other tasks, nothing is counted, and the report is false as a bool.
    """

    def __init__(self, task: Task):
        self._task = task
        # (label, predicted label) -> number of examples.
        self.confusion: Counter[tuple[str, str]] = Counter()
        self._right: Counter[str] = Counter()
        self._labels: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()

    def add(self, example: Example, prediction: Prediction) -> None:
        if example.label is None:
            return
        task = self._task
        kind = task.label_kind
        label = task.scored_label(example.label, prediction)
        if kind in ("classes", "distribution"):
            gold = str(label)
            answer = prediction["label"]
            self.confusion[gold, answer] += 1
            self._count([(gold,)], [(answer,)])
        elif kind == "multi_label":
            self._count([(name,) for name in label], [(name,) for name in prediction["labels"]])
        elif isinstance(task, TagTask) and task.marks_entities:
            golds, answers = task.scored_tags(example, prediction)
            self._count(entities(golds), entities(answers), example.cut)

    def _count(
        self, labels: list[tuple], predicted: list[tuple], cut: Collection[int] = ()
    ) -> None:
        """Counts tuples by their last element, a class or entity type, and those in both lists."""
        self._labels.update(entry[-1] for entry in labels)
        self._predicted.update(entry[-1] for entry in predicted)
        right = set(labels) & set(predicted)
        self._right.update(entry[-1] for entry in right if entry[0] not in cut)

    def __bool__(self) -> bool:
        return bool(self._labels)

    def scores(self) -> list[ClassScores]:
        """Returns the scores of the classes in the task's order, or of entity types by name."""
        names: list[str] = []
        if self._task.label_kind in CLASS_KINDS and not isinstance(self._task, TagTask):
            names = list(self._task.labels)
        names += sorted({*self._labels, *self._predicted}.difference(names))
        rows = []
        for name in names:
            right = self._right[name]
            support = self._labels[name]
            predicted = self._predicted[name]
            precision = right / max(predicted, 1)
            recall = right / max(support, 1)
            f1 = 2 * right / max(support + predicted, 1)
            rows.append(ClassScores(name, precision, recall, f1, support))
        return rows

    def print(self, title: str) -> None:
        """Prints the scores and, for classes, the confusion matrix.

        A matrix wider than `WIDTH` characters is replaced by the most frequent wrong predictions.
        """
        rows = self.scores()
        console = printable.console(width=WIDTH)
        kind, *_ = CLASS_KINDS.get(self._task.label_kind, "").split(" ")
        table = _table((kind,), ("precision", "recall", "F1", "support"), title)
        rest = len(rows) - MOST_CLASSES
        if rest > 0:
            table.caption = _rest(rest)
            rows = sorted(rows, key=lambda row: -row.support)[:MOST_CLASSES]
        for row in rows:
            scores = [f"{100 * x:.2f}" for x in (row.precision, row.recall, row.f1)]
            if not row.support and not self._predicted[row.name]:
                scores = ["-", "-", "-"]  # the class is no part of the macro average
            table.add_row(_name(row.name), *scores, f"{row.support:,}")
        console.print(table)
        if self.confusion:
            self._print_confusion(console, title)

    def _print_confusion(self, console: Console, title: str) -> None:
        table = self._matrix(title)
        if printable.console(width=10_000).measure(table).maximum > WIDTH:
            table = self._confusions(title)
        if table.row_count:
            console.print(table)
        else:
            console.print(f"{title}: no wrong prediction")

    def _matrix(self, title: str) -> Table:
        names = self._task.labels
        table = Table("label, predicted:", *map(_name, names), title=title)
        for gold in names:
            counts = [f"{self.confusion[gold, answer]:,}" for answer in names]
            table.add_row(_name(gold), *counts)
        return table

    def _confusions(self, title: str) -> Table:
        wrong = confusions(self.confusion)
        table = _table(("label", "predicted"), ("examples",), f"{title}: confusions")
        if len(wrong) > PRINTED_CONFUSIONS:
            table.caption = _rest(len(wrong) - PRINTED_CONFUSIONS)
        for gold, answer, count in wrong[:PRINTED_CONFUSIONS]:
            table.add_row(_name(gold), _name(answer), f"{count:,}")
        return table

    def write(self, folder: Path, split: str) -> None:
        """Writes SPLIT.report.json and, for tasks with one class per example, SPLIT.confusion.csv.

        The rows of the confusion matrix are labels, and its columns predictions. A label that a
        spreadsheet would take as a formula gets a ' in front there; numbers, such as -1, do not.
        """
        scores = [row._asdict() for row in self.scores()]
        write_json(folder / f"{split}.report.json", scores)
        if not self.confusion:
            return
        names = self._task.labels
        path = folder / f"{split}.confusion.csv"
        rows: list[list[Any]] = [["label", *map(_cell, names)]]
        for gold in names:
            rows.append([_cell(gold), *[self.confusion[gold, name] for name in names]])
        _write_csv(path, rows, self._task.source)


def _write_csv(path: Path, rows: Iterable[Sequence[Any]], data: Dataset | None) -> None:
    """Writes rows to a CSV file, as the first file of `data` is written, if it is one."""
    form = COMMA_SEPARATED
    if data is not None:
        form = csv_form(next(iter(data.files.values()), ""))
    with writing(path) as temporary:
        with temporary.open("x", encoding=form.encoding, newline="") as file:
            csv.writer(file, delimiter=form.delimiter).writerows(rows)


# The metrics of a label that an example has or has not.
DIAGNOSTICS = ("sensitivity", "specificity", "auroc")


def diagnostic_cells(row: Mapping[str, Any]) -> list[str]:
    """Returns texts such as "91.00 % (85.20 to 94.10)" for `DIAGNOSTICS`; "–" without a value."""
    cells = []
    for metric in DIAGNOSTICS:
        interval = shown_interval(metric, row.get(INTERVALS, {}))
        cell = "–"
        if metric in row:
            cell = shown_score(metric, row[metric])
        cells.append(f"{cell} ({interval})" if interval else cell)
    return cells


def _cell(name: str) -> str:
    if name.lstrip("+-").isdecimal():
        return name
    return without_formula(name)


def _name(label: str) -> str:
    return brief(label, LONGEST_NAME)


def _table(texts: Sequence[str], numbers: Sequence[str], title: str) -> Table:
    table = Table(title=title)
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def _rest(count: int) -> str:
    return f"and {count} more in the files of the predictions"


SUFFIX = ".summary.json"
# The examples of the first mistakes, which a report may attribute to their words.
MISTAKES = ".mistakes.json"
ATTRIBUTED_MISTAKES = 10
ATTRIBUTED_KINDS = ("classes", "distribution", "multi_label", "regression", "targets", "tokens")
# The number of bins of the reliability diagram, all of the same width (Guo et al. 2017 use 15).
BINS = 10
MOST_MISTAKES = 50
# Texts of mistakes are cut to this number of characters.
TEXT_CHARACTERS = 600
# A confusion matrix of more classes is replaced by the most frequent confusions.
MATRIX_CLASSES = 50
MOST_CONFUSIONS = 200
# The scatter plot of a regression has at most this number of points; above, only every 2nd, 4th...
# example is kept.
MOST_POINTS = 2000
NO_ANSWER = "(no answer)"
# Kinds of labels that are numbers, as are the scores of dev pairs for embeddings.
NUMBER_KINDS = ("regression", "targets", "similarity", "contrastive", "distilled")
# What one decision is, for the reliability diagram; numbers have no probabilities.
UNITS: Mapping[str, str] = {
    "classes": "examples",
    "distribution": "examples",
    "multi_label": "decisions on one label of one example",
    "tokens": "words",
    "span": "questions",
    "choice": "examples",
}
CLASS_KINDS: Mapping[str, str] = {
    "classes": "class",
    "distribution": "class",
    "multi_label": "label",
    "tokens": "entity type",
}


class Decision(NamedTuple):
    """One decision of a model on a labelled example; `word`: the index of its word, if any."""

    gold: str
    predicted: str
    probability: float
    is_right: bool
    word: int | None = None


class PredictionSummary(Observer):
    """Summarises the predictions for the labelled examples of a split.

    Attributes:
        examples: the number of labelled examples so far.
        classes: the report per class of the same predictions.
    """

    def __init__(self, task: Task):
        self._task = task
        self.classes = ClassReport(task)
        self.examples = self._decisions = self._wrong = self._numbers = 0
        # Per bin of probabilities: number of decisions, sum of probabilities, right decisions.
        self._bins = [[0, 0.0, 0] for _ in range(BINS)]
        # Without a column of ids, ids are indices, which the rows of a spreadsheet do not have.
        source = task.source
        self._has_ids = not isinstance(source, OwnDataset) or source.columns.id is not None
        # A heap of (how bad, -order, example, what is wrong, word), the least bad mistake first.
        self._mistakes: list[tuple[float, int, Example, dict[str, Any], int | None]] = []
        self._points: list[tuple[float, float]] = []
        self._stride = 1

    def add(self, example: Example, prediction: Prediction) -> None:
        self.classes.add(example, prediction)
        is_labelled = example.label is not None or bool(example.answers)
        # A score is neither right nor wrong without those of its query's other passages.
        can_be_right = self._task.label_kind != "ranking" and "error" not in prediction
        if not is_labelled or not can_be_right:
            return
        self.examples += 1
        if self._task.label_kind == "targets":
            label: Any = example.label
            for name, gold in label.items():
                if gold is not None:
                    self._see_number(example, gold, prediction["scores"][name], name)
            return
        if self._task.label_kind in NUMBER_KINDS:
            predicted = self._task.predicted_label(prediction)
            self._see_number(example, float(example.label), float(predicted))  # type: ignore[arg-type]
            return
        for decision in _decisions(self._task, example, prediction):
            self._decisions += 1
            probability = decision.probability
            entry = self._bins[min(int(probability * BINS), BINS - 1)]
            entry[0] += 1
            entry[1] += probability
            entry[2] += decision.is_right
            if not decision.is_right:
                self._wrong += 1
                fields = {
                    "gold": decision.gold,
                    "predicted": decision.predicted,
                    "probability": probability,
                }
                self._keep(probability, example, fields, decision.word)

    def _see_number(
        self, example: Example, gold: float, predicted: float, target: str = ""
    ) -> None:
        self._numbers += 1
        if (self._numbers - 1) % self._stride == 0:
            self._points.append((gold, predicted))
            if len(self._points) > MOST_POINTS:
                self._points = self._points[::2]
                self._stride *= 2
        error = abs(gold - predicted)
        if error > 0:
            fields: dict[str, Any] = {"gold": gold, "predicted": predicted, "error": error}
            if target:
                fields["gold"] = f"{target} {gold:g}"
            self._keep(error, example, fields)

    def _keep(
        self, badness: float, example: Example, fields: dict[str, Any], word: int | None = None
    ) -> None:
        # Orders are unique, so that the examples are never compared.
        order = -(self._decisions or self._numbers)
        heapq.heappush(self._mistakes, (badness, order, example, fields, word))
        if len(self._mistakes) > MOST_MISTAKES:
            heapq.heappop(self._mistakes)

    def content(self, scores: Mapping[str, float]) -> dict[str, Any]:
        """Returns the summary of the predictions that `observe` has seen, as JSON values.

        `scores` is {metric: value} of the split.
        """
        kind = self._task.label_kind
        if kind in NUMBER_KINDS:
            kind = "regression"
        elif kind == "distribution":
            kind = "classes"
        mistakes = []
        for _, _, example, fields, word in sorted(self._mistakes, reverse=True):
            where = {"id": example.id, "place": _place(example.where)}
            mistakes.append(where | _texts(example, word) | fields)
        content: dict[str, Any] = {
            "label_kind": kind,
            "examples": self.examples,
            "scores": dict(scores),
            "decisions": self._decisions,
            "wrong": self._wrong,
            "has_ids": self._has_ids,
            "mistakes": mistakes,
        }
        if kind == "regression":
            return content | {"points": self._points, "every": self._stride}
        if self.classes:
            content["class_kind"] = CLASS_KINDS[kind]
            content["classes"] = [row._asdict() for row in self.classes.scores()]
        if self.classes.confusion:
            content |= confusion_of(self._task.labels, self.classes.confusion)
        return content | {"calibration": self._calibration(UNITS[kind])}

    def _calibration(self, unit: str) -> dict[str, Any]:
        """Returns the reliability diagram and the expected calibration error (Guo et al. 2017).

        The error is the mean difference of confidence and accuracy in a bin, weighted by the number
        of decisions in the bin; it is None if there was no decision.
        """
        bins = []
        error = 0.0
        ece = None
        for count, total, right in self._bins:
            bins.append({"count": count})
            if count:
                bins[-1] |= {"confidence": total / count, "accuracy": right / count}
            error += abs(total - right)
        if self._decisions:
            ece = error / self._decisions
        return {"unit": unit, "ece": ece, "bins": bins}

    def write(self, folder: Path, split: str, scores: Mapping[str, float]) -> None:
        """Writes `content` to SPLIT.summary.json, unless no example of the split has a label.

        The whole texts of the first mistakes are written to SPLIT.mistakes.json.
        """
        if self.examples:
            write_json(folder / f"{split}{SUFFIX}", self.content(scores))
            if self._task.label_kind in ATTRIBUTED_KINDS:
                mistakes = {"mistakes": self._first_mistakes()}
                write_json(folder / f"{split}{MISTAKES}", mistakes)

    def _first_mistakes(self) -> list[dict[str, Any]]:
        """Returns the texts of the first mistakes, and what to attribute: a label, and a word."""
        mistakes = []
        ranked = sorted(self._mistakes, reverse=True)
        for _, _, example, fields, word in ranked[:ATTRIBUTED_MISTAKES]:
            label = fields["predicted"]
            match self._task.label_kind:
                case "regression":
                    label = None
                case "targets":  # such as "pain 2.5"
                    label = fields["gold"].rpartition(" ")[0]
                case "multi_label":  # such as "pain" and "not pain"
                    label = min(label, fields["gold"], key=len)
            mistake = {name: getattr(example, name) for name in TEXT_FIELDS}
            place = None if word is None else word + 1
            mistakes.append({**mistake, "attributed": {"label": label, "word": place}})
        return mistakes


# The probable label errors that a report shows.
SHOWN_ERRORS = 20
ERROR_COLUMNS = (
    *("id", "place", "text", "pair", "words", "label", "suggested_label"),
    *("probability", "self_confidence", "normalized_margin"),
)


def write_label_errors(path: Path, rows: Sequence[Mapping[str, Any]], data: Dataset) -> None:
    """Writes a table of the labels of `data` that may be wrong, `LabelErrors.rows`.

    Columns that no row has a value of are left out. Texts that a spreadsheet would take as formulas
    get a ' in front.
    """
    used = [name for name in ERROR_COLUMNS if any(row.get(name) for row in rows)]
    table: list[Sequence[Any]] = [used or ERROR_COLUMNS]
    for row in rows:
        table.append([without_formula(row.get(name, "")) for name in used])
    _write_csv(path, table, data)


def label_errors_in_words(rows: Sequence[Mapping[str, Any]], examples: int, path: Path) -> str:
    """Says how many labels may be wrong, of which share of the examples, and where they are."""
    if not rows:
        return "no label of the held-out examples seems to be wrong"
    share = len({row["place"] for row in rows}) / examples
    return (
        f"{counted(len(rows), 'label')} of held-out examples may be wrong, in {share:.1%} of "
        f"{examples:,}: {path}, the surest first, with the file and row of each. Look at the first "
        "ones: further down, the model is wrong more often than the label."
    )


def shown_label_errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the report shows of the labels that may be wrong: their number and the first."""
    shown = []
    for row in rows[:SHOWN_ERRORS]:
        texts = {"text": _cut(row["text"]), "place": _place(row["place"])}
        if row.get("pair"):
            texts["pair"] = _cut(row["pair"])
        shown.append({**row, **texts})
    return {"count": len(rows), "rows": shown}


# The fields of examples whose mistakes may be attributed to words.
TEXT_FIELDS = ("id", "where", "text", "pair", "words", "offsets")


def read_mistakes(path: Path) -> list[tuple[Example, dict[str, Any]]]:
    """Reads the examples of SPLIT.mistakes.json, and what to attribute of each prediction."""
    mistakes = []
    for fields in read_json(path)["mistakes"]:
        attributed = fields.pop("attributed")
        fields["words"] = tuple(fields["words"])
        fields["offsets"] = tuple(map(tuple, fields["offsets"]))
        mistakes.append((Example(**fields), attributed))
    return mistakes


def add_to_summary(folder: Path, split: str, content: Mapping[str, Any]) -> None:
    """Adds `content` to the summary of the predictions of a split, if there is one."""
    path = folder / f"{split}{SUFFIX}"
    if summary := read_json_or_empty(path):
        write_json(path, {**summary, **content})


def confusions(counts: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    """Returns (label, predicted label, examples) of wrong predictions, the most frequent first."""
    wrong = [(*pair, count) for pair, count in counts.items() if pair[0] != pair[1]]
    return sorted(wrong, key=lambda row: (-row[2], row))


def confusion_of(
    labels: Iterable[str], counts: Mapping[tuple[str, str], int]
) -> dict[str, dict[str, Any]]:
    """Returns {"confusion": matrix} or, of many classes, {"confusions": most frequent mistakes}.

    `counts` is {(label, predicted label): number of examples}.
    """
    names = list(labels)
    if len(names) <= MATRIX_CLASSES:
        matrix = []
        for gold in names:
            matrix.append([counts.get((gold, name), 0) for name in names])
        return {"confusion": {"labels": names, "counts": matrix}}
    wrong = confusions(counts)
    rows = [[*row] for row in wrong[:MOST_CONFUSIONS]]
    return {"confusions": {"rows": rows, "all": len(wrong)}}


def _decisions(task: Task, example: Example, prediction: Prediction) -> Iterator[Decision]:
    label: Any = task.scored_label(example.label, prediction)
    match task.label_kind:
        case "classes" | "distribution":
            gold = str(label)
            answer = prediction["label"]
            probability = prediction["probabilities"][answer]
            yield Decision(gold, answer, probability, answer == gold)
        case "multi_label":
            for name, probability in prediction["probabilities"].items():
                gold = name
                if name not in label:
                    gold = f"not {name}"
                answer = name
                if name not in prediction["labels"]:
                    answer = f"not {name}"
                    probability = 1 - probability
                yield Decision(gold, answer, probability, gold == answer)
        case "tokens":
            tags = zip(label, prediction["labels"], prediction["probabilities"], strict=False)
            for word, (gold, tag, probability) in enumerate(tags):
                if gold and probability is not None:
                    yield Decision(gold, tag, probability, gold == tag, word)
        case "span":
            golds = [text for text, _ in example.answers]
            answer = prediction["answer"]
            is_right = normalize_answer(answer) in map(normalize_answer, golds or [""])
            gold = " | ".join(dict.fromkeys(golds)) or NO_ANSWER
            yield Decision(gold, answer or NO_ANSWER, prediction["probability"], is_right)
        case "choice":
            choice = prediction["label"]
            gold = _cut(example.choices[label])
            answer = _cut(example.choices[choice])
            probability = prediction["probabilities"][choice]
            yield Decision(gold, answer, probability, choice == label)


def _place(where: str) -> str:
    """Returns "row 100 of a.csv" for "folder/a.csv, row 100"; rows are counted as in messages."""
    path, _, row = where.rpartition(", row ")
    if row.isdigit() and path:
        return f"row {row} of {Path(path).name}"
    return where


def _texts(example: Example, word: int | None) -> dict[str, Any]:
    """Returns the text of an example; "marked" is the (start, end) of a word in it, if any."""
    text = example.text or " ".join(example.words)
    if not example.words or word is None:
        texts = {"text": _cut(text)}
        if example.pair:
            texts["pair"] = _cut(example.pair)
        return texts
    if example.offsets:
        start = example.offsets[word][0]
    else:
        start = len(" ".join([*example.words[:word], ""]))
    shown_before = min(start, TEXT_CHARACTERS // 2)
    shown = _cut(text[start - shown_before :])
    end = shown_before + len(example.words[word])
    return {"text": shown, "marked": [shown_before, end]}


def _cut(text: str) -> str:
    if len(text) <= TEXT_CHARACTERS:
        return text
    return f"{text[: TEXT_CHARACTERS - 1]}…"
