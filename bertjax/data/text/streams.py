"""From input files to streams of bytes and lines: finding, decompression, tar archives, decoding.

The format of a file is detected from its first bytes, never from its name, so a wrong or missing
suffix does no harm. All files are streamed and never read into memory as a whole. Damage and
truncation of compressed files and archives raise an error: Python's `bz2.open`, `lzma.open` and
`tarfile` and the readers of `zstandard` take some of it for the end of the data.
"""

import bz2
import codecs
import contextlib
import glob
import hashlib
import io
import itertools
import lzma
import os
import re
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import zstandard

from bertjax.base import addresses
from bertjax.base.files import brief, is_remote
from bertjax.base.progress import waiting

BLOCK_BYTES = 1 << 18
MAX_DEPTH = 8
MAX_MEMBER_NAME = 60
# Number of consecutive zero bytes that text never has, while damaged archives begin with them.
ZEROS_OF_BINARY = 16
HASHED_BYTES = 1 << 16
# Largest ratio of decompressed to compressed size. Real text stays below 100; decompression bombs
# reach 1,000 (gz) to 32,000 (zst), and more if nested. Up to FREE_BYTES, it is not checked.
MAX_GROWTH = 1000
FREE_BYTES = 1 << 26
# Limit of the memory for decompressing xz, in bytes: files of `xz -9` need 65 MiB.
MAX_XZ_BYTES = 1 << 28
# Number of bytes of gz or zst decompressed at once: a block of zst has at least 4 bytes and
# decompresses to at most 128 KiB, so this number of bytes decompresses to at most 32 MiB.
_PIECE = 1 << 10
# Size of an extended header of tar in bytes (GNU tar writes one per long name), and the number of
# extended headers that may precede a member.
MAX_EXTENDED_BYTES = 1 << 20
MAX_EXTENDED = 8
_ENTRY = re.compile(rb"(\d{1,19}) ([^=]*)=")  # of a POSIX header: its length and its key
_EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, b"X")
_SKIPPED = (tarfile.XGLTYPE, b"V", b"D")  # global settings, volume names, lists of folders
SAMPLED_BYTES = 1 << 13  # from which a likely encoding is found
# Longer lines are cut at white space, which bounds memory if a file has no line breaks.
MAX_LINE_CHARACTERS = 1 << 16
MAX_JSON_CHARACTERS = 1 << 24


def find_files(pattern: str) -> list[str]:
    """Returns the file at a path, the files that match a glob, or all files below a directory.

    They are sorted by path. Hidden files in a directory are skipped, and a file to which several
    links lead is returned once. Raises FileNotFoundError if there is no file.
    """
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern):
        paths = _files_below(pattern)
    elif os.path.exists(pattern):
        paths = [pattern]
    else:
        paths = glob.glob(pattern, recursive=True)
    paths = [path for path in sorted(paths) if _is_file(path)]
    if not paths:
        raise FileNotFoundError(
            f"No file matches --input {pattern!r} (working directory {os.getcwd()}): use paths, "
            "globs in quotes, a directory, tfds:NAME or pydocs."
        )
    by_identity: dict[Any, str] = {}
    for path in paths:
        by_identity.setdefault(_identity(path), path)
    files = list(by_identity.values())
    if len(files) < len(paths):
        links = len(paths) - len(files)
        print(f"{pattern}: {links:,} links to files that are read anyway are left out", flush=True)
    return files


def _is_file(path: str) -> bool:
    """Returns whether `path` is a file or a pipe."""
    return os.path.exists(path) and not os.path.isdir(path)


def _identity(path: str) -> Any:
    status = os.stat(path)
    if status.st_nlink > 1 and status.st_ino:
        return status.st_dev, status.st_ino
    return os.path.realpath(path)


def _files_below(folder: str) -> list[str]:
    paths = []
    seen = set()
    folders_left = [folder]
    for start in folders_left:  # which grows by links to folders
        for parent, folders, files in os.walk(start):
            real = os.path.realpath(parent)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            paths += [os.path.join(parent, name) for name in _shown(files)]
            folders[:] = _shown(folders)
            for name in folders:
                path = os.path.join(parent, name)
                if os.path.islink(path):
                    folders_left.append(path)
    return paths


