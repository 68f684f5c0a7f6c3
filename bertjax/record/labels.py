"""Plain names and short texts of metrics, for tables and log lines."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bertjax.tasks.metrics import is_fraction

# Parts of the names of metrics that are written otherwise.
_WORDS = {
    "mlm": "MLM", "nsp": "NSP", "f1": "F1", "mae": "MAE", "rmse": "RMSE",
    "rtd": "RTD", "flops": "FLOPS", "mrr": "MRR", "auroc": "AUROC", "ndcg": "nDCG", "map": "MAP",
    "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman", "exact": "exact match",
    "thresh": "threshold", "HasAns": "answerable", "NoAns": "unanswerable",
}  # fmt: skip
# Metrics whose names are no words of theirs.
_PHRASES = {
    "grad_norm": "gradient norm",
    "mfu": "model FLOP utilisation (MFU)",
    "pearson_spearman": "mean of Pearson and Spearman",
    "r2": "R²",
    "tokens_per_second": "throughput in tokens per second",
}
# Numbers of training that are neither losses nor fractions.
_NUMBERS = ("grad_norm", "learning_rate", "tokens_per_second")
# The losses of a source of a mixture are named "mlm_loss_SOURCE".
_OF_SOURCE = re.compile(r"(?P<metric>\w*?loss)_(?P<source>.+)")
# Metrics that are the same in each evaluation, so that their change says nothing.
_CONSTANT = ("unigram_entropy",)
VALUE_WIDTH = len("12.345")
CHANGE_WIDTH = len("(+1.234)")


class Cell(NamedTuple):
    """A metric of an evaluation as texts: its plain name, its value, and its change in parentheses.

    `change` is blank if there is none; `width` is the width of the column of value and change, in
    characters.
    """

    label: str
    value: str
    change: str
    width: int


def label(key: str) -> str:
    """Returns the plain name of a metric: "MLM loss" for "mlm_loss"."""
    if key in _PHRASES:
        return _PHRASES[key]
    match = _OF_SOURCE.fullmatch(key)
    if match:
        return f"{label(match['metric'])} ({match['source']})"
    words = [_WORDS.get(word, word) for word in key.replace("/", "_").split("_")]
    return " ".join(words)


def held_out_label(name: str) -> str:
    """Returns the plain name of a metric of an evaluation: "held-out F1" for "eval/f1"."""
    return f"held-out {label(name.removeprefix('eval/'))}"


def in_percent(key: str) -> bool:
    """Returns whether a metric, without "eval/" or "train/", is shown in per cent."""
    if key in _NUMBERS or key.endswith("entropy") or _OF_SOURCE.fullmatch(key):
        return False
    return is_fraction(key)


def number(value: float) -> str:
    """Returns a number with three decimals, or fewer digits if it is large."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e5:
        return f"{value:.1e}"
    if abs(value) < 100:
        return f"{value:.3f}"
    return f"{value:.1f}"


def value_text(key: str, value: float) -> str:
    """Returns the value of a metric, named without "eval/" or "train/", such as "87.5%"."""
    if in_percent(key):
        return f"{100 * value:.1f}%"
    return number(value)


def _change(key: str, value: float, before: float | None) -> str:
    # NaN and infinity are null in metrics.jsonl.
    if before is None or not math.isfinite(value - before):
        return ""
    change = value - before
    text = f"{100 * change:+.1f}" if in_percent(key) else f"{change:+.3f}"
    return f"({text})"


def cells(metrics: Mapping[str, float], before: Mapping[str, float]) -> list[Cell]:
    """Returns the cells of the metrics of an evaluation, compared with the evaluation before.

    The loss of each objective comes before its accuracy. Counts of examples are left out. The names
    are without "eval/".
    """
    found = []
    for key in _in_order(key for key in metrics if key.rpartition("_")[2] != "total"):
        text = f"{value_text(key, metrics[key]):>{VALUE_WIDTH}}"
        change = ""
        width = VALUE_WIDTH
        if key not in _CONSTANT:
            change = f"{_change(key, metrics[key], before.get(key)):>{CHANGE_WIDTH}}"
            width += 1 + CHANGE_WIDTH
        found.append(Cell(label(key), text, change, width))
    return found


def _in_order(keys: Iterable[str]) -> list[str]:
    """Sorts metrics: by objective in the order of appearance, losses first; sources at the end."""
    keys = list(keys)
    stems = [key.rpartition("_")[0] for key in keys]

    def place(key: str) -> tuple[bool, int, bool]:
        if _OF_SOURCE.fullmatch(key):
            return True, keys.index(key), False
        return False, stems.index(key.rpartition("_")[0]), not key.endswith("loss")

    return sorted(keys, key=place)


def main_accuracy(metrics: Mapping[str, float]) -> str | None:
    """Returns the name of the accuracy in `metrics` to show of training; None if there is none."""
    names = [key for key in metrics if key.endswith("accuracy")]
    return min(names, key=lambda name: name not in ("accuracy", "mlm_accuracy"), default=None)


def in_lines(widths: Sequence[int], room: int) -> list[list[int]]:
    """Divides columns among lines of `room` characters; returns the indices of each line."""
    lines: list[list[int]] = [[]]
    used = 0
    for index, width in enumerate(widths):
        if lines[-1] and used + width > room:
            lines.append([])
            used = 0
        lines[-1].append(index)
        used += width + 2  # the space between columns
    return lines


def scores_text(
    scores: Mapping[str, float], intervals: Mapping[str, Sequence[float]] | None = None
) -> str:
    """Returns scores as a line of text: "accuracy 96.25 % (95 % interval 92.00 to 98.75), ..."."""
    texts = []
    for key, score in scores.items():
        shown = (lambda x: f"{100 * x:.2f}") if is_fraction(key) else number
        unit = " %" if is_fraction(key) else ""
        interval = (intervals or {}).get(key)
        between = ""
        if interval is not None:
            between = f" (95 % interval {shown(interval[0])} to {shown(interval[1])})"
        texts.append(f"{label(key)} {shown(score)}{unit}{between}")
    return ", ".join(texts)
