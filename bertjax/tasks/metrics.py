"""Evaluation metrics of the tasks.

A metric is a function of the labels and the predicted labels of the same examples in the same
order. A metric returns a dict of fractions (1.0 is perfect) or correlations, never percentages.
Most metrics are ratios of sums over the examples, or follow from weighted counts and ranks: they
are a `WeightedMetric`, whose `Measure` computes them for many draws of the examples at once.
Undefined values, such as the F1 without positives or the correlation with a constant, are 0.0.
The values equal those from scikit-learn and SciPy, with which GLUE is scored (Wang et al. 2018),
from conlleval (Tjong Kim Sang and De Meulder 2003), and from SQuAD's evaluate-v1.1.py and
evaluate-v2.0.py (Rajpurkar et al. 2016; 2018).
"""

import functools
import itertools
import math
import operator
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import regex

from bertjax.tokenization.base import CHARACTER

# scikit-learn is imported where it is used: its import would delay `--help`.

Metric = Callable[..., dict[str, float]]
Tags = Sequence[Sequence[str]]

# Metrics whose names have these endings are counts, thresholds, losses or have the unit of the
# targets; all others are fractions or correlations.
LOWER_IS_BETTER = ("loss", "mae", "rmse", "active_dims", "flops")
_NOT_FRACTIONS = ("total", "_thresh", *LOWER_IS_BETTER)


def is_fraction(name: str) -> bool:
    """Returns whether a metric is a fraction or a correlation, shown in per cent."""
    return not name.endswith(_NOT_FRACTIONS)


def higher_is_better(name: str) -> bool:
    """Returns whether a higher value of a metric, such as "dev/accuracy", is better."""
    return not name.endswith(LOWER_IS_BETTER)


def in_percent(values: Mapping[str, float]) -> dict[str, float]:
    """Converts fractions and correlations to per cent; counts, losses and so on stay."""
    return {name: 100.0 * value if is_fraction(name) else value for name, value in values.items()}


Weights = np.ndarray
Values = dict[str, np.ndarray]
Scores = Callable[[Weights], Values]


# {metric: (numerator, denominator)} of one example.
Ratios = Mapping[str, tuple[float, float]]
# Draws of a bootstrap, and those of metrics that are computed anew for each draw.
DRAWS = 1000
FEW_DRAWS = 200


def _nothing(weights: Weights) -> Values:
    return {}


class Measure(NamedTuple):
    """The metrics of some predictions as a function of how much each unit counts.

    A unit is an example or, in a ranking, a query with its passages. Weights that are whole numbers
    give the metrics of the units repeated as often.

    Attributes:
        units: the number of units.
        ratios: {metric: numerators and denominators of the units, float [2, units]}: the metric is
            the ratio of the sums.
        others: returns {metric: float [draws]} for weights, float [draws, units]. Those that are in
            `ratios` as well are no ratios, but count the same units.
        draws: how many draws a bootstrap takes.
    """

    units: int
    ratios: Mapping[str, np.ndarray]
    others: Scores = _nothing
    draws: int = DRAWS

    def scores(self, weights: Weights) -> Values:
        """Returns {metric: float [draws]} for weights, float [draws, units].

        A ratio is NaN in draws without a unit that it counts, such as a question without an answer,
        and 0.0 if no unit counts.
        """
        values = {}
        for name, (numerators, denominators) in self.ratios.items():
            undefined = np.nan if denominators.any() else 0.0
            values[name] = ratio(weights @ numerators, weights @ denominators, undefined)
        return values | self.others(weights)

    def once(self) -> dict[str, float]:
        """Returns the metrics of the units if each counts once."""
        values = self.scores(np.ones((1, self.units)))
        return {name: value[0].item() for name, value in values.items()}


