"""Monitors the hosts of a run: if one host fails, all hosts end within about a minute.

The other hosts print the error of the host that failed. Without this module, they would wait in a
collective operation for many minutes, and then end with a C++ stack trace. Hosts exchange messages
through the key-value store of `jax.distributed`.

A run that makes no progress for `--stall_seconds` prints the stack of each thread and, in a run of
several processes, which of them have not arrived and what they are doing.
"""

import contextlib
import faulthandler
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from bertjax.base.signals import STOPPED, Interrupted
from bertjax.devices.activity import Clock
from bertjax.devices.hosts import any_host, coordination_client

# The interval at which every host writes a sign of life.
BEAT_SECONDS = 3.0
# A host without a sign of life for this time was killed, is stopped, or has lost its network.
SILENCE_SECONDS = 40.0
# The interval at which a single process looks at its own progress, and the seconds without a new
# state after which a process counts as not responding.
POLL_SECONDS = 1.0
SILENT_SECONDS = 10.0
# The time that a host which learns of another host's error has to end by itself with its own error.
GRACE_SECONDS = 5.0
# How error messages of XLA and its collective operations begin; jax raises them as several types.
_STATUS = re.compile(r"\b(UNKNOWN|INTERNAL|ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|CANCELLED): ")
_FOLDER = "bertjax"
_FINISHED = "finished"


def state(clock: Clock, beat: int) -> str:
    """Returns what this process is doing, as JSON for the other processes of the run."""
    return json.dumps(
        {"beat": beat, "activity": clock.activity, "step": clock.step, "count": clock.count}
    )


def _parsed(text: str) -> dict[str, Any]:
    """Returns the dictionary of a state; {} if it is damaged or not written yet."""
    with contextlib.suppress(ValueError):
        content = json.loads(text)
        if isinstance(content, dict) and content.keys() >= {"activity", "step", "count"}:
            return content
    return {}


def described(text: str) -> str:
    """Returns what a process was doing when it wrote the state `text`, for a message."""
    content = _parsed(text)
    if not content:
        return "starting"
    return f"{content['activity']}, after step {content['step']}"


class StallWatch:
    """Prints, after `seconds` without progress, what this and other processes are doing.

    This is said once, and again if another process stops to respond. If `seconds` is 0, nothing is
    said. `seen` is {rank: (last state, time of its arrival)}.
    """

    def __init__(self, clock: Clock, seconds: float, rank: int = 0):
        self._clock = clock
        self._seconds = seconds
        self._rank = rank
        # The last progress of this process, and the silent processes, when it was said.
        self._said: tuple[float, list[int]] | None = None
        self.seen: dict[int, tuple[str, float]] = {}

    def check(self, states: Mapping[int, str] | None = None) -> None:
        """Compares the time of the last progress with the limit; `states` are {rank: state}."""
        now = time.monotonic()
        last = self._clock.progress_at
        who = "the run"
        if states is not None:
            who = f"process {self._rank}"
            for rank, text in states.items():
                if rank not in self.seen or self.seen[rank][0] != text:
                    self.seen[rank] = text, now
        silent = [rank for rank, (_, at) in self.seen.items() if now - at > SILENT_SECONDS]
        if not self._seconds or now - last < self._seconds or self._said == (last, silent):
            return
        self._said = last, silent
        lines = [
            f"warning: {who} has made no progress for {now - last:.0f} s; it is "
            f"{self._clock.activity}, after step {self._clock.step}."
        ]
        if len(self.seen) > 1:
            lines += self._about_silent(silent, now) or self._about_late()
        lines.append("The stacks of its threads:\n")
        os.write(2, "\n".join(lines).encode())
        sys.stderr.flush()
        faulthandler.dump_traceback(2, all_threads=True)  # a thread that hangs cannot print

    def _about_silent(self, silent: list[int], now: float) -> list[str]:
        """Returns a sentence about each process that does not respond."""
        lines = []
        for rank in sorted(silent):
            text, at = self.seen[rank]
            lines.append(
                f"Process {rank} does not respond since {now - at:.0f} s; it was {described(text)}."
            )
        return lines

    def _about_late(self) -> list[str]:
        """Returns a sentence about each process that has done less than another one."""
        counts = {rank: _parsed(text).get("count", 0) for rank, (text, _) in self.seen.items()}
        lines = []
        for rank, count in sorted(counts.items()):
            if count < max(counts.values()):
                where = described(self.seen[rank][0])
                lines.append(f"Process {rank} has not arrived: it is {where}.")
        return lines or ["All processes are at the same point of the program."]


