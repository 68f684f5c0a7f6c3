"""Metrics as functions of how much each example counts, for resampling.

Most metrics are ratios of sums over the examples, such as the right entities over the predicted
ones; F1 per class, Matthews' and the other correlations follow from weighted counts and ranks. So a
`Measure` computes them for many draws of a split at once. Any other metric is computed anew for
each draw.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.tasks.classification import ProbabilityTask
from bertjax.tasks.dataset import Example, connected, group_keys
from bertjax.tasks.embedding import VECTORS, Retrieval, texts_of
from bertjax.tasks.metrics import entity_counts, ordinal_metrics, with_means
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

# scikit-learn is imported where it is used: its import would delay `--help`.

# Draws of a bootstrap, and those of metrics that are computed anew for each draw.
DRAWS = 1000
FEW_DRAWS = 200

# The name of a slice of rows without a value.
NO_VALUE = "(no value)"

Weights = np.ndarray
Values = dict[str, np.ndarray]
Scores = Callable[[Weights], Values]


class Measure(NamedTuple):
    """The metrics of predictions as a function of how much each unit counts.

    A unit is an example or, in a ranking, a query with its passages. `scores` takes weights, float
    [draws, units], and returns {metric: float [draws]}; weights that are whole numbers give the
    metrics of the units repeated as often. A ratio is NaN in draws without a unit that it counts,
    such as a question without an answer. `draws` is how many draws a bootstrap takes, and `counted`
    which units a metric counts, bool [units]; a metric that is not there counts all.
    """

    units: int
    scores: Scores
    draws: int = DRAWS
    counted: Mapping[str, np.ndarray] = {}


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
    answer = task.predicted_label(prediction)
    scored = task.scored_label(label, prediction)
    ratios = _ratios_of(task, scored, answer)
    if isinstance(task, ProbabilityTask):
        losses = task.losses(label, prediction["probabilities"])
        ratios["loss"] = sum(losses), len(losses)
    return Unit(ratios, scored, answer)


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
    ratios = {
        "precision": (counts.right, counts.in_predictions),
        "recall": (counts.right, counts.in_golds),
        "f1": (2 * counts.right, counts.in_golds + counts.in_predictions),
        "accuracy": (counts.right_words, counts.words),
    }
    return Unit(ratios)


def _ratios_of(task: Task, label: Any, answer: Any) -> dict[str, tuple[float, float]]:
    if isinstance(label, dict):
        return {}
    if isinstance(label, float):
        return {"mae": (abs(label - answer), 1)}
    if isinstance(label, tuple):
        both = {*label} & {*answer}
        is_equal = {*label} == {*answer}
        f1 = (2 * len(both), len(label) + len(answer))
        return {"subset_accuracy": (is_equal, 1), "micro_f1": f1}
    ratios: dict[str, tuple[float, float]] = {"accuracy": (label == answer, 1)}
    if task.metric is ordinal_metrics:
        difference = float(label) - float(answer)
        ratios["mae"] = abs(difference), 1
    keywords = getattr(task.metric, "keywords", {})
    if "positive" in keywords:
        is_gold = label == keywords["positive"]
        is_answer = answer == keywords["positive"]
        is_right = is_gold and is_answer
        ratios["f1"] = 2 * is_right, is_gold + is_answer
    return ratios


def measure_of(task: Task, units: Sequence[Unit]) -> Measure:
    """Returns the measure of the metrics of `task` for at least one unit.

    Units of two models that are compared stand one after the other.
    """
    names, table = _ratio_table(units)
    parts = [_ratios(names, table)]
    is_counted = table[..., 1] > 0
    counted = dict(zip(names, is_counted.T, strict=True))
    if "f1" in counted:
        counted["accuracy_f1"] = counted["f1"]
    golds = [unit.label for unit in units]
    answers = [unit.answer for unit in units]
    if isinstance(golds[0], dict):
        parts.append(_targets(golds, answers))
    elif isinstance(golds[0], float):
        parts.append(_numbers(golds, answers))
    elif golds[0] is not None:
        parts.append(_classes(golds, answers))
        if task.metric is ordinal_metrics:
            parts.append(_ordinal(golds, answers))
    draws = DRAWS
    once = np.ones((1, len(units)))
    known: set[str] = set()
    for part in parts:
        known |= part(once).keys()
    if golds[0] is not None and not known.issuperset(task.metric_names()):
        parts.append(_again(task, golds, answers))
        draws = FEW_DRAWS

    # Classes and numbers have more metrics than a task may score; some are not meant for it, as
    # Matthews' correlation for several labels.
    unscored: set[str] = set()
    scored = known.intersection(task.metric_names())
    if scored and (golds[0] is not None or isinstance(task, TagTask)):
        unscored = known - scored

    def scores(weights: Weights) -> Values:
        values: Values = {}
        for part in parts:
            values |= part(weights)
        for name in unscored:
            del values[name]
        return values

    return Measure(len(units), scores, draws, counted)


def _ratio(
    numerator: np.ndarray, denominator: np.ndarray, undefined: float | np.ndarray = 0.0
) -> np.ndarray:
    """Divides; `undefined` where the denominator is 0."""
    safe = np.where(denominator > 0, denominator, 1.0)
    return np.where(denominator > 0, numerator / safe, undefined)


def _ratio_table(units: Sequence[Unit]) -> tuple[list[str], np.ndarray]:
    """Returns the names of the ratios, and their numerators and denominators, [units, names, 2]."""
    names: dict[str, None] = {}
    for unit in units:
        names |= dict.fromkeys(unit.ratios)
    table = np.zeros((len(units), len(names), 2))
    for row, unit in zip(table, units, strict=True):
        for column, name in enumerate(names):
            row[column] = unit.ratios.get(name, (0, 0))
    return [*names], table


def _ratios(names: Sequence[str], table: np.ndarray) -> Scores:
    # A ratio that no unit counts is 0.0 by its definition, and is so in all draws.
    is_counted = table[..., 1].any(0)
    undefined = np.where(is_counted, np.nan, 0.0)

    def scores(weights: Weights) -> Values:
        numerators = weights @ table[..., 0]
        denominators = weights @ table[..., 1]
        ratios = _ratio(numerators, denominators, undefined)
        values = dict(zip(names, ratios.T, strict=True))
        if {"accuracy", "f1"} <= values.keys():
            both = values["accuracy"] + values["f1"]
            values["accuracy_f1"] = both / 2
        return values

    return scores


def _classes(golds: Sequence[Any], answers: Sequence[Any]) -> Scores:
    """Returns the metrics of counts per class, of one or several labels per unit."""
    from sklearn.preprocessing import MultiLabelBinarizer

    golds = _tuples(golds)
    answers = _tuples(answers)
    binarizer = MultiLabelBinarizer(sparse_output=True)
    binarizer.fit([*golds, *answers])
    gold = binarizer.transform(golds).astype(np.float64)
    predicted = binarizer.transform(answers).astype(np.float64)
    right = gold.multiply(predicted)

    def scores(weights: Weights) -> Values:
        hits = weights @ right
        support = weights @ gold
        guesses = weights @ predicted
        f1 = _ratio(2 * hits, support + guesses)
        occurring = np.sum(support + guesses > 0, axis=1)
        weighted = np.sum(support * f1, axis=1)
        # Matthews' correlation of several classes (Gorodkin 2004).
        total = weights.sum(1)
        of_gold = total**2 - np.sum(support**2, axis=1)
        of_guesses = total**2 - np.sum(guesses**2, axis=1)
        spread = np.maximum(of_gold * of_guesses, 0)
        covariance = hits.sum(1) * total - np.sum(support * guesses, axis=1)
        return {
            "macro_f1": _ratio(f1.sum(1), occurring),
            "weighted_f1": _ratio(weighted, support.sum(1)),
            "matthews": _ratio(covariance, np.sqrt(spread)),
        }

    return scores


def _tuples(labels: Sequence[Any]) -> list[tuple[str, ...]]:
    tuples = []
    for label in labels:
        if not isinstance(label, tuple):
            label = (str(label),)
        tuples.append(label)
    return tuples


def _numbers(golds: Any, answers: Any) -> Scores:
    """Returns the metrics of regressions that are no ratios."""
    x = np.array(golds)
    y = np.array(answers, np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        x = y = np.zeros(len(x))
    rank_x = _ranks(x)
    rank_y = _ranks(y)

    def scores(weights: Weights) -> Values:
        pearson = _correlation(weights, x, y)
        spearman = _correlation(weights, rank_x(weights), rank_y(weights))
        total = weights.sum(1)
        squares = weights @ (x - y) ** 2
        centred = x - x.mean()
        of_mean = (weights @ centred) ** 2 / total
        spread = weights @ centred**2 - of_mean
        explained = 1 - _ratio(squares, spread)
        return {
            "pearson": pearson,
            "spearman": spearman,
            "pearson_spearman": (pearson + spearman) / 2,
            "rmse": np.sqrt(squares / total),
            "r2": np.where(spread > 0, explained, 0.0),
        }

    return scores


def _ordinal(golds: Sequence[str], answers: Sequence[str]) -> Scores:
    """Returns the quadratic kappa, as `ordinal_metrics` does."""
    x = np.array(golds, np.float64)
    y = np.array(answers, np.float64)
    squares = x**2 + y**2
    differences = (x - y) ** 2
    columns = np.stack([x, y, squares, differences], axis=1)

    def scores(weights: Weights) -> Values:
        of_x, of_y, squares, differences = (weights @ columns).T
        total = weights.sum(1)
        expected = total * squares - 2 * of_x * of_y
        kappa = 1 - _ratio(total * differences, expected, 1.0)
        return {"quadratic_kappa": kappa}

    return scores


def _targets(
    golds: Sequence[Mapping[str, float | None]], answers: Sequence[Mapping[str, float]]
) -> Scores:
    """Returns the metrics of several targets, as `targets_metrics` does.

    They are NaN in draws without an example that has a target.
    """
    parts: dict[str, tuple[np.ndarray, np.ndarray, Scores]] = {}
    for name in golds[0]:
        x = np.array([gold[name] for gold in golds], np.float64)  # None becomes NaN
        y = np.array([answer[name] for answer in answers], np.float64)
        is_present = np.isfinite(x)
        if is_present.any():
            x = x[is_present]
            y = y[is_present]
            parts[name] = is_present, np.abs(x - y), _numbers(x, y)

    def scores(weights: Weights) -> Values:
        of_targets = {}
        for name, (is_present, errors, numbers) in parts.items():
            own = weights[:, is_present]
            total = own.sum(1)
            own[total == 0] = np.nan
            with np.errstate(invalid="ignore"):
                values = {**numbers(own), "mae": own @ errors / own.sum(1)}
            for metric, value in values.items():
                values[metric] = np.where(total > 0, value, np.nan)
            of_targets[name] = values
        return with_means(of_targets)

    return scores


def _correlation(weights: Weights, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Computes the weighted Pearson correlation of x and y, [units] or [draws, units]."""
    total = weights.sum(1, keepdims=True)
    x = x - np.sum(weights * x, axis=1, keepdims=True) / total
    y = y - np.sum(weights * y, axis=1, keepdims=True) / total
    covariance = np.sum(weights * x * y, axis=1)
    of_x = np.sum(weights * x**2, axis=1)
    of_y = np.sum(weights * y**2, axis=1)
    return _ratio(covariance, np.sqrt(of_x * of_y))


def _ranks(values: np.ndarray) -> Callable[[Weights], np.ndarray]:
    """Returns a function (weights) -> the ranks of `values` in each draw, [draws, units].

    Equal values have the mean of their ranks, as in Spearman's correlation.
    """
    order = np.argsort(values, kind="stable")
    _, tie, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1

    def ranks(weights: Weights) -> np.ndarray:
        upto = np.cumsum(weights[:, order], axis=1)[:, last]
        below = np.pad(upto[:, :-1], ((0, 0), (1, 0)))
        return ((below + upto + 1) / 2)[:, tie]

    return ranks


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
            pairs = [(row.label, row.scores[0]) for row in rows]
            return [Unit(_ratios_of(self.task, *pair), *pair) for pair in pairs]
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
