"""Optimizers: AdamW with and without bias correction, LAMB, and StableAdamW.

The Adam of google-research/bert does not correct the bias of the moments, so its first updates are
three to seven times as large as AdamW's. LAMB multiplies the update of each tensor by a trust
ratio; the trust ratio is 1 for parameters without weight decay. NVIDIA's LAMB corrects the bias of
the moments; the LAMB of google-research/albert does not. StableAdamW is AdamW with AdaFactor's
update clipping (Wortsman et al. 2023): it divides a tensor's update by an RMS. LAMB's trust ratio
scales it to the norm of the tensor (You et al. 2019). The parameters of all encoder layers are
stacked along axis 0: each layer has its own trust ratio and RMS.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.config import OptimizerConfig
from bertjax.train.schedule import Schedule

# Axis 0 of the parameters under this path indexes the encoder layers.
STACK = ("encoder", "layers")


def is_stacked(path: tuple[Any, ...]) -> bool:
    """Whether axis 0 of the parameter at `path` indexes the encoder layers."""
    keys = [getattr(key, "key", None) for key in path]
    return any(
        tuple(keys[at : at + len(STACK)]) == STACK for at in range(len(keys) - len(STACK) + 1)
    )


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """Returns LAMB's multiplication of each update by norm(parameter) / norm(update).

    This is the trust ratio of You et al. 2019, algorithm 2. If the norm of the parameter or of the
    update is 0, the update is unchanged. Unlike in `optax.scale_by_trust_ratio`, the norms of a
    stacked parameter are computed for each encoder layer separately.
    """

    def update(updates: Any, state: Any, params: Any = None):
        return jax.tree.map_with_path(_scaled, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _scaled(path: tuple[Any, ...], update: jax.Array, param: jax.Array) -> jax.Array:
    axes = tuple(range(int(is_stacked(path)), param.ndim))
    param_norm = jnp.sqrt(jnp.sum(jnp.square(param), axes, keepdims=True))
    update_norm = jnp.sqrt(jnp.sum(jnp.square(update), axes, keepdims=True))
    usable = (param_norm > 0) & (update_norm > 0)
    return update * jnp.where(usable, param_norm / jnp.where(usable, update_norm, 1.0), 1.0)


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
    step with corrected bias (Wortsman et al. 2023, algorithm 2). It is above 1 if the gradient is
    larger than those of the last steps. Each layer of a stacked parameter has its own RMS.

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
            axes = tuple(range(int(is_stacked(path)), update.ndim))
            ratio = jnp.square(grad) / jnp.maximum(v, eps**2)
            rms = jnp.sqrt(jnp.mean(ratio, axes, keepdims=True))
            return update / jnp.maximum(rms, 1.0)

        return jax.tree.map_with_path(divided, updates, grads, second), state

    return optax.GradientTransformation(adamw.init, update)


def make_optimizer(
    config: OptimizerConfig, schedule: Schedule, peak: Schedule | None = None
) -> optax.GradientTransformation:
    """Builds the optimizer of a run, whose learning rate follows `schedule`.

    The optimizer clips the gradients by global norm, computes Adam's update (Kingma and Ba 2015)
    and adds the weight decay to this update (Loshchilov and Hutter 2019); the sum is multiplied by
    LAMB's trust ratio (You et al. 2019; for LAMB only) or divided by the RMS of StableAdamW
    (Wortsman et al. 2023), and multiplied by the learning rate. `config` has the recipe and the
    coefficients.

    Args:
        config: the recipe and the coefficients.
        schedule: a function step -> learning rate.
        peak: a function step -> peak of the learning rate, by which the weight decay is divided if
            `config.fully_decoupled_decay` is set; None: the peak of `config` in all steps.
    """
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    mask = None if config.decay_all else decay_mask
    is_lamb, trust = config.recipe in ("lamb", "albert_lamb"), scale_by_trust_ratio()
    if config.fully_decoupled_decay:
        constant = jnp.float32(config.learning_rate)
        decay = _add_decay_over_peak(config.weight_decay, peak or (lambda step: constant), mask)
    else:
        decay = optax.add_decayed_weights(config.weight_decay, mask=mask)
    adamw = (_update_rule(config), decay)
    if config.recipe == "stable_adamw":
        adamw = (divide_by_rms(*adamw, b2=config.b2, eps=config.eps),)
    return optax.chain(
        clip if config.max_grad_norm else optax.identity(),
        *adamw,
        *([optax.masked(trust, mask) if mask else trust] if is_lamb else []),
        optax.scale_by_learning_rate(schedule),
    )


def _add_decay_over_peak(weight_decay: float, peak: Schedule, mask: Any) -> Any:
    """Returns the transformation that adds weight_decay / peak * parameter to each update.

    The learning rate multiplies the sum, so that its fraction of the peak remains. The state counts
    the steps, skipped updates included, as that of the learning rate does.
    """

    def update(updates: Any, state: Any, params: Any = None):
        factor = weight_decay / peak(state.count)
        decayed = mask(params) if mask else jax.tree.map(lambda _: True, params)
        updates = jax.tree.map(
            lambda u, p, is_decayed: u + factor * p if is_decayed else u, updates, params, decayed
        )
        return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(
        lambda params: optax.ScaleByScheduleState(jnp.zeros((), jnp.int32)), update
    )


def _update_rule(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns Adam's transformation of gradients, without weight decay and learning rate."""
    if config.recipe in ("adamw", "lamb", "stable_adamw"):
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
