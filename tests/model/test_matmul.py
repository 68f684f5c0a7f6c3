"""Products: those of jax, and in bfloat16 on a CPU their sums and gradients come in float32."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model.heads import BertForMaskedLM
from bertjax.model.linear import matmul, project
from tests.cases import others_weekly

# Shapes of x and of a kernel, and whether the kernel is transposed.
PRODUCTS = {
    "layer": ((4, 7, 6), (6, 5), False),
    "tied": ((4, 7, 6), (9, 6), True),
    "of one row": ((6,), (6, 5), False),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_and_its_gradients_are_those_of_jax(name, dtype):
    rng = np.random.default_rng(0)
    *shapes, transposed = PRODUCTS[name]
    x, kernel = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    # A kernel is a parameter, and so float32; its values here are those that x's type has.
    kernel, wide = kernel.astype(jnp.float32), x.astype(jnp.float32)

    def ours(x, kernel):
        return project(x, kernel, transposed=transposed).astype(jnp.float32)

    def theirs(x, kernel):
        return jnp.matmul(x, kernel.T if transposed else kernel)

    tolerance = {"float32": 1e-6, "bfloat16": 2**-8}[dtype]
    # Without gradients, kernels are read in another way.
    found, expected = jax.jit(ours)(x, kernel), jax.jit(theirs)(wide, kernel)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-6)

    def gradients(product, x):
        def sines(x, kernel):
            return jnp.sin(product(x, kernel)).sum()

        return jax.jit(jax.grad(sines, argnums=(0, 1)))(x, kernel)

    for gradient, exact, of in zip(
        gradients(ours, x), gradients(theirs, wide), (x, kernel), strict=True
    ):
        assert gradient.dtype == of.dtype
        error = np.abs(gradient.astype(jnp.float32) - exact)
        assert error.max() < {"float32": 1e-5, "bfloat16": 0.05}[dtype] * np.abs(exact).max()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape",
    others_weekly([(2, 3, 8, 4, 8), (1, 1, 1, 1, 1), (2, 1, 33, 64, 33)], (2, 3, 8, 4, 8)),
)
def test_products_with_shared_axes_and_their_gradients_are_those_of_jax(shape, dtype, transposed):
    *shared, m, k, n = shape
    rng = np.random.default_rng(0)
    lhs = jnp.asarray(rng.normal(size=(*shared, m, k)), dtype)
    rhs = jnp.asarray(rng.normal(size=(*shared, n, k) if transposed else (*shared, k, n)), dtype)
    wide = [x.astype(jnp.float32) for x in (lhs, rhs)]

    def ours(x, y):
        return jnp.sin(matmul(x, y, transposed=transposed).astype(jnp.float32))

    def theirs(x, y):
        return jnp.sin(jnp.matmul(x, y.mT if transposed else y))

    tolerance = {"float32": 1e-5, "bfloat16": 0.05}[dtype]
    np.testing.assert_allclose(jax.jit(ours)(lhs, rhs), jax.jit(theirs)(*wide), atol=tolerance)
    found, expected = (
        jax.jit(jax.grad(lambda *xy, f=f: f(*xy).sum(), argnums=(0, 1)))(*operands)
        for f, operands in ((ours, (lhs, rhs)), (theirs, wide))
    )
    for gradient, exact in zip(found, expected, strict=True):
        assert gradient.dtype == dtype
        error = np.abs(gradient.astype(jnp.float32) - exact)
        assert error.max() <= tolerance * max(np.abs(exact).max(), 0.1)


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


def test_every_product_of_a_step_in_bfloat16_is_asked_for_float32_sums_on_a_cpu(
    model, random_params
):
    found = products_of(step_of(model), random_params(model))
    # Six linear layers and two products of attention in the loop, and two for words; each forward
    # and two gradients.
    assert found == 3 * 10 * ["f32"]


def test_under_a_mesh_of_another_device_products_are_left_as_they_are(model, random_params):
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

    # Only the logits of the vocabulary, and their two gradients, keep their float32 sums.
    assert sorted(products_of(traced, random_params(model))) == 27 * ["bf16"] + 3 * ["f32"]


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_the_vocabulary_are_not_rounded_to_bfloat16(tiny_config, random_params, tied):
    config = dataclasses.replace(tiny_config, tie_word_embeddings=tied)
    model = BertForMaskedLM(config, dtype=jnp.bfloat16)
    rows = jnp.ones((2, 16), jnp.int32)
    inputs = (jnp.arange(32).reshape(2, 16), rows, rows - 1, rows, rows[:, :1] - 1)
    logits = jax.jit(model.apply)({"params": random_params(model)}, *inputs)["logits"]
    assert logits.dtype == jnp.float32
    rounded = logits.astype(jnp.bfloat16).astype(jnp.float32)
    assert (logits == rounded).mean() < 0.05


@pytest.mark.parametrize("transposed", [False, True])
def test_on_a_cpu_no_product_of_bfloat16_is_widened_before_it_is_run(transposed):
    """XLA does so to operands that it cannot hand to its fast library as they are."""

    def loss(x, kernel):
        return jnp.sum(project(x, kernel, transposed=transposed) ** 2)

    x = jnp.ones((256, 128), jnp.bfloat16)
    kernel = jnp.ones((384, 128) if transposed else (128, 384))
    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(x, kernel).compile().as_text()
    if "ynn_fusion" not in program:
        pytest.skip("XLA has no such library here")
    operands = re.findall(r"= f32\S* dot\(%?(\S+), %?(\S+)\)", program)
    assert len(operands) == 3
    for name in {name for pair in operands for name in pair}:
        assert re.search(rf"%?{re.escape(name)} = bf16|{re.escape(name)}: bf16", program), name
