"""Monitors the hosts of a run: if one host fails, all hosts end within about a minute.

The other hosts print the error of the host that failed. Without this module, they would wait in a
collective operation for many minutes, and then end with a C++ stack trace. Hosts exchange messages
through the key-value store of `jax.distributed`.
"""

import contextlib
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax

from bertjax.base.signals import STOPPED, Interrupted
from bertjax.devices import stall_watch
from bertjax.devices.activity import Clock
from bertjax.devices.hosts import coordination_client

# The interval at which every host writes a sign of life.
BEAT_SECONDS = 3.0
# A host without a sign of life for this time was killed, is stopped, or has lost its network.
SILENCE_SECONDS = 40.0
# The time that a host which learns of another host's error has to end by itself with its own error.
GRACE_SECONDS = 5.0
# How error messages of XLA and its collective operations begin; jax raises them as several types.
_STATUS = re.compile(r"\b(UNKNOWN|INTERNAL|ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|CANCELLED): ")
_FOLDER = "bertjax"
_FINISHED = "finished"


class HostWatch:
    """Watches the hosts of a run, and tells them why this host ends; `watching` makes one.

    `stall_seconds` are the seconds without progress after which this process says so; 0: never.
    """

    def __init__(self, clock: Clock, stall_seconds: float = 0):
        self._clock, self._stall_seconds = clock, stall_seconds
        self._over = threading.Event()
        # Whether an error of this host still ends the other hosts.
        self.is_watching = jax.process_count() > 1
        if self.is_watching:
            threading.Thread(target=self._watch, daemon=True).start()

    def announce(self, message: str) -> None:
        """Tells the other hosts by `message` why this host ends, which makes them end, too.

        Only the message `_FINISHED` does not: this host has finished, or has agreed with the other
        hosts to stop, and the other hosts end by themselves.
        """
        if self.is_watching:
            self._over.set()
            self.is_watching = message != _FINISHED
            try:
                coordination_client().key_value_set(
                    f"{_FOLDER}/ended/{jax.process_index()}", message, allow_overwrite=True
                )
            except Exception:  # the coordination service has ended, and so have the others
                pass

    def announce_error(self, error: BaseException) -> bool:
        """Tells the other hosts that this host ends with an error; returns whether that ends them.

        Call this before any operation that waits for the other hosts, such as finishing the save of
        a checkpoint. The result is False for a single process, or if all hosts have agreed to stop.
        """
        if not self.is_watching or self._over.is_set():
            return self.is_watching
        if _STATUS.search(str(error)):
            # Probably another host has failed. The thread of `_watch` finds out which one.
            time.sleep(SILENCE_SECONDS + 2 * (BEAT_SECONDS + GRACE_SECONDS))
        agreed = isinstance(error, Interrupted) and error.on_all_hosts
        self.announce(_FINISHED if agreed else _line(error) or type(error).__name__)
        return self.is_watching

    def _watch(self) -> None:
        rank, count = jax.process_index(), jax.process_count()
        stall = stall_watch.StallWatch(self._clock, self._stall_seconds, rank)
        seen: dict[int, tuple[str, float]] = {}
        beat = 0
        failed_since: float | None = None
        while not self._over.wait(BEAT_SECONDS):
            beat += 1
            now = time.monotonic()
            try:
                client = coordination_client()
                client.key_value_set(
                    f"{_FOLDER}/alive/{rank}",
                    stall_watch.state(self._clock, beat),
                    allow_overwrite=True,
                )
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
            stall.check(alive)
            for other, message in ended.items():
                if other != rank and message != _FINISHED:
                    self._end_with(f"process {other} ended: {message}")
            for other in range(count):
                if other == rank or other in ended:
                    continue
                value = alive.get(other, "")
                if other not in seen or seen[other][0] != value:
                    seen[other] = (value, now)
                elif now - seen[other][1] > SILENCE_SECONDS:
                    self._end_with(
                        f"process {other} has shown no sign of life for {SILENCE_SECONDS:.0f} s: "
                        "it was killed, is stopped, or has lost its network (it was "
                        f"{stall_watch.described(value)})"
                    )

    def _end_with(self, message: str) -> None:
        """If this process has not ended after `GRACE_SECONDS`, prints `message` and ends it."""
        if not self._over.wait(GRACE_SECONDS):
            _exit_with(message)


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
        with stall_watch.watching(clock, 0 if watch.is_watching else stall_seconds):
            yield watch
    except BaseException as error:
        watch.announce_error(error)
        if watch.is_watching:
            _end(error)
        raise
    watch.announce(_FINISHED)


def _end(error: BaseException) -> None:
    known = isinstance(error, ValueError | OSError | ImportError | KeyboardInterrupt)
    if not known or os.environ.get("BERTJAX_TRACEBACK"):
        traceback.print_exc()
    sys.stdout.flush()
    is_stop = isinstance(error, Interrupted)
    text = f"{error}; run the same command again to resume" if is_stop else f"error: {error}"
    print(text, file=sys.stderr, flush=True)
    if jax.process_index() == 0:  # the others read the message from this process
        time.sleep(BEAT_SECONDS + GRACE_SECONDS + 2)
    os._exit(STOPPED if is_stop else 1)


def _values(client: Any, kind: str) -> dict[int, str]:
    """Returns {rank: text} of the texts of a `kind` that hosts wrote to the key-value store.

    For "alive", it is `stall_watch.state`; for "ended", the message to `announce`.
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


def _exit_with(message: str) -> None:
    os.write(
        2,
        f"error: {message}. Process {jax.process_index()} ends, too; run the same command again "
        "on all hosts to resume.\n".encode(),
    )
    os._exit(1)
