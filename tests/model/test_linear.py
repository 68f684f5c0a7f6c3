"""Products: those of jax, and in bfloat16 on a CPU their sums and gradients come in float32."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model import BertConfig
from bertjax.model.linear import dense, dot_general
from bertjax.model.tasks import BertForMaskedLM
from bertjax.weights import init_params

# Axes of operands as ((summed of lhs, of rhs), (shared of lhs, of rhs)), and their shapes.
PRODUCTS = {
    "layer": ((4, 7, 6), (6, 5), (((2,), (0,)), ((), ()))),
    "tied": ((4, 7, 6), (9, 6), (((2,), (1,)), ((), ()))),
    "of heads": ((4, 7, 3, 2), (3, 2, 5), (((2, 3), (0, 1)), ((), ()))),
    "scores": ((4, 7, 3, 2), (4, 8, 3, 2), (((3,), (3,)), ((0, 2), (0, 2)))),
}


def operands(name, dtype):
    rng = np.random.default_rng(0)
    lhs, rhs, axes = PRODUCTS[name]
    return *(jnp.asarray(rng.normal(size=shape), dtype) for shape in (lhs, rhs)), axes


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_and_its_gradients_are_those_of_jax(name, dtype):
    lhs, rhs, axes = operands(name, dtype)
    wide = [x.astype(jnp.float32) for x in (lhs, rhs)]

    def loss_of(product):
        return lambda x, y: (jnp.sin(product(x, y, axes).astype(jnp.float32))).sum()

    found = dot_general(lhs, rhs, axes)
    expected = jax.lax.dot_general(*wide, axes)
    assert found.dtype == dtype and found.shape == expected.shape
    # Half a unit of the last of bfloat16's 8 bits: the sum is rounded once, at its end.
    tolerance = {"float32": 1e-6, "bfloat16": 2**-8}[dtype]
    np.testing.assert_allclose(found.astype(jnp.float32), expected, rtol=tolerance, atol=1e-6)
    ours = jax.grad(loss_of(dot_general), argnums=(0, 1))(lhs, rhs)
    theirs = jax.grad(loss_of(jax.lax.dot_general), argnums=(0, 1))(*wide)
    for gradient, exact in zip(ours, theirs, strict=True):
        assert gradient.dtype == dtype
        error = np.abs(gradient.astype(jnp.float32) - exact)
        assert error.max() < {"float32": 1e-5, "bfloat16": 0.05}[dtype] * np.abs(exact).max()


def products_of(step, *args):
    """The types of the results of all products of a lowered program."""
    text = jax.jit(step).lower(*args).as_text()
    return re.findall(r"stablehlo\.dot_general.*-> tensor<[\dx]*x(\w+)>", text)


@pytest.fixture(scope="module")
def model(tiny_config):
    return BertForMaskedLM(tiny_config, dtype=jnp.bfloat16)


def step_of(model):
    rows = jnp.ones((2, 16), jnp.int32)
    inputs = (rows, rows, rows - 1, rows, rows[:, :1] - 1)

    def loss(params):
        return jnp.sum(model.apply({"params": params}, *inputs)["logits"] ** 2)

    return jax.grad(loss)


def test_every_product_of_a_step_in_bfloat16_is_asked_for_float32_sums_on_a_cpu(model):
    found = products_of(step_of(model), init_params(model, 0))
    # Of six linear layers in the loop and two for words, forward and two gradients; attention's
    # are six.
    assert found.count("f32") == 3 * 8 and found.count("bf16") == 6


def test_under_a_mesh_of_another_device_products_are_left_as_they_are(model):
    mesh = jax.sharding.AbstractMesh(
        (1,),
        ("data",),
        axis_types=(jax.sharding.AxisType.Auto,),
        abstract_device=jax.sharding.AbstractDevice("TPU v5 lite", None, "tpu"),
    )
    step = step_of(model)

    def traced(params):
        with jax.sharding.use_abstract_mesh(mesh):
            return step(params)

    assert set(products_of(traced, init_params(model, 0))) == {"bf16"}


def test_a_layers_parameters_are_those_of_flax():
    config = BertConfig(initializer_range=0.5)
    init = jax.nn.initializers.truncated_normal(0.5)
    x, key = jnp.ones((2, 6)), jax.random.key(0)
    ours = dense(config, 5, jnp.float32).init(key, x)
    theirs = nn.Dense(5, kernel_init=init).init(key, x)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
