"""The features of a train split as a file, and what a run wants to know of all of them."""

import array
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data.features import encode_feature
from bertjax.data.records import write_shard
from bertjax.tasks.task import Task
from bertjax.tokenization import WordPieceTokenizer


class TrainingData(NamedTuple):
    """The features of the train split on disk, and what is known of all of them."""

    path: Path
    sizes: np.ndarray
    """int [n]: tokens of each."""
    class_counts: np.ndarray
    """int [C]: labels of each class; empty where there are no classes."""
    fingerprint: str


def write_training_data(
    task: Task, tokenizer: WordPieceTokenizer, max_length: int, path: Path
) -> TrainingData:
    """Reads the train split and writes its features, in memory that does not grow with it.

    Raises:
        ValueError: there is no train split, or it is empty or damaged.
    """
    sizes, digest = array.array("I"), hashlib.sha256()
    counts = np.zeros(len(task.labels), np.int64)

    def records() -> Iterator[bytes]:
        assert task.source is not None
        for example in task.source.examples("train"):
            for feature in task.features(example, tokenizer, max_length):
                if feature.labels is None:
                    raise ValueError(f"{example.where}: no label; training needs one in each row.")
                if task.label_kind in ("classes", "tokens"):
                    given = feature.labels[feature.labels >= 0]
                    counts[:] += np.bincount(given, minlength=len(counts))
                sizes.append(len(feature.input_ids))
                record = encode_feature(feature)
                digest.update(record)
                yield record

    write_shard(path, records())
    if not sizes:
        raise ValueError("The train split has no examples: check the file.")
    return TrainingData(path, np.array(sizes), counts, digest.hexdigest())
