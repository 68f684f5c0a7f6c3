"""The format of a batch, the arrays that every model, loss and task takes, and of features.

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
                      and distribution [B, K, C] float32; targets [B, K, C] float32, NaN = missing;
                      regression [B, K] float32; tokens [B, L] int32; span
                      [B, K, 2] int32, positions in the row; choice [B, K/C] int32; of examples of C
                      texts: contrastive [B, K/C, C] int32, similarity [B, K/C] float32, distilled
                      [B, K/C, C - 1] float32, ranking [B, K/C, C] float32
    label_weights     float32, [B, L] for tokens, [B, K/C] for choices and texts, else [B, K]:
                      weight of each label in the loss of a task, 0 = none; pretraining has no
                      label_weights
"""

import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

Batch = dict[str, np.ndarray]


def pad_to(values: Sequence[int] | np.ndarray, length: int, fill: int) -> np.ndarray:
    """Pads `values` [n] with `fill` to int32 [length]; raises ValueError if n is greater."""
    if len(values) > length:
        raise ValueError(f"{len(values)} values do not fit in a length of {length}: pass fewer.")
    padded = np.full(length, fill, np.int32)
    padded[: len(values)] = values
    return padded


def ranks(counts: np.ndarray) -> np.ndarray:
    """Numbers the items of each group from 0 on: int [sum of counts], for `counts` [G] items."""
    first = np.cumsum(counts) - counts
    numbers = np.arange(counts.sum())
    return numbers - np.repeat(first, counts)


class PaddedRows:
    """Places of N values in the rows of an array [B, W], row by row, with padding at their ends.

    `counts`, int [B], are the numbers of values of the rows. `used`, bool [B, W], tells which
    elements hold a value; `rows` and `columns`, int [N], are the place of each value. Raises
    ValueError if a row has more than `width` (W) values; `what` names them in the message.
    """

    def __init__(self, counts: Sequence[int] | np.ndarray, width: int, what: str):
        counts = np.asarray(counts)
        most = counts.max(initial=0)
        if most > width:
            raise ValueError(
                f"A row has {most} {what}, but only {width} fit: prepare the data again for this "
                "length, or change the config of the phase."
            )
        self.used = np.arange(width) < counts[:, None]
        numbers = np.arange(len(counts))
        self.rows = np.repeat(numbers, counts)
        self.columns = ranks(counts)

    def spread(self, values: np.ndarray, fill: int = 0) -> np.ndarray:
        """Returns int32 [B, W] with `values` [N] in their places, and `fill` elsewhere."""
        spread = np.full(self.used.shape, fill, np.int32)
        spread[self.used] = values
        return spread


def layout(sequence_lengths: Sequence[int], row_length: int, max_sequences: int) -> Batch:
    """Returns position_ids [L], sequence_ids [L] and sequence_starts [K] of a packed row.

    L is `row_length`, and K is `max_sequences`; unused elements are 0. Raises ValueError if the
    sequences have more than L tokens in total, or there are more than K.
    """
    lengths = np.asarray(sequence_lengths, np.int32)
    starts = np.cumsum(lengths) - lengths
    numbers = np.arange(1, len(lengths) + 1)
    sequence_ids = np.repeat(numbers, lengths)
    return {
        "position_ids": pad_to(ranks(lengths), row_length, 0),
        "sequence_ids": pad_to(sequence_ids, row_length, 0),
        "sequence_starts": pad_to(starts, max_sequences, 0),
    }


def stack(rows: Sequence[Batch]) -> Batch:
    """Stacks B rows into one batch; each array gets the new first axis B."""
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


SeveralTexts = Literal["contrastive", "similarity", "distilled", "ranking"]
OfSequence = Literal["classes", "multi_label", "distribution", "regression", "targets"]
LabelKind = Literal[OfSequence, "tokens", "span", "choice", SeveralTexts]

FORMAT_VERSION = 1
_HEAD = struct.Struct("<BBBHI")
_NONE, _INT, _FLOAT = range(3)
_TYPES = {_INT: np.dtype("<i4"), _FLOAT: np.dtype("<f4")}


class Feature(NamedTuple):
    """Token ids and labels of one sequence, or of all choices or texts of one example.

    Attributes:
        input_ids: int32 [n], all sequences concatenated, each with its [CLS] and [SEP].
        lengths: number of tokens of each sequence.
        a_lengths: number of the first tokens of each sequence with token type 0; all tokens if the
            model family has only one token type.
        labels: None, or the labels of one kind: "classes": int32 [1], the class index; "choice":
            int32 [1], the index of the correct choice; "multi_label": float32 [C], 1 for each
            class that applies, else 0; "distribution": float32 [C], the probability of each class;
            "regression": float32 [1], the target; "targets": float32 [C], NaN = missing; "tokens":
            int32 [n], the class index of each token, -1 = none; "span": int32 [2], the positions
            of the first and last token of the answer, [0, 0] (that of [CLS]) = no answer;
            "contrastive": int32 [number of texts], a hash of each text; "similarity": float32 [1],
            the score of a pair of texts; "distilled": float32 [number of texts - 1], a teacher's
            scores of the first text and each of the others; "ranking": float32 [number of texts],
            the label of each, or a teacher's score.
        origins: where the tokens come from in the text, -1 for others, such as [CLS]; None for most
            tasks; not stored on disk. In tagging: int [n], the index of the word that starts at the
            token. In question answering: int [n, 2], the token's start and end (exclusive) in the
            passage, in characters.
    """

    input_ids: np.ndarray
    lengths: tuple[int, ...]
    a_lengths: tuple[int, ...]
    labels: np.ndarray | None
    origins: np.ndarray | None = None


def encode_feature(feature: Feature) -> bytes:
    """Encodes a feature as the bytes of a record, without the feature's `origins`.

    A record has these little-endian fields:

        version uint8, bytes per token id uint8 (2 or 4), type of the labels uint8 (0 none, 1 int32,
        2 float32), number of sequences K uint16, number of labels uint32,
        K x (length uint16, number of tokens with token type 0 uint16), all token ids, the labels.
    """
    ids = np.asarray(feature.input_ids)
    highest = ids.max(initial=0)
    width = 2 if highest < 1 << 16 else 4
    labels = b""
    kind = _NONE
    count = 0
    if feature.labels is not None:
        kind = _INT
        if feature.labels.dtype.kind == "f":
            kind = _FLOAT
        labels = feature.labels.astype(_TYPES[kind]).tobytes()
        count = len(feature.labels)
    sequences = len(feature.lengths)
    head = _HEAD.pack(FORMAT_VERSION, width, kind, sequences, count)
    pairs = np.array([feature.lengths, feature.a_lengths], "<u2").T
    return head + pairs.tobytes() + ids.astype(f"<u{width}").tobytes() + labels


def decode_feature(record: bytes) -> Feature:
    """Decodes a record that `encode_feature` returned; the feature's `origins` are None."""
    _, width, kind, sequences, count = _HEAD.unpack_from(record)
    at = _HEAD.size
    pairs = np.frombuffer(record, "<u2", 2 * sequences, at).reshape(-1, 2)
    lengths = tuple(pairs[:, 0].tolist())
    a_lengths = tuple(pairs[:, 1].tolist())
    at += pairs.nbytes
    ids = np.frombuffer(record, f"<u{width}", sum(lengths), at)
    at += ids.nbytes
    labels = None
    if kind != _NONE:
        labels = np.frombuffer(record, _TYPES[kind], count, at)
    return Feature(ids.astype(np.int32), lengths, a_lengths, labels)
