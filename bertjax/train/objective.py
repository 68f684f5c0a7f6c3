"""Combines a model and an objective into the loss function of the train and evaluation steps.

An objective computes the losses and metrics of a batch from the model's outputs.
"""

from typing import Any

import jax

from bertjax.model import BertWithHead
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.losses import Objective
from bertjax.train.state import split_params

# The key of the teacher's parameters in `params`, and of the teacher's outputs in `outputs`.
TEACHER = "teacher"


def make_loss_fn(
    model: BertWithHead, objective: Objective | None = None, teacher: BertWithHead | None = None
):
    """Returns the loss function `loss_fn(params, batch, weights, dropout) -> (loss, sums)`.

    In the returned function, `weights` maps each loss to its total weight in the global batch, such
    as the number of masked tokens, by which the sum of the loss is divided. `dropout` is a
    `step.DropoutKey`, a PRNG key with the indices of the rows, or None (no dropout). `sums` maps
    each loss or metric to (sum of weighted values, sum of weights).

    Args:
        model: the model to train.
        objective: the objective to minimise; None: the pretraining objective of the model's head.
        teacher: the teacher for distillation, which reads the same batch without dropout; None: no
            distillation. The teacher's parameters are `params[TEACHER]`, and `objective.sums`
            receives the teacher's outputs as `outputs[TEACHER]`.
    """
    objective = objective or model.objectives["pretraining"]
    keys = (*MODEL_INPUTS, *objective.inputs)

    def loss_fn(params, batch, weights, dropout):
        inputs = {key: batch[key] for key in keys}
        params, teacher_params = split_params(params, (TEACHER,))
        random = {}
        if model.is_random and dropout is not None:
            random = {"rngs": {"dropout": dropout.key}, "dropout_rows": dropout.rows}
        outputs: Any = model.apply({"params": params}, **inputs, **random)
        if teacher is not None:
            taught = teacher.apply({"params": teacher_params[TEACHER]}, **inputs)
            outputs = {**outputs, TEACHER: jax.lax.stop_gradient(taught)}
        sums = objective.sums(outputs, batch)
        return objective.loss(sums, weights), sums

    return loss_fn
