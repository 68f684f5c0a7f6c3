"""Features of a task as packed batches: shuffled by (seed, epoch), of a few shapes.

A batch is always the same number of features, put side by side in as many rows as they need; so an
update does not depend on how they are packed. The number of rows is rounded up to one of a few, so
that few shapes compile.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from bertjax.data.batches.batch import Batch, layout, pad_to, stack
from bertjax.data.batches.features import Feature, LabelKind, decode_feature
from bertjax.data.preparation.packing import pack

# Below this, rows are too short to be filled well by several sequences.
SHORTEST_ROW = 64
# A row has room for as many sequences as it would hold of this length.
TOKENS_A_SEQUENCE = 8


class Labels(NamedTuple):
    """How the labels of a task become arrays.

    Attributes:
        kind: of labels.
        num_classes: for multi_label.
        num_choices: for choice: so many sequences belong together.
        class_weights: what an example of each class counts in the loss; None: 1.
    """

    kind: LabelKind
    num_classes: int = 2
    num_choices: int = 1
    class_weights: tuple[float, ...] | None = None


class RowShape(NamedTuple):
    """Tokens of a row, sequences of a row at most, and numbers of rows, ascending."""

    row_length: int
    max_sequences: int
    row_counts: tuple[int, ...]


class Placement(NamedTuple):
    """Where a feature stands in a batch: its row, its first sequence's slot, its first token."""

    row: int
    slot: int
    start: int