class HostWatch:
    """Watches the hosts of a run, and tells them why this host ends; `watching` makes one.

    `stall_seconds` are the seconds without progress after which this process says so; 0: never.
    `at_end` is what `leave` calls, the last one first, before it ends in the middle of its work.
    """

    any = staticmethod(any_host)

    def __init__(self, clock: Clock, stall_seconds: float = 0):
        self._clock = clock
        self._stall = StallWatch(clock, stall_seconds, jax.process_index())
        self.over = threading.Event()
        self._announced_by = None
        self.at_end: list[Callable[[BaseException], object]] = []
        # Whether an error of this host still ends the other hosts.
        self.is_watching = jax.process_count() > 1
        if self.is_watching or stall_seconds:
            watch = self._watch if self.is_watching else self._watch_alone
            threading.Thread(target=watch, daemon=True).start()

    def _watch_alone(self) -> None:
        while not self.over.wait(POLL_SECONDS):
            self._stall.check()

    def end(self, error: BaseException) -> None:
        """Ends all hosts by `error`, of a thread of this one, whose main thread may wait for them.

        Does nothing for a single process.
        """
        if self.announce_error(error):
            self.leave(error)
            _end(self, error)

    def leave(self, reason: BaseException) -> None:
        """Calls `at_end`, for at most `GRACE_SECONDS`, because a bucket may not answer."""

        def call() -> None:
            for action in reversed(self.at_end):
                with contextlib.suppress(Exception):
                    action(reason)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(GRACE_SECONDS)

    def announce(self, message: str) -> None:
        """Tells the other hosts by `message` why this host ends, which makes them end, too.

        Only the message `_FINISHED` does not: this host has finished, or has agreed with the other
        hosts to stop, and the other hosts end by themselves.
        """
        if self.is_watching:
            self._announced_by = threading.get_ident()
            self.over.set()
            self.is_watching = message != _FINISHED
            with contextlib.suppress(Exception):  # the service has ended, and so have the others
                coordination_client().key_value_set(
                    f"{_FOLDER}/ended/{jax.process_index()}", message, allow_overwrite=True
                )

    def stay(self, *, is_stop: bool) -> None:
        """Waits, on the first host, until the others have read the message from this process."""
        if self.is_watching and jax.process_index() == 0:
            time.sleep(BEAT_SECONDS + 2 + (0 if is_stop else GRACE_SECONDS))

    def announce_error(self, error: BaseException) -> bool:
        """Tells the other hosts that this host ends with an error; returns whether that ends them.

        Call this before any operation that waits for the other hosts, such as finishing the save of
        a checkpoint. The result is False for a single process, or if all hosts have agreed to stop.
        """
        if self.is_watching and self._announced_by not in (None, threading.get_ident()):
            time.sleep(SILENCE_SECONDS)  # a thread has announced a stop and ends the process
        if not self.is_watching or self.over.is_set():
            return self.is_watching
        if _STATUS.search(str(error)):
            # Probably another host has failed. The thread of `_watch` finds out which one.
            time.sleep(SILENCE_SECONDS + 2 * (BEAT_SECONDS + GRACE_SECONDS))
        agreed = isinstance(error, Interrupted) and error.on_all_hosts
        self.announce(_FINISHED if agreed else _line(error) or type(error).__name__)
        if agreed and jax.process_index() == 0:
            time.sleep(BEAT_SECONDS)  # jaxlib aborts the hosts that the first one leaves too early
        return self.is_watching

    def _watch(self) -> None:
        rank = jax.process_index()
        beat = 0
        failed_since: float | None = None
        while not self.over.wait(BEAT_SECONDS):
            beat += 1
            now = time.monotonic()
            try:
                client = coordination_client()
                own = state(self._clock, beat)
                client.key_value_set(f"{_FOLDER}/alive/{rank}", own, allow_overwrite=True)
                ended = _values(client, "ended")
                alive = _values(client, "alive")
                failed_since = None
            except Exception as error:
                failed_since = failed_since or now
                if now - failed_since > GRACE_SECONDS:
                    self._end_with(
                        f"process 0, which coordinates the run, cannot be reached ({_line(error)})"
                    )
                continue
            self._stall.check(dict.fromkeys(range(jax.process_count()), "") | alive)
            self._follow_ended(ended)
            self._end_without_silent(ended)

    def _follow_ended(self, ended: Mapping[int, str]) -> None:
        """Ends this process if another one has ended by an error; {rank: message} of those."""
        for rank, message in ended.items():
            if rank != jax.process_index() and message != _FINISHED:
                is_stop = message.startswith(Interrupted.BEGINNING)
                self._end_with(f"process {rank} ended: {message}", is_stop=is_stop)

    def _end_without_silent(self, ended: Mapping[int, str]) -> None:
        """Ends this process if another one has shown no sign of life for too long."""
        for rank, (text, at) in self._stall.seen.items():
            is_silent = time.monotonic() - at > SILENCE_SECONDS
            if is_silent and rank != jax.process_index() and rank not in ended:
                self._end_with(
                    f"process {rank} has shown no sign of life for {SILENCE_SECONDS:.0f} s: it was "
                    f"killed, is stopped, or has lost its network (it was {described(text)})"
                )

    def _end_with(self, message: str, *, is_stop: bool = False) -> None:
        """If this process has not ended after `GRACE_SECONDS`, prints `message` and ends it.

        It does not wait if the message `is_stop`, of a host that got a signal.
        """
        if not self.over.wait(0 if is_stop else GRACE_SECONDS):
            text = message if is_stop else f"error: {message}"
            text += (
                f". Process {jax.process_index()} ends, too; run the same command again on all "
                "hosts to resume.\n"
            )
            os.write(2, text.encode())
            self.leave(Interrupted(message))
            os._exit(STOPPED if is_stop else 1)


