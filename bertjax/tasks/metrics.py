"""Evaluation metrics of the tasks.

A metric is a function of the labels and the predicted labels of the same examples in the same
order. A metric returns a dict of fractions (1.0 is perfect) or correlations, never percentages.
Undefined values, such as the F1 without positives or the correlation with a constant, are 0.0.
The values equal those from scikit-learn and SciPy, with which GLUE is scored (Wang et al. 2018),
from conlleval (Tjong Kim Sang and De Meulder 2003), and from SQuAD's evaluate-v1.1.py and
evaluate-v2.0.py (Rajpurkar et al. 2016; 2018).
"""

import itertools
import math
import operator
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import regex

from bertjax.tokenization.base import CHARACTER

# scipy and scikit-learn are imported where they are used: their import would delay `--help`.

Metric = Callable[..., dict[str, float]]
Tags = Sequence[Sequence[str]]

_UNDEFINED: Any = 0.0  # scikit-learn's type hint says str, but it accepts numbers.
# Metrics whose names have these endings are counts, thresholds, losses or have the unit of the
# targets; all others are fractions or correlations.
LOWER_IS_BETTER = ("loss", "mae", "rmse")
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


def accuracy(golds: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Computes `accuracy`, the fraction of predictions that equal the label.

    Raises:
        ValueError: there are no examples, or not as many predictions as labels.
    """
    _check_lengths(golds, predictions)
    return {"accuracy": sum(map(operator.eq, golds, predictions)) / len(golds)}


def class_metrics(golds: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Computes `accuracy`, `macro_f1` and `weighted_f1`, as scikit-learn does by default.

    `macro_f1` is the mean of the F1 of the classes that occur, so that rare classes count as much
    as frequent ones; `weighted_f1` weights each class by its number of examples in `golds`.
    """
    from sklearn.metrics import f1_score

    values = accuracy(golds, predictions)
    gold = list(map(str, golds))
    predicted = list(map(str, predictions))
    for average in ("macro", "weighted"):
        score = f1_score(gold, predicted, average=average, zero_division=_UNDEFINED)
        values[f"{average}_f1"] = float(score)
    return values


def ordinal_metrics(golds: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Computes `class_metrics`, and `mae` and `quadratic_kappa` of classes that are whole numbers.

    `quadratic_kappa` is Cohen's kappa with quadratic weights (Cohen 1968).
    """
    values = class_metrics(golds, predictions)
    x = np.array(golds, np.float64)
    y = np.array(predictions, np.float64)
    squares = np.sum((x - y) ** 2)
    # What they would be if labels and predictions were independent; both are whole numbers.
    expected = len(x) * np.sum(x**2 + y**2) - 2 * x.sum() * y.sum()
    values["mae"] = float(np.mean(np.abs(x - y)))
    values["quadratic_kappa"] = float(1 - len(x) * squares / expected) if expected else 0.0
    return values


def accuracy_and_f1(
    golds: Sequence[Any], predictions: Sequence[Any], *, positive: Any
) -> dict[str, float]:
    """Computes `accuracy`, `f1` of the class `positive`, and the mean of both, `accuracy_f1`."""
    from sklearn.metrics import f1_score

    values = accuracy(golds, predictions)
    is_gold = [gold == positive for gold in golds]
    is_predicted = [answer == positive for answer in predictions]
    values["f1"] = float(f1_score(is_gold, is_predicted, zero_division=_UNDEFINED))
    return values | {"accuracy_f1": (values["accuracy"] + values["f1"]) / 2}


def matthews(golds: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Computes `matthews`, the Matthews correlation coefficient of two or more classes."""
    from sklearn.metrics import matthews_corrcoef

    _check_lengths(golds, predictions)
    if len(set(golds)) == 1 or len(set(predictions)) == 1:
        return {"matthews": 0.0}  # scikit-learn warns if both are constant
    return {"matthews": float(matthews_corrcoef(list(golds), list(predictions)))}


def pearson_spearman(golds: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Computes the `pearson` and `spearman` correlations of `golds` and `predictions`.

    The mean of the two correlations, `pearson_spearman`, is the metric by which GLUE ranks models.
    """
    from scipy import stats

    _check_lengths(golds, predictions)
    x, y = np.array([golds, predictions], np.float64)
    pearson = spearman = 0.0
    if np.isfinite([x, y]).all() and np.ptp(x) > 0 and np.ptp(y) > 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.NearConstantInputWarning)
            pearson = _statistic(stats.pearsonr(x, y))
            spearman = _statistic(stats.spearmanr(x, y))
    mean = (pearson + spearman) / 2
    return {"pearson": pearson, "spearman": spearman, "pearson_spearman": mean}


def _statistic(result: Any) -> float:
    return float(np.nan_to_num(result.statistic))


def regression_metrics(golds: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Computes the correlations, `r2`, and `mae` and `rmse`, which have the unit of the labels."""
    values = pearson_spearman(golds, predictions)
    x, y = np.array([golds, predictions], np.float64)
    error = float(np.mean((x - y) ** 2))
    spread = float(np.var(x))
    values["mae"] = float(np.mean(np.abs(x - y)))
    values["rmse"] = error**0.5
    values["r2"] = 1 - error / spread if spread else 0.0
    return values


Targets = Mapping[str, float | None]
# The scores of each target.
OF_TARGET = ("pearson_spearman", "pearson", "mae")


def targets_metrics(
    golds: Sequence[Targets], predictions: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Computes `regression_metrics` of several targets: their means, and `OF_TARGET` of each.

    Targets of an example that are None are left out, and so are targets that no example has.
    """
    _check_lengths(golds, predictions)
    of_targets = {}
    for name in golds[0]:
        pairs = [(x[name], y[name]) for x, y in zip(golds, predictions, strict=True)]
        present = [pair for pair in pairs if pair[0] is not None]
        if present:
            of_targets[name] = regression_metrics(*zip(*present, strict=True))
    return with_means(of_targets)


def with_means(of_targets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the means of the scores of targets, and `OF_TARGET` of each, such as "joy_mae"."""
    values = {}
    for metric in next(iter(of_targets.values())):
        values[metric] = sum(scores[metric] for scores in of_targets.values()) / len(of_targets)
    for name, scores in of_targets.items():
        for metric in OF_TARGET:
            values[f"{name}_{metric}"] = scores[metric]
    return values


def multi_label(
    golds: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Computes multi-label metrics, for examples that may have several labels or none.

    `micro_f1` is the F1 over all pairs of example and class; `macro_f1` the mean F1 of the classes
    that occur; and `subset_accuracy` the fraction of examples whose predicted labels equal the gold
    labels.

    Raises:
        ValueError: there are no examples, or not as many predictions as labels.
    """
    from sklearn.metrics import accuracy_score, f1_score
    from sklearn.preprocessing import MultiLabelBinarizer

    _check_lengths(golds, predictions)
    binarizer = MultiLabelBinarizer().fit([*golds, *predictions])
    if not len(binarizer.classes_):  # no example has a label, which all predictions say
        return {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0}
    gold = binarizer.transform(golds)
    predicted = binarizer.transform(predictions)
    values = {}
    for average in ("micro", "macro"):
        score = f1_score(gold, predicted, average=average, zero_division=_UNDEFINED)
        values[f"{average}_f1"] = float(score)
    values["subset_accuracy"] = float(accuracy_score(gold, predicted))
    return values


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns (first word, last word + 1, type) for each entity that the tags of a sentence mark.

    An entity of type X starts at `B-X`, and at an `I-X` that does not continue an entity of type X.
    Like conlleval, the function accepts IOB1, IOB2 and inconsistent tags. A word with a tag other
    than `B-X` or `I-X` belongs to no entity.
    """
    spans = []
    start, kind = 0, None  # None: no entity is open. Entities tagged B and I have the type "".
    for index, tag in enumerate((*tags, "O")):
        prefix, _, tag_kind = tag.partition("-")
        tag_kind = tag_kind if prefix in ("B", "I") else None
        if kind is not None and (prefix == "B" or tag_kind != kind):
            spans.append((start, index, kind))
        if prefix == "B" or tag_kind != kind:
            start = index
            kind = tag_kind
    return spans


def entity_f1(
    golds: Tags, predictions: Tags, cut: Sequence[Collection[int]] = ()
) -> dict[str, float]:
    """Computes conlleval's metrics: `precision`, `recall`, `f1` of entities, `accuracy` of tags.

    A predicted entity is correct if its first word, last word and type equal those in a gold
    entity. Each sentence has a tag per word, in IOB1 or IOB2. `cut` has the first words of the gold
    entities of each sentence that begin or end within a word, so that no prediction equals them.

    Raises:
        ValueError: the number of predicted tags of a sentence differs from its number of words.
    """
    _check_lengths(golds, predictions)
    sums = EntityCounts(0, 0, 0, 0, 0)
    rows = zip(golds, predictions, cut or itertools.repeat(()), strict=False)
    for number, (gold, answer, missed) in enumerate(rows, 1):
        if len(gold) != len(answer):
            raise ValueError(
                f"Sentence {number} has {len(gold)} words but {len(answer)} predicted tags: "
                "predict one tag for each word."
            )
        counts = entity_counts(gold, answer, missed)
        sums = EntityCounts(*map(sum, zip(sums, counts, strict=True)))
    return {
        "precision": sums.right / max(sums.in_predictions, 1),
        "recall": sums.right / max(sums.in_golds, 1),
        "f1": 2 * sums.right / max(sums.in_golds + sums.in_predictions, 1),
        "accuracy": sums.right_words / max(sums.words, 1),
    }


class EntityCounts(NamedTuple):
    """Numbers of entities and words; those that are right equal the gold ones."""

    right: int
    in_golds: int
    in_predictions: int
    words: int
    right_words: int


def entity_counts(
    gold: Sequence[str], answer: Sequence[str], cut: Collection[int] = ()
) -> EntityCounts:
    """Counts the entities and words of one sentence, as `entity_f1` does."""
    expected = entities(gold)
    predicted = entities(answer)
    right = 0
    for entity in {*expected}.intersection(predicted):
        right += entity[0] not in cut
    right_words = sum(map(operator.eq, gold, answer))
    return EntityCounts(right, len(expected), len(predicted), len(gold), right_words)


def word_accuracy(
    golds: Tags, predictions: Tags, cut: Sequence[Collection[int]] = ()
) -> dict[str, float]:
    """Computes `accuracy`, the fraction of words with the correct tag, as for parts of speech."""
    return {"accuracy": entity_f1(golds, predictions)["accuracy"]}


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


def squad1(
    golds: Golds, predictions: Mapping[str, str], words: Words = str.split
) -> dict[str, float]:
    """Computes SQuAD 1.1's `exact_match` and `f1`, as means over the questions.

    For each question, the accepted answer with the best value counts. A question without a
    prediction counts as wrong. `words` splits an answer into the words that F1 compares.

    Raises:
        ValueError: there are no questions, or a question has no accepted answer.
    """
    _check_any(golds)
    exact = f1 = 0.0
    for name, texts in golds.items():
        if not texts:
            raise ValueError(
                f"Question {name!r} has no answer, which SQuAD 1.1 does not allow: score with "
                "--task=squad2, or leave the question out."
            )
        if name in predictions:
            scores = squad1_scores(texts, predictions[name], words)
            exact = exact + scores[0]
            f1 = f1 + scores[1]
    return {"exact_match": exact / len(golds), "f1": f1 / len(golds)}


def squad1_scores(
    texts: Sequence[str], answer: str, words: Words = str.split
) -> tuple[float, float]:
    """Returns the highest exact match and F1 of an answer over the accepted `texts`."""
    answer = normalize_answer(answer)
    normalized = list(map(normalize_answer, texts))
    return float(answer in normalized), _best_f1(normalized, answer, words)


def squad2(
    golds: Golds,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
    words: Words = str.split,
) -> dict[str, float]:
    """Computes SQuAD 2.0's metrics, for questions that may have no answer (predicted as "").

    Args:
        golds: the accepted answers of each question.
        predictions: the predicted answer of each question.
        null_odds: a score for each question; a high score means that there is probably no answer.
        threshold: value of `null_odds` above which the prediction for a question counts as "".
        words: splits an answer into the words that F1 compares.

    Returns:
        `exact`, `f1` and `total`, the number of questions; the same with the prefix `HasAns_` or
        `NoAns_` for the questions with or without an answer, if there are any; with `null_odds`,
        also `best_exact` and `best_f1`, the highest values that any threshold gives, and the
        thresholds `best_exact_thresh` and `best_f1_thresh`.

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
    values: dict[str, float] = {}
    groups: dict[str, list[tuple[float, float]]] = {"": [], "HasAns_": [], "NoAns_": []}
    for name, texts in golds.items():
        score = exact[name], f1[name] = squad2_scores(texts, predictions[name], words)
        if null_odds is not None and null_odds[name] > threshold:
            score = (float(not texts), float(not texts))
        groups[""].append(score)
        groups["HasAns_" if texts else "NoAns_"].append(score)
    for group, scores in groups.items():
        if scores:
            for key, column in zip(("exact", "f1"), zip(*scores, strict=True), strict=True):
                values[group + key] = sum(column) / len(scores)
            values[f"{group}total"] = len(scores)
    if null_odds is not None:
        for key, of_key in (("exact", exact), ("f1", f1)):
            best, best_threshold = _best_threshold(golds, predictions, of_key, null_odds)
            values |= {f"best_{key}": best, f"best_{key}_thresh": best_threshold}
    return values


def squad2_scores(
    texts: Sequence[str], answer: str, words: Words = str.split
) -> tuple[float, float]:
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
