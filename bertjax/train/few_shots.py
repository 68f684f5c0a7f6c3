"""Draws a few training examples of each class, for fine-tuning with few examples.

With few examples, scores differ much from draw to draw, so several draws are trained on, and no dev
split that is larger than the training data selects a checkpoint or a draw (Perez et al. 2021, "True
Few-Shot Learning with Language Models"). The settings that suit such data are those of
configs/finetune/few_shot.py.
"""

import hashlib

import numpy as np

from bertjax.base.files import listed
from bertjax.data.batches.batch import decode_feature
from bertjax.data.records import ShardReader, write_shard
from bertjax.tasks import Task
from bertjax.tasks.training_data import TrainingData


def draw(classes: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Draws `shots` examples of each class at random, with `seed`; returns their sorted indices.

    `classes` holds the class id of each example, int [number of examples].

    Raises:
        ValueError: a class has fewer than `shots` examples.
    """
    rng = np.random.default_rng(seed)
    chosen = []
    for name in np.unique(classes):
        members = np.flatnonzero(classes == name)
        if len(members) < shots:
            raise ValueError(f"class {name} has {len(members)} examples, not {shots}.")
        chosen.append(rng.choice(members, shots, replace=False))
    return np.sort(np.concatenate(chosen))


def shots_of(task: Task, data: TrainingData, shots: int, seed: int) -> TrainingData:
    """Draws `shots` examples of each class from the training data of a task, with `seed`.

    The examples are written to a file beside that of `data`.

    Raises:
        ValueError: the task has no classes, or several per example, or a class has too few
            examples.
    """
    if task.label_kind != "classes":
        raise ValueError(
            f"--shots {shots}: {task.name} does not have one class per example. Leave it out, or "
            "use --task=classify or a benchmark task with classes."
        )
    rare = [
        f"{name} ({count:,})"
        for name, count in zip(task.labels, data.class_counts, strict=True)
        if count < shots
    ]
    if rare:
        raise ValueError(
            f"--shots {shots}: the training data has fewer examples of {listed(rare)}: give at "
            f"most --shots {int(data.class_counts.min())}."
        )
    reader = ShardReader(data.path)
    try:
        records = reader.read(0, len(reader))
    finally:
        reader.close()
    classes = np.array([int(_labels(record)[0]) for record in records])
    chosen = draw(classes, shots, seed)
    path = data.path.with_name(f"shots{seed}{data.path.suffix}")
    write_shard(path, (records[index] for index in chosen))
    return TrainingData(
        path,
        data.sizes[chosen],
        np.full(len(task.labels), shots, np.int64),
        hashlib.sha256(b"".join(records[index] for index in chosen)).hexdigest(),
        examples=len(chosen),
    )


def _labels(record: bytes) -> np.ndarray:
    labels = decode_feature(record).labels
    assert labels is not None  # those of the train split
    return labels
