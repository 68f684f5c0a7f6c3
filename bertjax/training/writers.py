"""Writes metrics as JSON lines and TensorBoard events; a resumed run removes later entries."""

import contextlib
import json
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.files import write_bytes


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
    """A context in which importing `module` raises ImportError, unless it is imported already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        del sys.modules[module]


# If torch is installed, tensorboardX imports it, which takes more than a second. It needs torch
# only for types of values that are not used here.
with _without("torch"):
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.event_pb2 import (  # generated at import
        Event,  # pyright: ignore[reportAttributeAccessIssue]
    )


class MetricWriter:
    """Appends metrics to `metrics.jsonl` and to event files in a directory.

    Args:
        directory: the directory of the files; it is created if needed.
        step: the step that the run resumes at. Lines and events of later steps are removed first,
            since they will be written again.
    """

    def __init__(self, directory: Path, step: int):
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "metrics.jsonl"
        cut_json_lines(self._path, step)
        for events in directory.glob("events.out.tfevents.*"):
            cut_events(events, step)
        self._lines = self._path.open("a", encoding="utf-8")
        # File names contain the time in seconds. Without the suffix, a run that is resumed within
        # a second would overwrite a file.
        self._events = SummaryWriter(
            str(directory), flush_secs=30, filename_suffix=f".{os.getpid()}.{step}"
        )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes one line, and one event per number."""
        self._lines.write(json.dumps({"step": step, **metrics}) + "\n")
        self._lines.flush()
        for key, value in metrics.items():
            if isinstance(value, int | float):
                self._events.add_scalar(key, value, step)

    def flush(self) -> None:
        """Writes all events to their file; lines are written at once."""
        self._events.flush()

    def close(self) -> None:
        """Flushes and closes both files."""
        self._lines.close()
        self._events.close()


def cut_json_lines(path: Path, step: int) -> None:
    """Removes lines of later steps, and an incomplete last line."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").split("\n")
    kept = [line for line in lines[:-1] if json.loads(line)["step"] <= step]
    write_bytes(path, "".join(line + "\n" for line in kept).encode())


def cut_events(path: Path, step: int) -> None:
    """Removes events of later steps from an event file, and an incomplete last event."""
    content = path.read_bytes()
    kept = [record for record in _records(content) if _step(record) <= step]
    write_bytes(path, b"".join(kept))


def _records(content: bytes) -> Iterator[bytes]:
    """Yields complete TFRecords: length (8 bytes), its CRC (4 bytes), data, its CRC (4 bytes)."""
    at = 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        end = at + 12 + length + 4
        if end > len(content):
            return
        yield content[at:end]
        at = end


def _step(record: bytes) -> int:
    event = Event()
    event.ParseFromString(record[12:-4])
    return event.step
