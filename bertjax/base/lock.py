"""A lock file that keeps a second process from writing to the same file or folder.

`filelock` locks it. On file systems that support `flock`, a lock is released as soon as the process
that holds it ends, even if the process is killed. On others, such as some NFS mounts, the lock is a
lease: a file that the process touches every few seconds, and that another process takes over if it
has not been touched for a minute.
"""

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, SoftFileLease, Timeout

from bertjax.base.progress import waiting

# Of a lease: the seconds between two touches, and the seconds without one after which it is stale.
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
POLL_SECONDS = 0.5
# How `flock` fails on file systems without locks.
_NOT_SUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@contextlib.contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """A `with` block that one process of this machine at a time can enter; the others wait.

    The lock file `path` remains. Where files cannot be locked or written, several processes enter
    the block at the same time.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError), waiting(f"another process that has locked {path}"):
            stack.enter_context(FileLock(path, fallback_to_soft=False))
        yield


class Locked(ValueError):
    """Raised if another process holds the `Lock` of the file or folder that is to be written.

    The message names the file or folder and, if known, the other process and its host.
    """


class Lock:
    """A lock that gives one process the exclusive use of a file or folder.

    A process holds the lock from `take` to `release`, or until the process ends or the `Lock`
    object is deleted. A process whose lease another one has taken over, as after a suspension of
    its machine, is ended, since it must write no longer.

    Args:
        path: the lock file, whose folder must exist; a lease is the file `path` + ".heartbeat".
        place: what the error message calls the locked file or folder, such as "--output data".
        what: what the error message calls the process that holds the lock, such as "run".
        remedy: the advice at the end of the error message, such as "wait until it ends".
    """

    def __init__(self, path: str | Path, *, place: str, what: str, remedy: str):
        self._lock: BaseFileLock | None = None
        self._path, self._place, self._what, self._remedy = Path(path), place, what, remedy

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock is not None

    def take(self, *, wait: bool = True) -> None:
        """Takes the lock.

        If a lease was touched less than a minute ago, `wait` decides: True waits until it is
        touched again (and raises Locked) or is stale (and takes it); False raises Locked at once.

        Raises:
            Locked: another process holds the lock.
            ValueError: another program wrote the lock file.
            OSError: the lock file cannot be created: no write permission, a full or read-only disk.
        """
        content = b""
        with contextlib.suppress(OSError):  # filelock refuses a link
            content = content if self._path.is_symlink() else self._path.read_bytes()
        if content and not content.startswith(b"pid="):
            raise ValueError(
                f"{self._path}, by which {self._place} would be locked, is a file of another "
                "program: rename it, or choose another name."
            )
        options: dict[str, Any] = {"thread_local": False, "timeout": 0}
        try:
            self._acquire(FileLock(self._path, fallback_to_soft=False, **options), wait=False)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            self._path.unlink(missing_ok=True)
            lease = SoftFileLease(
                self._path.with_name(f"{self._path.name}.heartbeat"),
                lease_duration=STALE_SECONDS,
                heartbeat_interval=HEARTBEAT_SECONDS,
                on_compromise=self._end_process,
                **options,
            )
            self._acquire(lease, wait)
        else:
            with contextlib.suppress(OSError):  # on a full disk, the lock file remains empty
                # filelock's own format of a lease.
                self._path.write_text(f"pid={os.getpid()}\nhost={socket.gethostname()}\n")

    def _acquire(self, lock: BaseFileLock, wait: bool) -> None:
        path, seen = Path(lock.lock_file), None
        while True:
            path.parent.stat()  # filelock would create it
            with contextlib.suppress(Timeout):
                lock.acquire()
                self._lock, self._file = lock, path.stat()
                return
            try:
                touched, content = path.stat().st_mtime_ns, path.read_text(errors="replace")
            except FileNotFoundError:
                continue  # it has just been released
            if not wait or seen not in (None, touched):
                owner = dict(line.split("=", 1) for line in content.splitlines() if "=" in line)
                who = "a process that has just started"
                if "pid" in owner and "host" in owner:
                    who = f"process {owner['pid']} on {owner['host']}"
                raise Locked(
                    f"{self._place} is being written by another {self._what} ({who}): "
                    f"{self._remedy}."
                )
            seen = touched
            time.sleep(POLL_SECONDS)

    def _end_process(self, compromise: Any) -> None:
        print(
            f"{self._place} is no longer locked by this {self._what} ({compromise.reason}), so "
            "that another one may write there: this one ends.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    def release(self) -> None:
        """Releases the lock and deletes the lock file; does nothing if the lock is not held."""
        lock, self._lock = self._lock, None
        if isinstance(lock, FileLock):
            # If the own lock file was removed, `path` may belong to another process. It is removed
            # while it is locked; a process that locks the removed file tries again.
            with contextlib.suppress(OSError):
                if os.path.samestat(self._path.stat(), self._file):
                    self._path.unlink()
        if lock is not None:
            lock.release()

    def __del__(self) -> None:
        if FileLock is not None:  # None while Python shuts down, when the system releases the lock
            self.release()
