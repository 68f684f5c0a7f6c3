"""Records and batches of rows that a test makes up."""

from collections.abc import Sequence

import numpy as np

from bertjax.data.batches.batch import Batch, Feature
from bertjax.data.records import Row, row_head
from bertjax.tasks.training_data import Labels, Placement, RowShape, make_rows, pack_features


def encode_row(row: Row) -> bytes:
    """Encodes a row as the record that preparation would write of it."""
    ids = np.asarray(row.input_ids)
    assert (
        len(row.lengths) == len(row.a_lengths) == len(row.labels) and sum(row.lengths) == ids.size
    )
    width = 2 if ids.size == 0 or ids.max() < 1 << 16 else 4
    sequences = list(zip(row.lengths, row.a_lengths, row.labels, strict=True))
    return row_head(width, sequences) + ids.astype(f"<u{width}").tobytes()


def make_batch(
    features: Sequence[Feature], shape: RowShape, labels: Labels, pad_token_id: int
) -> tuple[Batch, list[Placement]]:
    """Packs features into one batch; returns the batch and the `Placement` of each feature.

    The batch has the arrays of `batch.py`, except the arrays for masked tokens.
    """
    sizes = [len(feature.input_ids) for feature in features]
    rows = pack_features(sizes, shape, labels.num_choices)
    batch, placements = make_rows(features, rows, shape, labels, pad_token_id)
    return batch, [placements[item] for item in range(len(features))]
