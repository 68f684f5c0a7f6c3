"""The metrics of a run for its report: all held-out values, and thinned curves of the others.

A long run logs more values than a chart has pixels. `Curve` keeps at most `MOST_BUCKETS` buckets of
consecutive steps, and of each bucket the first, the last, the lowest and the highest value (M4;
Jugel et al. 2014), so that no spike is lost and every point is a logged value. Lines are added one
by one, in constant memory, so that a run does not read its log again for each report.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.training.metric_files import parsed

# With four values per bucket, 9 curves of the longest runs take less than 1 MB in a page.
MOST_BUCKETS = 500
# The skipped updates that are listed one by one.
MOST_SKIPPED = 100
TRAIN, EVAL, SKIPPED = "train/", "eval/", "skipped/"


class Curve:
    """The values of one metric, thinned if there are many.

    Attributes:
        count: the number of values that were added.
        width: the number of steps of a bucket.
        first_gap: the first step whose value was not finite (None); None if there is no such step.
        gaps: the number of such steps.
    """

    def __init__(self) -> None:
        self.count, self.width = 0, 1
        self.gaps, self.first_gap = 0, None
        # Each bucket: [its index, first, last, lowest and highest (step, value)].
        self._buckets: list[list[Any]] = []

    def add(self, step: int, value: float | None) -> None:
        """Adds the value of a step, which is later than all steps before; None: not finite."""
        if value is None:
            self.gaps += 1
            self.first_gap = step if self.first_gap is None else self.first_gap
            return
        self.count += 1
        point, index = (step, value), step // self.width
        if not self._buckets or self._buckets[-1][0] != index:
            self._buckets.append([index, point, point, point, point])
            if len(self._buckets) > 2 * MOST_BUCKETS:
                self._halve()
            return
        bucket = self._buckets[-1]
        bucket[2] = point
        if value < bucket[3][1]:
            bucket[3] = point
        if value > bucket[4][1]:
            bucket[4] = point

    def _halve(self) -> None:
        """Makes buckets wider until at most `MOST_BUCKETS` are left."""
        while len(self._buckets) > MOST_BUCKETS:
            self.width *= 2
            merged: list[list[Any]] = []
            for bucket in self._buckets:
                bucket[0] //= 2
                if merged and merged[-1][0] == bucket[0]:
                    before = merged[-1]
                    before[2] = bucket[2]
                    before[3] = min(before[3], bucket[3], key=lambda point: point[1])
                    before[4] = max(before[4], bucket[4], key=lambda point: point[1])
                else:
                    merged.append(bucket)
            self._buckets = merged

    def points(self) -> list[tuple[int, float]]:
        """Returns the kept (step, value) pairs in the order of steps."""
        return sorted({point for bucket in self._buckets for point in bucket[1:]})


class RunMetrics:
    """The metrics of a run, line by line.

    Attributes:
        train: {metric: its curve}, with names such as "train/loss".
        eval_steps: the steps of all evaluations.
        evals: {metric: values of the evaluations}, with names such as "eval/loss"; None where an
            evaluation has no such value.
        skipped: the first `MOST_SKIPPED` lines of skipped updates.
        num_skipped: the number of all skipped updates.
        lines: the number of readable lines.
        damaged: the number of damaged lines.
        last_step: the last logged step; 0 if there is none.
    """

    def __init__(self) -> None:
        self.train: dict[str, Curve] = {}
        self.eval_steps: list[int] = []
        self.evals: dict[str, list[float | None]] = {}
        self.skipped: list[dict[str, Any]] = []
        self.num_skipped = self.lines = self.damaged = self.last_step = 0

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds the metrics of one line of metrics.jsonl.

        Args:
            step: the step of the line.
            values: the other items of the line; those that are no numbers are ignored. NaN and
                infinity are kept as None, since JSON has neither.
        """
        self.lines += 1
        self.last_step = max(self.last_step, step)
        numbers = {
            key: value if value is not None and math.isfinite(value) else None
            for key, value in values.items()
            if value is None or isinstance(value, int | float)
        }
        for key, value in numbers.items():
            if key.startswith(TRAIN):
                self.train.setdefault(key, Curve()).add(step, value)
        self._add_evaluation(step, {k: v for k, v in numbers.items() if k.startswith(EVAL)})
        skipped = {k.removeprefix(SKIPPED): v for k, v in numbers.items() if k.startswith(SKIPPED)}
        if skipped:
            self.num_skipped += 1
            if len(self.skipped) < MOST_SKIPPED:
                self.skipped.append({"step": step, **skipped})

    def values_by_step(self, name: str) -> dict[int, float]:
        """Returns {step: value} of the evaluations that have the metric `name`."""
        pairs = zip(self.eval_steps, self.evals.get(name, ()), strict=False)
        return {step: value for step, value in pairs if value is not None}

    def _add_evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        if not values:
            return
        for key in values:
            self.evals.setdefault(key, [None] * len(self.eval_steps))
        self.eval_steps.append(step)
        for key, column in self.evals.items():
            column.append(values.get(key))


def read_metrics(path: Path) -> RunMetrics:
    """Reads metrics.jsonl line by line; a missing file counts as an empty one.

    A damaged line is counted and left out; an incomplete last line, which the run may be writing
    now, is left out.
    """
    metrics = RunMetrics()
    if not path.is_file():
        return metrics
    with path.open("rb") as file:
        for text in file:
            if not text.endswith(b"\n"):
                break
            line = parsed(text.strip(b"\0\n"))
            if line is None:
                metrics.damaged += 1
            else:
                metrics.add(line.pop("step"), line)
    return metrics
