"""The task of a model directory: what it was fine-tuned for, by us or by anybody else."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.tasks.classification import ClassificationTask, MultiLabelTask, RegressionTask
from bertjax.tasks.metrics import METRICS
from bertjax.tasks.multiple_choice import ChoiceTask
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.conll import marks_entities
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import Task

# Fields of `SpanTask` that `task.json` keeps.
SPAN_FIELDS = (
    *("doc_stride", "max_query_length", "max_answer_length"),
    *("with_impossible", "null_threshold"),
)
LABEL_KINDS = {
    "token_classification": "tokens",
    "question_answering": "span",
    "multiple_choice": "choice",
}


def saved_task(
    head: str,
    labels: Sequence[str] | None,
    num_labels: int,
    config: Mapping[str, Any],
    description: Mapping[str, Any],
    longest: int,
) -> Task:
    """The task of a model.

    Args:
        head: of the model.
        labels: names of its classes.
        num_labels: how many they are.
        config: the model's `config.json`, whose problem_type tells texts' tasks apart.
        description: of `task.json`; empty for a model of other origin.
        longest: what the model reads at most, in tokens.

    Raises:
        ValueError: the head answers no task.
    """
    kind = description.get("label_kind") or LABEL_KINDS.get(head)
    if head == "sequence_classification" and kind is None:
        kind = _kind_of_texts(config, num_labels)
    names = tuple(labels or (f"LABEL_{i}" for i in range(num_labels)))
    fields: dict[str, Any] = {
        "name": description.get("task", head),
        "max_length": min(description.get("max_length", longest), longest),
    }
    name = fields["name"]
    if kind == "classes":
        return ClassificationTask(
            labels=names, metric=METRICS.get(name, METRICS["classify"]), **fields
        )
    if kind == "multi_label":
        return MultiLabelTask(labels=names, metric=METRICS["multi_label"], **fields)
    if kind == "regression":
        return RegressionTask(metric=METRICS["regress"], **fields)
    if kind == "tokens":
        metric = METRICS["tag" if marks_entities(names) else "tag_words"]
        return TagTask(labels=names, metric=metric, **fields)
    if kind == "span":
        # Models of other origin were mostly trained on passages in windows of this length.
        fields["max_length"] = min(description.get("max_length", 384), longest)
        return SpanTask(**fields, **{k: description[k] for k in SPAN_FIELDS if k in description})
    if kind == "choice":
        # How many choices there are is known when the file is read.
        return ChoiceTask(metric=METRICS["choice"], num_choices=0, **fields)
    raise ValueError(
        f"The model has the head {head}, which answers no task: fine-tune it with "
        "bertjax.finetune, or use --fill_mask or --embed."
    )


def _kind_of_texts(config: Mapping[str, Any], num_labels: int) -> str:
    named = {
        "regression": "regression",
        "multi_label_classification": "multi_label",
        "single_label_classification": "classes",
    }.get(str(config.get("problem_type")))
    return named or ("regression" if num_labels == 1 else "classes")
