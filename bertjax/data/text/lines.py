"""Decodes a byte stream into lines of bounded length, one block at a time."""

import codecs
import io
from collections import Counter
from collections.abc import Iterator

from bertjax.data.text.decompression import BLOCK_BYTES
from bertjax.data.text.sources import PeekableStream

# Longer lines are cut at white space, which bounds memory if a file has no line breaks.
MAX_LINE_CHARACTERS = 1 << 16
# A line of JSON is not cut, because it has to be parsed whole, which takes up to 24 bytes of memory
# per character.
MAX_JSON_CHARACTERS = 1 << 24
BOM = b"\xef\xbb\xbf"


def read_lines(
    name: str, stream: PeekableStream, *, errors: str, counts: Counter, cut: bool = True
) -> Iterator[str]:
    """Yields lines without line breaks; only "\\n", "\\r\\n" and "\\r" are line breaks.

    Args:
        name: name of the stream for error messages.
        stream: stream of UTF-8 text; a byte order mark at the beginning is dropped.
        errors: how to handle bytes that are not UTF-8: "strict" or "replace", as in `bytes.decode`.
        counts: counter whose entry "long_lines_cut" is increased by 1 for each line that is split.
        cut: whether a line longer than MAX_LINE_CHARACTERS is split into several lines at white
            space, at positions that depend only on the text of the line; False for JSON, whose
            lines must be parsed whole.

    Raises:
        ValueError: the stream is not UTF-8 and `errors` is "strict", or `cut` is False and a line
            is longer than MAX_JSON_CHARACTERS.
    """
    limit = MAX_LINE_CHARACTERS if cut else MAX_JSON_CHARACTERS
    parts: list[str] = []  # pieces of the current, incomplete line
    size = 0
    was_cut = False
    for text in _decoded_blocks(name, stream, errors):
        first, *rest = text.split("\n")
        parts.append(first)
        size += len(first)
        if size > limit:
            if not cut:
                raise ValueError(_too_long(name, limit))
            counts["long_lines_cut"] += not was_cut
            *pieces, last = cut_at_spaces("".join(parts), limit)
            yield from pieces
            parts, size, was_cut = [last], len(last), True
        if rest:
            yield "".join(parts)
            for line in rest[:-1]:
                # Blocks have at most four times the characters of the limit, so this is rare.
                if len(line) > limit and cut:
                    counts["long_lines_cut"] += 1
                    yield from cut_at_spaces(line, limit)
                else:
                    yield line
            parts, size, was_cut = [rest[-1]], len(rest[-1]), False
    if size:
        yield "".join(parts)


def _too_long(name: str, limit: int) -> str:
    return (
        f"{name} has a line of more than {limit:,} characters: JSON lines contain one document per "
        "line, not one array. Split longer documents."
    )


def cut_at_spaces(text: str, limit: int) -> Iterator[str]:
    """Splits `text` into pieces of at most `limit` characters, at white space where possible."""
    start = 0
    while len(text) - start > limit:
        window = text[start : start + limit]
        head = window.rstrip()
        cut = len(head.rsplit(None, 1)[0]) if len(head) == limit and len(head.split()) > 1 else 0
        cut = cut or limit
        yield text[start : start + cut]
        start += cut
    yield text[start:]


def _decoded_blocks(name: str, stream: PeekableStream, errors: str) -> Iterator[str]:
    offset = 0
    if stream.peek(len(BOM)) == BOM:
        offset = len(stream.read(len(BOM)))
    utf8 = codecs.getincrementaldecoder("utf-8")(errors)
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    while True:
        block = stream.read(BLOCK_BYTES)
        pending = len(utf8.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            bad = error.object[error.start : error.start + 1].hex()
            raise ValueError(
                f"{name} is not UTF-8: byte 0x{bad} at offset {offset - pending + error.start:,} "
                f"({error.reason}). Convert the file to UTF-8, or pass --errors replace to put "
                "U+FFFD in place of invalid bytes."
            ) from error
        offset += len(block)
        if text:
            yield text
        if not block:
            return
