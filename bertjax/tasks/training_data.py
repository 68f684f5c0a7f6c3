"""From examples to batches: the train split in a file of features, shuffled and packed into rows.

A `Feature` holds the token ids and labels of an example (or of one window of a long text). Every
batch of an epoch except the last holds the same number of features, in as many rows as they need,
so packing does not change which features an update uses. The number of rows per batch is rounded up
to one of a few values, so that XLA compiles few batch shapes.
"""

import array
import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grain
import numpy as np

from bertjax.data.batches.batch import (
    Batch,
    Feature,
    LabelKind,
    decode_feature,
    encode_feature,
    layout,
    pad_to,
    stack,
)
from bertjax.data.preparation.packing import pack
from bertjax.data.records import ShardReader, write_shard
from bertjax.tasks.dataset import (
    PROBLEMS,
    Dataset,
    Example,
    GroupKey,
    Lengths,
    connected,
    group_keys,
)
from bertjax.tasks.task import Task, TruncatedTexts
from bertjax.tokenization import Tokenizer


class TrainingData(NamedTuple):
    """The file with the encoded train split, and its statistics.

    Attributes:
        path: the path of the file, which has one record per feature.
        sizes: number of tokens of each feature, int [number of features].
        class_counts: number of features (in tagging, words) of each class, int [number of classes];
            a feature with several labels is counted for each, and probabilities are summed; empty
            for tasks without classes.
        fingerprint: hexadecimal SHA-256 of all records in the file.
        examples: number of examples, of which long texts may have several features.
        left_out: {where: problem} of the rows that cannot be encoded and are left out.
        groups: the group of each feature, int [number of features]; None if there are no groups.
        lengths: the lengths of the examples.
        chosen: the indices of the examples that are drawn from others, int [examples]; None: all.
    """

    path: Path
    sizes: np.ndarray
    class_counts: np.ndarray
    fingerprint: str
    examples: int
    left_out: Mapping[str, str] = {}
    groups: np.ndarray | None = None
    lengths: Lengths = Lengths(0, 0, 0, 0, 0, 0)
    chosen: np.ndarray | None = None


def write_training_data(
    task: Task, tokenizer: Tokenizer, max_length: int, path: Path
) -> TrainingData:
    """Encodes the train split and writes it to an ArrayRecord file, one input at a time.

    Raises:
        ValueError: the train split does not exist or is empty, or an example in the train split is
            malformed or has no label.
    """
    sizes = array.array("I")
    digest = hashlib.sha256()
    several = task.label_kind in ("multi_label", "distribution")
    has_classes = several or task.label_kind in ("classes", "tokens")
    counts = np.zeros(len(task.labels) if has_classes else 0)
    examples = 0
    problems: dict[str, str] = {}
    groups: list[list[GroupKey]] = []
    truncated = TruncatedTexts(task, max_length)

    def records() -> Iterator[bytes]:
        nonlocal examples
        last = None
        for example, feature in _features(task, "train", tokenizer, truncated, problems):
            examples += example is not last
            last = example
            assert feature.labels is not None
            if several:
                counts[:] += feature.labels
            elif has_classes:
                labels = feature.labels[feature.labels >= 0]
                counts[:] += np.bincount(labels, minlength=len(counts))
            sizes.append(len(feature.input_ids))
            if task.data.group_columns:
                groups.append(group_keys(example, task.data.group_columns))
            record = encode_feature(feature)
            digest.update(record)
            yield record

    write_shard(path, records())
    task.data.rows["train"].forget()
    if not sizes:
        raise task.data.without("train", problems).no_examples("train")
    return TrainingData(
        path,
        np.array(sizes),
        np.rint(counts).astype(np.int64),
        digest.hexdigest(),
        examples,
        problems,
        connected(groups) if groups else None,
        truncated.lengths(),
    )


# What is left of a problem without its place and the remedy is the reason.
_NO_REASON = re.compile(r"^.*?row \d+(?:, question \S+)?:? ?|[;:] .*", re.DOTALL)
_VALUE = re.compile('"[^"]*"')


def rows_in_words(data: Dataset, train: TrainingData) -> str:
    """Returns how many rows are used, and why the others cannot be; "" if all can be used."""
    problems = data.all_bad_rows()
    if not problems:
        return ""
    reasons = Counter(_NO_REASON.sub("", _VALUE.sub("…", problem)) for _, problem in problems)
    used = train.examples + sum(lengths.examples for lengths in data.lengths.values())
    shown = [f"{count}: {reason}" for reason, count in reasons.most_common(PROBLEMS)]
    bad = len(problems)
    return f"{used + bad:,} rows: {used:,} used, {bad:,} left out ({'; '.join(shown)})"


