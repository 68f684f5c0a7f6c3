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
    """The losses and gradient norms of the last steps, and the threshold for spikes."""


def split_params(params: Any, frozen: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits parameters by their top-level names: (the trained parts, the `frozen` parts)."""
    trained = {name: part for name, part in params.items() if name not in frozen}
    return trained, {name: part for name, part in params.items() if name in frozen}


def create_train_state(
    params: Any,
    tx: optax.GradientTransformation,
    frozen: Collection[str] = (),
    *,
    skip_spikes: float = 0.0,
) -> TrainState:
    """Creates the state before the first step.

    Args:
        params: the parameters to start from.
        tx: the optimizer.
        frozen: the top-level names of parameters that are not trained, so have no optimizer state.
        skip_spikes: see `loss_history.LossHistory.sigma`.
    """
    opt_state = tx.init(split_params(params, frozen)[0])
    step = jnp.zeros((), jnp.int32)
    return TrainState(step, params, opt_state, empty_history(skip_spikes))
