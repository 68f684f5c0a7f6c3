"""Intervals of the mean scores of several runs, from the predictions that the runs have written."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bertjax.base.files import json_lines
from bertjax.base.workdir_files import PREDICTIONS
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.intervals import Interval, interval_of_mean, intervals, mean_of, of_both
from bertjax.tasks.measures import ScoredRows, groups_of_models, measure_of, scored_rows
from bertjax.tasks.task import GOLD

Scores = Mapping[str, Mapping[str, float]]


class NotStoredError(ValueError):
    """The predictions of a run are missing, damaged, or those of other examples."""


def stored_pairs(task: Task, run: Path, split: str) -> Iterator[tuple[Example, Prediction]]:
    """Yields the examples of a split with the predictions in the folder of a run.

    Their labels are those of the run, with which its scores were computed.

    Raises:
        NotStoredError: the folder has no predictions of exactly these examples.
    """
    path = run / PREDICTIONS / f"{split}.jsonl"
    for example, line in itertools.zip_longest(task.data.examples(split), json_lines(path)):
        if example is None or line is None or str(line.get("id")) != example.id:
            raise NotStoredError(
                f"{path} lacks predictions, or has those of other examples: delete {run} and run "
                "the same command again."
            )
        if GOLD in line:
            yield task.with_gold(example, line), line
        else:
            yield dataclasses.replace(example, label=None, answers=()), line


def of_seeds(workdir: Path, task: Task, scores: Scores) -> dict[str, dict[str, Interval]]:
    """Computes the intervals of the mean scores of runs with several seeds.

    Args:
        workdir: the folder with a folder for each run.
        task: the task of the runs, with its examples.
        scores: {run: {split/metric: score}}.

    Returns {what it covers: {split/metric: interval}}: "rows", "seeds" and "both". Scores that the
    written predictions do not determine, as those of embeddings, have intervals over seeds alone;
    so have those of examples that were added or removed since a run.
    """
    keys = set.intersection(*map(set, scores.values()))
    seeds = {key: interval_of_mean(key, [run[key] for run in scores.values()]) for key in keys}
    rows = {}
    both = {}
    for split in sorted({key.partition("/")[0] for key in keys}):
        try:
            runs = [scored_rows(task, stored_pairs(task, workdir / name, split)) for name in scores]
        except NotStoredError:
            continue
        units = [run.units() for run in runs]
        if not all(units) or len({*map(len, units)}) > 1:
            continue
        measures = [measure_of(task, of_run) for of_run in units]
        found = intervals(mean_of(measures, same_units=True), runs[0].groups())
        for name, interval in found.items():
            key = f"{split}/{name}"
            if key in keys:
                mean = float(np.mean([run[key] for run in scores.values()]))
                rows[key] = interval
                both[key] = of_both(key, mean, interval, seeds[key])
    covered = {"rows": rows, "seeds": seeds, "both": both}
    return {name: of_scores for name, of_scores in covered.items() if of_scores}


def of_folds(folds: Sequence[ScoredRows]) -> dict[str, dict[str, Interval]]:
    """Computes the intervals of the mean scores of folds over "rows"; {} if a fold has no scores.

    They do not cover other training sets, for which no unbiased estimate is known (Bengio and
    Grandvalet 2004).
    """
    measures = []
    for rows in folds:
        units = rows.units()
        if not units:
            return {}
        measures.append(measure_of(rows.task, units))
    if not measures:
        return {}
    found = intervals(mean_of(measures, same_units=False), groups_of_models(folds))
    return {"rows": {f"dev/{name}": interval for name, interval in found.items()}}
