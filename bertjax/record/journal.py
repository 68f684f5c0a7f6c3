"""Where the time of a run went, over all of its processes: `goodput.jsonl` in the workdir.

Each line is one process of the run: its start and end (seconds since 1970), the steps it began and
ended at, the seconds of each activity (`bertjax.devices.activity`), and the steps that a later
process had to compute again, because no checkpoint held them. The process that runs now keeps its
line in `.goodput.json`, which it writes after every step, so that nothing is lost if it is killed.
Of a run on several hosts, the ledger describes the first one.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import bertjax
from bertjax.base import printable
from bertjax.base.files import brief, json_lines, naming_write_errors
from bertjax.base.signals import Interrupted
from bertjax.base.workdir_files import LEDGER, METRICS, PRESENT, PROCESSES
from bertjax.devices import activity, hosts
from bertjax.record.metrics import read_lines

# The interval at which the present line is written when no step ends, in seconds.
WRITE_SECONDS = 1.0
# The present line is padded to a multiple of this number of bytes, and overwritten in place.
BLOCK = 2048
# The number of checkpoints whose steps are remembered, to know what a kill has lost.
MARKS = 16
IDLE, LOST = "idle between processes", "lost steps"
# What the table calls an activity, whose name in the files is another one.
_SHOWN = {activity.STEPPING: "training"}


class Ledger:
    """The ledger of the present process of a run, which starts or resumes at `step`.

    Raises:
        OSError: the workdir cannot be written.
    """

    def __init__(self, workdir: Path, step: int, clock: activity.Clock):
        self.workdir, self._record = workdir, clock
        self._busy, self._ended = threading.Lock(), threading.Event()
        _close_killed_line(workdir, step)
        self._line: dict[str, Any] = {
            "start": self._record.start,
            "uptime": self._record.uptime,
            "boot": _boot(),
            "first_step": step,
            "lost_steps": 0,
            "lost_seconds": 0.0,
            # [step, seconds of stepping when its checkpoint was begun]
            "marks": [[step, self._record.seconds()[activity.STEPPING]]],
        }
        self._step = step
        with naming_write_errors(workdir / PRESENT):
            self._file = os.open(workdir / PRESENT, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self.write()
        threading.Thread(target=self._write_until_ended, daemon=True).start()

    def did_step(self, step: int) -> None:
        """Writes the present line in place after the training step `step`."""
        self._step = step
        self.write()

    def write(self) -> None:
        """Writes the present line in place, without waiting for the disk."""
        with self._busy:
            if self._ended.is_set():
                return
            text = json.dumps(self._present()).encode()
            size = -(-len(text) // BLOCK) * BLOCK
            with contextlib.suppress(OSError):  # a full disk must not end the run here
                os.pwrite(self._file, text.ljust(size), 0)

    def saved(self, step: int) -> None:
        """Notes that a checkpoint of `step` is being written."""
        mark = [step, round(self._record.seconds()[activity.STEPPING], 4)]
        with self._busy:
            self._line["marks"] = [*self._line["marks"], mark][-MARKS:]

    def returned_to(self, step: int) -> None:
        """Notes that this process goes on from the earlier checkpoint of `step`."""
        with self._busy:
            steps, seconds = _lost(self._present(), step)
            self._line["lost_steps"] += steps
            self._line["lost_seconds"] += seconds
        self._step = step
        self.saved(step)

    def close(self, error: BaseException | None = None) -> bool:
        """Ends the line of this process and moves it to the ledger; returns whether it did.

        If steps may not be saved, because the process ends with `error`, the next process moves the
        line, and adds the steps that were lost.
        """
        self.write()
        with self._busy:
            if self._ended.is_set():
                return False
            self._ended.set()
            os.close(self._file)
            saved = isinstance(error, Interrupted) and self._line["marks"][-1][0] == self._step
            if error is not None and not saved:
                return False
            _append(self.workdir, self._present())
            (self.workdir / PRESENT).unlink(missing_ok=True)
            return True

    def _present(self) -> dict[str, Any]:
        seconds = {name: round(value, 4) for name, value in self._record.seconds().items()}
        end = self._record.start + sum(seconds.values())
        return {**self._line, "end": end, "last_step": self._step, "seconds": seconds}

    def _write_until_ended(self) -> None:
        while not self._ended.wait(WRITE_SECONDS):
            self.write()


def _boot() -> str:
    """Returns what identifies the machine since it was started; "" where nothing does."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return ""


def _close_killed_line(workdir: Path, step: int) -> None:
    """Moves the line of a process that was killed to the ledger; the run goes on from `step`."""
    try:
        line = json.loads((workdir / PRESENT).read_bytes())
        # The process may have been killed between the line of a step in metrics.jsonl and this one.
        logged = (entry["step"] for entry in read_lines(workdir / METRICS).lines)
        line["last_step"] = max(line["last_step"], *logged, 0)
        steps, seconds = _lost(line, step)
        line["lost_steps"] += steps
        line["lost_seconds"] = round(line["lost_seconds"] + seconds, 4)
        _append(workdir, line)
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        hosts.say(f"warning: {workdir / PRESENT} is damaged and left out of {LEDGER}: {error}")
    (workdir / PRESENT).unlink(missing_ok=True)


