"""The training state: step, parameters and optimizer state."""

from collections.abc import Collection
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from bertjax.training.loss_history import LossHistory, empty_history


@flax.struct.dataclass
class TrainState:
    """A pytree of everything that an update changes."""

    step: jax.Array
    """The number of updates so far, an int32 scalar."""
    params: Any
    opt_state: Any
    history: LossHistory
    """The losses of the last steps, and from which deviation on a loss is a spike."""


def split_params(params: Any, frozen: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits parameters into two dictionaries: the trained parts and the `frozen` parts."""
    trained = {name: part for name, part in params.items() if name not in frozen}
    return trained, {name: part for name, part in params.items() if name in frozen}


def create_train_state(
    params: Any,
    tx: optax.GradientTransformation,
    frozen: Collection[str] = (),
    *,
    skip_spikes: float = 0.0,
) -> TrainState:
    """Creates the state before the first step; `frozen` parts have no optimizer state."""
    opt_state = tx.init(split_params(params, frozen)[0])
    step = jnp.zeros((), jnp.int32)
    return TrainState(step, params, opt_state, empty_history(skip_spikes))
