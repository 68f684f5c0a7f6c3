"""Reads the members of a tar archive from a stream, without extracting files to disk.

Python's `tarfile` treats a header that is damaged, or missing because the file is truncated, as the
end of the archive, and reads extended headers of any size into memory. This module checks the
checksum of every header and the blocks at the end of the archive, and bounds the number and size of
extended headers. Names of members are never used as paths, so absolute paths and `..` have no
effect; links and devices are skipped.
"""

import io
from collections.abc import Iterator
from typing import BinaryIO, cast

BLOCK = 512
# Size of an extended header in bytes; GNU tar writes one per long name.
MAX_EXTENDED_BYTES = 1 << 20
# Number of extended headers that may precede a member.
MAX_EXTENDED = 8
_REGULAR = b"0\x007"
_WITHOUT_CONTENT = b"123456"  # links, devices, folders, pipes
_SKIPPED = b"gVD"  # global settings, volume names, lists of folders


def is_tar(head: bytes) -> bool:
    """Returns whether `head`, the start of a file, has the magic or checksum of a tar archive."""
    return head[257:262] == b"ustar" or (len(head) >= BLOCK and any(head) and _has_checksum(head))


def members(stream: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    """Yields (name, stream of the content) of each regular file in a tar archive.

    The stream of a file can be read only until the next file is requested.

    Raises:
        ValueError: the archive is damaged or truncated, or has a member of an unsupported type,
            such as a sparse file; the message does not name the archive.
    """
    while (member := _next_member(stream)) is not None:
        name, size = member
        content = _Content(stream, size)
        if name is not None:
            yield name, cast(BinaryIO, content)
        content.skip()
        _skip(stream, -size % BLOCK)


class _Content(io.RawIOBase):
    """A readable stream of the next `size` bytes of `stream`, the content of a member."""

    def __init__(self, stream: BinaryIO, size: int):
        self._stream, self._left = stream, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size is None or size < 0 else min(size, self._left)
        data = self._stream.read(wanted) if wanted else b""
        if wanted and not data:
            raise ValueError(f"the archive ends {self._left:,} bytes before the end of a member")
        self._left -= len(data)
        return data

    def skip(self) -> None:
        while self.read(1 << 18):
            pass


def _next_member(stream: BinaryIO) -> tuple[str | None, int] | None:
    """Returns (name, size in bytes) of the next member, or None at the end of the archive.

    The name is None if the member is not a regular file.
    """
    long: dict[str, str] = {}
    for _ in range(MAX_EXTENDED):
        header = _read(stream, BLOCK)
        if not header:
            raise ValueError("the archive ends without the zeros that mark its end")
        if not any(header):
            return _check_end(stream)
        if len(header) < BLOCK or not _has_checksum(header):
            raise ValueError("a header is cut or its checksum is wrong")
        kind, size = header[156:157], _number(header[124:136])
        if kind in (b"L", b"x", b"X", b"K"):
            long |= _extended(kind, stream, size)
            continue
        if kind == b"S" or "sparse" in long:
            raise ValueError(
                "a member is a sparse file, whose size has no bound: pack it without -S"
            )
        if kind in _WITHOUT_CONTENT:
            return None, 0
        if kind not in _REGULAR + _SKIPPED:
            raise ValueError(f"a member has the unknown type {kind!r}")
        size = int(long.get("size", size))
        name = long.get("path") or _short_name(header)
        is_file = kind in _REGULAR and not name.endswith("/")
        return (name if is_file else None), size
    raise ValueError(f"there are more than {MAX_EXTENDED} consecutive extended headers")


def _check_end(stream: BinaryIO) -> None:
    """Checks that the rest of the archive, after its first block of zeros, contains only zeros."""
    while block := stream.read(1 << 18):
        if block.strip(b"\0"):
            raise ValueError(
                "data follow the zeros that end an archive (for archives joined with cat, use "
                "tar --concatenate)"
            )


def _has_checksum(header: bytes) -> bool:
    field = header[148:156]
    try:
        stated = _number(field)
    except ValueError:
        return False
    counted = header[:148] + b" " * 8 + header[156:BLOCK]
    signed = sum(counted) - 256 * sum(byte > 127 for byte in counted)  # as old writers did
    return stated in (sum(counted), signed)


def _number(field: bytes) -> int:
    """Parses a number in a field of a tar header: octal digits, or base 256 for a large number."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise ValueError(f"a header has {field!r} in place of a number")
    return int(digits or b"0", 8)


def _short_name(header: bytes) -> str:
    name, prefix = (field.split(b"\0")[0] for field in (header[:100], header[345:500]))
    # GNU's format has other fields in place of the prefix.
    if header[257:263] == b"ustar\0" and prefix:
        name = prefix + b"/" + name
    return name.decode("utf-8", "replace")


def _extended(kind: bytes, stream: BinaryIO, size: int) -> dict[str, str]:
    """Reads an extended header: a long name or link target (GNU), or key-value records (POSIX).

    Returns a dict with the keys "path" and "size" if the header contains a path and a size, and
    "sparse" if the member is a sparse file.
    """
    if size > MAX_EXTENDED_BYTES:
        raise ValueError(f"an extended header has {size:,} bytes, more than {MAX_EXTENDED_BYTES:,}")
    content = _read(stream, size)
    if len(content) < size:
        raise ValueError("the archive ends within an extended header")
    _skip(stream, -size % BLOCK)
    if kind == b"K":  # the target of a link
        return {}
    if kind == b"L":
        return {"path": content.split(b"\0")[0].decode("utf-8", "replace")}
    found = {}
    while content.strip(b"\0"):
        length, space, _ = content[:20].partition(b" ")
        end = int(length) if space and length.isdigit() else 0
        key, equals, value = content[len(length) + 1 : end].partition(b"=")
        if not equals or value[-1:] != b"\n" or end > len(content):
            raise ValueError("an extended header is damaged")
        if key.startswith(b"GNU.sparse"):
            found["sparse"] = "yes"
        elif key == b"path":
            found["path"] = value[:-1].decode("utf-8", "replace")
        elif key == b"size":
            if not value[:-1].isdigit() or len(value) > 20:
                raise ValueError(f"an extended header gives the invalid size {value[:20]!r}")
            found["size"] = value[:-1].decode()
        content = content[end:]
    return found


def _read(stream: BinaryIO, size: int) -> bytes:
    """Reads `size` bytes of `stream`, or fewer bytes if the stream ends earlier."""
    blocks = []
    while size and (block := stream.read(size)):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def _skip(stream: BinaryIO, size: int) -> None:
    if len(_read(stream, size)) < size:
        raise ValueError("the archive ends within the padding of a member")
