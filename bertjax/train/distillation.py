"""Objectives for distillation, in which a student learns from a teacher's outputs.

They follow Hinton et al. 2015 and, in pretraining, DistilBERT (Sanh et al. 2019, 3).

The function `sums` of these objectives computes the losses of a batch from the dictionary `outputs`
of the student's outputs; `outputs[TEACHER]` holds the teacher's outputs for the same batch.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertjax.config import FinetuneConfig, PretrainConfig, TeacherConfig
from bertjax.config.model import BertConfig
from bertjax.config.pretrain_config import DistillationConfig
from bertjax.inference.saved_task import with_task
from bertjax.model import BertWithHead, losses
from bertjax.model.embeddings import take_positions
from bertjax.model.losses import Arrays, Objective, cosine_loss, soft_targets_loss
from bertjax.tasks import Task
from bertjax.tokenization import Tokenizer
from bertjax.train.step import TEACHER
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.load import class_order, fingerprint, student_params, with_class_order


def distilled_pretraining(config: DistillationConfig) -> Objective:
    """Returns the objective of DistilBERT's pretraining (Sanh et al. 2019, 2).

    The total loss is the sum of the soft-target, masked-LM, cosine and NSP losses, weighted by
    `config`. They are means over a whole batch: masked-LM over masked tokens, NSP over labelled
    sequences, cosine over all tokens but padding, and soft-target over one of the two sets of
    tokens, as `config.soft_targets_on` says. The teacher has the head "masked_lm".
    """
    everywhere = bool(config.soft_targets) and config.soft_targets_on == "all"

    def sums(outputs: Arrays, batch: Arrays) -> losses.Sums:
        teacher = outputs[TEACHER]
        positions = batch["masked_positions"]
        real = (batch["sequence_ids"] > 0).astype(jnp.float32)  # [B, L]
        key = losses.mlm_key(outputs)
        logits = outputs[key]  # [B, L or P, V]
        distilled: losses.Sums = {}
        if config.soft_targets:
            weights = real if everywhere else batch["masked_weights"]
            soft = soft_targets_loss(logits, teacher["logits"], config.temperature)
            distilled["soft_loss"] = (jnp.sum(soft * weights), jnp.sum(weights))
        if config.cosine:
            cosine = cosine_loss(outputs["last_hidden_state"], teacher["last_hidden_state"])
            distilled["cosine_loss"] = (jnp.sum(cosine * real), jnp.sum(real))
        at_masks = logits
        if everywhere:
            at_masks = take_positions(logits, positions)
        return distilled | losses.pretraining_sums({**outputs, key: at_masks}, batch)

    def weights(batch: Arrays) -> dict[str, jax.Array]:
        label_weights = losses.pretraining_weights(batch)
        real = jnp.sum(batch["sequence_ids"] > 0).astype(jnp.float32)
        soft = real if everywhere else label_weights["mlm_loss"]
        return {"soft_loss": soft, "cosine_loss": real, **label_weights}

    loss_weights = {
        "soft_loss": config.soft_targets,
        "mlm_loss": config.mlm,
        "cosine_loss": config.cosine,
        "nsp_loss": config.nsp,
    }
    return Objective(
        sums,
        weights,
        {name: weight for name, weight in loss_weights.items() if weight},
        inputs=() if everywhere else losses.PRETRAINING.inputs,
        best_metric="mlm_loss",
    )


def distilled_task(hard: Objective, teacher: TeacherConfig) -> Objective:
    """Adds a distillation loss to the fine-tuning objective `hard`, which uses only the labels.

    The total loss is (1 - weight) * label loss + weight * distillation loss, both means over the
    labelled sequences or tokens, weighted by "label_weights". The distillation loss is
    KL(teacher || student) * T^2, where T is the temperature, which divides the logits of both; in
    regression, it is the squared difference of the logits, without a temperature.
    """
    assert hard.soft_losses is not None
    soft_losses = hard.soft_losses
    temperature = teacher.temperature or 2.0
    share = teacher.weight

    def sums(outputs: Arrays, batch: Arrays) -> losses.Sums:
        metrics = hard.sums(outputs, batch)
        hard_loss, weight = metrics.pop("loss")
        soft = soft_losses(outputs, outputs[TEACHER], batch, temperature)
        # Where there is no label, the label weight is 0, and the meaningless loss is set to 0.
        soft = jnp.where(batch["label_weights"] > 0, soft, 0.0)
        soft_loss = jnp.sum(soft * batch["label_weights"])
        return metrics | {
            "hard_loss": (hard_loss, weight),
            "soft_loss": (soft_loss, weight),
            "loss": ((1.0 - share) * hard_loss + share * soft_loss, weight),
        }

    return hard._replace(sums=sums)


class Teacher(NamedTuple):
    """The teacher of a run: Flax module, parameters (a tree of numpy arrays), and their hash."""

    model: BertWithHead
    params: dict[str, Any]
    fingerprint: str


def load_masked_lm_teacher(
    config: PretrainConfig, student: BertConfig, tokenizer: Tokenizer
) -> Teacher | None:
    """Loads the masked-LM teacher of a pretraining run; None: `config` names no teacher."""
    if config.distillation is None:
        return None
    distillation = config.distillation
    loaded = load_model(distillation.teacher, "masked_lm")
    teacher = loaded.config
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
            f"--distillation.cosine=0 or --model.hidden_size={teacher.hidden_size}."
        )
    longest = max(phase.max_length for phase in config.phases)
    if longest > teacher.max_length:
        raise ValueError(
            f"max_length={longest}, but {name} reads at most {teacher.max_length} tokens: lower "
            "max_length in the phases."
        )
    return Teacher(loaded.model, loaded.params, fingerprint(loaded.params))


def student_of_teacher(config: PretrainConfig, model: BertWithHead) -> LoadedModel:
    """Initialises the student `model` with embeddings, head and some layers of its teacher.

    `config.distillation.layers` lists, for each layer of the student, the teacher's layer to copy.
    """
    assert config.distillation is not None
    teacher = load_model(config.distillation.teacher, config.head, seed=config.seed)
    params, absent = student_params(teacher, model, config.student_layers, config.seed)
    return teacher._replace(model=model, params=params, absent=absent)


def load_task_teacher(config: FinetuneConfig, task: Task, student: LoadedModel) -> Teacher | None:
    """Loads the teacher of a fine-tuning run; None: the config names no teacher.

    The outputs of its classifier are put in the order of the task's classes, if they have names.
    """
    if config.teacher is None:
        return None
    name = f"--teacher.model {config.teacher.model}"
    if task.label_kind in ("regression", "targets") and config.teacher.temperature is not None:
        raise ValueError(
            f"--teacher.temperature {config.teacher.temperature}: the labels of {task.name} are "
            "numbers, for which it has no meaning; leave it out."
        )
    loaded, teacher_task, _ = with_task(load_model(config.teacher.model, None))
    if teacher_task.label_kind != task.label_kind:
        raise ValueError(
            f"{name} predicts {teacher_task.label_kind}, but {task.name} needs {task.label_kind}: "
            "name a model that was fine-tuned on this task."
        )
    tokenizers = [loaded.tokenizer, student.tokenizer]
    if task.label_kind == "tokens":  # words are encoded after a space by both
        tokenizers = [tokenizer.after_space() for tokenizer in tokenizers]
    if tokenizers[0].fingerprint != tokenizers[1].fingerprint:
        raise ValueError(
            f"{name} and --init {config.init} have different tokenizers, but both must read the "
            "same tokens: choose two models with the same tokenizer."
        )
    check_length(config, task, name, loaded)
    if loaded.model.objectives[task.label_kind].named_classes:
        order = class_order(teacher_task.labels, task.labels)
        if order is None:
            raise ValueError(
                f"{name} has the classes {', '.join(teacher_task.labels)}, but the task has "
                f"{', '.join(task.labels)}: the classes must be the same, in any order. If only "
                "the names of the classes differ, correct id2label in the config.json of the "
                "teacher."
            )
        loaded = with_class_order(loaded, order)
    return Teacher(loaded.model, loaded.params, fingerprint(loaded.params))


def check_length(config: FinetuneConfig, task: Task, name: str, loaded: LoadedModel) -> None:
    """Checks that the model `name` accepts as many tokens as the examples of a task may have."""
    longest = loaded.config.max_length
    max_length = config.max_length or task.max_length
    if max_length > longest:
        raise ValueError(
            f"max_length={max_length}, but {name} reads at most {longest} tokens: give "
            f"--max_length={longest}."
        )
