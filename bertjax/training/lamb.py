"""LAMB's trust ratio: the step of each tensor is as long as the tensor (You et al. 2019).

Layers are stacked on axis 0 of one array; each is a tensor of its own, as if they stood apart.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

# Under this path the first axis of a parameter counts layers.
STACK = ("encoder", "layers")


def is_stacked(path: tuple[Any, ...]) -> bool:
    """Whether the parameter at a path of the tree holds a tensor for each layer."""
    keys = [getattr(key, "key", None) for key in path]
    return any(
        tuple(keys[at : at + len(STACK)]) == STACK for at in range(len(keys) - len(STACK) + 1)
    )


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """Multiplies each tensor's update by norm(parameters) / norm(update); by 1 where one is 0.

    `optax.scale_by_trust_ratio`, but for stacked layers.
    """

    def update(updates: Any, state: Any, params: Any = None):
        return jax.tree.map_with_path(_scaled, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _scaled(path: tuple[Any, ...], update: jax.Array, param: jax.Array) -> jax.Array:
    axes = tuple(range(int(is_stacked(path)), param.ndim))
    of_param = jnp.sqrt(jnp.sum(jnp.square(param), axes, keepdims=True))
    of_update = jnp.sqrt(jnp.sum(jnp.square(update), axes, keepdims=True))
    usable = (of_param > 0) & (of_update > 0)
    return update * jnp.where(usable, of_param / jnp.where(usable, of_update, 1.0), 1.0)