def _shown(names: list[str]) -> list[str]:
    return sorted(name for name in names if not name.startswith("."))


def input_exists(name: str) -> bool:
    """Returns whether `name` is a file or folder, also in a bucket, or a glob that matches one."""
    if is_remote(name):
        with addresses.naming_bucket_errors(name):
            return addresses.place(name).exists()
    name = os.path.expanduser(name)
    return os.path.exists(name) or any(glob.iglob(name, recursive=True))


def fingerprint(path: str) -> str | None:
    """Returns a hash of the first and last HASHED_BYTES bytes of a file; None for a pipe.

    The hash detects edits at either end that do not change the size of the file.
    """
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as opened:
        ends = opened.read(HASHED_BYTES)
        last = os.path.getsize(path) - HASHED_BYTES
        opened.seek(max(last, 0))
        ends += opened.read(HASHED_BYTES)
    return hashlib.sha256(ends).hexdigest()[:16]


class DamagedInput(ValueError):
    """A compressed file or an archive is damaged; the message names it.

    If files are nested, the message names the outermost damaged one.
    """


class Stream(io.RawIOBase):
    """A readable stream of the bytes in `blocks`; `position` is the number of bytes read so far."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks = blocks
        self._held = b""
        self._at = 0
        self.position = 0

    def peek(self, size: int) -> bytes:
        """Returns the next `size` bytes without consuming them; fewer at the end of the stream."""
        missing = size - len(self._held) + self._at
        if missing > 0:
            held = [self._held[self._at :]]
            for block in self._blocks:
                held.append(block)
                missing -= len(block)
                if missing <= 0:
                    break
            self._held = b"".join(held)
            self._at = 0
        return self._held[self._at : self._at + size]

    def readable(self) -> bool:
        """Returns True, as `io.RawIOBase` requires."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns the next `size` bytes, or all if `size` < 0; fewer at the end of the stream."""
        if size is None or size < 0:
            size = sys.maxsize
        data = self.peek(size)
        self._at += len(data)
        self.position += len(data)
        return data


class ByteCounter:
    """Counts the bytes read from disk, for the progress bar."""

    def __init__(self):
        self.count = 0

    def blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """Yields the content of `file` and counts its bytes."""
        while block := file.read(1 << 16):
            self.count += len(block)
            yield block


def open_texts(path: str, counter: ByteCounter) -> Iterator[tuple[str, Stream]]:
    """Yields (name, stream) of each text in the file `path`, which may be compressed or an archive.

    The name of a text in a tar archive is `ARCHIVE:MEMBER`.

    Raises ValueError if the file begins with binary data or has more than MAX_DEPTH layers, or
    DamagedInput if it is damaged or truncated, or a decompression bomb.
    """
    before = counter.count
    with contextlib.ExitStack() as stack:
        with waiting(f"a process that writes to {path}"):  # if it is a pipe
            file = stack.enter_context(open(path, "rb"))
            stream = Stream(counter.blocks(file))
            stream.peek(1)
        opened = _OpenFile(path, lambda: counter.count - before)
        yield from _unwrap(opened, "", stream, MAX_DEPTH)


def decompressed(name: str, file: BinaryIO) -> Stream:
    """Returns a stream of the content of an open file, decompressed if it is compressed.

    Reading raises DamagedInput, which names `name`.
    """
    counter = ByteCounter()
    stream = Stream(counter.blocks(file))
    start = _by_beginning(_DECOMPRESSORS, stream.peek(8))
    if start is None:
        return stream
    return Stream(_decompressed(name, stream, start, lambda: counter.count))


class _OpenFile(NamedTuple):
    path: str
    bytes_read: Callable[[], int]  # the number of bytes read from the disk so far

    def name_of(self, member: str) -> str:
        if member:
            return f"{self.path}:{member}"
        return self.path


