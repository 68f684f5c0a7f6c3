"""The metrics of a run: log lines, `metrics.jsonl` and TensorBoard's event files.

`MetricLogger` makes log lines of the metrics of steps, which are on the device, and `MetricWriter`
writes all lines to the files.

A failing disk or a crash may leave NUL bytes, garbage or a truncated last line in a metric file. A
damaged metric file never stops a run: the readable lines are kept, a damaged `metrics.jsonl` is
copied to another name, and what TensorBoard would not show is written again.
"""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bertjax.base.files import in_json, json_lines, naming_write_errors, set_aside, write_bytes
from bertjax.base.workdir_files import EVENT_FILES, METRICS
from bertjax.devices import activity
from bertjax.devices.activity import Clock
from bertjax.record.events import (
    STEPS_AHEAD,
    Began,
    Ended,
    Finished,
    Line,
    Logged,
    Reader,
    StepDone,
    Stopped,
)


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
    from tensorboardX.proto.event_pb2 import (  # generated at import
        Event,  # pyright: ignore[reportAttributeAccessIssue]
        SessionLog,  # pyright: ignore[reportAttributeAccessIssue]
    )
    from tensorboardX.record_writer import masked_crc32c
    from tensorboardX.summary import scalar


class Lines(NamedTuple):
    """The content of metrics.jsonl: its complete lines, {"step": step, metric: value} each.

    `damaged` is whether it holds anything else, but for a truncated last line.
    """

    lines: list[dict[str, Any]]
    damaged: bool


def read_lines(path: Path) -> Lines:
    """Reads the complete lines of metrics.jsonl; a missing file counts as an empty file."""
    lines = []
    damaged = False
    for line in json_lines(path):
        if line and type(line.get("step")) is int:
            lines.append(line)
        else:
            damaged = True
    return Lines(lines, damaged)


def last_evaluation(path: Path) -> dict[str, Any] | None:
    """Returns the last line of metrics.jsonl with metrics of an evaluation; None: there is none."""
    for line in reversed(read_lines(path).lines):
        if any(name.startswith("eval/") for name in line):
            return line
    return None


def to_line(step: int, metrics: Mapping[str, Any]) -> str:
    """Formats the metrics of a step as a line of metrics.jsonl; NaN and infinity become null."""
    return json.dumps(in_json({"step": step, **metrics}), allow_nan=False) + "\n"


def cut_json_lines(path: Path, step: int, *, evaluation_due: bool = False) -> list[dict[str, Any]]:
    """Removes damage and the lines that a resumed run writes again; returns the lines that stay.

    Args:
        path: the path of metrics.jsonl.
        step: the step from which the run resumes; the lines of later steps are removed.
        evaluation_due: whether the run evaluates `step` again; if so, the line with the metrics of
            the evaluation of `step` is removed.
    """

    def is_written_again(line: dict[str, Any]) -> bool:
        is_evaluation = any(name.startswith("eval/") for name in line)
        return line["step"] > step or (evaluation_due and line["step"] == step and is_evaluation)

    lines, damaged = read_lines(path)
    kept = [line for line in lines if not is_written_again(line)]
    if damaged:
        try:
            copy = f"the damaged file was copied to {set_aside(path)}"
        except OSError as error:
            copy = f"the damaged file could not be copied ({error})"
        print(f"{path} is damaged: its readable entries are kept; {copy}.", flush=True)
    if path.is_file():
        write_bytes(path, "".join(to_line(line["step"], line) for line in kept).encode())
    return kept


def shown_events(directory: Path) -> dict[tuple[int, str], float]:
    """Returns {(step, tag): value} of the scalars that TensorBoard shows of the run in `directory`.

    TensorBoard reads the files in the order of their names, each one up to the first damage. An
    event that says that the run started at a step hides earlier events of this and of later steps.
    """
    shown: dict[tuple[int, str], float] = {}
    for path in sorted(directory.glob(EVENT_FILES)):
        for event in _events_in(path.read_bytes()):
            if event.session_log.status == SessionLog.START:
                shown = {key: value for key, value in shown.items() if key[0] < event.step}
            for value in event.summary.value:
                shown[event.step, value.tag] = value.simple_value
    return shown


