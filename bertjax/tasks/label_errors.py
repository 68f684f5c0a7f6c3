"""Finds labels that are probably wrong (confident learning, Northcutt et al. 2021).

A model predicts examples that it was not trained on. The threshold of a class is the mean of its
probabilities over the examples with its label. A label may be wrong if the model predicts another
class and the probability of a class reaches its threshold. The examples are ranked by the
normalised margin, (p(label) - highest p of another class + 1) / 2, the lowest first.

Of several labels per example, each is a question of two answers, as in cleanlab. Of tags, each word
is an example; the words of overlapping given and predicted entities are shown as one row, with the
values of the word whose margin is the lowest.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.tasks.dataset import Example
from bertjax.tasks.metrics import entities
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import Observer, Prediction, Task

# Probabilities that are nearer than this are equal, as in cleanlab.
NEARLY = 1e-6
# The kinds of labels that can be judged.
KINDS = ("classes", "distribution", "multi_label", "tokens")
NOTHING = "no entity"


class Judged(NamedTuple):
    """What the model says of the labels of some examples, arrays of one entry per example.

    Attributes:
        suggested: the most probable class.
        probability: its probability.
        self_confidence: the probability of the label.
        margin: the normalised margin.
        is_issue: whether the label may be wrong.
    """

    suggested: np.ndarray
    probability: np.ndarray
    self_confidence: np.ndarray
    margin: np.ndarray
    is_issue: np.ndarray

    def ranked(self) -> np.ndarray:
        """Returns the indices of the examples whose label may be wrong, the surest first."""
        issues = np.flatnonzero(self.is_issue)
        return issues[np.argsort(self.margin[issues], kind="stable")]


def judge(probabilities: np.ndarray, labels: np.ndarray) -> Judged:
    """Judges labels, int [N], by the predicted probabilities of the classes, float [N, C]."""
    rows = np.arange(len(labels))
    own = probabilities[rows, labels]
    others = probabilities.copy()
    others[rows, labels] = -np.inf
    best_other = others.max(1)
    suggested = np.where(own + NEARLY >= best_other, labels, others.argmax(1))
    thresholds = _thresholds(own, labels, probabilities.shape[1])
    confident = probabilities >= thresholds - NEARLY
    # Of several classes that reach their thresholds, the most probable class counts.
    several = confident.sum(1) > 1
    guess = np.where(several, probabilities.argmax(1), confident.argmax(1))
    are_others = (guess != labels) & (suggested != labels)
    return Judged(
        suggested=suggested,
        probability=probabilities[rows, suggested],
        self_confidence=own,
        margin=(own - best_other + 1) / 2,
        is_issue=confident.any(1) & are_others,
    )


def _thresholds(own: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Returns the mean probability of each class where it is the label; inf of other classes."""
    counts = np.bincount(labels, minlength=classes)
    sums = np.bincount(labels, own, minlength=classes)
    means = sums / np.maximum(counts, 1)
    return np.where(counts > 0, means, np.inf)


def _judge_words(
    own: np.ndarray, best: np.ndarray, labels: np.ndarray, suggested: np.ndarray
) -> Judged:
    """Judges tags by the probabilities of the label and of the most probable tag alone."""
    classes = int(max(labels.max(), suggested.max())) + 1
    thresholds = _thresholds(own, labels, classes)
    is_confident = best >= thresholds[suggested] - NEARLY
    is_issue = is_confident & (suggested != labels)
    margin = (own - best + 1) / 2
    return Judged(suggested, best, own, margin, is_issue)


Issue = dict[str, Any]
by_margin = operator.itemgetter("normalized_margin")


