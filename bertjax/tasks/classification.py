"""Classification, regression and multiple choice of texts (Devlin et al. 2018, 4.1 and 4.4)."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from bertjax.base.checked import Rate
from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.dataset import Fold
from bertjax.tasks.definition import (
    CalibrationOptions,
    ClassOptions,
    PairOptions,
    SeveralLabelsOptions,
    TaskDefinition,
    WindowOptions,
)
from bertjax.tasks.metrics import (
    Metric,
    class_metrics,
    multi_label,
    ordinal_metrics,
    regression_metrics,
    targets_metrics,
)
from bertjax.tasks.sources import advice, held_out
from bertjax.tasks.sources.columns import Columns, TableKind
from bertjax.tasks.sources.label_columns import is_sequence
from bertjax.tasks.sources.own_files import (
    OwnDataset,
    count_choices,
    learn_labels,
    own_tables,
    with_indices,
    without_placeholders,
)
from bertjax.tasks.task import (
    Example,
    Outputs,
    Pairs,
    Prediction,
    Task,
    check_stride,
    feature_of,
    windows,
)
from bertjax.tokenization import Tokenizer

# Number of targets from which one that is far from the others is named.
FEWEST_COUNTED = 50
# Below it, the squares of differences underflow.
SMALLEST_STD = 1e-150
# Smallest probability in a cross-entropy, so that one impossible label does not make it infinite.
SMALLEST = 1e-12
# Probabilities of a label that are nearer than this are equal but for rounding.
TIED = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyOptions(WindowOptions, CalibrationOptions, ClassOptions, SeveralLabelsOptions):
    """Options of --task=classify: texts or pairs with one or several classes."""

    table = TableKind("classify")

    label_separator: str | None = None
    """String that separates the labels of an example with several labels; None: one label per
    example, or a list of labels in JSON, JSON lines or Parquet."""
    keep_labels: tuple[str, ...] = ()
    """Labels that are classes, although they usually mark a missing one, such as -, NA, None, -1
    and -100; empty: rows with such a label are refused."""
    tune_thresholds: bool = False
    """With several labels per example: choose on the dev split, for each label, the probability
    from which it is predicted, so that its F1 is the highest."""

    def __post_init__(self):
        super().__post_init__()
        if self.label_columns and (self.label_separator or self.keep_labels):
            raise ValueError(
                "--label_separator and --keep_labels are about labels in one column: leave them "
                "out with --label_columns."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressOptions(WindowOptions, SeveralLabelsOptions):
    """Options of --task=regress: texts or pairs with one or several numbers."""

    table = TableKind(
        "regress",
        labels=("score", "label", "target", "rating", "stars", "similarity", "value", "y"),
        label="number",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceOptions(PairOptions):
    """Options of --task=choice: a text with several continuations or answers, one of them right."""

    table = TableKind(
        "choice",
        labels=("label", "answer", "gold", "goldlabel", "correct", "target"),
        pairs=(("sent1", "sent2"),),
        label="choice",
    )

    choice_columns: tuple[str, ...] = ()
    """Columns of the choices, or the one column of JSON or Parquet that holds lists of choices;
    empty: guessed."""
    label_smoothing: Rate = 0.0
    """Share of each label that is spread evenly over all choices in the training loss."""

    @property
    def columns(self) -> Columns:
        return dataclasses.replace(super().columns, choices=self.choice_columns)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Computes the softmax of `logits` [..., C] over the last axis in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Computes the elementwise sigmoid of `logits` in float64."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Base class of tasks whose input is one text or one pair of texts.

    The input sequence is `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]`.

    With `doc_stride`, a text of more than `max_length` tokens is read in overlapping windows. Every
    window is trained with the label of its text, and predictions are made from the mean of the
    windows' logits, so that a window that is sure of a class counts more than undecided ones. Of a
    pair, the longer text is split (the second if both are equally long), and every window has the
    other text as well, cut to half of the room if both are longer than that.

    Attributes:
        pairs: whether every input is a pair of texts; None if the task accepts both.
        doc_stride: maximum number of tokens between the starts of two consecutive windows of a long
            text; None: long texts are truncated, as in Devlin et al. 2018.
    """

    pairs: bool | None = None
    doc_stride: int | None = None

    head: ClassVar[str] = "sequence_classification"

    def __post_init__(self):
        check_stride(self.doc_stride)

    @property
    def reads_windows(self) -> bool:
        return self.doc_stride is not None

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes each window of the example as a sequence of at most `max_length` tokens.

        Raises:
            ValueError: a text is empty, the example has a second text although `pairs` is False or
                none although `pairs` is True, or the label is not a class of the task.
        """
        self.check_pairs(example.where, has_pair=example.pair is not None)
        if not example.text.strip() or (example.pair is not None and not example.pair.strip()):
            raise ValueError(f"{example.where}: a text is empty; fill it or remove the row.")
        if self.doc_stride is None:
            inputs = [tokenizer.encode_pair(example.text, example.pair, max_length)]
        else:
            inputs = _windows(example, tokenizer, max_length, self.doc_stride)
        labels = None if example.label is None else self.encode_label(example)
        return [feature_of([sequence], labels) for sequence in inputs]

    def check_pairs(self, where: str, *, has_pair: bool) -> None:
        """Raises ValueError, beginning with `where`, if `has_pair` contradicts `pairs`."""
        if self.pairs is False and has_pair:
            raise ValueError(
                f"{where}: the model was fine-tuned on single texts, but this is a pair of texts: "
                "leave the second text out (for a file, name the column of the text with "
                "--text_column)."
            )
        if self.pairs and not has_pair:
            raise ValueError(
                f"{where}: the model was fine-tuned on pairs of texts, but this is a single text: "
                "give the second text as well (--pair, --pair_column, or a pair in Python)."
            )

    def description(self, max_length: int) -> dict[str, Any]:
        settings = {"pairs": self.pairs, "doc_stride": self.doc_stride}
        return super().description(max_length) | settings

    @abc.abstractmethod
    def encode_label(self, example: Example) -> np.ndarray:
        """Converts a label to `labels` of features: [1], or [number of classes] for multi-label."""


def _windows(
    example: Example, tokenizer: Tokenizer, max_length: int, stride: int
) -> list[tuple[list[int], list[int]]]:
    """Returns (ids, token types) of each window of a text or pair."""
    is_pair = example.pair is not None
    texts = tokenizer.encode([text for text in (example.text, example.pair) if text is not None])
    room = max_length - tokenizer.layout.num_special_tokens(is_pair)
    if sum(map(len, texts)) <= room:
        return [tokenizer.join(*texts)]
    split = int(is_pair and len(texts[0]) <= len(texts[1]))  # the index of the longer text
    if is_pair:
        other = 1 - split
        texts[other] = texts[other][: room // 2]
        room -= len(texts[other])
    whole = texts[split]
    inputs = []
    for start, end in windows(len(whole), room, stride):
        texts[split] = whole[start:end]
        inputs.append(tokenizer.join(*texts))
    return inputs


def mean_logits(outputs: Sequence[Outputs]) -> np.ndarray:
    """Returns the mean of the logits of an example's windows: float [C]."""
    if len(outputs) == 1:
        return outputs[0]["logits"]
    return np.stack([output["logits"] for output in outputs]).mean(0, dtype=np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbabilityTask(TextTask):
    """Base class of the tasks that predict a probability of each class."""

    @abc.abstractmethod
    def losses(self, label: Any, probabilities: Mapping[str, float]) -> list[float]:
        """Returns the losses of an example in nats, of which `score` computes the mean."""

    def score(self, pairs: Pairs) -> dict[str, float]:
        """Computes the task's metrics, and `loss`, the mean of the losses of labelled examples."""
        losses: list[float] = []

        def observed() -> Iterator[tuple[Example, Prediction]]:
            for example, prediction in pairs:
                if example.label is not None:
                    losses.extend(self.losses(example.label, prediction["probabilities"]))
                yield example, prediction

        scores = super().score(observed())
        if losses:
            return scores | {"loss": math.fsum(losses) / len(losses)}
        return scores

    def metric_names(self) -> list[str]:
        return [*super().metric_names(), "loss"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationTask(ProbabilityTask):
    """Task that predicts exactly one of several classes for each example.

    `predict` divides the logits by `temperature`, which calibrates the probabilities.
    """

    metric: Metric = class_metrics
    temperature: float = 1.0

    label_kind: ClassVar[LabelKind] = "classes"
    problem_type: ClassVar[str | None] = "single_label_classification"

    def losses(self, label: Any, probabilities: Mapping[str, float]) -> list[float]:
        return [-math.log(max(probabilities.get(label, 0.0), SMALLEST))]

    def encode_label(self, example: Example) -> np.ndarray:
        return np.array([self.label_id(example.label, example.where)], np.int32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns a dict: `label`, the most probable class, and `probabilities` of all classes."""
        logits = mean_logits(outputs)
        probabilities = softmax(logits.astype(np.float64) / self.temperature)
        return {
            "label": self.labels[int(logits.argmax())],
            "probabilities": dict(zip(self.labels, probabilities.tolist(), strict=True)),
        }

    def description(self, max_length: int) -> dict[str, Any]:
        calibrated = {}
        if self.temperature != 1.0:
            calibrated = {"temperature": self.temperature}
        return {**super().description(max_length), **calibrated}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributionTask(ClassificationTask):
    """Task that predicts one of several classes; a label is the probability of each class.

    The loss is the cross entropy with these probabilities. The other metrics compare with the most
    probable class; of several, any is right.
    """

    label_kind: ClassVar[LabelKind] = "distribution"

    def losses(self, label: Any, probabilities: Mapping[str, float]) -> list[float]:
        loss = 0.0
        for name, share in label.items():
            loss -= share * math.log(max(probabilities.get(name, 0.0), SMALLEST))
        return [loss]

    def scored_label(self, label: Any, prediction: Prediction) -> Any:
        """Returns the most probable class: of several, the predicted or else the first one."""
        highest = max(label.values())
        likeliest = [name for name, share in label.items() if highest - share < TIED]
        answer = prediction["label"]
        if answer in likeliest:
            return answer
        return likeliest[0]

    def encode_label(self, example: Example) -> np.ndarray:
        encoded = np.zeros(len(self.labels), np.float32)
        label: Any = example.label
        for name, share in label.items():
            if share:
                encoded[self.label_id(name, example.where)] = share
        return encoded


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelTask(ProbabilityTask):
    """Task that predicts every class whose probability is at least its threshold, usually 0.5.

    `thresholds` are {class: another threshold}.
    """

    metric: Metric = multi_label
    best_metric: str = "micro_f1"
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    label_kind: ClassVar[LabelKind] = "multi_label"
    problem_type: ClassVar[str | None] = "multi_label_classification"

    def losses(self, label: Any, probabilities: Mapping[str, float]) -> list[float]:
        """Returns the binary cross-entropy of each class."""
        right = (p if name in label else 1 - p for name, p in probabilities.items())
        return [-math.log(max(p, SMALLEST)) for p in right]

    def encode_label(self, example: Example) -> np.ndarray:
        """Returns a multi-hot array, float32 [number of classes]: 1 for the example's classes.

        Raises:
            ValueError: the label is one name and no list, or a name is not a class of the task.
        """
        encoded = np.zeros(len(self.labels), np.float32)
        names: Any = example.label
        if isinstance(names, str):
            raise ValueError(
                f"{example.where}: the label {names!r} is a single name, but this task needs a "
                "list of labels: write lists in JSON lines, or give --label_separator."
            )
        for name in names:
            encoded[self.label_id(name, example.where)] = 1.0
        return encoded

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns a dict: `labels`, the predicted classes, and the `probabilities` of all."""
        values = sigmoid(mean_logits(outputs)).tolist()
        probabilities = dict(zip(self.labels, values, strict=True))
        return {
            "labels": [x for x, p in probabilities.items() if p >= self.thresholds.get(x, 0.5)],
            "probabilities": probabilities,
        }

    def predicted_label(self, prediction: Prediction) -> Any:
        return tuple(prediction["labels"])

    def description(self, max_length: int) -> dict[str, Any]:
        tuned = {}
        if self.thresholds:
            tuned = {"thresholds": dict(self.thresholds)}
        return {**super().description(max_length), **tuned}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionTask(TextTask):
    """Task that predicts a real number for each example; the loss is the squared error.

    In training, the model predicts (target - `mean`) / `std`, which `predict` converts back.
    """

    mean: float = 0.0
    std: float = 1.0
    metric: Metric = regression_metrics
    best_metric: str = "pearson_spearman"

    label_kind: ClassVar[LabelKind] = "regression"
    problem_type: ClassVar[str | None] = "regression"

    @property
    def num_labels(self) -> int:
        return 1

    @property
    def scale(self) -> tuple[Any, Any]:
        """The mean and the standard deviation of the target, or of each target, float64 [C]."""
        return self.mean, self.std

    def unscaled(self) -> Self:
        """Returns the task without standardisation."""
        return dataclasses.replace(self, mean=0.0, std=1.0)

    def encode_label(self, example: Example) -> np.ndarray:
        value: Any = example.label
        return np.array([(value - self.mean) / self.std], np.float32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns the predicted number in a dict under the key `score`."""
        return {"score": float(mean_logits(outputs)[0]) * self.std + self.mean}

    def predicted_label(self, prediction: Prediction) -> Any:
        return prediction["score"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetsTask(RegressionTask):
    """Task that predicts several real numbers for each example, the targets `labels`.

    The loss is the mean squared error over the targets that are present. In training, each target
    is standardised by its own mean and deviation.
    """

    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()
    metric: Metric = targets_metrics

    label_kind: ClassVar[LabelKind] = "targets"

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def scale(self) -> tuple[Any, Any]:
        if not self.means:
            return 0.0, 1.0
        return np.array(self.means), np.array(self.stds)

    def unscaled(self) -> Self:
        return dataclasses.replace(self, means=(), stds=())

    def encode_label(self, example: Example) -> np.ndarray:
        """Returns the standardised targets, float32 [C], NaN where one is missing."""
        label: Any = example.label
        values = np.array([label[name] for name in self.labels], np.float64)  # None becomes NaN
        mean, std = self.scale
        return ((values - mean) / std).astype(np.float32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns the predicted numbers, {target: number}, in a dict under the key `scores`."""
        mean, std = self.scale
        values = mean_logits(outputs).astype(np.float64) * std + mean
        return {"scores": dict(zip(self.labels, values.tolist(), strict=True))}

    def predicted_label(self, prediction: Prediction) -> Any:
        return prediction["scores"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceTask(Task):
    """Task that predicts which of several choices continues a text.

    The model scores a sequence `[CLS] text [SEP] choice [SEP]` for each of `num_choices` choices.
    """

    num_choices: int

    head: ClassVar[str] = "multiple_choice"
    label_kind: ClassVar[LabelKind] = "choice"

    @property
    def sequences_per_example(self) -> int:
        return self.num_choices

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes the example as one `Feature` with a sequence per choice.

        Raises:
            ValueError: a text is empty, the number of choices is not `num_choices`, or the label is
                not the index of a choice.
        """
        if len(example.choices) != self.num_choices:
            raise ValueError(
                f"{example.where} has {len(example.choices)} choices, but other examples have "
                f"{self.num_choices}: give every example the same number of choices."
            )
        if not example.text.strip() or not all(choice.strip() for choice in example.choices):
            raise ValueError(f"{example.where}: a text is empty; fill it or remove the row.")
        rows = [tokenizer.encode_pair(example.text, c, max_length) for c in example.choices]
        if example.label is None:
            return [feature_of(rows, None)]
        if not isinstance(example.label, int) or not 0 <= example.label < self.num_choices:
            raise ValueError(
                f"{example.where}: label {example.label!r} is none of the choices "
                f"0..{self.num_choices - 1}. Correct the row."
            )
        return [feature_of(rows, np.array([example.label], np.int32))]

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns a dict: `label`, the index of the most probable choice, and `probabilities`."""
        probabilities = softmax(outputs[0]["logits"])
        return {"label": int(probabilities.argmax()), "probabilities": probabilities.tolist()}


def metric_of(classes: Sequence[str]) -> Metric:
    """Returns the metric of tasks with one class per example on own tables."""
    if is_sequence(classes):
        return ordinal_metrics
    return class_metrics


def _likeliest(example: Example) -> str:
    label: Any = example.label
    return max(label, key=label.__getitem__)


def _mean_target(example: Example) -> float:
    label: Any = example.label
    return float(np.mean([value for value in label.values() if value is not None]))


# How examples are held out, by the form of their labels.
HELD_OUT = {
    "classes": held_out.BY_CLASS,
    "multi_label": held_out.BY_RAREST,
    "distribution": held_out.BY_CLASS._replace(key=_likeliest),
    "targets": held_out.BY_TARGET._replace(key=_mean_target),
}


def make_classification(options: ClassifyOptions, fold: Fold | None) -> Task:
    """Makes the task of the user's texts with one or several classes."""
    data = own_tables(options, label_separator=options.label_separator)
    if not data.form.names:
        data = without_placeholders(data, options.keep_labels)
    data = held_out.divide(data, options, fold, HELD_OUT[data.form.kind])
    classes = learn_labels(data, fold)
    if data.form.names:
        if unseen := {*data.form.names}.difference(classes):
            print(f"warning: no example that is trained on is {', '.join(sorted(unseen))}.")
        classes = data.form.names
    data = data.labelled(classes)
    fields: dict[str, Any] = {
        "name": "classify",
        "source": data,
        "labels": classes,
        "pairs": data.columns.pair is not None,
        "doc_stride": options.doc_stride,
    }
    if data.form.kind == "multi_label":
        return MultiLabelTask(**fields)
    if note := advice.separator_note(classes):
        print(note)
    kind = ClassificationTask
    if data.form.kind == "distribution":
        kind = DistributionTask
    return kind(**fields, metric=metric_of(classes))


def make_regression(options: RegressOptions, fold: Fold | None) -> RegressionTask:
    """Creates a task whose targets are standardised by mean and deviation of the train split."""
    data = own_tables(options)
    names = data.form.names
    by = held_out.BY_TARGET
    if names:
        by = HELD_OUT["targets"]
    data = held_out.divide(data, options, fold, by)
    fields: dict[str, Any] = {
        "name": "regress",
        "source": data,
        "pairs": data.columns.pair is not None,
        "doc_stride": options.doc_stride,
    }
    if "train" in data.splits:
        if names:
            scales = [_scale_of(data, name) for name in names]
            fields["means"], fields["stds"] = zip(*scales, strict=True)
        else:
            fields["mean"], fields["std"] = _scale_of(data, "")
        if note := advice.thousands_note(data.written_labels("train")):
            print(note)
    if names:
        return TargetsTask(**fields, labels=names)
    return RegressionTask(**fields)


def _target(example: Example, name: str) -> Any:
    label: Any = example.label
    if name:
        return label[name]
    return label


def _scale_of(data: OwnDataset, name: str) -> tuple[float, float]:
    """Returns the mean and the standard deviation of the target `name`, or the only one, "".

    They are printed, and so is a target that is far from all others.

    Raises:
        ValueError: all targets are equal, or the deviation cannot be computed with.
    """
    where = data.path("train")
    what = "targets"
    if name:
        what = f"targets of {name}"
    values = [_target(example, name) for example in data.examples("train")]
    if not values:
        raise data.no_examples("train")
    targets = np.array([value for value in values if value is not None], np.float64)
    missing = len(values) - len(targets)
    lowest = targets.min(initial=math.inf)
    highest = targets.max(initial=-math.inf)
    if lowest >= highest:
        if not targets.size:
            lowest = 0.0
        raise ValueError(
            f"{where}: all {what} are {lowest:g}, so there is nothing to learn. If another column "
            "holds the targets, name it with --label_column."
        )
    with np.errstate(all="ignore"):
        mean = float(targets.mean())
        std = float(targets.std())
        squares = (targets - mean) ** 2
        total = squares.sum()
    if not np.isfinite(total) or std <= SMALLEST_STD:
        raise ValueError(
            f"{where}: the {what}, {lowest:g} to {highest:g}, have a standard deviation of "
            f"{std:g}, which cannot be computed with: give them in another unit, so that it is "
            "between 1e-150 and 1e150."
        )
    lacking = ""
    if missing:
        lacking = f" {missing:,} examples have none, and learn the other targets;"
    print(
        f"{what}: {lowest:,.6g} to {highest:,.6g}, mean {mean:,.6g}, standard "
        f"deviation {std:,.6g};{lacking} they are standardised in training, and the model predicts "
        "their original scale"
    )
    farthest = int(squares.argmax())
    share = squares[farthest] / total
    if targets.size >= FEWEST_COUNTED and share > 1 / 2:
        labelled = (x for x in data.examples("train") if _target(x, name) is not None)
        example = next(itertools.islice(labelled, farthest, None))
        print(
            f"warning: {example.where}: the target {targets[farthest]:,.6g} alone causes "
            f"{share:.1%} of the variance, so that the model learns little about the others: if "
            "it is a mistake, correct or remove the row."
        )
    return mean, std


def make_multiple_choice(options: ChoiceOptions, fold: Fold | None) -> Task:
    """Makes the task of the user's texts with several choices."""
    data = held_out.divide(own_tables(options), options, fold, held_out.AT_RANDOM)
    count = count_choices(data)
    return ChoiceTask(name="choice", source=with_indices(data), num_choices=count)


CLASSIFY = TaskDefinition(
    name="classify",
    kinds=(ClassificationTask, MultiLabelTask, DistributionTask),
    options=ClassifyOptions,
    make=make_classification,
)
REGRESS = TaskDefinition(
    name="regress",
    kinds=(RegressionTask, TargetsTask),
    options=RegressOptions,
    make=make_regression,
)
CHOICE = TaskDefinition(
    name="choice", kinds=(ChoiceTask,), options=ChoiceOptions, make=make_multiple_choice
)
