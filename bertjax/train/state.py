"""`TrainState`: step, parameters, optimizer state and recent losses of a training run."""

from collections.abc import Collection
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from bertjax.train.loss_history import LossHistory, empty_history


@flax.struct.dataclass
class TrainState:
    """The state that a train step updates, as a pytree of arrays."""

    step: jax.Array
    """The number of train steps so far, including skipped updates; an int32 scalar."""
    params: Any
    """The parameters, a tree of float32 arrays."""
    opt_state: Any
    """The state of the optimizer, as Optax defines it."""
    history: LossHistory
    """The losses and gradient norms of the last steps in which both were finite, and the threshold
    above which a loss or gradient norm is a spike."""


def split_params(params: Any, frozen: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits `params` by top-level keys; returns (trained parameters, `frozen` parameters)."""
    trained = {name: part for name, part in params.items() if name not in frozen}
    return trained, {name: part for name, part in params.items() if name in frozen}


def create_train_state(
    params: Any,
    tx: optax.GradientTransformation,
    frozen: Collection[str] = (),
    *,
    skip_spikes: float = 0.0,
) -> TrainState:
    """Creates the training state before the first step.

    Args:
        params: the initial parameters.
        tx: the optimizer.
        frozen: the top-level keys of parameters that are not trained and have no optimizer state.
        skip_spikes: the number of standard deviations by which a loss or gradient norm must exceed
            the mean of the last steps to count as a spike; 0: nothing counts as a spike.
    """
    opt_state = tx.init(split_params(params, frozen)[0])
    step = jnp.zeros((), jnp.int32)
    return TrainState(step, params, opt_state, empty_history(skip_spikes))