def _lost(line: Mapping[str, Any], step: int) -> tuple[int, float]:
    """Returns (steps, seconds of stepping) of a process that were done after `step`."""
    steps = max(0, line["last_step"] - max(step, line["first_step"]))
    if not steps:
        return 0, 0.0
    seconds = line["seconds"][activity.STEPPING]
    if step in (marks := dict(line["marks"])):
        return steps, seconds - marks[step]
    done = line["last_step"] - line["first_step"]
    return steps, seconds * min(1.0, steps / done)


def _append(workdir: Path, line: Mapping[str, Any]) -> None:
    _append_json(workdir / LEDGER, {name: x for name, x in line.items() if name != "marks"})


def _append_json(path: Path, line: Mapping[str, Any]) -> None:
    with naming_write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_ledger(workdir: Path) -> list[dict[str, Any]]:
    """Returns the lines of a run's ended processes, one after the other, without damaged ones.

    The order is that of the file, since a clock may have been set back. The keys of a line are
    "start", "end", "first_step", "last_step", "lost_steps", "lost_seconds", "seconds" {activity:
    seconds} and, since they were introduced, "uptime", the start by the clock of the machine that
    nobody sets, and "boot", which says since when that counts.
    """
    lines = []
    for line in filter(None, json_lines(workdir / LEDGER)):
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            numbers = line["lost_seconds"] + line["lost_steps"] + line.setdefault("uptime", 0.0)
            sum(line["seconds"].values(), numbers)
            if line["end"] >= line["start"] and line["seconds"].keys() >= set(activity.ACTIVITIES):
                lines.append(line)
    return lines


def totals(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns {activity: seconds} of all processes of a run.

    Their sum is the time from the start of the first process to the end of the last one. Steps that
    were computed again are `LOST`, not stepping; the time without a process is `IDLE`,
    to which a clock that was set in between adds nothing if both processes ran on one machine.
    """
    found: dict[str, float] = dict.fromkeys((*activity.ACTIVITIES, LOST, IDLE), 0.0)
    for line in lines:
        for name, seconds in line["seconds"].items():
            found[name] = found.get(name, 0.0) + seconds  # also of a later version
        found[LOST] += line["lost_seconds"]
        found[activity.STEPPING] -= line["lost_seconds"]
    for before, after in zip(lines, lines[1:], strict=False):
        is_same = before.get("boot") and before["boot"] == after.get("boot")
        began = "uptime" if is_same else "start"
        passed = after[began] - before[began]
        found[IDLE] += max(0.0, passed - (before["end"] - before["start"]))
    return found


def print_table(workdir: Path) -> None:
    """Prints where the time of all processes of a run went."""
    from rich.table import Column, Table

    lines = read_ledger(workdir)
    seconds = totals(lines)
    whole = sum(seconds.values())
    if not whole:
        return
    lost = sum(line["lost_steps"] for line in lines)
    several = f" in {len(lines)} processes, one after the other" if len(lines) > 1 else ""
    numbers = (Column(name, justify="right") for name in ("seconds", "share"))
    table = Table("activity", *numbers)
    for name, value in seconds.items():
        if value >= 0.005 * whole or name == activity.STEPPING or (name == LOST and lost):
            label = f"{name} ({lost} steps)" if name == LOST else _SHOWN.get(name, brief(name, 40))
            table.add_row(label, f"{value:,.1f}", f"{value / whole:.1%}")
    console = printable.console()
    console.print(f"Where the time went: {whole:,.0f} s{several}", highlight=False)
    console.print(table)


FINISHED = "finished"
# The packages whose versions may matter for the results of a run.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers")


def started(workdir: Path, facts: Mapping[str, Any]) -> None:
    """Appends the line of a process that starts or resumes the run; call it on the first host.

    `facts` are JSON values about the run, such as the step from which it trains.
    """
    _append_process(workdir, {"start": time.time(), **facts, **environment()})


def ended(workdir: Path, state: str, reason: str = "") -> None:
    """Appends the line of a process that ends; call it on the first host.

    `state` is `FINISHED` or "stopped", and `reason` why the process stopped.
    """
    _append_process(workdir, {"end": time.time(), "state": state, "reason": reason})


def read_processes(workdir: Path) -> list[dict[str, Any]]:
    """Returns the processes of a run in order, {field of the first line: value} of each.

    "ended" of a process is its last line; None: it is still running, or it was killed. Damaged
    lines are left out, and a missing file counts as an empty one.
    """
    processes: list[dict[str, Any]] = []
    for line in filter(None, json_lines(workdir / PROCESSES)):
        if "start" in line:
            processes.append({**line, "ended": None})
        elif "end" in line and processes:
            processes[-1]["ended"] = line
    return processes


def has_finished(workdir: Path) -> bool:
    """Returns whether the last process of the run in the local folder `workdir` finished it."""
    (*_, last) = read_processes(workdir) or [{"ended": None}]
    return (last["ended"] or {}).get("state") == FINISHED


def environment() -> dict[str, Any]:
    """Returns the command, the hardware and the versions of this process, as JSON values."""
    versions = {"bertjax": bertjax.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    devices = jax.devices()
    return {
        "command": shlex.join(sys.orig_argv),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "num_processes": jax.process_count(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "system": platform.platform(),
        "versions": versions,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not on all systems
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _append_process(workdir: Path, line: Mapping[str, Any]) -> None:
    try:
        _append_json(workdir / PROCESSES, line)
    except OSError as error:
        print(f"warning: {error}", flush=True)
