"""An output file that a later run of the same command continues after a kill or a full disk.

The lines are collected in `OUTPUT.HASH.partial` beside the output, which replaces the output at the
end. The hash identifies everything that determines the lines, so a run continues only its own file,
and one that cannot be continued is removed.
"""

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.files import explaining
from bertjax.lock import Lock


class PartialLines:
    """JSON lines of which a part may be there already.

    Attributes:
        path: the partial file.
        done: the number of lines that an earlier run wrote; a multiple of `unit`.

    Args:
        path: the partial file, which may exist.
        unit: the number of lines that are computed together. Lines after the last whole unit are
            removed, so that the rest is computed as it would have been without the interruption.
    """

    def __init__(self, path: Path, unit: int):
        self.path = path
        self.done, size = _whole_lines(path, unit)
        self._file = path.open("ab")
        self._file.truncate(size)

    def finished(self) -> Iterator[dict[str, Any]]:
        """Yields the lines of the earlier run."""
        with self.path.open("rb") as file:
            for _ in range(self.done):
                yield json.loads(file.readline())

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends a line."""
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _whole_lines(path: Path, unit: int) -> tuple[int, int]:
    """Returns the number of whole lines, rounded down to a multiple of `unit`, and their bytes."""
    lines = size = count = position = 0
    if not path.is_file():
        return 0, 0
    with path.open("rb") as file:
        for line in file:
            try:
                if not line.endswith(b"\n") or not isinstance(json.loads(line), dict):
                    break
            except (ValueError, RecursionError):  # a crash of the machine left other bytes
                break
            count, position = count + 1, position + len(line)
            if count % unit == 0:
                lines, size = count, position
    return lines, size


@contextlib.contextmanager
def continued(output: str | Path, identity: Mapping[str, Any], unit: int) -> Iterator[PartialLines]:
    """Yields the lines to write; they replace `output` at the end of the block.

    If the block raises an error of its input (ValueError), the partial file is removed. After any
    other interruption it stays, and the same command continues it.

    Args:
        output: the file to write.
        identity: JSON values that determine the lines.
        unit: see `PartialLines`.

    Raises:
        Locked: another process writes `output`.
        OSError: the disk is full or fails; what was written is kept.
    """
    output = Path(output)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    path = output.with_name(f"{output.name}.{digest}.partial")
    lock = Lock(
        output.with_name(f"{output.name}.lock"),
        place=str(output),
        what="command",
        remedy="wait until it ends, stop it, or choose another --output",
    )
    with explaining(output):
        lock.take()
    try:
        for other in output.parent.glob(f"{glob.escape(output.name)}.*.partial"):
            if other != path:
                other.unlink(missing_ok=True)
        with explaining(output, "what is written is kept, and --output is unchanged"):
            lines = PartialLines(path, unit)
            try:
                with contextlib.closing(lines):
                    yield lines
                os.replace(path, output)
            except ValueError:
                path.unlink(missing_ok=True)
                raise
    finally:
        lock.release()


def file_identity(path: str | Path) -> list[Any]:
    """Returns the path, size and time of a file, or of all files in a folder."""
    path = Path(path).expanduser().resolve()
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return [str(path), *([name, found.st_size, found.st_mtime_ns] for name, found in stats)]
