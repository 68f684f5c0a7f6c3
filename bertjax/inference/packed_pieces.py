"""Packs sequences into rows for inference, and the rows into pieces of few shapes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.batches.batch import Batch
from bertjax.data.batches.features import Feature
from bertjax.data.batches.finetuning_batches import (
    SHORTEST_ROW,
    Labels,
    Placement,
    make_rows,
    row_shape,
)
from bertjax.data.preparation.packing import pack
from bertjax.inference.buckets import (
    compiling_tokens,
    length_bucket,
    piece_sizes,
    row_lengths,
    token_budget,
)
from bertjax.model.bert import MODEL_INPUTS

# Smallest row length for very few tokens.
SMALLEST_ROW = 8


class Piece(NamedTuple):
    """The rows that one call of the model computes.

    Attributes:
        batch: the arrays `MODEL_INPUTS`, whose last rows may be padding.
        placements: {index of a feature: its row, slot and start in the batch}.
    """

    batch: Batch
    placements: dict[int, Placement]


def packed_pieces(
    features: Sequence[Feature],
    *,
    limit: int,
    pad_token_id: int,
    num_choices: int = 1,
    batch_size: int | None = None,
    devices: int = 1,
) -> Iterator[Piece]:
    """Packs features into rows, and yields the rows in pieces, short rows first.

    Features of up to half of `SHORTEST_ROW` tokens share rows of `SHORTEST_ROW` tokens; longer ones
    are in rows of the lengths that `row_lengths` chooses, where they may share them, too. Rows that
    do not fill a piece are packed again with the next longer ones, so that only the last pieces
    have rows of padding.

    Args:
        features: the encoded sequences, or examples of multiple choice.
        limit: maximum number of tokens of a feature.
        pad_token_id: the token id of padding.
        num_choices: number of sequences per feature.
        batch_size: maximum number of rows per device in a piece; None: as the device needs.
        devices: number of devices that the rows of a piece are sharded over.
    """
    labels = Labels("choice" if num_choices > 1 else "classes", num_choices=num_choices)
    unlabelled = [feature._replace(labels=None) for feature in features]
    sizes = np.array([len(feature.input_ids) for feature in features], int)
    shared = min(SHORTEST_ROW, length_bucket(int(sizes.sum()), limit, smallest=SMALLEST_ROW))
    alone = SHORTEST_ROW // 2  # features of up to this length share rows
    lengths = row_lengths(sizes.tolist(), limit, smallest=alone, compiling=compiling_tokens())
    lengths = np.where(lengths <= alone, shared, lengths)
    chosen = np.unique(lengths).tolist()
    waiting: list[int] = []
    for length in chosen:
        members = [*waiting, *np.flatnonzero(lengths == length).tolist()]
        shape = row_shape(length, num_choices, ())
        packed = pack(
            sizes[members].tolist(), length, shape.max_sequences, [num_choices] * len(members)
        )
        rows = [[members[item] for item in row] for row in packed]
        rows.sort(key=lambda row: -int(sizes[row].sum()))
        counts = piece_sizes(len(rows), length, token_budget(length, batch_size), devices)
        if length != chosen[-1]:
            # Only pieces of the first size, all of whose rows are used.
            counts = counts[:1] * (len(rows) // counts[0])
        start = 0
        for count in counts:
            taken = rows[start : start + count]
            padding = [[] for _ in range(count - len(taken))]
            batch, placements = make_rows(unlabelled, taken + padding, shape, labels, pad_token_id)
            yield Piece({key: batch[key] for key in MODEL_INPUTS}, placements)
            start += len(taken)
        waiting = [item for row in rows[start:] for item in row]
