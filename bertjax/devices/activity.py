"""What this process of a run is doing now, since when, and how long it has done each activity.

The time of a process is divided among activities without gaps: at each moment, it belongs to the
innermost `doing` block. The ledger, the stall watch and the terminal use the clock, which
also knows how many training steps are done.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from bertjax.base import progress

START_UP = "start-up"
COMPILING = "compiling"
RESTORING = "restoring"
STEPPING = "stepping"
INPUT = "waiting for input"
EVALUATING = "evaluating"
SAVING = "saving"
ACTIVITIES: tuple[str, ...] = (START_UP, COMPILING, RESTORING, STEPPING, INPUT, EVALUATING, SAVING)

Item = TypeVar("Item")


class Doing(NamedTuple):
    """An activity that has not ended: what is being done, and since when, by `time.monotonic`."""

    activity: str
    what: str
    since: float


class Clock:
    """The activities of a process since `started` seconds before now.

    `start` is the beginning, in seconds since 1970, and `uptime` the same by `time.monotonic`;
    `step` is the number of training steps that are done. `count` is the number of signs of
    progress, such as a step, and `progress_at` the time of the last one, by `time.monotonic`.
    """

    def __init__(self, started: float = 0.0):
        self.step = 0
        self.restart(started)

    @classmethod
    def of_process(cls) -> "Clock":
        """Counts the time since the process started as start-up."""
        return cls(_age_of_process())

    def restart(self, started: float = 0.0) -> None:
        """Begins anew, for another run of this process."""
        self.start = time.time() - started
        self.count = 0
        self.progress_at = time.monotonic()
        self._since = self.uptime = self.progress_at - started
        self._stack = [Doing(START_UP, START_UP, self._since)]
        self._seconds: dict[str, float] = dict.fromkeys(ACTIVITIES, 0.0)

    @property
    def activity(self) -> str:
        """The present activity."""
        return self._stack[-1].activity

    @property
    def activities(self) -> tuple[Doing, ...]:
        """The present activity, which is the last, and the activities that it interrupts."""
        return tuple(self._stack)

    def seconds(self) -> dict[str, float]:
        """Returns {activity: seconds} until now; their sum is the time since `start`."""
        seconds = dict(self._seconds)
        seconds[self.activity] += time.monotonic() - self._since
        return seconds

    def seconds_of(self, *activities: str) -> float:
        """Returns the seconds of several activities together until now."""
        seconds = self.seconds()
        return sum(seconds[name] for name in activities)

    @contextlib.contextmanager
    def doing(self, activity: str, what: str = "") -> Iterator[None]:
        """A context whose time belongs to `activity`, one of `ACTIVITIES`; `what` it does."""
        self._charge()
        self._stack.append(Doing(activity, what or activity, self._since))
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()
            self.progressed()

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """A context whose time belongs to `COMPILING`; says so on stderr if it takes long.

        `what` is the thing that is compiled, such as "the training step".
        """
        text = f"{COMPILING} {what}"
        with self.doing(COMPILING, text), progress.progress(text):
            yield

    def waiting_for(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields `items`; the time until each of them is there belongs to the activity `INPUT`."""
        iterator = iter(items)
        while True:
            with self.doing(INPUT):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def did_step(self) -> None:
        """Notes that another training step is done."""
        self.step += 1
        self.progressed()

    def progressed(self) -> None:
        """Notes a sign of progress, such as a step."""
        self.count += 1
        self.progress_at = time.monotonic()

    def _charge(self) -> None:
        now = time.monotonic()
        self._seconds[self.activity] += now - self._since
        self._since = now


def _age_of_process() -> float:
    """Returns the seconds since this process was started; 0 where the system does not say it."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
        started = int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0]) - started
    except (OSError, ValueError, IndexError):
        return 0.0
