"""The teacher of a fine-tuning: a model of the same task, never part of a checkpoint."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from bertjax.config import FinetuneConfig
from bertjax.inference.saved_task import load_with_task
from bertjax.model import BertWithHead
from bertjax.tasks import Task
from bertjax.weights import LoadedModel
from bertjax.weights.student import fingerprint

# Kinds of labels that are classes with names, in an order of each model's own.
NAMED = ("classes", "multi_label", "tokens")


class Teacher(NamedTuple):
    """A model of the task with its classes in the task's order, and a hash of its weights."""

    model: BertWithHead
    params: dict[str, Any]
    fingerprint: str


def load_teacher(config: FinetuneConfig, task: Task, student: LoadedModel) -> Teacher | None:
    """The teacher that the config names, if it names one.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: it answers another task, has other classes or reads other tokens.
    """
    if config.teacher is None:
        return None
    name = f"--teacher {config.teacher}"
    if task.label_kind == "regression" and config.temperature is not None:
        raise ValueError(
            f"temperature={config.temperature}: {task.name} is about numbers, which have none; "
            "leave it out."
        )
    loaded, of_teacher, _ = load_with_task(config.teacher)
    if of_teacher.label_kind != task.label_kind:
        raise ValueError(
            f"{name} answers by {of_teacher.label_kind}, {task.name} wants {task.label_kind}: take "
            "a model that was fine-tuned on this task."
        )
    if loaded.tokenizer.fingerprint != student.tokenizer.fingerprint:
        raise ValueError(
            f"The tokenizer of {name} is not that of --init {config.init}, and they must read the "
            "same tokens: take a teacher or a student with the other's tokenizer."
        )
    longest, wanted = loaded.config.max_length, config.max_length or task.max_length
    if wanted > longest:
        raise ValueError(
            f"max_length={wanted}, but {name} reads at most {longest} tokens: give "
            f"--max_length={longest}."
        )
    params = loaded.params
    if task.label_kind in NAMED:
        params = _in_order(params, of_teacher.labels, task.labels, name)
    model = loaded.model.clone(dtype=jnp.dtype(config.dtype), unroll=config.unroll)
    return Teacher(model, params, fingerprint(params))


def _in_order(
    params: dict[str, Any], theirs: tuple[str, ...], ours: tuple[str, ...], name: str
) -> dict[str, Any]:
    """The parameters with the classes in our order."""
    if sorted(theirs) != sorted(ours):
        raise ValueError(
            f"{name} knows the classes {', '.join(theirs)}; the task has {', '.join(ours)}: they "
            "must be the same, in any order. Where only their names differ, correct id2label in "
            "the config.json of the teacher."
        )
    order = [theirs.index(label) for label in ours]
    classifier = {key: value[..., order] for key, value in params["classifier"].items()}
    return params | {"classifier": classifier}


def run_identity(config: FinetuneConfig, teacher: Teacher | None) -> dict[str, Any]:
    """The config as the workdir keeps it: a teacher is known by its weights, too."""
    found = dataclasses.asdict(config)
    return found if teacher is None else found | {"teacher_weights": teacher.fingerprint}
