"""Opens input files and unpacks gz, bz2, xz, zst and tar, up to MAX_DEPTH nested layers.

The compression format of a file is detected from its first bytes, never from its name, so a wrong
or missing suffix does no harm. All files are streamed and never read into memory as a whole.
"""

import contextlib
import glob
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, cast

from bertjax.base import addresses
from bertjax.base.files import brief, is_remote
from bertjax.data.text.decompression import DamagedInput, Decompressed, decompressor_of
from bertjax.data.text.tar import BLOCK, is_tar, members

# Number of layers of compression and archives, such as 3 for a gz in a tar.zst.
MAX_DEPTH = 8
# Names within archives are cut at this number of characters: they stand in error messages.
MAX_MEMBER_NAME = 150
# Number of consecutive zero bytes that text never has, while damaged archives begin with them.
ZEROS_OF_BINARY = 16
# Number of bytes that are hashed at each end of a file.
HASHED_BYTES = 1 << 16


@dataclass(frozen=True)
class InputFile:
    """A file on disk: its `path`, and its `size` in bytes."""

    path: str
    size: int


def find_files(pattern: str) -> list[InputFile]:
    """Returns the file at a path, the files that match a glob, or all files below a directory.

    The files are sorted by path. A glob may contain `**`. Hidden files in a directory are skipped.

    Raises:
        FileNotFoundError: no file matches `pattern`.
    """
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern):
        paths = glob.glob(os.path.join(glob.escape(pattern), "**", "*"), recursive=True)
    elif os.path.exists(pattern):
        paths = [pattern]
    else:
        paths = glob.glob(pattern, recursive=True)
    files = [InputFile(path, os.path.getsize(path)) for path in sorted(paths) if _is_file(path)]
    if not files:
        raise FileNotFoundError(
            f"No file matches --input {pattern!r} (working directory {os.getcwd()}): use paths, "
            "globs in quotes, a directory, tfds:NAME or pydocs."
        )
    return files


def input_exists(name: str) -> bool:
    """Returns whether `name` is a file or folder, also in a bucket, or a glob that matches one."""
    if is_remote(name):
        with addresses.naming_bucket_errors(name):
            return addresses.place(name).exists()
    name = os.path.expanduser(name)
    return os.path.exists(name) or any(glob.iglob(name, recursive=True))


def fingerprint(file: InputFile) -> str | None:
    """Returns a hash of the first and last HASHED_BYTES bytes of a file; None for a pipe.

    The hash detects edits at either end of the file that do not change the size of the file.
    """
    if not os.path.isfile(file.path):
        return None
    with open(file.path, "rb") as opened:
        ends = opened.read(HASHED_BYTES)
        opened.seek(max(file.size - HASHED_BYTES, 0))
        ends += opened.read(HASHED_BYTES)
    return hashlib.sha256(ends).hexdigest()[:16]


def _is_file(path: str) -> bool:
    return os.path.isfile(path) or (os.path.exists(path) and not os.path.isdir(path))


class PeekableStream(io.RawIOBase):
    """A readable stream with a `peek` method that returns the next bytes without consuming them."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Returns the next `size` bytes without consuming them; fewer at the end of the stream."""
        while len(self._head) < size:
            block = self._stream.read(size - len(self._head))
            if not block:
                break
            self._head += block
        return self._head[:size]

    def readable(self) -> bool:
        """Returns True, as `io.RawIOBase` requires."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns at most `size` bytes, or all if `size` < 0, including those peeked at."""
        if not self._head:
            return self._stream.read(size)
        if size is None or size < 0:
            data, self._head = self._head + self._stream.read(), b""
            return data
        data, self._head = self._head[:size], self._head[size:]
        return data