class LabelErrors(Observer):
    """Collects the labels of a split and what a model predicts, and finds the probable errors.

    Only tasks of `KINDS` have any.
    """

    def __init__(self, task: Task):
        self._task = task
        self._ids = {name: index for index, name in enumerate(task.labels)}
        self._labels: list[Any] = []
        self._probabilities: list[Any] = []
        # Of the examples that the model predicts otherwise.
        self._examples: dict[int, tuple[Example, Prediction]] = {}

    def add(self, example: Example, prediction: Prediction) -> None:
        kind = self._task.label_kind
        if kind not in KINDS or "error" in prediction or example.label is None:
            return
        label = self._task.scored_label(example.label, prediction)
        probabilities: Any = prediction["probabilities"]
        if kind == "tokens":
            answer = tuple(prediction["labels"])
            unknown = [None] * len(answer)  # as in predictions of older versions
            own = prediction.get("gold_probabilities", unknown)
            is_doubted = answer != tuple(label)
            probabilities = probabilities, own, answer
        else:
            if kind == "multi_label":  # whatever the thresholds of the answers
                probable = {name for name, p in probabilities.items() if p >= 0.5}
                is_doubted = probable != {*label}
            else:
                is_doubted = prediction["label"] != label
            probabilities = [probabilities[name] for name in self._task.labels]
        if is_doubted:
            self._examples[len(self._labels)] = example, prediction
        self._labels.append(label)
        self._probabilities.append(probabilities)

    def __len__(self) -> int:
        return len(self._labels)

    def rows(self) -> list[Issue]:
        """Returns the labels that may be wrong, the surest first: {column: value} of each."""
        if not self._labels:
            return []
        if self._task.label_kind == "tokens":
            rows = self._tags()
        elif self._task.label_kind == "multi_label":
            rows = self._several_labels()
        else:
            rows = self._classes()
        return sorted(rows, key=by_margin)

    def _classes(self) -> Iterator[Issue]:
        labels = np.array([self._ids[str(label)] for label in self._labels])
        judged = judge(np.array(self._probabilities), labels)
        for index in judged.ranked().tolist():
            suggested = self._task.labels[judged.suggested[index]]
            yield self._row(index, self._labels[index], suggested, judged, index)

    def _several_labels(self) -> Iterator[Issue]:
        table = np.array(self._probabilities)
        for column, name in enumerate(self._task.labels):
            p = table[:, column]
            has_label = np.array([name in label for label in self._labels])
            probabilities = np.stack([1 - p, p], axis=1)
            judged = judge(probabilities, has_label.astype(np.int64))
            for index in judged.ranked().tolist():
                given = name
                suggested = f"not {name}"
                if not has_label[index]:
                    given, suggested = suggested, given
                yield self._row(index, given, suggested, judged, index)

    def _tags(self) -> Iterator[Issue]:
        values = []
        places: dict[tuple[int, int], int] = {}  # (sentence, word) -> index
        for sentence, label in enumerate(self._labels):
            best, own, answers = self._probabilities[sentence]
            for word, p in enumerate(own):
                given = self._ids.get(label[word])
                if p is not None and best[word] is not None and given is not None:
                    places[sentence, word] = len(places)
                    suggested = self._ids[answers[word]]
                    values.append((p, best[word], given, suggested))
        if not values:
            return
        columns = zip(*values, strict=True)
        judged = _judge_words(*map(np.array, columns))
        for sentence, (example, _) in self._examples.items():
            words = example.words
            _, _, answers = self._probabilities[sentence]
            marked = _marked(self._task, self._labels[sentence], words)
            marked_answers = _marked(self._task, answers, words)
            for region in _regions([*marked, *marked_answers]):
                issues = []
                for word in region:
                    place = places.get((sentence, word))
                    if place is not None and judged.is_issue[place]:
                        issues.append(place)
                if issues:
                    worst = min(issues, key=lambda place: judged.margin[place])
                    given = _named(marked, region)
                    suggested = _named(marked_answers, region)
                    row = self._row(sentence, given, suggested, judged, worst)
                    row["words"] = " ".join(words[region.start : region.stop])
                    yield row

    def _row(self, index: int, label: str, suggested: str, judged: Judged, at: int) -> Issue:
        example, _ = self._examples[index]
        return {
            "id": example.id,
            "place": example.where,
            "text": example.text or " ".join(example.words),
            "pair": example.pair or "",
            "label": label,
            "suggested_label": suggested,
            "probability": float(judged.probability[at]),
            "self_confidence": float(judged.self_confidence[at]),
            "normalized_margin": float(judged.margin[at]),
        }


def _marked(task: Task, tags: Sequence[str], words: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns (first word, last word + 1, name) of entities or, without any, of each word.

    The name is such as "PER: Jane Doe" or, of a word, its tag.
    """
    if not isinstance(task, TagTask) or not task.marks_entities:
        return [(word, word + 1, tag) for word, tag in enumerate(tags)]
    marked = []
    for first, stop, kind in entities(task.iob2([tag or "O" for tag in tags])):
        marked.append((first, stop, f"{kind}: {' '.join(words[first:stop])}"))
    return marked


def _regions(marked: Sequence[tuple[int, int, str]]) -> Iterator[range]:
    """Yields the words of entities, given or predicted; those that overlap are one region."""
    start = end = 0
    for first, stop, _ in sorted(marked):
        if first >= end:
            if end > start:
                yield range(start, end)
            start = first
        end = max(end, stop)
    if end > start:
        yield range(start, end)


def _named(marked: Sequence[tuple[int, int, str]], region: range) -> str:
    """Returns the names of the entities or words in a region."""
    return " | ".join(name for first, _, name in marked if first in region) or NOTHING