def _events_in(content: bytes) -> Iterator[Any]:
    """Yields the events of a file in the format TFRecord, up to the first damage."""
    at = 0
    while at + 16 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        record = content[at : at + 16 + length]
        if record != _to_record(record[12:-4]):
            return
        yield Event.FromString(record[12:-4])
        at += len(record)


def _to_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _crc(length) + data + _crc(data)


def _crc(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


@functools.cache
def _tag_of(key: str) -> str:
    return scalar(key, 0.0).value[0].tag


def _numbers_in(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics that TensorBoard shows; null, which is NaN in JSON, becomes NaN."""
    return {
        key: math.nan if value is None else value
        for key, value in metrics.items()
        if key != "step" and (value is None or isinstance(value, int | float))
    }


class MetricWriter(Reader):
    """Appends metrics to `metrics.jsonl` and to a TensorBoard event file in a directory.

    Each line is passed to the operating system without a buffer, so that a kill loses none; after
    `flush`, a crash of the machine loses none, either.

    Args:
        directory: the directory of both files; it is created if it does not exist.
        step: the step from which the run resumes; 0: a new run. Lines of later steps are removed
            first, and TensorBoard is told to hide their events; events that are missing are written
            again from `metrics.jsonl`.
        evaluation_due: whether the run evaluates `step` again, so that its evaluation is removed.
        publish: called at the end of each `flush`; uploads the files of a workdir in a bucket.

    Raises:
        OSError: here and in all methods, a file cannot be written; the message names the file.
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
        path = directory / METRICS
        lines = cut_json_lines(path, step, evaluation_due=evaluation_due)
        shown = shown_events(directory)
        self._lines = _opened(path)
        self._events = _opened(_new_event_file(directory, step))
        self._append_event(file_version="brain.Event:2")
        expected = {(line["step"], _tag_of(key)) for line in lines for key in _numbers_in(line)}
        if changed := expected ^ shown.keys():
            first = min(step for step, _ in changed)
            self._append_event(step=first, session_log=SessionLog(status=SessionLog.START))
            for line in lines:
                if line["step"] >= first:
                    self._append_scalars(line["step"], line)

    def read(self, event: Any) -> None:
        match event:
            case Line(step=step, metrics=metrics):
                self.write(step, metrics)
            case Began(activity.SAVING):
                self.flush()
            case Stopped() | Finished():
                self.close()

    def _append_event(self, **fields: Any) -> None:
        event = Event(wall_time=time.time(), **fields)
        _append(self._events, _to_record(event.SerializeToString()))

    def _append_scalars(self, step: int, metrics: Mapping[str, Any]) -> None:
        for key, value in _numbers_in(metrics).items():
            self._append_event(step=step, summary=scalar(key, value))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes the metrics of a step as one line of JSON and one TensorBoard event per number."""
        _append(self._lines, to_line(step, metrics).encode())
        self._append_scalars(step, metrics)

    def flush(self) -> None:
        """Syncs both files to the disk; must be called before each checkpoint is saved."""
        for file in (self._lines, self._events):
            with naming_write_errors(str(file.name)):
                os.fsync(file.fileno())
        self._publish()

    def close(self) -> None:
        """Closes both files."""
        self._lines.close()
        self._events.close()


def _new_event_file(directory: Path, step: int) -> Path:
    """Returns the path of an event file that TensorBoard reads after those in `directory`."""
    times = [path.name.split(".")[3] for path in directory.glob(EVENT_FILES)]
    now = max(int(time.time()), *(int(text) + 1 for text in times if text.isdigit()), 0)
    name = f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}.{step}"
    return directory / name


def _opened(path: Path) -> io.FileIO:
    """Opens a file for appending without a buffer, because a kill loses buffers."""
    with naming_write_errors(path):
        return path.open("ab", buffering=0)


def _append(file: io.FileIO, content: bytes) -> None:
    with naming_write_errors(str(file.name)):
        while content:  # if the disk is almost full, `write` may write only a part
            content = content[file.write(content) :]


def add_sums(sums: Iterable[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Adds up dictionaries {metric: (sum, weight)} in float64; returns a dictionary of totals."""
    total: dict[str, tuple[float, float]] = {}
    for item in sums:
        for key, (value, weight) in item.items():
            before = total.get(key, (0.0, 0.0))
            total[key] = (before[0] + float(value), before[1] + float(weight))
    return total


def means(total: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Converts {metric: (sum, weight)} to {metric: sum / weight}, without metrics of weight 0."""
    return {key: value / weight for key, (value, weight) in total.items() if weight}


class MetricLogger(Reader):
    """Emits the training metrics every `every` steps, and after the last of `num_steps`.

    Losses and accuracies are means since the last log line; the learning rate and the gradient norm
    are the last step's. The model FLOP utilisation (MFU) compares the time of the steps with that
    at the peak of the devices. The first step of each segment may compile and is not timed.

    Args:
        emit: takes the log lines.
        clock: its time of training and of waiting for input is the time of the steps.
        pending: the sums of metrics not yet logged, from a checkpoint.
        loss_weights: {name of a loss: its factor in the total loss}, if the train step returns no
            metric "loss".
    """

    on_all_hosts = True

    def __init__(
        self,
        emit: Callable[[Any], None],
        clock: Clock,
        *,
        every: int,
        num_steps: int,
        pending: Mapping[str, Any] | None = None,
        loss_weights: Mapping[str, float] | None = None,
    ):
        self._emit = emit
        self._clock = clock
        self._every = every
        self._num_steps = num_steps
        self._sums = {key: tuple(value) for key, value in (pending or {}).items()}
        self._loss_weights = loss_weights or {}
        self._unread: list[dict[str, Any]] = []
        self._tokens: list[Any] = []  # of each timed step
        self._seconds = self._peak_seconds = 0.0  # of the timed steps
        self._since: float | None = None

    def read(self, event: Any) -> None:
        match event:
            case StepDone():
                self._did_step(event)
            case Began(activity.EVALUATING | activity.SAVING):
                jax.block_until_ready(self._unread)
            case Ended(activity.STEPPING):
                self._stop_time()

    def _did_step(self, event: StepDone) -> None:
        self._unread.append(event.metrics)
        if self._since is None:
            jax.block_until_ready(event.metrics)
            self._since = self._now()
        else:
            self._tokens.append(event.metrics["tokens"])
            self._peak_seconds += event.peak_seconds
        if event.step % self._every == 0 or event.step == self._num_steps:
            self._log(event.step)

    def _now(self) -> float:
        return self._clock.seconds_of(activity.STEPPING, activity.INPUT)

    def _stop_time(self) -> None:
        jax.block_until_ready(self._unread)
        if self._since is not None:
            self._seconds += self._now() - self._since
        self._since = None

    def _log(self, step: int) -> None:
        unread, tokens = jax.device_get((self._unread, self._tokens))
        values = self._means(unread)
        for name in ("learning_rate", "grad_norm"):
            values[name] = float(unread[-1][name])
        self._stop_time()
        if tokens:
            values["tokens_per_second"] = sum(map(float, tokens)) / self._seconds
            if self._peak_seconds:
                values["mfu"] = self._peak_seconds / self._seconds
        self._emit(Logged(step, {f"train/{key}": value for key, value in values.items()}))
        self._sums = {}
        self._unread = []
        self._tokens = []
        self._seconds = self._peak_seconds = 0.0
        self._since = self._now()

    def means_so_far(self) -> dict[str, float]:
        """Returns the means since the last log line, of steps that the device has done."""
        return self._means(jax.device_get(self._unread[:-STEPS_AHEAD]))

    def remembered(self) -> dict[str, Any]:
        """Returns the metric sums since the last log line, {metric: (sum, weight)}."""
        return {"pending": self._total(jax.device_get(self._unread))}

    def _total(self, unread: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
        return add_sums([self._sums, *(metrics["sums"] for metrics in unread)])

    def _means(self, unread: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        values = means(self._total(unread))
        if "loss" not in values and values:
            values["loss"] = 0.0
            for key, weight in self._loss_weights.items():
                values["loss"] += weight * values.get(key, 0.0)
        return values
