"""Encodes the train split into a file of features, and checks the other splits before training."""

import array
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data.batches.batch import Feature, encode_feature
from bertjax.data.records import write_shard
from bertjax.tasks.sources.own_files import OwnFiles, error_of
from bertjax.tasks.task import Example, Task, TruncatedTexts
from bertjax.tokenization import Tokenizer


class TrainingData(NamedTuple):
    """The file with the encoded train split, and its statistics.

    Attributes:
        path: the path of the file, which has one record per feature.
        sizes: number of tokens of each feature, int [number of features].
        class_counts: number of features (in tagging, words) of each class, int [number of classes];
            a feature with several labels is counted for each; empty for tasks without classes.
        fingerprint: hexadecimal SHA-256 of all records in the file.
        examples: number of examples, of which long texts may have several features.
    """

    path: Path
    sizes: np.ndarray
    class_counts: np.ndarray
    fingerprint: str
    examples: int


def write_training_data(
    task: Task, tokenizer: Tokenizer, max_length: int, path: Path
) -> TrainingData:
    """Encodes the train split and writes it to an ArrayRecord file, one input at a time.

    Raises:
        ValueError: the train split does not exist or is empty, or an example in the train split is
            malformed or has no label.
    """
    sizes, digest = array.array("I"), hashlib.sha256()
    has_classes = task.label_kind in ("classes", "tokens", "multi_label")
    counts = np.zeros(len(task.labels) if has_classes else 0, np.int64)
    examples = 0

    def records() -> Iterator[bytes]:
        nonlocal examples
        last = None
        for example, feature in _features(task, "train", tokenizer, max_length):
            examples += example is not last
            last = example
            assert feature.labels is not None
            if task.label_kind == "multi_label":
                counts[:] += feature.labels.astype(np.int64)
            elif has_classes:
                labels = feature.labels[feature.labels >= 0]
                counts[:] += np.bincount(labels, minlength=len(counts))
            sizes.append(len(feature.input_ids))
            record = encode_feature(feature)
            digest.update(record)
            yield record

    write_shard(path, records())
    if isinstance(task.source, OwnFiles):
        task.source.forget("train")
    if not sizes:
        raise ValueError("The train split has no examples: check the file.")
    return TrainingData(path, np.array(sizes), counts, digest.hexdigest(), examples)


def check_splits(task: Task, tokenizer: Tokenizer, max_length: int) -> None:
    """Encodes every split except train, so that malformed rows are reported before the training.

    Raises:
        ValueError: a row is malformed or has a label that does not occur in training (the message
            names the row), or a split is empty.
    """
    assert task.source is not None
    for split in task.source.splits:
        if split != "train":
            if not sum(1 for _ in _features(task, split, tokenizer, max_length)):
                file = f" ({task.source.path(split)})" if isinstance(task.source, OwnFiles) else ""
                raise ValueError(f"The {split} split has no examples: check the file{file}.")


def _features(
    task: Task, split: str, tokenizer: Tokenizer, max_length: int
) -> Iterator[tuple[Example, Feature]]:
    """Yields (example, feature) of a split; one error at the end describes all bad rows."""
    source = task.source
    assert source is not None
    truncated = TruncatedTexts(task, max_length)
    encode = task.features if split == "train" else task.features_to_predict
    problems: list[str] = []
    for example in source.examples(split):
        try:
            features = encode(example, tokenizer, max_length)
            if split == "train" and any(feature.labels is None for feature in features):
                raise ValueError(
                    f"{example.where} has no label, but training needs one for every example: add "
                    "it, or remove the example."
                )
        except ValueError as error:
            if not (isinstance(source, OwnFiles) and source.leave_out(split, example, str(error))):
                problems.append(str(error))
            continue
        truncated.add(example, features)
        for feature in features if not problems else ():
            yield example, feature
    if isinstance(source, OwnFiles):
        source.refuse(split, problems)
    elif problems:
        raise error_of(problems, split)
    if truncated.message:
        print(f"{split}: {truncated.message}")
