"""What predictions are worth beside the labels: the metrics that each task is officially ranked by.

A metric takes the labels and the predictions of the same examples in the same order, and returns
its values by name. All are fractions (1.0 is perfect) or correlations; nothing is in per cent. A
value that is not defined (an F1 without any positive, a correlation with a constant) is 0.0.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef
from sklearn.preprocessing import MultiLabelBinarizer

Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]

_UNDEFINED: Any = 0.0  # a number is right, though the library's own hint says str


def accuracy(golds: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Share of equal pairs, as `accuracy`."""
    _check_lengths(golds, predictions)
    equal = sum(gold == answer for gold, answer in zip(golds, predictions, strict=True))
    return {"accuracy": equal / len(golds)}


def accuracy_and_f1(
    golds: Sequence[Any], predictions: Sequence[Any], *, positive: Any
) -> dict[str, float]:
    """`accuracy`, `f1` of the class `positive`, and `accuracy_f1`, their mean, as GLUE ranks."""
    values = accuracy(golds, predictions)
    is_gold = [gold == positive for gold in golds]
    is_predicted = [answer == positive for answer in predictions]
    values["f1"] = float(f1_score(is_gold, is_predicted, zero_division=_UNDEFINED))
    return values | {"accuracy_f1": (values["accuracy"] + values["f1"]) / 2}


def matthews(golds: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Matthews's correlation of two or more classes, as `matthews`."""
    _check_lengths(golds, predictions)
    if len(set(golds)) == 1 or len(set(predictions)) == 1:
        return {"matthews": 0.0}  # the library warns if both are constant
    return {"matthews": float(matthews_corrcoef(list(golds), list(predictions)))}


def pearson_spearman(golds: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Correlations of the values (`pearson`), of their ranks (`spearman`), and their mean.

    The mean, `pearson_spearman`, is what GLUE ranks by.
    """
    _check_lengths(golds, predictions)
    x, y = np.asarray(golds, np.float64), np.asarray(predictions, np.float64)
    values = {"pearson": 0.0, "spearman": 0.0}
    if np.isfinite(x).all() and np.isfinite(y).all() and np.ptp(x) > 0 and np.ptp(y) > 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.NearConstantInputWarning)
            results: dict[str, Any] = {
                "pearson": stats.pearsonr(x, y),
                "spearman": stats.spearmanr(x, y),
            }
        values = {name: float(np.nan_to_num(r.statistic)) for name, r in results.items()}
    return values | {"pearson_spearman": (values["pearson"] + values["spearman"]) / 2}


def multi_label(
    golds: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    *,
    labels: Sequence[str] | None = None,
) -> dict[str, float]:
    """Metrics of examples that have any number of labels each.

    Returns:
        `micro_f1` over all decisions, `macro_f1`, the mean over the classes, and
        `subset_accuracy`, the share of examples whose labels are all right. The classes are
        `labels`, or else those that occur.
    """
    _check_lengths(golds, predictions)
    equal = sum(set(gold) == set(answer) for gold, answer in zip(golds, predictions, strict=True))
    values = {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": equal / len(golds)}
    occurring = {label for row in (*golds, *predictions) for label in row}
    classes = sorted(occurring) if labels is None else list(labels)
    if occurring:
        binarizer = MultiLabelBinarizer(classes=classes)
        gold, predicted = binarizer.fit_transform(golds), binarizer.transform(predictions)
        for average in ("micro", "macro"):
            score = f1_score(gold, predicted, average=average, zero_division=_UNDEFINED)
            values[f"{average}_f1"] = float(score)
    return values


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first word, word behind the last, type) of each entity of a sentence, as conlleval finds it.

    An entity starts at `B-X`, and at an `I-X` that continues none of type X, so that the schemes
    IOB1 and IOB2 are read alike, and sloppy predictions as well. Any other tag is outside.
    """
    found = []
    start, kind = 0, ""  # no type: in no entity
    for index, tag in enumerate((*tags, "O")):
        prefix, _, tag_kind = tag.partition("-")
        tag_kind = tag_kind if prefix in ("B", "I") else ""
        if kind and (prefix == "B" or tag_kind != kind):
            found.append((start, index, kind))
        if prefix == "B" or tag_kind != kind:
            start, kind = index, tag_kind
    return found


def entity_f1(
    golds: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """`precision`, `recall` and `f1` of whole entities, and `accuracy` of tags, as conlleval.

    Args:
        golds: a tag for each word of each sentence.
        predictions: likewise.

    Raises:
        ValueError: a sentence has another number of tags in the two.
    """
    _check_lengths(golds, predictions)
    right = in_golds = in_predictions = words = right_words = 0
    for index, (gold, answer) in enumerate(zip(golds, predictions, strict=True)):
        if len(gold) != len(answer):
            raise ValueError(
                f"Sentence {index + 1} has {len(gold)} words but {len(answer)} predicted tags: "
                "predict one tag for each word."
            )
        gold_entities, answer_entities = entities(gold), entities(answer)
        right += len(set(gold_entities) & set(answer_entities))
        in_golds += len(gold_entities)
        in_predictions += len(answer_entities)
        words += len(gold)
        right_words += sum(a == b for a, b in zip(gold, answer, strict=True))
    return {
        "precision": right / max(in_predictions, 1),
        "recall": right / max(in_golds, 1),
        "f1": 2 * right / max(in_golds + in_predictions, 1),
        "accuracy": right_words / max(words, 1),
    }


def word_accuracy(
    golds: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """`accuracy` of tags alone, as `entity_f1`: for those that mark no entities."""
    return {"accuracy": entity_f1(golds, predictions)["accuracy"]}


def _check_lengths(golds: Sequence[Any], predictions: Sequence[Any]) -> None:
    if len(golds) != len(predictions):
        raise ValueError(
            f"{len(golds):,} labels, but {len(predictions):,} predictions: predict each labelled "
            "example once, in the order of the labels."
        )
    if not len(golds):
        raise ValueError("There is nothing to score: no example has a label.")


# The metric of each task by its name; its labels are the names of the classes.
METRICS: Mapping[str, Metric] = {
    "cola": matthews,
    "sst2": accuracy,
    "mrpc": functools.partial(accuracy_and_f1, positive="equivalent"),
    "stsb": pearson_spearman,
    "qqp": functools.partial(accuracy_and_f1, positive="duplicate"),
    "mnli": accuracy,
    "qnli": accuracy,
    "rte": accuracy,
    "wnli": accuracy,
    "ax": matthews,
    "swag": accuracy,
    "conll": entity_f1,
    "classify": accuracy,
    "multi_label": multi_label,
    "regress": pearson_spearman,
    "tag": entity_f1,
    "tag_words": word_accuracy,
    "choice": accuracy,
}
