"""The training state: step, parameters and optimizer state."""

from collections.abc import Collection
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
    """A pytree of everything that an update changes."""

    step: jax.Array
    """The number of updates so far, an int32 scalar."""
    params: Any
    opt_state: Any
    """The state of the optimizer; a pair (it, `LossHistory`) if spikes are skipped."""


def split_params(params: Any, frozen: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits parameters into two dictionaries: the trained parts and the `frozen` parts."""
    trained = {name: part for name, part in params.items() if name not in frozen}
    return trained, {name: part for name, part in params.items() if name in frozen}


def create_train_state(
    params: Any,
    tx: optax.GradientTransformation,
    frozen: Collection[str] = (),
    *,
    history: Any = None,
) -> TrainState:
    """Creates the state before the first step; `frozen` parts have no optimizer state.

    `history` is the empty `LossHistory` of a run that skips spikes.
    """
    opt_state = tx.init(split_params(params, frozen)[0])
    step = jnp.zeros((), jnp.int32)
    opt_state = opt_state if history is None else (opt_state, history)
    return TrainState(step=step, params=params, opt_state=opt_state)
