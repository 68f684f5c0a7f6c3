"""The format of a batch: the arrays that every model, loss and task of bertjax takes.

A batch has B rows. A row holds one or several sequences, followed by padding: L tokens, with places
for P predictions and K sequences. An example has C classes or choices:

    input_ids         [B, L] int32    token ids, [PAD] where empty
    token_type_ids    [B, L] int32    0 for segment A, 1 for segment B; only 0 in some families
    position_ids      [B, L] int32    position of each token in its sequence, from 0 on
    sequence_ids      [B, L] int32    1..K: the token's sequence, for the attention mask; 0: padding
    masked_positions  [B, P] int32    positions in the row of the tokens to predict, 0 where unused
    masked_labels     [B, P] int32    ids of the tokens to predict, 0 where unused
    masked_weights    [B, P] float32  1, or 0 where unused
    sequence_starts   [B, K] int32    positions in the row of the [CLS] tokens, 0 where unused
    example_ids       [B, K] int32    index of the sequence's example in all hosts' batch, -1 = none
    labels            targets, by kind: NSP and classes [B, K] int32, -1 = none; multi_label
                      [B, K, C] float32; regression [B, K] float32; tokens [B, L] int32; span
                      [B, K, 2] int32, positions in the row; choice [B, K/C] int32; of examples of C
                      texts: contrastive [B, K/C, C] int32, similarity [B, K/C] float32
    label_weights     float32, [B, L] for tokens, [B, K/C] for choices and texts, else [B, K]:
                      weight of each label in the loss of a task, 0 = none; pretraining has no
                      label_weights
"""

from collections.abc import Sequence

import numpy as np

Batch = dict[str, np.ndarray]


def pad_to(values: Sequence[int] | np.ndarray, length: int, fill: int) -> np.ndarray:
    """Pads `values` [n] at the end with `fill`, and returns an int32 array [length].

    Raises:
        ValueError: n is greater than `length`.
    """
    if len(values) > length:
        raise ValueError(f"{len(values)} values do not fit in a length of {length}: pass fewer.")
    padded = np.zeros(length, np.int32) if fill == 0 else np.full(length, fill, np.int32)
    padded[: len(values)] = values
    return padded


def ranks(counts: np.ndarray) -> np.ndarray:
    """Numbers the items of each group from 0 on: int [sum of counts], for `counts` [G] items."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


class PaddedRows:
    """Places of N values in the rows of an array [B, W], row by row, with padding at their ends.

    Args:
        counts: int [B], the number of values of each row.
        width: W, the maximum number of values per row.
        what: what the values are, for the error message.

    Attributes:
        used: bool [B, W], whether the element holds a value.
        rows: int [N], the row of each value.
        columns: int [N], the column of each value.

    Raises:
        ValueError: a row has more than W values.
    """

    def __init__(self, counts: Sequence[int] | np.ndarray, width: int, what: str):
        counts = np.asarray(counts)
        if counts.max(initial=0) > width:
            raise ValueError(
                f"A row has {counts.max()} {what}, but only {width} fit: prepare the data again "
                "for this length, or change the config of the phase."
            )
        self.used = np.arange(width) < counts[:, None]
        self.rows, self.columns = np.repeat(np.arange(len(counts)), counts), ranks(counts)

    def spread(self, values: np.ndarray, fill: int = 0) -> np.ndarray:
        """Returns int32 [B, W] with `values` [N] in their places, and `fill` elsewhere."""
        spread = np.full(self.used.shape, fill, np.int32)
        spread[self.used] = values
        return spread


def layout(sequence_lengths: Sequence[int], row_length: int, max_sequences: int) -> Batch:
    """Returns position_ids [L], sequence_ids [L] and sequence_starts [K] of a packed row.

    For each token, these are its position in its sequence, from 0 on, and the number of its
    sequence, from 1 on; for each sequence, the position of its first token in the row. Unused
    elements are 0.

    Args:
        sequence_lengths: the number of tokens of each sequence in the row.
        row_length: L, the number of tokens of the row, padding included.
        max_sequences: K, the maximum number of sequences per row.

    Raises:
        ValueError: the sequences have more than `row_length` tokens in total, or there are more
            than `max_sequences` sequences.
    """
    lengths = np.asarray(sequence_lengths, np.int32)
    starts = np.cumsum(lengths) - lengths
    sequence_ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return {
        "position_ids": pad_to(ranks(lengths), row_length, 0),
        "sequence_ids": pad_to(sequence_ids, row_length, 0),
        "sequence_starts": pad_to(starts, max_sequences, 0),
    }


def stack(rows: Sequence[Batch]) -> Batch:
    """Stacks B rows, dicts of arrays, into one batch; each array gets the new first axis B."""
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
