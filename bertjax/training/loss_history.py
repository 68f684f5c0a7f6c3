"""The losses of the last steps, and what a spike is."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# The number of last steps whose mean and standard deviation define a spike, as in OLMo's
# SkipStepOptimizer; before half as many steps, nothing is a spike.
HISTORY = 128


class LossHistory(NamedTuple):
    """The losses and gradient norms of the last finite steps, which a checkpoint stores.

    Attributes:
        losses: float [HISTORY].
        grad_norms: float [HISTORY].
        sigma: the number of standard deviations above which a step is a spike; 0: none is.
            Because it is stored here, all values share one program, and so give the same bits.
        num_steps: the number of recorded steps, an int32 scalar; step i is at index i % HISTORY.
    """

    losses: jax.Array
    grad_norms: jax.Array
    sigma: jax.Array
    num_steps: jax.Array


def empty_history(skip_spikes: float) -> LossHistory:
    """Returns the history before the first step; with `skip_spikes` 0, nothing is a spike."""
    # Two arrays, and not one twice, because a step donates both.
    losses, grad_norms = (jnp.zeros(HISTORY, jnp.float32) for _ in range(2))
    sigma = jnp.asarray(skip_spikes, jnp.float32)
    return LossHistory(losses, grad_norms, sigma, jnp.zeros((), jnp.int32))


def is_spike(history: LossHistory, loss: Any, grad_norm: Any) -> jax.Array:
    """Whether the loss or the gradient norm is over the mean by more than `sigma` deviations.

    This is the rule of OLMo (Groeneveld et al. 2024, and `SkipStepOptimizer` in OLMo-core).
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
    """Returns the history with one more step, unless the step is not finite.

    Spikes are recorded as well, so that a loss that stays at a new level is soon normal again.
    """
    at = history.num_steps % HISTORY
    longer = LossHistory(
        history.losses.at[at].set(loss),
        history.grad_norms.at[at].set(grad_norm),
        history.sigma,
        history.num_steps + 1,
    )
    return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), longer, history)