def open_texts(path: str, counter: "ByteCounter") -> Iterator[tuple[str, PeekableStream]]:
    """Yields (name, stream) of each text in the file `path`, which may be compressed or an archive.

    The name of a text in a tar archive is `ARCHIVE:MEMBER`. `counter` counts the bytes that are
    read from the disk.

    Raises:
        ValueError: the file begins with binary data, or has more than MAX_DEPTH layers of
            compression and archives.
        DamagedInput: a subclass of ValueError; the file is damaged or truncated, or a decompression
            bomb.
    """
    with open(path, "rb") as file:
        before = counter.count
        stream = PeekableStream(counter.counting(file))
        yield from _unwrap(_OpenFile(path, lambda: counter.count - before), "", stream, MAX_DEPTH)


class _OpenFile(NamedTuple):
    """The path of a file on disk, and a function that returns the number of bytes read from it."""

    path: str
    bytes_read: Callable[[], int]

    def name_of(self, member: str) -> str:
        """Returns the name of a member, or of the file itself if `member` is empty."""
        return f"{self.path}:{member}" if member else self.path


def _unwrap(
    file: _OpenFile, member: str, stream: PeekableStream, depth: int
) -> Iterator[tuple[str, PeekableStream]]:
    """Yields (name, stream) of each text in `stream`, which may be compressed or an archive.

    `member` names what `stream` is within the archives of `file`. More than `depth` layers of
    compression and archives raise ValueError.
    """
    name, head = file.name_of(member), stream.peek(BLOCK)
    start = decompressor_of(head)
    if not start and not is_tar(head):
        if head.count(b"\0" * ZEROS_OF_BINARY):
            raise ValueError(
                f"{name} begins with bytes that are not text, and is of no known format: leave it "
                "out, or copy or download it again if it is an archive."
            )
        yield name, stream
    elif not depth:
        raise ValueError(
            f"{name} has more than {MAX_DEPTH} layers of compression and archives: unpack it first."
        )
    elif start:
        opened = Decompressed(name, cast(BinaryIO, stream), start, file.bytes_read)
        yield from _unwrap(file, member, PeekableStream(cast(BinaryIO, opened)), depth - 1)
    else:
        yield from _unwrap_tar(file, member, stream, depth - 1)


def _unwrap_tar(
    file: _OpenFile, outer: str, stream: PeekableStream, depth: int
) -> Iterator[tuple[str, PeekableStream]]:
    name = file.name_of(outer)
    archive = members(cast(BinaryIO, _NamingErrors(name, cast(BinaryIO, stream))))
    while True:
        with _naming(name):
            member, content = next(archive, (None, None))
        if member is None or content is None:
            return
        # "._x" are resource forks, which macOS adds for each file.
        if not os.path.basename(member).startswith("."):
            inner = f"{outer}:" if outer else ""
            inner = brief(f"{inner}{member.removeprefix('./')}", MAX_MEMBER_NAME)
            named = _NamingErrors(file.name_of(inner), content)
            yield from _unwrap(file, inner, PeekableStream(cast(BinaryIO, named)), depth)


class ByteCounter:
    """Counts the bytes read from disk, for the progress bar."""

    def __init__(self):
        self.count = 0

    def counting(self, file: BinaryIO) -> BinaryIO:
        """Wraps `file` so that this counter counts the bytes read from `file`."""
        counter = self

        class CountingFile(io.RawIOBase):
            def readable(self) -> bool:
                return True

            def read(self, size: int = -1) -> bytes:
                data = file.read(size)
                counter.count += len(data)
                return data

        return cast(BinaryIO, CountingFile())


class _NamingErrors(io.RawIOBase):
    """Wraps a stream so that the errors that `read` raises name the file of the stream."""

    def __init__(self, name: str, stream: BinaryIO):
        self._name = name
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with _naming(self._name):
            return self._stream.read(size)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except DamagedInput:
        raise
    except (ValueError, OSError) as error:
        raise DamagedInput(
            f"{name} is damaged or truncated ({error}): download or pack it again."
        ) from error


def total_size(files: Iterable[InputFile]) -> int:
    """Returns the total size of `files` on disk, in bytes."""
    return sum(file.size for file in files)
