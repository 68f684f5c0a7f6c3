"""Mutations of a file's content: of its bytes, and of its structure if it is JSON."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

EXTREMES = (
    *(0, -1, 1, 2, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63),
    *(2**64, -(2**63), -5, 10**30, 1_000_000),
)
WRONG = (
    *(None, True, False, 0, -1, 1.5, 1e308, -1e308, 1e-320, 10**30, 2**63, -5, "", " ", "x", "0"),
    *("\0", "é\u2028", "\ud83d", "a" * 3000, [], {}, [[]], [None], [1], {"": None}, ["x", "y"]),
    *({"a": 1}, [["x", 0.5]], float("nan"), float("inf"), -float("inf")),
)
_NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_BYTES = (b"\0", b"\xff", b"\x80", b"\n", b"\r", b"\t", b'"', b"{", b"[", b",", b"\xef\xbb\xbf")


def flip(rng: random.Random, data: bytes) -> bytes:
    """Flips one bit."""
    at = rng.randrange(max(len(data), 1))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :] if data else b""


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + int(2 ** rng.uniform(0, 12)))


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _delete(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _duplicate(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 30)) + data[end:]


def _overwrite(rng: random.Random, data: bytes) -> bytes:
    size = rng.choice((1, 2, 4, 8))
    number = rng.choice(EXTREMES) % (1 << (8 * size))
    at = rng.randrange(len(data) + 1)
    new = number.to_bytes(size, rng.choice(("little", "big")))
    return data[:at] + new + data[at + size :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_BYTES) * rng.choice((1, 1, 3, 600)) + data[at:]


def _number(rng: random.Random, data: bytes) -> bytes:
    found = list(_NUMBER.finditer(data[:1_000_000]))
    if not found:
        return _overwrite(rng, data)
    match = rng.choice(found)
    new = rng.choice((*map(str, EXTREMES), "1e999", "NaN", "-0", "9" * 5000, "0x10", "1.5"))
    return data[: match.start()] + new.encode() + data[match.end() :]


def _nest(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")")))
    depth = rng.choice((1, 50, 2000, 100_000))
    return data[:start] + opening * depth + data[start:end] + closing * depth + data[end:]


def _splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    (start, end), (first, last) = _span(rng, data), _span(rng, other)
    return data[:start] + other[first:last] + data[end:]


_OF_BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(flip, flip, _truncate, _delete, _duplicate, _overwrite, _insert, _number, _nest),
)


def mutate_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Applies one to six mutations; `others` provide what is spliced in."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if rng.random() < 0.1:
            data = _splice(rng, data, rng.choice(others))
        else:
            data = rng.choice(_OF_BYTES)(rng, data)
    return data


def mutate_json(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Mutates the structure of JSON, or of one line of JSON lines; else the bytes."""
    lines = data.split(b"\n")
    at = None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        at = rng.randrange(len(lines))
        try:
            content = json.loads(lines[at])
        except (ValueError, RecursionError):
            return mutate_bytes(rng, data, others)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = _mutate_tree(rng, content)
    text = json.dumps(content, ensure_ascii=rng.random() < 0.5)
    changed = text.encode("utf-8", "replace")
    if at is None:
        return changed
    return b"\n".join([*lines[:at], changed, *lines[at + 1 :]])


def _mutate_tree(rng: random.Random, tree: Any) -> Any:
    """Changes one place of a tree, which is chosen level by level."""
    if isinstance(tree, dict | list) and tree and rng.random() < 0.85:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = rng.choice(keys)
        if rng.random() < 0.1:
            changed = dict(tree) if isinstance(tree, dict) else list(tree)
            del changed[key]
            return changed
        new = _mutate_tree(rng, tree[key])
        if isinstance(tree, list):
            return [*tree[:key], new, *tree[key + 1 :]]
        return {**tree, key: new}
    choice = rng.random()
    most = 2 if isinstance(tree, dict | list) else 100  # or the sizes would multiply
    if choice < 0.6:
        return rng.choice(WRONG)
    if choice < 0.7:
        return rng.choice(EXTREMES)
    if choice < 0.8:
        return {str(i): tree for i in range(rng.choice((1, 2, most)))}
    if choice < 0.95:
        return [tree] * rng.choice((1, 2, most))
    for _ in range(rng.choice((10, 150))):
        tree = [tree]
    return tree
