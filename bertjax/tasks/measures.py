"""Metrics as functions of how much each example counts, for resampling.

Most metrics are ratios of sums over the examples, such as the right entities over the predicted
ones; F1 per class, Matthews' and the other correlations follow from weighted counts and ranks
(`metrics.Weighted`). So a `Measure` computes them for many draws of a split at once. Any other
metric is computed anew for each draw.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.tasks.classification import ProbabilityTask
from bertjax.tasks.dataset import Example, connected, group_keys
from bertjax.tasks.embedding import VECTORS, Retrieval, texts_of
from bertjax.tasks.metrics import (
    Scores,
    Values,
    Weighted,
    Weights,
    entity_counts,
    weighted_form,
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
from bertjax.tasks.task import Prediction, Task

# Draws of a bootstrap, and those of metrics that are computed anew for each draw.
DRAWS = 1000
FEW_DRAWS = 200

# The name of a slice of rows without a value.
NO_VALUE = "(no value)"


class Measure(NamedTuple):
    """The metrics of predictions as a function of how much each unit counts.

    A unit is an example or, in a ranking, a query with its passages. `scores` takes weights, float
    [draws, units], and returns {metric: float [draws]}; weights that are whole numbers give the
    metrics of the units repeated as often. A ratio is NaN in draws without a unit that it counts,
    such as a question without an answer. `draws` is how many draws a bootstrap takes, and `ratios`
    are as in `Weighted`: a metric that is not there counts all units.
    """

    units: int
    scores: Scores
    draws: int = DRAWS
    ratios: Mapping[str, np.ndarray] = {}


class Unit(NamedTuple):
    """What the metrics need of a unit: {metric: (numerator, denominator)} and the labels."""

    ratios: Mapping[str, tuple[float, float]]
    label: Any = None
    answer: Any = None


class _Embedded(NamedTuple):
    texts: Sequence[str]
    vectors: np.ndarray


Row = Unit | RankedPassages | _Embedded


def row_of(task: Task, example: Example, prediction: Prediction) -> Row | None:
    """Returns what the metrics of `task` need of an example; None if it is not labelled."""
    label: Any = example.label
    if isinstance(task, SpanTask) and (example.answers or label == IMPOSSIBLE):
        texts = [text for text, _ in example.answers]
        return _question(task, texts, prediction["answer"])
    if VECTORS in prediction:
        return _Embedded(texts_of(example), prediction[VECTORS])
    if label is None or isinstance(task, SpanTask) or "error" in prediction:
        return None
    if isinstance(task, TagTask):
        if any(label):
            return _sentence(task, example, prediction)
        return None
    if isinstance(task, RerankTask):
        return ranked_passages(example, prediction)
    ratios = {}
    if isinstance(task, ProbabilityTask):
        losses = task.losses(label, prediction["probabilities"])
        ratios["loss"] = sum(losses), len(losses)
    return Unit(ratios, task.scored_label(label, prediction), task.predicted_label(prediction))


def _question(task: SpanTask, texts: Sequence[str], answer: str) -> Unit:
    exact, f1 = task.scores_of(texts, answer)
    if not task.with_impossible:
        return Unit({"exact_match": (exact, 1), "f1": (f1, 1)})
    ratios = {}
    for part in ("", "HasAns_" if texts else "NoAns_"):
        ratios[f"{part}exact"] = (exact, 1)
        ratios[f"{part}f1"] = (f1, 1)
    return Unit(ratios)


def _sentence(task: TagTask, example: Example, prediction: Prediction) -> Unit:
    gold, answer = task.scored_tags(example, prediction)
    counts = entity_counts(gold, answer, example.cut)
    ratios = counts.ratios()
    if task.metric is word_accuracy:
        ratios = {"accuracy": ratios["accuracy"]}
    return Unit(ratios)


def measure_of(task: Task, units: Sequence[Unit]) -> Measure:
    """Returns the measure of the metrics of `task` for at least one unit.

    Units of two models that are compared stand one after the other.
    """
    parts = [Weighted(_ratios(units))]
    draws = DRAWS
    if units[0].label is not None:
        golds = [unit.label for unit in units]
        answers = [unit.answer for unit in units]
        weighted = weighted_form(task.metric)
        if weighted is None:
            parts.append(Weighted({}, _again(task, golds, answers)))
            draws = FEW_DRAWS
        else:
            parts.append(weighted(golds, answers))
    ratios: dict[str, np.ndarray] = {}
    for part in parts:
        ratios |= part.ratios

    def scores(weights: Weights) -> Values:
        values: Values = {}
        for part in parts:
            values |= part.scores(weights)
        return values

    return Measure(len(units), scores, draws, ratios)


def _ratios(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    """Returns the ratios of units as of `Weighted`."""
    ratios: dict[str, np.ndarray] = {}
    for number, unit in enumerate(units):
        for name, pair in unit.ratios.items():
            if name not in ratios:
                ratios[name] = np.zeros((2, len(units)))
            ratios[name][:, number] = pair
    return ratios


def _again(task: Task, golds: Sequence[Any], answers: Sequence[Any]) -> Scores:
    """Returns the metrics of a task that are computed anew for each draw."""

    def scores(weights: Weights) -> Values:
        values: dict[str, list[float]] = {}
        for times in weights.astype(np.int64):
            chosen = np.repeat(np.arange(len(golds)), times).tolist()
            of_draw = [golds[i] for i in chosen]
            answered = [answers[i] for i in chosen]
            drawn = task.metric(of_draw, answered)
            for name, value in drawn.items():
                values.setdefault(name, []).append(value)
        return {name: np.array(column) for name, column in values.items()}

    return scores


def _means(metrics: Iterable[str], values: Iterable[Iterable[float]]) -> list[Unit]:
    """Returns the units of metrics that are means of a value per unit."""
    units = []
    for of_unit in values:
        units.append(Unit({name: (value, 1) for name, value in zip(metrics, of_unit, strict=True)}))
    return units


class ScoredRows:
    """Collects what the metrics of a task need of each example, while predictions pass by."""

    def __init__(self, task: Task):
        self.task = task
        self._columns = () if task.source is None else task.source.group_columns
        self._slices = () if task.source is None else task.source.slice_columns
        self._rows: list[Row] = []
        self._keys: list[list[Any]] = []
        self._values: list[dict[str, str]] = []  # of the columns of slices

    def observe(
        self, pairs: Iterable[tuple[Example, Prediction]]
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) pairs unchanged; collects those with a labelled example."""
        for example, prediction in pairs:
            row = row_of(self.task, example, prediction)
            kind = type(self._rows[0] if self._rows else row)
            if row is not None and isinstance(row, kind):  # a split may have scores here and there
                self._rows.append(row)
                self._keys.append([*group_keys(example, self._columns)])
                self._values.append(dict(group_keys(example, self._slices)))
            yield example, prediction

    def units(self) -> list[Unit]:
        """Returns the units of the examples: the queries of a ranking, or one per example."""
        rows: list[Any] = self._rows
        if rows and isinstance(rows[0], RankedPassages):
            if values := query_scores(rows):
                return _means(METRICS, values)
            return [Unit({}, row.label, row.scores[0]) for row in rows]
        if rows and isinstance(rows[0], _Embedded):
            task: Any = self.task
            retrieval = Retrieval(task.similarity)
            for row in rows:
                retrieval.add(row.texts, row.vectors)
            columns = {}
            for name, values in retrieval.columns().items():
                if len(values) == len(rows):  # not all examples may have hard negatives
                    columns[name] = values
            return _means(columns, zip(*columns.values(), strict=True))
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
