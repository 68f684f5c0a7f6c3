"""Summarises the predictions for a labelled split: what `report.html` shows beside the curves.

While the predictions pass by, `PredictionSummary` counts how often they are right at which
confidence, and keeps the most confident mistakes with their texts. The result is written to
`predictions/SPLIT.summary.json`, so that a report can be made while the run goes on, and after it.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.files import write_json
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.sources.custom import CustomSource
from bertjax.tasks.sources.text_pairs import PairSource
from bertjax.tasks.squad_metrics import normalize_answer
from bertjax.training.class_report import ClassReport

SUFFIX = ".summary.json"
# The number of bins of the reliability diagram, all of the same width (Guo et al. 2017 use 15).
BINS = 10
MOST_MISTAKES = 50
# Texts of mistakes are cut to this number of characters.
TEXT_CHARACTERS = 600
# A confusion matrix of more classes is replaced by the most frequent confusions.
MATRIX_CLASSES, MOST_CONFUSIONS = 50, 200
# The scatter plot of a regression has at most this number of points; above, only every 2nd, 4th...
# example is kept.
MOST_POINTS = 2000
NO_ANSWER = "(no answer)"
# Kinds of labels that are numbers, as are the scores of dev pairs for embeddings.
NUMBER_KINDS = ("regression", "similarity", "contrastive")
# What one decision is, for the reliability diagram; numbers have no probabilities.
UNITS: Mapping[str, str] = {
    "classes": "examples",
    "multi_label": "decisions on one label of one example",
    "tokens": "words",
    "span": "questions",
    "choice": "examples",
}
CLASS_KINDS: Mapping[str, str] = {
    "classes": "class",
    "multi_label": "label",
    "tokens": "entity type",
}


class Decision(NamedTuple):
    """One decision of a model on a labelled example.

    Attributes:
        gold: the right answer.
        predicted: the answer of the model.
        probability: the probability that the model gives to its answer.
        is_right: whether the two answers agree.
        word: the index of the word that the decision is about; None: the whole example.
    """

    gold: str
    predicted: str
    probability: float
    is_right: bool
    word: int | None = None


class PredictionSummary:
    """Summarises the predictions for the labelled examples of a split.

    Args:
        task: the task, whose label kind determines what a decision is.

    Attributes:
        examples: the number of labelled examples so far.
    """

    def __init__(self, task: Task):
        self._task = task
        self.examples = self._decisions = self._wrong = 0
        # Per bin of probabilities: number of decisions, sum of probabilities, right decisions.
        self._bins = [[0, 0.0, 0] for _ in range(BINS)]
        # Without a column of ids, ids are indices, which the rows of a spreadsheet do not have.
        source = task.source
        is_own = isinstance(source, CustomSource | PairSource)
        self._has_ids = not (is_own and source.columns.id is None)
        # A heap of (how bad, -order, mistake), the least bad mistake first.
        self._mistakes: list[tuple[float, int, dict[str, Any]]] = []
        self._points: list[tuple[float, float]] = []
        self._stride = 1

    def observe(
        self, pairs: Iterable[tuple[Example, Prediction]]
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) pairs unchanged, and counts the labelled ones."""
        for example, prediction in pairs:
            is_labelled = example.label is not None or bool(example.answers)
            if is_labelled and "error" not in prediction:
                self._see(example, prediction)
            yield example, prediction

    def _see(self, example: Example, prediction: Prediction) -> None:
        self.examples += 1
        if self._task.label_kind in NUMBER_KINDS:
            self._see_number(example, prediction)
            return
        for decision in _decisions(self._task, example, prediction):
            self._decisions += 1
            entry = self._bins[min(int(decision.probability * BINS), BINS - 1)]
            entry[0] += 1
            entry[1] += decision.probability
            entry[2] += decision.is_right
            if not decision.is_right:
                self._wrong += 1
                fields = {"gold": decision.gold, "predicted": decision.predicted}
                probability = decision.probability
                self._keep(probability, example, fields | {"probability": probability}, decision)

    def _see_number(self, example: Example, prediction: Prediction) -> None:
        gold = float(example.label)  # type: ignore[arg-type]
        predicted = float(self._task.predicted_label(prediction))
        if (self.examples - 1) % self._stride == 0:
            self._points.append((gold, predicted))
            if len(self._points) > MOST_POINTS:
                self._points, self._stride = self._points[::2], 2 * self._stride
        error = abs(gold - predicted)
        if error > 0:
            self._keep(error, example, {"gold": gold, "predicted": predicted, "error": error})

    def _keep(
        self,
        badness: float,
        example: Example,
        fields: dict[str, Any],
        decision: Decision | None = None,
    ) -> None:
        """Keeps a mistake if it is among the `MOST_MISTAKES` worst ones."""
        order = -(self._decisions or self.examples)
        full = len(self._mistakes) >= MOST_MISTAKES
        if full and (badness, order) <= self._mistakes[0][:2]:
            return
        word = decision.word if decision else None
        # Orders are unique, so that the dictionaries are never compared.
        where = {"id": example.id, "place": _place(example.where)}
        entry = (badness, order, {**where, **_texts(example, word), **fields})
        (heapq.heappushpop if full else heapq.heappush)(self._mistakes, entry)

    def content(self, scores: Mapping[str, float], classes: ClassReport) -> dict[str, Any]:
        """Returns the summary of the predictions that `observe` has seen, as JSON values.

        Args:
            scores: {metric: value} of the split.
            classes: the report of the same predictions, with the confusion matrix.
        """
        kind = self._task.label_kind
        kind = "regression" if kind in NUMBER_KINDS else kind
        found: dict[str, Any] = {
            "label_kind": kind,
            "examples": self.examples,
            "scores": dict(scores),
            "decisions": self._decisions,
            "wrong": self._wrong,
            "has_ids": self._has_ids,
            "mistakes": [
                entry for *_, entry in sorted(self._mistakes, key=lambda x: (-x[0], -x[1]))
            ],
        }
        if kind == "regression":
            return found | {"points": self._points, "every": self._stride}
        if classes:
            found |= {
                "class_kind": CLASS_KINDS[kind],
                "classes": [row._asdict() for row in classes.scores()],
            }
        if classes.confusion:
            found |= confusion_of(self._task.labels, classes.confusion)
        return found | {"calibration": self._calibration(UNITS[kind])}

    def _calibration(self, unit: str) -> dict[str, Any]:
        """Returns the reliability diagram and the expected calibration error (Guo et al. 2017).

        The error is the mean difference of confidence and accuracy in a bin, weighted by the number
        of decisions in the bin; it is None if there was no decision.
        """
        bins = [
            {"count": n, "confidence": total / n, "accuracy": right / n} if n else {"count": 0}
            for n, total, right in self._bins
        ]
        error = sum(abs(total - right) for _, total, right in self._bins)
        ece = error / self._decisions if self._decisions else None
        return {"unit": unit, "ece": ece, "bins": bins}

    def write(
        self, folder: Path, split: str, scores: Mapping[str, float], classes: ClassReport
    ) -> None:
        """Writes `content` to SPLIT.summary.json, unless no example of the split has a label.

        Args:
            folder: the folder of the file.
            split: the name of the split.
            scores: {metric: value} of the split.
            classes: the report of the same predictions, with the confusion matrix.

        Raises:
            OSError: the file cannot be written.
        """
        if self.examples:
            write_json(folder / f"{split}{SUFFIX}", self.content(scores, classes))


