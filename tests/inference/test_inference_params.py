"""Parameters in the form for inference give the outputs of those of the model, without copies."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.inference import inference_params as module
from bertjax.inference.inference_params import for_inference, inference_params, stacked
from bertjax.model import HEADS
from bertjax.weights import init_params


def outputs(model, params, *, split: bool):
    def apply(params, ids):
        params = stacked(params) if split else params
        return for_inference(model).apply({"params": params}, ids)["last_hidden_state"]

    ids = jnp.arange(40).reshape(2, 20)
    return jax.jit(apply).lower(params, ids).compile(), ids


@pytest.mark.parametrize("shared", [False, True])  # as in BERT and in ALBERT
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_are_equal(tiny_config, shared, dtype):
    changes = {"num_hidden_layers": 4, "num_hidden_groups": 2} if shared else {}
    config = dataclasses.replace(tiny_config, **changes)
    model = HEADS["encoder"](config, jnp.dtype(dtype))
    params = init_params(model, 0)
    split = inference_params(params, model)
    layers = jax.tree.leaves(split["bert"]["encoder"]["layers"])
    assert len(layers) == config.groups * len(jax.tree.leaves(params["bert"]["encoder"]["layers"]))
    jax.tree.map(np.testing.assert_array_equal, inference_params(split, model), split)
    whole, ids = outputs(model, params, split=False)
    found, _ = outputs(model, split, split=True)
    np.testing.assert_array_equal(found(split, ids), whole(params, ids))


def test_no_parameters_of_layers_are_copied(tiny_config):
    model = HEADS["encoder"](tiny_config)
    params = init_params(model, 0)
    kernels = re.compile(r"= f32\[(1,)?32,64\]\S* (fusion|slice|copy)\(")
    whole, _ = outputs(model, params, split=False)
    found, _ = outputs(model, inference_params(params, model), split=True)
    assert kernels.search(whole.as_text()) and not kernels.search(found.as_text())


def test_where_layers_are_a_loop_their_parameters_stay_stacked(tiny_config, monkeypatch):
    monkeypatch.setattr(module, "choose_unroll", lambda *args: 1)  # as on accelerators
    model = HEADS["encoder"](tiny_config)
    params = init_params(model, 0)
    shapes = jax.tree.map(jnp.shape, params)
    assert for_inference(model).unroll == 1
    assert jax.tree.map(jnp.shape, inference_params(params, model)) == shapes
