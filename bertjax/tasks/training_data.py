"""Encodes the train split into a file of features, and checks the other splits before training."""

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
    """The features of the train split.

    Attributes:
        path: the file of records.
        sizes: tokens per feature, int [n].
        class_counts: number of labels per class, int [C]; empty unless each example or word has
            exactly one class.
        fingerprint: SHA-256 of the records.
    """

    path: Path
    sizes: np.ndarray
    class_counts: np.ndarray
    fingerprint: str


class _Truncation:
    """Counts the sequences of a split that reach the maximum length and so may be truncated."""

    def __init__(self, split: str, max_length: int):
        self._split, self._max_length = split, max_length
        self._count, self._first = 0, ""

    def add(self, example: Example, feature: Feature) -> None:
        if max(feature.lengths) >= self._max_length:
            self._count += 1
            self._first = self._first or example.where

    def report(self) -> None:
        if self._count:
            print(
                f"{self._split}: {self._count:,} texts reach max_length={self._max_length} tokens "
                f"and are truncated if they are longer. The first one: {self._first}"
            )


def write_training_data(
    task: Task, tokenizer: Tokenizer, max_length: int, path: Path
) -> TrainingData:
    """Reads the train split and writes its features, in constant memory.

    Raises:
        ValueError: the train split does not exist, or is empty or damaged.
    """
    sizes, digest = array.array("I"), hashlib.sha256()
    has_one_class = task.label_kind in ("classes", "tokens")
    counts = np.zeros(len(task.labels) if has_one_class else 0, np.int64)
    truncation = _Truncation("train", max_length)

    def records() -> Iterator[bytes]:
        for example, feature in _features(task, "train", tokenizer, max_length):
            if feature.labels is None:
                raise ValueError(
                    f"{example.where} has no label, but training needs one for every example: add "
                    "it, or remove the example."
                )
            if has_one_class:
                labels = feature.labels[feature.labels >= 0]
                counts[:] += np.bincount(labels, minlength=len(counts))
            truncation.add(example, feature)
            sizes.append(len(feature.input_ids))
            record = encode_feature(feature)
            digest.update(record)
            yield record

    write_shard(path, records())
    if not sizes:
        raise ValueError("The train split has no examples: check the file.")
    if task.label_kind != "span":  # Windows are meant to be full.
        truncation.report()
    return TrainingData(path, np.array(sizes), counts, digest.hexdigest())


def check_splits(task: Task, tokenizer: Tokenizer, max_length: int) -> None:
    """Reads the other splits once, so that a damaged row is reported before hours of training.

    Raises:
        ValueError: a row is damaged or has a label that does not occur in training (the message
            names the row), or a split is empty.
    """
    assert task.source is not None
    for split in task.source.splits:
        if split != "train":
            truncation, example = _Truncation(split, max_length), None
            for example, feature in _features(task, split, tokenizer, max_length):
                truncation.add(example, feature)
            if example is None:
                raise ValueError(f"The {split} split has no examples: check the file.")
            if task.label_kind != "span":
                truncation.report()


def _features(
    task: Task, split: str, tokenizer: Tokenizer, max_length: int
) -> Iterator[tuple[Example, Feature]]:
    assert task.source is not None
    for example in task.source.examples(split):
        for feature in task.features(example, tokenizer, max_length):
            yield example, feature
