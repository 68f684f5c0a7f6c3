"""Restricts inference batches to a few shapes, so that few programs are compiled.

Rows are padded to the length that `length_bucket` returns. A batch is split into pieces with the
numbers of rows that `piece_sizes` returns. The caller removes the padding from the outputs.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

# A piece has 1, 8, 64, ... rows per device: powers of this number.
ROW_FACTOR = 8

Started = TypeVar("Started")
Build = TypeVar("Build", bound=Callable[..., Any])


def cached_program(build: Build) -> Build:
    """Caches the jitted functions that `build` returns, by its arguments.

    Equal models therefore share compiled programs, which do not depend on the parameters.
    """
    cached: Any = functools.lru_cache(maxsize=32)(build)
    return cached


def token_budget() -> int:
    """Returns how many tokens one call of a program should compute per device to keep it busy."""
    return 4096 if jax.default_backend() == "cpu" else 65536


def length_bucket(length: int, limit: int, *, smallest: int = 32, steps: int = 1) -> int:
    """Returns the number of tokens to which rows of up to `length` tokens are padded.

    Args:
        length: number of tokens of the longest row.
        limit: the maximum length of the model. The result exceeds it only if `length` does, and is
            then `length`.
        smallest: the smallest bucket, a power of two.
        steps: number of buckets between two consecutive powers of two; consecutive buckets differ
            by at least 8 tokens. More buckets waste fewer tokens, but compile more programs.
    """
    if length > smallest:
        power = 1 << ((length - 1).bit_length() - 1)  # power < length <= 2 * power
        step = max(8, power // steps)
        smallest = -(-length // step) * step
    return min(smallest, max(limit, length))


def piece_sizes(rows: int, length: int, tokens: int, devices: int = 1) -> list[int]:
    """Splits `rows` rows into pieces of 1, 8, 64, ... rows per device; returns the rows per piece.

    A piece has at most `tokens` tokens per device, unless it is a single row. Only the last piece
    may need padding, which is less than half of its rows.
    """
    rows = -(-rows // devices)
    size = 1
    while size * ROW_FACTOR * length <= tokens:
        size *= ROW_FACTOR
    pieces = []
    while size:
        while 2 * rows > size:
            pieces.append(size * devices)
            rows -= size
        size //= ROW_FACTOR
    return pieces


def pad_rows(values: np.ndarray, size: int) -> np.ndarray:
    """Pads values [n, ...] to [size, ...] with rows of zeros at the end."""
    return np.pad(values, [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1))


def read_behind(started: Iterable[Started]) -> Iterator[Started]:
    """Yields each item of `started` only after it has taken the next one.

    If taking an item starts its computation, the devices compute while the caller reads the outputs
    of the previous item.
    """
    waiting: deque[Started] = deque()
    for item in started:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting
