"""Meshes, the layout table, and what they refuse."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import MeshConfig
from bertjax.devices import sharding
from bertjax.train.step import create_train_state
from tests.cases import WEEKLY


def test_the_data_axis_takes_the_devices_that_the_others_leave():
    mesh = sharding.make_mesh(MeshConfig(fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize("axes", [{"data": 3}, {"fsdp": 3}, {"tensor": 16}, {"data": 0}])
def test_a_mesh_that_does_not_cover_the_devices_is_refused(axes):
    with pytest.raises(ValueError, match="does not cover 8 devices"):
        sharding.make_mesh(MeshConfig(**axes))


def test_every_matrix_is_split_and_every_norm_is_whole(tiny):
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=4, tensor=2))
    shardings = sharding.state_sharding(mesh, tiny[1])
    matrices = 0
    for path, where in jax.tree.leaves_with_path(shardings):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        split = not where.is_fully_replicated
        if name.endswith(("kernel", "embedding")) and "seq_relationship" not in name:
            assert split, name
            matrices += 1
        elif "norm" in name:
            assert not split, name
    assert matrices == 11


# Parameters that stay whole: small ones, and what an axis does not split.
WHOLE = {
    "fsdp": r"bias$|norm|seq_relationship",
    "tensor": r"bias$|norm|seq_relationship|(position|token_type)_embeddings",
}


@pytest.mark.parametrize(
    ("axes", "share"),
    [
        (["fsdp", "tensor"], 8),
        pytest.param(["fsdp"], 4, marks=WEEKLY),
        pytest.param(["tensor"], 2, marks=WEEKLY),
    ],
)
def test_a_device_keeps_its_share_of_parameters_and_moments(tiny, axes, share):
    sizes = {axis: {"fsdp": 4, "tensor": 2}[axis] for axis in axes}
    mesh = sharding.make_mesh(MeshConfig(**sizes))
    state = create_train_state(jax.tree.map(jnp.asarray, tiny[1]), {}, optax.adam(1e-3))
    placed = jax.device_put(state, sharding.state_sharding(mesh, state))
    kept = whole = 0
    for path, leaf in jax.tree.leaves_with_path(placed):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if (
            leaf.ndim == 0
            or name.startswith("history")
            or any(re.search(WHOLE[axis], name) for axis in axes)
        ):
            continue
        on_first = [s.data.nbytes for s in leaf.addressable_shards if s.device == jax.devices()[0]]
        assert sum(on_first) * share == leaf.nbytes, name
        kept, whole = kept + sum(on_first), whole + leaf.nbytes
    assert kept * share == whole > 0
    # Those that are excepted are few: the matrices are most of a state.
    assert whole > 0.8 * sum(leaf.nbytes for leaf in jax.tree.leaves(placed))


def test_moments_of_another_shape_than_their_parameters_are_whole(tiny):
    mesh = sharding.make_mesh(MeshConfig(fsdp=4, tensor=2))
    rule = optax.scale_by_factored_rms(min_dim_size_to_factor=16)
    state = create_train_state(jax.tree.map(jnp.asarray, tiny[1]), {}, rule)
    placed = jax.device_put(state, sharding.state_sharding(mesh, state))
    moments = placed.opt_state.v_row["bert"]["pooler"]["kernel"]
    assert moments.ndim == 1 and moments.is_fully_replicated
    assert not placed.params["bert"]["pooler"]["kernel"].is_fully_replicated


def test_a_vocabulary_that_does_not_divide_is_refused_with_one_such_array():
    mesh = sharding.make_mesh(MeshConfig(data=4, tensor=2))
    shapes = {
        "word_embeddings": {"embedding": jax.ShapeDtypeStruct((101, 8), jnp.float32)},
        "predictions": {"bias": jax.ShapeDtypeStruct((101,), jnp.float32)},
    }
    with pytest.raises(ValueError, match=r": 101 over tensor=2 \(axis 0 of predictions/bias\)\."):
        sharding.state_sharding(mesh, shapes)


def test_a_batch_that_does_not_divide_is_refused_with_one_that_does():
    mesh = sharding.make_mesh(MeshConfig())
    sharding.check_batch_size(mesh, 64, 4)
    with pytest.raises(ValueError, match="batch_size=50 .* multiple of 32, for example 64"):
        sharding.check_batch_size(mesh, 50, 4)


def test_rows_reach_the_devices_in_their_order():
    rows = sharding.batch_sharding(sharding.make_mesh(MeshConfig()))
    values = np.arange(48).reshape(16, 3)
    placed = sharding.to_devices({"x": values}, sharding.host_rows(rows, 16), rows, 16)["x"]
    np.testing.assert_array_equal(placed, values)
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 3)}
