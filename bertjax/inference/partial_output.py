"""Output files that a command continues if it is run again after a kill or a full disk.

A command that writes the file OUTPUT first writes the partial file `OUTPUT.HASH.partial` beside it,
and renames the partial file to OUTPUT at the end. HASH is a hash of everything that determines the
content of OUTPUT, such as the model and the input. If a partial file with the same HASH exists, an
interrupted run of the same command has written it, and the command continues it. Partial files of
OUTPUT with another HASH are deleted.
"""

import contextlib
import glob
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertjax.file_checksums import CHECKSUMS
from bertjax.files import explaining
from bertjax.lock import Lock


class PartialLines:
    """A partial file of JSON lines, whose first lines an interrupted run may have written.

    `keep` must be called before `write`.

    Attributes:
        path: the partial file.
        done: the number of complete lines that the interrupted run wrote.

    Args:
        path: the partial file, which is created if it does not exist.
    """

    def __init__(self, path: Path):
        self.path = path
        self.done = _whole_lines(path)
        self._file = path.open("ab")

    def finished(self) -> Iterator[dict[str, Any]]:
        """Yields the first `done` lines of the file, which an interrupted run wrote, as dicts."""
        with self.path.open("rb") as file:
            for _ in range(self.done):
                yield json.loads(file.readline())

    def keep(self, count: int) -> None:
        """Removes all but the first `count` lines, where `count` is at most `done`.

        Lines that are predicted together must be kept or removed together, so that the final output
        is the same as without an interruption. A later `write` appends further lines.
        """
        with self.path.open("rb") as file:
            self._file.truncate(sum(len(file.readline()) for _ in range(count)))

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends `line` to the file as one line of JSON."""
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        """Closes the partial file."""
        self._file.close()


def _whole_lines(path: Path, kind: type = dict) -> int:
    """Returns the number of usable lines at the beginning of a JSON lines file.

    They end before the first broken line. A line is broken if it does not end with a newline, or
    does not hold a JSON value of the type `kind`.
    """
    count = 0
    if not path.is_file():
        return count
    with path.open("rb") as file:
        for line in file:
            try:
                if not line.endswith(b"\n") or not isinstance(json.loads(line), kind):
                    break
            except (ValueError, RecursionError):  # a crash of the machine may leave any bytes
                break
            count += 1
    return count


class PartialVectors:
    """A partial .npy or .jsonl file, whose first vectors an interrupted run may have written.

    `keep` must be called before `write`.

    Attributes:
        done: the number of complete vectors that the interrupted run wrote.

    Args:
        path: the partial file, which is created if it does not exist.
        size: the dimension of the vectors.
        is_npy: True: the file holds a float32 array [vectors, size]; False: JSON lines.
    """

    def __init__(self, path: Path, size: int, is_npy: bool):
        self._size, self._is_npy = size, is_npy
        self._start = len(self._header(0)) if is_npy else 0
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._path = path
        bytes_there = path.stat().st_size
        if is_npy:
            self.done = max(0, bytes_there - self._start) // (4 * size)
        else:
            self.done = _whole_lines(path, list)

    def _header(self, count: int) -> bytes:
        """Returns the .npy header for `count` vectors; all headers have the same length."""
        header = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (count, self._size)}
        np.lib.format.write_array_header_1_0(header, shape)
        return header.getvalue()

    def keep(self, count: int) -> None:
        """Removes all but the first `count` vectors, where `count` is at most `done`.

        A later `write` appends further vectors.
        """
        if self._is_npy:
            end = self._start + 4 * self._size * count
        else:
            self._file.seek(0)
            end = sum(len(self._file.readline()) for _ in range(count))
        self._file.seek(0)
        self._file.write(self._header(0) if self._is_npy else b"")
        self._file.truncate(end)
        self._file.seek(end)

    def write(self, vectors: np.ndarray) -> None:
        """Appends `vectors`, an array [n, size], to the file."""
        if self._is_npy:
            self._file.write(vectors.astype("<f4").tobytes())
        else:
            lines = (json.dumps(vector.tolist()).encode() + b"\n" for vector in vectors)
            self._file.writelines(lines)

    def finish(self, count: int) -> None:
        """Writes `count`, the final number of vectors, into a .npy header; .jsonl has no header."""
        if self._is_npy:
            self._file.seek(0)
            self._file.write(self._header(count))

    def close(self) -> None:
        """Closes the partial file."""
        self._file.close()


Partial = TypeVar("Partial", PartialLines, PartialVectors)


def check_output(output: str | Path, source: str | Path | None) -> None:
    """Creates the folder of the file `output`; refuses to replace the input or a part of a model.

    Args:
        output: the file to write.
        source: the file or folder that is read; None: no file is read.

    Raises:
        ValueError: `output` is `source`, lies in the folder `source`, or is a file of a model or
            of a run.
    """
    output = Path(output)
    if source is not None and Path(source).exists():
        read = Path(source).resolve()
        if output.resolve() == read or (read.is_dir() and output.resolve().parent == read):
            raise ValueError(
                f"--output {output} would replace the input or lie among the input files: choose "
                "another --output."
            )
    if _is_part_of_model(output):
        raise ValueError(
            f"--output {output} would replace a file of a model or of a run: choose another "
            "--output."
        )
    with explaining(output.parent):
        output.parent.mkdir(parents=True, exist_ok=True)


def _is_part_of_model(path: Path) -> bool:
    """Returns whether a file is one of a model directory, or one that a run writes itself."""
    if not path.exists():
        return False
    run = ("run.json", "metrics.jsonl", "scores.json")
    return (path.parent / CHECKSUMS).is_file() or (
        (path.parent / "run.json").is_file() and path.name in run
    )


@contextlib.contextmanager
def continued(
    output: str | Path,
    identity: Mapping[str, Any],
    opened: Callable[[Path], Partial],
    finish: Callable[[Path, Path], None] = os.replace,
) -> Iterator[Partial]:
    """Yields an opened partial file, and turns it into `output` at the end of the `with` block.

    If the block raises ValueError, the input is wrong, and the partial file is deleted. After any
    other error or a kill, the partial file is kept, and running the same command again continues
    the partial file.

    Args:
        output: the file to write.
        identity: everything that determines the content of `output`, as JSON values; the hash of
            `identity` is part of the name of the partial file.
        opened: a function that opens the partial file with a given path, and returns a
            `PartialLines` or `PartialVectors`.
        finish: a function of the paths of the complete partial file and of `output` that writes
            `output` and removes the partial file; by default, it renames the partial file.

    Raises:
        Locked: another process writes `output`.
        OSError: the disk is full or fails; the partial file is kept.
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
        with explaining(output, "the finished part is kept, and --output is unchanged"):
            partial = opened(path)
            try:
                with contextlib.closing(partial):
                    yield partial
                finish(path, output)
            except ValueError:
                path.unlink(missing_ok=True)
                raise
    finally:
        lock.release()


def file_identity(path: str | Path) -> list[Any]:
    """Returns [absolute path, [file name, size in bytes, modification time in ns], ...].

    After the absolute path, the list has one inner list per file. `path` is a file, a folder of
    files, or the common prefix of the files of a TF1 checkpoint.
    """
    path = Path(path).expanduser().resolve()
    if path.is_file():
        files = [path]
    else:
        files = sorted(path.iterdir() if path.is_dir() else path.parent.glob(f"{path.name}*"))
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return [str(path), *([name, found.st_size, found.st_mtime_ns] for name, found in stats)]
