"""Reads and repairs the metric files of a run: `metrics.jsonl` and TensorBoard's event files.

A failing disk or a crash may leave NUL bytes, garbage or a truncated last line in a metric file. A
damaged metric file never stops a run: the readable lines or events are kept, the damaged file is
copied to another name, and a message is printed.
"""

import bisect
import contextlib
import functools
import io
import json
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import naming_write_errors, set_aside, write_bytes
from bertjax.base.workdir_files import EVENT_FILES


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
    """Makes `import module` fail in the `with` block, unless `module` is already imported."""
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
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import (  # generated at import
        Event,  # pyright: ignore[reportAttributeAccessIssue]
    )
    from tensorboardX.summary import scalar


class Lines(NamedTuple):
    """The content of metrics.jsonl.

    Attributes:
        lines: the complete lines, each as {"step": step, metric: value}.
        damaged: whether the file contains anything other than complete lines and a truncated last
            line.
    """

    lines: list[dict[str, Any]]
    damaged: bool


def read_lines(path: Path) -> Lines:
    """Reads the complete lines of metrics.jsonl; a missing file counts as an empty file."""
    if not path.is_file():
        return Lines([], False)
    *whole, last = path.read_bytes().split(b"\n")
    lines, damaged = [], not _may_be_half_a_line(last)
    for text in whole:
        line = parsed(text)
        if line is None:
            # A crash of the machine leaves NUL bytes where text was not written yet.
            damaged, line = True, parsed(text.strip(b"\0"))
        if line is not None:
            lines.append(line)
    return Lines(lines, damaged)


def parsed(text: bytes) -> dict[str, Any] | None:
    """Parses a line of metrics.jsonl; None if it is damaged."""
    try:
        line = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and type(line.get("step")) is int else None


def _may_be_half_a_line(text: bytes) -> bool:
    start = b'{"step": '
    return (text.startswith(start) or start.startswith(text)) and b"\0" not in text


def to_line(step: int, metrics: Mapping[str, Any]) -> str:
    """Formats the metrics of a step as a line of metrics.jsonl; NaN and infinity become null."""
    values = {key: _in_json(value) for key, value in metrics.items()}
    return json.dumps({"step": step, **values}, allow_nan=False) + "\n"


def _in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _in_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(item) for item in value]
    return value


def _is_written_again(names: Iterable[str], at: int, step: int, evaluation_due: bool) -> bool:
    """Whether a run that resumes from `step` writes an entry, of step `at`, once more.

    The result is True for all steps `at` after `step`, and for an evaluation of `step` itself (one
    of `names`, the metrics of the entry, begins with "eval/") if `evaluation_due` is True.
    """
    is_evaluation = any(name.startswith("eval/") for name in names)
    return at > step or (at == step and evaluation_due and is_evaluation)


def cut_json_lines(path: Path, step: int, *, evaluation_due: bool = False) -> list[dict[str, Any]]:
    """Removes the lines from metrics.jsonl that a resumed run writes again.

    A truncated last line and damaged content are removed as well. The remaining lines are returned,
    each as {"step": step, metric: value}.

    Args:
        path: the path of metrics.jsonl.
        step: the step from which the run resumes; the lines of later steps are removed.
        evaluation_due: whether the run evaluates `step` again; if so, the line with the metrics of
            the evaluation of `step` is removed.
    """
    lines, damaged = read_lines(path)
    kept = [x for x in lines if not _is_written_again(x, x["step"], step, evaluation_due)]
    if damaged:
        _say_damaged(path)
    if path.is_file():
        text = "".join(to_line(line.pop("step"), line) for line in [dict(x) for x in kept])
        write_bytes(path, text.encode())
    return kept


def _say_damaged(path: Path) -> None:
    # TensorBoard reads every file with "tfevents" in its name.
    name = path.name.replace("tfevents", "not-events")
    try:
        copy = f"the damaged file was copied to {set_aside(path, name)}"
    except OSError as error:
        copy = f"the damaged file could not be copied ({error})"
    print(f"{path} is damaged: its readable entries are kept; {copy}.", flush=True)


def scalar_event(step: int, tag: str, value: float, wall_time: float) -> bytes:
    """Returns a TensorBoard event with one scalar as bytes, in event files' TFRecord format.

    The event says that `tag` had `value` at `step`, at `wall_time` in seconds since 1970.
    """
    return to_record(Event(wall_time=wall_time, step=step, summary=scalar(tag, value)))


def to_record(event: Any) -> bytes:
    """Returns a TensorBoard event as bytes, in the TFRecord format of event files.

    A TFRecord consists of the length of the event (8 bytes), the CRC of the length (4 bytes), the
    serialized event, and the CRC of the event (4 bytes).
    """
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


class EventRecord(NamedTuple):
    """An event in a TensorBoard event file.

    Attributes:
        step: the step of the event.
        wall_time: the time of the event, in seconds since 1970.
        tags: the names of the scalars in the event.
        content: the bytes in the file: the serialized event with its length and CRCs (TFRecord).
    """

    step: int
    wall_time: float
    tags: tuple[str, ...]
    content: bytes


