"""The shapes of inference batches: a few row lengths and numbers of rows, so few programs compile.

Rows are padded to the next length of `length_bucket`, and a batch is computed in pieces whose
numbers of rows are those of `piece_sizes`. The caller cuts the padding off the outputs again.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

# A single row, and powers of this many rows.
ROW_FACTOR = 8

Started = TypeVar("Started")
Build = TypeVar("Build", bound=Callable[..., Any])


def cached_program(build: Build) -> Build:
    """Caches the jitted functions that `build` returns, by its arguments.

    So equal models share their compiled programs, which depend on no parameters.
    """
    cached: Any = functools.lru_cache(maxsize=32)(build)
    return cached


def token_budget() -> int:
    """Tokens that a device computes at a time: enough to keep it busy."""
    return 4096 if jax.default_backend() == "cpu" else 65536


def length_bucket(length: int, limit: int, *, smallest: int = 32, steps: int = 1) -> int:
    """The number of tokens that a row of `length` tokens is padded to.

    Args:
        length: tokens of the longest row.
        limit: the maximum length; no shorter row is padded beyond it.
        smallest: the smallest bucket, a power of two.
        steps: buckets between each power of two and the next (at least 8 tokens wide). More of
            them waste fewer tokens and compile more programs.
    """
    if length > smallest:
        power = 1 << ((length - 1).bit_length() - 1)  # power < length <= 2 * power
        step = max(8, power // steps)
        smallest = -(-length // step) * step
    return min(smallest, max(limit, length))


def piece_sizes(rows: int, length: int, tokens: int, devices: int = 1) -> list[int]:
    """Splits `rows` rows into pieces of 1, 8, 64, ... rows per device.

    A piece has at most `tokens` tokens per device, unless it is a single row. Only the last piece
    may need padding, and more than half of its rows are real.
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
    """values [n, ...] -> [size, ...], with rows of zeros at the end."""
    return np.pad(values, [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1))


def read_behind(started: Iterable[Started]) -> Iterator[Started]:
    """Yields each item after the next one, so that the device computes while the host reads."""
    waiting: deque[Started] = deque()
    for item in started:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting
