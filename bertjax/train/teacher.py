"""Loads the teacher model of a distillation run, and initialises a student from its teacher.

Checkpoints do not contain the teacher, so a run that resumes loads the teacher again.
"""

from typing import Any, NamedTuple

from bertjax.config import FinetuneConfig, PretrainConfig
from bertjax.inference.pretrained import load_with_task
from bertjax.model import BertWithHead
from bertjax.tasks import Task
from bertjax.tokenization import Tokenizer
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.load import fingerprint, student_params


class Teacher(NamedTuple):
    """The teacher of a run.

    Attributes:
        model: the Flax module.
        params: the parameters, a tree of numpy arrays.
        fingerprint: a hash of the parameters.
    """

    model: BertWithHead
    params: dict[str, Any]
    fingerprint: str


def load_masked_lm_teacher(config: PretrainConfig, tokenizer: Tokenizer) -> Teacher | None:
    """Loads the masked-LM teacher of a pretraining run; returns None if `config` names no teacher.

    Raises:
        FileNotFoundError: the directory or hub name of the teacher does not exist.
        ValueError: the teacher has no MLM head, accepts fewer tokens than the rows of a phase have,
            has another tokenizer than the data, or has another vocab_size or, with the cosine loss,
            another hidden_size than the student.
    """
    if config.distillation.teacher is None:
        return None
    loaded = load_model(config.distillation.teacher, "masked_lm")
    _check_masked_lm(config, loaded, tokenizer)
    return Teacher(loaded.model, loaded.params, fingerprint(loaded.params))


def _check_masked_lm(config: PretrainConfig, loaded: LoadedModel, tokenizer: Tokenizer) -> None:
    teacher, student, distillation = loaded.config, config.model, config.distillation
    name = f"--distillation.teacher {distillation.teacher}"
    if loaded.absent:
        raise ValueError(
            f"{name} has no {', '.join(loaded.absent)}: the teacher must have a masked LM "
            "head. Name the pretrained model, not a fine-tuned one."
        )
    if loaded.tokenizer.fingerprint != tokenizer.fingerprint:
        raise ValueError(
            f"The tokenizer of {name} is not the one that {config.data} was prepared with: prepare "
            f"the data with --tokenizer {distillation.teacher}."
        )
    if teacher.vocab_size != student.vocab_size:
        raise ValueError(
            f"{name} has vocab_size={teacher.vocab_size}, but the student has "
            f"{student.vocab_size}: give --model.vocab_size={teacher.vocab_size}."
        )
    if distillation.cosine and teacher.hidden_size != student.hidden_size:
        raise ValueError(
            f"{name} has hidden_size={teacher.hidden_size}, but the student has "
            f"{student.hidden_size}: the cosine loss needs equal sizes. Give "
            "--distillation.cosine=0 or "
            f"--model.hidden_size={teacher.hidden_size}."
        )
    longest = max(phase.max_length for phase in config.phases)
    if longest > teacher.max_length:
        raise ValueError(
            f"max_length={longest}, but {name} reads at most {teacher.max_length} tokens: lower "
            "max_length in the phases."
        )


def student_of_teacher(config: PretrainConfig, model: BertWithHead) -> LoadedModel:
    """Initialises the student `model` with embeddings, head and some layers of its teacher.

    `config.distillation.layers` lists, for each layer of the student, the teacher's layer to copy.

    Raises:
        ValueError: the teacher lacks a layer in this list, the list does not name one layer for
            each layer of the student, or teacher and student differ in the shapes of the copied
            parameters (for example in hidden_size), in activations, `layer_norm_eps` or
            `position_offset`.
    """
    distillation = config.distillation
    teacher = load_model(str(distillation.teacher), config.head, seed=config.seed)
    params, absent = student_params(teacher, model, distillation.layers, config.seed)
    return teacher._replace(model=model, params=params, config=model.config, absent=absent)


def load_task_teacher(config: FinetuneConfig, task: Task, student: LoadedModel) -> Teacher | None:
    """Loads the teacher of a fine-tuning run, or returns None if the config names no teacher.

    If the task has named classes, the outputs of the teacher's classifier are put in the order of
    the task's classes.

    Raises:
        FileNotFoundError: the model of the teacher does not exist.
        ValueError: the teacher was trained for another kind of task or for other classes, has
            another tokenizer than the student, or accepts fewer tokens than the maximum length of
            the run; or `config` sets a temperature for a regression task.
    """
    if config.teacher is None:
        return None
    name = f"--teacher {config.teacher}"
    if task.label_kind == "regression" and config.temperature is not None:
        raise ValueError(
            f"temperature={config.temperature}: the labels of {task.name} are numbers, for which "
            "temperature has no meaning; leave it out."
        )
    loaded, teacher_task, _ = load_with_task(config.teacher)
    if teacher_task.label_kind != task.label_kind:
        raise ValueError(
            f"{name} predicts {teacher_task.label_kind}, but {task.name} needs {task.label_kind}: "
            "name a model that was fine-tuned on this task."
        )
    if loaded.tokenizer.fingerprint != student.tokenizer.fingerprint:
        raise ValueError(
            f"{name} and --init {config.init} have different tokenizers, but both must read the "
            "same tokens: choose two models with the same tokenizer."
        )
    longest, max_length = loaded.config.max_length, config.max_length or task.max_length
    if max_length > longest:
        raise ValueError(
            f"max_length={max_length}, but {name} reads at most {longest} tokens: give "
            f"--max_length={longest}."
        )
    params = loaded.params
    if loaded.model.objectives[task.label_kind].named_classes:
        part = str(loaded.model.class_part)
        classifier = _reordered(params[part], teacher_task.labels, task.labels, name)
        params = params | {part: classifier}
    return Teacher(loaded.model, params, fingerprint(params))


def _reordered(
    classifier: dict[str, Any], teacher_labels: tuple[str, ...], labels: tuple[str, ...], name: str
) -> dict[str, Any]:
    """Reorders the classes in a classifier's parameters from `teacher_labels` to `labels`.

    Raises:
        ValueError: the classes are not the same; `name` names the teacher in the message.
    """
    if sorted(teacher_labels) != sorted(labels):
        raise ValueError(
            f"{name} has the classes {', '.join(teacher_labels)}, but the task has "
            f"{', '.join(labels)}: the classes must be the same, in any order. If only the "
            "names of the classes differ, correct id2label in the config.json of the teacher."
        )
    order = [teacher_labels.index(label) for label in labels]
    return {key: value[..., order] for key, value in classifier.items()}
