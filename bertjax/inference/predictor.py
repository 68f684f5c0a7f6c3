"""`Predictor` computes a model's predictions for a stream of examples in constant memory."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.data.batches.batch import Batch
from bertjax.data.batches.features import Feature
from bertjax.data.batches.finetuning_batches import Labels
from bertjax.devices import sharding
from bertjax.inference.buckets import cached_program, read_behind
from bertjax.inference.inference_params import stacked
from bertjax.inference.packed_pieces import Piece, packed_pieces
from bertjax.model import BertWithHead
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.task import Outputs, TruncatedTexts
from bertjax.tokenization import Tokenizer

# Number of examples that are read and predicted before the next ones are read.
WINDOW = 2048
# Number of characters after which the examples so far are predicted, even if they are fewer.
WINDOW_CHARACTERS = 1 << 21


class Groups:
    """Divides a stream of examples into groups that are read and predicted together.

    A group ends after `WINDOW` examples or `WINDOW_CHARACTERS` characters, so that the memory of a
    prediction is bounded, also if the examples are long documents. The division depends only on
    the texts. An interrupted prediction continues with a group, because numbers differ in their
    last bits if a text is computed together with others.

    Args:
        task: the task of the examples.
        max_length: maximum number of tokens per sequence.
    """

    def __init__(self, task: Task, max_length: int):
        # Of truncated texts, only the beginnings are encoded; most tokens have a few characters.
        self._most = None if task.reads_windows else 8 * max_length
        self._examples = self._characters = 0

    def ends_with(self, example: Example) -> bool:
        """Adds the next example of the stream; returns whether it is the last of its group."""
        size = len(example.text) + len(example.pair or "")
        size += sum(map(len, example.choices)) + sum(map(len, example.words))
        self._characters += size if self._most is None else min(size, self._most)
        self._examples += 1
        if self._examples < WINDOW and self._characters < WINDOW_CHARACTERS:
            return False
        self._examples = self._characters = 0
        return True


def labels_of(task: Task, class_weights: tuple[float, ...] | None = None) -> Labels:
    """Returns the label kind, number of classes, number of choices and class weights of a task.

    `class_weights` are the weights of the classes in the loss, one per class; None: all are 1.
    """
    return Labels(
        task.label_kind,
        num_classes=max(1, len(task.labels)),
        num_choices=getattr(task, "num_choices", 1),
        class_weights=class_weights,
    )


class Predictor:
    """Computes a model's predictions for the examples of a task.

    One program is compiled per batch shape; predictors with equal models and meshes share the
    compiled programs.

    Attributes:
        truncated: the `TruncatedTexts` that counts the examples of `max_length` tokens, which may
            have been truncated; it counts none if the task reads windows.

    Args:
        task: the task, which encodes examples and decodes the model's outputs.
        model: a model with the head that the task needs.
        tokenizer: the tokenizer of the model.
        max_length: maximum number of tokens per sequence.
        mesh: the device mesh that the rows are sharded over.
        batch_size: maximum number of rows per device in one call of the model; None: enough rows
            to keep the devices busy.
    """

    def __init__(
        self,
        task: Task,
        model: BertWithHead,
        tokenizer: Tokenizer,
        max_length: int,
        mesh: Mesh,
        batch_size: int | None = None,
    ):
        self._task, self._tokenizer, self._max_length = task, tokenizer, max_length
        self._labels, self._sequence_outputs = labels_of(task), model.sequence_outputs
        self._rows = sharding.batch_sharding(mesh)
        self._devices = mesh.shape["data"] * mesh.shape["fsdp"]
        self._batch_size = batch_size
        self._program = compiled_program(model, mesh)
        self.before_batch: Callable[[], None] = lambda: None
        # Called with the number of features of each batch that is finished.
        self.after_batch: Callable[[int], None] = lambda count: None
        self.truncated = TruncatedTexts(task, max_length)

    def __call__(
        self, params: Any, examples: Iterable[Example], *, report_problems: bool = False
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) for every example, in the order of `examples`.

        Args:
            params: the parameters of the model, also in the form for inference.
            examples: the examples to predict.
            report_problems: whether an example that cannot be read or encoded gets the prediction
                {"error": reason} instead of raising ValueError. If only the label of an example is
                wrong, the example is then predicted, and its prediction has the additional entry
                {"problem": reason}. In both cases, the example is yielded without its label.

        Raises:
            ValueError: an example cannot be read or encoded, and `report_problems` is False.
        """
        # With `map`, no variable here keeps a group while the next one is encoded.
        for predictions in map(
            functools.partial(self._predict_group, params), self._groups(examples, report_problems)
        ):
            yield from predictions

    def _predict_group(
        self, params: Any, group: list[tuple[Example, Sequence[Feature], str]]
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) for each example of a group that `_groups` yields."""
        all_outputs = self.outputs(params, [f for _, features, _ in group for f in features])
        for example, features, problem in group:
            outputs = list(itertools.islice(all_outputs, len(features)))
            if problem:
                example = dataclasses.replace(example, label=None, answers=())
            if not features:
                yield example, {"error": problem}
                continue
            prediction = self._task.predict(example, features, outputs)
            yield example, prediction | ({"problem": problem} if problem else {})

    def _groups(
        self, examples: Iterable[Example], report_problems: bool
    ) -> Iterator[list[tuple[Example, Sequence[Feature], str]]]:
        """Encodes examples; yields those of each group of `Groups`.

        An element of a group is (example, its features, what is wrong with it or "").
        """
        groups, group = Groups(self._task, self._max_length), []
        for example in examples:
            features, problem = self._encode(example, report_problems)
            self.truncated.add(example, features)
            group.append((example, features, problem))
            if groups.ends_with(example):
                yield group
                group = []
        if group:
            yield group

    def _encode(self, example: Example, report_problems: bool) -> tuple[Sequence[Feature], str]:
        """Returns (features of an example, what is wrong with the example or "").

        If only the label is wrong, the features have no labels; if the example cannot be read or
        encoded even without its label, there are no features.

        Raises:
            ValueError: something is wrong with the example, and `report_problems` is False.
        """
        if example.problem:
            if not report_problems:
                raise ValueError(example.problem)
            if not (example.text or example.words):
                return (), example.problem
            features, other = self._encode(dataclasses.replace(example, problem=""), True)
            return features, other or example.problem
        try:
            return self._task.features_to_predict(example, self._tokenizer, self._max_length), ""
        except ValueError as error:
            if not report_problems:
                raise
            if example.label is None:
                return (), str(error)
            unlabelled = dataclasses.replace(example, label=None)
            features, other = self._encode(unlabelled, report_problems)
            return features, other or str(error)

    def outputs(self, params: Any, features: Sequence[Feature]) -> Iterator[Outputs]:
        """Computes the model's outputs for features, encoded sequences or multiple-choice examples.

        `params` are the parameters, as `inference_params` prepares them. Returns an iterator over
        {name of an output: array} in the order of `features`.
        """
        outputs: list[Any] = [None] * len(features)
        pieces = packed_pieces(
            features,
            limit=self._max_length * self._labels.num_choices,
            pad_token_id=self._tokenizer.pad_token_id,
            num_choices=self._labels.num_choices,
            batch_size=self._batch_size,
            devices=self._devices,
        )

        def start() -> Iterator[tuple[Piece, dict[str, jax.Array]]]:
            for piece in pieces:
                self.before_batch()
                yield piece, self._run(params, piece.batch)

        for piece, values in read_behind(start()):
            self._collect(outputs, features, piece, values)
            self.after_batch(len(piece.placements))
        return iter(outputs)

    def _run(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Dispatches the model on a batch; returns its outputs, which may still be computed."""
        rows = len(batch["input_ids"])
        held = sharding.host_rows(self._rows, rows)
        local = {key: values[held] for key, values in batch.items()}
        on_devices = sharding.to_devices(local, np.arange(rows)[held], self._rows, rows)
        return self._program(params, on_devices)

    def _collect(
        self,
        outputs: list[Any],
        features: Sequence[Feature],
        piece: Piece,
        values: dict[str, jax.Array],
    ) -> None:
        """Copies the outputs of a piece to the host and splits them by feature.

        For the index i of every feature in the piece, the model's outputs for `features[i]` become
        `outputs[i]`.
        """
        arrays = {key: np.asarray(value) for key, value in values.items()}
        for index, (row, slot, start) in piece.placements.items():
            feature = features[index]
            tokens = slice(start, start + len(feature.input_ids))
            several = self._labels.num_choices > 1
            sequences = slice(slot, slot + len(feature.lengths)) if several else slot
            outputs[index] = {
                key: value[row, sequences if key in self._sequence_outputs else tokens]
                for key, value in arrays.items()
            }


@cached_program
def compiled_program(model: BertWithHead, mesh: Mesh) -> Callable[..., dict[str, jax.Array]]:
    """Returns the jitted function (params, batch) -> head outputs, replicated over the mesh.

    The batch has the arrays `MODEL_INPUTS` of the batch contract, with int [B, L] token ids. The
    outputs are those of `model`, {name: array}, such as "logits" [B, K, C].
    """

    def apply(params: Any, batch: dict[str, Any]) -> dict[str, jax.Array]:
        outputs: Any = model.apply({"params": stacked(params)}, **batch)
        return {key: outputs[key] for key in model.outputs}

    return jax.jit(apply, out_shardings=sharding.replicated(mesh))