def confusion_of(
    labels: Iterable[str], counts: Mapping[tuple[str, str], int]
) -> dict[str, dict[str, Any]]:
    """Returns {"confusion": matrix} or, of many classes, {"confusions": most frequent mistakes}.

    Args:
        labels: the names of all classes.
        counts: {(label, predicted label): number of examples}.
    """
    names = list(labels)
    if len(names) <= MATRIX_CLASSES:
        matrix = [[counts.get((gold, name), 0) for name in names] for gold in names]
        return {"confusion": {"labels": names, "counts": matrix}}
    wrong = sorted((-n, *pair) for pair, n in counts.items() if pair[0] != pair[1])
    rows = [[gold, name, -n] for n, gold, name in wrong[:MOST_CONFUSIONS]]
    return {"confusions": {"rows": rows, "all": len(wrong)}}


def _decisions(task: Task, example: Example, prediction: Prediction) -> Iterator[Decision]:
    """Yields what the model decided on a labelled example, one decision per label or word."""
    label: Any = example.label
    if task.label_kind == "classes":
        name = prediction["label"]
        yield Decision(str(label), name, prediction["probabilities"][name], name == str(label))
    elif task.label_kind == "multi_label":
        for name, p in prediction["probabilities"].items():
            gold = name if name in label else f"not {name}"
            answer = name if p >= 0.5 else f"not {name}"
            yield Decision(gold, answer, max(p, 1 - p), gold == answer)
    elif task.label_kind == "tokens":
        triples = zip(label, prediction["labels"], prediction["probabilities"], strict=False)
        for word, (gold, tag, p) in enumerate(triples):
            if p is not None:
                yield Decision(gold, tag, p, gold == tag, word)
    elif task.label_kind == "span":
        golds = [text for text, _ in example.answers]
        answer = prediction["answer"]
        is_right = normalize_answer(answer) in map(normalize_answer, golds or [""])
        gold = " | ".join(dict.fromkeys(golds)) or NO_ANSWER
        yield Decision(gold, answer or NO_ANSWER, prediction["probability"], is_right)
    elif task.label_kind == "choice":
        choice = prediction["label"]
        gold, answer = _cut(example.choices[label]), _cut(example.choices[choice])
        yield Decision(gold, answer, prediction["probabilities"][choice], choice == label)


def _place(where: str) -> str:
    """Returns "row 100 of a.csv" for "folder/a.csv, row 100"; rows are counted as in messages."""
    path, comma, row = where.rpartition(", row ")
    return f"row {row} of {Path(path).name}" if comma and row.isdigit() else where


def _texts(example: Example, word: int | None) -> dict[str, Any]:
    """Returns the text of an example; "marked" is the (start, end) of a word in it, if any."""
    if example.words and word is not None:
        before = " ".join([*example.words[:word], ""])
        start = len(before)
        first = max(0, start - TEXT_CHARACTERS // 2)
        text = before[first:] + " ".join(example.words[word:])
        end = start - first + len(example.words[word])
        return {"text": _cut(text), "marked": [start - first, end]}
    texts = {"text": _cut(example.text or " ".join(example.words))}
    return texts | ({"pair": _cut(example.pair)} if example.pair else {})


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 1]}…"
