"""The layers of the encoder, and the loop that GPUs run them in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import BertConfig
from bertjax.model import encoder
from bertjax.model.encoder import Encoder
from bertjax.model.recipe import flattened

CONFIG = BertConfig(
    hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=12, vocab_size=9
)
X = jax.random.normal(jax.random.key(0), (2, 4, 8))
IDS = jnp.ones((2, 4), jnp.int32)


@pytest.fixture
def params():
    shapes = jax.eval_shape(lambda: Encoder(CONFIG).init(jax.random.key(0), X, IDS, None, IDS))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 2, shapes)


def test_every_layer_starts_from_weights_of_its_own():
    variables = jax.jit(Encoder(CONFIG).init)(jax.random.key(0), X, IDS, None, IDS)
    for path, layers in flattened(variables).items():
        if path.endswith("kernel"):
            assert len(np.unique(layers.reshape(3, -1), axis=0)) == 3, path


@pytest.mark.slow
def test_biases_that_are_passed_from_layer_to_layer_change_nothing(params, monkeypatch):
    model = Encoder(CONFIG, remat="selective")
    rngs = {"dropout": jax.random.key(1)}

    def value(params):
        return jnp.sum(model.apply(params, X, IDS, jnp.arange(2), IDS, rngs=rngs)[0] ** 3)

    def sown(params):
        return model.apply(params, X, IDS, None, IDS, mutable=["intermediates"])[1]

    expected, probs = jax.jit(jax.value_and_grad(value))(params), jax.eval_shape(sown, params)
    monkeypatch.setattr(encoder, "platform", lambda: "gpu")
    found = jax.jit(jax.value_and_grad(value))(params)
    assert jax.eval_shape(sown, params) == probs
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
