"""What the metrics of a task need of each prediction: the units of a `Measure`, for resampling."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.tasks.classification import ProbabilityTask
from bertjax.tasks.dataset import Example, connected, group_keys
from bertjax.tasks.embedding import VECTORS, Retrieval, texts_of
from bertjax.tasks.metrics import (
    Measure,
    Ratios,
    entity_ratios,
    measure_of_ratios,
    measured,
    word_accuracy,
)
from bertjax.tasks.question_answering import IMPOSSIBLE, SpanTask
from bertjax.tasks.reranking import (
    METRICS,
    RankedPassages,
    RerankTask,
    query_scores,
    ranked_passages,
)
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import Observer, Prediction, Task

# The name of a slice of rows without a value.
NO_VALUE = "(no value)"


class Unit(NamedTuple):
    """What the metrics need of a unit of a `Measure`: ratios and the labels.

    `probabilities` are those of the labels, where `has_diagnostics`.
    """

    ratios: Ratios
    label: Any = None
    answer: Any = None
    probabilities: Mapping[str, float] = {}


class _Embedded(NamedTuple):
    texts: Sequence[str]
    vectors: Any


Row = Unit | RankedPassages | _Embedded


def row_of(task: Task, example: Example, prediction: Prediction) -> Row | None:
    """Returns what the metrics of `task` need of an example; None if it is not labelled."""
    label: Any = example.label
    if isinstance(task, SpanTask) and (example.answers or label == IMPOSSIBLE):
        texts = [text for text, _ in example.answers]
        return Unit(task.ratios(texts, prediction["answer"]))
    if VECTORS in prediction:
        return _Embedded(texts_of(example), prediction[VECTORS])
    if label is None or isinstance(task, SpanTask) or "error" in prediction:
        return None
    if isinstance(task, TagTask):
        if not any(label):
            return None
        ratios = entity_ratios(*task.scored_tags(example, prediction), example.cut)
        if task.metric is word_accuracy:
            ratios = {"accuracy": ratios["accuracy"]}
        return Unit(ratios)
    if isinstance(task, RerankTask):
        return ranked_passages(example, prediction)
    ratios = {}
    if isinstance(task, ProbabilityTask):
        losses = task.losses(label, prediction["probabilities"])
        ratios["loss"] = sum(losses), len(losses)
    probabilities = prediction["probabilities"] if has_diagnostics(task) else {}
    answer = task.predicted_label(prediction)
    return Unit(ratios, task.scored_label(label, prediction), answer, probabilities)


# The labels that have a sensitivity, the first ones of a task.
MOST_DIAGNOSED = 20


def has_diagnostics(task: Task) -> bool:
    """Returns whether a task decides for each label whether an example has it or not."""
    is_binary = task.label_kind == "classes" and len(task.labels) == 2
    return is_binary or (task.label_kind == "multi_label" and len(task.labels) <= MOST_DIAGNOSED)


def groups_of_models(models: Sequence["ScoredRows"]) -> list[int]:
    """Returns the `ScoredRows.groups` of the rows of several models, which have none in common."""
    groups: list[int] = []
    for rows in models:
        first = max(groups, default=-1) + 1
        groups += [first + group for group in rows.groups()]
    return groups


def measure_of(task: Task, units: Sequence[Unit]) -> Measure:
    """Returns the measure of the metrics of `task` for at least one unit.

    Units of two models that are compared stand one after the other.
    """
    measure = measure_of_ratios([unit.ratios for unit in units])
    if units[0].label is None:
        return measure
    golds = [unit.label for unit in units]
    answers = [unit.answer for unit in units]
    own = measured(task.metric, golds, answers)
    return own._replace(ratios={**measure.ratios, **own.ratios})


def means(metrics: Iterable[str], values: Iterable[Iterable[float]]) -> list[Unit]:
    """Returns the units of metrics that are means of a value per unit."""
    units = []
    for of_unit in values:
        ratios = {}
        for name, value in zip(metrics, of_unit, strict=True):
            ratios[name] = (value, 1)
        units.append(Unit(ratios))
    return units


class ScoredRows(Observer):
    """Collects what the metrics of a task need of each example, while predictions pass by."""

    def __init__(self, task: Task):
        self.task = task
        self._columns = () if task.source is None else task.source.group_columns
        self._slices = () if task.source is None else task.source.slice_columns
        self._rows: list[Row] = []
        self._keys: list[list[Any]] = []
        self._values: list[dict[str, str]] = []  # of the columns of slices

    def add(self, example: Example, prediction: Prediction) -> None:
        row = row_of(self.task, example, prediction)
        kind = type(self._rows[0] if self._rows else row)
        if row is not None and isinstance(row, kind):  # a split may have scores here and there
            self._rows.append(row)
            self._keys.append([*group_keys(example, self._columns)])
            self._values.append(dict(group_keys(example, self._slices)))

    def units(self) -> list[Unit]:
        """Returns the units of the examples: the queries of a ranking, or one per example."""
        rows: list[Any] = self._rows
        if rows and isinstance(rows[0], RankedPassages):
            if values := query_scores(rows):
                return means(METRICS, values)
            return [Unit({}, row.label, row.scores[0]) for row in rows]
        if rows and isinstance(rows[0], _Embedded):
            task: Any = self.task
            retrieval = Retrieval(task.compare)
            for row in rows:
                retrieval.add(row.texts, row.vectors)
            columns = {}
            for name, values in retrieval.columns().items():
                if len(values) == len(rows):  # not all examples may have hard negatives
                    columns[name] = values
            return means(columns, zip(*columns.values(), strict=True))
        return rows

    def groups(self) -> list[int]:
        """Returns the group of each unit, numbered from 0.

        Without `group_columns` of the dataset, each unit is a group of its own.
        """
        keys = []
        units = self._units_of_rows()
        for unit, of_row in zip(units, self._keys, strict=True):
            keys.append([*of_row, ("unit", unit)])
        groups = dict(zip(units, connected(keys).tolist(), strict=True))
        numbers: dict[int, int] = {}
        return [numbers.setdefault(group, len(numbers)) for group in groups.values()]

    def _units_of_rows(self) -> list[Hashable]:
        units: list[Hashable] = []
        for index, row in enumerate(self._rows):
            units.append(row.query if isinstance(row, RankedPassages) else index)
        return units

    def slices(self) -> dict[str, list[str]]:
        """Returns {column of slices: its value for each unit}; of a query, that of its first row.

        A missing value is `NO_VALUE`.
        """
        of_unit: dict[Hashable, dict[str, str]] = {}
        for unit, values in zip(self._units_of_rows(), self._values, strict=True):
            of_unit.setdefault(unit, values)
        columns = {}
        for name in self._slices:
            columns[name] = [values.get(name, NO_VALUE) for values in of_unit.values()]
        return columns


def scored_rows(task: Task, pairs: Iterable[tuple[Example, Prediction]]) -> ScoredRows:
    """Collects the rows of examples and their predictions."""
    rows = ScoredRows(task)
    deque(rows.observe(pairs), maxlen=0)
    return rows
