"""A lock file that keeps a second process from writing to the same file or folder.

On file systems that support `flock`, a lock is released as soon as the process that holds the lock
ends, even if the process is killed. On other file systems, such as some NFS mounts, the lock is a
file that the process creates exclusively and touches every few seconds; the process is taken to be
dead if the lock file has not been touched for a minute.
"""

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# Without `flock`: the seconds between two touches of a lock file, and the seconds without a touch
# after which a lock file is stale.
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
POLL_SECONDS = 0.5
# Attempts to create a lock file that other processes remove at the same moment.
ATTEMPTS = 100


@contextlib.contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """A `with` block that one process of this machine at a time can enter; the others wait.

    `path` is the lock file, which remains. Where files cannot be locked or written, several
    processes enter the block at the same time.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("a"))
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Locked(ValueError):
    """Raised if another process holds the `Lock` of the file or folder that is to be written.

    The message names the file or folder and, if known, the other process and its host.
    """


class Lock:
    """A lock that gives one process the exclusive use of a file or folder.

    A process holds the lock from `take` to `release`, or until the process ends or the `Lock`
    object is deleted. A lock may be used as a context manager.

    Args:
        path: the lock file, whose folder must exist. On file systems without `flock`, the lock file
            is `path` with ".heartbeat" appended.
        place: what the error message calls the locked file or folder, such as "--output data".
        what: what the error message calls the process that holds the lock, such as "run".
        remedy: the advice at the end of the error message, such as "wait until it ends".
    """

    def __init__(self, path: str | Path, *, place: str, what: str, remedy: str):
        self._file: IO[bytes] | None = None
        self._ended: threading.Event | None = None
        self._content = ""
        self._path, self._place, self._what, self._remedy = Path(path), place, what, remedy
        self._heartbeat = self._path.with_name(f"{self._path.name}.heartbeat")

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._file is not None or self._ended is not None

    def take(self, *, wait: bool = True) -> None:
        """Takes the lock.

        Args:
            wait: whether to wait, on a file system without `flock`, if a lock file was touched less
                than a minute ago, as a living process does every few seconds. True: wait until the
                file is touched again (then raise Locked) or its last touch is a minute old (then
                take the lock); False: raise Locked at once.

        Raises:
            Locked: another process holds the lock.
            OSError: the lock file cannot be created: no write permission, a full or read-only disk.
        """
        self._content = f"process {os.getpid()} on {socket.gethostname()}"
        if not self._take_flock():
            self._take_heartbeat(wait)

    def _take_flock(self) -> bool:
        """Takes the lock by `flock`; returns False if the file system does not support `flock`.

        Raises:
            Locked: another process holds the lock.
        """
        if fcntl is None:
            return False
        for _ in range(ATTEMPTS):
            file = self._path.open("a+b", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                other = (file.read(200) or b"").decode(errors="replace").strip()
                file.close()
                raise self._locked(other) from None
            except OSError:  # not supported
                file.close()
                self._path.unlink(missing_ok=True)
                return False
            if _is_still_at(file, self._path):
                break
            file.close()  # the process that had the lock has just removed the file
        else:
            raise self._locked("several processes that keep taking and releasing its lock")
        self._file = file
        with contextlib.suppress(OSError):  # on a full disk, the lock file remains empty
            file.truncate(0)
            file.write(self._content.encode())
        return True

    def _take_heartbeat(self, wait: bool) -> None:
        self._content += f" ({uuid.uuid4().hex[:8]})"  # differs from all other lock files
        for _ in range(ATTEMPTS):
            try:
                file = self._heartbeat.open("xb", buffering=0)
            except FileExistsError:
                self._remove_stale(wait)
                continue
            with file, _removed_on_error(self._heartbeat):
                file.write(self._content.encode())
            break
        else:
            raise self._locked("several processes that keep taking and releasing its lock")
        self._ended = threading.Event()
        args = (self._heartbeat, self._ended)
        threading.Thread(target=_touch_until, args=args, daemon=True).start()

    def _remove_stale(self, wait: bool) -> None:
        """Waits until the last touch of the lock file is a minute old, then deletes the lock file.

        If another process deletes the lock file first, this method returns.

        Raises:
            Locked: the lock file was touched again during the wait, so its process is alive; or
                `wait` is False and the last touch was less than a minute ago.
        """
        try:
            seen, other = self._heartbeat.stat().st_mtime_ns, self._read()
            while self._age() < STALE_SECONDS:
                if not wait or self._heartbeat.stat().st_mtime_ns != seen:
                    raise self._locked(other)
                time.sleep(POLL_SECONDS)
            # If several processes wait, one of them renames the file. The content shows whether the
            # renamed file is the stale one or the new lock file of another process.
            taken = self._heartbeat.with_name(f"{self._heartbeat.name}.{uuid.uuid4().hex}")
            self._heartbeat.rename(taken)
            if taken.read_text(encoding="utf-8") != other:
                with contextlib.suppress(FileExistsError):
                    os.link(taken, self._heartbeat)
            taken.unlink()
        except FileNotFoundError:
            return

    def _age(self) -> float:
        """Returns the seconds since the last touch of the lock file, by the file system's clock."""
        probe = self._heartbeat.with_name(f"{self._heartbeat.name}.{uuid.uuid4().hex}")
        try:
            probe.touch()
            now = probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)
        return now - self._heartbeat.stat().st_mtime

    def _read(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return self._heartbeat.read_text(encoding="utf-8")
        return ""

    def _locked(self, other: str) -> Locked:
        who = other or "a process that has just started"
        return Locked(
            f"{self._place} is being written by another {self._what} ({who}): {self._remedy}."
        )

    def release(self) -> None:
        """Releases the lock and deletes the lock file; does nothing if the lock is not held."""
        if self._file is not None:
            # If the own lock file was removed, `path` may be that of another process.
            if _is_still_at(self._file, self._path):
                with contextlib.suppress(OSError):
                    self._path.unlink()  # while it is locked, see `_take_flock`
            self._file.close()
            self._file = None
        if self._ended is not None:
            self._ended.set()
            self._ended = None
            if self._read() == self._content:
                with contextlib.suppress(OSError):
                    self._heartbeat.unlink(missing_ok=True)

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> "Lock":
        self.take()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


@contextlib.contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    """A context that deletes the new lock file `path` if the block raises OSError."""
    try:
        yield
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _is_still_at(file: IO[bytes], path: Path) -> bool:
    """Returns whether `path` still refers to the open `file`, which may have been deleted."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _touch_until(path: Path, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)
