"""Standardised targets of regression: mean 0 and standard deviation 1 during training.

With targets far from 0, such as prices, a new regression head would need thousands of updates to
reach the scale of the targets. `RegressionTask` therefore standardises the targets, and the last
layer of the exported model contains the original scale, so that its output needs no conversion.
"""

from typing import Any

import numpy as np

from bertjax.model import HEADS
from bertjax.tasks import Task
from bertjax.tasks.classification import RegressionTask


def to_standardized(params: Any, task: Task) -> Any:
    """Converts a head that predicts targets to one that predicts the standardised targets.

    Args:
        params: parameters of a model with the head of `task`; the last layer of the head, its
            `class_part`, is an entry of the top level.
        task: the task, whose `mean` and `std` standardise the targets; for tasks other than
            regression, `params` is returned unchanged.
    """
    if not isinstance(task, RegressionTask):
        return params
    kernel, bias = _last_layer(params, task)
    return _with_last_layer(params, task, kernel / task.std, (bias - task.mean) / task.std)


def to_original(params: Any, task: Task) -> Any:
    """Converts a head that predicts standardised targets to one that predicts the targets.

    `params` and `task` are those of `to_standardized`.
    """
    if not isinstance(task, RegressionTask):
        return params
    kernel, bias = _last_layer(params, task)
    return _with_last_layer(params, task, kernel * task.std, bias * task.std + task.mean)


def _last_layer(params: Any, task: Task) -> tuple[np.ndarray, np.ndarray]:
    layer = params[HEADS[task.head].class_part]
    return np.asarray(layer["kernel"], np.float64), np.asarray(layer["bias"], np.float64)


def _with_last_layer(params: Any, task: Task, kernel: np.ndarray, bias: np.ndarray) -> Any:
    part = HEADS[task.head].class_part
    dtype = np.asarray(params[part]["kernel"]).dtype
    return {**params, part: {"kernel": kernel.astype(dtype), "bias": bias.astype(dtype)}}
