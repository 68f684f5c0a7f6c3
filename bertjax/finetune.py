"""python -m bertjax.finetune: a model learns a task (Devlin et al. 2018, 4).

Running the same command again resumes where the last checkpoint stands, bit for bit.
"""

import dataclasses
import hashlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import FinetuneConfig, Phase
from bertjax.data.features import decode_feature, encode_feature
from bertjax.data.labelled import FeatureBatches, feature_batches, plan_rows
from bertjax.data.records import write_shard
from bertjax.predictor import Predictor, labels_of
from bertjax.tasks import Task
from bertjax.tokenization import WordPieceTokenizer
from bertjax.train import sharding
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.early_stopping import EarlyStopping
from bertjax.train.hooks import EvaluateAndSave, Interrupted, MetricLogger, StopSignal
from bertjax.train.loop import fit
from bertjax.train.objective import TASK_OBJECTIVES, make_loss_fn
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.state import TrainState, create_train_state
from bertjax.train.step import compile_train_step, make_train_step
from bertjax.train.workdir import Workdir
from bertjax.train.writers import MetricWriter
from bertjax.weights import LoadedModel, load_model


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
    assert task.source is not None
    sizes, digest = [], hashlib.sha256()
    counts = np.zeros(len(task.labels), np.int64)

    def records() -> Iterator[bytes]:
        for example in task.source.examples("train"):  # pyright: ignore
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
