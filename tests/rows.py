"""Records, batches and files of rows that a test makes up."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config import FinetuneConfig, OptimizerConfig
from bertjax.data.batches.batch import Batch, Feature
from bertjax.data.records import Row, row_head
from bertjax.tasks import finetune_config
from bertjax.tasks.training_data import Labels, Placement, RowShape, make_rows, pack_features


def encode_row(row: Row) -> bytes:
    """Encodes a row as the record that preparation would write of it."""
    ids = np.asarray(row.input_ids)
    assert (
        len(row.lengths) == len(row.a_lengths) == len(row.labels) and sum(row.lengths) == ids.size
    )
    width = 2 if ids.size == 0 or ids.max() < 1 << 16 else 4
    sequences = list(zip(row.lengths, row.a_lengths, row.labels, strict=True))
    return row_head(width, sequences) + ids.astype(f"<u{width}").tobytes()


def make_batch(
    features: Sequence[Feature], shape: RowShape, labels: Labels, pad_token_id: int
) -> tuple[Batch, list[Placement]]:
    """Packs features into one batch; returns the batch and the `Placement` of each feature.

    The batch has the arrays of `batch.py`, except the arrays for masked tokens.
    """
    sizes = [len(feature.input_ids) for feature in features]
    rows = pack_features(sizes, shape, labels.num_choices)
    batch, placements = make_rows(features, rows, shape, labels, pad_token_id)
    return batch, [placements[item] for item in range(len(features))]


RATE = OptimizerConfig(
    recipe="adamw",
    learning_rate=3e-3,
    schedule="hf",
    warmup_steps=0,
    warmup_proportion=0.1,
    weight_decay=0.0,
)


def short_run(
    task: str, init: Path, rows: Iterable[dict[str, Any]], folder: Path, **settings: Any
) -> FinetuneConfig:
    """Writes rows to folder/train.jsonl; returns the config of a fine-tuning of three epochs."""
    train = folder / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return finetune_config(
        task=task,
        init=str(init),
        train=str(train),
        workdir=str(folder / "run"),
        max_length=24,
        batch_size=40,
        accumulation_steps=2,
        num_epochs=3,
        optimizer=RATE,
        log_every=1,
        **settings,
    )