def measure_of_ratios(units: Sequence[Ratios]) -> Measure:
    """Returns the measure of metrics that are ratios of sums over units."""
    table: dict[str, np.ndarray] = {}
    for number, ratios in enumerate(units):
        for name, pair in ratios.items():
            if name not in table:
                table[name] = np.zeros((2, len(units)))
            table[name][:, number] = pair
    return Measure(len(units), table)


def ratio(numerator: np.ndarray, denominator: np.ndarray, undefined: float = 0.0) -> np.ndarray:
    """Divides; `undefined` where the denominator is 0."""
    safe = np.where(denominator > 0, denominator, 1.0)
    return np.where(denominator > 0, numerator / safe, undefined)


class WeightedMetric:
    """A metric that is made of a function which returns its `Measure`."""

    def __init__(self, measure: Callable[..., Measure]):
        self._measure = measure
        functools.update_wrapper(self, measure)

    def measure(self, golds: Any, predictions: Any, *others: Any, **options: Any) -> Measure:
        """Returns the measure; the arguments are those of the metric."""
        if not isinstance(golds, Mapping):
            _check_lengths(golds, predictions)
        return self._measure(golds, predictions, *others, **options)

    def __call__(self, *arguments: Any, **options: Any) -> dict[str, float]:
        return self.measure(*arguments, **options).once()


def measured(metric: Metric, golds: Sequence[Any], answers: Sequence[Any]) -> Measure:
    """Returns the measure of any metric, also of a `functools.partial` of one.

    One that is no `WeightedMetric` is computed anew for each draw.
    """
    part = functools.partial(metric)
    if isinstance(part.func, WeightedMetric):
        return part.func.measure(golds, answers, **part.keywords)

    def others(weights: Weights) -> Values:
        values: dict[str, list[float]] = {}
        for times in weights.astype(np.int64):
            chosen = np.repeat(np.arange(len(golds)), times).tolist()
            of_draw = [golds[i] for i in chosen]
            answered = [answers[i] for i in chosen]
            for name, value in metric(of_draw, answered).items():
                values.setdefault(name, []).append(value)
        return {name: np.array(column) for name, column in values.items()}

    return Measure(len(golds), {}, others, FEW_DRAWS)


@WeightedMetric
def accuracy(golds: Sequence[Any], predictions: Sequence[Any]) -> Measure:
    """Computes `accuracy`, the fraction of predictions that equal the label.

    Raises:
        ValueError: there are no examples, or not as many predictions as labels.
    """
    size = len(golds)
    is_right = np.fromiter(map(operator.eq, golds, predictions), np.float64, size)
    return Measure(size, {"accuracy": np.stack([is_right, np.ones(size)])})


@WeightedMetric
def class_metrics(golds: Sequence[Any], predictions: Sequence[Any]) -> Measure:
    """Computes `accuracy`, `macro_f1` and `weighted_f1`, as scikit-learn does by default.

    `macro_f1` is the mean of the F1 of the classes that occur, so that rare classes count as much
    as frequent ones; `weighted_f1` weights each class by its number of examples in `golds`.
    """
    counts = _class_counts(golds, predictions)

    def others(weights: Weights) -> Values:
        hits, support, guesses = counts(weights)
        f1 = ratio(2 * hits, support + guesses)
        weighted = np.sum(support * f1, axis=1)
        return {
            "macro_f1": _macro_f1(hits, support, guesses),
            "weighted_f1": ratio(weighted, support.sum(1)),
        }

    return accuracy.measure(golds, predictions)._replace(others=others)


def _class_counts(
    golds: Sequence[Any], predictions: Sequence[Any]
) -> Callable[[Weights], Sequence[np.ndarray]]:
    """Returns a function of weights: how often each class is right, in golds, and predicted.

    They are float [draws, classes]. An example has one class or a tuple of several.
    """
    from sklearn.preprocessing import MultiLabelBinarizer

    golds = _tuples(golds)
    predictions = _tuples(predictions)
    binarizer = MultiLabelBinarizer(sparse_output=True)
    binarizer.fit([*golds, *predictions])
    gold = binarizer.transform(golds).astype(np.float64)
    predicted = binarizer.transform(predictions).astype(np.float64)
    tables = (gold.multiply(predicted), gold, predicted)
    return lambda weights: [weights @ table for table in tables]


