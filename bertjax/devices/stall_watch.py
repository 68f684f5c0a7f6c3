"""Detects a run that makes no progress, and reports where it stands and which process is behind.

After `--stall_seconds` without progress, it prints the stack of each thread and, in a run of
several processes, which of them have not arrived and what they are doing.
"""

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping

from bertjax.devices.activity import Clock

POLL_SECONDS = 1.0
# The seconds without a new state after which a process counts as not responding.
SILENT_SECONDS = 10.0


def state(clock: Clock, beat: int) -> str:
    """Returns what this process is doing, as JSON for the other processes of the run."""
    return json.dumps(
        {"beat": beat, "activity": clock.activity, "step": clock.step, "count": clock.count}
    )


def described(text: str) -> str:
    """Returns what a process was doing when it wrote the state `text`, for a message."""
    try:
        found = json.loads(text)
        return f"{found['activity']}, after step {found['step']}"
    except (ValueError, KeyError, TypeError):
        return "starting"


class StallWatch:
    """Prints, after `seconds` without progress, what this and other processes are doing.

    This is said once, and again if another process stops to respond. If `seconds` is 0, nothing is
    watched.
    """

    def __init__(self, clock: Clock, seconds: float, rank: int = 0):
        self._clock, self._seconds, self._rank = clock, seconds, rank
        # The last progress of this process, and the silent processes, when it was said.
        self._said: tuple[float, list[int]] | None = None
        self._seen: dict[int, tuple[str, float]] = {}  # rank -> (last state, time of its arrival)

    def check(self, states: Mapping[int, str] | None = None) -> None:
        """Compares the time of the last progress with the limit; `states` are {rank: state}."""
        now = time.monotonic()
        states = states or {}
        for rank, text in states.items():
            if self._seen.get(rank, ("", 0.0))[0] != text:
                self._seen[rank] = (text, now)
        record = self._clock
        waited = now - record.progress_at
        silent = [rank for rank, (_, at) in self._seen.items() if now - at > SILENT_SECONDS]
        stall = record.progress_at, silent
        if not self._seconds or waited < self._seconds or self._said == stall:
            return
        self._said = stall
        who = f"process {self._rank}" if states else "the run"
        lines = [
            f"warning: {who} has made no progress for {waited:.0f} s; it is {record.activity}, "
            f"after step {record.step}.",
            *self._behind(now, silent),
            "The stacks of its threads:",
        ]
        os.write(2, ("\n".join(lines) + "\n").encode())
        sys.stderr.flush()
        faulthandler.dump_traceback(2, all_threads=True)  # a thread that hangs cannot print

    def _behind(self, now: float, silent: Collection[int]) -> list[str]:
        """Returns sentences about the processes that are `silent` or have done less."""
        counts = {rank: _count(text) for rank, (text, _) in self._seen.items()}
        most = max(counts.values(), default=0)
        lines = []
        for rank, (text, at) in sorted(self._seen.items()):
            if rank in silent:
                lines.append(
                    f"Process {rank} does not respond since {now - at:.0f} s; it was "
                    f"{described(text)}."
                )
            elif counts[rank] < most and not silent:
                lines.append(f"Process {rank} has not arrived: it is {described(text)}.")
        if len(self._seen) > 1 and not lines:
            lines.append("All processes are at the same point of the program.")
        return lines


def _count(text: str) -> int:
    try:
        return int(json.loads(text)["count"])
    except (ValueError, KeyError, TypeError):
        return 0


@contextlib.contextmanager
def watching(clock: Clock, seconds: float) -> Iterator[None]:
    """A context in which a thread watches this process of a single-process run."""
    ended = threading.Event()
    watch = StallWatch(clock, seconds)

    def run() -> None:
        while not ended.wait(POLL_SECONDS):
            watch.check()

    if seconds:
        threading.Thread(target=run, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
