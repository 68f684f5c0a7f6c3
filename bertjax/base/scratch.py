"""Creates temporary folders, and removes the temporary folders of processes that were killed."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bertjax.base.files import naming_write_errors
from bertjax.base.lock import Lock, Locked

PREFIX = "bertjax-scratch-"
LOCK_FILE = "owner.lock"
# A folder without a lock file may belong to a process that has just created the folder; such a
# folder is only removed at this age.
SECONDS_WITHOUT_LOCK = 3600.0
# New folders to try if other processes remove each one before this process has locked it.
ATTEMPTS = 100


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a new folder for temporary files and removes the folder at the end of the block.

    The folder is created in `tempfile.gettempdir()`, which the environment variable TMPDIR sets. If
    the process is killed, the user's next call on the same machine removes the folder. Raises
    OSError if the folder cannot be created.
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
    # creation of the lock file and the moment at which the lock is held.
    for _ in range(ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
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
        f"Other processes removed {ATTEMPTS} new temporary folders in {root} before this process "
        "could lock one. Set the environment variable TMPDIR to a folder that only this process "
        "uses; then run the same command again."
    )


def remove_left_behind(root: Path) -> None:
    """Removes the current user's scratch folders in `root` that no living process uses.

    A process uses a folder as long as it holds the lock on the folder's lock file. A folder without
    a lock file is removed if it has been unchanged for `SECONDS_WITHOUT_LOCK`.
    """
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, Locked):
            if _is_ours(folder):
                lock = _lock_of(folder)
                lock.take(wait=False)
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    if folder.is_symlink() or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        return False
    return any(folder.glob(f"{LOCK_FILE}*")) or time.time() - found.st_mtime > SECONDS_WITHOUT_LOCK


def _lock_of(folder: Path) -> Lock:
    return Lock(folder / LOCK_FILE, place=str(folder), what="process", remedy="wait")
