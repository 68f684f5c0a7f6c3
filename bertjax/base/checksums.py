"""The file `checksums.json`: the size and CRC-32 of each file of a folder, to detect damage.

Checkpoints and exported models contain a `checksums.json`. It is written before the folder gets its
final name, and compared with the files before they are used. In a bucket, the checksums are the
ones that the bucket lists, so that no file is read for them.
"""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertjax.base.addresses import listed
from bertjax.base.files import is_remote, read_json, write_json
from bertjax.base.workdir_files import CHECKPOINTS

CHECKSUMS = "checksums.json"
_CHUNK_BYTES = 1 << 24


def write_checksums(folder: Path, without: Iterable[str] = ()) -> None:
    """Writes `checksums.json` for all files below a folder except the files named in `without`."""
    left_out = {*without, CHECKSUMS}
    if is_remote(folder):
        entries = _entries_in_bucket(folder)
        for name in left_out & entries.keys():
            del entries[name]
    else:
        files = (path for path in folder.rglob("*") if path.is_file())
        names = {path.relative_to(folder).as_posix() for path in files}
        entries = {name: _size_and_crc(folder / name) for name in sorted(names - left_out)}
    write_json(folder / CHECKSUMS, entries)


def _entries_in_bucket(folder: Path) -> dict[str, list[int | str]]:
    _, files = listed(str(folder))
    return {file.name: [file.size, file.md5 or ""] for file in files}


def _size_and_crc(path: Path) -> list[int]:
    crc = size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
    return [size, crc]


def is_as_written(path: Path, entry: Any) -> bool:
    """Returns whether a local file has the size and CRC-32 of its entry in `checksums.json`."""
    return path.is_file() and entry == _size_and_crc(path)


def find_damage(folder: Path, without: Iterable[str] = ()) -> str | None:
    """Returns a message on the first file that differs from `checksums.json`, or None.

    Local files are compared by size and CRC-32 (copies from a bucket: by size), those in a bucket
    by size and the checksum that it lists. Files named in `without` may differ. Raises
    FileNotFoundError if the folder has no `checksums.json`.
    """
    try:
        expected = read_json(folder / CHECKSUMS)
    except ValueError as error:
        return str(error)
    if not expected:
        return f"{CHECKSUMS} is empty"
    in_bucket = None
    if is_remote(folder):
        in_bucket = _entries_in_bucket(folder)
    for name, entry in expected.items():
        if name in without:
            continue
        if not isinstance(entry, list) or len(entry) != 2:
            return f"{CHECKSUMS} has no size and CRC-32 of {name}"
        size, checksum = entry
        if in_bucket is None:
            present = _local_entry(folder / name, checksum)
        else:
            present = in_bucket.get(name)
        if present is None:
            return f"{name} is missing"
        if present[0] != size:
            return f"{name} has {present[0]:,} bytes instead of {size:,}"
        if present[1] != checksum:
            return f"{name} has another checksum than when it was written"
    return None


def _local_entry(path: Path, checksum: Any) -> list[Any] | None:
    if not path.is_file():
        return None
    if isinstance(checksum, str):  # of a local copy; it is one that a bucket lists
        return [path.stat().st_size, checksum]
    return _size_and_crc(path)


# Orbax writes these files after the checksums. They hold times and types, but no arrays.
_COMMITTED = "commit_success.txt"
WRITTEN_LAST = ("_CHECKPOINT_METADATA", _COMMITTED)
TEMPORARY = "orbax-checkpoint-tmp"


def steps_in(directory: Path) -> list[int]:
    """Returns the training steps of the complete checkpoints in `directory`, in ascending order."""
    return sorted(int(folder.name) for folder in _folders(directory) if _is_complete(folder))


def unfinished(directory: Path) -> list[Path]:
    """Returns the folders in `directory` of checkpoints whose save is in progress or was killed."""
    if is_remote(directory):
        return [folder for folder in _folders(directory) if not _is_complete(folder)]
    return [*directory.glob(f"*{TEMPORARY}*")]


def _folders(directory: Path) -> list[Path]:
    return [path for path in directory.glob("*") if path.name.isdigit() and path.is_dir()]


def _is_complete(folder: Path) -> bool:
    # In buckets, where folders cannot be renamed, Orbax marks a complete checkpoint by a file.
    return not is_remote(folder) or (folder / _COMMITTED).exists()


def without_older_checkpoints(names: list[str]) -> list[str]:
    """Returns the files of a run's workdir without the files of all but the newest checkpoint."""
    newest = -1
    for name in names:
        if name.endswith(WRITTEN_LAST[0]):
            newest = max(newest, _step_of(name))
    return [name for name in names if _step_of(name) in (-1, newest)]


def _step_of(name: str) -> int:
    """Returns the step of the checkpoint that a file belongs to; -1 if it belongs to none."""
    folder, _, rest = name.partition("/")
    step = rest.partition("/")[0]
    if folder != CHECKPOINTS or not step.isdigit():
        return -1
    return int(step)


def damage_of(folder: Path) -> str | None:
    """Returns a description of the first damaged file of a checkpoint; None if no file is damaged.

    In a checkpoint without `checksums.json`, which an older version of bertjax wrote, only the file
    `progress/metadata` is checked: it must be JSON.
    """
    try:
        if not (folder / CHECKSUMS).exists():
            json.loads((folder / "progress" / "metadata").read_text(encoding="utf-8"))
            return None
        if damage := find_damage(folder):
            return damage
        read_json(folder / WRITTEN_LAST[0])
    except (ValueError, OSError) as error:
        return str(error)
    return None


def damaged_steps(directory: Path) -> dict[int, str]:
    """Returns {step: description of the damage} for the damaged checkpoints in `directory`.

    A checkpoint without `checksums.json` counts as damaged if an earlier checkpoint has this file.
    """
    damaged = {}
    earlier_has_checksums = False
    for step in steps_in(directory):
        folder = directory / str(step)
        damage = damage_of(folder)
        has_checksums = (folder / CHECKSUMS).is_file()
        # The file is written before a folder counts as a checkpoint. One without it has lost it,
        # or an older version wrote it, and then no earlier checkpoint has the file either.
        if damage is None and earlier_has_checksums and not has_checksums:
            damage = f"{CHECKSUMS} is missing"
        if damage is not None:
            damaged[step] = damage
        earlier_has_checksums |= has_checksums
    return damaged
