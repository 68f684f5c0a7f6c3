"""Streaming decompression of gz, bz2, xz and zst with bounded memory and compression ratio.

Concatenated compressed streams are decompressed to one text, as the command-line tools do. Damage,
truncation, and data other than zeros after the last stream raise an error. Python's `bz2.open` and
`lzma.open` silently ignore data after a stream that are not a valid stream, so a flipped bit at the
beginning of the second stream of a file would lose the rest of the text.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

import zstandard

BLOCK_BYTES = 1 << 18
# Largest ratio of decompressed to compressed size. Real text stays below 100; decompression bombs
# reach 1,000 (gz) to 32,000 (zst), and more if nested.
MAX_GROWTH = 1000
FREE_BYTES = 1 << 26
"""Number of decompressed bytes up to which the compression ratio of a stream is not checked."""
# Limit of the memory for decompressing xz, in bytes: files of `xz -9` need 65 MiB.
MAX_XZ_BYTES = 1 << 28
# Number of bytes of zst decompressed at once: a block has at least 4 bytes and decompresses to at
# most 128 KiB, so this number of bytes decompresses to at most 32 MiB.
_ZST_PIECE = 1 << 10


class DamagedInput(ValueError):
    """A compressed file or an archive is damaged; the message names it.

    If files are nested, the message names the outermost damaged one, which the others are read
    from.
    """


class Decompressor(Protocol):
    """The interface of a decompressor of one compressed stream, as in `bz2.BZ2Decompressor`."""

    @property
    def eof(self) -> bool:
        """Whether the end of the compressed stream has been reached."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether `decompress` needs more compressed data to return more decompressed bytes."""
        ...

    @property
    def unused_data(self) -> bytes:
        """The bytes of the input that follow the end of the compressed stream."""
        ...

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Decompresses `data`; returns about `max_length` bytes or fewer.

        Later calls, whose `data` may be empty, return the rest.
        """
        ...


class _Gzip:
    def __init__(self):
        self._zlib = zlib.decompressobj(wbits=31)
        self._out_is_full = False

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail and not self._out_is_full

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self._out_is_full = len(out) == max_length  # zlib may hold more
        return out


class _Zst:
    def __init__(self):
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._input = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def needs_input(self) -> bool:
        return not self._input

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + bytes(self._input)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._input = memoryview(bytes(self._input) + data)
        blocks, size = [], 0
        while self._input and not self._frame.eof and size < max_length:
            blocks.append(self._frame.decompress(self._input[:_ZST_PIECE]))
            self._input = self._input[_ZST_PIECE:]
            size += len(blocks[-1])
        return b"".join(blocks)


_START: tuple[tuple[bytes, Callable[[], Any]], ...] = (
    (b"\x1f\x8b", _Gzip),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_BYTES)),
    (b"\x28\xb5\x2f\xfd", _Zst),
)
# What the decompressors raise; bz2 raises OSError: "Invalid data stream".
DAMAGE = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def decompressor_of(head: bytes) -> Callable[[], Decompressor] | None:
    """Returns a function that creates a decompressor for a file that begins with `head`.

    Returns None if the file is not compressed as gz, bz2, xz or zst.
    """
    return next((start for magic, start in _START if head.startswith(magic)), None)


class Decompressed(io.RawIOBase):
    """A readable stream of the decompressed bytes of a compressed stream.

    Args:
        name: the name of the compressed stream for error messages.
        stream: the compressed stream.
        start: function that creates a decompressor; called once per compressed stream, because a
            file may consist of several concatenated streams.
        bytes_read: function that returns the number of bytes read from the file on disk so far.

    Raises (in `read`):
        DamagedInput: the compressed stream, or a stream that it is read from, is damaged or
            truncated, or has a compression ratio above MAX_GROWTH.
    """

    def __init__(
        self,
        name: str,
        stream: BinaryIO,
        start: Callable[[], Decompressor],
        bytes_read: Callable[[], int],
    ):
        self._name, self._stream, self._start = name, stream, start
        self._bytes_read = bytes_read
        self._decompressor: Decompressor | None = None
        self._pending = b""  # input that no decompressor has taken
        self._out, self._at = b"", 0
        self._written = 0
        self._streams = 0

    def readable(self) -> bool:
        """Returns True, as `io.RawIOBase` requires."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns at most `size` decompressed bytes, or all if `size` < 0; b"" at the end.

        Raises:
            DamagedInput: the file is damaged or truncated, or a decompression bomb.
        """
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(BLOCK_BYTES), b""))
        if self._at == len(self._out) and size:
            self._out, self._at = self._next_block(), 0
        data = self._out[self._at : self._at + size]
        self._at += len(data)
        return data

    def _next_block(self) -> bytes:
        while True:
            try:
                block = self._step()
            except DamagedInput:
                raise
            except DAMAGE as error:
                raise DamagedInput(
                    f"{self._name} is damaged or truncated ({type(error).__name__}: {error}): "
                    "download or compress it again."
                ) from error
            if block is None:
                return b""
            if block:
                self._written += len(block)
                self._check_growth()
                return block

    def _step(self) -> bytes | None:
        """Returns the next decompressed bytes, possibly b"", or None at the end of all streams."""
        current = self._decompressor
        if current is None or current.eof:
            if current is not None:
                self._pending, self._decompressor = current.unused_data, None
            # Writers may fill up the last block of a disk or tape with zeros.
            data = self._pending.lstrip(b"\0") if self._streams else self._pending
            self._pending = data or self._stream.read(BLOCK_BYTES)
            if data:
                self._decompressor = self._start()
                self._streams += 1
            return b"" if self._pending else None
        data = self._pending
        self._pending = b""
        if not data and current.needs_input:
            data = self._stream.read(BLOCK_BYTES)
            if not data:
                raise EOFError("the file ends before the end of the compressed data")
        return current.decompress(data, BLOCK_BYTES)

    def _check_growth(self) -> None:
        if self._written > FREE_BYTES and self._written > MAX_GROWTH * self._bytes_read():
            raise DamagedInput(
                f"{self._name} has {self._written:,} decompressed bytes in the first "
                f"{self._bytes_read():,} bytes of the file, a ratio above {MAX_GROWTH} that only "
                "decompression bombs have: leave it out, or decompress it yourself if it is text."
            )
