"""Opens input files and decompresses them: gz, bz2, xz, zst and tar, nested in any way.

The format of a file is detected from its first bytes, never from its name, so a wrong or missing
suffix does no harm. All files are streamed and never read into memory as a whole.
"""

import bz2
import glob
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

import zstandard

BLOCK_BYTES = 1 << 18
# Number of bytes that are hashed at each end of a file.
HASHED_BYTES = 1 << 16


@dataclass(frozen=True)
class InputFile:
    """A file on disk and its size in bytes."""

    path: str
    size: int


def find_files(pattern: str) -> list[InputFile]:
    """Finds the files of a path, a glob (with `**`) or a directory, sorted by name.

    Hidden files of a directory are skipped.

    Raises:
        FileNotFoundError: nothing matches.
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


def fingerprint(file: InputFile) -> str | None:
    """Hashes both ends of a file, to detect edits that keep its size; None for a pipe."""
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
    """A readable stream whose next bytes can be read without consuming them."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Returns the next `size` bytes, fewer only at the end of the stream."""
        while len(self._head) < size:
            block = self._stream.read(size - len(self._head))
            if not block:
                break
            self._head += block
        return self._head[:size]

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._stream.read(size)
        if size is None or size < 0:
            data, self._head = self._head + self._stream.read(), b""
            return data
        data, self._head = self._head[:size], self._head[size:]
        return data


def open_texts(path: str, counter: "ByteCounter") -> Iterator[tuple[str, PeekableStream]]:
    """Yields (name, stream) of each text in a file; a member of a tar is named `tar:member`.

    Raises:
        ValueError: the file is damaged or truncated.
    """
    with open(path, "rb") as file:
        yield from _unwrap(path, PeekableStream(counter.counting(file)))


def _unwrap(name: str, stream: PeekableStream) -> Iterator[tuple[str, PeekableStream]]:
    head = stream.peek(TAR_MAGIC_OFFSET + len(TAR_MAGIC))
    for magic, open_stream in _DECOMPRESSORS:
        if head.startswith(magic):
            opened = _NamingErrors(name, cast(BinaryIO, open_stream(cast(BinaryIO, stream))))
            yield from _unwrap(name, PeekableStream(cast(BinaryIO, opened)))
            return
    if head[TAR_MAGIC_OFFSET:] == TAR_MAGIC:
        yield from _unwrap_tar(name, stream)
    else:
        yield name, stream


def _unwrap_tar(name: str, stream: PeekableStream) -> Iterator[tuple[str, PeekableStream]]:
    try:
        with tarfile.open(fileobj=cast(BinaryIO, stream), mode="r|") as archive:
            for member in archive:
                # "._x" are resource forks, which macOS adds for each file.
                if member.isfile() and not os.path.basename(member.name).startswith("."):
                    member_name = f"{name}:{member.name.removeprefix('./')}"
                    opened = _NamingErrors(member_name, cast(BinaryIO, archive.extractfile(member)))
                    yield from _unwrap(member_name, PeekableStream(cast(BinaryIO, opened)))
    except tarfile.TarError as error:
        raise ValueError(_damaged(name, error)) from error


class ByteCounter:
    """Counts the bytes read from disk, for the progress bar."""

    def __init__(self):
        self.count = 0

    def counting(self, file: BinaryIO) -> BinaryIO:
        """Wraps `file` so that this counter counts the bytes read."""
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
    """Converts exceptions of a decompressor to errors that name the file."""

    def __init__(self, name: str, stream: BinaryIO):
        self._name = name
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except _DAMAGE as error:
            raise ValueError(_damaged(self._name, error)) from error


def _damaged(name: str, error: Exception) -> str:
    return (
        f"{name} is damaged or truncated ({type(error).__name__}: {error}): "
        "download or compress it again."
    )


class _ZstdFile(io.RawIOBase):
    """Decompresses concatenated zstd frames; unlike zstandard's reader, it detects truncation."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._started = False
        self._out = b""

    def read(self, size: int = -1) -> bytes:
        blocks = []
        while not self._out or size < 0:
            if self._out:
                blocks.append(self._out)
                self._out = b""
            data = self._frame.unused_data if self._frame.eof else b""
            data = data or self._stream.read(BLOCK_BYTES)
            if not data:
                if self._started and not self._frame.eof:
                    raise EOFError("the last zstd frame has no end")
                return b"".join(blocks)
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._started = True
            self._out = self._frame.decompress(data)
        data, self._out = self._out[:size], self._out[size:]
        return data


TAR_MAGIC_OFFSET = 257
TAR_MAGIC = b"ustar"
_DECOMPRESSORS = (
    (b"\x1f\x8b", lambda stream: gzip.GzipFile(fileobj=stream)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", _ZstdFile),
)
_DAMAGE = (
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    tarfile.TarError,
    OSError,  # bz2 raises it bare: "Invalid data stream"
)


def total_size(files: Iterable[InputFile]) -> int:
    """Returns the total size of the files on disk, in bytes."""
    return sum(file.size for file in files)