def _tuples(labels: Sequence[Any]) -> list[tuple[str, ...]]:
    tuples = []
    for label in labels:
        if not isinstance(label, tuple | list):
            label = (str(label),)
        tuples.append(tuple(label))
    return tuples


def _macro_f1(hits: np.ndarray, support: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """Returns the mean F1 of the classes that occur, from counts per class."""
    counted = support + guesses
    f1 = ratio(2 * hits, counted)
    return ratio(f1.sum(1), np.sum(counted > 0, axis=1))


@WeightedMetric
def ordinal_metrics(golds: Sequence[str], predictions: Sequence[str]) -> Measure:
    """Computes `class_metrics`, and `mae` and `quadratic_kappa` of classes that are whole numbers.

    `quadratic_kappa` is Cohen's kappa with quadratic weights (Cohen 1968).
    """
    classes = class_metrics.measure(golds, predictions)
    x = np.array(golds, np.float64)
    y = np.array(predictions, np.float64)
    errors = np.abs(x - y)
    squares = x**2 + y**2
    columns = np.stack([x, y, squares, errors**2, errors], axis=1)

    def others(weights: Weights) -> Values:
        of_x, of_y, squares, differences, errors = (weights @ columns).T
        total = weights.sum(1)
        # What they would be if labels and predictions were independent.
        expected = total * squares - 2 * of_x * of_y
        kappa = 1 - ratio(total * differences, expected, 1.0)
        ordinal = {"mae": errors / total, "quadratic_kappa": kappa}
        return classes.others(weights) | ordinal

    return classes._replace(others=others)


@WeightedMetric
def accuracy_and_f1(golds: Sequence[Any], predictions: Sequence[Any], *, positive: Any) -> Measure:
    """Computes `accuracy`, `f1` of the class `positive`, and the mean of both, `accuracy_f1`."""
    examples = []
    for gold, answer in zip(golds, predictions, strict=True):
        is_gold = gold == positive
        is_answer = answer == positive
        f1 = (2 * (is_gold and is_answer), is_gold + is_answer)
        examples.append({"accuracy": (gold == answer, 1), "f1": f1, "accuracy_f1": f1})
    ratios = measure_of_ratios(examples)

    def others(weights: Weights) -> Values:
        values = ratios.scores(weights)
        return {"accuracy_f1": (values["accuracy"] + values["f1"]) / 2}

    return ratios._replace(others=others)


@WeightedMetric
def matthews(golds: Sequence[Any], predictions: Sequence[Any]) -> Measure:
    """Computes `matthews`, the Matthews correlation coefficient of two or more classes.

    Of more than two, it is that of Gorodkin (2004).
    """
    counts = _class_counts(golds, predictions)

    def others(weights: Weights) -> Values:
        hits, support, guesses = counts(weights)
        total = weights.sum(1)
        of_gold = total**2 - np.sum(support**2, axis=1)
        of_guesses = total**2 - np.sum(guesses**2, axis=1)
        spread = np.maximum(of_gold * of_guesses, 0)
        covariance = hits.sum(1) * total - np.sum(support * guesses, axis=1)
        return {"matthews": ratio(covariance, np.sqrt(spread))}

    return Measure(len(golds), {}, others)


@WeightedMetric
def pearson_spearman(golds: Sequence[float], predictions: Sequence[float]) -> Measure:
    """Computes the `pearson` and `spearman` correlations of `golds` and `predictions`.

    The mean of the two correlations, `pearson_spearman`, is the metric by which GLUE ranks models.
    """
    x = _varying(golds)
    y = _varying(predictions)
    rank_x = _ranks(x)
    rank_y = _ranks(y)

    def others(weights: Weights) -> Values:
        pearson = _correlation(weights, x, y)
        spearman = _correlation(weights, rank_x(weights), rank_y(weights))
        mean = (pearson + spearman) / 2
        return {"pearson": pearson, "spearman": spearman, "pearson_spearman": mean}

    return Measure(len(golds), {}, others)


def _varying(values: Sequence[float]) -> np.ndarray:
    """Returns values as float [N], or zeros if they have no correlation with any others."""
    numbers = np.array(values, np.float64)
    if np.isfinite(numbers).all() and np.ptp(numbers) > 0:
        return numbers
    return np.zeros(len(numbers))


def _correlation(weights: Weights, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Computes the weighted Pearson correlation of x and y, [N] or [draws, N]."""
    total = weights.sum(1, keepdims=True)
    x = x - np.sum(weights * x, axis=1, keepdims=True) / total
    y = y - np.sum(weights * y, axis=1, keepdims=True) / total
    weighted = weights * x
    spread = np.sqrt(np.sum(weighted * x, axis=1))
    spread = spread * np.sqrt(np.sum(weights * y**2, axis=1))
    covariance = np.sum(weighted * y, axis=1)
    return np.clip(ratio(covariance, spread), -1, 1)


def _ranks(values: np.ndarray) -> Callable[[Weights], np.ndarray]:
    """Returns a function (weights) -> the ranks of `values` in each draw, [draws, N].

    Equal values have the mean of their ranks, as in Spearman's correlation.
    """
    order = np.argsort(values, kind="stable")
    _, tie, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1

    def ranks(weights: Weights) -> np.ndarray:
        cumulative = np.cumsum(weights[:, order], axis=1)
        upto = cumulative[:, last]  # [draws, different values]
        below = np.pad(upto[:, :-1], ((0, 0), (1, 0)))
        of_values = (below + upto + 1) / 2
        return of_values[:, tie]

    return ranks


@WeightedMetric
def regression_metrics(golds: Sequence[float], predictions: Sequence[float]) -> Measure:
    """Computes the correlations, `r2`, and `mae` and `rmse`, which have the unit of the labels."""
    correlations = pearson_spearman.measure(golds, predictions)
    errors = np.array(golds, np.float64) - np.array(predictions, np.float64)
    if not np.isfinite(errors).all():
        errors = np.full(len(errors), np.nan)
    x = _varying(golds)
    centred = x - x.mean()

    def others(weights: Weights) -> Values:
        total = weights.sum(1)
        squares = weights @ errors**2
        spread = weights @ centred**2 - (weights @ centred) ** 2 / total
        explained = 1 - ratio(squares, spread, 1.0)
        return {
            **correlations.others(weights),
            "mae": weights @ np.abs(errors) / total,
            "rmse": np.sqrt(squares / total),
            "r2": explained,
        }

    return Measure(len(golds), {}, others)


Targets = Mapping[str, float | None]
# The scores of each target.
OF_TARGET = ("pearson_spearman", "pearson", "mae")


@WeightedMetric
def targets_metrics(
    golds: Sequence[Targets], predictions: Sequence[Mapping[str, float]]
) -> Measure:
    """Computes `regression_metrics` of several targets: their means, and `OF_TARGET` of each.

    Targets of an example that are None are left out, and so are targets that no example has. In
    draws without an example that has a target, the values of this target are NaN.
    """
    parts: dict[str, tuple[np.ndarray, Measure]] = {}
    for name in golds[0]:
        x = np.array([gold[name] for gold in golds], np.float64)  # None becomes NaN
        y = np.array([answer[name] for answer in predictions], np.float64)
        is_present = np.isfinite(x)
        if is_present.any():
            parts[name] = is_present, regression_metrics.measure(x[is_present], y[is_present])

    def others(weights: Weights) -> Values:
        of_targets = {}
        for name, (is_present, of_target) in parts.items():
            own = weights[:, is_present]
            total = own.sum(1)
            own[total == 0] = np.nan
            with np.errstate(invalid="ignore"):
                values = of_target.scores(own)
            for metric, value in values.items():
                values[metric] = np.where(total > 0, value, np.nan)
            of_targets[name] = values
        return _with_means(of_targets)

    return Measure(len(golds), {}, others)


def _with_means(of_targets: Mapping[str, Values]) -> Values:
    """Returns the means of the scores of targets, and `OF_TARGET` of each, such as "joy_mae"."""
    values = {}
    for metric in next(iter(of_targets.values())):
        table = [scores[metric] for scores in of_targets.values()]
        values[metric] = np.mean(table, axis=0)
    for name, scores in of_targets.items():
        for metric in OF_TARGET:
            values[f"{name}_{metric}"] = scores[metric]
    return values


@WeightedMetric
def multi_label(golds: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> Measure:
    """Computes multi-label metrics, for examples that may have several labels or none.

    `micro_f1` is the F1 over all pairs of example and class; `macro_f1` the mean F1 of the classes
    that occur; and `subset_accuracy` the fraction of examples whose predicted labels equal the gold
    labels.

    Raises:
        ValueError: there are no examples, or not as many predictions as labels.
    """
    counts = _class_counts(golds, predictions)
    examples = []
    for gold, answer in zip(golds, predictions, strict=True):
        both = {*gold} & {*answer}
        is_equal = {*gold} == {*answer}
        f1 = (2 * len(both), len(gold) + len(answer))
        examples.append({"micro_f1": f1, "macro_f1": f1, "subset_accuracy": (is_equal, 1)})
    measure = measure_of_ratios(examples)

    def others(weights: Weights) -> Values:
        hits, support, guesses = counts(weights)
        return {"macro_f1": _macro_f1(hits, support, guesses)}

    return measure._replace(others=others)


def label_metrics(
    name: str,
    golds: Sequence[Any],
    predictions: Sequence[Any],
    probabilities: Sequence[float],
    models: Sequence[int],
) -> Measure:
    """Returns the measure of `sensitivity`, `specificity` and `auroc` of the label `name`.

    `auroc` is the share of pairs of an example with the label and one without it in which the first
    has the higher of the label's `probabilities` (Hanley and McNeil 1982); ties count half. Those
    of different `models` are not compared. An example has one label or a tuple of several.
    """
    gold = np.array([name in labels for labels in _tuples(golds)])
    answer = np.array([name in labels for labels in _tuples(predictions)])
    rarer = gold if gold.mean() < 0.5 else ~gold
    ratios = {
        "sensitivity": np.stack([gold & answer, gold]),
        "specificity": np.stack([~gold & ~answer, ~gold]),
        "auroc": np.stack([rarer, rarer]),  # what it counts: see `Measure.others`
    }

    def others(weights: Weights) -> Values:
        right = np.zeros(len(weights))
        pairs = np.zeros(len(weights))
        for model in np.unique(models):
            own = np.flatnonzero(np.equal(models, model))
            of_own = weights[:, own]
            ranks = _ranks(np.take(probabilities, own))
            positives = of_own @ gold[own]
            right += (of_own * ranks(of_own)) @ gold[own] - positives * (positives + 1) / 2
            pairs += positives * (of_own @ ~gold[own])
        return {"auroc": ratio(right, pairs, np.nan)}

    return Measure(len(gold), ratios, others)


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns (first word, last word + 1, type) for each entity that the tags of a sentence mark.

    An entity of type X starts at `B-X`, and at an `I-X` that does not continue an entity of type X.
    Like conlleval, the function accepts IOB1, IOB2 and inconsistent tags. A word with a tag other
    than `B-X` or `I-X` belongs to no entity.
    """
    spans = []
    start = 0
    kind = None  # no entity is open; entities tagged B and I have the type ""
    for index, tag in enumerate((*tags, "O")):
        prefix, _, tag_kind = tag.partition("-")
        if prefix not in ("B", "I"):
            tag_kind = None
        if prefix != "B" and tag_kind == kind:
            continue
        if kind is not None:
            spans.append((start, index, kind))
        start = index
        kind = tag_kind
    return spans


@WeightedMetric
def entity_f1(golds: Tags, predictions: Tags, cut: Sequence[Collection[int]] = ()) -> Measure:
    """Computes conlleval's metrics: `precision`, `recall`, `f1` of entities, `accuracy` of tags.

    A predicted entity is correct if its first word, last word and type equal those in a gold
    entity. Each sentence has a tag per word, in IOB1 or IOB2. `cut` has the first words of the gold
    entities of each sentence that begin or end within a word, so that no prediction equals them.

    Raises:
        ValueError: the number of predicted tags of a sentence differs from its number of words.
    """
    sentences = []
    rows = zip(golds, predictions, cut or itertools.repeat(()), strict=False)
    for number, (gold, answer, missed) in enumerate(rows, 1):
        if len(gold) != len(answer):
            raise ValueError(
                f"Sentence {number} has {len(gold)} words but {len(answer)} predicted tags: "
                "predict one tag for each word."
            )
        sentences.append(entity_ratios(gold, answer, missed))
    return measure_of_ratios(sentences)


def entity_ratios(gold: Sequence[str], answer: Sequence[str], cut: Collection[int] = ()) -> Ratios:
    """Returns the ratios of `entity_f1` of one sentence."""
    expected = entities(gold)
    predicted = entities(answer)
    right = 0
    for entity in {*expected}.intersection(predicted):
        right += entity[0] not in cut
    right_words = sum(map(operator.eq, gold, answer))
    return {
        "precision": (right, len(predicted)),
        "recall": (right, len(expected)),
        "f1": (2 * right, len(expected) + len(predicted)),
        "accuracy": (right_words, len(gold)),
    }


@WeightedMetric
def word_accuracy(golds: Tags, predictions: Tags, cut: Sequence[Collection[int]] = ()) -> Measure:
    """Computes `accuracy`, the fraction of words with the correct tag, as for parts of speech."""
    measure = entity_f1.measure(golds, predictions)
    return measure._replace(ratios={"accuracy": measure.ratios["accuracy"]})


def _check_lengths(golds: Sequence[Any], predictions: Sequence[Any]) -> None:
    if len(golds) != len(predictions):
        raise ValueError(
            f"{len(golds):,} labels, but {len(predictions):,} predictions: give one prediction per "
            "labelled example, in the order of the labels."
        )
    if not len(golds):
        raise ValueError("There is nothing to score: no example has a label. Add labels.")


# A document is relevant from this gain on: the grades 1, 2 and so on, and 1 of scores from 0 to 1.
RELEVANT = 0.5


def ranked_gains(scores: Mapping[str, float], gains: Mapping[str, float]) -> list[float]:
    """Returns the gains of one query's documents, {id: score}, in the order of their scores.

    Documents without a gain have 0. As in trec_eval, scores are compared in float32, and of equal
    ones, the document with the greater id, as a text, comes first.
    """
    order = sorted(scores, key=lambda name: (np.float32(scores[name]), name), reverse=True)
    return [max(gains.get(name, 0.0), 0.0) for name in order]


def ndcg(ranked: Sequence[float], gains: Iterable[float], k: int) -> float:
    """Computes the nDCG of the first `k` gains of a ranking (Jarvelin and Kekalainen 2002).

    It is that of trec_eval's ndcg_cut: a gain is divided by log2(1 + rank). `gains` are those of
    all judged documents of the query, in any order, from which the best ranking follows.
    """
    best = sorted((max(gain, 0.0) for gain in gains), reverse=True)
    ideal = _discounted(best[:k])
    if ideal:
        return _discounted(ranked[:k]) / ideal
    return 0.0


def _discounted(gains: Sequence[float]) -> float:
    total = 0.0
    for rank, gain in enumerate(gains, 1):  # in trec_eval's order, so that all bits are the same
        total += gain / math.log2(1 + rank)
    return total


def mrr(ranked: Sequence[float], k: int) -> float:
    """Returns 1 / the rank of the first relevant one of the first `k` gains of a ranking, or 0."""
    for rank, gain in enumerate(ranked[:k], 1):
        if gain >= RELEVANT:
            return 1 / rank
    return 0.0


def average_precision(ranked: Sequence[float], gains: Iterable[float]) -> float:
    """Computes the mean of the precisions at the ranks of all relevant documents of a query."""
    found = precisions = 0
    for rank, gain in enumerate(ranked, 1):
        if gain >= RELEVANT:
            found += 1
            precisions += found / rank
    return precisions / max(_relevant(gains), 1)


def recall(ranked: Sequence[float], gains: Iterable[float], k: int) -> float:
    """Computes the fraction of a query's relevant documents that are among the first `k`."""
    return _relevant(ranked[:k]) / max(_relevant(gains), 1)


def _relevant(gains: Iterable[float]) -> int:
    return sum(gain >= RELEVANT for gain in gains)


_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Question id -> texts of the accepted answers; no texts if the question has no answer.
Golds = Mapping[str, Sequence[str]]
Words = Callable[[str], list[str]]


def normalize_answer(text: str) -> str:
    """Lower-cases an answer and removes ASCII punctuation, a/an/the and repeated spaces."""
    # The order matters: "a.m." must become "am" before the article "a" is removed.
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def words_and_characters(text: str) -> list[str]:
    """Splits a text into words, and into characters where its script has no spaces."""
    return regex.sub(rf"(?V1){CHARACTER}", r" \g<0> ", text).split()


def token_f1(gold: Sequence[str], answer: Sequence[str]) -> float:
    """Computes the F1 of two bags of words (Rajpurkar et al. 2016, 6.1)."""
    common = (Counter(gold) & Counter(answer)).total()
    if not common:
        return 0.0
    precision = common / len(answer)
    recall = common / len(gold)
    return 2 * precision * recall / (precision + recall)


@WeightedMetric
def squad1(golds: Golds, predictions: Mapping[str, str], words: Words = str.split) -> Measure:
    """Computes SQuAD 1.1's `exact_match` and `f1`, as means over the questions.

    For each question, the accepted answer with the best value counts. A question without a
    prediction counts as wrong. `words` splits an answer into the words that F1 compares.

    Raises:
        ValueError: there are no questions, or a question has no accepted answer.
    """
    _check_any(golds)
    questions = []
    for name, texts in golds.items():
        if not texts:
            raise ValueError(
                f"Question {name!r} has no answer, which SQuAD 1.1 does not allow: score with "
                "--task=squad2, or leave the question out."
            )
        ratios: Ratios = {"exact_match": (0, 1), "f1": (0, 1)}
        if name in predictions:
            ratios = squad1_ratios(texts, predictions[name], words)
        questions.append(ratios)
    return measure_of_ratios(questions)


def squad1_ratios(texts: Sequence[str], answer: str, words: Words = str.split) -> Ratios:
    """Returns the ratios of `squad1` of a question with accepted `texts`."""
    answer = normalize_answer(answer)
    normalized = list(map(normalize_answer, texts))
    f1 = _best_f1(normalized, answer, words)
    return {"exact_match": (answer in normalized, 1), "f1": (f1, 1)}


@WeightedMetric
def squad2(
    golds: Golds,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
    words: Words = str.split,
) -> Measure:
    """Computes SQuAD 2.0's metrics, for questions that may have no answer (predicted as "").

    Args:
        golds: the accepted answers of each question.
        predictions: the predicted answer of each question.
        null_odds: a score for each question; a high score means that there is probably no answer.
        threshold: value of `null_odds` above which the prediction for a question counts as "".
        words: splits an answer into the words that F1 compares.

    The metrics are `exact`, `f1` and `total`, the number of questions; the same with the prefix
    `HasAns_` or `NoAns_` for the questions with or without an answer, if there are any; with
    `null_odds`, also `best_exact` and `best_f1`, the highest values that any threshold gives, and
    the thresholds `best_exact_thresh` and `best_f1_thresh`.

    Raises:
        ValueError: there are no questions, or a question has no prediction or no score in
            `null_odds`; evaluate-v2.0.py also fails on such input.
    """
    _check_any(golds)
    _check_all(golds, predictions, "prediction")
    if null_odds is not None:
        _check_all(golds, null_odds, "odds of having no answer")
    exact = {}
    f1 = {}
    questions = []
    for name, texts in golds.items():
        exact[name], f1[name] = _squad2_scores(texts, predictions[name], words)
        score = exact[name], f1[name]
        if null_odds is not None and null_odds[name] > threshold:
            is_right = float(not texts)
            score = is_right, is_right
        questions.append(_in_parts(texts, *score))
    measure = measure_of_ratios(questions)
    constants: dict[str, float] = {}
    for name, (_, counts) in measure.ratios.items():
        if name.endswith("exact"):
            constants[name.replace("exact", "total")] = int(counts.sum())
    if null_odds is not None:
        for key, of_key in (("exact", exact), ("f1", f1)):
            best, best_threshold = _best_threshold(golds, predictions, of_key, null_odds)
            constants |= {f"best_{key}": best, f"best_{key}_thresh": best_threshold}

    def others(weights: Weights) -> Values:
        return {name: np.full(len(weights), value) for name, value in constants.items()}

    return measure._replace(others=others)


def squad2_ratios(texts: Sequence[str], answer: str, words: Words = str.split) -> Ratios:
    """Returns the ratios of `squad2` of a question with accepted `texts`, perhaps none."""
    return _in_parts(texts, *_squad2_scores(texts, answer, words))


def _in_parts(texts: Sequence[str], exact: float, f1: float) -> Ratios:
    part = "NoAns"
    if texts:
        part = "HasAns"
    return {
        "exact": (exact, 1),
        "f1": (f1, 1),
        f"{part}_exact": (exact, 1),
        f"{part}_f1": (f1, 1),
    }


def _squad2_scores(texts: Sequence[str], answer: str, words: Words) -> tuple[float, float]:
    """Returns the highest exact match and F1 over `texts`; if there are none, "" is correct."""
    answer = normalize_answer(answer)
    # Accepted answers that consist only of articles and punctuation are ignored.
    normalized = [*filter(None, map(normalize_answer, texts))] or [""]
    equal = float(answer in normalized)
    if not answer or normalized == [""]:
        return equal, equal
    return equal, _best_f1(normalized, answer, words)


def _best_f1(texts: Sequence[str], answer: str, words: Words) -> float:
    return max(token_f1(words(text), words(answer)) for text in texts)


def _best_threshold(
    golds: Golds,
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """Returns (highest mean exact match or F1 that any threshold gives, this threshold).

    As in evaluate-v2.0.py, even questions with equal odds are replaced one by one, although no
    threshold separates them.
    """
    score = best = float(sum(not texts for texts in golds.values()))
    best_threshold = 0.0
    for name in sorted(null_odds, key=null_odds.__getitem__):
        if name not in golds:
            continue
        if golds[name]:
            score += scores[name]
        elif predictions[name]:
            score -= 1
        if score > best:
            best = score
            best_threshold = null_odds[name]
    return best / len(golds), best_threshold


def _check_any(golds: Golds) -> None:
    if not golds:
        raise ValueError("There is nothing to score: the gold file has no questions.")


def _check_all(golds: Golds, values: Mapping[str, object], what: str) -> None:
    missing = [name for name in golds if name not in values]
    if missing:
        raise ValueError(
            f"{len(missing):,} of {len(golds):,} questions have no {what}, the first is "
            f'{missing[0]!r}. Add the missing values; the prediction "" means no answer.'
        )