@contextlib.contextmanager
def watching(clock: Clock, stall_seconds: float = 0) -> Iterator[HostWatch]:
    """A context in which all processes of a run end if one of them fails or stops responding.

    An error in the `with` block of one process ends the processes of all hosts, each of the others
    with a message that names the process that failed. The process with the error ends by
    `os._exit`, because a normal exit of jax would wait for the other processes.

    After `stall_seconds` without progress, every process says what it is doing and which processes
    are behind; 0: this is not watched.
    """
    watch = HostWatch(clock, stall_seconds)
    try:
        yield watch
        watch.announce(_FINISHED)
    except BaseException as error:
        if watch.announce_error(error):
            _end(watch, error)
        raise
    finally:
        watch.over.set()


def _end(watch: HostWatch, error: BaseException) -> None:
    known = isinstance(error, ValueError | OSError | ImportError | KeyboardInterrupt)
    if not known or os.environ.get("BERTJAX_TRACEBACK"):
        traceback.print_exc()
    sys.stdout.flush()
    is_stop = isinstance(error, Interrupted)
    text = f"error: {error}"
    if is_stop:
        text = f"{error}; run the same command again to resume"
    print(text, file=sys.stderr, flush=True)
    watch.stay(is_stop=is_stop)
    os._exit(STOPPED if is_stop else 1)


def _values(client: Any, kind: str) -> dict[int, str]:
    """Returns {rank: text} of the texts of a `kind` that hosts wrote to the key-value store.

    For "alive", it is `state`; for "ended", the message to `announce`.
    """
    try:
        pairs = client.key_value_dir_get(f"{_FOLDER}/{kind}/")
    except Exception as error:
        if "NOT_FOUND" in str(error):
            return {}
        raise
    return {int(key.rpartition("/")[2]): value for key, value in pairs}


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
