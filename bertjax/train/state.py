"""What training changes: step, parameters, optimizer state."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
    """A pytree; everything else of a run (config, data, schedule) does not change."""

    step: jax.Array
    """int32 scalar: updates done."""
    params: Any
    opt_state: Any


def create_train_state(params: Any, tx: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=tx.init(params))
