"""Checkpoints hold trained and fixed parameters in one tree, and states of old versions restore."""

import json
from typing import Any

import flax.struct
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bertjax.config import Phase, RtdConfig
from bertjax.config.model import TaggerConfig
from bertjax.devices import sharding
from bertjax.model import HEADS, FeatureTagger
from bertjax.model.recipe import flattened
from bertjax.tasks import finetune_config
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.program import Program
from bertjax.train.recipes import make_recipe
from tests.cases import others_weekly
from tests.rows import RATE


@flax.struct.dataclass
class OldState:
    """A state whose parameters were one tree, fixed ones included."""

    step: Any
    params: Any
    opt_state: Any
    history: Any


LAYERS = "bert/encoder/layers"
QUERY = f"{LAYERS}/attention/query"
WORDS = "bert/embeddings/word_embeddings/embedding"
FREEZE_ALL = {"freeze_embeddings": True, "freeze_layers": 2}
# {name: (settings of a tagging, paths that a checkpoint of it holds)}
TAGGINGS = {
    "lora": (
        {"lora": {"rank": 2}, "average_decay": 0.9},
        {f"frozen/{QUERY}/kernel", f"{QUERY}/lora_a", f"{QUERY}/lora_b", "classifier/kernel"},
    ),
    "frozen layers": (
        {"freeze_embeddings": True, "freeze_layers": 1},
        {f"frozen/{WORDS}", f"frozen/{QUERY}/kernel", f"{QUERY}/kernel", "classifier/kernel"},
    ),
    "frozen encoder": (FREEZE_ALL, {f"frozen/{QUERY}/kernel", "classifier/kernel"}),
    "tagger": ({"tagger": {"layers": (-1,)}}, {f"{QUERY}/kernel", "lstm/l0/input/kernel"}),
    "nothing frozen": ({}, {f"{QUERY}/kernel", "classifier/kernel"}),
}


def program_of(model, kind, **settings):
    config = finetune_config(task="tag", init="m", optimizer=RATE, unroll=1, **settings)
    phase = Phase(num_steps=9, max_length=16, batch_size=8)
    return Program(
        config,
        model,
        model.objective(kind),
        (phase,),
        sharding.make_mesh(config.mesh, jax.devices()[:1]),
        recipe=make_recipe(config, model),
        average_decay=config.average_decay,
    )


def assert_restored(program, paths, directory):
    """A checkpoint of an old version, with the parameters at `paths`, gives the state."""
    state = program.new_state()
    old = OldState(state.step, state.params | state.fixed, state.opt_state, state.history)
    assert flattened(old.params).keys() >= paths
    with ocp.CheckpointManager(directory) as manager:
        items = {"state": ocp.args.StandardSave(old), "progress": ocp.args.JsonSave({"batch": 7})}
        manager.save(7, args=ocp.args.Composite(**items))
    with Checkpointer(directory) as checkpoints:
        restored, progress = checkpoints.restore(program.state_shapes)
        assert progress == {"batch": 7}
        assert jax.tree.structure(restored) == jax.tree.structure(state)
        jax.tree.map(np.testing.assert_array_equal, restored, state)
        checkpoints.save(8, state, {})
    # What is written now has the same names.
    old_names, names = (
        json.loads((directory / step / "state/_METADATA").read_text())["tree_metadata"].keys()
        for step in ("7", "8")
    )
    assert names == old_names


@pytest.mark.slow
@pytest.mark.parametrize("name", others_weekly(TAGGINGS, "lora"))
def test_states_of_fine_tuning_are_restored(name, tiny_config, tmp_path):
    settings, paths = TAGGINGS[name]
    model: Any = HEADS["token_classification"](tiny_config, num_labels=3)
    if name == "tagger":
        tagger = TaggerConfig(layers=(-1,), kind="bilstm", size=4)
        model = FeatureTagger(tiny_config, num_labels=3, tagger=tagger)
    assert_restored(program_of(model, "tokens", **settings), paths, tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("sharing", others_weekly(("none", "es", "gdes"), "gdes"))
def test_states_of_two_encoders_are_restored(sharing, tiny_family, tmp_path):
    model: Any = HEADS["rtd"](tiny_family("electra", num_hidden_layers=1))
    rtd = RtdConfig(hidden_size=16, num_attention_heads=2, sharing=sharing)
    paths = {WORDS, f"generator/{QUERY}/kernel"}
    if sharing != "es":
        paths.add(f"generator/{WORDS}")
    program = program_of(model.with_generator(rtd), "pretraining")
    assert (f"generator/{WORDS}" in flattened(program.state_shapes.params)) == (sharing != "es")
    assert_restored(program, paths, tmp_path)
