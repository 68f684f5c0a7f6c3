"""Plans: the compiler's own memory and verdict, advice that compiles, and what they refuse."""

import dataclasses
import importlib.util
import json
import re
import sys

import pytest

from bertjax import plan
from bertjax.config import MeshConfig, OptimizerConfig, Phase, PretrainConfig
from bertjax.devices import sharding
from bertjax.model import BertConfig
from bertjax.planning.hardware import CHIPS, get_topology, known_slices
from bertjax.train.pretraining import PretrainingJob
from bertjax.train.program import PretrainingProgram, batch_shapes

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
# Compiles fast; many rows fill a chip.
SMALL = PretrainConfig(
    model=BertConfig(
        vocab_size=4096,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=1024,
    ),
    phases=(Phase(num_steps=100_000, max_length=128, batch_size=32),),
    dtype="bfloat16",
)


def test_shapes_of_a_plan_are_those_of_real_batches(prepared, tiny_config, tmp_path):
    config = PretrainConfig(
        data=str(prepared),
        workdir=str(tmp_path / "run"),
        model=tiny_config,
        phases=(Phase(num_steps=2, max_length=16, batch_size=16, accumulation_steps=2),),
        optimizer=OptimizerConfig(warmup_steps=0),
    )
    run = PretrainingJob(config)
    real = next(run.batches(0, 0))
    shapes = batch_shapes(run.config, run.config.phases[0], run.program.rows)
    assert {k: (v.shape, v.dtype, v.sharding) for k, v in real.items()} == {
        k: (v.shape, v.dtype, v.sharding) for k, v in shapes.items()
    }


@pytest.mark.parametrize("name", ["h999:8", "v9:4x4", "v3", "v3:4y4", "v5:4x4"])
def test_an_unknown_topology_is_refused_with_those_that_are_known(name):
    with pytest.raises(ValueError, match=r"Unknown topology.*Did you mean.*v3:4x4"):
        get_topology(name)


def test_without_the_compiler_for_tpus_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(ImportError, match=r"pip install 'bertjax\[tpu\]'"):
        get_topology("v3:4x4")


def test_a_config_without_phases_and_flags_without_a_slice_are_refused(capsys):
    with pytest.raises(ValueError, match="no phases: give --config"):
        plan.run(PretrainConfig(), plan.PlanFlags(topology="v3:4x4"))
    with pytest.raises(SystemExit, match="2"):
        plan.parse(["--config", "configs/pretrain/bert_base.py"])
    assert "give --topology" in capsys.readouterr().err


def test_several_nodes_without_gpus_are_refused():
    config, flags = plan.parse(
        ["--config", "configs/pretrain/bert_base.py", "--topology", "v3:4x4", "--num_nodes", "2"]
    )
    with pytest.raises(ValueError, match=r"num_nodes=2 counts nodes of GPUs, but v3:4x4 has none"):
        plan.run(config, flags)


@needs_libtpu
@pytest.mark.slow
def test_slices_have_the_devices_that_their_names_say():
    for name in known_slices():
        if len(name.split("x")) == 2 and name.startswith(("v2", "v3")) and "32" in name:
            continue  # a thousand chips, no more to learn
        topology = get_topology(name)
        chip = CHIPS[name.partition(":")[0]]
        assert topology.num_chips * chip.devices == len(topology.devices)
    with pytest.raises(ValueError, match="no TPU slice 'v5e:3x3'.*v5e:4x4"):
        get_topology("v5e:3x3")


@needs_libtpu
@pytest.mark.slow
def test_the_papers_base_run_compiles_for_its_sixteen_chips_and_donates_its_state(tmp_path):
    file = tmp_path / "plan.json"
    flags = ["--config", "configs/pretrain/bert_base.py", "--topology", "v3:4x4"]
    config, asked = plan.parse([*flags, "--json", str(file)])
    config = dataclasses.replace(config, phases=config.phases[:1])
    (found,) = plan.run(config, asked)
    assert found.fits and (found.chips, found.devices) == (16, 32)
    parameters = 4 * 110_106_428
    # Parameters and two moments, and nothing of them twice.
    assert found.memory["arguments"] == pytest.approx(3 * parameters, rel=0.01)
    assert found.memory["aliased"] == pytest.approx(found.memory["outputs"], rel=0.01)
    assert found.memory["peak"] < found.memory["available"] == CHIPS["v3"].hbm_gib / 2 * 2**30
    # Gradients cross the slice once a step.
    assert [c.kind for c in found.collectives] == ["all-reduce"]
    assert found.collectives[0].payload == pytest.approx(parameters, rel=0.01)
    (written,) = json.loads(file.read_text())
    assert written["flops"] == found.flops
    assert written["collectives"][0]["group"] == 32


