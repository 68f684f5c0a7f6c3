"""What is minimised: pretraining, or the loss of a kind of task, as a function of parameters."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from bertjax.config.model import DROPOUT_FIELDS
from bertjax.model import BertWithHead, losses
from bertjax.model.bert import MODEL_INPUTS
from bertjax.training.state import split_params


class Objective(NamedTuple):
    """A loss as mergeable sums, and what it divides by.

    Attributes:
        inputs: keys of the batch that the model takes by name, besides `MODEL_INPUTS`.
        weights: batch -> weights of the whole batch.
        sums: (outputs, batch) -> sums of losses and metrics.
        loss: (sums, weights) -> the scalar to minimise.
    """

    inputs: tuple[str, ...]
    weights: Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]
    sums: Callable[[Mapping[str, jax.Array], Mapping[str, jax.Array]], losses.Sums]
    loss: Callable[[losses.Sums, Mapping[str, jax.Array]], jax.Array]


PRETRAINING = Objective(
    ("masked_positions",),
    losses.pretraining_weights,
    losses.pretraining_sums,
    losses.pretraining_loss,
)
# By the kind of a task's labels.
TASK_OBJECTIVES = {
    kind: Objective((), losses.label_weights, sums, losses.task_loss)
    for kind, sums in {
        "classes": losses.class_sums,
        "tokens": losses.class_sums,
        "multi_label": losses.multi_label_sums,
        "regression": losses.regression_sums,
        "choice": losses.choice_sums,
        "span": losses.span_sums,
    }.items()
}


# The part of the parameters, and of the outputs, that is a teacher's.
TEACHER = "teacher"


def make_loss_fn(
    model: BertWithHead,
    objective: Objective = PRETRAINING,
    teacher: BertWithHead | None = None,
):
    """The loss of an objective as `train.step` wants it.

    A `teacher` reads the same batch without dropout. Its parameters are the part `TEACHER` of the
    parameters, and the objective finds its outputs under that name among those of the model.
    """

    has_dropout = any(getattr(model.config, rate) for rate in DROPOUT_FIELDS)

    def loss_fn(params, batch, weights, dropout):
        inputs = [batch[key] for key in MODEL_INPUTS]
        named = {key: batch[key] for key in objective.inputs}
        params, of_teacher = split_params(params, (TEACHER,))
        drawn = {}
        if has_dropout and dropout is not None:
            drawn = {"rngs": {"dropout": dropout.key}, "dropout_rows": dropout.rows}
        outputs: Any = model.apply({"params": params}, *inputs, **named, **drawn)
        if teacher is not None:
            taught = teacher.apply({"params": of_teacher[TEACHER]}, *inputs, **named)
            outputs = {**outputs, TEACHER: jax.lax.stop_gradient(taught)}
        sums = objective.sums(outputs, batch)
        return objective.loss(sums, weights), sums

    return loss_fn
