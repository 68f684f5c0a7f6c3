"""Restores a fine-tuned model together with the task that it was fine-tuned on."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from bertjax.base.files import naming_read_errors
from bertjax.base.progress import progress
from bertjax.config import MeshConfig
from bertjax.config.finetune_config import SHORTEST
from bertjax.devices import sharding
from bertjax.inference.inference_params import for_inference, inference_params
from bertjax.inference.predictor import Groups, Predictor
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.registry import KINDS, saved_task
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.tagger_weights import with_saved_tagger


def load_with_task(model: str) -> tuple[LoadedModel, Task, dict[str, Any]]:
    """Loads a fine-tuned model; returns model, task and the task's settings, `task.json`."""
    return with_task(load_model(model, None))


def with_task(loaded: LoadedModel) -> tuple[LoadedModel, Task, dict[str, Any]]:
    """Restores the task of a loaded model; returns model, task and the content of `task.json`.

    The content is {} if the model directory has no `task.json`, in which fine-tuning saves the
    task's settings, or if the file describes a head other than the loaded one. If the directory
    contains a `FeatureTagger`, a token classifier trained on hidden states of the frozen encoder,
    the tagger replaces the head of the returned model.

    Raises:
        ValueError: no task uses the head of the model.
    """
    where, usage, description = loaded.source.where, loaded.source.usage, _description(loaded)
    longest = loaded.config.max_length
    modules = None if description or usage.modules.exception() else usage.modules.result()
    if modules:
        longest = min(modules.max_length or longest, longest)  # as for embeddings
    with naming_read_errors(where / "task.json" if description else where):
        loaded = with_saved_tagger(loaded, description)
        task = saved_task(
            loaded.head,
            loaded.labels,
            loaded.model.num_labels,
            loaded.source.config,
            description,
            longest,
        )
    return loaded, task, description


def task_files(loaded: LoadedModel) -> dict[str, str]:
    """Returns {file name: text} of the file `task.json` of a model that keeps its head, or {}.

    The head is kept if it is that of the directory from which the model was loaded. A
    `FeatureTagger` is no head of the model, so its `task.json` is not returned.
    """
    description = _description(loaded)
    kind = description.get("label_kind")
    if loaded.head not in {task.head for task in KINDS if task.label_kind == kind}:
        return {}
    return {"task.json": json.dumps(description, indent=2)}


def _description(loaded: LoadedModel) -> dict[str, Any]:
    """Returns the content of `task.json`; {} if it describes another head than the loaded one."""
    # If the directory lacks parts of the loaded head, its task.json describes another head.
    has_head = set(loaded.absent).isdisjoint(loaded.model.parts)
    return loaded.source.usage.description.result() if has_head else {}


class TaskModel:
    """A fine-tuned model on one device, which computes predictions for examples.

    Attributes:
        name: the path of the model.
        task: the task that the model was fine-tuned on; `task.source` is None, so the task reads no
            examples.
        description: the settings of fine-tuning in `task.json`; {} for models that other libraries
            saved.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        max_length: int | None = None,
        batch_size: int | None = None,
        doc_stride: int | None = None,
    ):
        """Restores the task of a model, and copies the parameters to the device.

        Args:
            loaded: the model.
            max_length: maximum number of tokens per sequence; None: the value used in fine-tuning.
            batch_size: maximum number of rows in one call of the model, where a row may hold
                several short sequences; None: enough rows to keep the device busy.
            doc_stride: maximum number of tokens between the starts of two consecutive windows of a
                text of more than `max_length` tokens; None: as in fine-tuning.

        Raises:
            ValueError: no task uses the head of the model, `max_length` is less than `SHORTEST`
                (5, which a text pair needs) or more than the maximum length of the model, or
                `doc_stride` is below 1 or set for multiple choice.
        """
        self._loaded, self.task, self.description = with_task(loaded)
        self.name = str(loaded.source.where)
        if doc_stride is not None:
            if not hasattr(self.task, "doc_stride"):
                raise ValueError(
                    f"doc_stride={doc_stride} has no effect on {self.name}, whose task "
                    f"{self.task.name} reads no windows: leave it out."
                )
            self.task = dataclasses.replace(self.task, **{"doc_stride": doc_stride})
        self._max_length = max_length or self.task.max_length
        longest = loaded.config.max_length
        if not SHORTEST <= self._max_length <= longest:
            raise ValueError(
                f"max_length={self._max_length}, but {self.name} reads {SHORTEST} to {longest} "
                "tokens: choose a value in this range."
            )
        self._batch_size = batch_size
        self._params = inference_params(self._loaded.params, self._loaded.model)

    def groups(self, task: Task) -> Groups:
        """Returns a new division of the examples of `task` into groups predicted together."""
        return Groups(task, self._max_length)

    def __call__(
        self,
        task: Task,
        examples: Iterable[Example],
        *,
        report_problems: bool = False,
        shows_progress: bool = True,
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) for each of `examples`, in the same order.

        At the end, a message on stderr says how many examples, if any, have the maximum number of
        tokens, so that their texts may have been truncated, unless the task reads long texts in
        windows.

        Args:
            task: encodes the examples and decodes the model's outputs; its labels must be those of
                the model, in the same order.
            examples: the examples to predict.
            report_problems: whether the prediction for an example that cannot be read or encoded is
                {"error": reason}; if False, such an example raises ValueError. See
                `Predictor.__call__`.
            shows_progress: whether the progress is shown on stderr, if there is much to predict.
        """
        predictor = Predictor(
            task,
            for_inference(self._loaded.model),
            self._loaded.tokenizer,
            self._max_length,
            sharding.make_mesh(MeshConfig(data=1), jax.local_devices()[:1]),
            self._batch_size,
        )
        with progress("predicting", unit="sequences", shown=shows_progress) as state:
            predictor.after_batch = state.advance
            yield from predictor(self._params, examples, report_problems=report_problems)
        if message := predictor.truncated.message:
            longest = self._loaded.config.max_length
            print(f"{message}. The model reads up to {longest} tokens.", file=sys.stderr)
