"""`Task`, the interface of tasks; windows on long texts.

A `Task` encodes examples as features (token ids and labels), converts outputs of the model to
predictions, and computes metrics; its subclasses are in `classification`, `tagging`,
`question_answering`, `embedding` and `reranking`. Its examples are a `Dataset`.
"""

import abc
import array
import bisect
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertjax.base.files import writing
from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.dataset import Dataset, Example, Lengths
from bertjax.tasks.metrics import Metric, accuracy
from bertjax.tokenization import Tokenizer

Span = tuple[int, int]


def check_stride(doc_stride: int | None) -> None:
    """Raises ValueError if `doc_stride`, an option of a task, is below 1."""
    if doc_stride is not None and doc_stride < 1:
        raise ValueError(f"doc_stride={doc_stride}: it must be at least 1.")


def windows(length: int, room: int, stride: int, starts: Sequence[int] | None = None) -> list[Span]:
    """Splits a text into windows; returns (first token, last token + 1) of each window.

    Args:
        length: number of tokens of the text.
        room: maximum number of tokens of a window.
        stride: maximum number of tokens between the starts of two consecutive windows.
        starts: the tokens with which a window may start, ascending and beginning with 0: the first
            tokens of the words, each of which is in a window then. Where the next of them is more
            than `stride` tokens away, it starts the next window nevertheless. None: any token.
    """
    spans = []
    start = 0
    while True:
        end = min(start + room, length)
        spans.append((start, end))
        if end == length:
            return spans
        following = start + min(end - start, stride)
        if starts is not None:
            last = bisect.bisect_right(starts, following) - 1
            last += starts[last] == start
            if last == len(starts):  # all other tokens are of the last word, which is longer than
                return spans  # a window
            following = starts[last]
        start = following


def widest_contexts(spans: Sequence[Span]) -> list[np.ndarray]:
    """Assigns each token of a text to the window with the most context around the token.

    The context of a token in a window is the smaller of the numbers of tokens before and after the
    token, plus a hundredth of the length of the window, as in Google's `run_squad.py`. Earlier
    windows win ties.

    Returns a bool array [number of tokens] per window, True at the tokens that are assigned to it.
    Each token that is in a window is True in exactly one array.
    """
    best = np.full(spans[-1][1], -1.0)
    window_of = np.zeros(len(best), np.int64)
    for window, (begin, end) in enumerate(spans):
        left = np.arange(end - begin)
        context = np.minimum(left, left[::-1]) + 0.01 * len(left)
        part = slice(begin, end)
        window_of[part][context > best[part]] = window
        best[part] = np.maximum(best[part], context)
    return [window_of[begin:end] == window for window, (begin, end) in enumerate(spans)]


def feature_of(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    labels: np.ndarray | None,
    origins: np.ndarray | None = None,
) -> Feature:
    """Makes the feature of one or several sequences, each of which is (token ids, token types)."""
    return Feature(
        np.concatenate([np.array(ids, np.int32) for ids, _ in sequences]),
        tuple(len(ids) for ids, _ in sequences),
        tuple(len(types) - sum(types) for _, types in sequences),
        labels,
        origins,
    )


# A prediction is a dict of JSON values. Its keys depend on the `label_kind` of the task:
#   classes      label, probabilities {label: p}
#   multi_label  labels, probabilities {label: p}
#   distribution as classes, of which labels are probabilities
#   regression   score
#   targets      scores {target: number}
#   tokens       words, labels and probabilities, one of each per word; if the labels mark entities,
#                entities: type, text, probability, first_word, last_word of each, and, if the words
#                are those of a running text, start and end of its characters; of a labelled
#                example, gold_probabilities of the given tags
#   span         answer, answer_start, answer_end (in characters), probability, null_odds, nbest
#   choice       label (index of the choice, from 0), probabilities
#   similarity   similarity of text and pair and, if there are hard negatives, negatives: the
#                similarities of text and each of them; also for contrastive and distilled
#   ranking      score of the pair and, if there are any, of the negatives; or, of a list of
#                candidates, ranking: index, score and text of each, the best first
# The prediction for an example that could not be read or encoded has only the key `error`.
Prediction = dict[str, Any]
# The model's outputs for one feature, under the names of the head's outputs. The arrays cover only
# the feature's own sequences or tokens, without padding or other sequences of a packed row.
Outputs = Mapping[str, np.ndarray]


