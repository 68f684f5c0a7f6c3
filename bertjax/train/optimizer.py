"""Optimizers: AdamW with and without bias correction, LAMB, and StableAdamW.

The Adam of google-research/bert does not correct the bias of the moments, so its first updates are
three to seven times as large as AdamW's. LAMB multiplies the update of each tensor by a trust
ratio; the trust ratio is 1 for parameters without weight decay. NVIDIA's LAMB corrects the bias of
the moments; the LAMB of google-research/albert does not. StableAdamW is AdamW with AdaFactor's
update clipping (Wortsman et al. 2023): it divides a tensor's update by an RMS. LAMB's trust ratio
scales it to the norm of the tensor (You et al. 2019). The parameters of all encoder layers are
stacked along axis 0: each layer has its own trust ratio and RMS.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config import OptimizerConfig, Phase

Schedule = Callable[[Any], jax.Array]


class _Curve(NamedTuple):
    """A curve of `num_steps` steps after step `start`, whose first phase is `phase`."""

    start: int
    num_steps: int
    phase: Phase

    def peak(self, config: OptimizerConfig) -> float:
        return _first(self.phase.learning_rate, config.learning_rate)

    def warmup_steps(self, config: OptimizerConfig) -> int:
        steps = config.warmup_steps
        if config.warmup_proportion is not None:
            steps = int(config.warmup_proportion * self.num_steps)
        return _first(self.phase.warmup_steps, steps)

    def decay_steps(self, config: OptimizerConfig) -> int:
        return _first(self.phase.decay_steps, config.decay_steps)


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value


def make_schedule(config: OptimizerConfig, phases: Sequence[Phase]) -> Schedule:
    """Returns the learning-rate schedule of a run, a function step -> learning rate.

    It consists of curves, each with a linear warm-up and a decay. A phase with
    learning_rate_curve="restart" begins a new curve; "continue" extends the curve of the previous
    phase. In a curve of N steps with W warm-up steps, the learning rate at step s is peak * s / W
    during the warm-up, and then peak * f(d), where d is the fraction of the decay that remains: 1 -
    s / N (`schedule` "google"), (N - s) / (N - W) ("hf"), or (N - s) / D, but at most 1
    ("trapezoidal", with D decay steps); f(d) is d ** `decay_power` or, with `decay`
    "one_minus_sqrt", 1 - sqrt(1 - d) (Hägele et al. 2024). The first phase of a curve sets peak, W
    and D, where not None, or else `config`.

    Raises:
        ValueError: warm-up, or warm-up and trapezoidal decay, have too many steps for a curve.
    """
    return _by_curve(config, phases, lambda curve, step: _rate(curve, step, config))


def make_peak(config: OptimizerConfig, phases: Sequence[Phase]) -> Schedule:
    """Returns a function step -> peak of the curve that the step belongs to.

    The arguments are as in `make_schedule`.
    """
    return _by_curve(config, phases, lambda curve, _: jnp.float32(curve.peak(config)))


def _by_curve(config: OptimizerConfig, phases: Sequence[Phase], value_of: Any) -> Schedule:
    """Returns step -> value_of(curve that the step belongs to, step)."""
    curves = learning_rate_curves(config, phases)

    def schedule(step: jax.Array) -> jax.Array:
        value = value_of(curves[0], step)
        for curve in curves[1:]:
            value = jnp.where(step >= curve.start, value_of(curve, step), value)
        return value

    return schedule


def learning_rate_curves(config: OptimizerConfig, phases: Sequence[Phase]) -> list[_Curve]:
    """Returns the curves of `make_schedule`; raises ValueError if one of them is too short."""
    curves: list[_Curve] = []
    start = 0
    for phase in phases:
        if curves and phase.learning_rate_curve == "continue":
            longer = curves[-1].num_steps + phase.num_steps
            curves[-1] = curves[-1]._replace(num_steps=longer)
        else:
            curves.append(_Curve(start, phase.num_steps, phase))
        start += phase.num_steps
    for curve in curves:
        warmup = curve.warmup_steps(config)
        decay = curve.decay_steps(config)
        if warmup >= curve.num_steps:
            raise ValueError(
                f"warmup_steps={warmup} must be less than the {curve.num_steps} steps of the "
                "learning-rate curve: shorten the warm-up (--optimizer.warmup_steps)."
            )
        if warmup + decay > curve.num_steps:
            raise ValueError(
                f"warmup_steps={warmup} and decay_steps={decay} do not fit in the "
                f"{curve.num_steps} steps of the learning-rate curve: shorten them."
            )
    return curves


def _rate(curve: _Curve, step: jax.Array, config: OptimizerConfig) -> jax.Array:
    since = jnp.asarray(step - curve.start, jnp.float32)
    warmup_steps = curve.warmup_steps(config)
    warmup = since / max(warmup_steps, 1)
    decay_steps = curve.num_steps
    if config.schedule == "hf":
        decay_steps -= warmup_steps
    elif config.schedule == "trapezoidal":
        decay_steps = curve.decay_steps(config)
    if decay_steps:
        remains = (curve.num_steps - since) / decay_steps
    else:
        remains = jnp.ones_like(since)  # the rate stays at the peak
    decay = jnp.clip(remains, 0.0, 1.0)
    if config.decay == "one_minus_sqrt":
        decay = 1.0 - jnp.sqrt(1.0 - decay)
    elif config.decay_power != 1.0:
        decay = decay**config.decay_power
    share = jnp.where(since < warmup_steps, warmup, decay)
    return curve.peak(config) * jnp.clip(share, 0.0, 1.0)


def difference_before(
    config: OptimizerConfig, before: Sequence[Phase], after: Sequence[Phase], step: int
) -> str | None:
    """Describes how two runs' phases differ within the first `step` steps; None: they do not.

    They do not if these steps have the same learning rates, rotary bases and rows: phase,
    `max_length`, `max_predictions` and batch size.
    """
    if _rows_of_steps(before, step) != _rows_of_steps(after, step):
        return (
            f"the rows of the {step} finished steps would change, because phases, max_length, "
            "batch sizes, max_predictions or global_rope_theta differ in these steps"
        )
    steps = np.arange(step)
    rates = np.asarray(make_schedule(config, before)(steps))
    new_rates = np.asarray(make_schedule(config, after)(steps))
    if (rates == new_rates).all():
        return None
    first = int(np.argmax(rates != new_rates))
    return (
        f"the learning rate of the finished step {first} would change from {rates[first]:.8g} "
        f"to {new_rates[first]:.8g}; to train longer, add a phase with "
        "learning_rate_curve='restart'"
    )


def _rows_of_steps(phases: Sequence[Phase], step: int) -> list[Any]:
    """Returns what determines the rows of each of the first `step` steps."""
    rows: list[Any] = []
    for index, phase in enumerate(phases):
        for stage in phase.stages:
            facts = (
                index,
                stage.max_length,
                stage.batch_size,
                stage.max_predictions,
                stage.global_rope_theta,
            )
            rows += [facts] * min(stage.num_steps, step - len(rows))
    return rows


def is_stacked(path: tuple[Any, ...]) -> bool:
    """Whether axis 0 of the parameter at `path` indexes the encoder layers."""
    return "/encoder/layers/" in f"/{_name(path)}/"


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _axes_of_tensor(path: tuple[Any, ...], x: jax.Array) -> tuple[int, ...]:
    """Returns the axes of one tensor of the model: of a stacked parameter, all but the layers'."""
    return tuple(range(int(is_stacked(path)), x.ndim))


