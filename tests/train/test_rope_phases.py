"""Phases with their own base of rotary positions."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bertjax import load_pretrained, pretrain
from bertjax.config import MeshConfig, OptimizerConfig, Phase, PretrainConfig, model_at
from bertjax.devices import sharding
from bertjax.train.optimizer import difference_before
from bertjax.train.program import PretrainingProgram, random_rows

PHASES = (
    Phase(num_steps=4, max_length=16, batch_size=16, global_rope_theta=100.0),
    Phase(num_steps=4, max_length=32, batch_size=8),
)


@pytest.fixture(scope="module")
def config(tiny_family) -> PretrainConfig:
    return PretrainConfig(
        model=tiny_family("modernbert", global_rope_theta=5000.0, attention_output_dropout=0.1),
        phases=PHASES,
        optimizer=OptimizerConfig(recipe="stable_adamw", warmup_steps=2, schedule="trapezoidal"),
        head="masked_lm",
        mlm_probability=0.3,
        unroll=1,
        eval_every=3,
        save_every=3,
    )


def test_each_phase_trains_a_model_with_its_own_base(config):
    program = PretrainingProgram(config, sharding.make_mesh(MeshConfig()))
    first, second = (program.for_phase(phase) for phase in PHASES)
    assert first.model.config.global_rope_theta == 100.0 and second is program


@pytest.mark.slow
def test_the_loss_of_a_phase_is_that_of_its_base(config):
    program = PretrainingProgram(config, sharding.make_mesh(MeshConfig()))
    params, batch = program.new_state().params, random_rows(config, PHASES[1], 8)
    losses = [program.eval_step(p)(params, batch)["mlm_loss"][0] for p in PHASES]
    own = dataclasses.replace(
        config, model=dataclasses.replace(config.model, global_rope_theta=100.0)
    )
    step = PretrainingProgram(own, program.mesh).eval_step(PHASES[1])
    expected = step(params, batch)["mlm_loss"][0]
    assert losses[0] == expected and abs(float(losses[0] - losses[1])) > 1e-4


def test_a_model_has_the_base_of_its_last_step(config):
    phases = [dataclasses.asdict(phase) for phase in PHASES]
    bases = [model_at(config.model, phases, step).global_rope_theta for step in (0, 4, 5, 8, 9)]
    assert bases == [100.0, 100.0, 5000.0, 5000.0, 5000.0]
    assert model_at(config.model, (), 3) == config.model


def test_a_base_without_rotary_positions_or_of_finished_steps_is_refused(config):
    with pytest.raises(ValueError, match=r"phases.0.global_rope_theta=100, but the model has no"):
        PretrainConfig(phases=PHASES)
    with pytest.raises(ValueError, match="global_rope_theta=-1.0: it must be positive"):
        dataclasses.replace(PHASES[0], global_rope_theta=-1.0)
    other = (dataclasses.replace(PHASES[0], global_rope_theta=None), PHASES[1])
    assert "global_rope_theta differ" in str(difference_before(config.optimizer, PHASES, other, 3))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_changes_its_base_resumes_and_exports_that_of_its_last_step(
    config, prepared, tokenizer, tmp_path
):
    model = dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size)
    config = dataclasses.replace(config, data=str(prepared), model=model, eval_rows=16)
    whole = dataclasses.replace(config, workdir=str(tmp_path / "whole"))
    pretrain.run(whole)
    assert load_pretrained(tmp_path / "whole").config.global_rope_theta == 5000.0
    # The same run in two parts, with an end at the switch: phases may be added.
    part = dataclasses.replace(config, workdir=str(tmp_path / "part"), phases=PHASES[:1])
    pretrain.run(part)
    exported = json.loads((tmp_path / "part" / "model" / "config.json").read_text())
    assert "100.0" in json.dumps(exported)
    assert load_pretrained(tmp_path / "part").config.global_rope_theta == 100.0
    pretrain.run(dataclasses.replace(part, phases=PHASES))
    parts, expected = (load_pretrained(tmp_path / name) for name in ("part", "whole"))
    jax.tree.map(np.testing.assert_array_equal, parts.params, expected.params)
    assert parts.config == expected.config
