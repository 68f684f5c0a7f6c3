"""Parameters in the form for inference give the outputs of those of the model, without copies."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.inference.inference_params import inference_params, stacked, unrolled
from bertjax.model import HEADS, BertConfig
from bertjax.weights import init_params

BERT = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=48,
    max_position_embeddings=32,
)
# As in ALBERT: two groups of layers share their parameters.
SHARED = BertConfig(**{**BERT.to_dict(), "num_hidden_groups": 2})


def outputs(model, params, *, split: bool):
    def apply(params, ids):
        params = stacked(params) if split else params
        return model.apply({"params": params}, ids)["last_hidden_state"]

    ids = jnp.arange(40).reshape(2, 20)
    return jax.jit(apply).lower(params, ids).compile(), ids


@pytest.mark.parametrize("config", [BERT, SHARED])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_are_equal(config, dtype):
    model = HEADS["encoder"](config, jnp.dtype(dtype))
    params = init_params(model, 0)
    split = inference_params(params, dtype)
    layers = jax.tree.leaves(split["bert"]["encoder"]["layers"])
    assert len(layers) == config.groups * len(jax.tree.leaves(params["bert"]["encoder"]["layers"]))
    jax.tree.map(np.testing.assert_array_equal, inference_params(split, dtype), split)
    whole, ids = outputs(unrolled(model), params, split=False)
    found, _ = outputs(unrolled(model), split, split=True)
    np.testing.assert_array_equal(found(split, ids), whole(params, ids))


def test_no_parameters_of_layers_are_copied():
    model = HEADS["encoder"](BERT)
    params = init_params(model, 0)
    kernels = re.compile(r"= f32\[(1,)?32,48\]\S* (fusion|slice|copy)\(")
    whole, _ = outputs(unrolled(model), params, split=False)
    found, _ = outputs(unrolled(model), inference_params(params, "float32"), split=True)
    assert kernels.search(whole.as_text()) and not kernels.search(found.as_text())
