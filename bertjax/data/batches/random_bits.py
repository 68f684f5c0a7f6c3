"""Random bits of pretraining rows, from a counter-based generator.

Philox (Salmon et al. 2011) computes its random numbers from a key and a counter. Each row has its
own range of counters, so the random numbers of a row depend only on the key and the row's index.
"""

from collections.abc import Sequence

import numpy as np

# Philox returns 4 numbers of 64 bits for each value of the counter.
_NUMBERS = 4


def random_bits(seed: Sequence[int], rows: Sequence[int], row_length: int) -> np.ndarray:
    """Returns uint64 [R, 2, row_length]: two random numbers for each token of R rows.

    Args:
        seed: non-negative integers that determine the key of the generator.
        rows: the index of each row among all rows of the phase or data set, non-negative.
        row_length: the number of tokens per row, padding included.
    """
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    generator, counters = np.random.Philox(key=key), -(-2 * row_length // _NUMBERS)
    indices = np.asarray(rows)
    bits = np.empty((len(indices), counters * _NUMBERS), np.uint64)
    position = 0
    # Rows with consecutive indices, as in a host's share of a batch, are drawn together.
    starts = np.flatnonzero(np.diff(indices, prepend=indices[:1] - 2) != 1).tolist()
    for start, end in zip(starts, [*starts[1:], len(indices)], strict=True):
        first = int(indices[start]) * counters
        generator.advance((first - position) % (1 << 256))
        bits[start:end] = generator.random_raw((end - start, counters * _NUMBERS))
        position = first + (end - start) * counters
    return bits[:, : 2 * row_length].reshape(len(indices), 2, row_length)
