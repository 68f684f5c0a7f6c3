"""Writes benchmark results as lines of JSON with device, date and versions."""

import importlib.metadata
import json
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import jax


def facts(*packages: str) -> dict[str, Any]:
    """Returns device, date, and the versions of jax and `packages`."""
    kind = jax.devices()[0].device_kind
    return {
        "device": f"{os.cpu_count()} cores" if kind == "cpu" else f"{jax.device_count()} x {kind}",
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
