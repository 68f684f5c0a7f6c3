"""Position embeddings that a phase of longer rows is the first to train."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import MeshConfig
from bertjax.devices import sharding
from bertjax.train.state import create_train_state
from bertjax.train.untrained_positions import (
    Positions,
    fit_positions,
    known_positions,
    untrained_positions,
)

KEYS = ("position_embeddings", "embedding")
NEW = np.arange(10, 18)  # rows of the positions 8 to 15, with an offset of 2
COPIED = np.array([3, 4, 5, 6, 7, 8, 9, 3])  # position 0 is that of [CLS] alone


def smooth(rows, size, seed=0):
    """Rows like those of a trained position embedding, whose neighbours are similar."""
    noise = np.random.default_rng(seed).normal(size=(rows, size))
    return np.cumsum(noise, axis=0) + 3


def state_of(table, mesh):
    """A state after one step of Adam, whose gradients differ from row to row."""
    tables = {"position_embeddings": table, "word_embeddings": table[:, ::-1]}
    params = {"bert": {"embeddings": {k: {"embedding": jnp.float32(v)} for k, v in tables.items()}}}
    optimizer = optax.adam(1e-3)
    state = create_train_state(params, optimizer)
    _, moments = optimizer.update(jax.tree.map(jnp.sin, params), state.opt_state, params)
    state = dataclasses.replace(state, opt_state=moments)
    return jax.device_put(state, sharding.state_sharding(mesh, state))


def distance(params, batch, weights, key):
    """A loss that is 0 if the new rows are copies of trained ones plus 1."""
    assert key is None
    table = params["bert"]["embeddings"]["position_embeddings"]["embedding"]
    return jnp.mean(jnp.square(table[NEW] - batch["target"])) / weights["all"], {}


@pytest.mark.parametrize("fsdp", [1, 4])
def test_only_new_rows_are_fitted_and_their_moments_are_those_of_trained_ones(fsdp):
    mesh = sharding.make_mesh(MeshConfig(fsdp=fsdp))
    table = np.random.default_rng(1).normal(size=(20, 16))
    table[:10] = smooth(10, 16)
    state = state_of(table, mesh)
    positions = untrained_positions(state, mesh, trained=8, length=16, offset=2)
    assert positions == (expected := Positions(2, 10, 18))
    target = jnp.float32(table[COPIED] + 1)
    fitted = fit_positions(
        *(state, expected, [{"target": target}] * 40),
        num_steps=40,
        loss_fn=distance,
        weights_fn=lambda batch: {"all": jnp.float32(1)},
        mesh=mesh,
    )
    for (path, before), after in zip(
        jax.tree.leaves_with_path(state), jax.tree.leaves(fitted), strict=True
    ):
        before, name = np.array(before), jax.tree_util.keystr(path)
        if tuple(getattr(key, "key", None) for key in path[-2:]) == KEYS:
            if ".params" in name:
                np.testing.assert_allclose(after[NEW], target, atol=0.1)
                before[NEW] = after[NEW]
            else:
                before[NEW] = 0 if ".mu" in name else before[COPIED]
        np.testing.assert_array_equal(after, before, err_msg=name)
    same = jax.tree.map(lambda a, b: a.sharding == b.sharding, state.params, fitted.params)
    assert all(jax.tree.leaves(same))


def test_rows_that_a_model_has_trained_are_recognised_and_kept():
    noise = np.random.default_rng(1).normal(size=(512, 128))
    assert known_positions(noise, 64) == 64
    table = noise.copy()
    table[:256] = smooth(256, 128)
    assert known_positions(table, 64) in range(252, 264)
    assert known_positions(smooth(512, 128), 64) == 512
    assert known_positions(noise[:66], 64) == 64
    assert known_positions(table[:64], 64) == 64


def test_a_model_without_a_position_matrix_and_one_that_knows_the_positions_have_no_new_ones():
    mesh = sharding.make_mesh(MeshConfig())
    rotary = create_train_state({"predictions": {"bias": jnp.zeros(3)}}, optax.identity())
    assert untrained_positions(rotary, mesh, trained=8, length=16) is None
    trained = state_of(smooth(16, 64), mesh)
    assert untrained_positions(trained, mesh, trained=8, length=16) is None
