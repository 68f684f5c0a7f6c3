"""Defines `Task`, `Example` and `Source`: all that training and prediction know of a task.

A `Task` turns labelled examples into features for the model, outputs of the model into predictions,
and predictions into metrics. There is one subclass per kind of answer, in `classification`,
`tagging`, `question_answering` and `multiple_choice`. A `Source` reads the examples; there is one
per file format, in `sources`.
"""

import abc
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from bertjax.data.batches.features import Feature, LabelKind
from bertjax.files import writing
from bertjax.tasks.metrics import Metric, accuracy
from bertjax.tokenization import Tokenizer

# A prediction holds what JSON can represent. Its fields by kind of answer:
#   classes      label, probabilities {label: p}
#   multi_label  labels, probabilities {label: p}
#   regression   score
#   tokens       labels, probabilities: one of each per word
#   span         answer, probability, null_odds, nbest
#   choice       label (index of the choice, from 0), probabilities
Prediction = dict[str, Any]
# Outputs of the model for one feature: arrays under the names of the head's outputs, for the
# sequences or tokens of the feature alone (no padding, no other sequences of a packed row).
Outputs = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One example as it is in its file; fields that its kind of task does not use stay empty.

    Attributes:
        id: identifies the example in the official files and in predictions.
        where: file and row, for error messages.
        text: the text, the first text of a pair, the question, or the text before every choice.
        pair: the second text, or the passage that a question is about.
        words: the words of a sentence to tag.
        choices: the endings to choose from.
        label: None if the example is unlabelled; a class name, a number, a tuple of names (several
            labels, or one tag per word), or the index of the correct choice, from 0.
        answers: (text, first character in the passage) of each accepted answer. With
            `label="impossible"` and no answers, the passage does not answer the question.
    """

    id: str
    where: str
    text: str = ""
    pair: str | None = None
    words: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    label: str | float | int | tuple[str, ...] | None = None
    answers: tuple[tuple[str, int], ...] = ()


class Source(Protocol):
    """Reads the examples of a task."""

    splits: tuple[str, ...]
    """The splits that exist: "train", "dev", "test"; for MNLI "dev_matched", "dev_mismatched"..."""

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split lazily, in the order of the file."""
        ...


Pairs = Iterable[tuple[Example, Prediction]]
Export = Callable[[Path, str, Pairs], Iterator[tuple[Example, Prediction]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A kind of answer together with its class names, its source and its metric.

    Attributes:
        name: the name on the command line.
        source: reads the examples; None where a model is applied to texts alone.
        labels: class names in the order of their ids; empty if there are no classes.
        metric: (labels, predicted labels) -> metrics. `SpanTask` uses SQuAD's metrics instead.
        best_metric: the metric that selects the best checkpoint; higher is better.
        max_length: maximum tokens per sequence, unless the run sets another value.
        export: (folder, split, pairs) -> the same pairs, which it also writes in the format of the
            official scorer; None if there is no such format.
    """

    name: str
    source: Source | None = None
    labels: tuple[str, ...] = ()
    metric: Metric = accuracy
    best_metric: str = "accuracy"
    max_length: int = 128
    export: Export | None = None

    head: ClassVar[str]
    """The name of the model head that the task needs."""
    label_kind: ClassVar[LabelKind]
    """How labels are stored in features and batches."""
    problem_type: ClassVar[str | None] = None
    """`problem_type` of config.json, by which transformers tells sequence classifiers apart."""

    @abc.abstractmethod
    def features(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> Sequence[Feature]:
        """Encodes an example: one feature, or one per window of a long passage.

        Raises:
            ValueError: the label is unknown or a text is empty; the message names the row.
        """

    @abc.abstractmethod
    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Decodes the outputs of the model for the features of one example."""

    def score(self, pairs: Pairs) -> dict[str, float]:
        """Computes the metrics, in 0..1, over the labelled examples; empty if there are none."""
        labelled = [(e.label, self.predicted_label(p)) for e, p in pairs if e.label is not None]
        return self.metric(*zip(*labelled, strict=True)) if labelled else {}

    def predicted_label(self, prediction: Prediction) -> Any:
        """Returns the part of a prediction that the metric compares with the label."""
        return prediction["label"]

    @property
    def num_labels(self) -> int | None:
        """Number of classes; None if there are no classes, as for spans and choices."""
        return len(self.labels) or None

    def write_predictions(
        self, folder: Path, split: str, pairs: Pairs
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields the pairs unchanged while it writes them to `folder`/`split`.jsonl.

        `export` also writes them in the format of the task's official scorer.
        """
        path = folder / f"{split}.jsonl"
        if self.export is not None:
            pairs = self.export(folder, split, pairs)
        with writing(path) as temporary, temporary.open("w", encoding="utf-8") as lines:
            for example, prediction in pairs:
                line = {"id": example.id, **prediction}
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                yield example, prediction

    def hf_config(self) -> dict[str, Any]:
        """Returns the fields of config.json that describe the task: labels and problem_type."""
        if self.num_labels is None:
            return {}
        labels = self.labels or ("LABEL_0",)
        fields: dict[str, Any] = {
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
        return fields | ({"problem_type": self.problem_type} if self.problem_type else {})

    def description(self, max_length: int) -> dict[str, Any]:
        """Returns the content of task.json, from which `bertjax.predict` restores the task."""
        return {"task": self.name, "label_kind": self.label_kind, "max_length": max_length}

    def label_id(self, label: Any, where: str) -> int:
        """Returns the id of a class.

        Raises:
            ValueError: the class is not in `labels`.
        """
        try:
            return self.labels.index(label)
        except ValueError:
            raise ValueError(
                f"{where}: label {label!r} does not occur in training. The labels of {self.name} "
                f"are {', '.join(self.labels)[:300]}. Correct the row, or train with examples of "
                "this label."
            ) from None
