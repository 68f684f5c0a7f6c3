"""Collectives are read from a compiled program with their bytes and how often they run."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from bertjax.config import MeshConfig
from bertjax.devices.sharding import make_mesh
from bertjax.planning.traffic import Collective, collectives

FLOATS = 256


def compiled_text(function, **mesh) -> str:
    wrapped = jax.shard_map(
        function,
        mesh=make_mesh(MeshConfig(**mesh)),
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    return jax.jit(wrapped).lower(jnp.ones((8, FLOATS))).compile().as_text()


def test_a_collective_in_a_loop_counts_as_often_as_the_loop_runs():
    def five_sums(x):
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.sin(jax.lax.psum(x, "data")), x)

    (found,) = collectives(compiled_text(five_sums), 8)
    assert found == Collective("all-reduce", 8, 5, 5 * 4 * FLOATS)
    assert found.sent == pytest.approx(2 * 7 / 8 * 5 * 4 * FLOATS)


@pytest.mark.parametrize(
    ("kind", "function", "payload", "sent"),
    [
        ("all-gather", lambda x: jax.lax.all_gather(x, "data", tiled=True)[:1], 8, 7),
        (
            "reduce-scatter",
            lambda x: jax.lax.psum_scatter(x[0], "data", tiled=True)[None],
            1,
            7 / 8,
        ),
        (
            "collective-permute",
            lambda x: jax.lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)]),
            1,
            1,
        ),
    ],
)
def test_payload_is_the_whole_array_and_sent_what_a_ring_has_to_send(kind, function, payload, sent):
    (found,) = collectives(compiled_text(function), 8)
    assert (found.kind, found.times) == (kind, 1)
    assert found.payload == payload * 4 * FLOATS
    assert found.sent == pytest.approx(sent * 4 * FLOATS)


@pytest.mark.parametrize(
    ("operation", "payload"),
    [
        ("((f32[1]{0}, f32[2]{0}), (f32[8]{0}, f32[16]{0})) all-gather-start", 96),
        ("(f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start", 32),
        ("((f32[8]{0}, f32[16]{0}), (f32[1]{0}, f32[2]{0})) reduce-scatter-start", 96),
    ],
)
def test_several_arrays_of_one_asynchronous_operation_all_count(operation, payload):
    text = f"""
ENTRY %main (x: f32[4]) -> f32[4] {{
  ROOT %x = {operation}(%a, %b), replica_groups={{{{0,1,2,3,4,5,6,7}}}}
}}
"""
    (found,) = collectives(text, 8)
    assert found.payload == payload


def test_groups_of_one_mesh_axis_are_as_large_as_the_axis():
    text = compiled_text(partial(jax.lax.psum, axis_name="data"), data=2, fsdp=4)
    (found,) = collectives(text, 8)
    assert (found.kind, found.group) == ("all-reduce", 2)


def test_a_program_of_one_device_has_none_and_other_text_is_refused():
    assert collectives(jax.jit(jnp.sin).lower(jnp.ones(4)).compile().as_text(), 1) == []
    with pytest.raises(ValueError, match="no ENTRY"):
        collectives("HloModule nothing\n", 1)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", 2),
        ("[2,4]<=[8]", 4),
        ("{}", 8),
        ("mesh['data'=2,'fsdp'=4] {'fsdp'}", 4),
        ("mesh['data'=2,'fsdp'=4] {'data','fsdp'}", 8),
        ("mesh['data'=8] {'data':(2)2}", 2),
    ],
)
def test_groups_are_read_as_old_and_new_programs_write_them(groups, size):
    text = f"""
ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4]{{0}} parameter(0)
  ROOT %sum = f32[4]{{0}} all-reduce(%x), replica_groups={groups}, to_apply=%add
}}
"""
    assert collectives(text, 8) == [Collective("all-reduce", size, 1, 16)]
