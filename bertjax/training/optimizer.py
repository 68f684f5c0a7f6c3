"""Optimizers (AdamW with and without bias correction, LAMB) and learning-rate schedules.

The Adam of google-research/bert does not correct the bias of the moments, so its first updates are
three to seven times as large as AdamW's. LAMB multiplies the update of each tensor by a trust
ratio; the trust ratio is 1 for parameters without weight decay. NVIDIA's LAMB corrects the bias of
the moments; the LAMB of google-research/albert does not.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config import OptimizerConfig, Phase
from bertjax.training.lamb import scale_by_trust_ratio

Schedule = Callable[[Any], jax.Array]


def make_optimizer(config: OptimizerConfig, schedule: Schedule) -> optax.GradientTransformation:
    """Builds the optimizer of a run, whose learning rate follows `schedule`.

    The optimizer clips the gradients by global norm, computes Adam's update (Kingma and Ba 2015)
    and adds the weight decay to this update (Loshchilov and Hutter 2019); the sum is multiplied by
    LAMB's trust ratio (You et al. 2019; for LAMB only) and by the learning rate. `config` has the
    recipe and the coefficients.
    """
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    mask = None if config.decay_all else decay_mask
    is_lamb, trust = config.recipe in ("lamb", "albert_lamb"), scale_by_trust_ratio()
    return optax.chain(
        clip if config.max_grad_norm else optax.identity(),
        _update_rule(config),
        optax.add_decayed_weights(config.weight_decay, mask=mask),
        *([optax.masked(trust, mask) if mask else trust] if is_lamb else []),
        optax.scale_by_learning_rate(schedule),
    )


def _update_rule(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns Adam's transformation of gradients, without weight decay and learning rate."""
    if config.recipe in ("adamw", "lamb"):
        return optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)
    return scale_by_uncorrected_adam(b1=config.b1, b2=config.b2, eps=config.eps)


def decay_mask(params: Any) -> Any:
    """Returns the weight-decay mask, a tree of bools: False for biases and LayerNorm scales."""
    return jax.tree.map_with_path(lambda path, _: path[-1].key not in ("bias", "scale"), params)


class UncorrectedAdamState(NamedTuple):
    """The state of Adam without bias correction: first moment `mu`, second moment `nu`."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns the Adam transformation of google-research/bert, which has no bias correction.

    The update is mu / (sqrt(nu) + eps), where mu and nu are the first and second moments of the
    gradients, whose decay rates are `b1` and `b2`.
    """

    def init(params: Any) -> UncorrectedAdamState:
        return UncorrectedAdamState(
            mu=jax.tree.map(jnp.zeros_like, params), nu=jax.tree.map(jnp.zeros_like, params)
        )

    def update(updates: Any, state: Any, params: Any = None):
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda n, g: b2 * n + (1 - b2) * g * g, state.nu, updates)
        adapted = jax.tree.map(lambda m, n: m / (jnp.sqrt(n) + eps), mu, nu)
        return adapted, UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


class _Curve(NamedTuple):
    start: int
    num_steps: int
    learning_rate: float
    warmup_steps: int


def make_schedule(config: OptimizerConfig, phases: Sequence[Phase]) -> Schedule:
    """Returns the learning-rate schedule of a run, a function step -> learning rate.

    The run trains on `phases` one after the other. The schedule consists of one or more curves,
    each with a linear warm-up and a decay. A phase with learning_rate_curve="restart" begins a new
    curve; a phase with "continue" extends the curve of the previous phase. In a curve of N steps
    with W warm-up steps, the learning rate at step s of the curve is peak * s / W during the
    warm-up, and then peak * d ** `decay_power`, where d is 1 - s / N (`schedule` "google") or
    (N - s) / (N - W) (`schedule` "hf"). The first phase of the curve sets peak and W; if its
    `learning_rate` or `warmup_steps` is None, `config` sets them.

    Raises:
        ValueError: the warm-up of a curve has as many steps as the curve, or more.
    """
    curves: list[_Curve] = []
    warmups: list[int | None] = []
    step = 0
    for phase in phases:
        if not curves or phase.learning_rate_curve == "restart":
            rate = phase.learning_rate
            warmups.append(phase.warmup_steps)
            curves.append(_Curve(step, 0, config.learning_rate if rate is None else rate, 0))
        curves[-1] = curves[-1]._replace(num_steps=curves[-1].num_steps + phase.num_steps)
        step += phase.num_steps
    for i, (curve, warmup) in enumerate(zip(curves, warmups, strict=True)):
        if warmup is None and config.warmup_proportion is not None:
            warmup = int(config.warmup_proportion * curve.num_steps)
        elif warmup is None:
            warmup = config.warmup_steps
        curves[i] = curve._replace(warmup_steps=warmup)
    for curve in curves:
        if curve.warmup_steps >= curve.num_steps:
            raise ValueError(
                f"warmup_steps={curve.warmup_steps} must be less than the {curve.num_steps} steps "
                "of the learning-rate curve: shorten the warm-up or add steps."
            )

    def schedule(step: jax.Array) -> jax.Array:
        rate = _rate(curves[0], step, config)
        for curve in curves[1:]:
            rate = jnp.where(step >= curve.start, _rate(curve, step, config), rate)
        return rate

    return schedule


def _rate(curve: _Curve, step: jax.Array, config: OptimizerConfig) -> jax.Array:
    since = jnp.asarray(step - curve.start, jnp.float32)
    n, w = curve.num_steps, curve.warmup_steps
    warmup = since / max(w, 1)
    decay = jnp.clip((n - since) / (n - w if config.schedule == "hf" else n), 0.0, 1.0)
    if config.decay_power != 1.0:
        decay = decay**config.decay_power
    return curve.learning_rate * jnp.clip(jnp.where(since < w, warmup, decay), 0.0, 1.0)


def difference_before(
    config: OptimizerConfig, before: Sequence[Phase], after: Sequence[Phase], step: int
) -> str | None:
    """Describes how the phases `before` and `after` differ within the first `step` steps.

    The result is None if these steps have the same learning rates, which follow from `config` and
    the phases, and train on the same rows of the data with `before` as with `after`. The rows of a
    step are the same if the index of its phase and the phase's `max_length`, `batch_size` and
    `max_predictions` are the same.
    """

    def rows_of_steps(phases: Sequence[Phase]) -> np.ndarray:
        rows = [
            (i, p.max_length, p.batch_size, p.max_predictions or 0) for i, p in enumerate(phases)
        ]
        return np.repeat(np.array(rows), [p.num_steps for p in phases], axis=0)[:step]

    rows, new_rows = rows_of_steps(before), rows_of_steps(after)
    if rows.shape != new_rows.shape or (rows != new_rows).any():
        return (
            f"the rows of the {step} finished steps would change, because phases, max_length, "
            "batch_size or max_predictions differ in these steps"
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
