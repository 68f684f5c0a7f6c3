"""Reports on the predictions for a split: scores per class or entity type, and confusion matrix."""

import csv
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bertjax.files import write_json, writing
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.tag_schemes import entities
from bertjax.tasks.tagging import TagTask

WIDTH = 80
# Numbers of classes and of confusions that are printed; the files contain all of them.
MOST_CLASSES, MOST_CONFUSIONS = 40, 15


class ClassScores(NamedTuple):
    """Precision, recall and F1 of a class or entity type, as fractions.

    A score whose denominator is 0 is 0.

    Attributes:
        name: the name of the class or entity type.
        precision: the fraction of the predictions of the class that are correct.
        recall: the fraction of the examples or entities of the class that are found.
        f1: the harmonic mean of precision and recall.
        support: the number of examples labelled with the class, or of labelled entities of the
            type.
    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int


class ClassReport:
    """Counts the right and wrong predictions of the labelled examples of a split.

    Tasks with one class per example have a confusion matrix and scores per class, tasks with
    several labels per example have scores per label, and the tagging of entities has scores per
    entity type. For other tasks, nothing is counted, and the report is false as a bool.

    Args:
        task: the task.
    """

    def __init__(self, task: Task):
        self._task = task
        # (label, predicted label) -> number of examples.
        self.confusion: Counter[tuple[str, str]] = Counter()
        self._right: Counter[str] = Counter()
        self._labels: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()

    def observe(
        self, pairs: Iterable[tuple[Example, Prediction]]
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) pairs unchanged; counts those with a labelled example."""
        marks_entities = isinstance(self._task, TagTask) and self._task.marks_entities
        for example, prediction in pairs:
            if isinstance(example.label, tuple) and marks_entities:
                self._count(entities(example.label), entities(prediction["labels"]))
            elif isinstance(example.label, tuple) and self._task.label_kind == "multi_label":
                self._count(
                    *([(x,) for x in names] for names in (example.label, prediction["labels"]))
                )
            elif example.label is not None and self._task.label_kind == "classes":
                self.confusion[str(example.label), prediction["label"]] += 1
                self._count([(str(example.label),)], [(prediction["label"],)])
            yield example, prediction

    def _count(self, labels: list[tuple], predicted: list[tuple]) -> None:
        """Counts the labels, predicted labels and right predictions of one example.

        `labels` and `predicted` contain tuples, which are counted by their last element, the class
        or the entity type. A label is predicted right if `predicted` contains an equal tuple.
        """
        self._labels.update(entry[-1] for entry in labels)
        self._predicted.update(entry[-1] for entry in predicted)
        self._right.update(entry[-1] for entry in set(labels) & set(predicted))

    def __bool__(self) -> bool:
        return bool(self._labels)

    def scores(self) -> list[ClassScores]:
        """Returns the scores of the classes in the task's order, or of entity types by name."""
        has_classes = self._task.label_kind in ("classes", "multi_label")
        names = [name for name in self._task.labels if has_classes]
        names += sorted((self._labels.keys() | self._predicted.keys()).difference(names))
        rows = []
        for name in names:
            right, labels, predicted = self._right[name], self._labels[name], self._predicted[name]
            rows.append(
                ClassScores(
                    name,
                    right / max(predicted, 1),
                    right / max(labels, 1),
                    2 * right / max(labels + predicted, 1),
                    labels,
                )
            )
        return rows

    def print(self, title: str) -> None:
        """Prints tables headed `title`: the scores and, for classes, the confusion matrix.

        A confusion matrix that is wider than `WIDTH` characters is replaced by a table of the most
        frequent wrong predictions.
        """
        rows = self.scores()
        console = Console(width=WIDTH)
        kinds = {"classes": "class", "multi_label": "label"}
        kind = kinds.get(self._task.label_kind, "entity")
        table = Table(title=title, caption=_rest(len(rows), MOST_CLASSES))
        table.add_column(kind, overflow="fold")
        for heading in ("precision", "recall", "F1", "labels"):
            table.add_column(heading, justify="right")
        # If there are many classes, the most frequent ones are the most interesting.
        shown = rows if len(rows) <= MOST_CLASSES else sorted(rows, key=lambda row: -row.support)
        for row in shown[:MOST_CLASSES]:
            scores = [f"{100 * x:.2f}" for x in (row.precision, row.recall, row.f1)]
            if not row.support and not self._predicted[row.name]:
                scores = ["-"] * 3  # the class is no part of the macro average
            table.add_row(escape(row.name), *scores, f"{row.support:,}")
        console.print(table)
        if self.confusion:
            shown = self._matrix(title) or self._confusions(title)
            console.print(shown if shown.row_count else f"{title}: no wrong prediction")

    def _matrix(self, title: str) -> Table | None:
        """Returns the confusion matrix as a table; None if it is wider than `WIDTH` characters."""
        names = self._task.labels
        cells = [[f"{self.confusion[gold, answer]:,}" for answer in names] for gold in names]
        columns = zip(names, *cells, strict=True)
        widths = [max(map(len, column)) + 3 for column in columns]
        if sum(widths) + max(max(map(len, names)), len("label, predicted:")) + 4 > WIDTH:
            return None
        table = Table("label, predicted:", *map(escape, names), title=title)
        for name, row in zip(names, cells, strict=True):
            table.add_row(escape(name), *row)
        return table

    def _confusions(self, title: str) -> Table:
        """Returns a table of the most frequent wrong predictions."""
        wrong = [(pair, n) for pair, n in self.confusion.most_common() if pair[0] != pair[1]]
        table = Table(title=f"{title}: confusions", caption=_rest(len(wrong), MOST_CONFUSIONS))
        for heading in ("label", "predicted"):
            table.add_column(heading, overflow="fold")
        table.add_column("examples", justify="right")
        for (label, answer), count in wrong[:MOST_CONFUSIONS]:
            table.add_row(escape(label), escape(answer), f"{count:,}")
        return table

    def write(self, folder: Path, split: str) -> None:
        """Writes the scores of each class to SPLIT.report.json in `folder`, where SPLIT is `split`.

        If every example has one label, the confusion matrix is also written, to
        SPLIT.confusion.csv: the number of examples with each label (row) and predicted label
        (column).
        """
        write_json(folder / f"{split}.report.json", [row._asdict() for row in self.scores()])
        if not self.confusion:
            return
        names = self._task.labels
        path = folder / f"{split}.confusion.csv"
        with writing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            rows = ([gold, *(self.confusion[gold, name] for name in names)] for gold in names)
            csv.writer(file).writerows(itertools.chain([["label", *names]], rows))


def _rest(count: int, shown: int) -> str | None:
    return f"and {count - shown} more in the files of the predictions" if count > shown else None
