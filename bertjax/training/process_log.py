"""The log of the processes of a run: `processes.jsonl` in the workdir.

Whenever a process starts or resumes a run, it appends a line with its command, hardware and
versions, and the step from which it trains; when it ends, it appends a line that says why. Nothing
of it identifies the run: a run may be resumed by another command on other hardware. Without a last
line, the process was killed.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import bertjax
from bertjax.training.workdir import PROCESSES

FINISHED = "finished"
# The packages whose versions may matter for the results of a run.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers")


def started(workdir: Path, facts: Mapping[str, Any]) -> None:
    """Appends the line of a process that starts or resumes the run; call it on the first host.

    Args:
        workdir: the local folder of the run.
        facts: JSON values about the run, such as the step from which it trains.
    """
    _append(workdir, {"start": time.time(), **facts, **environment()})


def ended(workdir: Path, state: str, reason: str = "") -> None:
    """Appends the line of a process that ends; call it on the first host.

    Args:
        workdir: the local folder of the run.
        state: the state of the run then, `FINISHED` or "stopped".
        reason: why the process stopped; "" if the run is finished.
    """
    _append(workdir, {"end": time.time(), "state": state, "reason": reason})


def read_processes(workdir: Path) -> list[dict[str, Any]]:
    """Returns the processes of a run in order, {field of the first line: value} of each.

    "ended" of a process is its last line; None: it is still running, or it was killed. Damaged
    lines are left out, and a missing file counts as an empty one.

    Args:
        workdir: the local folder of the run, or of a copy of its files.
    """
    try:
        texts = (workdir / PROCESSES).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    processes: list[dict[str, Any]] = []
    for text in texts:
        line: Any = None
        with contextlib.suppress(ValueError):
            line = json.loads(text)
        if not isinstance(line, dict):
            continue
        if "start" in line:
            processes.append({**line, "ended": None})
        elif "end" in line and processes:
            processes[-1]["ended"] = line
    return processes


def has_finished(workdir: Path) -> bool:
    """Returns whether the last process of the run in the local folder `workdir` finished it."""
    processes = read_processes(workdir)
    ended = processes[-1]["ended"] if processes else None
    return (ended or {}).get("state") == FINISHED


def environment() -> dict[str, Any]:
    """Returns the command, the hardware and the versions of this process, as JSON values.

    "memory_bytes" is the memory of the host in bytes; None: unknown.
    """
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


def _append(workdir: Path, line: Mapping[str, Any]) -> None:
    """Appends a line; a failure is a warning, because no run depends on this file."""
    try:
        with (workdir / PROCESSES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        print(f"warning: {workdir / PROCESSES} could not be written ({error})", flush=True)
