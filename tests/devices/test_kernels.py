"""How many layers are written out, and that recomputing them saves memory where it is asked for."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import MeshConfig, OptimizerConfig, Phase, PretrainConfig
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_remat, choose_unroll
from bertjax.model import BertConfig, BertForPreTraining
from bertjax.model.encoder import REMAT_POLICIES
from bertjax.train.program import PretrainingProgram, batch_shapes
from bertjax.weights import init_params


def mesh_of(platform: str) -> SimpleNamespace:
    return SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))


@pytest.mark.parametrize(
    ("platform", "asked", "remat", "expected"),
    [
        ("cpu", None, "none", 12),
        ("cpu", None, "dots", 1),
        ("cpu", 3, "none", 3),
        ("cpu", 1, "full", 1),
        ("tpu", None, "none", 1),
        ("gpu", None, "full", 1),
        ("gpu", 4, "full", 4),
    ],
)
def test_layers_are_written_out_on_cpus_or_where_asked(platform, asked, remat, expected):
    assert choose_unroll(asked, remat, 12, mesh_of(platform)) == expected


def test_accelerators_recompute_what_is_cheap_unless_asked_otherwise():
    assert choose_remat(None, mesh_of("cpu")) == "none"
    for platform in ("tpu", "gpu"):
        assert choose_remat(None, mesh_of(platform)) == "selective"
        assert choose_remat("none", mesh_of(platform)) == "none"


def test_what_would_undo_remat_is_refused():
    with pytest.raises(ValueError, match=r"unroll=2, remat='dots'.*--unroll 1"):
        choose_unroll(2, "dots", 12, mesh_of("cpu"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_remat_saves_memory(tiny_config):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = dataclasses.replace(tiny_config, num_hidden_layers=8, **rates)
    needed = [temporary_bytes(model, policy) for policy in REMAT_POLICIES]
    assert needed == sorted(needed, reverse=True)  # from "none" to "full"
    assert needed[-1] < 0.5 * needed[0]


def temporary_bytes(model: BertConfig, remat: Any) -> int:
    """What a step of a small model on one device needs besides its arguments."""
    phase = Phase(num_steps=10, max_length=model.max_position_embeddings, batch_size=32)
    config = PretrainConfig(
        model=model,
        head="pretraining",
        phases=(phase,),
        optimizer=OptimizerConfig(warmup_steps=1),
        remat=remat,
        unroll=1,
    )
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    program = PretrainingProgram(config, mesh)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    lowered = program.train_step(phase.accumulation_steps).lower(
        program.state_shapes, batch_shapes(config, phase, program.rows), seed, None
    )
    return lowered.compile().memory_analysis().temp_size_in_bytes


def test_parameters_are_drawn_alike_however_many_layers_are_written_out(tiny_config):
    looped, written = (
        init_params(BertForPreTraining(tiny_config, unroll=unroll), 3) for unroll in (1, 2)
    )
    jax.tree.map(np.testing.assert_array_equal, looped, written)
