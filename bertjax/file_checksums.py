"""The file `checksums.json`: the size and CRC-32 of each file of a folder, to detect damage.

Checkpoints and exported models contain a `checksums.json`. The checksums are written before the
folder gets its final name, and compared with the files before the files are used. In a bucket, the
checksums are those that the bucket lists, so that no file is read for them.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path

from bertjax.cloud.copies import listed
from bertjax.files import is_remote, read_json, write_json

CHECKSUMS = "checksums.json"
_CHUNK_BYTES = 1 << 24


def write_checksums(folder: Path, without: Iterable[str] = ()) -> None:
    """Writes `checksums.json` for all files below a folder except the files named in `without`.

    Raises:
        OSError: a file cannot be read, or the disk is full.
    """
    left_out = {*without, CHECKSUMS}
    if is_remote(folder):
        entries = {k: v for k, v in _entries_in_bucket(folder).items() if k not in left_out}
    else:
        files = (path for path in folder.rglob("*") if path.is_file())
        names = sorted(path.relative_to(folder).as_posix() for path in files)
        entries = {name: _size_and_crc(folder / name) for name in names if name not in left_out}
    write_json(folder / CHECKSUMS, entries)


def _entries_in_bucket(folder: Path) -> dict[str, list[int | str]]:
    """Returns {name: [size, MD5]} of the files in a folder of a bucket, as its list says.

    An MD5 that the list does not hold is "".
    """
    _, files = listed(str(folder))
    return {file.name: [file.size, file.md5 or ""] for file in files}


def _size_and_crc(path: Path) -> list[int]:
    crc = size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return [size, crc]


def find_damage(folder: Path) -> str | None:
    """Compares the files of a folder with its `checksums.json`.

    Returns:
        A message that names the first damaged file and the damage; None if no file is damaged.

    Raises:
        FileNotFoundError: the folder has no `checksums.json`.
    """
    try:
        expected = read_json(folder / CHECKSUMS)
    except ValueError as error:
        return str(error)
    if not expected:
        return f"{CHECKSUMS} is empty"
    in_bucket = _entries_in_bucket(folder) if is_remote(folder) else None
    for name, entry in expected.items():
        if not isinstance(entry, list) or len(entry) != 2:
            return f"{CHECKSUMS} has no size and CRC-32 of {name}"
        if name not in in_bucket if in_bucket is not None else not (folder / name).is_file():
            return f"{name} is missing"
        if in_bucket is not None:
            found = in_bucket[name]
        elif isinstance(entry[1], str):  # a local copy; the checksum is one that a bucket lists
            found = [(folder / name).stat().st_size, entry[1]]
        else:
            found = _size_and_crc(folder / name)
        if found[0] != entry[0]:
            return f"{name} has {found[0]:,} bytes instead of {entry[0]:,}"
        if found[1] != entry[1]:
            return f"{name} has another checksum than when it was written"
    return None
