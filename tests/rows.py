"""Records of rows that a test makes up."""

import numpy as np

from bertjax.data.records import Row, row_head


def encode_row(row: Row) -> bytes:
    """Encodes a row as the record that preparation would write of it."""
    ids = np.asarray(row.input_ids)
    assert (
        len(row.lengths) == len(row.a_lengths) == len(row.labels) and sum(row.lengths) == ids.size
    )
    width = 2 if ids.size == 0 or ids.max() < 1 << 16 else 4
    sequences = list(zip(row.lengths, row.a_lengths, row.labels, strict=True))
    return row_head(width, sequences) + ids.astype(f"<u{width}").tobytes()
