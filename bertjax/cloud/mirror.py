"""Keeps a folder in a gs:// or s3:// bucket equal to a local folder in which a run writes files."""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bertjax.base.addresses import file_system, listed, naming_bucket_errors, repeated
from bertjax.base.checksums import CHECKSUMS, TEMPORARY
from bertjax.base.files import cache_folder, read_json_or_empty, unused, write_json
from bertjax.base.workdir_files import CHECKPOINTS, DELETED
from bertjax.cloud.copies import download

UPLOAD_SECONDS = 10.0
# A file up to this size, in bytes, is read before it is uploaded, since it may grow meanwhile.
READ_WHOLE = 1 << 24
# The list of the files that the bucket holds, in the local folder.
LIST_FILE = ".uploaded.json"
# A folder is incomplete without these files: they are uploaded last, and removed first.
MODEL_FILE = "config.json"
LAST_FILES = (CHECKSUMS, MODEL_FILE)
_UNFINISHED = (".tmp", ".part", ".lock", ".heartbeat", ".writing", "-journal")


def mirror_folder(address: str, rank: int = 0) -> Path:
    """Returns the local folder, in the user's cache, of the mirror of the folder `address`.

    Processes of one run, of index `rank`, may share a cache, so they have different folders.
    """
    scheme, _, rest = os.fspath(address).rstrip("/").partition("://")
    folder = cache_folder() / "workdirs" / scheme / rest
    if rank:
        return folder.with_name(f"{folder.name}.process-{rank}")
    return folder


