"""The history of recent losses and gradient norms, and the rule that detects spikes of both.

The rule is that of OLMo (Groeneveld et al. 2024).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# A spike is defined by the mean and the standard deviation over this number of last steps, as in
# OLMo's SkipStepOptimizer. Until half as many steps are recorded, no step counts as a spike.
HISTORY = 128


class LossHistory(NamedTuple):
    """The losses and gradient norms of the last 128 (`HISTORY`) steps in which both were finite.

    The history is a part of the train state, so checkpoints store it.

    Attributes:
        losses: the losses of the last recorded steps, float [HISTORY].
        grad_norms: the gradient norms of the last recorded steps, float [HISTORY].
        sigma: the number of standard deviations by which a loss or gradient norm must exceed the
            mean to count as a spike, float scalar; 0: no step counts as a spike. `sigma` is an
            array, so that a change of its value needs no recompilation.
        num_steps: the number of steps recorded so far, int32 scalar; the i-th of them, from 0, was
            written at index i % HISTORY of both arrays.
    """

    losses: jax.Array
    grad_norms: jax.Array
    sigma: jax.Array
    num_steps: jax.Array


def empty_history(skip_spikes: float) -> LossHistory:
    """Returns a `LossHistory` without recorded steps, whose `sigma` is `skip_spikes`."""
    # `losses` and `grad_norms` must be separate arrays, because the train step donates both.
    losses, grad_norms = (jnp.zeros(HISTORY, jnp.float32) for _ in range(2))
    sigma = jnp.asarray(skip_spikes, jnp.float32)
    return LossHistory(losses, grad_norms, sigma, jnp.zeros((), jnp.int32))


def is_spike(history: LossHistory, loss: Any, grad_norm: Any) -> jax.Array:
    """Returns whether the loss or the gradient norm of a step is a spike, a bool scalar.

    The scalar `loss` is a spike if it exceeds the mean loss in `history` by more than
    `history.sigma` standard deviations of these losses; the same holds for `grad_norm`. While fewer
    than HISTORY // 2 steps are recorded, or if sigma is 0, nothing is a spike. The rule is that of
    OLMo (Groeneveld et al. 2024, and `SkipStepOptimizer` in OLMo-core).
    """
    known = jnp.arange(HISTORY) < history.num_steps
    size = jnp.minimum(history.num_steps, HISTORY).astype(jnp.float32)

    def is_over(values: jax.Array, value: Any) -> jax.Array:
        mean = jnp.sum(jnp.where(known, values, 0)) / jnp.maximum(size, 1)
        squares = jnp.sum(jnp.where(known, jnp.square(values - mean), 0))
        return value > mean + history.sigma * jnp.sqrt(squares / jnp.maximum(size - 1, 1))

    over = is_over(history.losses, loss) | is_over(history.grad_norms, grad_norm)
    return over & (history.num_steps >= HISTORY // 2) & (history.sigma > 0)


def recorded(history: LossHistory, loss: Any, grad_norm: Any, is_finite: Any) -> LossHistory:
    """Returns `history` with the scalars `loss` and `grad_norm` added if `is_finite` is True.

    If `is_finite` is False, `history` is returned unchanged. Spikes are recorded as well, so that a
    loss that stays at a higher level soon no longer counts as a spike.
    """
    at = history.num_steps % HISTORY
    longer = LossHistory(
        history.losses.at[at].set(loss),
        history.grad_norms.at[at].set(grad_norm),
        history.sigma,
        history.num_steps + 1,
    )
    return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), longer, history)
