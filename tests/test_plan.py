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
from bertjax.model import BertConfig, named_config
from bertjax.planning import compile, hardware
from bertjax.planning.compile import Plan
from bertjax.planning.hardware import CHIPS, get_topology, known_slices
from bertjax.train.pretraining import make_job
from bertjax.train.program import PretrainingProgram, batch_shapes, with_head

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
    run = make_job(config)
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


def plan_of(phase: Phase, index: int = 0, *, seconds: float = 0.036, **fields) -> Plan:
    """A plan of a step that takes at least `seconds`, on two nodes or slices of four devices."""
    values = {
        "topology": "v5e:2x2",
        "device": "TPU v5e",
        "devices": 4,
        "chips": 4,
        "phase": index,
        "max_length": phase.max_length,
        "batch_size": phase.batch_size,
        "num_steps": phase.num_steps,
        "num_rows": phase.num_rows,
        "accumulation_steps": phase.accumulation_steps,
        "remat": "selective",
        "attention": "xla",
        "mesh": {"data": 4},
        "fits": True,
        "memory": dict.fromkeys(
            ("arguments", "temporaries", "outputs", "aliased", "peak", "available"), 1e9
        ),
        "flops": 1e12,
        "collectives": (),
        "compile_seconds": 1.0,
        "compute_seconds": seconds / 4,
        "communication_seconds": seconds / 2,
        "memory_seconds": seconds,
    }
    return Plan(**values | fields)


PHASES = (
    Phase(num_steps=100_000, max_length=128, batch_size=256),
    Phase(num_steps=50_000, max_length=512, batch_size=256),
)
H200 = {"topology": "h200:4", "device": "NVIDIA H200", "watts_per_chip": 700}


def test_a_whole_config_takes_the_hours_energy_and_price_of_its_phases():
    plans = [plan_of(PHASES[0], **H200), plan_of(PHASES[1], 1, seconds=0.072, **H200)]
    whole = plan.whole_config(plans, price=3.0)
    assert whole["steps"] == 150_000
    assert whole["tokens"] == 256 * (100_000 * 128 + 50_000 * 512)
    # 100,000 x 0.036 s and 50,000 x 0.072 s are an hour each.
    bounds = {"hours": 2.0, "chip_hours": 8.0, "kwh": 5.6, "price": 24.0}
    for name, value in bounds.items():
        assert whole[f"{name}_at_bound"] == pytest.approx(value)
        assert whole[f"{name}_at_half_of_bound"] == pytest.approx(2 * value)
    assert plan.describe_whole_config(whole) == (
        "h200:4, whole config: 150,000 steps, 9.83 billion tokens; at the lower bound of the step "
        "time and at half of that speed, without evaluations, checkpoints and start-up:\n"
        "  2 and 4 hours on 4 GPUs; 8 and 16 GPU-hours; 5.6 and 11.2 kWh at the maximum power of "
        "700 W per GPU; 24 and 48 to pay at 3.0 per GPU-hour"
    )


def test_smaller_batches_at_the_start_take_the_time_of_their_rows():
    phase = Phase(
        num_steps=100_000,
        max_length=128,
        batch_size=64,
        warmup_batch_sizes=(16, 32),
        batch_size_warmup_steps=20_000,
    )
    # 10,000 steps of a quarter of the rows, 10,000 of half of them, and 80,000 of all.
    assert plan_of(phase).hours == pytest.approx(0.875)
    whole = plan.whole_config([plan_of(phase)], price=None)
    assert whole["steps"] == 100_000
    assert whole["tokens"] == 128 * 64 * 87_500


def test_what_is_unknown_is_not_guessed():
    whole = plan.whole_config([plan_of(PHASES[0])], price=None)
    assert whole["kwh_at_bound"] is whole["price_at_half_of_bound"] is None
    text = plan.describe_whole_config(whole)
    assert "4 chip-hours; " not in text and "to pay" not in text
    assert text.endswith(
        "4 and 8 chip-hours; energy unknown, because no maximum power is published"
    )


def test_a_config_of_which_a_phase_does_not_fit_has_no_hours():
    plans = [plan_of(PHASES[0]), plan_of(PHASES[1], 1, fits=False, memory={})]
    whole = plan.whole_config(plans, price=3.0)
    assert {whole[name] for name in whole if "bound" in name} == {None}
    assert plan.describe_whole_config(whole) == (
        "v5e:2x2, whole config: 150,000 steps, 9.83 billion tokens; no hours, because phase 1 does "
        "not fit"
    )


def test_the_table_names_the_fastest_and_the_cheapest():
    one = PHASES[:1]
    wholes = [
        plan.whole_config([plan_of(p) for p in one], price=1.0),
        plan.whole_config([plan_of(p, seconds=0.018, **H200) for p in one], price=3.0),
        plan.whole_config([plan_of(p, seconds=0.001, fits=False) for p in one], price=0.1),
    ]
    table = plan.whole_config_table(wholes)
    columns = [list(column.cells) for column in table.columns]
    assert columns[2:] == [
        ["1", "0.5", ""],
        ["", "1.4", ""],
        ["4", "6", ""],
        ["cheapest", "fastest", ""],
    ]


@pytest.mark.parametrize(
    ("text", "prices"),
    [
        (None, {}),
        ("1.2", {"v5e": 1.2, "h200": 1.2}),
        ("v5e=1.2,h200=3.5", {"v5e": 1.2, "h200": 3.5}),
        ("h200=3, v5e=.5", {"v5e": 0.5, "h200": 3.0}),
    ],
)
def test_prices_are_one_number_or_one_for_each_kind_of_device(text, prices):
    flags = plan.PlanFlags(compare="v5e:4x4,h200:8,v5e:8x8", price_per_hour=text)
    assert flags.prices == prices