def _unwrap(
    file: _OpenFile, member: str, stream: Stream, depth: int
) -> Iterator[tuple[str, Stream]]:
    """Yields (name, stream) of each text in `stream`, with up to `depth` layers of compression."""
    name = file.name_of(member)
    head = stream.peek(tarfile.BLOCKSIZE)
    start = _by_beginning(_DECOMPRESSORS, head)
    if not start and not _is_tar(head):
        if head.count(b"\0" * ZEROS_OF_BINARY):
            raise ValueError(
                f"{name} begins with bytes that are not text, and is of no known format: leave it "
                "out."
            )
        yield name, stream
    elif not depth:
        raise ValueError(
            f"{name} has more than {MAX_DEPTH} layers of compression and archives: unpack it first."
        )
    elif start:
        blocks = _decompressed(name, stream, start, file.bytes_read)
        yield from _unwrap(file, member, Stream(blocks), depth - 1)
    else:
        for path, content in _named(name, _members(stream)):
            # "._x" are resource forks, which macOS adds for each file.
            if not os.path.basename(path).startswith("."):
                inner = _inner_name(member, path.removeprefix("./"))
                content = Stream(_named(file.name_of(inner), content))
                yield from _unwrap(file, inner, content, depth - 1)


def _inner_name(member: str, path: str) -> str:
    name = f"{member}:{path}" if member else path
    if len(name) > MAX_MEMBER_NAME:  # the end tells the files of a folder apart
        end = name[23 - MAX_MEMBER_NAME :]
        name = f"{name[:20]}...{end}"
    return brief(name, MAX_MEMBER_NAME)


def _named(
    name: str, items: Iterator[Any], errors: tuple[type[Exception], ...] = (ValueError, OSError)
) -> Iterator[Any]:
    """Yields blocks or members of the file or archive `name`, whose `errors` then name it."""
    try:
        yield from items
    except DamagedInput:
        raise
    except errors as error:
        raise DamagedInput(
            f"{name} is damaged or truncated ({type(error).__name__}: {error}): copy it again."
        ) from error


class _InPieces:
    """A decompressor of gz or zst with the interface of `bz2.BZ2Decompressor`.

    It decompresses a small piece at a time, because these decompressors limit no output.
    """

    def __init__(self, decompressor: Any):
        self._decompressor = decompressor
        self._input = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    @property
    def needs_input(self) -> bool:
        return not self._input

    @property
    def unused_data(self) -> bytes:
        return self._decompressor.unused_data + bytes(self._input)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._input = memoryview(bytes(self._input) + data)
        blocks = []
        size = 0
        while self._input and not self.eof and size < max_length:
            block = self._decompressor.decompress(self._input[:_PIECE])
            self._input = self._input[_PIECE:]
            blocks.append(block)
            size += len(block)
        return b"".join(blocks)


_DECOMPRESSORS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: _InPieces(zlib.decompressobj(wbits=31)),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_BYTES),
    b"\x28\xb5\x2f\xfd": lambda: _InPieces(zstandard.ZstdDecompressor().decompressobj()),
}
# What the decompressors raise; bz2 raises OSError: "Invalid data stream".
_DAMAGE = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def _by_beginning(table: dict[bytes, Any], head: bytes) -> Any:
    """Returns the value of the first key with which `head` begins; None: it begins with none."""
    for beginning, value in table.items():
        if head.startswith(beginning):
            return value
    return None


def _decompressed(
    name: str, stream: Stream, start: Callable[[], Any], bytes_read: Callable[[], int]
) -> Iterator[bytes]:
    """Yields the decompressed blocks of a stream, and checks that it is whole and not a bomb."""
    written = 0
    for block in _named(name, _decompressed_blocks(stream, start), _DAMAGE):
        written += len(block)
        if written > FREE_BYTES and written > MAX_GROWTH * bytes_read():
            raise DamagedInput(
                f"{name} has {written:,} decompressed bytes in the first {bytes_read():,} bytes of "
                f"the file, a ratio above {MAX_GROWTH} that only decompression bombs have: leave "
                "it out."
            )
        yield block


