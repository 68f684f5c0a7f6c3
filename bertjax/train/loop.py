"""The training loop: for each batch, one train step and then a call of each hook."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from bertjax.devices import activity
from bertjax.record.logger import STEPS_AHEAD
from bertjax.train.state import TrainState

# A hook is called as hook(step, state, metrics) after every step, and may ignore most steps.
Hook = Callable[[int, TrainState, dict[str, Any]], None]


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
    """Trains from `step` to `num_steps`, or until `should_stop(step)` is true after a step.

    Each step trains on one of `batches`, and is followed by a call of each hook.

    Args:
        state: the state of the training, which the first step donates.
        train_step: a function (state, batch) -> (state, metrics).
        batches: the batches, on the devices.
        step: the number of steps already done, so the first step is `step + 1`.
        num_steps: the number of the last step.
        hooks: functions (step, state, metrics), called after each step.
        should_stop: a function that tells whether to stop after a step.

    Returns:
        The last state, and the number of the last step whose update and hooks are done.
    """
    in_flight: list[Any] = []
    first = True
    for batch in activity.waiting_for(batches if step < num_steps else ()):
        with activity.compiling("the training step") if first else contextlib.nullcontext():
            state, metrics = train_step(state, batch)
        first = False
        step += 1
        activity.progressed(step)
        in_flight.append(metrics)
        if len(in_flight) > STEPS_AHEAD:
            jax.block_until_ready(in_flight.pop(0))
        for hook in hooks:
            hook(step, state, metrics)
        if step >= num_steps or should_stop(step):
            break
    return state, step
