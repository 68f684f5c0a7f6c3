"""StableAdamW's update clipping, which divides a tensor's update by an RMS (Wortsman et al. 2023).

The parameters of all encoder layers are stacked along axis 0; each layer has its own RMS.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.training.lamb import is_stacked


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