def _decompressed_blocks(stream: Stream, start: Callable[[], Any]) -> Iterator[bytes]:
    data = stream.read(BLOCK_BYTES)
    while data:
        decompressor = start()
        while not decompressor.eof:
            if not data and decompressor.needs_input:
                data = stream.read(BLOCK_BYTES)
                if not data:
                    raise EOFError("the file ends before the end of the compressed data")
            yield decompressor.decompress(data, BLOCK_BYTES)
            data = b""
        # Concatenated streams are one text, as for the command-line tools. Writers may fill up the
        # last block of a disk or tape with zeros.
        block = decompressor.unused_data or stream.read(BLOCK_BYTES)
        data = block.lstrip(b"\0")
        while block and not data:
            block = stream.read(BLOCK_BYTES)
            data = block.lstrip(b"\0")


def _header(block: bytes) -> tarfile.TarInfo:
    return tarfile.TarInfo.frombuf(block, "utf-8", "replace")


def _is_tar(head: bytes) -> bool:
    """Returns whether `head`, the start of a file, has the magic or checksum of a tar archive."""
    with contextlib.suppress(tarfile.HeaderError):
        return head[257:262] == b"ustar" or _header(head) is not None
    return False


def _members(stream: Stream) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yields (name, blocks of the content) of each regular file in a tar archive.

    `tarfile` parses the headers, but not the archive: it takes a damaged or missing header for the
    end, and reads extended headers of any size into memory. The blocks of a file can be read only
    until the next file is requested. Raises ValueError, which does not name the archive.
    """
    while (member := _next_member(stream)) is not None:
        name, size = member
        end = stream.position + _padded(size)
        if name is not None:
            yield name, _exactly(stream, size)
        for _ in _exactly(stream, end - stream.position):
            pass


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE


def _exactly(stream: Stream, size: int) -> Iterator[bytes]:
    while size:
        block = stream.read(min(size, BLOCK_BYTES))
        if not block:
            raise ValueError(f"the archive ends {size:,} bytes before the end of a member")
        size -= len(block)
        yield block


def _next_member(stream: Stream) -> tuple[str | None, int] | None:
    """Returns the next member's (name or None if it is no regular file, size); None at the end."""
    extended: dict[str, str] = {}
    for _ in range(MAX_EXTENDED):
        block = stream.read(tarfile.BLOCKSIZE)
        if not block:
            raise ValueError("the archive ends without the zeros that mark its end")
        if not any(block):
            _check_end(stream)
            return None
        try:
            header = _header(block)
        except tarfile.HeaderError as error:
            raise ValueError(f"a header is cut or its checksum is wrong: {error}") from error
        if header.size < 0:
            raise ValueError(f"a member has the size {header.size}")
        if header.type in _EXTENDED:
            extended |= _read_extended(header, stream)
            continue
        if header.type == tarfile.GNUTYPE_SPARSE or "sparse" in extended:
            raise ValueError(
                "a member is a sparse file, whose size has no bound: pack it without -S"
            )
        name = extended.get("path", header.name)
        size = int(extended.get("size", header.size))
        if header.isreg() and not name.endswith("/"):
            return name, size
        if header.isreg() or header.type in _SKIPPED:
            return None, size
        if header.type in tarfile.SUPPORTED_TYPES:  # links, devices, folders, pipes
            return None, 0
        raise ValueError(f"a member has the unknown type {header.type!r}")
    raise ValueError(f"there are more than {MAX_EXTENDED} consecutive extended headers")


def _check_end(stream: Stream) -> None:
    while block := stream.read(BLOCK_BYTES):
        if block.strip(b"\0"):
            raise ValueError(
                "data follow the zeros that end an archive (for archives joined with cat, use "
                "tar --concatenate)"
            )


