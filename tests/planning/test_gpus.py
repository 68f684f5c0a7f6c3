"""GPUs: their names, what they are compiled with, and plans for them."""

import dataclasses
import importlib.util

import pytest

from bertjax import plan
from bertjax.config import Phase, PretrainConfig
from bertjax.devices.flops import PEAK_TFLOPS
from bertjax.model import BertConfig, named_config
from bertjax.planning import hardware
from bertjax.planning.hardware import EXAMPLES, FRACTION_VARIABLE, GPUS, get_topology, gpu_nodes

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="no compiler for GPUs"
)
SMALL = PretrainConfig(
    model=BertConfig(
        vocab_size=4096,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=1024,
    ),
    phases=(Phase(num_steps=100_000, max_length=128, batch_size=64),),
    dtype="bfloat16",
)


@pytest.mark.parametrize("name", ["h200", "h200:", "h200:0", "h200:17", "h200:2x2"])
def test_a_node_that_does_not_exist_is_refused_with_the_form(name):
    with pytest.raises(ValueError, match=r"h200:NUMBER, with 1 to 16 GPUs per node"):
        get_topology(name)
    with pytest.raises(ValueError, match=r"num_nodes=0: it must be at least 1"):
        gpu_nodes("h200:8", 0)


def test_without_the_compiler_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(hardware, "_assembler", lambda: None)
    hardware._prepare_compiler.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'bertjax\[gpu-plan\]'"):
        get_topology("h200:8")


def test_every_gpu_has_a_peak_and_an_example():
    assert {name.partition(":")[0] for name in EXAMPLES} == GPUS.keys()
    assert {gpu.kind for gpu in GPUS.values()} <= PEAK_TFLOPS.keys()
    assert {gpu.capability for gpu in GPUS.values()} <= hardware._LIMITS.keys()


@pytest.mark.parametrize(("value", "fraction"), [(None, 0.75), ("", 0.75), (".9", 0.9)])
def test_the_memory_is_the_share_that_jax_reserves(monkeypatch, value, fraction):
    monkeypatch.delenv(FRACTION_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(FRACTION_VARIABLE, value)
    assert hardware._memory_fraction() == fraction


@pytest.mark.parametrize("value", ["much", "0", "1.5", "-1"])
def test_a_share_that_is_no_fraction_is_named(monkeypatch, value):
    monkeypatch.setenv(FRACTION_VARIABLE, value)
    with pytest.raises(ValueError, match=rf"{FRACTION_VARIABLE}='{value}': it must be a number"):
        hardware._memory_fraction()


@needs_compiler
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_step_compiles_for_every_gpu(name):
    (found,) = plan.run(SMALL, plan.PlanFlags(topology=name, advice=False))
    count = int(name.partition(":")[2])
    assert found.fits and (found.devices, found.chips) == (count, count)
    assert found.memory["aliased"] == pytest.approx(found.memory["outputs"], rel=0.01)
    assert [c.kind for c in found.collectives] == ([] if count == 1 else ["all-reduce"])


@needs_compiler
@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_nodes_have_the_bandwidth_of_their_network():
    one, two = (gpu_nodes("a100:8", nodes) for nodes in (1, 2))
    assert (len(one.devices), len(two.devices), two.name) == (8, 16, "2 x a100:8")
    assert (one.link_bytes_per_s, two.link_bytes_per_s) == (300e9, 200e9)


@needs_compiler
@pytest.mark.slow
@pytest.mark.exhaustive
def test_what_does_not_fit_on_a_gpu_has_advice_that_fits(capsys):
    phase = dataclasses.replace(SMALL.phases[0], batch_size=65_536)
    config = dataclasses.replace(SMALL, phases=(phase,))
    (found,) = plan.run(config, plan.PlanFlags(topology="rtx4090:1"))
    assert not found.fits and found.memory["peak"] > found.memory["available"]
    assert "does not fit" in capsys.readouterr()[0] and found.advice
    flag, value = found.advice[-1].split(":")[0].split()
    assert flag == "--phases.0.batch_size"
    smaller = dataclasses.replace(phase, batch_size=int(value))
    again = dataclasses.replace(SMALL, phases=(smaller,))
    (fitting,) = plan.run(again, plan.PlanFlags(topology="rtx4090:1", advice=False))
    assert fitting.fits


@needs_compiler
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["h200:1", "a100:2", "rtx4090:1"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_flash_attention_with_dropout_compiles_and_its_memory_is_that_of_the_tokens(name, dtype):
    temporaries = []
    for length in (1024, 8192):
        model = dataclasses.replace(SMALL.model, max_position_embeddings=length)
        rows = 4 * 8192 // length
        phase = dataclasses.replace(SMALL.phases[0], max_length=length, batch_size=rows)
        config = dataclasses.replace(SMALL, model=model, phases=(phase,), dtype=dtype)
        (found,) = plan.run(config, plan.PlanFlags(topology=name, advice=False))
        assert found.attention == "flash"
        assert found.traffic["flash attention"] > 0
        temporaries.append(found.memory["temporaries"])
    assert temporaries[1] < 1.3 * temporaries[0]


LOCAL = dataclasses.replace(
    SMALL,
    model=named_config(
        "modernbert-base",
        vocab_size=4096,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        pad_token_id=0,
        attention_probs_dropout_prob=0.1,
    ),
    phases=(Phase(num_steps=100_000, max_length=8192, batch_size=4),),
)


@needs_compiler
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["h200:1", "a100:2", "rtx4090:1"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_local_attention_compiles_and_stores_no_more_than_global_attention(name, dtype):
    everywhere = dataclasses.replace(LOCAL.model, global_attn_every_n_layers=1)
    local, whole = (
        plan.run(
            dataclasses.replace(LOCAL, model=model, dtype=dtype),
            plan.PlanFlags(topology=name, advice=False),
        )[0]
        for model in (LOCAL.model, everywhere)
    )
    assert (local.attention, whole.attention) == ("flash", "flash")
    assert local.traffic.get("attention softmax and dropout", 0) < 1e6
    assert local.memory["temporaries"] < 1.05 * whole.memory["temporaries"]
