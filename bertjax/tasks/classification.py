"""Tasks on a text or a pair of texts: its class, its classes, or a number for it."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.data.batches.features import Feature, LabelKind
from bertjax.tasks.task import Example, Outputs, Prediction, Task
from bertjax.tokenization import Tokenizer

Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis, in double precision."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Probabilities of independent yes and no, in double precision."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """What sequence classifiers share: a feature is `[CLS] text [SEP] (pair [SEP])`.

    Attributes:
        metric: (labels, predicted) -> metrics.
    """

    metric: Metric

    head: ClassVar[str] = "sequence_classification"

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One feature; more than `max_length` tokens are cut from the longer text's end."""
        if not example.text.strip() or (example.pair is not None and not example.pair.strip()):
            raise ValueError(f"{example.where}: a text is empty; fill it or remove the row.")
        ids, types = tokenizer.encode_pair(example.text, example.pair, max_length)
        return [
            Feature(
                np.array(ids, np.int32),
                (len(ids),),
                (len(types) - sum(types),),
                None if example.label is None else self.encode_label(example),
            )
        ]

    @abc.abstractmethod
    def encode_label(self, example: Example) -> np.ndarray:
        """The label of an example as `Feature` wants it."""

    def score(self, pairs: Iterable[tuple[Example, Prediction]]) -> dict[str, float]:
        """The task's metrics over the labelled examples."""
        known = [(e.label, self.answer(p)) for e, p in pairs if e.label is not None]
        return self.metric(*zip(*known, strict=True)) if known else {}

    def answer(self, prediction: Prediction) -> Any:
        """What of a prediction is held against the label."""
        return prediction["label"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationTask(TextTask):
    """One of several classes."""

    label_kind: ClassVar[LabelKind] = "classes"

    def encode_label(self, example: Example) -> np.ndarray:
        """int32 [1]."""
        return np.array([self.id_of(example.label, example.where)], np.int32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """The most probable class, and the probability of each."""
        probabilities = softmax(outputs[0]["logits"])
        return {
            "label": self.labels[int(probabilities.argmax())],
            "probabilities": dict(zip(self.labels, probabilities.tolist(), strict=True)),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelTask(TextTask):
    """Any number of classes, each with a probability of its own; taken from one half on."""

    label_kind: ClassVar[LabelKind] = "multi_label"

    def encode_label(self, example: Example) -> np.ndarray:
        """float32 [C] of 0 and 1."""
        found = np.zeros(len(self.labels), np.float32)
        given: Any = example.label
        if isinstance(given, str):
            raise ValueError(
                f"{example.where}: one label, {given!r}, where there may be several: write lists "
                "in JSON lines, or say by --label_separator what parts them."
            )
        for label in given:
            found[self.id_of(label, example.where)] = 1.0
        return found

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """The classes of a probability of at least one half, and that of each."""
        probabilities = dict(zip(self.labels, sigmoid(outputs[0]["logits"]).tolist(), strict=True))
        return {
            "labels": [label for label, p in probabilities.items() if p >= 0.5],
            "probabilities": probabilities,
        }

    def answer(self, prediction: Prediction) -> Any:
        """The set of classes."""
        return tuple(prediction["labels"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionTask(TextTask):
    """A number."""

    label_kind: ClassVar[LabelKind] = "regression"

    def encode_label(self, example: Example) -> np.ndarray:
        """float32 [1]."""
        value: Any = example.label
        return np.array([value], np.float32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """The number."""
        return {"score": float(outputs[0]["logits"][0])}

    def answer(self, prediction: Prediction) -> Any:
        """The number."""
        return prediction["score"]
