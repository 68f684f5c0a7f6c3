"""Summarises the training data of a task for the user, before the training starts."""

import difflib
import re
from collections.abc import Sequence

import numpy as np

from bertjax.config import FinetuneConfig
from bertjax.tasks import Task
from bertjax.tasks.sources.tables import read_number
from bertjax.tasks.training_data import TrainingData

MOST_CLASSES = 20
# The most warnings of classes with similar names that are printed.
MOST_SIMILAR = 5
# A class may be a misspelling of another one that is so many times as frequent, if so large a share
# of their letters agrees and the name has so many letters.
MISSPELT_FACTOR, MISSPELT_SHARE, MISSPELT_LETTERS = 20, 0.85, 5


def summary(task: Task, data: TrainingData, config: FinetuneConfig) -> list[str]:
    """Returns lines of text that describe the train split `data` of `task`.

    The lines state the number of examples (or of windows, if texts are long), their lengths in
    tokens, the updates per epoch, which follow from `config`, and the frequencies of the classes. A
    line beginning with "warning:" names classes whose names differ only in case, spaces,
    punctuation or the form of a number, or a rare class whose name is almost that of a frequent
    one.
    """
    count, sizes = len(data.sizes), np.asarray(data.sizes)
    quantiles = np.quantile(sizes, (0.5, 0.95), method="higher").tolist()
    updates = -(-count // config.batch_size)
    plural = "s" if updates > 1 else ""
    is_split = task.label_kind == "span" or count != data.examples
    unit = "windows" if is_split else "examples"
    lines = [
        f"train: {count:,} {unit} of "
        f"{sizes.min()} to {sizes.max()} tokens (median {quantiles[0]}, 95 % have at most "
        f"{quantiles[1]}); an epoch has {updates:,} update{plural} of {config.batch_size}"
    ]
    if data.class_counts.size:
        unit = "words" if task.label_kind == "tokens" else unit
        lines.append(_classes(task, data.class_counts, count, unit))
        similar = [*_similar(task.labels), *_misspelt(task.labels, data.class_counts)]
        lines += [f"warning: {text}" for text in similar[:MOST_SIMILAR]]
        if len(similar) > MOST_SIMILAR:
            lines.append(f"warning: and {len(similar) - MOST_SIMILAR} more such groups of classes")
    return lines


def _classes(task: Task, counts: np.ndarray, count: int, unit: str) -> str:
    order = np.argsort(-counts, kind="stable")
    several = task.label_kind == "multi_label"
    total = max(count if several else int(counts.sum()), 1)
    shown = [
        f"{task.labels[i]} {int(counts[i]):,} ({100 * counts[i] / total:.1f} %)"
        for i in order[:MOST_CLASSES]
    ]
    rest = f" and {len(order) - MOST_CLASSES} more" if len(order) > MOST_CLASSES else ""
    kind = "labels" if several else "classes"
    return f"{len(order)} {kind} by {unit}: {', '.join(shown)}{rest}"


def _similar(labels: Sequence[str]) -> list[str]:
    """Returns a warning for each group of labels that may be one label in several spellings.

    Numbers are compared by value, so that "1" and "1.0" belong to one group.
    """
    groups: dict[str, list[str]] = {}
    for label in labels:
        number = read_number(label)
        plain = _letters(label) if number is None else str(number)
        if plain:
            groups.setdefault(plain, []).append(label)
    return [
        f"the classes {', '.join(map(repr, group))} differ only in how they are written: if "
        "they are one class, write them alike."
        for group in groups.values()
        if len(group) > 1
    ]


def _letters(label: str) -> str:
    return re.sub(r"[\W_]+", "", label.casefold())


def _misspelt(labels: Sequence[str], counts: np.ndarray) -> list[str]:
    """Returns a warning for each rare label that may be a misspelling of a frequent one.

    `counts`, int [labels], are the numbers of examples. Labels with digits are no words and are
    left out.
    """
    words = [
        (label, int(count))
        for label, count in zip(labels, counts, strict=True)
        if count and len(label) >= MISSPELT_LETTERS and not re.search(r"\d", label)
    ]
    warnings = []
    for label, count in words:
        frequent = [name for name, n in words if n >= MISSPELT_FACTOR * count]
        near = difflib.get_close_matches(label, frequent, 1, MISSPELT_SHARE)
        if near and _letters(near[0]) != _letters(label):  # else `_similar` names them
            warnings.append(
                f"the class {label!r} ({count:,}) is almost {near[0]!r}: if it is misspelt, "
                "correct it in the file."
            )
    return warnings
