"""Features: the token ids and labels of examples, in memory and as records on disk.

A record is the encoding of one `Feature`, with these little-endian fields:

    version uint8, bytes per token id uint8 (2 or 4), type of the labels uint8 (0 none, 1 int32,
    2 float32), number of sequences K uint16, number of labels uint32,
    K x (length uint16, number of tokens with token type 0 uint16), all token ids, the labels.
"""

import struct
from typing import Literal, NamedTuple

import numpy as np

LabelKind = Literal[
    "classes",
    "multi_label",
    "regression",
    "tokens",
    "span",
    "choice",
    "contrastive",
    "similarity",
]

FORMAT_VERSION = 1
_HEAD = struct.Struct("<BBBHI")
_NONE, _INT, _FLOAT = range(3)
_TYPES = {_INT: np.dtype("<i4"), _FLOAT: np.dtype("<f4")}


class Feature(NamedTuple):
    """Token ids and labels of one sequence, or of all choices or texts of one example.

    Attributes:
        input_ids: int32 [n], all sequences concatenated, each with its [CLS] and [SEP].
        lengths: number of tokens of each sequence.
        a_lengths: number of tokens with token type 0 in each sequence: the first segment with its
            special tokens, or all tokens if the model family has only one token type; the later
            tokens of each sequence have token type 1.
        labels: None, or the labels of one kind: "classes": int32 [1], the class index; "choice":
            int32 [1], the index of the correct choice; "multi_label": float32 [C], 1 for each
            class that applies, else 0; "regression": float32 [1], the target; "tokens": int32
            [n], the class index of each token, -1 = none; "span": int32 [2], the positions of the
            first and last token of the answer, [0, 0] (the position of [CLS]) = no answer;
            "contrastive": int32 [number of texts], a hash of each text; "similarity": float32 [1],
            the score of a pair of texts.
        origins: where the tokens come from in the text, and -1 for all other tokens, such as [CLS];
            None for most tasks; not stored on disk. In tagging: int [n], the index of the word that
            starts at the token, in the window that decides about the word. In question answering:
            int [n, 2], the token's start and end (exclusive) in the passage, in characters.
    """

    input_ids: np.ndarray
    lengths: tuple[int, ...]
    a_lengths: tuple[int, ...]
    labels: np.ndarray | None
    origins: np.ndarray | None = None


def encode_feature(feature: Feature) -> bytes:
    """Encodes a feature as the bytes of a record, without the feature's `origins`."""
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
    """Decodes a record that `encode_feature` returned; the feature's `origins` are None.

    Raises:
        ValueError: the format version of the record is not FORMAT_VERSION.
    """
    version, width, kind, sequences, count = _HEAD.unpack_from(record)
    if version != FORMAT_VERSION:
        raise ValueError(
            f"A record of a feature has the format version {version}, expected {FORMAT_VERSION}: "
            "write the features again."
        )
    at = _HEAD.size
    pairs = np.frombuffer(record, "<u2", 2 * sequences, at).reshape(-1, 2)
    at += pairs.nbytes
    ids = np.frombuffer(record, f"<u{width}", int(pairs[:, 0].sum()), at)
    at += ids.nbytes
    labels = np.frombuffer(record, _TYPES[kind], count, at) if kind != _NONE else None
    lengths, a_lengths = (tuple(column.tolist()) for column in pairs.T)
    return Feature(ids.astype(np.int32), lengths, a_lengths, labels)
