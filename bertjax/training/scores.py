"""Prints the scores of fine-tuning runs, and collects the facts for model cards."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bertjax.config import FinetuneConfig
from bertjax.tasks import Example, Prediction, Task

# The largest number of classes for which a confusion matrix is printed.
MOST_CLASSES_SHOWN = 20

Scores = Mapping[str, Mapping[str, float]]


def splits_of(task: Task, kind: str) -> list[str]:
    """Returns the names of all dev splits (`kind` "dev") or test splits ("test") of a task."""
    splits = task.source.splits if task.source else ()
    return [split for split in splits if split.split("_")[0] == kind]


def split_prefix(split: str) -> str:
    """Returns the prefix of a dev split's metric names: "mismatched_" for "dev_mismatched".

    The prefix of the split "dev" is empty.
    """
    return "" if split == "dev" else split.removeprefix("dev_") + "_"


def best_metric(task: Task) -> str:
    """Returns the name of the dev metric that selects the best checkpoint, such as "accuracy".

    If the task has several dev splits, the name has the prefix of the first one, as in
    "matched_accuracy".
    """
    dev = splits_of(task, "dev")
    return (split_prefix(dev[0]) if dev else "") + task.best_metric


def grading_metric(task: Task) -> str | None:
    """Returns the key of the best metric in a run's scores, such as "dev/accuracy".

    The result is None if the task has no dev split.
    """
    dev = splits_of(task, "dev")
    return f"{dev[0]}/{task.best_metric}" if dev else None


def print_scores(scores: Scores, task: Task) -> None:
    """Prints a table with the scores of each run.

    For several runs, also prints the mean and standard deviation of each score and the name of the
    best run.
    """
    names = sorted({key for run in scores.values() for key in run})
    if not names:
        return
    table = Table("", *names, title=task.name)
    for name, run in scores.items():
        table.add_row(name or "score", *(_shown(key, run[key]) for key in names))
    if len(scores) > 1:
        every = np.array([[run[key] for key in names] for run in scores.values()])
        table.add_section()
        for name, row in (("mean", every.mean(0)), ("std", every.std(0, ddof=1))):
            table.add_row(name, *map(_shown, names, row))
    Console(width=max(80, 24 * (len(names) + 1))).print(table)
    metric = grading_metric(task)
    if len(scores) > 1 and metric in names:
        print(f"best by {metric}: {max(scores, key=lambda name: scores[name][metric])}")


def _shown(key: str, value: float) -> str:
    """Formats a score in percent, or unscaled if it is a count or a threshold of SQuAD 2.0."""
    return f"{value:.2f}" if key.endswith(("total", "_thresh")) else f"{100 * value:.2f}"


def counted(
    pairs: Iterable[tuple[Example, Prediction]], counts: Counter[tuple[Any, Any]]
) -> Iterator[tuple[Example, Prediction]]:
    """Yields (example, prediction) pairs unchanged; counts (label, predicted label) in `counts`."""
    for example, prediction in pairs:
        if example.label is not None:
            counts[example.label, prediction["label"]] += 1
        yield example, prediction


def print_confusion(confusion: Mapping[str, Counter[tuple[Any, Any]]], task: Task) -> None:
    """Prints a confusion matrix per split, with labels in rows and predictions in columns."""
    for split, counts in confusion.items():
        if not counts or len(task.labels) > MOST_CLASSES_SHOWN:
            continue
        names = [escape(label) for label in task.labels]  # rich reads "[x]" as markup
        table = Table("label, predicted:", *names, title=f"{task.name} {split}")
        for name, gold in zip(names, task.labels, strict=True):
            table.add_row(name, *(f"{counts[gold, answer]:,}" for answer in task.labels))
        Console(width=max(80, 16 * (len(task.labels) + 1))).print(table)


def model_facts(
    config: FinetuneConfig, updates: int, features: int, scores: Mapping[str, float]
) -> list[tuple[str, Any]]:
    """Returns (name, value) pairs for the model card of a fine-tuned model.

    Args:
        config: the config of the run.
        updates: the number of updates with which the exported parameters were trained.
        features: the number of training features (encoded examples).
        scores: the scores of the model, {split/metric: score}.
    """
    return [
        ("task", config.task),
        ("started from", config.init),
        *([("trained", f"the {config.tagger} tagger alone")] if config.feature_layers else []),
        *([("taught by", config.teacher)] if config.teacher else []),
        ("training features", f"{features:,}"),
        ("updates", f"{updates:,} of {config.batch_size} features"),
        ("learning rate", f"{config.optimizer.learning_rate:g}"),
        ("seed", config.seed),
        *((key, f"{value:.4f}") for key, value in scores.items()),
    ]
