"""Writes metrics as JSON lines and TensorBoard events, and repairs both when a run resumes."""

import io
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax.files import explaining
from bertjax.training.metric_files import (
    cut_json_lines,
    first_record,
    new_event_file,
    repair_events,
    scalar_event,
    to_line,
)


class MetricWriter:
    """Appends metrics to `metrics.jsonl` and to a TensorBoard event file in a directory.

    Each line is passed to the operating system without a buffer, so that no line is lost if the
    process is killed. `flush` also syncs the files to the disk, so that no line is lost if the
    machine crashes.

    Args:
        directory: the directory of both files; it is created if it does not exist.
        step: the step from which the run resumes; 0: a new run. Lines and events of steps after
            `step` are removed first, because the resumed run writes them again; events that are
            missing are restored from `metrics.jsonl`.
        evaluation_due: whether the run evaluates `step` again, because the checkpoint of `step` was
            saved without an evaluation; if so, logged metrics of an evaluation of `step` are
            removed as well.
        publish: called at the end of each `flush`; uploads the files of a workdir in a bucket.

    Raises:
        OSError: a file cannot be written; the message names the file.
    """

    def __init__(
        self,
        directory: Path,
        step: int,
        *,
        evaluation_due: bool = False,
        publish: Callable[[], None] = lambda: None,
    ):
        self._publish = publish
        with explaining(directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "metrics.jsonl"
        lines = cut_json_lines(self._path, step, evaluation_due=evaluation_due)
        repair_events(directory, lines, step, evaluation_due=evaluation_due)
        self._events_path = new_event_file(directory, step)
        self._files = {path: _opened(path) for path in (self._path, self._events_path)}
        self._append(self._events_path, first_record())

    def _append(self, path: Path, content: bytes) -> None:
        with explaining(path):
            while content:  # if the disk is almost full, `write` may write only a part
                content = content[self._files[path].write(content) :]

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes the metrics of a step as one line of JSON and one TensorBoard event per number.

        Raises:
            OSError: the disk is full or fails; the message names the file.
        """
        self._append(self._path, to_line(step, metrics).encode())
        now = time.time()
        events = [
            scalar_event(step, key, value, now)
            for key, value in metrics.items()
            if isinstance(value, int | float)
        ]
        self._append(self._events_path, b"".join(events))

    def flush(self) -> None:
        """Syncs both metric files to the disk; must be called before each checkpoint is saved.

        Raises:
            OSError: the disk is full or fails; the message names the file.
        """
        for path, file in self._files.items():
            with explaining(path):
                os.fsync(file.fileno())
        self._publish()

    def close(self) -> None:
        """Closes both files."""
        for file in self._files.values():
            file.close()


def _opened(path: Path) -> io.FileIO:
    """Opens a file for appending without a buffer, because a killed process loses its buffers."""
    with explaining(path):
        return path.open("ab", buffering=0)