class Mirror:
    """Uploads the new and changed files of a local folder to a folder in a bucket.

    A folder with a config.json, such as a model, is visible to readers of the bucket when all of
    its files are there, because config.json is uploaded last, and is removed before other files of
    its folder change.

    Args:
        without: names of subfolders that are not mirrored.
        check: called before each upload; it raises an error if the bucket must not be written,
            because another run has taken its lock.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        *,
        without: Sequence[str] = (),
        check: Callable[[], None] = lambda: None,
    ):
        self.folder = folder
        self.address = address.rstrip("/")
        self._without = without
        self._check = check
        # {name of a file in the bucket: [size, modification time] of the local file}
        self._sent: dict[str, list[int]] = {}
        self._busy = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def pull(self) -> None:
        """Makes the local folder equal to the bucket.

        Local changes that were never uploaded, because the network failed, are kept in a folder
        beside it, which is named in a message. An OSError is raised if the bucket cannot be read.
        """
        self._set_unsent_aside()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with naming_bucket_errors(self.address):
            try:
                system, files = listed(self.address)
            except FileNotFoundError:
                return  # a new folder
            names = {file.name for file in files}
            for file in files:
                if not self._is_mirrored(file.name):
                    continue
                local = self.folder / file.name
                if _is_incomplete(file.name, names):
                    self._sent[file.name] = [0, 0]  # the next upload removes it
                    continue
                local.parent.mkdir(parents=True, exist_ok=True)
                download(system, file, local, lambda _: None)
                self._sent[file.name] = _state_of(local)
        write_json(self.folder / LIST_FILE, self._sent)

    def forget_bucket(self) -> None:
        """Takes all files in the bucket for outdated, so that `sync` replaces or removes them."""
        with naming_bucket_errors(self.address), contextlib.suppress(FileNotFoundError):
            _, files = listed(self.address)
            self._sent = {file.name: [0, 0] for file in files if self._is_mirrored(file.name)}

    def start(self) -> None:
        """Starts to upload changes in the background, every `UPLOAD_SECONDS`."""
        self._thread = threading.Thread(target=self._upload_until_ended, daemon=True)
        self._thread.start()

    def sync(self) -> None:
        """Uploads all changes, and removes from the bucket what is no longer in the local folder.

        Raises Locked if another run has the lock of the bucket, or OSError.
        """
        with self._busy, naming_bucket_errors(self.address, "written"):
            self._check()
            present = dict(self._local_files())
            changed = {name for name, state in present.items() if self._sent.get(name) != state}
            gone = self._sent.keys() - present.keys()
            for folder in {Path(name).parent for name in changed | gone}:
                name = (folder / MODEL_FILE).as_posix()
                if name in self._sent and name in present:
                    self._remove(name)
                    changed.add(name)
            for name in sorted(changed, key=_order):
                self._upload(name)
            for name in sorted(gone, key=_order, reverse=True):
                self._remove(name)
            if changed or gone:
                write_json(self.folder / LIST_FILE, self._sent)

    def close(self) -> None:
        """Uploads the last changes and ends the uploads in the background; errors as `sync`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.sync()

    def _set_unsent_aside(self) -> None:
        if not (self.folder / LIST_FILE).is_file():
            return
        sent = read_json_or_empty(self.folder / LIST_FILE)
        # Files whose names begin with a dot are rewritten all the time.
        new = [name for name, state in self._local_files() if sent.get(name) != state]
        unsent = [name for name in new if not name.startswith(".")]
        if unsent:
            target = unused(self.folder.with_name(f"{self.folder.name}.unsent"))
            for name in unsent:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).rename(target / name)
            print(
                f"{len(unsent)} files of an earlier process, such as {unsent[0]}, were never "
                f"uploaded to {self.address}; they are kept in {target}.",
                flush=True,
            )

    def _is_mirrored(self, name: str) -> bool:
        parts = Path(name).parts
        if not parts or parts[0] in self._without or parts[:2] == (CHECKPOINTS, DELETED):
            return False
        for part in parts:
            if part.endswith(_UNFINISHED) or TEMPORARY in part or part == LIST_FILE:
                return False
        return True

    def _local_files(self) -> Iterator[tuple[str, list[int]]]:
        """Yields (name, [size, modification time]) of each file of the local folder."""
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                if self._is_mirrored(name) and path.is_file():
                    yield name, _state_of(path)

    def _upload(self, name: str) -> None:
        local = self.folder / name
        system, target = file_system(f"{self.address}/{name}")
        try:
            state = _state_of(local)
            if state[0] <= READ_WHOLE:
                content = local.read_bytes()
                repeated(lambda: system.pipe_file(target, content), target, "written")
            else:
                repeated(lambda: system.put_file(str(local), target), target, "written")
        except FileNotFoundError:
            if local.exists():  # it is the bucket that does not exist
                raise OSError(
                    f"{self.address} cannot be written, because there is no such bucket: create "
                    "it, or check its name."
                ) from None
            return  # replaced meanwhile; the next call uploads what has replaced it
        self._sent[name] = state

    def _remove(self, name: str) -> None:
        system, target = file_system(f"{self.address}/{name}")
        with contextlib.suppress(FileNotFoundError):
            repeated(lambda: system.rm_file(target), target, "removed")
        self._sent.pop(name, None)

    def _upload_until_ended(self) -> None:
        while not self._ended.wait(UPLOAD_SECONDS):
            try:
                self.sync()
            except Exception as error:  # the next upload may succeed, and a checkpoint waits for it
                print(f"warning: {error}", flush=True)


def upload(folder: Path, address: str) -> None:
    """Makes the folder `address` in a bucket equal to a local folder."""
    mirror = Mirror(folder, address)
    mirror.forget_bucket()
    mirror.sync()
    (folder / LIST_FILE).unlink()


def _order(name: str) -> tuple[bool, bool, str]:
    """Sorts files for upload: a checkpoint after the metrics up to it, and last files last."""
    path = Path(name)
    return CHECKPOINTS in path.parts, path.name in LAST_FILES, name


def _is_incomplete(name: str, names: set[str]) -> bool:
    """Whether a file is in a checkpoint (a folder with a number) that lacks checksums.json."""
    for folder in Path(name).parents:
        if folder.name.isdigit():
            return (folder / CHECKSUMS).as_posix() not in names
    return False


def _state_of(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
