"""Times contenders in turns; writes results as lines of JSON with device, date and versions."""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import jax

Run = Callable[[Any], Any]


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser of flags, with --output, that is described by a docstring's first line."""
    parser = argparse.ArgumentParser(description=doc and doc.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="file to which the results are appended")
    return parser


def take_turns(
    sides: Mapping[str, Run],
    work: Any,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict, dict]:
    """Lets contenders do the same work in turns, after a warm-up.

    Args:
        sides: {contender: function of the work}.
        work: the argument of each function.
        rounds: the number of timed calls of each.
        clock: returns the seconds since some moment.

    Returns:
        {contender: result of the warm-up} and {contender: seconds of each timed call}.
    """
    first = {name: run(work) for name, run in sides.items()}  # compiles, warms up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            start = clock()
            run(work)
            seconds[name].append(clock() - start)
    return first, seconds


def ratios(ours: Sequence[float], others: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the median, over the rounds, of the time of each other contender over ours."""
    return {
        name: round(statistics.median(b / a for a, b in zip(ours, times, strict=True)), 2)
        for name, times in others.items()
    }


def processor() -> str:
    """Returns the name of the processor, and which of the fast instructions it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return platform.processor() or platform.machine()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.split() for name, value in values.items()}
    flags = fields.get("flags", [])
    fast = ", ".join(name for name in ("avx512f", "avx512_bf16", "amx_bf16") if name in flags)
    name = " ".join(fields.get("model name", [platform.machine()]))
    return f"{name} ({fast})" if fast else name


def facts(*packages: str) -> dict[str, Any]:
    """Returns device, date, and the versions of jax and `packages`."""
    kind = jax.devices()[0].device_kind
    cores = f"{os.cpu_count()} cores of {processor()}"
    return {
        "device": cores if kind == "cpu" else f"{jax.device_count()} x {kind}",
        "date": date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", *packages)},
    }


def report(figures: dict[str, Any], output: Path | None, packages: Sequence[str] = ()) -> None:
    """Prints a line of JSON with the figures and `facts`, and appends it to `output`."""
    line = json.dumps(figures | facts(*packages))
    print(line, flush=True)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
