"""The processes of a run, and where their time went: `processes.jsonl` and `goodput.jsonl`.

`processes.jsonl` has the command, hardware and versions of each process, and why it ended.

Each line of `goodput.jsonl` is one process of the run: its start and end (seconds since 1970), the
steps it began and ended at, the seconds of each activity (`bertjax.devices.activity`), and the
steps that a later process had to compute again, because no checkpoint held them. The process that
runs now keeps its line in `.goodput.json`, which it writes after every step, so that nothing is
lost if it is killed. Of a run on several hosts, both files describe the first one.
"""

import contextlib
import importlib.metadata
import itertools
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
from bertjax.base.files import append_json, brief, counted, json_lines, naming_write_errors
from bertjax.base.signals import Interrupted
from bertjax.base.workdir_files import LEDGER, PRESENT, PROCESSES
from bertjax.devices import activity
from bertjax.devices.activity import Clock
from bertjax.record.events import Closed, Reader, Saved, Started, StepDone

# The interval at which the present line is written when no step ends, in seconds.
WRITE_SECONDS = 1.0
# The present line is padded to a multiple of this number of bytes, and overwritten in place.
BLOCK = 2048
IDLE = "idle between processes"
LOST = "lost steps"


class Ledger(Reader):
    """Keeps the ledgers of the runs that this process trains, one after the other."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._workdir: Path | None = None
        self._line: dict[str, Any] = {}
        self._file = -1
        self._busy = threading.Lock()
        self._is_closed = threading.Event()
        self._is_closed.set()
        self._is_complete = False  # whether the line stands in the ledger

    def read(self, event: Any) -> None:
        match event:
            case Started(workdir=workdir, step=step) if workdir == self._workdir:
                self._return_to(step)
            case Started(workdir=workdir, step=step):
                self._open_line(workdir, step)
            case StepDone(step=step):
                self._line["last_step"] = step
                self.write()
            case Saved(step=step):
                self._saved_step = step
            case Closed():
                self._close_line()
                self._clock.restart()  # what follows belongs to the next run

    def _open_line(self, workdir: Path, step: int) -> None:
        _close_killed_line(workdir, step)
        self._workdir = workdir
        self._line = {
            "start": self._clock.start,
            "uptime": self._clock.uptime,
            "boot": _boot(),
            "first_step": step,
            "last_step": step,
            "lost_steps": 0,
            "lost_seconds": 0.0,
        }
        self._saved_step = step
        with naming_write_errors(workdir / PRESENT):
            self._file = os.open(workdir / PRESENT, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._is_closed = threading.Event()
        self.write()
        write = self._write_until
        threading.Thread(target=write, args=(self._is_closed,), daemon=True).start()

    def _return_to(self, step: int) -> None:
        """Notes that this process goes on from the earlier checkpoint of `step`."""
        with self._busy:
            steps, seconds = _lost(self._present(), step)
            self._line["lost_steps"] += steps
            self._line["lost_seconds"] += seconds
            self._line["last_step"] = self._saved_step = step

    def write(self) -> None:
        """Writes the present line in place, without waiting for the disk."""
        with self._busy:
            if not self._is_closed.is_set():
                text = json.dumps(self._present()).encode()
                size = -(-len(text) // BLOCK) * BLOCK
                with contextlib.suppress(OSError):  # a full disk must not end the run here
                    os.pwrite(self._file, text.ljust(size), 0)

    def _write_until(self, is_closed: threading.Event) -> None:
        while not is_closed.wait(WRITE_SECONDS):
            self.write()

    def _present(self) -> dict[str, Any]:
        seconds = {name: round(value, 4) for name, value in self._clock.seconds().items()}
        return {**self._line, "end": self._clock.start + sum(seconds.values()), "seconds": seconds}

    def close(self, error: BaseException | None = None) -> None:
        """Ends the line of this process, and prints where the time of the run went.

        If steps may not be saved, because the process ends with `error`, the next process ends the
        line, and adds the steps that were lost.
        """
        self._close_line(error)
        if self._is_complete and self._workdir is not None:
            print_table(self._workdir)

    def _close_line(self, error: BaseException | None = None) -> None:
        """Moves the line of this process to the ledger, if it is open and its steps are saved."""
        self.write()
        with self._busy:
            if self._workdir is None or self._is_closed.is_set():
                return
            self._is_closed.set()
            os.close(self._file)
            is_saved = self._saved_step == self._line["last_step"]
            self._is_complete = error is None or (is_saved and isinstance(error, Interrupted))
            if self._is_complete:
                _append(self._workdir, self._present())


def _boot() -> str:
    """Returns what identifies the machine since it was started; "" where nothing does."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return ""


