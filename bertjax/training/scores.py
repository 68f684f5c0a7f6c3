"""Prints the scores of fine-tuning runs, and collects the facts for model cards."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bertjax.config import FinetuneConfig
from bertjax.config.finetune_checks import LAST
from bertjax.files import did_you_mean
from bertjax.tasks import Task
from bertjax.tasks.metrics import higher_is_better, is_fraction
from bertjax.training.metric_labels import held_out_label, label

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


def split_label(split: str) -> str:
    """Returns what printed tables call a split: "held-out" for "dev", "test" for "test".

    A dev split that is one of several has its name as well, as in "held-out (mismatched)".
    """
    kind, _, name = split.partition("_")
    return {"dev": "held-out"}.get(kind, kind) + (f" ({name})" if name else "")


def score_label(key: str) -> str:
    """Returns what printed tables call a score: "held-out macro F1" for "dev/macro_f1"."""
    split, _, metric = key.partition("/")
    return f"{split_label(split)} {label(metric)}"


def best_metric(task: Task) -> str:
    """Returns the name of the dev metric that selects the best checkpoint, such as "accuracy".

    If the task has several dev splits, the name has the prefix of the first one, as in
    "matched_accuracy".
    """
    dev = splits_of(task, "dev")
    return (split_prefix(dev[0]) if dev else "") + task.best_metric


def grading_metric(task: Task) -> str | None:
    """Returns the key, such as "dev/accuracy", of the metric by which runs are compared.

    The key is one of the scores of a run, and names the task's best metric on its first dev split.
    The result is None if the task has no dev split.
    """
    dev = splits_of(task, "dev")
    return f"{dev[0]}/{task.best_metric}" if dev else None


def selected_by(task: Task, metric: str | None) -> Task:
    """Returns a copy of the task in which the dev metric `metric` selects the best checkpoint.

    If `metric` is None or "last", which selects the last step, the task is returned unchanged.

    Raises:
        ValueError: the task does not have this metric, or has no dev split.
    """
    if metric in (None, LAST):
        return task
    if metric not in task.metric_names():
        raise ValueError(
            f"--select_by {metric}: {task.name} has no such metric. "
            f"{did_you_mean(metric, task.metric_names())}Choose one of "
            f"{', '.join(task.metric_names())}."
        )
    if not splits_of(task, "dev"):
        raise ValueError(f"--select_by {metric} needs a dev split: give --dev.")
    return dataclasses.replace(task, best_metric=metric)


def best_run(scores: Scores, metric: str | None) -> str:
    """Returns the name of the run whose score `metric`, such as "dev/accuracy", is the best.

    `scores` is {name of a run: {metric: score}}. The best score is the highest or, for losses and
    errors, the lowest. If several runs are equally good, the first of them is returned; if `metric`
    is None, the first run.
    """
    sign = 1 if metric is None or higher_is_better(metric) else -1
    return max(scores, key=lambda name: sign * scores[name].get(metric or "", 0.0))


def print_scores(scores: Scores, task: Task, best: str | None = None) -> None:
    """Prints a table with the scores of each run on `task`.

    For several runs, also prints the mean and standard deviation of each score and, unless it is
    None, `best`, the name of the run that was selected by its score on the dev split.
    """
    names = sorted({key for run in scores.values() for key in run})
    if not names:
        return
    if len(scores) == 1:
        table = Table("metric", "score", title=task.name)
        for key in names:
            table.add_row(score_label(key), *(_shown(key, run[key]) for run in scores.values()))
        Console(width=80).print(table)
        return
    table = Table("", *map(score_label, names), title=task.name)
    for name, run in scores.items():
        table.add_row(name, *(_shown(key, run[key]) for key in names))
    every = np.array([[run[key] for key in names] for run in scores.values()])
    table.add_section()
    for name, row in (("mean", every.mean(0)), ("std", every.std(0, ddof=1))):
        table.add_row(name, *map(_shown, names, row))
    Console(width=max(80, 24 * (len(names) + 1))).print(table)
    metric = grading_metric(task)
    if metric is not None and metric in names and best is not None:
        print(f"best by {score_label(metric)}: {best}")


def _shown(key: str, value: float) -> str:
    """Formats the score `value` of the metric `key`: fractions and correlations in percent."""
    if is_fraction(key):
        return f"{100 * value:.2f}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


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


def best_in_words(values: Mapping[int, float], step: int, metric: str) -> str:
    """Says which checkpoint is the best one, and how many evaluations are as good as its own.

    Args:
        values: {step: value} of all evaluations.
        step: the step of the best checkpoint, which is the last one of equally good ones.
        metric: the name of the metric, such as "eval/accuracy".
    """
    name, count = held_out_label(metric), list(values.values()).count(values.get(step, math.nan))
    if count < 2:
        return f"that of step {step}, which has the best {name}"
    return f"that of step {step}, the last of {count} evaluations with the best {name}"
