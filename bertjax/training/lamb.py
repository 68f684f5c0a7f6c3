"""LAMB's trust ratio, which scales a tensor's update to the norm of the tensor (You et al. 2019).

The parameters of all encoder layers are stacked along axis 0; each layer has its own trust ratio.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

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