def read_events(path: Path) -> tuple[list[EventRecord], bool]:
    """Reads the intact events of an event file; also returns whether the file is damaged.

    A truncated last event, which a killed process may leave, does not count as damage. Events after
    a damaged length field cannot be read.
    """
    content = path.read_bytes()
    events, damaged, at = [], False, 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        if content[at + 8 : at + 12] != _masked_crc(content[at : at + 8]):
            return events, True
        end = at + 12 + length + 4
        if end > len(content):
            break
        event = _parsed_event(content[at:end])
        damaged |= event is None
        if event is not None:
            events.append(event)
        at = end
    return events, damaged


def _parsed_event(record: bytes) -> EventRecord | None:
    data = record[12:-4]
    if record[-4:] != _masked_crc(data):
        return None
    event = Event()
    try:
        event.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, whose module differs between versions
        return None
    tags = tuple(value.tag for value in event.summary.value)
    return EventRecord(event.step, event.wall_time, tags, record)


def repair_events(
    directory: Path, lines: list[dict[str, Any]], step: int, *, evaluation_due: bool = False
) -> None:
    """Removes from the event files the events that a resumed run writes again; restores lost ones.

    For every value in `lines` that has no event, an event is created and inserted in the order of
    steps, with the wall time of the preceding event.

    Args:
        directory: the folder of the event files.
        lines: the lines of metrics.jsonl that `cut_json_lines` has returned.
        step: the same value as that passed to `cut_json_lines`.
        evaluation_due: the same value as that passed to `cut_json_lines`.
    """
    paths = sorted(directory.glob(EVENT_FILES))
    for path in [path for path in paths if path.suffix == ".tmp"]:  # left by a kill
        paths.remove(path)
        path.unlink(missing_ok=True)
    files: list[list[EventRecord]] = []
    for path in paths:
        events, damaged = read_events(path)
        if damaged:
            _say_damaged(path)
        kept = [e for e in events if not _is_written_again(e.tags, e.step, step, evaluation_due)]
        files.append(kept or [_first_event(time.time())])
    missing = _missing(lines, files)
    if missing and not paths:
        paths = [new_event_file(directory, step)]
        files = [[_first_event(time.time())]]
    # The first step of each file; infinity if the file has no scalars.
    starts = [min((e.step for e in events if e.tags), default=math.inf) for events in files]
    order = sorted(range(len(files)), key=lambda i: (starts[i], i))
    for at, tag, value in missing:
        position = bisect.bisect_right([starts[i] for i in order], at)
        event = Event(step=at, summary=scalar(tag, value))
        files[order[max(0, position - 1)]].append(EventRecord(at, 0.0, (tag,), to_record(event)))
    for path, events in zip(paths, files, strict=True):
        write_bytes(path, b"".join(_in_order(events)))


def _missing(
    lines: list[dict[str, Any]], files: list[list[EventRecord]]
) -> list[tuple[int, str, float]]:
    """Returns (step, metric, value) for each number in `lines` that has no event in `files`.

    The value null, which stands for NaN and infinity in metrics.jsonl, is returned as NaN.
    """
    present = {(event.step, tag) for events in files for event in events for tag in event.tags}
    missing = []
    for line in lines:
        for key, value in line.items():
            if key == "step" or not (value is None or isinstance(value, int | float)):
                continue
            number = math.nan if value is None else value
            if (line["step"], _tag_of(key)) not in present:
                missing.append((line["step"], key, number))
    return missing


@functools.cache
def _tag_of(key: str) -> str:
    """Returns the TensorBoard tag of a metric: the name `key` with special characters replaced."""
    return scalar(key, 0.0).value[0].tag


def _in_order(events: list[EventRecord]) -> Iterator[bytes]:
    """Yields events as bytes in the TFRecord format, sorted by step.

    A wall time of 0, that of a restored event, is replaced by that of the preceding event.
    """
    events = sorted(events, key=lambda event: event.step)
    last = next((event.wall_time for event in events if event.wall_time), time.time())
    for event in events:
        content, last = event.content, event.wall_time or last
        if not event.wall_time:
            made = Event()
            made.ParseFromString(content[12:-4])
            made.wall_time = last
            content = to_record(made)
        yield content


def _first_event(wall_time: float) -> EventRecord:
    record = to_record(Event(wall_time=wall_time, file_version="brain.Event:2"))
    return EventRecord(0, wall_time, (), record)


def new_event_file(directory: Path, step: int) -> Path:
    """Returns the path in `directory` of a new event file, which TensorBoard reads last.

    The file name contains the time in seconds, the process id and `step`, so that a run that is
    resumed within the same second does not overwrite a file.
    """
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}"
    return directory / f"{name}.{os.getpid()}.{step}"


def first_record() -> bytes:
    """Returns the first TFRecord of an event file, which holds the version of the file format."""
    return _first_event(time.time()).content


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
        with naming_write_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "metrics.jsonl"
        lines = cut_json_lines(self._path, step, evaluation_due=evaluation_due)
        repair_events(directory, lines, step, evaluation_due=evaluation_due)
        self._events_path = new_event_file(directory, step)
        self._files = {path: _opened(path) for path in (self._path, self._events_path)}
        self._append(self._events_path, first_record())

    def _append(self, path: Path, content: bytes) -> None:
        with naming_write_errors(path):
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
            with naming_write_errors(path):
                os.fsync(file.fileno())
        self._publish()

    def close(self) -> None:
        """Closes both files."""
        for file in self._files.values():
            file.close()


def _opened(path: Path) -> io.FileIO:
    """Opens a file for appending without a buffer, because a killed process loses its buffers."""
    with naming_write_errors(path):
        return path.open("ab", buffering=0)
