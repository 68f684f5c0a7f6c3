"""Lock files that keep a second process from writing to the same file or folder; scratch folders.

On a disk, `filelock` locks the file. On file systems that support `flock`, a lock is released as
soon as the process that holds it ends, even if the process is killed. On others, such as some NFS
mounts, the lock is a lease: a file that the process touches every few seconds, and that another
process takes over if it has not been touched for a minute.

In a gs:// or s3:// bucket, where files cannot be locked, the process writes the lock file again
every few seconds. A process that finds the file waits: if the file changes, its process is alive;
if it does not change for a minute, its process is dead and the lock is taken.
"""

import contextlib
import errno
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, SoftFileLease, Timeout

from bertjax.base.addresses import file_system, naming_bucket_errors
from bertjax.base.files import naming_write_errors
from bertjax.base.progress import waiting

# Leases and locks in buckets that are not written for STALE_SECONDS are those of dead processes.
STALE_SECONDS = 60.0
HEARTBEAT_SECONDS = 5.0
POLL_SECONDS = 0.5
BUCKET_BEAT_SECONDS = 10.0
BUCKET_POLL_SECONDS = 2.0
# Two processes that take a lock in a bucket at the same moment read the file again after this time;
# the one that has written it last has the lock.
SETTLE_SECONDS = 2.0
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


class _NamedLock:
    """What the messages of a lock say.

    Args:
        path: the lock file, whose folder must exist.
        place: the locked file or folder, such as "--output data".
        what: the process that holds the lock, such as "run".
        remedy: the advice at the end, such as "wait until it ends".
    """

    def __init__(self, path: str | Path, *, place: str, what: str, remedy: str):
        self._path: Any = path
        self._place = place
        self._what = what
        self._remedy = remedy

    def _refused(self, owner: str) -> Locked:
        owner = owner or "a process that has just started"
        return Locked(
            f"{self._place} is being written by another {self._what} ({owner}): {self._remedy}."
        )


class Lock(_NamedLock):
    """A lock that gives one process the exclusive use of a file or folder on a disk.

    A process holds the lock from `take` to `release`, or until the process ends or the `Lock`
    object is deleted. A process whose lease, `path` + ".heartbeat", another one has taken over, as
    after a suspension of its machine, is ended, since it must write no longer.
    """

    _lock: BaseFileLock | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock is not None

    def take(self, *, wait: bool = True) -> None:
        """Takes the lock.

        If a lease was touched less than a minute ago, `wait` decides: True waits until it is
        touched again (and raises Locked) or is stale (and takes it); False raises Locked at once.

        Raises Locked, ValueError if another program wrote the lock file, or OSError if it cannot be
        created.
        """
        path = Path(self._path)
        content = b""
        with contextlib.suppress(OSError):
            if not path.is_symlink():  # filelock refuses a link
                content = path.read_bytes()
        if content and not content.startswith(b"pid="):
            raise ValueError(
                f"{path}, by which {self._place} would be locked, is a file of another program: "
                "rename it, or choose another name."
            )
        options: dict[str, Any] = {"thread_local": False, "timeout": 0}
        try:
            self._acquire(FileLock(path, fallback_to_soft=False, **options), wait=False)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            path.unlink(missing_ok=True)
            lease = SoftFileLease(
                path.with_name(f"{path.name}.heartbeat"),
                lease_duration=STALE_SECONDS,
                heartbeat_interval=HEARTBEAT_SECONDS,
                on_compromise=self._end_process,
                **options,
            )
            self._acquire(lease, wait)
        else:
            with contextlib.suppress(OSError):  # on a full disk, the lock file remains empty
                # filelock's own format of a lease.
                path.write_text(f"pid={os.getpid()}\nhost={socket.gethostname()}\n")

    def _acquire(self, lock: BaseFileLock, wait: bool) -> None:
        path = Path(lock.lock_file)
        seen = None
        while True:
            path.parent.stat()  # filelock would create it
            with contextlib.suppress(Timeout):
                lock.acquire()
                self._file = path.stat()
                self._lock = lock
                return
            try:
                touched = path.stat().st_mtime_ns
                content = path.read_text(errors="replace")
            except FileNotFoundError:
                continue  # it has just been released
            if not wait or seen not in (None, touched):
                owner = dict(line.split("=", 1) for line in content.splitlines() if "=" in line)
                who = ""
                if "pid" in owner and "host" in owner:
                    who = f"process {owner['pid']} on {owner['host']}"
                raise self._refused(who)
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
        lock = self._lock
        self._lock = None
        if isinstance(lock, FileLock):
            # If the own lock file was removed, `path` may belong to another process. It is removed
            # while it is locked; a process that locks the removed file tries again.
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(self._path), self._file):
                    os.unlink(self._path)
        if lock is not None:
            lock.release()

    def __del__(self) -> None:
        if FileLock is not None:  # None while Python shuts down, when the system releases the lock
            self.release()


