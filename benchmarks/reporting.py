"""What every line of a result says besides its figures, and where lines go."""

import importlib.metadata
import json
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import jax


def facts(*packages: str) -> dict[str, Any]:
    """Device, date and versions: of jax and the packages named."""
    kind = jax.devices()[0].device_kind
    return {
        "device": f"{os.cpu_count()} cores" if kind == "cpu" else f"{jax.device_count()} x {kind}",
        "date": date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", *packages)},
    }


def report(figures: dict[str, Any], output: Path | None, packages: Sequence[str] = ()) -> None:
    """Prints a line of JSON, figures and facts, and adds it to a file, if one is given."""
    line = json.dumps(figures | facts(*packages))
    print(line, flush=True)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
