"""A lock for a folder in a gs:// or s3:// bucket, where files cannot be locked.

The lock is a small file in the folder, `run.lock`, which its process writes again every few
seconds. A process that finds the file waits: if the file changes, its process is alive and the
folder is locked; if it does not change for a minute, its process is dead and the lock is taken.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from typing import Any

from bertjax.base.addresses import file_system, naming_bucket_errors
from bertjax.base.lock import Locked

# The seconds between two writes of a lock file, and the seconds without a change after which it is
# stale.
BEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
POLL_SECONDS = 2.0
# Two processes that take a lock at the same moment read the file again after this time; the one
# that has written it last has the lock.
SETTLE_SECONDS = 2.0


class BucketLock:
    """A lock that gives one process the exclusive use of a folder in a bucket.

    A process holds the lock from `take` to `release`, or until a minute after it has ended. `file`
    is the address of the lock file; for the other arguments, see `bertjax.base.lock.Lock`.
    """

    def __init__(self, file: str, *, place: str, what: str, remedy: str):
        self._file, self._place, self._what, self._remedy = file, place, what, remedy
        self._owner = f"process {os.getpid()} on {socket.gethostname()} ({uuid.uuid4().hex[:8]})"
        self._beat = 0
        # A beat and the release exclude each other: a beat that is still being written would
        # otherwise leave the lock file behind.
        self._busy = threading.Lock()
        self._ended: threading.Event | None = None
        self._taken_by: str | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._ended is not None

    def take(self) -> None:
        """Takes the lock; waits for up to a minute if a process that has ended has left it.

        Raises Locked if another process holds the lock, or OSError if the bucket cannot be used.
        """
        with naming_bucket_errors(self._file, "written"):
            self._wait_for_other()
            self._ended = threading.Event()
            try:
                self._write()
                time.sleep(SETTLE_SECONDS)
                other = self._read()
                if other is None or other["owner"] != self._owner:
                    who = other["owner"] if other else "a process that has just started"
                    raise self._locked(who)
            except BaseException as error:
                self.release()
                if not isinstance(error, FileNotFoundError):
                    raise
                raise OSError(
                    f"{self._place} cannot be written ({error}): check the name of the bucket, or "
                    "create it."
                ) from error
        threading.Thread(target=self._renew, args=(self._ended,), daemon=True).start()

    def check(self) -> None:
        """Raises Locked if another process has taken the lock, as after a suspension."""
        if self._taken_by is not None:
            raise self._locked(self._taken_by)

    def release(self) -> None:
        """Releases the lock and deletes the lock file; does nothing if the lock is not held."""
        if self._ended is None:
            return
        with self._busy:
            self._ended.set()
        self._ended = None
        with contextlib.suppress(Exception):  # then the lock ends after a minute
            other = self._read()
            if other is not None and other["owner"] == self._owner:
                system, path = file_system(self._file)
                system.rm_file(path)

    def _wait_for_other(self) -> None:
        first = self._read()
        if first is None:
            return
        print(
            f"{self._place} has the lock of {first['owner']}: waiting for up to "
            f"{STALE_SECONDS:.0f} s to see whether that {self._what} is alive",
            flush=True,
        )
        deadline = time.monotonic() + STALE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            lock = self._read()
            if lock is None:
                return
            if lock != first:
                raise self._locked(lock["owner"])

    def _locked(self, other: str) -> Locked:
        return Locked(
            f"{self._place} is being written by another {self._what} ({other}): {self._remedy}."
        )

    def _read(self) -> dict[str, Any] | None:
        system, path = file_system(self._file)
        try:
            content = json.loads(system.cat_file(path))
            return {"owner": str(content["owner"]), "beat": content["beat"]}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return {"owner": "an unknown process", "beat": None}

    def _write(self) -> None:
        self._beat += 1
        system, path = file_system(self._file)
        content = {"owner": self._owner, "beat": self._beat}
        system.pipe_file(path, json.dumps(content).encode())

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):  # the next beat may reach the bucket
                other = self._read()
                if other is not None and other["owner"] != self._owner:
                    self._taken_by = other["owner"]
                    return
                with self._busy:
                    if not ended.is_set():
                        self._write()
