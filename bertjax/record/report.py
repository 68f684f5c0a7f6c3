"""Collects what `report.html` shows of a run, from the files in its workdir.

All numbers are those of the files: metrics.jsonl, goodput.jsonl, processes.jsonl, rollbacks.json,
scores.json and predictions/SPLIT.summary.json. Files that are missing or damaged, such as those of
runs of older versions, are left out of the report, which says so.
"""

import contextlib
import csv
import dataclasses
import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.files import json_lines, read_json, write_text
from bertjax.base.run_file import holds_run, read_run
from bertjax.base.workdir_files import (
    BAD_ROWS,
    DAMAGED,
    LEDGER,
    METRICS,
    PRESENT,
    PROCESSES,
    REPORT,
    ROLLBACKS,
    RUN_FILE,
    SCORES,
    SPARE_FILE,
)
from bertjax.config import FinetuneConfig, Phase, PretrainConfig
from bertjax.devices import activity
from bertjax.pages.templates import fill
from bertjax.record import journal
from bertjax.record.journal import FINISHED, read_processes
from bertjax.record.labels import in_percent, label
from bertjax.record.predictions import SUFFIX, split_prefix
from bertjax.tasks.metrics import higher_is_better

# With four values per bucket, 9 curves of the longest runs take less than 1 MB in a page.
MOST_BUCKETS = 500
# The skipped updates that are listed one by one.
MOST_SKIPPED = 100


class Curve:
    """The values of one metric, thinned if there are many.

    Attributes:
        count: the number of values that were added.
        width: the number of steps of a bucket.
        gaps, first_gap: the number of steps whose value was not finite, and the first of them.
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
        eval_steps, evals: the steps of all evaluations, and {metric: its values there or None}.
        skipped: the first `MOST_SKIPPED` of `num_skipped` lines of skipped updates.
        lines, damaged: the numbers of readable and of damaged lines.
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

        Values that are no numbers are ignored; NaN and infinity are kept as None.
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
    """Reads metrics.jsonl line by line; damaged lines are counted and left out."""
    metrics = RunMetrics()
    for line in json_lines(path):
        if line is None or type(line.get("step")) is not int:
            metrics.damaged += 1
        else:
            metrics.add(line.pop("step"), line)
    return metrics


# The held-out loss has risen if it is above its lowest value by this factor and by this difference.
RISE_FACTOR, RISE = 1.2, 0.05
# The names of the loss of which a rise counts: (held-out metric, training metric).
LOSSES = (("eval/mlm_loss", "train/mlm_loss"), ("eval/loss", "train/loss"))


def hints_of(
    metrics: RunMetrics, splits: Iterable[Mapping[str, Any]], first_step: int = 0
) -> list[str]:
    """Returns the hints of a run as sentences.

    Args:
        metrics: the metrics of the run.
        splits: the summaries of its predictions, with "split" the name of each.
        first_step: the step after which the last phase begins; evaluations of earlier phases have
            rows of another length, whose losses cannot be compared.
    """
    found = [_memorised(metrics, first_step), _unigrams(metrics)]
    return [hint for hint in (*found, *map(_majority, splits)) if hint]


def _memorised(metrics: RunMetrics, first_step: int) -> str:
    """Says that the held-out loss has risen while the training loss fell."""
    for held_out, train in LOSSES:
        losses = metrics.values_by_step(held_out)
        losses = {step: loss for step, loss in losses.items() if step > first_step}
        points = metrics.train[train].points() if train in metrics.train else []
        if len(losses) < 3 or not points:
            continue
        lowest = min(losses, key=lambda step: losses[step])
        last = max(losses)
        # A log line is the mean of the steps before it, so that the next one is that of the lowest.
        before = next((loss for step, loss in points if step >= lowest), points[-1][1])
        now = points[-1][1]
        has_risen = losses[last] > max(RISE_FACTOR * losses[lowest], losses[lowest] + RISE)
        if has_risen and now < before:
            return (
                f"The held-out loss was lowest at step {lowest:,} ({losses[lowest]:.3g}) and rose "
                f"to {losses[last]:.3g} at step {last:,}, while the training loss fell from "
                f"{before:.3g} to {now:.3g}: the model memorises its training examples "
                "(over-fitting). More examples, fewer steps, or a model that was pretrained on "
                "more text usually help."
            )
    return ""


def _unigrams(metrics: RunMetrics) -> str:
    """Says that a pretrained model is no better than the frequencies of the tokens."""
    losses = metrics.values_by_step("eval/mlm_loss")
    entropies = metrics.values_by_step("eval/unigram_entropy")
    last = max(losses, default=None)
    if last is None or last not in entropies or losses[last] < entropies[last]:
        return ""
    return (
        f"The held-out masked LM loss of step {last:,} ({losses[last]:.3f}) is not below the "
        f"unigram entropy ({entropies[last]:.3f}): so far, the model predicts masked tokens no "
        "better than by how frequent each token is, without a look at the context. It needs more "
        "steps, or another learning rate."
    )


def _majority(split: Mapping[str, Any]) -> str:
    """Says that the accuracy of a classifier is that of always naming the most frequent class."""
    confusion = split.get("confusion")
    if not confusion or split.get("label_kind", "classes") != "classes":
        return ""
    counts: Sequence[Sequence[int]] = confusion["counts"]
    golds = [sum(row) for row in counts]
    answers = [sum(column) for column in zip(*counts, strict=True)]
    total, right = sum(golds), sum(row[n] for n, row in enumerate(counts))
    if sum(map(bool, golds)) < 2 or right > max(golds):
        return ""
    most = confusion["labels"][golds.index(max(golds))]
    share = f"{100 * max(golds) / total:.2f} %"
    said = f"{100 * right / total:.2f} % of the {total:,} predictions of {split['split']} are right"
    # With weighted classes, a model may be good and have this accuracy.
    advice = "By accuracy, the model is no better than that; the scores of each class say more."
    if sum(map(bool, answers)) == 1:
        only = confusion["labels"][answers.index(max(answers))]
        said = f"All {total:,} predictions of {split['split']} are {only!r}, and {said}"
        advice = (
            "The model has not learned to tell the classes apart: more epochs, more examples or "
            "another learning rate may help."
        )
    return (
        f"{said}; always answering {most!r}, the most frequent class, would be right in {share}. "
        f"{advice}"
    )


RUNNING, STOPPED = "running", "stopped"
# A running process writes its line of the ledger every second; copies in buckets are older.
ALIVE_SECONDS = 60.0
# Messages of errors are cut to this number of characters.
REASON_CHARACTERS = 600
RESUMING = "The same command resumes it."
KILLED = "its process was killed, or its machine failed"


def state_of(
    workdir: Path,
    processes: Sequence[Mapping[str, Any]],
    ledger: Sequence[Mapping[str, Any]],
    logged: int,
    total: int | None,
    state: str | None = None,
) -> dict[str, Any]:
    """Returns {"state", "step", "num_steps", "sentence"}: how far a run is.

    Args:
        workdir: the local folder of the run.
        processes: what `journal.read_processes` returns.
        ledger: the lines of the ledger, with that of the present process.
        logged: the last step in metrics.jsonl.
        total: the number of steps of the run; None: unknown.
        state: "running", "finished" or "stopped"; None: it is found out.
    """
    step = max(logged, ledger[-1]["last_step"] if ledger else 0)
    ended = processes[-1]["ended"] if processes else None
    is_silent = False
    if state is None:
        if ended is not None:
            state = ended.get("state", STOPPED)
        elif (workdir / PRESENT).is_file() and ledger:
            is_silent = time.time() - ledger[-1]["end"] > ALIVE_SECONDS
            state = STOPPED if is_silent else RUNNING
        else:
            is_complete = (workdir / "model" / "config.json").is_file()
            is_complete &= (workdir / SCORES).is_file() or step == total
            state = FINISHED if is_complete else STOPPED
    of = f" of {total:,}" if total else ""
    share = f" ({100 * step / total:.0f} %)" if total and step < total else ""
    if state == RUNNING:
        sentence = f"Running: step {step:,}{of}{share}."
    elif state == FINISHED:
        early = ": the dev score had stopped improving" if total and step < total else ""
        sentence = f"Finished after step {step:,}{of}{early}."
    else:
        reason = KILLED if is_silent else _reason(ended)
        colon = f": {reason}." if reason else "."
        sentence = f"Stopped after step {step:,}{of}{share}{colon} {RESUMING}"
    return {"state": state, "step": step, "num_steps": total, "sentence": sentence}


def _reason(ended: Mapping[str, Any] | None) -> str:
    """Returns why a process stopped, without a full stop; "" if that is not known."""
    reason = str((ended or {}).get("reason", ""))[:REASON_CHARACTERS].rstrip(".")
    # Without "stopped", because the sentence says this already.
    if reason.startswith("stopped after step"):
        return "it was told to stop"
    return reason.removeprefix("stopped by ") if reason.startswith("stopped by ") else reason


def events_of(processes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns where `processes` continued the run: {"kind", "step", "time", "reason", "since"}.

    "kind" is "resumed", "started again" (from step 0), "rolled back", or "extended" if the finished
    run has got more steps. "time" is in seconds since 1970, "since" the start of the process
    before, and "reason" why that process had ended ("" for an extended run).
    """
    events = []
    for before, process in zip(processes, processes[1:], strict=False):
        ended = before["ended"] or {}
        is_rollback = process.get("rollbacks", 0) > before.get("rollbacks", 0)
        again = "resumed" if process.get("step") else "started again"
        kind, reason = ("rolled back" if is_rollback else again), _reason(ended)
        if ended.get("state") == FINISHED:
            if process.get("num_steps") == before.get("num_steps"):
                continue
            kind = "extended"
        elif not ended and not is_rollback:
            reason = KILLED
        event = {"kind": kind, "step": process.get("step", 0), "time": process["start"]}
        events.append(event | {"reason": reason, "since": before["start"]})
    return events