@pytest.mark.parametrize(
    "text",
    ["", "dear", "0", "-1", "nan", "inf", "1,2", "v5e=1", "v5e=1,2", "v5e=1,h100=2", "v5e=1,h200="],
)
def test_prices_that_leave_out_a_device_or_are_no_prices_are_refused(text):
    message = rf"price_per_hour='{text}' does not give one price above 0 to each of h200, v5e: .*"
    with pytest.raises(ValueError, match=message + "such as h200=1.2,v5e=1.2"):
        plan.PlanFlags(compare="v5e:4x4,h200:8", price_per_hour=text)


def test_every_plan_in_json_has_the_bounds_of_its_phase_and_of_the_whole_config(
    monkeypatch, tmp_path, capsys
):
    def plan_phase(config, index, topology, *, advise):
        return plan_of(config.phases[index], index, **H200 | {"topology": topology})

    monkeypatch.setattr(compile, "plan_phase", plan_phase)
    monkeypatch.setattr(hardware, "get_topology", lambda name, num_nodes: name)
    file = tmp_path / "plan.json"
    flags = plan.PlanFlags(compare="h200:4,h100:4", price_per_hour="h200=3,h100=2", json=str(file))
    plans = plan.run(PretrainConfig(model=SMALL.model, phases=PHASES), flags)
    written = json.loads(file.read_text())
    assert [(p["topology"], p["phase"]) for p in written] == [(p.topology, p.phase) for p in plans]
    assert [p["hours_at_bound"] for p in written] == pytest.approx([1.0, 0.5] * 2)
    assert [p["whole_config"]["hours_at_bound"] for p in written] == pytest.approx([1.5] * 4)
    prices = [p["whole_config"]["price_at_bound"] for p in written]
    assert prices == pytest.approx([18.0, 18.0, 12.0, 12.0])
    output = capsys.readouterr().out
    assert "h100:4, whole config: 150,000 steps" in output and "cheapest" in output


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
    assert found.memory["peak"] < found.memory["available"] == int(CHIPS["v3"].memory_gib * 2**30)
    # Gradients cross the slice once a step.
    assert [c.kind for c in found.collectives] == ["all-reduce"]
    assert found.collectives[0].payload == pytest.approx(parameters, rel=0.01)
    (written,) = json.loads(file.read_text())
    assert written["flops"] == found.flops
    assert written["collectives"][0]["group"] == 32


@needs_libtpu
@pytest.mark.slow
@pytest.mark.exhaustive
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
@pytest.mark.exhaustive
def test_fsdp_splits_what_a_device_keeps():
    (whole,) = plan.run(SMALL, plan.PlanFlags(topology="v5e:2x2", advice=False))
    split = dataclasses.replace(SMALL, mesh=MeshConfig(data=1, fsdp=4))
    (found,) = plan.run(split, plan.PlanFlags(topology="v5e:2x2", advice=False))
    assert found.memory["arguments"] < 0.3 * whole.memory["arguments"]
    assert {c.kind for c in found.collectives} >= {"all-gather"}


@needs_libtpu
@pytest.mark.slow
@pytest.mark.exhaustive
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
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        ("v5e:2x2", MeshConfig(fsdp=2, tensor=2)),
        ("v6e:2x2", MeshConfig()),
        ("v4:2x2x1", MeshConfig()),
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


@needs_libtpu
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("topology", "kernel", "mesh"),
    [
        ("v5e:2x2", "splash", MeshConfig(fsdp=2, tensor=2)),
        ("v5e:2x2", "flash", MeshConfig(fsdp=2, tensor=2)),
        ("v6e:2x2", "splash", MeshConfig()),
        ("v6e:2x2", "flash", MeshConfig()),
    ],
)
def test_local_attention_compiles_for_tpus_and_needs_less_memory(topology, kernel, mesh):
    model = named_config(
        "modernbert-base",
        vocab_size=4096,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        pad_token_id=0,
        attention_probs_dropout_prob=0.1 if kernel == "flash" else 0.0,
    )
    phase = Phase(num_steps=100_000, max_length=2048, batch_size=8)
    config = dataclasses.replace(SMALL, model=model, phases=(phase,), mesh=mesh, remat="none")
    flags = plan.PlanFlags(topology=topology, advice=False)
    (fused,) = plan.run(config, flags)
    (plain,) = plan.run(dataclasses.replace(config, attention="xla"), flags)
    assert (fused.attention, plain.attention) == (kernel, "xla")
    assert fused.memory["temporaries"] < 0.8 * plain.memory["temporaries"]


def test_a_next_sentence_head_that_nothing_would_train_is_refused():
    asked = dataclasses.replace(SMALL, head="pretraining")
    with pytest.raises(ValueError, match="--head pretraining needs rows with sentence pairs"):
        with_head(asked, has_pairs=False)
    kept = dataclasses.replace(asked, init="bert-base-uncased")  # its head is trained already
    assert with_head(kept, has_pairs=False).head == "pretraining"


def test_a_program_for_a_mesh_that_does_not_divide_is_refused():
    mesh = sharding.make_mesh(MeshConfig(data=1, tensor=8))
    with pytest.raises(ValueError, match=r"do not divide over the mesh.*tensor=8"):
        PretrainingProgram(dataclasses.replace(SMALL, head="pretraining"), mesh)
