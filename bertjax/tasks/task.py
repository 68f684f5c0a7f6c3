"""What a task is: labelled examples, how a model reads them, and what its answers are worth.

Training, evaluation and prediction know a task by the methods of `Task` alone. There is a subclass
for each kind of answer (`text`, `tags`, `spans`, `choices`); where examples come from is a
`Source`, of which there is one for every file format.
"""

import abc
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from bertjax.data.batches.features import Feature, LabelKind
from bertjax.tokenization import Tokenizer

# A prediction is what JSON can hold. Fields by kind of answer:
#   classes      label, probabilities {label: p}
#   multi_label  labels, probabilities {label: p}
#   regression   score
#   tokens       labels, probabilities: one each a word
#   span         answer, probability, null_odds, nbest
#   choice       label (which choice, from 0), probabilities
Prediction = dict[str, Any]
# What the model says of one feature: arrays under the names of the head's outputs, of the feature's
# own sequences or tokens alone (no padding, no neighbours in the row).
Outputs = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One example as its file gives it; what a kind of task has no use for stays empty.

    Attributes:
        id: its name in the official files and in predictions.
        where: file and row, for messages.
        text: the text, the first of two, the question, or what precedes every choice.
        pair: the second text, or the passage that holds the answer.
        words: of a tagged sentence.
        choices: endings to choose among.
        label: None without one; the name of the class, a number, a tuple of names (several labels,
            or a tag a word), or which choice is right, from 0.
        answers: (text, first character in the passage) of each accepted answer; with an empty
            tuple and `label="impossible"` the passage does not answer the question.
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
    """Where the examples of a task come from."""

    splits: tuple[str, ...]
    """Those that there are: "train", "dev", "test"; MNLI has dev_matched, dev_mismatched..."""

    def examples(self, split: str) -> Iterator[Example]:
        """The examples of a split in the order of its file, read as they are asked for."""
        ...


Pairs = Iterable[tuple[Example, Prediction]]
Export = Callable[[Path, str, Pairs], Iterator[tuple[Example, Prediction]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A kind of answer with the names of its classes, its source and its metric.

    Attributes:
        name: as on the command line.
        source: where examples come from; None where a model is applied to texts alone.
        labels: names of the classes in the order of their ids; empty where there are none.
        best_metric: the metric that chooses the best checkpoint; higher is better.
        max_length: tokens of a sequence at most, unless the run says otherwise.
        export: (folder, split, pairs) -> the same pairs, written as the official scorer reads them.
    """

    name: str
    source: Source | None = None
    labels: tuple[str, ...] = ()
    best_metric: str = "accuracy"
    max_length: int = 128
    export: Export | None = None

    head: ClassVar[str]
    """Which of `bertjax.model.HEADS` answers."""
    label_kind: ClassVar[LabelKind]

    @abc.abstractmethod
    def features(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> Sequence[Feature]:
        """What the model reads of an example: one feature, or several windows of a passage.

        Raises:
            ValueError: the example has an unknown label or an empty text; its row is named.
        """

    @abc.abstractmethod
    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """The answer of the model, from what it says of each feature of an example."""

    @abc.abstractmethod
    def score(self, pairs: Iterable[tuple[Example, Prediction]]) -> dict[str, float]:
        """Metrics of predictions beside the labels of their examples, in the range 0..1."""

    @property
    def num_labels(self) -> int | None:
        """Classes of the head; None where the head has no such choice."""
        return {"regression": 1, "span": None, "choice": None}.get(
            self.label_kind, len(self.labels)
        )

    def written(
        self, folder: Path, split: str, pairs: Iterable[tuple[Example, Prediction]]
    ) -> Iterator[tuple[Example, Prediction]]:
        """Passes predictions on, and writes them to `folder` as they pass: JSON, one a line.

        Subclasses and `export` also write what the task's official scorer reads.
        """
        path = folder / f"{split}.jsonl"
        beside = path.with_name(path.name + ".writing")
        if self.export is not None:
            pairs = self.export(folder, split, pairs)
        with beside.open("w", encoding="utf-8") as lines:
            for example, prediction in pairs:
                line = {"id": example.id, **prediction}
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                yield example, prediction
        beside.replace(path)

    def hf_config(self) -> dict[str, Any]:
        """What `config.json` says of the task: the labels, and what kind of problem it is."""
        if self.num_labels is None:
            return {}
        labels = self.labels or ("LABEL_0",)
        found: dict[str, Any] = {
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
        problem = {
            "classes": "single_label_classification",
            "multi_label": "multi_label_classification",
            "regression": "regression",
        }.get(self.label_kind)
        return found | ({"problem_type": problem} if problem else {})

    def description(self, max_length: int) -> dict[str, Any]:
        """What `task.json` in a model directory says, for `bertjax.predict`."""
        return {"task": self.name, "label_kind": self.label_kind, "max_length": max_length}

    def id_of(self, label: Any, where: str) -> int:
        """The id of a class.

        Raises:
            ValueError: it is none of `labels`.
        """
        try:
            return self.labels.index(label)
        except ValueError:
            raise ValueError(
                f"{where}: label {label!r} does not occur in training; known: "
                f"{', '.join(self.labels)}. Correct the row, or add examples of it to --train."
            ) from None
