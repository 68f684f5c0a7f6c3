"""Checksums of the shards of prepared data, which are verified once per machine.

`metadata.json` holds the size and SHA-256 of each shard. A file in the user's cache folder lists
the verified shards with their size, modification time and SHA-256, so that only the first run on a
machine reads all shards.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bertjax.base.files import cache_folder, is_remote, read_json_or_empty, write_bytes
from bertjax.base.lock import waiting_lock
from bertjax.base.progress import BYTES, progress
from bertjax.data.metadata import METADATA_FILE, Metadata, Shard

# Number of threads: hashlib releases the GIL, and more threads seldom read a disk faster.
THREADS = 4


class Verification(NamedTuple):
    """Result of `verify_shards`: the number of shards that were read, and a warning or ""."""

    shards: int
    note: str


class Remembered:
    """The list of the verified shards of a directory, stored in the user's cache folder.

    A shard counts as verified as long as its size, its modification time and its SHA-256 in
    `metadata.json` are still as listed. Without access to the cache folder, every process
    verifies the shards itself.
    """

    def __init__(self, directory: str | Path):
        self._directory = Path(directory).resolve()
        name = hashlib.sha256(os.fsencode(self._directory)).hexdigest()[:32]
        try:
            folder = cache_folder()
        except OSError:  # a user without a folder
            folder = Path(os.devnull)
        self._path = folder / "verified" / f"{name}.json"
        self._known = self._read()

    def _read(self) -> dict[str, list]:
        known = read_json_or_empty(self._path).get("shards")
        return known if isinstance(known, dict) else {}

    def _mark(self, shard: Shard) -> list | None:
        try:
            status = (self._directory / shard.file).stat()
        except OSError:
            return None
        return [status.st_size, status.st_mtime_ns, shard.sha256]

    def __contains__(self, shard: Shard) -> bool:
        mark = self._mark(shard)
        return mark is not None and self._known.get(shard.file) == mark

    def add(self, shards: Iterable[Shard]) -> None:
        """Adds `shards` to the list of verified shards, and saves the list."""
        marks = {shard.file: mark for shard in shards if (mark := self._mark(shard)) is not None}
        if not marks:
            return
        # Other processes may have added shards since this one read the file.
        self._known = self._read() | self._known | marks
        content = {"directory": str(self._directory), "shards": self._known}
        with contextlib.suppress(OSError, ValueError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self._path, json.dumps(content).encode(), unique=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A `with` block of one process at a time; reads the list from disk on entry."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        with waiting_lock(self._path.with_suffix(".lock")):
            self._known = self._read()
            yield


def checksum(path: str | Path, advance: Callable[[int], None] = lambda count: None) -> str:
    """Returns a local file's SHA-256 in hex; `advance` gets the number of bytes of each block."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def describe(path: Path, records: int) -> Shard:
    """Returns the `Shard` that describes the file `path` of `records` records."""
    return Shard(file=path.name, records=records, size=path.stat().st_size, sha256=checksum(path))


def is_intact(
    directory: str | Path,
    shard: Shard,
    remembered: Remembered | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> bool:
    """Returns whether the file of `shard` in `directory` has the size and SHA-256 in `shard`.

    Returns True without reading the file if `shard` has no SHA-256 or is in `remembered`.
    """
    if shard.sha256 is None or (remembered is not None and shard in remembered):
        return True
    path = Path(directory) / shard.file
    try:
        return path.stat().st_size == shard.size and checksum(path, advance) == shard.sha256
    except OSError:
        return False


def verify_shards(
    directory: str | Path, metadata: Metadata, lengths: Collection[int] | None = None
) -> Verification:
    """Compares the shards of the maximum `lengths`, or all, with `metadata`.

    Shards that were verified on this machine before are not read, nor are shards in a bucket, which
    has checksums of its own. Raises ValueError, which names the first five, if shards are damaged
    or missing.
    """
    shards = metadata.shards(lengths)
    if is_remote(directory):
        return Verification(0, "")
    note = ""
    if any(shard.sha256 is None for shard in shards):
        note = (
            f"{directory} was prepared by an older version, without checksums of its shards: "
            "damage is only noticed when a row is read. Prepare the data again to have checksums."
        )
        shards = [shard for shard in shards if shard.sha256 is not None]
    remembered = Remembered(directory)
    if all(shard in remembered for shard in shards):
        return Verification(0, note)
    with remembered.alone():
        todo = [shard for shard in shards if shard not in remembered]
        size = sum(shard.size or 0 for shard in todo)
        what = f"verifying {len(todo)} shards of {directory}, once on this machine"
        with progress(what, size, BYTES) as state, ThreadPoolExecutor(THREADS) as pool:
            check_shard = functools.partial(is_intact, directory, advance=state.advance)
            results = list(pool.map(check_shard, todo))
        intact = list(itertools.compress(todo, results))
        remembered.add(intact)
    if len(intact) < len(todo):
        damaged = [shard.file for shard in todo if shard not in intact]
        raise ValueError(
            f"{len(damaged)} of {len(shards)} shards of {directory} are missing, or their size or "
            f"SHA-256 differs from that in {METADATA_FILE}: {damaged[:5]}. Run the prepare command "
            "again, which writes these shards again."
        )
    return Verification(len(todo), note)