class BucketLock(_NamedLock):
    """A lock that gives one process the exclusive use of a folder in a bucket.

    A process holds the lock from `take` to `release`, or until a minute after it has ended. `path`
    is the address of the lock file.
    """

    _ended: threading.Event | None = None
    _taken_by = ""
    _beat = 0

    def __init__(self, path: str, **names: str):
        super().__init__(path, **names)
        self._owner = f"process {os.getpid()} on {socket.gethostname()} ({uuid.uuid4().hex[:8]})"
        # A beat and the release exclude each other: a beat that is still being written would
        # otherwise leave the lock file behind.
        self._busy = threading.Lock()

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._ended is not None

    def take(self) -> None:
        """Takes the lock; waits for up to a minute if a process that has ended has left it.

        Raises Locked if another process holds the lock, or OSError if the bucket cannot be used.
        """
        with naming_bucket_errors(self._path, "written"):
            self._wait_for_other()
            self._ended = threading.Event()
            try:
                self._write()
                time.sleep(SETTLE_SECONDS)
                owner, _ = self._read()
                if owner != self._owner:
                    raise self._refused(owner)
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
        if self._taken_by:
            raise self._refused(self._taken_by)

    def release(self) -> None:
        """Releases the lock and deletes the lock file; does nothing if the lock is not held."""
        if self._ended is None:
            return
        with self._busy:
            self._ended.set()
        self._ended = None
        with contextlib.suppress(Exception):  # then the lock ends after a minute
            owner, _ = self._read()
            if owner == self._owner:
                system, path = file_system(self._path)
                system.rm_file(path)

    def _wait_for_other(self) -> None:
        first = self._read()
        owner, _ = first
        if not owner:
            return
        print(
            f"{self._place} has the lock of {owner}: waiting for up to {STALE_SECONDS:.0f} s to "
            f"see whether that {self._what} is alive",
            flush=True,
        )
        deadline = time.monotonic() + STALE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(BUCKET_POLL_SECONDS)
            now = self._read()
            owner, _ = now
            if not owner:
                return
            if now != first:
                raise self._refused(owner)

    def _read(self) -> tuple[str, Any]:
        """Returns the owner of the lock file and the number of its beat; "": there is no file."""
        system, path = file_system(self._path)
        try:
            content = json.loads(system.cat_file(path))
            return str(content["owner"]), content["beat"]
        except FileNotFoundError:
            return "", None
        except (ValueError, KeyError, TypeError):
            return "an unknown process", None

    def _write(self) -> None:
        self._beat += 1
        system, path = file_system(self._path)
        content = {"owner": self._owner, "beat": self._beat}
        system.pipe_file(path, json.dumps(content).encode())

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(BUCKET_BEAT_SECONDS):
            with contextlib.suppress(Exception):  # the next beat may reach the bucket
                owner, _ = self._read()
                if owner not in ("", self._owner):
                    self._taken_by = owner
                    return
                with self._busy:
                    if not ended.is_set():
                        self._write()


SCRATCH_PREFIX = "bertjax-scratch-"
SCRATCH_LOCK = "owner.lock"
# A scratch folder without a lock file may belong to a process that has just created it; it is only
# removed at this age.
SECONDS_WITHOUT_LOCK = 3600.0
# New scratch folders to try if other processes remove each one before this process has locked it.
SCRATCH_ATTEMPTS = 100


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a new folder for temporary files and removes the folder at the end of the block.

    If the process is killed, the user's next call on the same machine removes the folder. Raises
    OSError if it cannot be created in `tempfile.gettempdir()`.
    """
    root = Path(tempfile.gettempdir())
    remove_left_behind(root)
    with naming_write_errors(root):
        folder, lock = _new_locked_folder(root)
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _new_locked_folder(root: Path) -> tuple[Path, Lock]:
    # Another process can mistake the folder for one of a killed process, and remove it, between the
    # creation of the lock file and the moment at which the lock is held. It leaves a new folder
    # without a lock file alone.
    for _ in range(SCRATCH_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=root))
        lock = _lock_of(folder)
        try:
            lock.take()
            return folder, lock
        except (FileNotFoundError, Locked):
            continue
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    raise OSError(
        f"Other processes removed {SCRATCH_ATTEMPTS} new temporary folders in {root} before this "
        "process could lock one. Set the environment variable TMPDIR to a folder that only this "
        "process uses; then run the same command again."
    )


def remove_left_behind(root: Path) -> None:
    """Removes the user's scratch folders in `root` of which no living process holds the lock."""
    for folder in root.glob(f"{SCRATCH_PREFIX}*"):
        with contextlib.suppress(OSError, Locked):
            if _is_ours(folder):
                lock = _lock_of(folder)
                lock.take(wait=False)
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()


def _is_ours(folder: Path) -> bool:
    status = folder.lstat()
    if folder.is_symlink() or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        return False
    if any(folder.glob(f"{SCRATCH_LOCK}*")):
        return True
    return time.time() - status.st_mtime > SECONDS_WITHOUT_LOCK


def _lock_of(folder: Path) -> Lock:
    return Lock(folder / SCRATCH_LOCK, place=str(folder), what="process", remedy="wait")