def _close_killed_line(workdir: Path, step: int) -> None:
    """Moves the line of a process that was killed to the ledger; the run goes on from `step`."""
    try:
        line = json.loads((workdir / PRESENT).read_bytes())
        steps, seconds = _lost(line, step)
        line["lost_steps"] += steps
        line["lost_seconds"] = round(line["lost_seconds"] + seconds, 4)
        _append(workdir, line)
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        print(
            f"warning: {workdir / PRESENT} is damaged and left out of {LEDGER}: {error}", flush=True
        )
        (workdir / PRESENT).unlink(missing_ok=True)


def _lost(line: Mapping[str, Any], step: int) -> tuple[int, float]:
    """Returns (steps, seconds of stepping) of a process that were done after `step`.

    All of its steps count as equally long.
    """
    steps = max(0, line["last_step"] - max(step, line["first_step"]))
    if not steps:
        return 0, 0.0
    seconds = line["seconds"][activity.STEPPING] - line["lost_seconds"]
    return steps, seconds * steps / (line["last_step"] - line["first_step"])


def _append(workdir: Path, line: Mapping[str, Any]) -> None:
    """Moves the present line to the ledger."""
    append_json(workdir / LEDGER, line)
    (workdir / PRESENT).unlink(missing_ok=True)


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
    total: dict[str, float] = dict.fromkeys((*activity.ACTIVITIES, LOST, IDLE), 0.0)
    for line in lines:
        for name, seconds in line["seconds"].items():
            total[name] = total.get(name, 0.0) + seconds  # also of a later version
        total[LOST] += line["lost_seconds"]
        total[activity.STEPPING] -= line["lost_seconds"]
    for before, after in itertools.pairwise(lines):
        clock = "start"
        if before.get("boot") and before["boot"] == after.get("boot"):
            clock = "uptime"
        idle = after[clock] - before[clock] - (before["end"] - before["start"])
        total[IDLE] += max(0.0, idle)
    return total


def print_table(workdir: Path) -> None:
    """Prints where the time of all processes of a run went."""
    from rich.table import Column, Table

    lines = read_ledger(workdir)
    seconds = totals(lines)
    whole = sum(seconds.values())
    if not whole:
        return
    lost = sum(line["lost_steps"] for line in lines)
    table = Table("activity", Column("seconds", justify="right"), Column("share", justify="right"))
    for name, value in seconds.items():
        label = brief(name, 40)
        if name == activity.STEPPING:  # in the files, it has another name
            label = "training"
        elif name == LOST and lost:
            label += f" ({counted(lost, 'step')})"
        elif value < 0.005 * whole:
            continue
        table.add_row(label, f"{value:,.1f}", f"{value / whole:.1%}")
    title = f"Where the time went: {whole:,.0f} s"
    if len(lines) > 1:
        title += f" in {len(lines)} processes, one after the other"
    title += f" (the run {workdir})"  # which may be one of several
    console = printable.console()
    console.print(title, highlight=False, markup=False)
    console.print(table)


FINISHED = "finished"
# The packages whose versions may matter for the results of a run.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers")


def process_started(workdir: Path, facts: Mapping[str, Any]) -> None:
    """Appends the line of a process that starts or resumes the run; call it on the first host.

    `facts` are JSON values about the run, such as the step from which it trains.
    """
    _append_process(workdir, {"start": time.time(), **facts, **environment()})


def process_ended(workdir: Path, state: str, reason: str = "") -> None:
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
    processes = read_processes(workdir)
    ended = processes[-1]["ended"] if processes else None
    return ended is not None and ended.get("state") == FINISHED


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
        append_json(workdir / PROCESSES, line)
    except OSError as error:
        print(f"warning: {error}", flush=True)
