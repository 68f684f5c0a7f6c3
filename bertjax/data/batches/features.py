"""Features: the tokens and labels of an example, in memory and as a record on disk.

A record is little-endian:

    version uint8, bytes per id uint8 (2 or 4), type of the labels uint8, sequences K uint16,
    labels M uint32, K x (length uint16, tokens of type 0 uint16), all token ids, the labels.
"""

import struct
from typing import Literal, NamedTuple

import numpy as np

LabelKind = Literal["classes", "multi_label", "regression", "tokens", "span", "choice"]

FORMAT_VERSION = 1
_HEAD = struct.Struct("<BBBHI")
_NONE, _INT, _FLOAT = range(3)
_TYPES = {_INT: np.dtype("<i4"), _FLOAT: np.dtype("<f4")}


class Feature(NamedTuple):
    """One sequence, or several that must share a row (the choices of a multiple-choice example).

    Attributes:
        input_ids: int32 [n], all sequences concatenated, each with its [CLS] and [SEP].
        lengths: number of tokens of each sequence.
        a_lengths: number of tokens of type 0 in each sequence: the first segment with its special
            tokens, or all tokens if the family has only one type. The others are of type 1.
        labels: None, or an array that depends on the kind of labels: classes and choice have int32
            [1], the class or the correct choice; multi_label float32 [C] of 0 and 1; regression
            float32 [1]; tokens int32 [n], -1 where no label is predicted; span int32 [2], first and
            last token counted from [CLS] (0 0: no answer in this window).
        origins: the source of each token, -1 = none; not stored on disk. In tagging, it is int [n],
            the index of the word that the token begins; for a passage, it is int [n, 2], the start
            and end (exclusive) of the token's characters.
    """

    input_ids: np.ndarray
    lengths: tuple[int, ...]
    a_lengths: tuple[int, ...]
    labels: np.ndarray | None
    origins: np.ndarray | None = None


def encode_feature(feature: Feature) -> bytes:
    """Encodes a feature as a record."""
    ids = np.asarray(feature.input_ids)
    width = 2 if ids.max(initial=0) < 1 << 16 else 4
    labels, kind = b"", _NONE
    count = 0
    if feature.labels is not None:
        kind = _FLOAT if feature.labels.dtype.kind == "f" else _INT
        labels, count = feature.labels.astype(_TYPES[kind]).tobytes(), len(feature.labels)
    pairs = np.array([feature.lengths, feature.a_lengths]).T
    head = _HEAD.pack(FORMAT_VERSION, width, kind, len(feature.lengths), count)
    return b"".join(
        [head, pairs.astype("<u2").tobytes(), ids.astype(f"<u{width}").tobytes(), labels]
    )


def decode_feature(record: bytes) -> Feature:
    """Decodes a record written by `encode_feature`.

    Raises:
        ValueError: the record has another format version.
    """
    version, width, kind, sequences, count = _HEAD.unpack_from(record)
    if version != FORMAT_VERSION:
        raise ValueError(
            f"Feature format {version}, expected {FORMAT_VERSION}: write the features again."
        )
    at = _HEAD.size
    pairs = np.frombuffer(record, "<u2", 2 * sequences, at).reshape(-1, 2)
    at += pairs.nbytes
    ids = np.frombuffer(record, f"<u{width}", int(pairs[:, 0].sum()), at)
    at += ids.nbytes
    labels = np.frombuffer(record, _TYPES[kind], count, at) if kind != _NONE else None
    lengths, a_lengths = (tuple(column.tolist()) for column in pairs.T)
    return Feature(ids.astype(np.int32), lengths, a_lengths, labels)
