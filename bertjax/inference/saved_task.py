"""Restores the task that a loaded model was fine-tuned on, from what its files say.

Those are `task.json`, which bertjax writes, and, for models of other libraries, config.json and the
files of sentence-transformers. They were read when the model was loaded.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.base.checked import Checked, Count, Positive, read_fields
from bertjax.base.files import brief, listed, naming_read_errors
from bertjax.inference.embedder import following
from bertjax.tasks import Task
from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
    TargetsTask,
    TextTask,
    metric_of,
)
from bertjax.tasks.embedding import EmbeddingTask
from bertjax.tasks.question_answering import SAVED_FIELDS, SpanTask
from bertjax.tasks.registry import TASKS
from bertjax.tasks.reranking import ACTIVATIONS, RerankTask
from bertjax.tasks.tagging import TagTask
from bertjax.weights import LoadedModel
from bertjax.weights.load import with_saved_tagger
from bertjax.weights.sentence_transformers import read_cross_encoder

# A saved model finds its task by its head, then by its kind of labels; if several tasks fit, it is
# the one that task.json names.
KINDS: tuple[type[Task], ...] = tuple(
    dict.fromkeys(kind for task in TASKS.values() for kind in task.kinds)
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description(Checked):
    """The entries of `task.json` that make a task, each of which old files may lack."""

    task: str | None = None
    label_kind: str | None = None
    max_length: Count | None = None
    max_query_length: Count | None = None
    max_answer_length: Count | None = None
    doc_stride: Count | None = None
    with_impossible: bool | None = None
    null_threshold: float | None = None
    temperature: Positive = 1.0
    columns: dict | None = None
    thresholds: dict | None = None
    label_separator: str | None = None
    pairs: bool | None = None
    head_fields: dict | None = None


# Tokens per window with which other libraries usually train question answering.
SPAN_LENGTH = 384


def with_task(loaded: LoadedModel) -> tuple[LoadedModel, Task, dict[str, Any]]:
    """Restores the task of a loaded model; returns model, task and the content of `task.json`.

    The content is {} if the model directory has no `task.json`, or if the file describes a head
    other than the loaded one. A `FeatureTagger`, a token classifier trained on hidden states of the
    frozen encoder, replaces the head of the returned model. Raises ValueError as `saved_task` does.
    """
    where = loaded.source.where
    usage = loaded.source.usage
    description = description_of(loaded)
    length = None
    activation = ""
    prompt = ""
    if not description and usage.modules.value:
        length = usage.modules.value.max_length
    if loaded.head == RerankTask.head:
        files = usage.sentence_files.value or {}
        lowers = bool(loaded.tokenizer and loaded.tokenizer.do_lower_case)
        with naming_read_errors(where):
            activation, length, prompt = read_cross_encoder(
                loaded.source.config, files, lowers=lowers
            )
    longest = loaded.config.max_length
    if not description:  # as for embeddings
        longest = min(length or loaded.max_length, longest)
    with naming_read_errors(where / "task.json" if description else where):
        loaded = with_saved_tagger(loaded, description)
        task = saved_task(
            loaded.head,
            loaded.labels,
            loaded.model.num_labels,
            loaded.source.config,
            description,
            longest,
            activation,
        )
        task, loaded = following(task, loaded, foreign=not description)
    if isinstance(task, RerankTask):
        task = dataclasses.replace(task, prompt=prompt)
    elif prompt:
        raise ValueError(
            f"default_prompt_name of {where} puts {prompt[:40]!r} before each text, but "
            "bertjax follows it only for scores of passages: use the logits, or delete it there."
        )
    return loaded, task, description


def stated_length(task: Task, loaded: LoadedModel) -> int | None:
    """Returns after how many tokens the files of a model say that texts of a task are truncated.

    Embedders say it in the files of sentence-transformers, rerankers also in `task.json` or by
    their tokenizer. None: no file says it. The number of positions of the model says nothing.
    """
    longest = loaded.config.max_length
    modules = loaded.source.usage.modules.value
    if isinstance(task, EmbeddingTask) and modules is not None:
        lengths = list(filter(None, (modules.max_length, modules.document_length)))
        if lengths:
            return min(max(*lengths, modules.query_length or 0), longest)
    # An embedder that becomes a reranker had the length of single texts.
    if isinstance(task, RerankTask) and loaded.model.class_part not in loaded.absent:
        restored = with_task(loaded)[1].max_length
        if restored < longest or description_of(loaded):
            return restored
    return None


def description_of(loaded: LoadedModel) -> dict[str, Any]:
    """Returns the content of `task.json`; {} if it describes another head than the loaded one."""
    # If the directory lacks parts of the loaded head, its task.json describes another head.
    has_head = set(loaded.absent).isdisjoint(loaded.model.parts)
    if has_head:
        return loaded.source.usage.description.result()
    return {}


def is_described(loaded: LoadedModel) -> bool:
    """Returns whether the model has the head that its `task.json` describes.

    A `FeatureTagger` is no head of the model.
    """
    kind = description_of(loaded).get("label_kind")
    return any(task.head == loaded.head and task.label_kind == kind for task in KINDS)


def saved_task(
    head: str,
    labels: Sequence[str] | None,
    num_labels: int,
    config: Mapping[str, Any],
    description: Mapping[str, Any],
    longest: int,
    activation: str = "",
) -> Task:
    """Creates the task that a saved model was fine-tuned on, from the files of the model.

    Args:
        labels: class names in the order of their ids; if None, LABEL_0, LABEL_1 and so on.
        config: the content of config.json.
        description: the content of task.json; empty for a model from another library.
        longest: maximum input length of the model, in tokens.
        activation: what sentence-transformers applies to the logits, as `read_cross_encoder` says.

    Raises:
        ValueError: no task uses the head, an entry of task.json has a wrong type or value, or the
            classes or the activation do not fit.
    """
    saved = read_fields(description, Description)
    kind = _kind_of(head, num_labels, config, saved, activation)
    default_length = longest
    if kind is SpanTask:
        default_length = SPAN_LENGTH
    fields: dict[str, Any] = {
        "name": saved.task or head,
        "max_length": min(saved.max_length or default_length, longest),
    }
    if kind is RerankTask or (issubclass(kind, TextTask) and not description):
        _check_outputs(kind, num_labels, activation)
    if kind is SpanTask:
        for name in SAVED_FIELDS:
            if getattr(saved, name) is not None:
                fields[name] = getattr(saved, name)
    elif kind is ChoiceTask:
        fields["num_choices"] = 0  # unknown until the inputs to predict are read
    elif kind is RerankTask:
        fields |= {"activation": activation or "Sigmoid", "pairs": saved.pairs}
    elif not issubclass(kind, EmbeddingTask):
        # Models of old versions name no stride: taggers read windows, classifiers truncated texts.
        fields["doc_stride"] = saved.doc_stride
        if issubclass(kind, TextTask):
            fields["pairs"] = _pairs(description)
        if kind is TargetsTask or not issubclass(kind, RegressionTask):
            check_class_ids(labels, config)
            names = tuple(labels or (f"LABEL_{i}" for i in range(num_labels)))
            return _classifier(kind, names, fields, saved)
    return kind(**fields)


def _classifier(
    kind: type[Task], names: tuple[str, ...], fields: dict[str, Any], saved: Description
) -> Task:
    if kind is TagTask:
        return TagTask.of_labels(names, **fields)
    if issubclass(kind, ClassificationTask):
        fields |= {"temperature": float(saved.temperature), "metric": metric_of(names)}
    elif saved.thresholds:
        fields["thresholds"] = _thresholds(saved.thresholds, names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"id2label in config.json has {brief(', '.join(repeated), 80)} more than once, so that "
            "predictions would not tell the classes apart: give each id a name of its own there."
        )
    definition = TASKS.get(fields["name"])
    if definition is not None and definition.metric is not None and kind in definition.kinds:
        fields["metric"] = definition.metric
    return kind(labels=names, **fields)


def _thresholds(thresholds: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    numbers = [x for x in thresholds.values() if isinstance(x, float | int) and 0 <= x <= 1]
    if set(thresholds) != set(names) or len(numbers) < len(thresholds):
        raise ValueError(
            f"thresholds={brief(thresholds)} in task.json should be a probability of each of "
            f"{brief(', '.join(names), 80)}: correct it, or copy or download the model again."
        )
    return thresholds


def check_class_ids(labels: Sequence[str] | None, config: Mapping[str, Any]) -> None:
    """Raises ValueError if the ids of the class names `labels` in a config are not 0 to n - 1."""
    if not labels:
        return
    ids = sorted({int(i) for i in config.get("id2label") or ()})
    if ids and ids != list(range(len(labels))):
        raise ValueError(
            f"id2label in config.json has the ids {listed(ids)}, but the outputs of the model are "
            f"0 to {len(labels) - 1}, so that their names are unknown: correct the ids there."
        )


def _check_outputs(kind: type[Task], num_labels: int, activation: str) -> None:
    is_regression = issubclass(kind, RegressionTask | RerankTask)
    can_be_several = kind in (MultiLabelTask, TargetsTask)
    if is_regression != (num_labels == 1) and not can_be_several:
        raise ValueError(
            f"config.json has problem_type={kind.problem_type!r}, but the model has {num_labels} "
            "outputs: correct it there, or use the logits, load_pretrained(...)(texts)."
        )
    known = {"", "Identity", "Sigmoid"}
    if kind is ClassificationTask:
        known = {"", "Identity", "Softmax"}
    elif kind is TargetsTask:
        known = {"", "Identity"}
    elif kind is RerankTask:
        known = {"", *ACTIVATIONS}
    if activation not in known:
        raise ValueError(
            f"sentence-transformers would apply the activation {brief(activation, 60)} to the "
            "outputs of the model, which bertjax does not: use the logits, "
            "load_pretrained(...)(texts)."
        )


def _pairs(description: Mapping[str, Any]) -> bool | None:
    """Returns whether inputs are pairs; old task.json files only have the columns of the file."""
    if "pairs" in description:
        return description["pairs"]
    columns = description.get("columns") or {}
    if columns.get("text") is None:
        return None
    return columns.get("pair") is not None


def _kind_of(
    head: str,
    num_labels: int,
    config: Mapping[str, Any],
    saved: Description,
    activation: str,
) -> type[Task]:
    """Selects the subclass of `Task` by what task.json says, else by head and problem_type.

    Without both, a model with one output is a reranker, as CrossEncoder saved them before version
    4; transformers writes the problem_type of what it trains.
    """
    kinds = [kind for kind in KINDS if kind.head == head]
    own: tuple[type[Task], ...] = ()
    definition = TASKS.get(saved.task or "")
    if definition is not None:
        own = definition.kinds
    for kind in (*own, *kinds, *KINDS):
        if kind.label_kind == saved.label_kind:
            return kind
    problem = config.get("problem_type")
    is_scored = problem is None or (activation and problem == RegressionTask.problem_type)
    if RerankTask in kinds and num_labels == 1 and is_scored:
        return RerankTask
    if problem == TargetsTask.problem_type and num_labels > 1 and TargetsTask in kinds:
        return TargetsTask
    for kind in kinds:
        if problem is not None and kind.problem_type == problem:
            return kind
    if not kinds:
        raise ValueError(
            f"The model has the head {head}, which no task uses: fine-tune the model "
            "with bertjax.finetune, or use bertjax.fill_mask or bertjax.embed."
        )
    return kinds[0]
