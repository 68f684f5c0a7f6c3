"""The features of a train split as a file, and what a run wants to know of all of them."""

import array
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data.batches.features import Feature, encode_feature
from bertjax.data.records import write_shard
from bertjax.tasks.task import Example, Task
from bertjax.tokenization import Tokenizer


class TrainingData(NamedTuple):
    """The features of the train split on disk, and what is known of all of them."""

    path: Path
    sizes: np.ndarray
    """int [n]: tokens of each."""
    class_counts: np.ndarray
    """int [C]: labels of each class; empty where an example or word has not just one class."""
    fingerprint: str


class _Cut:
    """Counts the sequences of a split that fill the greatest length: what was longer is cut."""

    def __init__(self, split: str, max_length: int):
        self._split, self._max_length = split, max_length
        self._count, self._first = 0, ""

    def see(self, example: Example, feature: Feature) -> None:
        if max(feature.lengths) >= self._max_length:
            self._count += 1
            self._first = self._first or example.where

    def report(self) -> None:
        if self._count:
            print(
                f"{self._split}: {self._count:,} texts reach max_length={self._max_length} tokens; "
                f"what is longer is cut there. The first one: {self._first}"
            )


def write_training_data(
    task: Task, tokenizer: Tokenizer, max_length: int, path: Path
) -> TrainingData:
    """Reads the train split and writes its features, in memory that does not grow with it.

    Raises:
        ValueError: there is no train split, or it is empty or damaged.
    """
    sizes, digest = array.array("I"), hashlib.sha256()
    of_one_class = task.label_kind in ("classes", "tokens")
    counts = np.zeros(len(task.labels) if of_one_class else 0, np.int64)
    cut = _Cut("train", max_length)

    def records() -> Iterator[bytes]:
        for example, feature in _features(task, "train", tokenizer, max_length):
            if feature.labels is None:
                raise ValueError(f"{example.where}: no label; training needs one in each row.")
            if of_one_class:
                given = feature.labels[feature.labels >= 0]
                counts[:] += np.bincount(given, minlength=len(counts))
            cut.see(example, feature)
            sizes.append(len(feature.input_ids))
            record = encode_feature(feature)
            digest.update(record)
            yield record

    write_shard(path, records())
    if not sizes:
        raise ValueError("The train split has no examples: check the file.")
    if task.label_kind != "span":  # windows are full by design
        cut.report()
    return TrainingData(path, np.array(sizes), counts, digest.hexdigest())


def check_splits(task: Task, tokenizer: Tokenizer, max_length: int) -> None:
    """Reads the other splits once, so that a damaged row is found before hours of training.

    Raises:
        ValueError: a row is damaged or has a label that does not occur in training; it is named.
            Or a split is empty.
    """
    assert task.source is not None
    for split in task.source.splits:
        if split != "train":
            cut, example = _Cut(split, max_length), None
            for example, feature in _features(task, split, tokenizer, max_length):
                cut.see(example, feature)
            if example is None:
                raise ValueError(f"The {split} split has no examples: check the file.")
            if task.label_kind != "span":
                cut.report()


def _features(
    task: Task, split: str, tokenizer: Tokenizer, max_length: int
) -> Iterator[tuple[Example, Feature]]:
    assert task.source is not None
    for example in task.source.examples(split):
        for feature in task.features(example, tokenizer, max_length):
            yield example, feature