@needs_libtpu
@pytest.mark.slow
def test_what_does_not_fit_says_by_how_much_and_its_advice_compiles(capsys, tmp_path):
    config = dataclasses.replace(
        SMALL, phases=(dataclasses.replace(SMALL.phases[0], batch_size=16_384),)
    )
    (found,) = plan.run(config, plan.PlanFlags(topology="v5e:2x2"))
    assert not found.fits and found.memory["peak"] > found.memory["available"]
    assert re.search(
        r"does not fit: [\d.]+ GB per device, [\d.]+ GB more than", capsys.readouterr()[0]
    )
    assert found.advice
    flags = found.advice[0].split(":")[0].split()
    file = tmp_path / "config.py"
    file.write_text(
        "from bertjax.config import *\nfrom bertjax.model import BertConfig\n"
        f"from bertjax.config.model import *\nconfig = {config!r}\n"
    )
    (again,) = plan.run(*plan.parse(["--config", str(file), "--topology", "v5e:2x2", *flags]))
    assert again.fits


@needs_libtpu
@pytest.mark.slow
def test_fsdp_splits_what_a_device_keeps():
    (whole,) = plan.run(SMALL, plan.PlanFlags(topology="v5e:2x2", advice=False))
    split = dataclasses.replace(SMALL, mesh=MeshConfig(data=1, fsdp=4))
    (found,) = plan.run(split, plan.PlanFlags(topology="v5e:2x2", advice=False))
    assert found.memory["arguments"] < 0.3 * whole.memory["arguments"]
    assert {c.kind for c in found.collectives} >= {"all-gather"}


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("mesh", [MeshConfig(), MeshConfig(fsdp=2, tensor=2)])
def test_the_fused_attention_compiles_and_needs_less_memory(mesh):
    """Also where its arrays are split over a mesh, which the kernel itself cannot be."""
    model = dataclasses.replace(SMALL.model, attention_probs_dropout_prob=0.0)
    phase = dataclasses.replace(SMALL.phases[0], max_length=512, batch_size=64)
    # By default, the probabilities are not stored either.
    config = dataclasses.replace(SMALL, model=model, phases=(phase,), mesh=mesh, remat="none")
    flags = plan.PlanFlags(topology="v5e:2x2", advice=False)
    (fused,) = plan.run(config, flags)
    (plain,) = plan.run(dataclasses.replace(config, attention="xla"), flags)
    assert (fused.attention, plain.attention) == ("splash", "xla")
    assert fused.memory["temporaries"] < 0.8 * plain.memory["temporaries"]


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        ("v5e:2x2", MeshConfig(fsdp=2, tensor=2)),
        pytest.param("v6e:2x2", MeshConfig(), marks=pytest.mark.exhaustive),
        pytest.param("v4:2x2x1", MeshConfig(), marks=pytest.mark.exhaustive),
    ],
)
def test_flash_attention_with_dropout_compiles_for_tpus(topology, mesh):
    """Its memory depends on the number of tokens, not on the length of the rows."""
    temporaries = []
    for length in (1024, 8192):
        model = dataclasses.replace(SMALL.model, max_position_embeddings=length)
        rows = 8 * 8192 // length
        phase = dataclasses.replace(SMALL.phases[0], max_length=length, batch_size=rows)
        config = dataclasses.replace(SMALL, model=model, phases=(phase,), mesh=mesh)
        (found,) = plan.run(config, plan.PlanFlags(topology=topology, advice=False))
        assert found.attention == "flash"
        temporaries.append(found.memory["temporaries"])
    assert temporaries[1] < 1.3 * temporaries[0]


def test_a_program_for_a_mesh_that_does_not_divide_is_refused():
    mesh = sharding.make_mesh(MeshConfig(data=1, tensor=8))
    with pytest.raises(ValueError, match=r"do not divide over the mesh.*tensor=8"):
        PretrainingProgram(dataclasses.replace(SMALL, head="pretraining"), mesh)
