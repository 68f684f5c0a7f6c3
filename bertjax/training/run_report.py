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
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.config import FinetuneConfig, Phase, PretrainConfig
from bertjax.pages.templates import fill
from bertjax.run_file import RUN_FILE, SPARE_FILE, holds_run, read_run
from bertjax.tasks.metrics import higher_is_better
from bertjax.training import goodput
from bertjax.training.metric_labels import in_percent, label
from bertjax.training.prediction_summary import SUFFIX
from bertjax.training.process_log import read_processes
from bertjax.training.run_hints import hints_of
from bertjax.training.run_metrics import RunMetrics, read_metrics
from bertjax.training.run_state import events_of, notes_of, state_of
from bertjax.training.scores import split_prefix
from bertjax.training.workdir import BAD_ROWS, GOODPUT, PROCESSES

TEMPLATE = "report.html"
METRICS = "metrics.jsonl"
# The metrics that select the best checkpoint in runs that do not say it, the first one that exists.
BEST_METRICS = ("eval/mlm_loss", "eval/accuracy", "eval/f1", "eval/pearson_spearman", "eval/loss")


def has_run(folder: Path) -> bool:
    """Returns whether `folder` is the workdir of a run, which may have logged nothing yet."""
    return holds_run(folder) or (folder / METRICS).is_file()


def files_of_report(names: Iterable[str]) -> list[str]:
    """Returns those files of a workdir, in a bucket, that its report reads.

    `names` are relative to the workdir, or to the parent folder of several workdirs.
    """
    files = {METRICS, RUN_FILE, SPARE_FILE, PROCESSES, *GOODPUT, "rollbacks.json", "scores.json"}
    endings = (SUFFIX, ".report.json", ".confusion.csv", f"/{BAD_ROWS}", "model/config.json")
    return [
        name
        for name in names
        if Path(name).name in files or f"/{name}".endswith(endings) and "checkpoints/" not in name
    ]


def report_page(runs: Sequence[Mapping[str, Any]], *, written: float | None = None) -> str:
    """Returns the report of runs as one HTML page.

    Args:
        runs: what `run_data` returns for each run.
        written: the time that the page says, in seconds since 1970; None: now.
    """
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
    ledger = [*goodput.read_ledger(workdir), *_present(workdir)]
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
        "scores": _json(workdir / "scores.json") or {},
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
    """Returns the config fields in which runs differ: {"field": name, "values": one per run}.

    The workdir is left out; the value of a run without such a field is None.
    """
    tables = [{row["field"]: row["value"] for row in run["config"]} for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [{"field": name, "values": [table.get(name) for table in tables]} for name in names]
    return [row for row in rows if row["field"] != "workdir" and len(set(row["values"])) > 1]


def _names(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns how the page shows each metric: {name without its prefix: {"label", "percent"}}."""
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
        line = _json(workdir / GOODPUT[1])
        if line is not None or not (workdir / GOODPUT[1]).is_file():
            break
        time.sleep(0.01)
    needed = {"start", "end", "first_step", "last_step", "lost_steps", "lost_seconds", "seconds"}
    return [line] if line is not None and line.keys() >= needed else []


def _ledger(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not lines:
        return None
    seconds = goodput.totals(lines)
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
    """Says in a sentence what the run is."""
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
    """Returns the best evaluation by the metric that selects the best checkpoint.

    "equal" is the number of evaluations with its value, of which it is the last.

    Of several phases, only the evaluations of the last one that was evaluated are compared, because
    rows of other lengths have other losses.
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
    """Returns the step after which the last phase that was evaluated begins; -1 without phases."""
    last = metrics.eval_steps[-1] if metrics.eval_steps else 0
    return max((phase["start"] for phase in phases if phase["start"] < last), default=-1)


def _splits(workdir: Path, metrics: RunMetrics) -> list[dict[str, Any]]:
    """Returns the summaries of the predictions, those of dev splits first."""
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
    """Returns the last step whose logged evaluation has these scores, of a dev split; or None."""
    names = {f"eval/{split_prefix(split)}{key}": value for key, value in scores.items()}
    if not names or not split.startswith("dev") or not names.keys() <= metrics.evals.keys():
        return None
    for row in reversed(range(len(metrics.eval_steps))):
        if all(metrics.evals[name][row] == value for name, value in names.items()):
            return metrics.eval_steps[row]
    return None


def _config_rows(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the config as rows: field, value as JSON, and whether it is not the default."""
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
