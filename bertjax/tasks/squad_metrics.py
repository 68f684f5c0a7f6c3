"""SQuAD's official metrics: exact match and F1 of answers (Rajpurkar et al. 2016; 2018).

`squad1` computes the metrics of evaluate-v1.1.py and `squad2` those of evaluate-v2.0.py, but as
fractions instead of percentages.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Question id -> texts of the accepted answers; no texts if the question has no answer.
Golds = Mapping[str, Sequence[str]]


def normalize_answer(text: str) -> str:
    """Lower-cases an answer and removes ASCII punctuation, a/an/the and repeated spaces."""
    # The order matters: "a.m." must become "am" before the article "a" is removed.
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(gold: Sequence[str], answer: Sequence[str]) -> float:
    """Computes the F1 of the words in `gold` and `answer`, taken as bags.

    It is 0.0 if they have no word in common (Rajpurkar et al. 2016, 6.1).
    """
    common = (Counter(gold) & Counter(answer)).total()
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def squad1(golds: Golds, predictions: Mapping[str, str]) -> dict[str, float]:
    """Computes SQuAD 1.1's `exact_match` and `f1`, as means over the questions.

    `golds` is {id of a question: accepted answers}, and `predictions` {id of a question: answer}.
    For each question, the accepted answer with the best value counts. A question without a
    prediction counts as wrong.

    Raises:
        ValueError: `golds` has no questions, or a question has no accepted answer.
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
    """Computes SQuAD 2.0's metrics, for questions that may have no answer (predicted as "").

    Args:
        golds: the accepted answers of each question.
        predictions: the predicted answer of each question.
        null_odds: a score for each question; a high score means that there is probably no answer.
            None: no prediction is replaced.
        threshold: value of `null_odds` above which the prediction for a question counts as "".

    Returns:
        A dictionary with these keys.

        - `exact`, `f1`, `total`: exact match and F1 as fractions, and the number of questions.
        - `HasAns_exact`, `HasAns_f1`, `HasAns_total`: exact match, F1 and number of the questions
          with an answer, if there are such questions.
        - `NoAns_exact`, `NoAns_f1`, `NoAns_total`: exact match, F1 and number of the questions
          without an answer, if there are such questions.
        - `best_exact`, `best_f1`: with `null_odds`, the highest exact match and the highest F1
          that any `threshold` gives.
        - `best_exact_thresh`, `best_f1_thresh`: with `null_odds`, the thresholds that give
          `best_exact` and `best_f1`.

    Raises:
        ValueError: there are no questions, or a question has no prediction or no score in
            `null_odds`; evaluate-v2.0.py also fails on such input.
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
            values_of_key = {name: pair[index] for name, pair in scores.items()}
            best, best_threshold = _best_threshold(golds, predictions, values_of_key, null_odds)
            values |= {f"best_{key}": best, f"best_{key}_thresh": best_threshold}
    return values


def _scores(texts: Sequence[str], answer: str) -> tuple[float, float]:
    """Returns the highest exact match and F1 of `answer` over `texts`, the accepted answers.

    An empty `texts` means that the question has no answer, so that "" is correct.
    """
    answer = normalize_answer(answer)
    # Accepted answers that consist only of articles and punctuation are ignored.
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
    """Returns (highest mean exact match or F1 that any threshold gives, this threshold).

    `scores` holds the exact match or F1 of the predicted answer to each question.

    The candidates for the threshold are 0.0, for which no question has an answer, and the values of
    `null_odds` in ascending order, each of which replaces "no answer" by the predicted answer for
    one more question. As in evaluate-v2.0.py, even questions with equal odds are replaced one by
    one, although no threshold separates them.
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
        raise ValueError("There is nothing to score: the gold file has no questions.")


def _check_all(golds: Golds, values: Mapping[str, object], what: str) -> None:
    missing = [name for name in golds if name not in values]
    if missing:
        raise ValueError(
            f"{len(missing):,} of {len(golds):,} questions have no {what}, the first is "
            f'{missing[0]!r}. Add the missing values; the prediction "" means no answer.'
        )
