"""The batch contract: what every model, loss and task of bertjax takes.

B rows, L tokens, P predictions a row, K sequences a row:

    input_ids         [B, L] int32    token ids, [PAD] where empty
    token_type_ids    [B, L] int32    0 for segment A, 1 for segment B (0 where types are unknown)
    position_ids      [B, L] int32    restart at every sequence of a row
    sequence_ids      [B, L] int32    0 = padding, 1..K = which sequence; tokens attend in their own
    masked_positions  [B, P] int32    where the model predicts a token, 0 where unused
    masked_labels     [B, P] int32    the token that stood there
    masked_weights    [B, P] float32  1, or 0 where unused
    sequence_starts   [B, K] int32    where each [CLS] stands, 0 where unused
    example_ids       [B, K] int32    which example a sequence belongs to, -1 = empty slot
    labels            what is to be learnt, by kind: NSP and classes [B, K] int32, -1 = none;
                      multi_label [B, K, C] float32; regression [B, K] float32; tokens [B, L] int32;
                      span [B, K, 2] int32, places in the row; choice [B, K/C] int32
    label_weights     float32, [B, L] for tokens, [B, K/C] for choices, else [B, K]: what each label
                      counts in the loss of a task, 0 = none (pretraining goes without)
"""

from collections.abc import Sequence

import numpy as np

Batch = dict[str, np.ndarray]


def pad_to(values: Sequence[int] | np.ndarray, length: int, fill: int) -> np.ndarray:
    """values [n] -> int32 [length], `fill` behind them.

    Raises:
        ValueError: there are more values than `length`.
    """
    if len(values) > length:
        raise ValueError(f"{len(values)} values do not fit in {length}: shorten them.")
    padded = np.zeros(length, np.int32) if fill == 0 else np.full(length, fill, np.int32)
    padded[: len(values)] = values
    return padded


def layout(sequence_lengths: Sequence[int], row_length: int, max_sequences: int) -> Batch:
    """Position and sequence ids [L] and starts [K] of sequences laid side by side in one row.

    Raises:
        ValueError: there are more tokens than `row_length`, or sequences than `max_sequences`.
    """
    lengths = np.asarray(sequence_lengths, np.int32)
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(lengths.sum(), dtype=np.int32) - np.repeat(starts, lengths)
    sequence_ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return {
        "position_ids": pad_to(positions, row_length, 0),
        "sequence_ids": pad_to(sequence_ids, row_length, 0),
        "sequence_starts": pad_to(starts, max_sequences, 0),
    }


def stack(rows: Sequence[Batch]) -> Batch:
    """Rows of equal shapes -> one batch."""
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
