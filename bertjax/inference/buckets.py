"""Restricts inference batches to a few shapes, so that jax compiles few programs.

The rows of a batch are padded to the length that `length_bucket` returns. A batch is split into
pieces, each computed by one call of the model, with the numbers of rows that `piece_sizes` returns.
The caller of these functions removes the padding from the outputs of the model.
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
    """Caches the jitted functions that `build` returns, with the arguments of `build` as the key.

    Equal models share compiled programs, because the programs do not depend on the parameters.
    """
    cached: Any = functools.lru_cache(maxsize=32)(build)
    return cached


def token_budget(length: int, batch_size: int | None, share: int = 1) -> int:
    """Returns the maximum number of tokens per device in one call of the model.

    Args:
        length: number of tokens per row.
        batch_size: maximum number of rows per device; None: enough rows to keep the device busy.
        share: divisor of 4096 tokens on CPUs and 65536 on accelerators, the numbers that keep these
            devices busy; above 1 for calls whose outputs take much memory.
    """
    tokens = (4096 if jax.default_backend() == "cpu" else 65536) // share
    return tokens if batch_size is None else min(tokens, batch_size * length)


def length_bucket(length: int, limit: int, *, smallest: int = 32, steps: int = 1) -> int:
    """Returns the bucket of `length`: the number of tokens to which the rows of a batch are padded.

    Args:
        length: number of tokens of the longest row.
        limit: the maximum length of the model. The result is at most `limit`, but if `length`
            exceeds `limit`, the result is `length`.
        smallest: the smallest bucket in tokens, a power of two.
        steps: number of buckets from one power of two (exclusive) to the next (inclusive);
            consecutive buckets differ by at least 8 tokens. More buckets need less padding, but
            more compiled programs.
    """
    if length > smallest:
        power = 1 << ((length - 1).bit_length() - 1)  # power < length <= 2 * power
        step = max(8, power // steps)
        smallest = -(-length // step) * step
    return min(smallest, max(limit, length))


def piece_sizes(rows: int, length: int, tokens: int, devices: int = 1) -> list[int]:
    """Splits a batch of `rows` rows into pieces of 1, 8, 64, ... rows per device.

    A piece has at most `tokens` tokens per device, unless it has only one row per device. Only the
    last piece may need rows of padding; on a single device, fewer than half of its rows are
    padding.

    Args:
        rows: number of rows of the batch.
        length: number of tokens per row.
        tokens: maximum number of tokens of a piece on each device.
        devices: number of devices that the rows of a piece are sharded over.

    Returns:
        The number of rows of each piece, on all devices together and including padding.
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
    """Pads an array `values` [n, ...] to [size, ...] with rows of zeros at the end."""
    return np.pad(values, [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1))


def read_behind(started: Iterable[Started]) -> Iterator[Started]:
    """Yields the items of `started` in order, each item after the next item has been taken.

    If taking an item from `started` starts a computation on the devices, the devices compute while
    the caller reads the outputs of the previous item.
    """
    waiting: deque[Started] = deque()
    for item in started:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting
