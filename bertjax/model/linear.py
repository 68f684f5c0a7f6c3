"""Linear layers, with products of matrices that are fast in bfloat16 on CPUs, too.

XLA's CPU backend multiplies bfloat16 at the speed of float32 unless a product is asked for its sums
in float32, and so must its gradients be. Accelerators sum in float32 in any case; there nothing
changes, and neither do the products of attention, of which each is small.
"""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.model.config import BertConfig


def initializer(config: BertConfig) -> jax.nn.initializers.Initializer:
    """Normal of scale `initializer_range`, cut at 2 sigma, as google-research/bert draws it."""
    return jax.nn.initializers.truncated_normal(config.initializer_range)


def dense(
    config: BertConfig,
    features: int | Sequence[int],
    dtype: DTypeLike,
    *,
    axis: int | Sequence[int] = -1,
    use_bias: bool = True,
    name: str | None = None,
) -> nn.DenseGeneral:
    """A linear map of `axis` to `features`, with BERT's initialisation."""
    return nn.DenseGeneral(
        features,
        axis=axis,
        use_bias=use_bias,
        dtype=dtype,
        kernel_init=initializer(config),
        dot_general_cls=_dot_general_of_layers,
        name=name,
    )


def dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: Any,
    precision: Any = None,
) -> jax.Array:
    """`jax.lax.dot_general` of operands and result of one type, as flax's layers call it."""
    (lhs_summed, rhs_summed), (shared, _) = dimension_numbers
    if shared or not _on_cpu() or not lhs.dtype == rhs.dtype == jnp.bfloat16:
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision)
    lhs = jnp.moveaxis(lhs, lhs_summed, range(-len(lhs_summed), 0))
    rhs = jnp.moveaxis(rhs, rhs_summed, range(len(rhs_summed)))
    rows, columns = lhs.shape[: -len(lhs_summed)], rhs.shape[len(rhs_summed) :]
    product = _product(lhs.reshape(math.prod(rows), -1), rhs.reshape(-1, math.prod(columns)))
    return product.astype(lhs.dtype).reshape(*rows, *columns)


def _dot_general_of_layers():
    return dot_general


def _on_cpu() -> bool:
    """Whether what is being traced is for a CPU: the mesh that it is traced under says it."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (jax.default_backend() if device is None else device.platform) == "cpu"


@jax.custom_vjp
def _product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """[M, K] times [K, N] -> float32 [M, N]."""
    return jax.lax.dot(lhs, rhs, preferred_element_type=jnp.float32)


def _forward(lhs: jax.Array, rhs: jax.Array):
    return _product(lhs, rhs), (lhs, rhs)


def _gradients(operands: tuple[jax.Array, jax.Array], gradient: jax.Array):
    """Products of the gradient, which therefore is rounded to the operands' type first."""
    lhs, rhs = operands
    gradient = gradient.astype(lhs.dtype)
    d_lhs, d_rhs = _product(gradient, rhs.T), _product(lhs.T, gradient)
    return d_lhs.astype(lhs.dtype), d_rhs.astype(rhs.dtype)


_product.defvjp(_forward, _gradients)
