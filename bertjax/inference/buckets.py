"""Restricts inference batches to a few shapes, so that jax compiles few programs.

Rows are padded to the length that `length_bucket` returns or, if all lengths are known beforehand,
to the lengths that `row_lengths` returns. A batch is split into pieces, each computed by one call
of the model, with the numbers of rows that `piece_sizes` returns. The caller of these functions
removes the padding from the outputs of the model.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

# A piece has 1, 4, 16, ... rows per device: powers of this number.
ROW_FACTOR = 4
# Maximum number of tokens per device in one call of the model. On CPUs, 1,000 tokens keep two cores
# busy, and the activations of more than 2,000 leave their caches.
TOKENS_ON_CPU = 2048
TOKENS_ON_ACCELERATOR = 65536
# Number of lengths of `row_lengths` from one power of two to the next.
FINE_STEPS = 8

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
        share: divisor of the number of tokens on accelerators; above 1 for calls whose outputs take
            much memory.
    """
    cpu = jax.default_backend() == "cpu"
    tokens = TOKENS_ON_CPU if cpu else TOKENS_ON_ACCELERATOR // share
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


def compiling_tokens() -> int:
    """Returns about how many tokens a device computes in the time in which a program is compiled.

    The estimate is for encoders of 20 to 110 million parameters: on two cores of a CPU, .3 to .5
    seconds and 1,000 to 8,000 tokens per second; on accelerators, some seconds and a million.
    """
    return 2048 if jax.default_backend() == "cpu" else 1 << 20


def row_lengths(lengths: Sequence[int], limit: int, *, smallest: int, compiling: int) -> np.ndarray:
    """Chooses the padded length of each row such that padding and compilation take the least time.

    Powers of two are always available, as in `length_bucket`, because programs of these lengths
    serve all later calls. Between two of them, there are up to `FINE_STEPS` finer lengths, at least
    8 tokens apart; a finer length is used only if it saves more than `compiling` tokens of padding.

    Args:
        lengths: number of tokens of each row before padding, all known beforehand.
        limit: the maximum length of the model.
        smallest: the smallest padded length, a power of two.
        compiling: number of tokens that are computed while a program is compiled.

    Returns:
        int [rows], the padded length of each row, at least its length.
    """
    if not len(lengths):
        return np.zeros(0, int)
    longest = max(lengths)
    coarse = {length_bucket(n, limit, smallest=smallest) for n in range(1, longest + 1)}
    fine = {
        length_bucket(n, limit, smallest=smallest, steps=FINE_STEPS) for n in range(1, longest + 1)
    }
    candidates = np.array(sorted(coarse | fine))
    which = np.searchsorted(candidates, lengths)  # the smallest candidate of each row
    below = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(candidates)))])
    penalty = np.array([0 if length in coarse else compiling for length in candidates.tolist()])
    # best[j]: the least cost of the rows of the first j candidates; taken from candidate start[j].
    best, start = np.zeros(len(candidates) + 1), np.zeros(len(candidates) + 1, int)
    for j in range(1, len(candidates) + 1):
        rows = below[j] - below[:j]
        costs = best[:j] + np.where(rows > 0, rows * candidates[j - 1] + penalty[j - 1], 0)
        start[j] = int(costs.argmin())
        best[j] = costs[start[j]]
    chosen, j = np.zeros(len(candidates), int), len(candidates)
    while j:
        chosen[start[j] : j] = candidates[j - 1]
        j = int(start[j])
    return chosen[which]


def piece_sizes(rows: int, length: int, tokens: int, devices: int = 1) -> list[int]:
    """Splits a batch of `rows` rows into pieces of 1, 4, 16, ... rows per device.

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