def notes_of(
    workdir: Path,
    metrics: RunMetrics,
    processes: Sequence[Mapping[str, Any]],
    ledger: Sequence[Mapping[str, Any]],
    status: Mapping[str, Any],
) -> list[str]:
    """Returns sentences on what a reader should know: damage, stops, rollbacks, bad rows."""
    notes = []
    if metrics.damaged:
        notes.append(
            f"{metrics.damaged:,} lines of metrics.jsonl are damaged and left out; the "
            f"{metrics.lines:,} readable lines are shown."
        )
    notes += [text for event in events_of(processes) if (text := _continued(event, ledger))]
    if status["state"] == STOPPED:
        notes.append(status["sentence"])
    notes += _rollbacks(workdir)
    if metrics.num_skipped:
        notes.append(
            f"{metrics.num_skipped:,} updates were skipped, because their loss or gradient was not "
            "finite or a spike."
        )
    for name, curve in metrics.train.items():
        if curve.gaps:
            notes.append(
                f"{name} is not finite in {curve.gaps:,} log lines, the first at step "
                f"{curve.first_gap:,}; these are left out of the curve."
            )
    notes += _files(workdir)
    if processes and "warning:" in str(processes[-1].get("attention", "")):
        notes.append(f"Attention kernel {processes[-1]['attention']}.")
    return notes


