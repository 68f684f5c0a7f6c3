"""Says in plain words how far a run is, what interrupted it, and what to know about it."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.checkpoint_files import DAMAGED
from bertjax.training.process_log import FINISHED
from bertjax.training.rollback import Rollbacks
from bertjax.training.run_metrics import RunMetrics
from bertjax.training.workdir import BAD_ROWS, GOODPUT

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
        processes: the processes of the run (`process_log.read_processes`).
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
        elif (workdir / GOODPUT[1]).is_file() and ledger:
            is_silent = time.time() - ledger[-1]["end"] > ALIVE_SECONDS
            state = STOPPED if is_silent else RUNNING
        else:
            is_complete = (workdir / "model" / "config.json").is_file()
            is_complete &= (workdir / "scores.json").is_file() or step == total
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
    """Returns where processes continued the run: {"kind", "step", "time", "reason", "since"}.

    "kind" is "resumed", "started again" (from step 0), "rolled back", or "extended" if the run had
    been finished and has got more steps; a process that found it finished is no event. "time" is in
    seconds since 1970, "reason" says why the process before had ended ("" for an extended run), and
    "since" is the time at which that process had started. `processes` are those of
    `process_log.read_processes`.
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
    """Returns sentences on what a reader should know: damage, stops, rollbacks, bad rows.

    Args:
        workdir: the local folder of the run.
        metrics: the metrics of the run.
        processes: the processes of the run (`process_log.read_processes`).
        ledger: the lines of the ledger, with that of the present process.
        status: what `state_of` returns.
    """
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
    """Says how a process continued the run; "" for a rollback, which has a note of its own."""
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
    try:
        records = Rollbacks(workdir).records
        return [
            f"The run was rolled back from step {record['from_step']:,} to step "
            f"{record['to_step']:,}; {record['batches']:,} batches of phase {record['phase'] + 1} "
            "are left out."
            for record in records
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return ["rollbacks.json is damaged and left out."]


def _files(workdir: Path) -> list[str]:
    """Returns notes on bad rows of the user's data and on damaged checkpoints, if any."""
    notes = []
    bad = workdir / BAD_ROWS
    if bad.is_file():
        with bad.open("rb") as lines:
            count = sum(1 for _ in lines)
        notes.append(f"{count:,} bad rows of the data are left out and listed in {BAD_ROWS}.")
    if (workdir / DAMAGED).is_dir():
        notes.append(f"Damaged checkpoints were moved to the folder {DAMAGED}.")
    return notes