def row_shape(row_length: int, num_choices: int, row_counts: Sequence[int]) -> RowShape:
    """The shape of rows of a length; sequences of one example fill whole groups of slots."""
    slots = max(1, row_length // TOKENS_A_SEQUENCE)
    slots = max(1, slots // num_choices) * num_choices
    return RowShape(row_length, slots, tuple(row_counts))


def plan_rows(
    sizes: np.ndarray, *, batch_size: int, num_choices: int, multiple_of: int
) -> RowShape:
    """Chooses the shapes of training batches by packing some random ones, the same every time.

    Args:
        sizes: tokens of every feature, int [n].
        batch_size: features of a batch.
        num_choices: sequences of every feature.
        multiple_of: what the devices and microbatches divide the rows by.
    """
    row_length = max(SHORTEST_ROW, -(-int(sizes.max()) // 8) * 8)
    shape = row_shape(row_length, num_choices, ())
    rng = np.random.default_rng(0)
    needed = []
    for _ in range(64):
        sample = rng.choice(sizes, min(batch_size, len(sizes)), replace=False).tolist()
        counts = [num_choices] * len(sample)
        needed.append(len(pack(sample, row_length, shape.max_sequences, counts)))
    # Most batches fit the middle ones; every batch fits the last, a row each.
    wanted = [*np.quantile(needed, (0.3, 0.7, 1.0), method="higher"), batch_size]
    rounded = {-(-int(count) // multiple_of) * multiple_of for count in wanted}
    return shape._replace(row_counts=tuple(sorted(rounded)))


def make_batch(
    features: Sequence[Feature],
    shape: RowShape,
    labels: Labels,
    pad_token_id: int,
) -> tuple[Batch, list[Placement]]:
    """Packs features into one batch; also says where each stands.

    The batch has the first of `shape.row_counts` that suffices, else as many rows as it needs.
    """
    sizes = [len(feature.input_ids) for feature in features]
    counts = [len(feature.lengths) for feature in features]
    packed = pack(sizes, shape.row_length, shape.max_sequences, counts)
    rows = next((count for count in shape.row_counts if count >= len(packed)), len(packed))
    placements: list[Any] = [None] * len(features)
    made = []
    for row, members in enumerate(packed + [[]] * (rows - len(packed))):
        made.append(_make_row(features, members, shape, labels, pad_token_id))
        slot = start = 0
        for item in members:
            placements[item] = Placement(row, slot, start)
            slot, start = slot + counts[item], start + sizes[item]
    return stack(made), placements


def _make_row(
    features: Sequence[Feature],
    members: Sequence[int],
    shape: RowShape,
    labels: Labels,
    pad_token_id: int,
) -> Batch:
    length, slots = shape.row_length, shape.max_sequences
    chosen = [features[item] for item in members]
    ids = np.concatenate([np.zeros(0, np.int32), *(f.input_ids for f in chosen)])
    lengths = [n for f in chosen for n in f.lengths]
    a_lengths = [n for f in chosen for n in f.a_lengths]
    of_b = [np.arange(n) >= a for n, a in zip(lengths, a_lengths, strict=True)]
    row = {
        "input_ids": pad_to(ids, length, pad_token_id),
        "token_type_ids": pad_to(np.concatenate([np.zeros(0), *of_b]), length, 0),
        **layout(lengths, length, slots),
        "example_ids": pad_to(np.repeat(members, [len(f.lengths) for f in chosen]), slots, -1),
    }
    return row | _make_labels(chosen, row["sequence_starts"], shape, labels)


def _make_labels(
    chosen: Sequence[Feature], starts: np.ndarray, shape: RowShape, labels: Labels
) -> Batch:
    """labels and label_weights of a row, by kind; see `data.batch`."""
    if labels.kind == "tokens":
        found, fill = np.full(shape.row_length, -1, np.int32), -1
        given = [_tokens_of(f) for f in chosen]
        if given:
            joined = np.concatenate(given)
            found[: len(joined)] = joined
        return {"labels": found, "label_weights": _weights(found, labels)}
    size = shape.max_sequences // labels.num_choices
    tail = {"multi_label": (labels.num_classes,), "span": (2,)}.get(labels.kind, ())
    dtype = np.float32 if labels.kind in ("multi_label", "regression") else np.int32
    fill = 0 if labels.kind in ("multi_label", "regression", "span") else -1
    found = np.full((size, *tail), fill, dtype)
    weights = np.zeros(size, np.float32)
    for slot, feature in enumerate(chosen):
        if feature.labels is not None:
            value = feature.labels if tail else feature.labels[0]
            found[slot] = value + starts[slot] if labels.kind == "span" else value
            weights[slot] = 1.0
    if labels.kind in ("classes", "choice"):
        weights = _weights(found, labels)
    return {"labels": found, "label_weights": weights}


def _tokens_of(feature: Feature) -> np.ndarray:
    none = np.full(len(feature.input_ids), -1, np.int32)
    return none if feature.labels is None else feature.labels


def _weights(found: np.ndarray, labels: Labels) -> np.ndarray:
    given = (found >= 0).astype(np.float32)
    if labels.class_weights is None:
        return given
    return given * np.asarray(labels.class_weights, np.float32)[np.maximum(found, 0)]


class FeatureBatches(grain.MapDataset):
    """Batch i of a training run: features shuffled by (seed, epoch), packed.

    The last batch of an epoch is short, if the batch size does not divide the features.

    Args:
        path: an ArrayRecord file of features.
        batch_size: features of a batch.
        shape, labels, pad_token_id: of the batches.
        seed: of the order.
        first: the batch to begin with.
    """

    def __init__(
        self,
        path: str,
        batch_size: int,
        shape: RowShape,
        labels: Labels,
        pad_token_id: int,
        *,
        seed: int,
        first: int = 0,
    ):
        super().__init__()
        self._records: Any = grain.sources.ArrayRecordDataSource([path])
        self._batch_size, self._shape, self._labels = batch_size, shape, labels
        self._pad_token_id, self._seed, self._first = pad_token_id, seed, first
        self.batches_per_epoch = -(-len(self._records) // batch_size)
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, int))

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: Any) -> Any:
        records = self._records.__getitems__(self.members(self._first + index).tolist())
        features = [decode_feature(record) for record in records]
        return make_batch(features, self._shape, self._labels, self._pad_token_id)[0]

    def members(self, batch: int) -> np.ndarray:
        """Which features make up a batch of the run, counted from its beginning."""
        epoch, batch = divmod(batch, self.batches_per_epoch)
        return self._order_of(epoch)[batch * self._batch_size : (batch + 1) * self._batch_size]

    def _order_of(self, epoch: int) -> np.ndarray:
        known, order = self._order
        if known != epoch:
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self._records))
            self._order = (epoch, order)  # replaced as one: reader threads share it
        return order


def feature_batches(batches: FeatureBatches, num_threads: int) -> Iterator[Batch]:
    """The batches one after the other, read ahead by threads; endless."""
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
    return iter(batches.to_iter_dataset(options))
