"""The processes of a run: their commands, hardware and versions, in `processes.jsonl`."""

import contextlib
import importlib.metadata
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
from bertjax.base.files import append_json, json_lines
from bertjax.base.workdir_files import PROCESSES

FINISHED = "finished"
# The packages whose versions may matter for the results of a run.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers")


def started(workdir: Path, facts: Mapping[str, Any]) -> None:
    """Appends the line of a process that starts or resumes the run; call it on the first host.

    `facts` are JSON values about the run, such as the step from which it trains.
    """
    _append(workdir, {"start": time.time(), **facts, **environment()})


def ended(workdir: Path, state: str, reason: str = "") -> None:
    """Appends the line of a process that ends; call it on the first host.

    `state` is `FINISHED` or "stopped", and `reason` why the process stopped.
    """
    _append(workdir, {"end": time.time(), "state": state, "reason": reason})


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
    if not processes or processes[-1]["ended"] is None:
        return False
    return processes[-1]["ended"].get("state") == FINISHED


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


def _append(workdir: Path, line: Mapping[str, Any]) -> None:
    try:
        append_json(workdir / PROCESSES, line)
    except OSError as error:
        print(f"warning: {error}", flush=True)
