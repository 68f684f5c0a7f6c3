"""Products of matrices that are fast in bfloat16 on CPUs, too.

XLA's CPU backend multiplies bfloat16 at the speed of float32, or slower, unless all of this holds:
a product is asked for its sums in float32, and so are its gradients; operands lie in memory in the
order of their axes, so that transposed ones are copied, but for a right one, which may be summed
over its last axis instead. Accelerators sum in float32 in any case, and lay out operands
themselves; there, and in float32, a product is jax's own.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint


def matmul(lhs: jax.Array, rhs: jax.Array, *, transposed: bool = False) -> jax.Array:
    """lhs [*S, M, K] times rhs [*S, K, N], or [*S, N, K] `transposed` -> [*S, M, N].

    The result has the operands' type, or float32 where it comes so.
    """
    if _is_slow(lhs):
        return _fast(lhs, rhs, transposed)
    return jax.lax.dot_general(lhs, rhs, _dimensions(lhs, transposed))


def project(
    x: jax.Array, kernel: jax.Array, axes: int = 1, *, transposed: bool = False
) -> jax.Array:
    """x [..., *K] times kernel [*K, *N], rounded to x's type -> [..., *N]; K has `axes` axes.

    A `transposed` kernel is [N, K]. The result has x's type, or float32 where it comes so, to be
    rounded when a bias has been added.
    """
    if not _is_slow(x):
        last = tuple(range(x.ndim - axes, x.ndim))
        dimensions = ((last, (1,) if transposed else tuple(range(axes))), ((), ()))
        return jax.lax.dot_general(x, kernel.astype(x.dtype), dimensions)
    return _projected(x, kernel, axes, transposed)


def _is_slow(x: jax.Array) -> bool:
    """Whether products of x would be: in bfloat16, where what is being traced is for a CPU."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = jax.default_backend() if device is None else device.platform
    return x.dtype == jnp.bfloat16 and platform == "cpu"


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _fast(lhs: jax.Array, rhs: jax.Array, transposed: bool) -> jax.Array:
    """As `matmul`, in float32; rhs is rounded to lhs's type."""
    return _dot(lhs, rhs.astype(lhs.dtype), transposed)


def _forward(lhs: jax.Array, rhs: jax.Array, transposed: bool):
    return _fast(lhs, rhs, transposed), (lhs, rhs)


def _gradients(transposed: bool, operands: tuple[jax.Array, jax.Array], gradient: jax.Array):
    """Products of the gradient, which therefore is rounded to the operands' type first."""
    lhs, rhs = operands
    gradient = gradient.astype(lhs.dtype)
    of_lhs = _dot(gradient, rhs.astype(lhs.dtype), not transposed)
    left, right = (gradient, lhs) if transposed else (lhs, gradient)
    of_rhs = _dot(left.mT, right, False)
    return of_lhs.astype(lhs.dtype), of_rhs.astype(rhs.dtype)


_fast.defvjp(_forward, _gradients)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _projected(x: jax.Array, kernel: jax.Array, axes: int, transposed: bool) -> jax.Array:
    """As `project`, in float32."""
    features = kernel.shape[:1] if transposed else kernel.shape[axes:]
    rows, matrix = _as_matrices(x, kernel, axes, transposed)
    y = _dot(rows, matrix.astype(x.dtype), transposed)
    return y.reshape(*x.shape[: x.ndim - axes], *features)


def _project_forward(x: jax.Array, kernel: jax.Array, axes: int, transposed: bool):
    # What is kept is x itself, so that several projections of it keep it once.
    return _projected(x, kernel, axes, transposed), (x, kernel)


def _project_gradients(
    axes: int, transposed: bool, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
):
    x, kernel = operands
    matrices = _as_matrices(x, kernel, axes, transposed)
    columns = matrices[1].shape[0 if transposed else 1]
    of_x, of_kernel = _gradients(transposed, matrices, gradient.reshape(-1, columns))
    return of_x.reshape(x.shape), of_kernel.reshape(kernel.shape)


_projected.defvjp(_project_forward, _project_gradients)


def _as_matrices(
    x: jax.Array, kernel: jax.Array, axes: int, transposed: bool
) -> tuple[jax.Array, jax.Array]:
    inputs = math.prod(x.shape[x.ndim - axes :])
    return x.reshape(-1, inputs), kernel if transposed else kernel.reshape(inputs, -1)


@functools.partial(jax.jit, static_argnums=2, inline=True)  # layouts are of compiled programs
def _dot(lhs: jax.Array, rhs: jax.Array, transposed: bool) -> jax.Array:
    in_order = Layout(tuple(range(lhs.ndim)))
    lhs, rhs = (with_layout_constraint(x, in_order) for x in (lhs, rhs))
    dimensions = _dimensions(lhs, transposed)
    return jax.lax.dot_general(lhs, rhs, dimensions, preferred_element_type=jnp.float32)


def _dimensions(lhs: jax.Array, transposed: bool) -> jax.lax.DotDimensionNumbers:
    last = lhs.ndim - 1
    shared = tuple(range(last - 1))
    return ((last,), (last if transposed else last - 1,)), (shared, shared)
