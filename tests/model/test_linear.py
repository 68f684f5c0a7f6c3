"""Linear layers: those of flax."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from bertjax.model import BertConfig
from bertjax.model.linear import Linear
from tests.cases import WEEKLY


@pytest.mark.parametrize(
    ("axes", "features", "dtype"),
    [
        (1, (3, 4), "bfloat16"),
        (2, 5, "float32"),
        pytest.param(1, 5, "float32", marks=WEEKLY),
        pytest.param(1, 5, "bfloat16", marks=WEEKLY),
        pytest.param(1, (3, 4), "float32", marks=WEEKLY),
        pytest.param(2, 5, "bfloat16", marks=WEEKLY),
    ],
)
def test_a_layer_and_its_parameters_are_those_of_flax(dtype, axes, features):
    config = BertConfig(initializer_range=0.5)
    init = jax.nn.initializers.truncated_normal(0.5)
    x, key = jax.random.normal(jax.random.key(1), (2, 6, 7)), jax.random.key(0)
    ours = Linear(config, features, dtype, axes=axes)
    theirs = nn.DenseGeneral(features, range(-axes, 0), dtype=dtype, kernel_init=init)
    params = jax.jit(ours.init)(key, x)
    jax.tree.map(np.testing.assert_array_equal, params, jax.jit(theirs.init)(key, x))
    params = jax.tree.map(lambda p: p + 0.1, params)  # a bias begins at 0
    weights = jax.random.normal(jax.random.key(2), jax.eval_shape(ours.apply, params, x).shape)

    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.grad, argnums=(1, 2))
    def gradients_of(layer, params, x):
        return (weights * layer.apply(params, x)).sum()

    gradients = [gradients_of(layer, params, x) for layer in (ours, theirs)]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0.02, atol=0.02), *gradients)
    if dtype == "float32":
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        jax.tree.map(close, *gradients)
    found, expected = (jax.jit(layer.apply)(params, x) for layer in (ours, theirs))
    assert found.dtype == expected.dtype == dtype
    tolerance = {"float32": 1e-6, "bfloat16": 2**-7}[dtype]  # flax rounds twice
    np.testing.assert_allclose(
        *(np.asarray(y, np.float32) for y in (found, expected)), rtol=tolerance, atol=4 * tolerance
    )