def clip_by_global_norm(
    max_norm: float, apart: Collection[str] = ()
) -> optax.GradientTransformationExtraArgs:
    """Returns the multiplication of gradients by min(1, max_norm / their global norm).

    Gradients at the top-level keys `apart` have norms of their own. Without such keys, the norm may
    be given to `update` as `norm`. Unlike `optax.clip_by_global_norm`, this divides once and not
    each element, so that compilers fuse the product with Adam.
    """

    def clipped(updates: Any, norm: Any = None) -> Any:
        norm = optax.tree.norm(updates) if norm is None else norm
        factor = jnp.where(norm < max_norm, 1.0, max_norm / norm)
        return jax.tree.map(lambda grad: grad * factor, updates)

    def update(updates: Any, state: Any, params: Any = None, *, norm: Any = None, **_: Any):
        del params
        if not apart:
            return clipped(updates, norm), state
        others = clipped({name: x for name, x in updates.items() if name not in apart})
        return others | {name: clipped(updates[name]) for name in apart}, state

    return optax.GradientTransformationExtraArgs(optax.identity().init, update)


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """Returns LAMB's multiplication of each update by norm(parameter) / norm(update).

    (You et al. 2019, algorithm 2.) If either norm is 0, the update is unchanged. Unlike in
    `optax.scale_by_trust_ratio`, each encoder layer of a stacked parameter has its own norms.
    """

    def scaled(path: tuple[Any, ...], update: jax.Array, param: jax.Array) -> jax.Array:
        axes = _axes_of_tensor(path, param)
        param_norm = jnp.sqrt(jnp.sum(jnp.square(param), axes, keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(jnp.square(update), axes, keepdims=True))
        usable = (param_norm > 0) & (update_norm > 0)
        ratio = param_norm / jnp.where(usable, update_norm, 1.0)
        return update * jnp.where(usable, ratio, 1.0)

    return optax.stateless(lambda updates, params: jax.tree.map_with_path(scaled, updates, params))


def divide_by_rms(
    adam: optax.GradientTransformation,
    decay: optax.GradientTransformation,
    *,
    b2: float,
    eps: float,
) -> optax.GradientTransformation:
    """Returns AdamW with the update clipping of AdaFactor (Shazeer and Stern 2018, 6).

    The update of each tensor, weight decay included, is divided by max(1, RMS). The RMS is the root
    of the mean of g^2 / max(v, eps^2), where g is the gradient and v the second moment after this
    step with corrected bias (Wortsman et al. 2023, algorithm 2). Each layer of a stacked parameter
    has its own.

    Args:
        adam: `optax.scale_by_adam`, whose state has the second moments.
        decay: the transformation that adds the weight decay to Adam's updates.
        b2: the decay rate of the second moment.
        eps: the epsilon of Adam.
    """
    adamw = optax.chain(adam, decay)

    def update(updates: Any, state: Any, params: Any = None):
        grads = updates
        updates, state = adamw.update(grads, state, params)
        moments: optax.ScaleByAdamState = state[0]
        second = optax.tree.bias_correction(moments.nu, b2, moments.count)

        def divided(path: Any, update: jax.Array, grad: jax.Array, v: jax.Array) -> jax.Array:
            axes = _axes_of_tensor(path, update)
            ratio = jnp.square(grad) / jnp.maximum(v, eps**2)
            rms = jnp.sqrt(jnp.mean(ratio, axes, keepdims=True))
            return update / jnp.maximum(rms, 1.0)

        return jax.tree.map_with_path(divided, updates, grads, second), state

    return optax.GradientTransformation(adamw.init, update)


def decay_by_layer(decay: float, num_layers: int) -> optax.GradientTransformation:
    """Returns the multiplication of updates by powers of `decay` (BEiT, Bao et al. 2022).

    The last of `num_layers` layers has the power 1, the one below it 2 and so on, embeddings
    num_layers + 1, and all else 0. Stacked parameters may lack the lowest layers.
    """

    def scaled(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        if is_stacked(path):
            powers = np.arange(len(update), 0, -1, dtype=np.float32)
            factors = np.float32(decay) ** powers
            return update * factors.reshape(-1, *[1] * (update.ndim - 1))
        if "bert/embeddings/" in _name(path):
            return update * decay ** (num_layers + 1)
        return update

    return optax.stateless(lambda updates, _: jax.tree.map_with_path(scaled, updates))


def average_params(decay: float) -> optax.GradientTransformation:
    """Returns `optax.ema` of the updated parameters; the updates themselves are unchanged."""
    ema = optax.ema(decay)

    def update(updates: Any, state: Any, params: Any = None):
        return updates, ema.update(optax.apply_updates(params, updates), state)[1]

    return optax.GradientTransformation(ema.init, update)


def averaged(params: Any, average: optax.EmaState, decay: float) -> Any:
    """Returns the average with corrected bias that `average_params` holds, or `params` at first."""
    count = jnp.asarray(average.count)
    mean = optax.tree.bias_correction(average.ema, decay, jnp.maximum(count, 1))
    return jax.tree.map(lambda x, y: jnp.where(count > 0, x, y), mean, params)


def make_optimizer(
    config: OptimizerConfig,
    schedule: Schedule,
    peak: Schedule | None = None,
    *more: optax.GradientTransformation,
    apart: Collection[str] = (),
) -> optax.GradientTransformationExtraArgs:
    """Builds the optimizer of a run, whose learning rate follows `schedule`.

    It clips the gradients by global norm, computes Adam's update (Kingma and Ba 2015) and adds the
    weight decay (Loshchilov and Hutter 2019); the sum is multiplied by LAMB's trust ratio (You et
    al. 2019) or divided by the RMS of StableAdamW (Wortsman et al. 2023), and multiplied by the
    learning rate. `peak` is a function step -> peak of the learning rate, by which the weight decay
    is divided if `config.fully_decoupled_decay` is set; None: the peak of `config` in all steps.
    `more` transformations follow. Gradients at the top-level keys `apart` are clipped by norms of
    their own.
    """
    clip = optax.identity()
    if config.max_grad_norm:
        clip = clip_by_global_norm(config.max_grad_norm, apart)
    mask = decay_mask
    trust = optax.masked(scale_by_trust_ratio(), mask)
    if config.decay_all:
        mask = None
        trust = scale_by_trust_ratio()
    if config.fully_decoupled_decay:
        constant = jnp.float32(config.learning_rate)
        decay = _add_decay_over_peak(config.weight_decay, peak or (lambda step: constant), mask)
    else:
        decay = optax.add_decayed_weights(config.weight_decay, mask=mask)
    parts = [clip, _update_rule(config), decay]
    if config.recipe == "stable_adamw":
        parts = [clip, divide_by_rms(_update_rule(config), decay, b2=config.b2, eps=config.eps)]
    elif config.recipe in ("lamb", "albert_lamb"):
        parts.append(trust)
    return optax.chain(*parts, optax.scale_by_learning_rate(schedule), *more)


def _add_decay_over_peak(weight_decay: float, peak: Schedule, mask: Any) -> Any:
    """Returns the transformation that adds weight_decay / peak * parameter to each update.

    The learning rate multiplies the sum, so that its fraction of the peak remains. Skipped updates
    count as steps.
    """

    def update(updates: Any, state: Any, params: Any = None):
        decay = optax.add_decayed_weights(weight_decay / peak(state.count), mask=mask)
        updates, _ = decay.update(updates, decay.init(params), params)
        return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(optax.scale_by_schedule(peak).init, update)


def _update_rule(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns Adam's transformation of gradients, without weight decay and learning rate."""
    adam = optax.scale_by_adam
    if config.recipe in ("google", "albert_lamb"):
        adam = scale_by_uncorrected_adam
    return adam(b1=config.b1, b2=config.b2, eps=config.eps)


def decay_mask(params: Any) -> Any:
    """Returns the weight-decay mask, a tree of bools: False for biases and LayerNorm scales.

    It is also False for what is never trained: stored rates of rotations, ESM's contact head.
    """
    without = {"bias", "scale", "rope_rates", "contact_head"}

    def decays(path: Any, _: Any) -> bool:
        return without.isdisjoint(key.key for key in path)

    return jax.tree.map_with_path(decays, params)


class UncorrectedAdamState(NamedTuple):
    """The state of Adam without bias correction: first moment `mu`, second moment `nu`."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns the Adam of google-research/bert, which has no bias correction.

    The update is mu / (sqrt(nu) + eps) of the first and second moments mu and nu of the gradients.
    """

    def init(params: Any) -> UncorrectedAdamState:
        return UncorrectedAdamState(optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(updates: Any, state: Any, params: Any = None):
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda n, g: b2 * n + (1 - b2) * g * g, state.nu, updates)
        adapted = jax.tree.map(lambda m, n: m / (jnp.sqrt(n) + eps), mu, nu)
        return adapted, UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)
