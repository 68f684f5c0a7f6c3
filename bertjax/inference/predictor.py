"""Applies a model to the examples of a task, in their order and in flat memory."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.data.batches.features import Feature
from bertjax.data.batches.finetuning_batches import Labels, make_batch, row_shape
from bertjax.devices import sharding
from bertjax.model import BertWithHead
from bertjax.model.bert import MODEL_INPUTS
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.task import Outputs
from bertjax.tokenization import Tokenizer

# Examples that are packed together; the next window is read when they are answered.
WINDOW = 2048
# Features that are packed at a time: best fit takes time that grows with the square.
PACKED_TOGETHER = 256
# Tokens a device works on at a time.
TOKENS = {"cpu": 4096}
TOKENS_ELSEWHERE = 32768
# Rows have one of these lengths, or the greatest of a sequence: few shapes compile.
ROW_LENGTHS = (64, 128, 256)


def labels_of(task: Task, class_weights: tuple[float, ...] | None = None) -> Labels:
    """How the labels of a task become arrays."""
    return Labels(
        task.label_kind,
        num_classes=max(1, len(task.labels)),
        num_choices=getattr(task, "num_choices", 1),
        class_weights=class_weights,
    )


class Predictor:
    """Answers of a model for a task.

    Args:
        task: says what the model reads of an example, and what its outputs mean.
        model: with the head of the task.
        tokenizer: of the model.
        max_length: tokens of a sequence at most.
        mesh: of devices that the rows are split over.
    """

    def __init__(
        self,
        task: Task,
        model: BertWithHead,
        tokenizer: Tokenizer,
        max_length: int,
        mesh: Mesh,
    ):
        self._task, self._tokenizer, self._max_length = task, tokenizer, max_length
        self._labels, self._sequence_outputs = labels_of(task), model.sequence_outputs
        self._rows = sharding.batch_sharding(mesh)
        self._devices = mesh.shape["data"] * mesh.shape["fsdp"]
        tokens = TOKENS.get(jax.default_backend(), TOKENS_ELSEWHERE)
        self._tokens = tokens * self._devices

        def apply(params: Any, batch: dict[str, Any]) -> dict[str, jax.Array]:
            outputs: Any = model.apply({"params": params}, **batch)
            return {key: outputs[key] for key in model.outputs}

        self._apply = jax.jit(apply, out_shardings=sharding.replicated(mesh))

    def __call__(
        self, params: Any, examples: Iterable[Example]
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields every example with its prediction."""
        examples = iter(examples)
        while window := list(itertools.islice(examples, WINDOW)):
            read = [
                self._task.features(example, self._tokenizer, self._max_length)
                for example in window
            ]
            answers = self.outputs(params, [feature for found in read for feature in found])
            for example, features in zip(window, read, strict=True):
                outputs = list(itertools.islice(answers, len(features)))
                yield example, self._task.predict(example, features, outputs)

    def outputs(self, params: Any, features: Sequence[Feature]) -> Iterator[Outputs]:
        """What the model says of each feature, in their order."""
        order = np.argsort([len(f.input_ids) for f in features], kind="stable")
        found: list[Any] = [None] * len(features)
        started: list[tuple[Any, Any, Any]] = []
        for start in range(0, len(order), PACKED_TOGETHER):
            chosen = order[start : start + PACKED_TOGETHER]
            batch, placements = self._pack([features[i] for i in chosen])
            started.append((chosen, placements, self._run(params, batch)))
            # The devices work on one group while the host prepares the next.
            if len(started) > 1:
                self._collect(found, features, *started.pop(0))
        for group in started:
            self._collect(found, features, *group)
        return iter(found)

    def _pack(self, features: Sequence[Feature]) -> tuple[dict[str, np.ndarray], Any]:
        longest = max(len(feature.input_ids) for feature in features)
        most = self._max_length * self._labels.num_choices
        length = next((n for n in ROW_LENGTHS if longest <= n < most), most)
        shape = row_shape(length, self._labels.num_choices, ())
        batch, placements = make_batch(features, shape, self._labels, self._tokenizer.pad_token_id)
        return {key: batch[key] for key in MODEL_INPUTS}, placements

    def _run(self, params: Any, batch: dict[str, np.ndarray]) -> list[dict[str, jax.Array]]:
        """Runs all rows, so many at a time that every call has the same shape."""
        used, length = batch["input_ids"].shape
        size = max(1, self._tokens // length // self._devices) * self._devices
        every = np.arange(size)
        outputs = []
        for start in range(0, used, size):
            part = {key: values[start : start + size] for key, values in batch.items()}
            missing = size - len(part["input_ids"])
            part = {
                key: np.pad(values, [(0, missing)] + [(0, 0)] * (values.ndim - 1))
                for key, values in part.items()
            }
            held = sharding.host_rows(self._rows, size)
            local = {key: values[held] for key, values in part.items()}
            rows = sharding.to_devices(local, every[held], self._rows, size)
            outputs.append(self._apply(params, rows))
        return outputs

    def _collect(
        self,
        found: list[Any],
        features: Sequence[Feature],
        chosen: np.ndarray,
        placements: Sequence[Any],
        outputs: list[dict[str, jax.Array]],
    ) -> None:
        joined = {
            key: np.concatenate([np.asarray(part[key]) for part in outputs]) for key in outputs[0]
        }
        for index, (row, slot, start) in zip(chosen, placements, strict=True):
            feature = features[index]
            tokens = slice(start, start + len(feature.input_ids))
            several = self._labels.num_choices > 1
            sequences = slice(slot, slot + len(feature.lengths)) if several else slot
            found[index] = {
                key: values[row, sequences if key in self._sequence_outputs else tokens]
                for key, values in joined.items()
            }