def _continued(event: Mapping[str, Any], ledger: Sequence[Mapping[str, Any]]) -> str:
    step, reason = f"{event['step']:,}", event["reason"]
    why = f" The process before had stopped: {reason}." if reason else ""
    if event["kind"] == "extended":
        return f"The finished run was continued at step {step} with another number of steps."
    if event["kind"] == "started again":
        return f"The run was started again from step 0, because it had no checkpoint.{why}"
    if event["kind"] != "resumed":
        return ""
    lost = sum(
        line["lost_steps"] for line in ledger if event["since"] < line["end"] <= event["time"]
    )
    again = f" {lost:,} steps that it had done after its last checkpoint were computed again."
    return f"The run was resumed at step {step}.{why}{again if lost else ''}"


def _rollbacks(workdir: Path) -> list[str]:
    if not (workdir / ROLLBACKS).is_file():
        return []
    try:
        records = read_json(workdir / ROLLBACKS)["rollbacks"]
        return [
            f"The run was rolled back from step {record['from_step']:,} to step "
            f"{record['to_step']:,}; {record['batches']:,} batches of phase {record['phase'] + 1} "
            "are left out."
            for record in records
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return [f"{ROLLBACKS} is damaged and left out."]


def _files(workdir: Path) -> list[str]:
    notes = []
    bad = workdir / BAD_ROWS
    if bad.is_file():
        with bad.open("rb") as lines:
            count = sum(1 for _ in lines)
        notes.append(f"{count:,} bad rows of the data are left out and listed in {BAD_ROWS}.")
    if (workdir / DAMAGED).is_dir():
        notes.append(f"Damaged checkpoints were moved to the folder {DAMAGED}.")
    return notes


TRAIN, EVAL, SKIPPED = "train/", "eval/", "skipped/"


TEMPLATE = "report.html"
# The metrics that select the best checkpoint in runs that do not say it, the first one that exists.
BEST_METRICS = ("eval/mlm_loss", "eval/accuracy", "eval/f1", "eval/pearson_spearman", "eval/loss")


def has_run(folder: Path) -> bool:
    """Returns whether `folder` is the workdir of a run, which may have logged nothing yet."""
    return holds_run(folder) or (folder / METRICS).is_file()


def files_of_report(names: Iterable[str]) -> list[str]:
    """Returns those files of a workdir, in a bucket, that its report reads."""
    files = {
        METRICS,
        RUN_FILE,
        SPARE_FILE,
        PROCESSES,
        LEDGER,
        PRESENT,
        ROLLBACKS,
        SCORES,
    }
    endings = (SUFFIX, ".report.json", ".confusion.csv", f"/{BAD_ROWS}", "model/config.json")
    return [
        name
        for name in names
        if Path(name).name in files or f"/{name}".endswith(endings) and "checkpoints/" not in name
    ]


def report_page(runs: Sequence[Mapping[str, Any]], *, written: float | None = None) -> str:
    """Returns the report of runs (`run_data`) as one HTML page, written at a time (None: now)."""
    data = {
        "written": time.time() if written is None else written,
        "runs": runs,
        "names": _names(runs),
        "differences": config_differences(runs),
    }
    return fill(TEMPLATE, data)


def run_data(
    workdir: Path,
    *,
    metrics: RunMetrics | None = None,
    state: str | None = None,
    name: str | None = None,
    address: str | None = None,
) -> dict[str, Any]:
    """Returns what the report shows of a run, as JSON values.

    Args:
        workdir: the local folder of the run, or of a copy of its files.
        metrics: the metrics of the run; None: they are read from metrics.jsonl.
        state: "running", "finished" or "stopped"; None: it is found out from the files.
        name: the name of the run in the page; None: the name of the folder.
        address: the --workdir of the run; None: `workdir`.
    """
    metrics = metrics or read_metrics(workdir / METRICS)
    processes = read_processes(workdir)
    facts = processes[-1] if processes else {}
    config, problem = _config(workdir)
    ledger = [*journal.read_ledger(workdir), *_present(workdir)]
    is_pretraining = "task" not in config
    phases = _phases(config)
    total = facts.get("num_steps") or (phases[-1]["end"] if phases else None)
    status = state_of(workdir, processes, ledger, metrics.last_step, total, state)
    splits = _splits(workdir, metrics)
    curves = {key: _curve(curve) for key, curve in metrics.train.items() if curve.count}
    return {
        "name": name or workdir.resolve().name,
        "address": address or str(workdir),
        "kind": "pretraining" if is_pretraining else "fine-tuning",
        "what": _what(config, facts),
        "status": status,
        "phases": phases,
        "best": _best(metrics, facts, phases, is_pretraining),
        "train": curves,
        "partial": _partial(curves, config.get("log_every")),
        "log_lines": metrics.lines,
        "eval": {"steps": metrics.eval_steps, "values": metrics.evals},
        "scores": _json(workdir / SCORES) or {},
        "splits": splits,
        "hints": hints_of(metrics, splits, _start_of_last_phase(metrics, phases)),
        "config": _config_rows(config),
        "processes": processes,
        "events": events_of(processes),
        "notes": [
            *([problem] if problem else []),
            *notes_of(workdir, metrics, processes, ledger, status),
        ],
        "skipped": {"count": metrics.num_skipped, "rows": metrics.skipped},
        "ledger": _ledger(ledger),
    }


def config_differences(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the fields, but for the workdir, in which runs differ: {"field", "values"} each."""
    tables = [{row["field"]: row["value"] for row in run["config"]} for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [{"field": name, "values": [table.get(name) for table in tables]} for name in names]
    return [row for row in rows if row["field"] != "workdir" and len(set(row["values"])) > 1]


def _names(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    names = set[str]()
    for run in runs:
        logged = (*run["train"], *run["eval"]["values"], *run["scores"])
        names |= {name.partition("/")[2] for name in logged}
        names |= {name for split in run["splits"] for name in split.get("scores", ())}
    return {name: {"label": label(name), "percent": in_percent(name)} for name in sorted(names)}


def _present(workdir: Path) -> list[dict[str, Any]]:
    """Returns the line of the ledger that a process has not finished yet, if there is one."""
    line = None
    # The process overwrites its line in place, so that a reader may see half of two lines.
    for _ in range(3):
        line = _json(workdir / PRESENT)
        if line is not None or not (workdir / PRESENT).is_file():
            break
        time.sleep(0.01)
    needed = {"start", "end", "first_step", "last_step", "lost_steps", "lost_seconds", "seconds"}
    return [line] if line is not None and line.keys() >= needed else []


def _ledger(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not lines:
        return None
    seconds = journal.totals(lines)
    lost = sum(line["lost_steps"] for line in lines)
    return {"seconds": seconds, "lost_steps": lost, "processes": len(lines)}


def _curve(curve: Any) -> dict[str, Any]:
    points = curve.points()
    return {
        "steps": [step for step, _ in points],
        "values": [value for _, value in points],
        "count": curve.count,
        "width": curve.width,
    }


def _partial(curves: Mapping[str, Any], every: Any) -> dict[str, int] | None:
    """Returns of how few steps the last training point is the mean; None if of as many as others.

    {"step": its step, "steps": their number, "every": the number of steps of the other points}.
    """
    steps = curves.get("train/loss", {}).get("steps", ())
    if not isinstance(every, int) or len(steps) < 2 or not steps[-1] % every:
        return None
    return {"step": steps[-1], "steps": steps[-1] % every, "every": every}


def _config(workdir: Path) -> tuple[dict[str, Any], str]:
    """Returns the config in run.json, and what is wrong with that file ("" if nothing is)."""
    try:
        return read_run(workdir)["config"], ""
    except FileNotFoundError:
        return {}, "run.json is missing, so the config of the run is not known."
    except (OSError, ValueError) as error:
        return {}, f"The config of the run is not known: {error}"


def _phases(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    phases = config.get("phases") or []
    with contextlib.suppress(TypeError, KeyError):
        ends = list(itertools.accumulate(phase["num_steps"] for phase in phases))
        return [
            {
                "start": end - phase["num_steps"],
                "end": end,
                "max_length": phase.get("max_length"),
                "batch_size": phase.get("batch_size"),
            }
            for phase, end in zip(phases, ends, strict=True)
        ]
    return []


def _what(config: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    if not config:
        return "A run whose config is not known."
    size = f"{facts['parameters']:,} parameters" if facts.get("parameters") else ""
    if "task" in config:
        task, file = config["task"], config.get("train")
        on = f"the task {task}" + (f" with the examples of {file}" if file else "")
        return f"Fine-tuning of {config.get('init')}{size and f' ({size})'} on {on}."
    model = config.get("model") or {}
    layers, width = model.get("num_hidden_layers"), model.get("hidden_size")
    start = f", starting from {config['init']}" if config.get("init") else ""
    return (
        f"Pretraining of an encoder with {layers} layers of hidden size {width}"
        f"{size and f' ({size})'} on the prepared data in {config.get('data')}{start}."
    )


def _best(
    metrics: RunMetrics,
    facts: Mapping[str, Any],
    phases: Sequence[Mapping[str, Any]],
    is_pretraining: bool,
) -> dict[str, Any] | None:
    """Returns the best evaluation of the last phase, by the metric that selects checkpoints.

    Rows of other lengths, in other phases, have other losses. "equal" is the number of evaluations
    with its value, of which it is the last.
    """
    known = (facts.get("best_metric"), *BEST_METRICS, *metrics.evals)
    name = next((name for name in known if name in metrics.evals), None)
    if name is None:
        return None
    higher = facts.get("higher_is_better")
    if higher is None or name != facts.get("best_metric"):
        higher = not is_pretraining and higher_is_better(name)
    start = _start_of_last_phase(metrics, phases)
    values = [
        (value, step)
        for value, step in zip(metrics.evals[name], metrics.eval_steps, strict=True)
        if value is not None and step > start
    ]
    if not values:
        return None
    # Of equally good checkpoints, the last one counts as the best.
    value, step = (max if higher else min)(reversed(values), key=lambda entry: entry[0])
    equal = sum(other == value for other, _ in values)
    return {
        **{"metric": name, "value": value, "step": step, "higher_is_better": higher},
        **{"equal": equal, "evaluations": len(values)},
    }


def _start_of_last_phase(metrics: RunMetrics, phases: Sequence[Mapping[str, Any]]) -> int:
    """Returns the step after which the last evaluated phase begins; -1 without phases."""
    last = metrics.eval_steps[-1] if metrics.eval_steps else 0
    return max((phase["start"] for phase in phases if phase["start"] < last), default=-1)


def _splits(workdir: Path, metrics: RunMetrics) -> list[dict[str, Any]]:
    folder = workdir / "predictions"
    splits = {path.name.removesuffix(SUFFIX): _json(path) for path in folder.glob(f"*{SUFFIX}")}
    for path in folder.glob("*.report.json"):  # written by a version without summaries
        split = path.name.removesuffix(".report.json")
        if splits.get(split) is None:
            splits[split] = _old_summary(folder, split)
    found = []
    for split, content in sorted(splits.items()):
        if content:
            step = _step_of(split, content.get("scores", {}), metrics)
            found.append({"split": split, "step": step, **content})
    return found


def _old_summary(folder: Path, split: str) -> dict[str, Any] | None:
    """Returns what the files of a version without summaries say about the predictions."""
    classes = _json(folder / f"{split}.report.json", list)
    if classes is None:
        return None
    found: dict[str, Any] = {"classes": classes, "class_kind": "class", "scores": {}}
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = (folder / f"{split}.confusion.csv").read_text(encoding="utf-8")
        first, *rows = csv.reader(text.splitlines())
        counts = [[int(n) for n in row[1:]] for row in rows]
        found["confusion"] = {"labels": first[1:], "counts": counts}
    return found


def _step_of(split: str, scores: Mapping[str, float], metrics: RunMetrics) -> int | None:
    """Returns the last step whose logged evaluation has the scores of a dev split, or None."""
    names = {f"eval/{split_prefix(split)}{key}": value for key, value in scores.items()}
    if not names or not split.startswith("dev") or not names.keys() <= metrics.evals.keys():
        return None
    for row in reversed(range(len(metrics.eval_steps))):
        if all(metrics.evals[name][row] == value for name, value in names.items()):
            return metrics.eval_steps[row]
    return None


def _config_rows(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        default = FinetuneConfig(task=config["task"]) if "task" in config else PretrainConfig()
        defaults = _flat(json.loads(json.dumps(dataclasses.asdict(default), default=str)))
        for index, _ in enumerate(config.get("phases") or ()):
            phase = {field.name: field.default for field in dataclasses.fields(Phase)}
            known = {key: value for key, value in phase.items() if value is not dataclasses.MISSING}
            defaults |= _flat(known, f"phases.{index}.")
    except (TypeError, ValueError):  # a config of a version with other fields
        defaults = {}
    return [
        {"field": name, "value": value, "changed": defaults.get(name) != value}
        for name, value in _flat(config).items()
    ]


def _flat(config: Any, prefix: str = "") -> dict[str, str]:
    """Returns {name of a field such as optimizer.learning_rate: its value as JSON}."""
    if isinstance(config, list) and config and isinstance(config[0], dict):
        config = {str(index): item for index, item in enumerate(config)}
    if not isinstance(config, Mapping) or not config:
        return {prefix.removesuffix("."): json.dumps(config, ensure_ascii=False)}
    items = (_flat(value, f"{prefix}{key}.") for key, value in config.items())
    return {name: value for flat in items for name, value in flat.items()}


def _json(path: Path, kind: type = dict) -> Any:
    """Returns the content of a JSON file; None if it is missing, damaged or of another type."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, kind) else None


# A page is written again at a log line if it is older than this number of seconds.
REFRESH_SECONDS = 60.0


class ReportWriter:
    """Writes the report of a run, as a listener of its metrics.

    `address` is what messages and the page call the workdir; `seconds`, how long the last report
    took.
    """

    def __init__(self, workdir: Path, address: str, clock: activity.Clock):
        self._workdir, self._address, self._clock = workdir, address, clock
        self._metrics: RunMetrics | None = None
        self._written = float("-inf")
        self._has_failed = False
        self.seconds = 0.0

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Notes metrics that were written to metrics.jsonl; writes the report if that is due."""
        with self.surviving():
            is_due = self._metrics is None or time.monotonic() - self._written >= REFRESH_SECONDS
            if self._metrics is None:
                self._metrics = read_metrics(self._workdir / METRICS)
            else:
                self._metrics.add(step, metrics)
            if is_due or any(name.startswith("eval/") for name in metrics):
                with self._clock.doing(activity.SAVING):
                    self._write(RUNNING)

    def start(self) -> None:
        """Writes the first report of this process."""
        with self.surviving(), self._clock.doing(activity.SAVING):
            self._write(RUNNING)

    def finish(self, state: str) -> None:
        """Writes the last report of this process; `state` is "finished" or "stopped"."""
        with self.surviving():
            self._write(state)

    def _write(self, state: str) -> None:
        start = time.monotonic()
        data = run_data(self._workdir, metrics=self._metrics, state=state, address=self._address)
        write_text(self._workdir / REPORT, report_page([data]))
        self._written = time.monotonic()
        self.seconds = self._written - start

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Prints an error of the `with` block as a warning, the first time, and goes on."""
        try:
            yield
        except Exception as error:  # a report is no part of the training, whatever it raises
            if not self._has_failed:
                print(
                    f"warning: {self._workdir / REPORT} was not written "
                    f"({type(error).__name__}: {error}). The run goes on; `python -m "
                    f"bertjax.report {self._address}` writes it later.",
                    flush=True,
                )
            self._has_failed = True
