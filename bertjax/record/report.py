"""Collects what `report.html` shows of a run, from the files in its workdir.

All numbers stand in the files metrics.jsonl, goodput.jsonl, processes.jsonl, rollbacks.json,
scores.json and predictions/SPLIT.summary.json. Files that are missing or damaged, such as files of
older versions, are left out of the report, which says so.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.files import counted, in_json, json_lines, read_json, read_json_or_empty
from bertjax.base.run_file import holds_run, read_run, train_file
from bertjax.base.workdir_files import (
    BAD_ROWS,
    DAMAGED,
    EVALUATION,
    LEDGER,
    METRICS,
    MODEL,
    PREDICTIONS,
    PRESENT,
    PROCESSES,
    ROLLBACKS,
    RUN_FILE,
    SCORES,
    SPARE_FILE,
)
from bertjax.config import FinetuneConfig, Phase, PretrainConfig
from bertjax.pages import fill
from bertjax.record.labels import in_percent, label
from bertjax.record.ledger import FINISHED, read_ledger, read_processes, totals
from bertjax.record.predictions import (
    BASELINES,
    BY_CLASS,
    INTERVALS,
    SUFFIX,
    TIE_BREAKER,
    split_prefix,
)
from bertjax.tasks import with_task_options
from bertjax.tasks.metrics import higher_is_better

# With four values per bucket, 9 curves of the longest runs take less than 1 MB in a page.
MOST_BUCKETS = 500
MOST_SKIPPED = 100


class Curve:
    """The values of one metric, thinned if there are many.

    Attributes:
        count: the number of values that were added.
        width: the number of steps of a bucket, of which `points` keeps the first, last, lowest and
            highest value.
        gaps, first_gap: the number of steps whose value was not finite, and the first of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.width = 1
        self.gaps = 0
        self.first_gap = None
        self._points: list[tuple[int, float]] = []

    def add(self, step: int, value: float | None) -> None:
        """Adds the value of a step, which is later than all steps before; None: not finite."""
        if value is None:
            self.gaps += 1
            if self.first_gap is None:
                self.first_gap = step
            return
        self.count += 1
        self._points.append((step, value))
        if len(self._points) > 16 * MOST_BUCKETS:
            self._points = self.points()

    def points(self) -> list[tuple[int, float]]:
        """Returns the kept (step, value) pairs in the order of steps."""
        while len({step // self.width for step, _ in self._points}) > 2 * MOST_BUCKETS:
            self.width *= 2
        kept: set[tuple[int, float]] = set()
        for _, points in itertools.groupby(self._points, lambda point: point[0] // self.width):
            bucket = list(points)
            by_value = sorted(bucket, key=operator.itemgetter(1))
            kept.update((bucket[0], bucket[-1], by_value[0], by_value[-1]))
        return sorted(kept)


class RunMetrics:
    """The metrics of a run, line by line.

    Attributes:
        train: {metric: its curve}, with names such as "train/loss".
        evals: (step, {metric: its value, or None if it was not finite}) of all evaluations.
        skipped: the lines of skipped updates.
        lines, damaged: the numbers of readable and of damaged lines.
        last_step: the last logged step; 0 if there is none.
    """

    def __init__(self) -> None:
        self.train: dict[str, Curve] = {}
        self.evals: list[tuple[int, dict[str, float | None]]] = []
        self.skipped: list[dict[str, Any]] = []
        self.lines = self.damaged = self.last_step = 0

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds the metrics of one line of metrics.jsonl.

        Values that are no numbers are ignored; NaN and infinity are kept as None.
        """
        self.lines += 1
        self.last_step = max(self.last_step, step)
        evaluation = {}
        skipped = {}
        for key, value in values.items():
            if not isinstance(value, int | float | None):
                continue
            if value is not None and not math.isfinite(value):
                value = None
            kind, _, name = key.partition("/")
            match kind:
                case "train":
                    self.train.setdefault(key, Curve()).add(step, value)
                case "eval":
                    evaluation[key] = value
                case "skipped":
                    skipped[name] = value
        if evaluation:
            self.evals.append((step, evaluation))
        if skipped:
            self.skipped.append({"step": step, **skipped})

    def eval_names(self) -> list[str]:
        """Returns the names of the metrics of all evaluations."""
        return list(dict.fromkeys(itertools.chain(*(row for _, row in self.evals))))

    def values_by_step(self, name: str, after: int = -1) -> dict[int, float]:
        """Returns {step: value} of the evaluations later than `after` that have the metric."""
        values = {}
        for step, row in self.evals:
            value = row.get(name)
            if step > after and value is not None:
                values[step] = value
        return values


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
RISE_FACTOR = 1.2
RISE = 0.05
# The names of the loss of which a rise counts: (held-out metric, training metric).
LOSSES = (("eval/mlm_loss", "train/mlm_loss"), ("eval/loss", "train/loss"))


def hints_of(
    metrics: RunMetrics, splits: Iterable[Mapping[str, Any]], first_step: int = -1
) -> list[str]:
    """Returns the hints of a run as sentences.

    Args:
        metrics: the metrics of the run.
        splits: the summaries of its predictions, with "split" the name of each.
        first_step: the step after which the last phase begins; evaluations of earlier phases have
            rows of another length, whose losses cannot be compared.
    """
    hints = [_memorised(metrics, first_step), _unigrams(metrics), *map(_majority, splits)]
    return [hint for hint in hints if hint]


def _memorised(metrics: RunMetrics, first_step: int) -> str:
    """Says that the held-out loss has risen while the training loss fell."""
    for held_out, train in LOSSES:
        losses = metrics.values_by_step(held_out, first_step)
        if len(losses) < 3 or train not in metrics.train:
            continue
        lowest = min(losses, key=losses.__getitem__)
        last = max(losses)
        least = losses[lowest]
        now = losses[last]
        # A log line is the mean of the steps before it, so that the next one belongs to the lowest.
        points = metrics.train[train].points()
        train_now = points[-1][1]
        train_before = next((loss for step, loss in points if step >= lowest), train_now)
        if now > max(RISE_FACTOR * least, least + RISE) and train_now < train_before:
            return (
                f"The held-out loss was lowest at step {lowest:,} ({least:.3g}) and rose to "
                f"{now:.3g} at step {last:,}, while the training loss fell from "
                f"{train_before:.3g} to {train_now:.3g}: the model memorises its training examples "
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
    """Says that a classifier is no more accurate than always naming the most frequent class."""
    confusion = split.get("confusion")
    if not confusion or split.get("label_kind", "classes") != "classes":
        return ""
    labels = confusion["labels"]
    counts = np.array(confusion["counts"])
    golds = counts.sum(axis=1)
    answers = counts.sum(axis=0)
    right = counts.trace()
    total = counts.sum()
    if np.count_nonzero(golds) < 2 or right > golds.max():
        return ""
    which = f"{total:,} predictions of {split['split']} are"
    said = f"{100 * right / total:.2f} % of the {which} right"
    # With weighted classes, a model may be good and have this accuracy.
    advice = "By accuracy, the model is no better than that; the scores of each class say more."
    if np.count_nonzero(answers) == 1:
        said = f"All {which} {labels[answers.argmax()]!r}, and {said}"
        advice = (
            "The model has not learned to tell the classes apart: more epochs, more examples or "
            "another learning rate may help."
        )
    return (
        f"{said}; always answering {labels[golds.argmax()]!r}, the most frequent class, would be "
        f"right in {100 * golds.max() / total:.2f} %. {advice}"
    )


RUNNING = "running"
STOPPED = "stopped"
# A running process writes its line of the ledger every second; copies in buckets are older.
ALIVE_SECONDS = 60.0
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
        processes: what `read_processes` returns.
        ledger: the lines of the ledger, with the line of the present process.
        logged: the last step in metrics.jsonl.
        total: the number of steps of the run; None: unknown.
        state: "running", "finished" or "stopped"; None: it is found out.
    """
    step = logged
    if ledger:
        step = max(step, ledger[-1]["last_step"])
    ended = processes[-1]["ended"] if processes else None
    reason = _reason(ended)
    if state is None and ended is not None:
        state = ended.get("state", STOPPED)
    elif state is None and ledger and (workdir / PRESENT).is_file():
        state = RUNNING
        if time.time() - ledger[-1]["end"] > ALIVE_SECONDS:
            state = STOPPED
            reason = KILLED
    elif state is None:
        is_exported = (workdir / MODEL / "config.json").is_file()
        is_done = step == total or (workdir / SCORES).is_file()
        state = STOPPED
        if is_exported and is_done:
            state = FINISHED
    position = f"step {step:,}"
    if total:
        position += f" of {total:,}"
        if step < total and state == FINISHED:
            position += ": the dev score had stopped improving"
        elif step < total:
            position += f" ({100 * step / total:.0f} %)"
    if state == RUNNING:
        sentence = f"Running: {position}."
    elif state == FINISHED:
        sentence = f"Finished after {position}."
    else:
        why = f": {reason}" if reason else ""
        sentence = f"Stopped after {position}{why}. {RESUMING}"
    return {"state": state, "step": step, "num_steps": total, "sentence": sentence}


def _reason(ended: Mapping[str, Any] | None) -> str:
    """Returns why a process stopped, without a full stop; "" if that is not known."""
    if ended is None:
        return ""
    reason = str(ended.get("reason", ""))[:REASON_CHARACTERS].rstrip(".")
    # Without "stopped", because the sentence says this already.
    if reason.startswith("stopped after step"):
        return "it was told to stop"
    return reason.removeprefix("stopped by ")


def events_of(processes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns where `processes` continued the run: {"kind", "step", "time", "reason", "since"}.

    "kind" is "resumed", "started again" (from step 0), "rolled back", or "extended" if the finished
    run has got more steps. "time" is in seconds since 1970, "since" the start of the process
    before, and "reason" why that process had ended ("" for an extended run).
    """
    events = []
    for before, process in itertools.pairwise(processes):
        ended = before["ended"]
        reason = _reason(before["ended"])
        kind = "started again"
        if process.get("step"):
            kind = "resumed"
        if process.get("rollbacks", 0) > before.get("rollbacks", 0):
            kind = "rolled back"
        elif ended is None:
            reason = KILLED
        if ended is not None and ended.get("state") == FINISHED:
            if process.get("num_steps") == before.get("num_steps"):
                continue
            kind = "extended"
        events.append(
            {
                "kind": kind,
                "step": process.get("step", 0),
                "time": process["start"],
                "reason": reason,
                "since": before["start"],
            }
        )
    return events


def notes_of(
    workdir: Path,
    metrics: RunMetrics,
    processes: Sequence[Mapping[str, Any]],
    ledger: Sequence[Mapping[str, Any]],
    status: Mapping[str, Any],
) -> Iterator[str]:
    """Yields sentences on what a reader should know: damage, stops, rollbacks, bad rows."""
    if metrics.damaged:
        yield (
            f"{metrics.damaged:,} lines of {METRICS} are damaged and left out; the "
            f"{metrics.lines:,} readable lines are shown."
        )
    for event in events_of(processes):
        if note := _continued(event, ledger):
            yield note
    if status["state"] == STOPPED:
        yield status["sentence"]
    if (workdir / ROLLBACKS).is_file():
        try:
            for record in read_json(workdir / ROLLBACKS)["rollbacks"]:
                yield (
                    f"The run was rolled back from step {record['from_step']:,} to step "
                    f"{record['to_step']:,}; {record['batches']:,} batches of phase "
                    f"{record['phase'] + 1} are left out."
                )
        except (OSError, ValueError, KeyError, TypeError):
            yield f"{ROLLBACKS} is damaged and left out."
    if metrics.skipped:
        yield (
            f"{len(metrics.skipped):,} updates were skipped, because their loss or gradient was "
            "not finite or a spike."
        )
    for name, curve in metrics.train.items():
        if curve.gaps:
            yield (
                f"{name} is not finite in {curve.gaps:,} log lines, the first at step "
                f"{curve.first_gap:,}; these are left out of the curve."
            )
    if (workdir / BAD_ROWS).is_file():
        with (workdir / BAD_ROWS).open("rb") as lines:
            count = sum(1 for _ in lines)
        yield f"{counted(count, 'bad row')} of the data left out, as listed in {BAD_ROWS}."
    if (workdir / DAMAGED).is_dir():
        yield f"Damaged checkpoints were moved to the folder {DAMAGED}."
    if processes and "warning:" in str(processes[-1].get("attention", "")):
        yield f"Attention kernel {processes[-1]['attention']}."


def _continued(event: Mapping[str, Any], ledger: Sequence[Mapping[str, Any]]) -> str:
    step = f"{event['step']:,}"
    why = ""
    if event["reason"]:
        why = f" The process before had stopped: {event['reason']}."
    match event["kind"]:
        case "extended":
            return f"The finished run was continued at step {step} with another number of steps."
        case "started again":
            return f"The run was started again from step 0, because it had no checkpoint.{why}"
        case "rolled back":
            return ""
    lost = 0
    for line in ledger:
        if event["since"] < line["end"] <= event["time"]:
            lost += line["lost_steps"]
    if lost:
        why += f" {lost:,} steps that it had done after its last checkpoint were computed again."
    return f"The run was resumed at step {step}.{why}"


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
        EVALUATION,
    }
    endings = (SUFFIX, f"/{BAD_ROWS}", "model/config.json")
    read = []
    for name in names:
        is_other = f"/{name}".endswith(endings) and "checkpoints/" not in name
        if is_other or Path(name).name in files:
            read.append(name)
    return read


def report_page(
    runs: Sequence[Mapping[str, Any]], parents: Mapping[str, Path] | None = None
) -> str:
    """Returns the report of runs (`run_data`) as one HTML page.

    `parents` are {address: folder} of commands with several runs, such as folds, in subfolders.
    """
    several = []
    for address, folder in (parents or {}).items():
        scores = read_json_or_empty(folder / SCORES)
        evaluation = read_json_or_empty(folder / EVALUATION)
        several.append({"address": address, "scores": scores, "evaluation": evaluation})
    names = set()
    for run in runs:
        for key in (*run["train"], *run["eval"]["values"], *run["scores"]):
            names.add(key.partition("/")[2])
        for split in run["splits"]:
            names.update(split.get("scores", ()))
    data = {
        "written": time.time(),
        "runs": runs,
        "names": {x: {"label": label(x), "percent": in_percent(x)} for x in sorted(names)},
        "differences": config_differences(runs),
        "several": several,
    }
    return fill("report.html", in_json(data))


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
    if metrics is None:
        metrics = read_metrics(workdir / METRICS)
    scores = read_json_or_empty(workdir / SCORES)
    for key in (BASELINES, BY_CLASS):
        scores.pop(key, None)  # they are in evaluation.json, with more about them
    processes = read_processes(workdir)
    facts = processes[-1] if processes else {}
    config = {}
    notes = []
    try:
        config = read_run(workdir)["config"]
    except FileNotFoundError:
        notes.append("run.json is missing, so the config of the run is not known.")
    except (OSError, ValueError) as error:
        notes.append(f"The config of the run is not known: {error}")
    ledger = [*read_ledger(workdir), *_present(workdir)]
    phases = _phases(config)
    total = facts.get("num_steps")
    if phases and not total:
        total = phases[-1]["end"]
    status = state_of(workdir, processes, ledger, metrics.last_step, total, state)
    notes += notes_of(workdir, metrics, processes, ledger, status)
    splits = _splits(workdir, metrics)
    curves = {key: _curve(curve) for key, curve in metrics.train.items() if curve.count}
    values = {}
    for key in metrics.eval_names():
        values[key] = [row.get(key) for _, row in metrics.evals]
    start = _start_of_last_phase(phases, metrics)
    summary = None
    if ledger:
        lost = sum(line["lost_steps"] for line in ledger)
        summary = {"seconds": totals(ledger), "lost_steps": lost, "processes": len(ledger)}
    return {
        "name": name or workdir.resolve().name,
        "address": address or str(workdir),
        "kind": "fine-tuning" if "task" in config else "pretraining",
        "what": _what(config, facts),
        "status": status,
        "phases": phases,
        "best": _best(metrics, facts, start, is_pretraining="task" not in config),
        "train": curves,
        "partial": _partial(curves, config.get("log_every")),
        "log_lines": metrics.lines,
        "eval": {"steps": [step for step, _ in metrics.evals], "values": values},
        "scores": scores,
        "intervals": scores.pop(INTERVALS, {}),
        "splits": splits,
        "evaluation": read_json_or_empty(workdir / EVALUATION),
        "hints": hints_of(metrics, splits, start),
        "config": _config_rows(config),
        "processes": processes,
        "events": events_of(processes),
        "notes": notes,
        "skipped": {"count": len(metrics.skipped), "rows": metrics.skipped[:MOST_SKIPPED]},
        "ledger": summary,
    }


def _start_of_last_phase(phases: Sequence[Mapping[str, Any]], metrics: RunMetrics) -> int:
    """Returns the step after which the last evaluated phase begins.

    Rows of other lengths, in other phases, have other losses.
    """
    start = -1
    for phase in phases:
        if metrics.evals and phase["start"] < metrics.evals[-1][0]:
            start = phase["start"]
    return start


def config_differences(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the fields, but for the workdir, in which runs differ: {"field", "values"} each."""
    tables = [{row["field"]: row["value"] for row in run["config"]} for run in runs]
    names = dict.fromkeys(itertools.chain(*tables))
    differences = []
    for name in names:
        values = [table.get(name) for table in tables]
        if name != "workdir" and len(set(values)) > 1:
            differences.append({"field": name, "values": values})
    return differences


def _present(workdir: Path) -> list[dict[str, Any]]:
    """Returns the line of the ledger that a process has not finished yet, if there is one."""
    line = {}
    # The process overwrites its line in place, so that a reader may see half of two lines.
    for _ in range(3):
        line = read_json_or_empty(workdir / PRESENT)
        if line or not (workdir / PRESENT).is_file():
            break
        time.sleep(0.01)
    needed = {"start", "end", "first_step", "last_step", "lost_steps", "lost_seconds", "seconds"}
    if line.keys() >= needed:
        return [line]
    return []


def _curve(curve: Curve) -> dict[str, Any]:
    steps, values = map(list, zip(*curve.points(), strict=True))
    return {"steps": steps, "values": values, "count": curve.count, "width": curve.width}


def _partial(curves: Mapping[str, Any], every: Any) -> dict[str, int] | None:
    """Returns of how few steps the last training point is the mean; None if of as many as others.

    {"step": its step, "steps": their number, "every": the number of steps of the other points}.
    """
    steps = curves.get("train/loss", {}).get("steps", ())
    if not isinstance(every, int) or len(steps) < 2:
        return None
    last = steps[-1]
    if last % every == 0:
        return None
    return {"step": last, "steps": last % every, "every": every}


def _phases(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    phases = []
    start = 0
    with contextlib.suppress(TypeError, KeyError):
        for phase in config.get("phases") or ():
            end = start + phase["num_steps"]
            phases.append({"start": start, "end": end, "max_length": phase.get("max_length")})
            start = end
        return phases
    return []


def _what(config: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    if not config:
        return "A run whose config is not known."
    init = config.get("init")
    size = ""
    if facts.get("parameters"):
        size = f" ({facts['parameters']:,} parameters)"
    if "task" in config:
        what = f"Fine-tuning of {init}{size} on the task {config['task']}"
        if file := train_file(config):
            what += f" with the examples of {file}"
    else:
        model = config.get("model") or {}
        layers = model.get("num_hidden_layers")
        what = f"Pretraining of an encoder with {layers} layers of hidden size "
        what += f"{model.get('hidden_size')}{size} on the prepared data in {config.get('data')}"
        if init:
            what += f", starting from {init}"
    return f"{what}."


def _best(
    metrics: RunMetrics, facts: Mapping[str, Any], start: int, *, is_pretraining: bool
) -> dict[str, Any] | None:
    """Returns the best evaluation after the step `start`, by the metric that selects checkpoints.

    "equal" is the number of evaluations with its value, of which it has the lowest `TIE_BREAKER`
    or else is the last.
    """
    logged = metrics.eval_names()
    selected_by = facts.get("best_metric")
    wanted = [name for name in (selected_by, *BEST_METRICS, *logged) if name in logged]
    if not wanted:
        return None
    name = wanted[0]
    higher = not is_pretraining and higher_is_better(name)
    if name == selected_by:
        higher = facts.get("higher_is_better", higher)
    values = metrics.values_by_step(name, start)
    if not values:
        return None
    best = min(values.values())
    if higher:
        best = max(values.values())
    steps = [step for step, value in values.items() if value == best]
    losses = metrics.values_by_step(TIE_BREAKER, start)
    return {
        "metric": name,
        "value": best,
        "step": min(steps, key=lambda step: (losses.get(step, math.inf), -step)),
        "higher_is_better": higher,
        "equal": len(steps),
    }


def _splits(workdir: Path, metrics: RunMetrics) -> list[dict[str, Any]]:
    splits = []
    for path in sorted((workdir / PREDICTIONS).glob(f"*{SUFFIX}")):
        if content := read_json_or_empty(path):
            split = path.name.removesuffix(SUFFIX)
            step = _step_of(split, content.get("scores", {}), metrics)
            splits.append({"split": split, "step": step, **content})
    return splits


def _step_of(split: str, scores: Mapping[str, float], metrics: RunMetrics) -> int | None:
    """Returns the last step whose logged evaluation has the scores of a dev split, or None."""
    if scores and split.startswith("dev"):
        prefix = f"eval/{split_prefix(split)}"
        wanted = {prefix + key: value for key, value in scores.items()}
        for step, row in reversed(metrics.evals):
            if wanted.items() <= row.items():
                return step
    return None


def _config_rows(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        default: Any = PretrainConfig()
        if "task" in config:
            default = with_task_options(FinetuneConfig(task=config["task"]))
        defaults = dict(_flat(json.loads(json.dumps(dataclasses.asdict(default), default=str))))
        for index, _ in enumerate(config.get("phases") or ()):
            for field in dataclasses.fields(Phase):
                if field.default is not dataclasses.MISSING:
                    defaults[f"phases.{index}.{field.name}"] = json.dumps(field.default)
    except (TypeError, ValueError):  # a config of a version with other fields
        defaults = {}
    rows = []
    for name, value in _flat(config):
        changed = defaults.get(name) != value
        shown = name.removeprefix("options.")  # as the flag
        rows.append({"field": shown, "value": value, "changed": changed})
    return rows


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields (name of a field such as optimizer.learning_rate, its value as JSON)."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = dict(enumerate(value))
    if not value or not isinstance(value, Mapping):
        yield path.removeprefix("."), json.dumps(value, ensure_ascii=False)
        return
    for key, part in value.items():
        yield from _flat(part, f"{path}.{key}")
