"""The teacher of a pretraining: read anew at every start, never part of a checkpoint."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bertjax.config import PretrainConfig
from bertjax.devices import sharding
from bertjax.model import BertWithHead
from bertjax.tokenization import Tokenizer
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.student import fingerprint, student_params


class Teacher(NamedTuple):
    """A masked LM, its parameters laid out over the devices, and a hash of them."""

    model: BertWithHead
    params: dict[str, Any]
    fingerprint: str


def head_of_student(config: PretrainConfig, pairs: bool) -> Literal["pretraining", "masked_lm"]:
    """What the model is to answer: pairs, only if a loss trains that; `pairs`: the data has them.

    Raises:
        ValueError: it is to have a head that nothing trains, or to lack one.
    """
    lessons = config.distillation
    if lessons.teacher is None:
        return config.head or ("pretraining" if pairs else "masked_lm")
    trained = "pretraining" if lessons.nsp else "masked_lm"
    if config.head not in (None, trained):
        raise ValueError(
            f"head={config.head!r} at distillation.nsp={lessons.nsp:g}: a student that answers "
            "sentence pairs needs that loss, and no other has it. Leave --head out."
        )
    return trained


def load_teacher(config: PretrainConfig, tokenizer: Tokenizer, mesh: Mesh) -> Teacher:
    """The teacher that the config names.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it has no MLM head, or does not fit the student or the data.
    """
    lessons = config.distillation
    loaded = load_model(str(lessons.teacher), "masked_lm")
    _check(config, loaded, tokenizer)
    model = loaded.model.clone(dtype=jnp.dtype(config.dtype))
    where = sharding.state_sharding(mesh, loaded.params)
    return Teacher(model, jax.device_put(loaded.params, where), fingerprint(loaded.params))


def _check(config: PretrainConfig, loaded: LoadedModel, tokenizer: Tokenizer) -> None:
    teacher, student, lessons = loaded.config, config.model, config.distillation
    name = f"--distillation.teacher {lessons.teacher}"
    if loaded.absent:
        raise ValueError(
            f"{name} has no {', '.join(loaded.absent)}: only a masked LM has soft targets; take "
            "the pretrained model, not one that was fine-tuned."
        )
    if loaded.tokenizer.fingerprint != tokenizer.fingerprint:
        raise ValueError(
            f"The tokenizer of {name} is not the one that {config.data} was prepared with: prepare "
            "the data with --tokenizer naming the teacher."
        )
    if teacher.vocab_size != student.vocab_size:
        raise ValueError(
            f"{name} has vocab_size={teacher.vocab_size}, the student {student.vocab_size}: give "
            f"--model.vocab_size={teacher.vocab_size}."
        )
    if lessons.cosine and teacher.hidden_size != student.hidden_size:
        raise ValueError(
            f"{name} has hidden_size={teacher.hidden_size}, the student {student.hidden_size}, and "
            f"hidden states of other widths have no cosine: give --distillation.cosine=0 or "
            f"--model.hidden_size={teacher.hidden_size}."
        )
    longest = max(phase.max_length for phase in config.phases)
    if longest > teacher.max_length:
        raise ValueError(
            f"max_length={longest}, but {name} reads at most {teacher.max_length} tokens: shorten "
            "the phase."
        )


def start_of_student(config: PretrainConfig, model: BertWithHead) -> LoadedModel:
    """The chosen layers of the teacher, with its embeddings and heads, as a student.

    Raises:
        ValueError: they do not fit the student.
    """
    lessons = config.distillation
    teacher = load_model(str(lessons.teacher), config.head, seed=config.seed)
    params, absent = student_params(teacher, model, lessons.layers, config.seed)
    return teacher._replace(model=model, params=params, config=model.config, absent=absent)


def run_identity(config: PretrainConfig, teacher: Teacher | None) -> dict[str, Any]:
    """The config as the workdir keeps it: a teacher is known by its weights, too."""
    found = dataclasses.asdict(config)
    if teacher is None:
        return found | {"distillation": None}
    return found | {
        "distillation": found["distillation"] | {"teacher_weights": teacher.fingerprint}
    }
