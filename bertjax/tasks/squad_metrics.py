"""Exact match and F1 of answers to questions, as the official scripts of SQuAD count them.

`squad1` gives the values of evaluate-v1.1.py, `squad2` those of evaluate-v2.0.py (Rajpurkar et al.
2016; 2018), as fractions where they print per cent.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Question id -> texts of its accepted answers; none where the passage does not answer it.
Golds = Mapping[str, Sequence[str]]


def normalize_answer(text: str) -> str:
    """What counts of an answer: lower case, no ASCII punctuation, no articles, single spaces."""
    # The order matters: "a.m." must lose its dots before single letters are taken for articles.
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(gold: Sequence[str], answer: Sequence[str]) -> float:
    """F1 of two bags of words; 0.0 if they share none."""
    common = (Counter(gold) & Counter(answer)).total()
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def squad1(golds: Golds, predictions: Mapping[str, str]) -> dict[str, float]:
    """`exact_match` and `f1` over all questions; one without a prediction counts as wrong.

    Raises:
        ValueError: there is no question, or one has no accepted answer.
    """
    _check_any(golds)
    exact = f1 = 0.0
    for name, texts in golds.items():
        if not texts:
            raise ValueError(
                f"Question {name!r} has no answer, which SQuAD 1.1 does not know: score with "
                "SQuAD 2.0's metrics, or leave the question out."
            )
        if name in predictions:
            answer = normalize_answer(predictions[name])
            normalized = [normalize_answer(text) for text in texts]
            exact += answer in normalized
            f1 += max(token_f1(text.split(), answer.split()) for text in normalized)
    return {"exact_match": exact / len(golds), "f1": f1 / len(golds)}


def squad2(
    golds: Golds,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Metrics where a passage may not answer its question; no answer is predicted by "".

    Args:
        golds: accepted answers.
        predictions: an answer for each question.
        null_odds: how much speaks against there being an answer: any number, higher is surer.
        threshold: questions with higher odds count as predicted to have no answer.

    Returns:
        `exact`, `f1`, `total`; the same of the questions that have answers (`HasAns_exact`...) and
        of those that have none (`NoAns_exact`...), where there are any. With `null_odds` also
        `best_exact` and `best_f1`, what the best threshold would give, and these thresholds,
        `best_exact_thresh` and `best_f1_thresh`.

    Raises:
        ValueError: there is no question, or one has no prediction or no odds. (The official script
            stops, too.)
    """
    _check_any(golds)
    _check_all(golds, predictions, "prediction")
    scores = {name: _scores(texts, predictions[name]) for name, texts in golds.items()}
    final = dict(scores)
    if null_odds is not None:
        _check_all(golds, null_odds, "odds of having no answer")
        for name, texts in golds.items():
            if null_odds[name] > threshold:
                right = float(not texts)
                final[name] = (right, right)
    values = _means(final, golds)
    groups = {"HasAns": [n for n in golds if golds[n]], "NoAns": [n for n in golds if not golds[n]]}
    for group, names in groups.items():
        if names:
            values |= {f"{group}_{key}": v for key, v in _means(final, names).items()}
    if null_odds is not None:
        for index, key in enumerate(("exact", "f1")):
            of_key = {name: pair[index] for name, pair in scores.items()}
            best, best_threshold = _best_threshold(golds, predictions, of_key, null_odds)
            values |= {f"best_{key}": best, f"best_{key}_thresh": best_threshold}
    return values


def _scores(texts: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1 of an answer, the best over the accepted ones; "" accepts no answer."""
    answer = normalize_answer(answer)
    # An accepted answer of articles and signs alone does not count as one.
    normalized = [text for text in map(normalize_answer, texts) if text] or [""]
    if not answer or normalized == [""]:
        equal = float(answer in normalized)
        return equal, equal
    f1 = max(token_f1(text.split(), answer.split()) for text in normalized)
    return float(answer in normalized), f1


def _means(scores: Mapping[str, tuple[float, float]], names: Iterable[str]) -> dict[str, float]:
    chosen = [scores[name] for name in names]
    exact, f1 = (sum(column) / len(chosen) for column in zip(*chosen, strict=True))
    return {"exact": exact, "f1": f1, "total": len(chosen)}


def _best_threshold(
    golds: Golds,
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """The best mean score over all thresholds, and its threshold.

    At first no question is answered, then one after the other, the surest first. (As in the
    official script, equal odds are not treated as one step.)
    """
    score = best = float(sum(not texts for texts in golds.values()))
    best_threshold = 0.0
    for name in sorted(null_odds, key=lambda name: null_odds[name]):
        if name not in golds:
            continue
        if golds[name]:
            score += scores[name]
        elif predictions[name]:
            score -= 1
        if score > best:
            best, best_threshold = score, null_odds[name]
    return best / len(golds), best_threshold


def _check_any(golds: Golds) -> None:
    if not golds:
        raise ValueError("There is nothing to score: no question was given.")


def _check_all(golds: Golds, values: Mapping[str, object], what: str) -> None:
    missing = [name for name in golds if name not in values]
    if missing:
        raise ValueError(
            f"{len(missing):,} of {len(golds):,} questions have no {what}, the first is "
            f'{missing[0]!r}: give one for each; "" is the prediction that there is no answer.'
        )