def _read_extended(header: tarfile.TarInfo, stream: Stream) -> dict[str, str]:
    """Reads "path" and "size" of a GNU or POSIX header, and "sparse" for a sparse file."""
    if header.size > MAX_EXTENDED_BYTES:
        raise ValueError(
            f"an extended header has {header.size:,} bytes, more than {MAX_EXTENDED_BYTES:,}"
        )
    content = b"".join(_exactly(stream, _padded(header.size)))[: header.size]
    if header.type == tarfile.GNUTYPE_LONGLINK:
        return {}
    if header.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.split(b"\0")[0].decode("utf-8", "replace")}
    values = {}
    while content.strip(b"\0"):
        entry = _ENTRY.match(content)
        if entry is None:
            raise ValueError("an extended header is damaged")
        size, key = entry.groups()
        start = entry.end()
        end = int(size)
        if not start < end <= len(content) or content[end - 1] != ord("\n"):
            raise ValueError("an extended header is damaged")
        value = content[start : end - 1]
        if key.startswith(b"GNU.sparse"):
            values["sparse"] = "yes"
        elif key == b"path":
            values["path"] = value.decode("utf-8", "replace")
        elif key == b"size":
            if not value.isdigit() or len(value) >= 20:
                raise ValueError(f"an extended header gives the invalid size {value[:20]!r}")
            values["size"] = value.decode()
        content = content[end:]
    return values


def read_lines(
    name: str, stream: Stream, *, errors: str, counts: Counter, limit: int | None
) -> Iterator[str]:
    """Yields lines without line breaks; only "\\n", "\\r\\n" and "\\r" are line breaks.

    Args:
        name: name of the stream for error messages.
        stream: stream of UTF-8 text; a byte order mark at the beginning is dropped.
        errors: "strict" or "replace", as in `bytes.decode`.
        counts: its entry "long_lines_cut" counts the lines that are split, and
            "replaced_characters" the characters that replace invalid bytes.
        limit: number of characters above which a line is split at white space, at positions that
            depend only on the line; None for JSON, whose lines must be parsed whole.

    Raises ValueError if the stream is not UTF-8 and `errors` is "strict", or more than
    MOST_REPLACED of its characters had to be replaced; or a line of JSON is longer than
    MAX_JSON_CHARACTERS.
    """
    longest = limit or MAX_JSON_CHARACTERS
    line = ""  # the current one, incomplete
    was_cut = False
    for text in _decoded_blocks(name, stream, errors, counts):
        for number, part in enumerate(text.split("\n")):
            if number:
                yield line
                line = ""
                was_cut = False
            line += part
            if len(line) > longest:
                if limit is None:
                    raise ValueError(
                        f"{name} has a line of more than {longest:,} characters: JSON lines "
                        "contain one document per line, not one array. Split longer documents."
                    )
                counts["long_lines_cut"] += not was_cut
                was_cut = True
                *pieces, line = cut_at_spaces(line, limit)
                yield from pieces
    if line:
        yield line


def cut_at_spaces(text: str, limit: int) -> Iterator[str]:
    """Splits `text` into pieces of at most `limit` characters, at white space where possible."""
    start = 0
    while len(text) - start > limit:
        piece = text[start : start + limit]
        if not piece[-1].isspace() and len(piece.split()) > 1:
            piece, _ = piece.rsplit(None, 1)
        yield piece
        start += len(piece)
    yield text[start:]


# Byte order marks of UTF-32 begin with those of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CONTROLS = bytes([*range(9), *range(14, 32)])
MOST_REPLACED = 0.001


def as_utf8(name: str, stream: Stream, *, encoding: str, errors: str, counts: Counter) -> Stream:
    """Returns a stream of the text in UTF-8; byte order marks come before `encoding`.

    For UTF-8, this is `stream` itself, unchecked. Reading raises the errors of `read_lines`.
    """
    head = stream.peek(BLOCK_BYTES)
    marked = _by_beginning(_MARKS, head)
    encoding = codecs.lookup(marked or encoding).name
    if marked is None:
        controls = len(head) - len(head.translate(None, _CONTROLS))
        is_binary = encoding == "utf-8" and controls > 8 + len(head) // 8
        if is_binary or encoding in ("utf-16", "utf-32"):
            raise ValueError(
                f"{name} begins with no byte order mark, and {controls:,} of its first "
                f"{len(head):,} bytes are zeros or control characters: if it is UTF-16, pass "
                "--encoding utf-16-le or utf-16-be."
            )
    if encoding == "utf-8":
        return stream
    blocks = _decoded_blocks(name, stream, errors, counts, encoding)
    return Stream(text.encode() for text in blocks)