def check_splits(task: Task, tokenizer: Tokenizer, max_length: int) -> Task:
    """Encodes every split except train, so that malformed rows are reported before the training.

    Returns the task without the rows that cannot be encoded, if they may be left out.

    Raises:
        ValueError: a row is malformed or has a label that does not occur in training (the message
            names the row), or a split is empty.
    """
    data = task.data
    lengths = {}
    for split in data.splits:
        if split == "train":
            continue
        problems: dict[str, str] = {}
        truncated = TruncatedTexts(task, max_length)
        count = sum(1 for _ in _features(task, split, tokenizer, truncated, problems))
        data = data.without(split, problems)
        if not count:
            raise data.no_examples(split)
        lengths[split] = truncated.lengths()
    return dataclasses.replace(task, source=dataclasses.replace(data, lengths=lengths))


def _features(
    task: Task,
    split: str,
    tokenizer: Tokenizer,
    truncated: TruncatedTexts,
    problems: dict[str, str],
) -> Iterator[tuple[Example, Feature]]:
    """Yields (example, feature) of a split, and adds {where: problem} of the other examples.

    Raises one ValueError about all of these at the end, unless they may be left out.
    """
    is_train = split == "train"
    encode = task.features_to_predict
    if is_train:
        encode = task.features
    for example in task.data.examples(split):
        try:
            features = encode(example, tokenizer, truncated.max_length)
            if is_train and any(feature.labels is None for feature in features):
                raise ValueError(
                    f"{example.where} has no label, but training needs one for every example: add "
                    "it, or remove the example."
                )
        except ValueError as error:
            problems[example.where] = str(error)
            continue
        truncated.add(example, features)
        for feature in features:
            yield example, feature
    task.data.without(split, problems)
    if truncated.message:
        print(f"{split}: {truncated.message}")


# Smallest row length in tokens; packing would leave more padding in shorter rows.
SHORTEST_ROW = 64
# Row length, in tokens, per slot; a slot holds one sequence.
TOKENS_PER_SLOT = 8


class Labels(NamedTuple):
    """Description of the label arrays of a task.

    `kind` is one of the kinds that `Feature` describes. `num_classes` is used only for
    "multi_label", "distribution" and "targets". `num_choices`, the number of sequences per feature,
    is above 1 only for "choice", "contrastive", "similarity", "distilled" and "ranking".
    `class_weights` weigh the classes in the loss; None: 1 for all.
    """

    kind: LabelKind
    num_classes: int = 2
    num_choices: int = 1
    class_weights: tuple[float, ...] | None = None


class RowShape(NamedTuple):
    """The shape of batches: tokens and sequences per row, padding included.

    The number of rows of a batch is rounded up to one of `row_counts`, which ascend.
    """

    row_length: int
    max_sequences: int
    row_counts: tuple[int, ...]


class Placement(NamedTuple):
    """The position of a feature in a batch: its row, first sequence in the row, and first token."""

    row: int
    slot: int
    start: int