# The key of the label in a line of predictions, and the keys that tables leave out.
GOLD = "gold"
GOLD_CUT = "gold_cut"
OF_GOLD = (GOLD, GOLD_CUT, "gold_probabilities")

Pairs = Iterable[tuple[Example, Prediction]]
Export = Callable[[Path, str, Pairs], Iterator[tuple[Example, Prediction]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """Base class of tasks, which encode examples, decode predictions and compute metrics.

    Attributes:
        source: the examples; None if the task only predicts examples that the caller passes.
        labels: class names in the order of their ids; empty if there are no classes.
        metric: function (labels, predicted labels) -> metrics; unused in question answering.
        best_metric: name of the metric that selects the best checkpoint.
        max_length: default of the maximum number of tokens per sequence.
        export: function (folder, split, pairs) that yields the (example, prediction) pairs
            unchanged and writes them to `folder` in the format of the official scorer.
    """

    name: str
    source: Dataset | None = None
    labels: tuple[str, ...] = ()
    metric: Metric = accuracy
    best_metric: str = "accuracy"
    max_length: int = 128
    export: Export | None = None

    head: ClassVar[str]
    """The name of the model head that the task needs."""
    label_kind: ClassVar[LabelKind]
    """The kind of labels, which determines how the arrays of features and batches store labels."""
    unwritten: ClassVar[str] = ""
    """The key of predictions that is only for `score` and not written; "": there is none."""
    problem_type: ClassVar[str | None] = None
    """The `problem_type` in config.json, by which transformers chooses the loss of a classifier;
    None if config.json has no `problem_type`."""

    @abc.abstractmethod
    def features(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> Sequence[Feature]:
        """Encodes an example as features, each with the token ids and labels of a model input.

        A long text that is read in windows has one feature per window, any other example one.
        `max_length` is the maximum number of tokens per feature.

        Raises:
            ValueError: the label is unknown or a text is empty; the message names the row.
        """

    def kept(self, output: np.ndarray) -> Any:
        """Returns what is kept of an output of the model until `predict`: by default, all of it."""
        return output

    @abc.abstractmethod
    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Converts the model's outputs for each of the features of an example to a prediction."""

    def score(self, pairs: Pairs) -> dict[str, float]:
        """Computes the metrics of the labelled examples, as fractions; {} if none is labelled."""
        labelled = []
        for example, prediction in pairs:
            if example.label is not None:
                label = self.scored_label(example.label, prediction)
                labelled.append((label, self.predicted_label(prediction)))
        if labelled:
            return self.metric(*zip(*labelled, strict=True))
        return {}

    def metric_names(self) -> list[str]:
        """Returns the names of the metrics that `score` computes."""
        first = self.labels[0] if self.labels else ""
        examples: dict[LabelKind, Any] = {
            "classes": first,
            "distribution": first,
            "multi_label": (first,),
            "regression": 1.0,
            "targets": dict.fromkeys(self.labels, 1.0),
            "tokens": (first,),
            "choice": 0,
        }
        return [*self.metric([examples[self.label_kind]], [examples[self.label_kind]])]

    def scored_label(self, label: Any, prediction: Prediction) -> Any:
        """Returns what the metric compares with the prediction: the label, unless overridden."""
        return label

    def predicted_label(self, prediction: Prediction) -> Any:
        """Returns the part of a prediction that the metric compares with the label."""
        return prediction["label"]

    def objective(self, head: Any) -> Any:
        """Returns the `Objective` of the training; `head` is the model, a `BertWithHead`."""
        return head.objective(self.label_kind)

    def gold(self, example: Example) -> dict[str, Any]:
        """Returns what is written of the label of an example beside its prediction; {}: none.

        "gold" is the class, number, index or list of labels; of a question, the accepted answers,
        of which there are none if it has no answer.
        """
        if example.label is None:
            return {}
        return {GOLD: example.label}

    def with_gold(self, example: Example, line: Mapping[str, Any]) -> Example:
        """Returns an example with the label that a line of predictions has, as of `gold`."""
        label = line[GOLD]
        if isinstance(label, list):
            label = tuple(label)
        return dataclasses.replace(example, label=label)

    @property
    def data(self) -> Dataset:
        """The examples of a task that has some."""
        assert self.source is not None
        return self.source

    @property
    def reads_windows(self) -> bool:
        """Whether texts of more than `max_length` tokens are read in windows, and not truncated."""
        return False

    @property
    def head_fields(self) -> Mapping[str, Any]:
        """The settings of the model's head that the task changes, {name of a field: value}."""
        return {}

    @property
    def sequences_per_example(self) -> int:
        """The number of sequences of a feature of the train split; 1, except for several texts."""
        return 1

    def features_to_predict(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> Sequence[Feature]:
        """Encodes an example for `predict`; as `features` does, unless a task overrides this."""
        return self.features(example, tokenizer, max_length)

    @property
    def num_labels(self) -> int | None:
        """The number of classes; None for tasks without classes, such as multiple choice."""
        return len(self.labels) or None

    def write_predictions(
        self, folder: Path, split: str, pairs: Pairs
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) pairs unchanged; writes predictions to folder/SPLIT.jsonl.

        If the example is a row of a user's file, "input" holds the columns of the row. If it is
        labelled, "gold" is the label, as `gold` returns it. If the task has a function `export`, it
        writes further files for the official scorer.
        """
        path = folder / f"{split}.jsonl"
        if self.export is not None:
            pairs = self.export(folder, split, pairs)
        with writing(path) as temporary, temporary.open("x", encoding="utf-8") as lines:
            for example, prediction in pairs:
                given = {}
                if example.row:
                    given = {"input": dict(example.row)}
                line = {"id": example.id, **given, **self.gold(example), **prediction}
                line.pop(self.unwritten, None)
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
        """Returns the index of a class in `labels`; others raise ValueError that names `where`."""
        try:
            return self.labels.index(label)
        except ValueError:
            raise ValueError(
                f"{where}: label {label!r} does not occur in training. The labels of {self.name} "
                f"are {', '.join(self.labels)[:300]}. Correct the row, or train with examples of "
                "this label."
            ) from None


class Observer(abc.ABC):
    """Collects what it needs of examples and predictions while they pass by."""

    @abc.abstractmethod
    def add(self, example: Example, prediction: Prediction) -> None:
        """Collects what it needs of an example, which may have no label."""

    def observe(self, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) pairs unchanged, and adds them."""
        for example, prediction in pairs:
            self.add(example, prediction)
            yield example, prediction


class TruncatedTexts:
    """Counts the examples that may be truncated to `max_length`; none if windows are read.

    The length of an example is that of its longest sequence.
    """

    def __init__(self, task: Task, max_length: int):
        self._can_read_windows = hasattr(task, "doc_stride")
        self._is_windowed = task.reads_windows
        self.max_length = max_length
        self._count = 0
        self._first = ""
        self._longest = array.array("I")

    def add(self, example: Example, features: Sequence[Feature]) -> None:
        """Counts `example`, encoded as `features`, if it has the maximum length."""
        longest = max((max(feature.lengths) for feature in features), default=0)
        self._longest.append(longest)
        if longest >= self.max_length and not self._is_windowed:
            self._count += 1
            self._first = self._first or example.where

    def lengths(self) -> Lengths:
        """Returns the lengths of the examples, of which there must be one."""
        return Lengths.of(self._longest, self._count)

    @property
    def message(self) -> str:
        """A sentence with the number of counted examples and the row of the first; "" if none."""
        if not self._count:
            return ""
        remedy = ""
        if self._can_read_windows:
            remedy = " (--doc_stride reads them in windows)"
        return (
            f"{self._count:,} texts have max_length={self.max_length} tokens or more, and longer "
            f"ones are truncated{remedy}. The first of these texts: {self._first}"
        )
