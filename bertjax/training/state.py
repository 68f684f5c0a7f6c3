"""What training changes: step, parameters, optimizer state."""

from collections.abc import Collection
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


def split_params(params: Any, frozen: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts of the parameters that are trained, and the `frozen` ones."""
    trained = {name: part for name, part in params.items() if name not in frozen}
    return trained, {name: part for name, part in params.items() if name in frozen}


def create_train_state(
    params: Any, tx: optax.GradientTransformation, frozen: Collection[str] = ()
) -> TrainState:
    """The state before the first step; the optimizer knows nothing of `frozen` parts."""
    opt_state = tx.init(split_params(params, frozen)[0])
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=opt_state)
