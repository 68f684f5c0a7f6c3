"""The tasks of saved models."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.base.files import brief
from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
    TextTask,
)
from bertjax.tasks.embedding import SimilarityTask
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.registry import TASKS
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import Task

KINDS: tuple[type[Task], ...] = (
    *(ClassificationTask, MultiLabelTask, RegressionTask),
    *(TagTask, SpanTask, ChoiceTask, SimilarityTask),
)
# Fields of `SpanTask` that are saved in task.json.
SPAN_FIELDS = (
    *("doc_stride", "max_query_length", "max_answer_length"),
    *("with_impossible", "null_threshold"),
)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("task", "label_kind"), (str,)),
    **dict.fromkeys(("max_length", "max_query_length", "max_answer_length"), (int,)),
    "doc_stride": (int, type(None)),
    **{"with_impossible": (bool,), "null_threshold": (float, int), "temperature": (float, int)},
    **{"columns": (dict,), "label_separator": (str, type(None)), "pairs": (bool, type(None))},
}
# Tokens per window with which other libraries usually train question answering.
SPAN_LENGTH = 384


def saved_task(
    head: str,
    labels: Sequence[str] | None,
    num_labels: int,
    config: Mapping[str, Any],
    description: Mapping[str, Any],
    longest: int,
) -> Task:
    """Creates the task that a saved model was fine-tuned on, from the files of the model.

    Args:
        labels: class names in the order of their ids; if None, LABEL_0, LABEL_1 and so on.
        config: the content of config.json, whose problem_type tells the kind of a classifier.
        description: the content of task.json; empty for a model from another library.
        longest: maximum input length of the model, in tokens.

    Raises:
        ValueError: no task uses the head, an entry of task.json has a wrong type or value, or two
            classes whose probabilities are predicted have the same name.
    """
    _check(description)
    kind = _kind_of(head, num_labels, config, description)
    default_length = SPAN_LENGTH if kind is SpanTask else longest
    fields: dict[str, Any] = {
        "name": description.get("task", head),
        "max_length": min(description.get("max_length", default_length), longest),
    }
    if kind is SpanTask:
        saved = {k: description[k] for k in SPAN_FIELDS if description.get(k) is not None}
        return SpanTask(**fields, **saved)
    if kind is ChoiceTask:
        # The number of choices is unknown until the inputs to predict are read.
        return ChoiceTask(num_choices=0, **fields)
    if kind is SimilarityTask:
        return SimilarityTask(**fields)
    # Models of old versions name no stride: taggers read windows, classifiers truncated texts.
    fields["doc_stride"] = description.get("doc_stride")
    if issubclass(kind, TextTask):
        fields["pairs"] = _pairs(description)
    if issubclass(kind, RegressionTask):
        return kind(**fields)
    if kind is ClassificationTask:
        fields["temperature"] = _temperature(description)
    names = tuple(labels or (f"LABEL_{i}" for i in range(num_labels)))
    if kind is TagTask:
        return TagTask.of_labels(names, **fields)
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            f"id2label in config.json has {brief(', '.join(repeated), 80)} more than once, so that "
            "predictions would not tell the classes apart: give each id a name of its own there."
        )
    definition = TASKS.get(fields["name"])
    if definition is not None and definition.metric is not None and kind in definition.kinds:
        fields["metric"] = definition.metric
    return kind(labels=names, **fields)


def _temperature(description: Mapping[str, Any]) -> float:
    temperature = float(description.get("temperature", 1.0))
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature={temperature} should be positive: correct it, or copy or download the "
            "model again."
        )
    return temperature


def _pairs(description: Mapping[str, Any]) -> bool | None:
    """Returns whether inputs are pairs; old task.json files only have the columns of the file."""
    columns = description.get("columns") or {}
    of_columns = columns.get("pair") is not None if columns.get("text") is not None else None
    return description.get("pairs", of_columns)


def _check(description: Mapping[str, Any]) -> None:
    for key, kinds in _TYPES.items():
        value = description.get(key, kinds[0]())
        is_count = kinds[0] is int
        too_small = is_count and key in description and isinstance(value, int) and value < 1
        if type(value) not in kinds or too_small:
            raise ValueError(
                f"{key}={brief(repr(value))} should be of type {kinds[0].__name__}"
                f"{' and at least 1' if is_count else ''}: correct it, or copy or download "
                "the model again."
            )


def _kind_of(
    head: str, num_labels: int, config: Mapping[str, Any], description: Mapping[str, Any]
) -> type[Task]:
    """Selects the subclass of `Task` by label_kind in task.json, else by head and problem_type."""
    kinds = [kind for kind in KINDS if kind.head == head]
    for kind in (*kinds, *KINDS):
        if kind.label_kind == description.get("label_kind"):
            return kind
    for kind in kinds:
        if kind.problem_type is not None and kind.problem_type == config.get("problem_type"):
            return kind
    if not kinds:
        raise ValueError(
            f"The model has the head {head}, which no task uses: fine-tune the model "
            "with bertjax.finetune, or use --fill_mask or --embed."
        )
    return RegressionTask if RegressionTask in kinds and num_labels == 1 else kinds[0]
