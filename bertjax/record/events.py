"""What happens in a run, as events, and the readers that are told of it.

`train/run.py` emits the events in the order in which things happen. The readers are found by the
names of their files, mostly in this folder: metric files, terminal, trackers, report, ledger, early
stopping, pushes to the Hub. Events are synchronous. Their arrays are on the device and may not be
computed yet: whoever looks at them waits, so that readers look at the metrics of a step some steps
later.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertjax.devices import hosts
from bertjax.devices.activity import Clock

# The number of steps by which the host may be ahead of the device, so that the device need not
# wait for the host.
STEPS_AHEAD = 2


@dataclass(frozen=True)
class Started:
    """A run starts, resumes or goes on after a rollback, at `step`.

    `address` is what messages call the workdir, and `facts` are JSON values about the run.
    """

    workdir: Path
    address: str
    step: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Began:
    """An activity begins; the time until now belongs to the one before."""

    activity: str


@dataclass(frozen=True)
class Ended:
    """An activity ends without an error; the time until now belongs to it."""

    activity: str


@dataclass(frozen=True)
class StepDone:
    """The training step `step` was started, on `batch` of `phase`, both counted from 0.

    `metrics` and `state`, the state after the step, are on the device. `peak_seconds` is the time
    that the step would take if all devices computed at their peak; 0: it is not known.
    """

    step: int
    metrics: dict[str, Any]
    state: Any
    phase: int
    batch: int
    peak_seconds: float


@dataclass(frozen=True)
class Line:
    """Metrics of a step, {name: number}, which become a line of metrics.jsonl."""

    step: int
    metrics: dict[str, float]


class Logged(Line):
    """Training metrics, as means since the last log line; their names begin with "train/"."""


class Evaluated(Line):
    """The metrics of an evaluation; their names begin with "eval/"."""


class Skipped(Line):
    """The update of a step was skipped, and why; the names begin with "skipped/"."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint of `step` is being written."""

    step: int


@dataclass(frozen=True)
class Stopped:
    """The run ends for now, because of a signal or an error, or to be rolled back."""


@dataclass(frozen=True)
class Finished:
    """No step is left to do, and the last checkpoint is complete."""


@dataclass(frozen=True)
class Exported:
    """The model of the finished run and all of its results are written."""


@dataclass(frozen=True)
class Closed:
    """All that belongs to the finished run is done: its time ends, and its last report is due."""


class Reader:
    """Reads the events of a run; subclasses override what they need.

    Attributes:
        on_all_hosts: whether it reads on all hosts; if not, on the first one alone. What the hosts
            do together, and what decides about the run, is read on all of them.
        stop_reason: why the run should end now; "": it should go on.
    """

    on_all_hosts = False
    stop_reason = ""

    def read(self, event: Any) -> None:
        """Is called after each event, one of the classes above."""

    def remembered(self) -> dict[str, Any]:
        """Returns the JSON values that each checkpoint stores for this reader."""
        return {}


class EventStream:
    """Tells its readers, one after the other, what happens in a run.

    An error in the `with` block is told as `Stopped`.
    """

    def __init__(self, clock: Clock):
        self.clock = clock
        self.readers: list[Reader] = []
        self._has_said_reason = False

    @property
    def step(self) -> int:
        """The number of training steps that are done."""
        return self.clock.step

    def add(self, kind: type[Reader], *args: Any, **settings: Any) -> None:
        """Adds a reader, made from the arguments, on those hosts on which it reads."""
        if kind.on_all_hosts or hosts.is_first():
            self.readers.append(kind(*args, **settings))

    def emit(self, event: Any) -> None:
        """Tells all readers what has happened."""
        for reader in self.readers:
            reader.read(event)

    @contextlib.contextmanager
    def doing(self, activity: str, what: str = "") -> Iterator[None]:
        """A context whose time belongs to `activity`, as `Clock.doing`."""
        self.emit(Began(activity))
        with self.clock.doing(activity, what):
            yield
            self.emit(Ended(activity))

    def remembered(self) -> dict[str, Any]:
        """Returns what a checkpoint stores for all readers."""
        values = {}
        for reader in self.readers:
            values |= reader.remembered()
        return values

    def should_stop(self) -> bool:
        """Returns whether a reader asks the run to end; the first time, it says why."""
        for reader in self.readers:
            if reader.stop_reason:
                if not self._has_said_reason:
                    hosts.say(reader.stop_reason)
                self._has_said_reason = True
                return True
        return False

    def __enter__(self) -> "EventStream":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.emit(Stopped())
