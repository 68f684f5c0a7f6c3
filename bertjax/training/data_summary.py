"""Summarises the training data of a task for the user, before the training starts."""

import re
from collections.abc import Sequence

import numpy as np

from bertjax.config import FinetuneConfig
from bertjax.tasks import Task
from bertjax.tasks.sources.row_readers import read_number
from bertjax.tasks.training_data import TrainingData

MOST_CLASSES = 20
# The most warnings of classes with similar names that are printed.
MOST_SIMILAR = 5


def summary(task: Task, data: TrainingData, config: FinetuneConfig) -> list[str]:
    """Returns lines of text that describe the train split `data` of `task`.

    The lines state the number of examples (in question answering, of windows), their lengths in
    tokens, the updates per epoch, which follow from `config`, and the frequencies of the classes. A
    line beginning with "warning:" names classes whose names differ only in case, spaces,
    punctuation or the form of a number.
    """
    count, sizes = len(data.sizes), np.asarray(data.sizes)
    quantiles = np.quantile(sizes, (0.5, 0.95), method="higher").tolist()
    updates = -(-count // config.batch_size)
    lines = [
        f"train: {count:,} {'windows' if task.label_kind == 'span' else 'examples'} of "
        f"{sizes.min()} to {sizes.max()} tokens (median {quantiles[0]}, 95 % have at most "
        f"{quantiles[1]}); an epoch has {updates:,} updates of {config.batch_size}"
    ]
    if data.class_counts.size:
        lines.append(_classes(task, data.class_counts, count))
        similar = _similar(task.labels)
        lines += [f"warning: {text}" for text in similar[:MOST_SIMILAR]]
        if len(similar) > MOST_SIMILAR:
            lines.append(f"warning: and {len(similar) - MOST_SIMILAR} more such groups of classes")
    return lines


def _classes(task: Task, counts: np.ndarray, count: int) -> str:
    order = np.argsort(-counts, kind="stable")
    several = task.label_kind == "multi_label"
    total = max(count if several else int(counts.sum()), 1)
    shown = [
        f"{task.labels[i]} {int(counts[i]):,} ({100 * counts[i] / total:.1f} %)"
        for i in order[:MOST_CLASSES]
    ]
    rest = f" and {len(order) - MOST_CLASSES} more" if len(order) > MOST_CLASSES else ""
    unit = "words" if task.label_kind == "tokens" else "examples"
    kind = "labels" if several else "classes"
    return f"{len(order)} {kind} by {unit}: {', '.join(shown)}{rest}"


def _similar(labels: Sequence[str]) -> list[str]:
    """Returns a warning for each group of labels that may be one label in several spellings.

    Numbers are compared by value, so that "1" and "1.0" belong to one group.
    """
    groups: dict[str, list[str]] = {}
    for label in labels:
        number = read_number(label)
        plain = re.sub(r"[\W_]+", "", label.casefold()) if number is None else str(number)
        if plain:
            groups.setdefault(plain, []).append(label)
    return [
        f"the classes {', '.join(map(repr, group))} differ only in how they are written: if "
        "they are one class, write them alike."
        for group in groups.values()
        if len(group) > 1
    ]