def _decoded_blocks(
    name: str, stream: Stream, errors: str, counts: Counter, encoding: str = "utf-8"
) -> Iterator[str]:
    offset = replaced = size = 0
    line = 1
    is_utf8 = encoding == "utf-8"
    if is_utf8 and stream.peek(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
        offset = len(stream.read(len(codecs.BOM_UTF8)))
    inner = codecs.getincrementaldecoder(encoding)(errors)
    decoder = io.IncrementalNewlineDecoder(inner, translate=True)
    block = sample = None
    while block != b"":
        block = stream.read(BLOCK_BYTES)
        pending, _ = inner.getstate()
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            bad = error.object[error.start]
            place = offset - len(pending) + error.start
            line += decoder.decode(block[: max(0, place - offset)]).count("\n")
            is_cut = error.reason == "unexpected end of data"  # at most a character is wrong
            remedy = ""
            if not is_cut:
                remedy = _remedy(error.object)
            raise ValueError(
                f"{name} is not {encoding.upper()}: byte 0x{bad:02x} in line {line:,}, at offset "
                f"{place:,} ({error.reason}). "
                f"{remedy}If only a few bytes are wrong, --errors replace reads U+FFFD for them."
            ) from error
        offset += len(block)
        size += len(text)
        line += text.count("\n")
        if errors == "replace" and "\ufffd" in text:
            replaced += text.count("\ufffd")
            if is_utf8:
                replaced -= block.count("\ufffd".encode())
            sample = sample or block
        # A few bad bytes in a short file are no sign of another encoding.
        is_enough = not block or size > MAX_JSON_CHARACTERS
        if is_enough and replaced > max(2, MOST_REPLACED * size):
            raise ValueError(
                f"{name}: {replaced:,} of {size:,} characters ({replaced / size:.1%}) are not "
                f"{encoding.upper()}, and --errors replace would delete them. "
                f"{_remedy(sample or b'')}Otherwise convert the file to UTF-8."
            )
        if text:
            yield text
    if replaced:
        counts["replaced_characters"] += replaced


# What a word has around its first letter that is not ASCII.
_NOT_ASCII = re.compile(r"\S{0,6}[^\x00-\x7f]\S{0,11}")


# Encodings of text, which has been found not to be UTF-8 and has no zeros as UTF-16 has.
_NOT_GUESSED = ["utf_7", "utf_8", "utf_16", "utf_16_be", "utf_16_le", "utf_32"]


def _remedy(block: bytes) -> str:
    if likely := likely_encodings(block):
        return f"Its encoding is probably {likely}: pass --encoding with the right one. "
    return ""


def likely_encodings(block: bytes) -> str:
    """Returns "cp1258 ('bất') or ...": encodings in which `block` may be, each with a word of it.

    It is the word that tells the encodings apart, in each of them. If most of `block` is UTF-8 or
    no encoding is likely, this is "".
    """
    text = block.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    not_ascii = len(text) - len(text.encode("ascii", "ignore"))
    if not_ascii > 2 * bad:
        return ""
    from charset_normalizer import from_bytes

    lines = b"\n".join(line for line in block.split(b"\n") if not line.isascii())
    end = lines.rfind(b"\n", 0, SAMPLED_BYTES)
    if end < 0:
        end = SAMPLED_BYTES
    matches = list(itertools.islice(from_bytes(lines[:end], cp_exclusion=_NOT_GUESSED), 3))
    words = zip(*(_NOT_ASCII.findall(str(match)) for match in matches), strict=False)
    # Of the words that the encodings read differently, the first one tells the most of them apart.
    telling = max(words, key=lambda readings: len({*readings}), default=[""] * len(matches))
    likely = []
    for match, word in zip(matches, telling, strict=True):
        usual = match.encoding
        if "cp1252" in match.could_be_from_charset:
            usual = "cp1252"
        likely.append(f"{usual} ({brief(word)!r})")
    return " or ".join(likely)
