"""Reads files of JSON lines."""

import json
from pathlib import Path
from typing import Any


def json_lines(path: Path | str) -> list[Any]:
    """The objects of a file that has one in each line."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def metrics_of(workdir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl without what a clock decides."""
    return [
        {name: x for name, x in line.items() if not name.endswith(("per_second", "mfu"))}
        for line in json_lines(workdir / "metrics.jsonl")
    ]
