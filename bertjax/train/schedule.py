"""Learning-rate schedules: linear warm-up, then polynomial or trapezoidal decay, over phases."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import OptimizerConfig, Phase

Schedule = Callable[[Any], jax.Array]


class _Curve(NamedTuple):
    start: int
    num_steps: int
    learning_rate: float
    warmup_steps: int
    decay_steps: int


def make_schedule(config: OptimizerConfig, phases: Sequence[Phase]) -> Schedule:
    """Returns the learning-rate schedule of a run, a function step -> learning rate.

    The run trains on `phases` one after the other. The schedule consists of one or more curves,
    each with a linear warm-up and a decay. A phase with learning_rate_curve="restart" begins a new
    curve; a phase with "continue" extends the curve of the previous phase. In a curve of N steps
    with W warm-up steps, the learning rate at step s of the curve is peak * s / W during the
    warm-up, and then peak * f(d), where d is the fraction of the decay that remains: 1 - s / N
    (`schedule` "google"), (N - s) / (N - W) ("hf"), or (N - s) / D, but at most 1 ("trapezoidal",
    with D decay steps); f(d) is d ** `decay_power` or, with `decay` "one_minus_sqrt", 1 - sqrt(1 -
    d) (Hägele et al. 2024). The first phase of the curve sets peak, W and D; if its
    `learning_rate`, `warmup_steps` or `decay_steps` is None, `config` sets them.

    Raises:
        ValueError: the warm-up of a curve has as many steps as the curve, or more; or warm-up and
            trapezoidal decay have more steps than the curve.
    """
    curves = _curves(config, phases)

    def schedule(step: jax.Array) -> jax.Array:
        rate = _rate(curves[0], step, config)
        for curve in curves[1:]:
            rate = jnp.where(step >= curve.start, _rate(curve, step, config), rate)
        return rate

    return schedule


def make_peak(config: OptimizerConfig, phases: Sequence[Phase]) -> Schedule:
    """Returns a function step -> peak of the curve that the step belongs to.

    The curves are those of `make_schedule` for `config` and `phases`.

    Raises:
        ValueError: a curve is too short for its warm-up and decay.
    """
    curves = _curves(config, phases)

    def peak(step: jax.Array) -> jax.Array:
        rate = jnp.float32(curves[0].learning_rate)
        for curve in curves[1:]:
            rate = jnp.where(step >= curve.start, jnp.float32(curve.learning_rate), rate)
        return rate

    return peak


def _curves(config: OptimizerConfig, phases: Sequence[Phase]) -> list[_Curve]:
    """Returns the curves of `make_schedule`; raises ValueError if one of them is too short."""
    starts = [0, *itertools.accumulate(phase.num_steps for phase in phases)]
    first = [i for i, p in enumerate(phases) if i == 0 or p.learning_rate_curve == "restart"]
    curves = []
    for index, end in zip(first, [*first[1:], len(phases)], strict=True):
        phase, num_steps = phases[index], starts[end] - starts[index]
        rate, warmup, decay = phase.learning_rate, phase.warmup_steps, phase.decay_steps
        if warmup is None and config.warmup_proportion is not None:
            warmup = int(config.warmup_proportion * num_steps)
        elif warmup is None:
            warmup = config.warmup_steps
        if warmup >= num_steps:
            raise ValueError(
                f"warmup_steps={warmup} must be less than the {num_steps} steps of the "
                "learning-rate curve: shorten the warm-up or add steps."
            )
        decay = config.decay_steps if decay is None else decay
        if warmup + decay > num_steps:
            raise ValueError(
                f"warmup_steps={warmup} and decay_steps={decay} do not fit in the {num_steps} "
                "steps of the learning-rate curve: shorten them or add steps."
            )
        peak = config.learning_rate if rate is None else rate
        curves.append(_Curve(starts[index], num_steps, peak, warmup, decay))
    return curves


def _rate(curve: _Curve, step: jax.Array, config: OptimizerConfig) -> jax.Array:
    since = jnp.asarray(step - curve.start, jnp.float32)
    n, w = curve.num_steps, curve.warmup_steps
    warmup = since / max(w, 1)
    decay_steps = {"google": n, "hf": n - w, "trapezoidal": curve.decay_steps}[config.schedule]
    # Without decay steps, the rate stays at the peak.
    remains = (n - since) / decay_steps if decay_steps else jnp.ones_like(since)
    decay = jnp.clip(remains, 0.0, 1.0)
    if config.decay == "one_minus_sqrt":
        decay = 1.0 - jnp.sqrt(1.0 - decay)
    elif config.decay_power != 1.0:
        decay = decay**config.decay_power
    return curve.learning_rate * jnp.clip(jnp.where(since < w, warmup, decay), 0.0, 1.0)


def difference_before(
    config: OptimizerConfig, before: Sequence[Phase], after: Sequence[Phase], step: int
) -> str | None:
    """Describes how the phases `before` and `after` differ within the first `step` steps.

    The result is None if these steps have the same learning rates, which follow from `config` and
    the phases, and train on the same rows of the data with `before` as with `after`. The rows of a
    step are the same if the index of its phase, the phase's `max_length` and `max_predictions`, and
    the batch size of the step are the same; the base of rotary positions must be the same, too.
    """

    def rows_of_steps(phases: Sequence[Phase]) -> np.ndarray:
        stages = [(i, stage) for i, phase in enumerate(phases) for stage in phase.stages]
        rows = [
            (i, s.max_length, s.batch_size, s.max_predictions or 0, s.global_rope_theta or 0)
            for i, s in stages
        ]
        return np.repeat(np.array(rows), [s.num_steps for _, s in stages], axis=0)[:step]

    rows, new_rows = rows_of_steps(before), rows_of_steps(after)
    if rows.shape != new_rows.shape or (rows != new_rows).any():
        return (
            f"the rows of the {step} finished steps would change, because phases, max_length, "
            "batch sizes, max_predictions or global_rope_theta differ in these steps"
        )
    steps = np.arange(step)
    rates, new_rates = (np.asarray(make_schedule(config, p)(steps)) for p in (before, after))
    if (rates == new_rates).all():
        return None
    first = int(np.argmax(rates != new_rates))
    return (
        f"the learning rate of the finished step {first} would change from {rates[first]:.3g} "
        f"to {new_rates[first]:.3g}; to train longer, add a phase with "
        "learning_rate_curve='restart'"
    )
