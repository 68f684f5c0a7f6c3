"""The loop: batches through the step, and after each step whatever hook is due."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from bertjax.training.state import TrainState

# hook(step, state, metrics): called after every step; decides itself whether it is due.
Hook = Callable[[int, TrainState, dict[str, Any]], None]
# The host runs at most this many steps ahead of the device: enough to hide its own work.
STEPS_AHEAD = 2


def fit(
    state: TrainState,
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Any]]],
    batches: Iterable[Any],
    *,
    step: int,
    num_steps: int,
    hooks: Sequence[Hook] = (),
    should_stop: Callable[[int], bool] = lambda step: False,
) -> tuple[TrainState, int]:
    """Steps from `step` until `num_steps`, or until `should_stop(step)` says so after one.

    Returns:
        The state and the number of steps done, hooks included.
    """
    in_flight: list[Any] = []
    for batch in batches if step < num_steps else ():
        state, metrics = train_step(state, batch)
        step += 1
        in_flight.append(metrics)
        if len(in_flight) > STEPS_AHEAD:
            jax.block_until_ready(in_flight.pop(0))
        for hook in hooks:
            hook(step, state, metrics)
        if step >= num_steps or should_stop(step):
            break
    return state, step