def row_shape(row_length: int, num_choices: int, row_counts: Sequence[int]) -> RowShape:
    """Returns the shape of rows of `row_length` tokens, with a sequence per TOKENS_PER_SLOT tokens.

    The number of sequences is a multiple of `num_choices`.
    """
    slots = max(1, row_length // TOKENS_PER_SLOT)
    slots = max(1, slots // num_choices) * num_choices
    return RowShape(row_length, slots, tuple(row_counts))


# The time to compile a batch shape, in steps: a shape has to save more. On two cores, it was about
# 4 steps of MiniLM; on accelerators, steps are shorter and compiling takes longer.
COMPILING = 20


def plan_rows(
    sizes: np.ndarray, *, batch_size: int, num_choices: int, multiple_of: int, num_batches: int
) -> RowShape:
    """Chooses the row length and the allowed numbers of rows of training batches.

    The row length fits the longest feature. Because several features share a row, a batch usually
    needs fewer rows than features. To find how many, 64 random batches, drawn with a fixed seed,
    are packed into rows. The 0.3, 0.7 and 1.0 quantiles of their numbers of rows are allowed, so
    that XLA compiles few batch shapes, and also `batch_size` rows, which suffice for any batch. A
    lower quantile is left out if to compile another shape takes longer than the rows that it saves.
    A row has as many features at most as a row of these batches: heads compute outputs for all.

    Args:
        sizes: number of tokens of every feature, int [n].
        batch_size: number of features per batch.
        num_choices: number of sequences per feature.
        num_batches: number of batches of the training.
        multiple_of: divisor of every allowed number of rows: the number of devices that batches are
            sharded over, times the number of gradient accumulation steps.
    """
    row_length = max(SHORTEST_ROW, -(-int(sizes.max()) // 8) * 8)
    shape = row_shape(row_length, num_choices, ())
    rng = np.random.default_rng(0)
    sample_size = min(batch_size, len(sizes))
    needed = []
    most = 1
    for _ in range(64):
        sample = rng.choice(sizes, sample_size, replace=False)
        rows = pack_features(sample.tolist(), shape, num_choices)
        needed.append(len(rows))
        most = max(most, *map(len, rows))
    # Quantiles leave few rows empty; `batch_size` rows, with one feature per row, always suffice.
    quantiles = np.quantile(needed, (0.3, 0.7, 1.0), method="higher")
    rounded = set()
    for count in (*quantiles, batch_size):
        parts = -(-int(count) // multiple_of)
        rounded.add(parts * multiple_of)
    ascending = sorted(rounded)
    allowed = ascending[-2:]  # the last one is for rare batches
    for count in ascending[-3::-1]:
        # About every third batch has a number of rows between two quantiles.
        saved_steps = num_batches / 3 * (allowed[0] / count - 1)
        if saved_steps > COMPILING:
            allowed.insert(0, count)
    return RowShape(row_length, most * num_choices, tuple(allowed))


def pack_features(sizes: Sequence[int], shape: RowShape, num_choices: int) -> list[list[int]]:
    """Packs the features of a batch, of `sizes` tokens; returns the features in each row.

    The packing depends only on the arguments, so all hosts compute the same rows. Empty rows are
    appended up to one of `shape.row_counts`, unless all of these are too small.
    """
    rows = pack(sizes, shape.row_length, shape.max_sequences, [num_choices] * len(sizes))
    count = next((count for count in shape.row_counts if count >= len(rows)), len(rows))
    return rows + [[] for _ in range(count - len(rows))]


def make_rows(
    features: Sequence[Feature] | Mapping[int, Feature],
    rows: Sequence[Sequence[int]],
    shape: RowShape,
    labels: Labels,
    pad_token_id: int,
) -> tuple[Batch, dict[int, Placement]]:
    """Makes a batch whose row r has the features `rows[r]`; returns it and their `Placement`s.

    The batch has the arrays of `batch.py`, except the arrays for masked tokens.
    """
    placements = {}
    for row, members in enumerate(rows):
        start = 0
        for index, item in enumerate(members):
            placements[item] = Placement(row, index * labels.num_choices, start)
            start += len(features[item].input_ids)
    batch = stack([_make_row(features, members, shape, labels, pad_token_id) for members in rows])
    return batch, placements


def _make_row(
    features: Sequence[Feature] | Mapping[int, Feature],
    members: Sequence[int],
    shape: RowShape,
    labels: Labels,
    pad_token_id: int,
) -> Batch:
    length = shape.row_length
    slots = shape.max_sequences
    chosen = [features[item] for item in members]
    ids: list[np.ndarray] = [np.zeros(0, np.int32)]
    types: list[np.ndarray] = [np.zeros(0)]
    lengths: list[int] = []
    for feature in chosen:
        ids.append(feature.input_ids)
        lengths.extend(feature.lengths)
        for size, a_length in zip(feature.lengths, feature.a_lengths, strict=True):
            types.append(np.arange(size) >= a_length)
    example_ids = np.repeat(members, labels.num_choices)
    row = {
        "input_ids": pad_to(np.concatenate(ids), length, pad_token_id),
        "token_type_ids": pad_to(np.concatenate(types), length, 0),
        **layout(lengths, length, slots),
        "example_ids": pad_to(example_ids, slots, -1),
    }
    return row | _make_labels(chosen, row["sequence_starts"], shape, labels)


# Kinds of labels that are numbers and no classes.
_NUMBERS = frozenset(
    "multi_label distribution regression targets similarity distilled ranking".split()
)


def _make_labels(
    chosen: Sequence[Feature], starts: np.ndarray, shape: RowShape, labels: Labels
) -> Batch:
    kind = labels.kind
    if kind == "tokens":
        values = np.full(shape.row_length, -1, np.int32)
        start = 0
        for feature in chosen:
            end = start + len(feature.input_ids)
            if feature.labels is not None:
                values[start:end] = feature.labels
            start = end
        return {"labels": values, "label_weights": _class_weights(values, labels)}
    size = shape.max_sequences // labels.num_choices
    tails = {"span": 2, "distilled": labels.num_choices - 1}
    tails |= dict.fromkeys(("multi_label", "distribution", "targets"), labels.num_classes)
    tails |= dict.fromkeys(("contrastive", "ranking"), labels.num_choices)
    tail = ()
    if kind in tails:
        tail = (tails[kind],)
    dtype = np.int32
    fill = -1
    if kind in _NUMBERS:
        dtype = np.float32
        fill = 0
    elif kind == "span":
        fill = 0
    values = np.full((size, *tail), fill, dtype)
    weights = np.zeros(size, np.float32)
    for slot, feature in enumerate(chosen):
        value = feature.labels
        if value is None:
            continue
        if kind == "span":  # from positions in the feature to those in the row
            value = value + starts[slot]
        if not tail:
            value = value[0]
        values[slot] = value
        weights[slot] = 1.0
        if kind == "targets":  # the loss is the mean over all targets that are present
            weights[slot] = np.isfinite(value).mean()
    if kind in ("classes", "choice"):
        weights = _class_weights(values, labels)
    return {"labels": values, "label_weights": weights}


def _class_weights(values: np.ndarray, labels: Labels) -> np.ndarray:
    is_labelled = values >= 0
    weights = is_labelled.astype(np.float32)
    if labels.class_weights is None:
        return weights
    by_class = np.asarray(labels.class_weights, np.float32)
    return weights * by_class[np.maximum(values, 0)]


class FeatureBatches(grain.MapDataset):
    """Dataset of batches: element i is (number of rows, local rows) of global batch `first + i`.

    A global batch is the batch of all hosts together; the local rows are the rows that this host
    needs. The features are shuffled in every epoch. The last batch of an epoch has fewer features
    if the number of features is not a multiple of the batch size. Every host computes the packing
    from `sizes`, and so reads only the features in its local rows.

    Args:
        path: path of an ArrayRecord file of features.
        sizes: number of tokens of every feature in the file, int [n].
        batch_size: number of features per global batch.
        first: index of the first batch to read, counted from the beginning of the run.
        host_rows_of: converts the number of rows of a global batch to the sorted indices of the
            local rows; None: all rows are local.
    """

    def __init__(
        self,
        path: str,
        sizes: np.ndarray,
        batch_size: int,
        shape: RowShape,
        labels: Labels,
        pad_token_id: int,
        *,
        seed: int,
        first: int = 0,
        host_rows_of: Callable[[int], np.ndarray] | None = None,
    ):
        super().__init__()
        self._records = ShardReader(path)
        self._sizes = sizes
        self._batch_size = batch_size
        self._shape = shape
        self._labels = labels
        self._pad_token_id = pad_token_id
        self._seed = seed
        self._first = first
        self._host_rows_of = host_rows_of or np.arange
        self.batches_per_epoch = -(-len(sizes) // batch_size)
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, int))

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: Any) -> Any:
        members = self.members(self._first + index)
        sizes = self._sizes[members].tolist()
        rows = pack_features(sizes, self._shape, self._labels.num_choices)
        host_rows = [rows[row] for row in self._host_rows_of(len(rows))]
        wanted = [item for row in host_rows for item in row]
        features = {item: decode_feature(self._records[int(members[item])]) for item in wanted}
        made = [
            _make_row(features, row, self._shape, self._labels, self._pad_token_id)
            for row in host_rows
        ]
        return len(rows), stack(made)

    def members(self, batch: int) -> np.ndarray:
        """Returns the features of batch `batch` of the run, int [features]: indices in the file."""
        epoch, batch = divmod(batch, self.batches_per_epoch)
        return self._order_of(epoch)[batch * self._batch_size : (batch + 1) * self._batch_size]

    def _order_of(self, epoch: int) -> np.ndarray:
        known, order = self._order
        if known != epoch:
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self._sizes))
            self._order = (epoch, order)  # one assignment, because reader threads share it
        return order


def feature_batches(batches: FeatureBatches, num_threads: int) -> Iterator[tuple[int, Batch]]:
    """Returns an endless iterator over `batches`, which `num_threads` threads read ahead."""
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
    return iter(batches.to_iter_dataset(options))
