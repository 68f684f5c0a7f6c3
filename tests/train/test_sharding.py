"""Meshes, the layout table, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import MeshConfig
from bertjax.train import sharding


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
    for path, where in jax.tree.leaves_with_path(shardings):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        split = not where.is_fully_replicated
        if name.endswith(("kernel", "embedding")) and "seq_relationship" not in name:
            assert split, name
        elif "norm" in name:
            assert not split, name


def test_a_vocabulary_that_does_not_divide_is_refused_with_all_such_parameters():
    mesh = sharding.make_mesh(MeshConfig(data=4, tensor=2))
    shapes = {
        "word_embeddings": {"embedding": jax.ShapeDtypeStruct((101, 8), jnp.float32)},
        "predictions": {"bias": jax.ShapeDtypeStruct((101,), jnp.float32)},
    }
    with pytest.raises(ValueError, match=r"predictions/bias.*word_embeddings.*tensor=2"):
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
