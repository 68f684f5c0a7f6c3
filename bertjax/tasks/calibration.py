"""Temperature scaling of class probabilities (Guo et al. 2017, 4.2); thresholds of labels.

A model whose logits are divided by a temperature predicts the same classes, with probabilities that
are closer to the frequencies with which the predictions are right.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from bertjax.tasks.dataset import Example, text_digest
from bertjax.tasks.task import Observer, Prediction, Task

# scipy and scikit-learn are imported where they are used: their import would delay `--help`.

# The number of bins of the expected calibration error (Guo et al. 2017, 4).
BINS = 15
# Temperatures outside are not searched: where every held-out prediction is right, the likelihood
# rises with the logits without end.
LOWEST = 0.1
HIGHEST = 100.0
_SMALLEST = 1e-300


def scaled(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Divides `logits` [N, C] by `temperature`; returns the log-softmax, [N, C]."""
    from scipy.special import log_softmax

    return log_softmax(logits / temperature, axis=-1)


def negative_log_likelihood(
    logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0
) -> float:
    """Computes the mean cross-entropy, in nats, of `labels`, int [N], with scaled logits [N, C]."""
    return float(-scaled(logits, temperature)[np.arange(len(labels)), labels].mean())


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Computes the expected calibration error of the most probable classes (Guo et al. 2017, 2).

    The error is the mean distance of confidence and accuracy in a bin of confidences, weighted by
    the number of examples in the bin. The `BINS` bins of equal width include their upper edge.
    `probabilities` are [N, C], and `labels` int [N].
    """
    confidence = probabilities.max(-1)
    right = probabilities.argmax(-1) == labels
    index = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    sums = np.bincount(index, confidence - right, minlength=BINS)
    return float(np.abs(sums).sum() / len(labels))


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature with the lowest `negative_log_likelihood`, from 0.1 to 100."""
    from scipy.optimize import minimize_scalar

    # The likelihood is concave in 1 / temperature, so that a bounded search finds the optimum.
    result = minimize_scalar(
        lambda inverse: negative_log_likelihood(logits, labels, 1 / inverse),
        bounds=(1 / HIGHEST, 1 / LOWEST),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(1 / result.x)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A fitted temperature, and calibration errors (`ece`) and cross-entropies (`nll`, in nats).

    The values before are at the temperature 1. The values after are cross-fitted: the examples are
    divided into halves by a hash of their texts, and each half is measured with the temperature
    that was fitted on the other half; None if a half is empty.
    """

    temperature: float
    examples: int
    half_temperatures: tuple[float, ...]
    ece_before: float
    ece_after: float | None
    nll_before: float
    nll_after: float | None
    bins: int = BINS

    def sentence(self) -> str:
        """Returns a sentence for the user."""
        bound = " (the bound of the search)"
        if 1.001 * LOWEST < self.temperature < 0.999 * HIGHEST:
            bound = ""
        text = (
            f"calibration: temperature {self.temperature:.3f}{bound}, fitted on {self.examples:,} "
            f"held-out examples; expected calibration error {self.ece_before:.2%} before"
        )
        if self.ece_after is None:
            return f"{text}; there are too few examples to measure it after"
        return (
            f"{text}, {self.ece_after:.2%} after ({self.bins} bins; each half of the examples is "
            "measured with the temperature of the other half)"
        )


def calibrate(logits: np.ndarray, labels: np.ndarray, second: np.ndarray) -> Calibration:
    """Fits a temperature on held-out examples, and measures it by cross-fitting on two halves.

    `logits` are logits or log-probabilities [N, C], `labels` int [N], and `second`, bool [N], tells
    whether an example belongs to the second half.
    """
    halves = [second, ~second]
    after = np.empty_like(logits)
    temperatures = []
    if all(half.any() for half in halves):
        for half in halves:
            temperatures.append(fit_temperature(logits[half], labels[half]))
            after[~half] = scaled(logits[~half], temperatures[-1])
    measured = bool(temperatures)
    before = np.exp(scaled(logits, 1.0))
    return Calibration(
        temperature=fit_temperature(logits, labels),
        examples=len(labels),
        half_temperatures=tuple(reversed(temperatures)),
        ece_before=expected_calibration_error(before, labels),
        ece_after=expected_calibration_error(np.exp(after), labels) if measured else None,
        nll_before=negative_log_likelihood(logits, labels),
        nll_after=negative_log_likelihood(after, labels) if measured else None,
    )


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """A threshold per label; the mean F1 of the labels with 0.5, and after, cross-fitted on halves
    of the examples as in `Calibration`."""

    thresholds: dict[str, float]
    examples: int
    macro_f1_before: float
    macro_f1_after: float

    def sentence(self) -> str:
        """Returns a sentence for the user."""
        return (
            f"thresholds: chosen on {self.examples:,} held-out examples; macro F1 "
            f"{self.macro_f1_before:.2%} with 0.5, {self.macro_f1_after:.2%} with thresholds (each "
            "half of the examples is measured with the thresholds of the other half)"
        )


def best_thresholds(probabilities: np.ndarray, labels: np.ndarray) -> list[float]:
    """Returns thresholds with the highest F1 of each label, or 0.5 if no example has the label.

    `probabilities` and `labels`, bool, are [N, C].
    """
    from sklearn.metrics import precision_recall_curve

    thresholds = []
    for p, label in zip(probabilities.T, labels.T, strict=True):
        if not label.any():
            thresholds.append(0.5)
            continue
        precision, recall, values = precision_recall_curve(label, p)
        f1 = precision * recall / np.maximum(precision + recall, _SMALLEST)
        best = int(f1[:-1].argmax())
        below = 0.0
        if best:
            below = values[best - 1]
        thresholds.append(float(below + values[best]) / 2)
    return thresholds


class HeldOutProbabilities(Observer):
    """Collects the predicted probabilities of labelled examples, to calibrate them."""

    def __init__(self, task: Task):
        self._labels = task.labels
        self._rows: list[list[float]] = []
        self._known: list[Any] = []
        self._second: list[bool] = []

    def add(self, example: Example, prediction: Prediction) -> None:
        if example.label is not None:
            self._rows.append([prediction["probabilities"][name] for name in self._labels])
            self._known.append(example.label)
            # Copies of a text are in the same half.
            self._second.append(bool(text_digest(example)[0] & 1))

    def calibration(self) -> Calibration:
        """Fits the temperature of the collected examples, of which there must be at least one."""
        # Log-probabilities are logits, except for a constant per example that softmax ignores.
        logits = np.log(np.maximum(np.array(self._rows), _SMALLEST))
        classes = [self._labels.index(str(label)) for label in self._known]
        return calibrate(logits, np.array(classes), np.array(self._second))

    def thresholds(self) -> Thresholds:
        """Chooses the thresholds of the collected examples, of which there must be at least one."""
        from sklearn.metrics import f1_score

        zero: Any = 0.0  # its type hint says str, but it accepts numbers
        p = np.array(self._rows)
        second = np.array(self._second)
        rows = []
        for known in self._known:
            rows.append([name in known for name in self._labels])
        labels = np.array(rows)
        # The thresholds of each half are tried on the other one.
        after = np.empty_like(labels)
        for half in (second, ~second):
            after[~half] = p[~half] >= best_thresholds(p[half], labels[half])
        chosen = dict(zip(self._labels, best_thresholds(p, labels), strict=True))
        macro_f1 = functools.partial(f1_score, labels, average="macro", zero_division=zero)
        f1_before = float(macro_f1(p >= 0.5))
        f1_after = float(macro_f1(after))
        return Thresholds(chosen, len(labels), f1_before, f1_after)
