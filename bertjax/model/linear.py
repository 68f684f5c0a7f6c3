"""Linear layers with the parameter initialisation of BERT, and matrix multiplication for CPUs.

On XLA's CPU backend, a bfloat16 matrix multiplication is faster than a float32 one only if the
multiplication and its gradients accumulate in float32 (`preferred_element_type`) and the operands
have a row-major layout. The fast path therefore copies a transposed left operand to row-major
layout, and contracts a transposed right operand over its last axis without a copy. In float32, it
contracts a transposed left operand over its rows: JAX's own gradient would be a transposed product.

Accelerators always accumulate in float32, and their compilers choose the layouts. On accelerators,
`matmul` and `project` just call `jax.lax.dot_general`.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig


def matmul(lhs: jax.Array, rhs: jax.Array, *, transposed: bool = False) -> jax.Array:
    """Computes `lhs @ rhs`, `[*S, M, K] @ [*S, K, N] -> [*S, M, N]`.

    `*S` are batch axes. If `transposed` is True, `rhs` is `[*S, N, K]`. The result has the dtype of
    the operands, or float32 on the fast path, which is used for bfloat16 on a CPU.
    """
    if _is_slow(lhs):
        return _fast(lhs, rhs, transposed)
    return jax.lax.dot_general(lhs, rhs, _dimensions(lhs, transposed))


def project(
    x: jax.Array,
    kernel: jax.Array,
    axes: int = 1,
    *,
    transposed: bool = False,
    float32: bool = False,
) -> jax.Array:
    """Computes `x @ kernel`, `[..., *K] @ [*K, *N] -> [..., *N]`, where K stands for `axes` axes.

    The kernel is cast to the dtype of x; if `transposed` is True, the kernel has the shape [N, K].
    The result has the dtype of x. If `float32` is True, or on a CPU, where the fast path is used,
    it is the float32 sum before rounding, whose gradient is rounded to the dtype of x before it is
    multiplied.
    """
    is_rounded = not float32 or x.dtype == jnp.float32
    if platform() != "cpu" and is_rounded:
        last = tuple(range(x.ndim - axes, x.ndim))
        first = (1,) if transposed else tuple(range(axes))
        dimensions = ((last, first), ((), ()))
        return jax.lax.dot_general(x, kernel.astype(x.dtype), dimensions)
    return _projected(x, kernel, axes, transposed)


def platform() -> str:
    """Returns the platform of the current mesh or, without one, of jax's default device."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        return jax.default_backend()
    return device.platform


def _is_slow(x: jax.Array) -> bool:
    return x.dtype == jnp.bfloat16 and platform() == "cpu"


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _fast(lhs: jax.Array, rhs: jax.Array, transposed: bool) -> jax.Array:
    """Computes `matmul` on the fast path; rhs is cast to lhs.dtype, and the result is float32."""
    return _dot(lhs, rhs.astype(lhs.dtype), transposed)


def _forward(lhs: jax.Array, rhs: jax.Array, transposed: bool):
    return _fast(lhs, rhs, transposed), (lhs, rhs)


def _gradients(transposed: bool, operands: tuple[jax.Array, jax.Array], gradient: jax.Array):
    lhs, rhs = operands
    gradient = gradient.astype(lhs.dtype)
    lhs_gradient = _dot(gradient, rhs.astype(lhs.dtype), not transposed)
    if transposed:
        rhs_gradient = _dot_of_rows(gradient, lhs)
    else:
        rhs_gradient = _dot_of_rows(lhs, gradient)
    return lhs_gradient.astype(lhs.dtype), rhs_gradient.astype(rhs.dtype)


_fast.defvjp(_forward, _gradients)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _projected(x: jax.Array, kernel: jax.Array, axes: int, transposed: bool) -> jax.Array:
    """Computes `project`; without gradients, it reads kernels as `inference_params` stores them."""
    return _product(x, kernel, axes, transposed, _is_slow(x))


def _project_forward(x: jax.Array, kernel: jax.Array, axes: int, transposed: bool):
    # The residual is x itself and not a reshaped x, so that several projections of x share it.
    return _product(x, kernel, axes, transposed, False), (x, kernel)


def _project_gradients(
    axes: int, transposed: bool, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
):
    x, kernel = operands
    rows, matrix = _as_matrices(x, kernel, axes, transposed)
    columns = matrix.shape[0 if transposed else 1]
    gradient = gradient.reshape(-1, columns)
    x_gradient, kernel_gradient = _gradients(transposed, (rows, matrix), gradient)
    return x_gradient.reshape(x.shape), kernel_gradient.reshape(kernel.shape)


_projected.defvjp(_project_forward, _project_gradients)


def _product(x: jax.Array, kernel: jax.Array, axes: int, transposed: bool, turn: bool) -> jax.Array:
    lead = x.shape[: x.ndim - axes]
    features = kernel.shape[:1] if transposed else kernel.shape[axes:]
    rows, matrix = _as_matrices(x, kernel, axes, transposed)
    matrix = matrix.astype(x.dtype)
    if turn and not transposed:
        matrix = matrix.mT
        transposed = True
    product = _dot(rows, matrix, transposed)
    return product.reshape(*lead, *features)


def _as_matrices(
    x: jax.Array, kernel: jax.Array, axes: int, transposed: bool
) -> tuple[jax.Array, jax.Array]:
    inputs = math.prod(x.shape[x.ndim - axes :])
    x = x.reshape(-1, inputs)
    return x, kernel if transposed else kernel.reshape(inputs, -1)


@functools.partial(jax.jit, static_argnums=2, inline=True)  # layout constraints need jit
def _dot(lhs: jax.Array, rhs: jax.Array, transposed: bool) -> jax.Array:
    if _is_slow(lhs):
        row_major = Layout(tuple(range(lhs.ndim)))
        lhs = with_layout_constraint(lhs, row_major)
        if transposed or lhs.ndim > 2:
            rhs = with_layout_constraint(rhs, row_major)
    result = jnp.promote_types(lhs.dtype, jnp.float32)
    return jax.lax.dot_general(
        lhs, rhs, _dimensions(lhs, transposed), preferred_element_type=result
    )


def _dot_of_rows(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Computes `lhs.mT @ rhs`, `[*S, M, K], [*S, M, N] -> [*S, K, N]`."""
    if lhs.dtype == jnp.bfloat16:
        return _dot(lhs.mT, rhs, False)
    *shared, rows = range(lhs.ndim - 1)
    dimensions = (((rows,), (rows,)), (shared, shared))
    return jax.lax.dot_general(lhs, rhs, dimensions)


def _dimensions(lhs: jax.Array, transposed: bool) -> jax.lax.DotDimensionNumbers:
    last = lhs.ndim - 1
    shared = tuple(range(last - 1))
    of_rhs = last if transposed else last - 1
    return ((last,), (of_rhs,)), (shared, shared)


# The names by which rematerialisation policies know the result of a linear layer, bias included,
# and the results of fused attention: its output, and the logarithms of the sums of exp(score).
PROJECTION = "projection"
OUTPUT = "flash_attention_output"
NORMALIZER = "flash_attention_normalizer"
# The number of lanes of a TPU, of which row lengths of fused attention are multiples.
LANES = 128


def initializer(config: BertConfig, stddev: float | None = None) -> jax.nn.initializers.Initializer:
    """Returns a truncated normal initializer, as in google-research/bert.

    The standard deviation of the normal distribution is `stddev` (None: `initializer_range` of the
    config), and it is truncated at `config.initializer_cutoff_factor` standard deviations.
    """
    stddev = config.initializer_range if stddev is None else stddev
    cutoff = config.initializer_cutoff_factor
    return jax.nn.initializers.truncated_normal(stddev, lower=-cutoff, upper=cutoff)


def residual_stddev(config: BertConfig) -> float | None:
    """Returns the `stddev` of linear layers whose results are added to the residual stream.

    With `pre_norm`, it is `initializer_range` / sqrt(2 * layers), so that the variance of the sum
    does not grow with the number of layers (Radford et al. 2019, 2.3); None: `initializer_range`.
    With `residual_scale_layers`, the layers divide their results themselves.
    """
    if not config.pre_norm or config.residual_scale_layers is not None:
        return None
    return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)


class Linear(nn.Module):
    """A linear layer that contracts the last `axes` axes of its input.

    The parameters are as in Flax's `nn.DenseGeneral`: kernel `[*inputs, *features]`, bias
    `[*features]`, where `inputs` are the sizes of the contracted axes. The layer multiplies in
    `dtype`; if `float32` is set, the result is float32 and not rounded to `dtype`. `stddev` is the
    standard deviation of the initial weights; None: as the config says.
    """

    config: BertConfig
    features: int | tuple[int, ...]
    dtype: DTypeLike
    axes: int = 1
    use_bias: bool = True
    float32: bool = False
    stddev: float | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layer to x, `[..., *inputs] -> [..., *features]`."""
        inputs = x.shape[x.ndim - self.axes :]
        features = (self.features,) if isinstance(self.features, int) else self.features
        flat = (math.prod(inputs), math.prod(features))

        def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            matrix = initializer(self.config, self.stddev)(key, flat, dtype)
            return jnp.asarray(matrix).reshape(shape)

        kernel = self.param("kernel", init, (*inputs, *features), jnp.float32)
        y = project(x.astype(self.dtype), kernel, self.axes, float32=self.float32)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, features, jnp.float32)
            y += jnp.expand_dims(bias.astype(y.dtype), range(y.ndim - bias.ndim))
        if not self.float32:
            y = y.astype(self.dtype)
        return checkpoint_name(y, PROJECTION)
