"""Plans of runs: pure functions of a config and its facts, tested without a training."""

import builtins
import dataclasses
import json
import re
from pathlib import Path

import jax
import pytest

from bertjax import finetune, pretrain
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.planning import hardware
from bertjax.planning.compile import plan_finetuning_step
from bertjax.planning.hardware import Topology
from bertjax.tasks import finetune_config
from bertjax.train.facts import gather_finetuning, gather_pretraining
from bertjax.train.finetuning import FinetuningJob
from bertjax.train.run_plan import plan_finetuning, plan_pretraining
from bertjax.train.workdir import SavedRun, Workdir


@pytest.fixture
def config(prepared, one_layer_config, tokenizer, tmp_path) -> PretrainConfig:
    return PretrainConfig(
        data=str(prepared),
        workdir=str(tmp_path / "run"),
        model=dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size),
        phases=(
            Phase(num_steps=12, max_length=16, batch_size=48),
            Phase(num_steps=8, max_length=32, batch_size=32),
        ),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
    )


@pytest.fixture
def fine(encoder, files, tmp_path):
    return finetune_config(
        task="classify",
        init=str(encoder),
        **files["classify"],
        max_length=32,
        batch_size=8,
        workdir=str(tmp_path / "run"),
    )


def facts_of(config):
    return gather_pretraining(config, Workdir(Path(config.workdir)))


def saved(plan, step: int, **changes) -> SavedRun:
    """What a workdir holds after `step` steps of a planned run whose config had `changes`."""
    content = {
        "config": json.loads(json.dumps(plan.identity)) | changes,
        "data_fingerprint": plan.data_fingerprint,
    }
    return SavedRun("the workdir", step, content, False, "")


def fine_facts(config, folder):
    folder.mkdir(exist_ok=True)
    return gather_finetuning(config, folder, [config.workdir])


def files_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_planning_opens_prints_and_compiles_nothing(config, fine, tmp_path, monkeypatch):
    facts, read = facts_of(config), fine_facts(fine, tmp_path / "data")

    def never(*_, **__):
        pytest.fail("a plan reads only its facts")

    for name in ("open", "print"):
        monkeypatch.setattr(builtins, name, never)
    monkeypatch.setattr(jax.stages.Lowered, "compile", never)
    monkeypatch.setattr(Path, "open", never)
    assert plan_pretraining(config, facts).num_steps == 20
    assert plan_finetuning(fine, read).phases[0].batch_size == 8


def test_a_plan_says_what_the_data_and_the_model_determine(config, one_layer):
    plan = plan_pretraining(config, facts_of(config))
    assert plan.config.head == "pretraining" and plan.random_parts == ("weights",)
    assert plan.epochs[0] > 0 and plan.newest_step == 0 and not plan.refusals
    assert plan.identity["head"] == "pretraining" and plan.identity["distillation"] is None
    started = dataclasses.replace(config, init=str(one_layer), head="masked_lm", dropout=0.2)
    plan = plan_pretraining(started, facts_of(started))
    assert plan.config.model.hidden_dropout_prob == 0.2 and not plan.refusals


def test_all_that_is_refused_is_refused_at_once(config):
    wrong = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocab_size=50),
        phases=(Phase(num_steps=9, max_length=64, batch_size=8),),
        optimizer=OptimizerConfig(warmup_steps=9),
    )
    plan = plan_pretraining(wrong, facts_of(wrong))
    for flag in ("vocab_size", "max_length", "warmup_steps"):
        assert any(flag in refusal for refusal in plan.refusals), flag
    with pytest.raises(ValueError, match=r"(?s)vocab_size.*max_length"):
        _ = plan.program


def test_a_plan_knows_whether_its_workdir_holds_the_run_or_another(config):
    facts = facts_of(config)
    plan = plan_pretraining(config, facts)
    same = dataclasses.replace(facts, workdir=saved(plan, 5))
    assert plan_pretraining(config, same).newest_step == 5
    other = dataclasses.replace(facts, workdir=saved(plan, 5, seed=3))
    assert re.search("seed: 3 -> 0", *plan_pretraining(config, other).refusals)
    again = plan_pretraining(dataclasses.replace(config, overwrite=True), other)
    assert again.deletes and again.newest_step == 0 and not again.refusals
    begun = dataclasses.replace(facts, workdir=saved(plan, 0, seed=3))  # no work would be lost
    assert not plan_pretraining(config, begun).refusals
    longer = (config.phases[0], dataclasses.replace(config.phases[1], num_steps=9))
    changed = dataclasses.replace(config, phases=longer)
    assert plan_pretraining(changed, same).newest_step == 5 or plan.refusals


def test_a_plan_of_a_fine_tuning_has_its_steps_lengths_and_lines(fine, tmp_path):
    facts = fine_facts(fine, tmp_path / "data")
    plan = plan_finetuning(fine, facts)
    assert plan.num_steps == round(fine.num_epochs * plan.batches_per_epoch)
    assert plan.phases[0].max_length >= max(facts.data.sizes) and plan.epochs == (3.0,)
    assert plan.random_parts == ("classifier",)
    assert any("classifier" in line for line in plan.lines)
    assert any(line.startswith("train: ") for line in plan.lines)
    begun = dataclasses.replace(facts, workdirs={fine.workdir: saved(plan, 4)})
    resumed = plan_finetuning(fine, begun)
    assert resumed.newest_step == 4 and not any("classifier" in line for line in resumed.lines)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"class_weights": (1.0, 2.0, 3.0)}, "class_weights"),
        ({"mesh": dataclasses.replace(finetune_config(task="tag").mesh, data=3)}, "data=3"),
        ({"freeze_layers": 99}, "freeze_layers"),
        ({"max_steps": 4, "optimizer": OptimizerConfig(warmup_steps=9)}, "warmup_steps"),
    ],
)
def test_what_a_fine_tuning_refuses_stands_in_its_plan(fine, tmp_path, changes, flag):
    wrong = finetune_config(fine, **changes)
    plan = plan_finetuning(wrong, fine_facts(wrong, tmp_path / "data"))
    assert any(flag in refusal for refusal in plan.refusals)


def test_a_dry_run_prints_the_plan_and_writes_no_file(config, tmp_path, capsys):
    pretrain.dry_run(config)
    printed = capsys.readouterr().out
    for words in (
        "parameters",
        "12 steps of 48 rows of 16 tokens",
        "epochs",
        "peak 0.01, warm-up steps 3",
    ):
        assert words in printed
    assert not files_below(tmp_path)
    wrong = dataclasses.replace(config, optimizer=OptimizerConfig(warmup_steps=50))
    with pytest.raises(ValueError, match="warmup_steps"):
        pretrain.dry_run(wrong)
    assert not files_below(tmp_path)


@pytest.mark.parametrize(
    ("several", "names"),
    [
        ({}, ["run"]),
        ({"seeds": 2}, ["run/seed0", "run/seed1"]),
        ({"folds": 2}, ["run/fold1", "run/fold2", "run/all"]),
    ],
)
def test_a_dry_run_lists_all_runs(fine, tmp_path, capsys, several, names):
    options = {"dev": None} if "folds" in several else {}
    finetune.dry_run(finetune_config(fine, **several, **options))
    printed = capsys.readouterr().out.splitlines()
    assert [f"{tmp_path / name}:" for name in names] == [
        line for line in printed if line.startswith(str(tmp_path)) and line.endswith(":")
    ]
    assert not files_below(tmp_path)


@pytest.mark.slow
def test_a_dry_run_compiles_the_step_for_devices_of_another_machine(fine, monkeypatch, capsys):
    two = Topology("two:2", "cpu", jax.devices()[:2], 2, 10**10, 1e9, 1.0, 1e9, None)
    monkeypatch.setattr(hardware, "get_topology", lambda name: two)
    finetune.dry_run(fine, topology="two:2")
    printed = capsys.readouterr().out
    assert "two:2: 2 devices cpu (data=2 x fsdp=1 x tensor=1); phase 0: " in printed
    assert re.search(r"fits: 0\.\d\d of 10\.00 GB per device", printed)
    with pytest.raises(ValueError, match="topology='h200:1' has no effect without --dry_run"):
        finetune.FinetuneFlags(topology="h200:1")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_planned_step_of_a_fine_tuning_has_the_arguments_of_the_largest_batch(fine, tmp_path):
    here = jax.devices()[:1]
    one = Topology("one:1", "cpu", here, 1, 10**10, 1e9, 1.0, 1e9, None)
    facts = fine_facts(fine, tmp_path / "data")
    facts = dataclasses.replace(facts, machine=facts.machine._replace(devices=here))
    planned = plan_finetuning_step(fine, facts, one)
    job = FinetuningJob(plan_finetuning(fine, facts), facts, Workdir(tmp_path))
    row = next(job.batches(0, 0))
    largest = planned.batch_size * sum(x.nbytes // len(x) for x in row.values())
    state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(job.program.state_shapes))
    assert planned.batch_size == job.shape.row_counts[-1]
    # A few bytes are those of the seed, and of what the compiler aligns.
    assert planned.memory["arguments"] == pytest.approx(state + largest, rel=0.01)


@pytest.mark.slow
def test_a_dry_run_of_a_run_in_progress_says_where_it_resumes(config, tmp_path, capsys):
    short = dataclasses.replace(config, phases=(Phase(num_steps=4, max_length=16, batch_size=16),))
    pretrain.run(short)
    before = {path: path.stat().st_mtime_ns for path in files_below(tmp_path)}
    capsys.readouterr()
    pretrain.dry_run(short)
    assert "all 4 steps are done already" in capsys.readouterr().out
    longer = dataclasses.replace(short, phases=(*short.phases, *config.phases[1:]))
    with pytest.raises(ValueError, match="learning_rate_curve"):
        pretrain.dry_run(longer)
    with pytest.raises(ValueError, match="seed: 0 -> 1"):
        pretrain.dry_run(dataclasses.replace(short, seed=1))
    pretrain.dry_run(dataclasses.replace(short, seed=1, overwrite=True))
    assert "--overwrite" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in files_below(tmp_path)}


def test_a_run_that_replaces_another_starts_from_the_model_of_init(config, one_layer):
    """It must not take the checkpoint of the deleted run for its own."""
    start = dataclasses.replace(config, init=str(one_layer), head="masked_lm", overwrite=True)
    facts = facts_of(start)
    plan = plan_pretraining(start, facts)
    other = saved(plan, 5, seed=3)

    class Occupied(Workdir):
        def look(self):
            return other

    read = gather_pretraining(start, Occupied(Path(start.workdir)))
    again = plan_pretraining(start, read)
    assert read.initial is not None and again.deletes and again.newest_step == 0


def test_a_dry_run_belongs_to_the_command_and_not_to_the_run(fine):
    flags = ["--task=classify", "--train=a.csv", "--dry_run"]
    config, own = finetune.parse_flags(flags)
    assert own.dry_run and not hasattr(config, "dry_run")
    assert pretrain.parse(["--dry_run"])[1].dry_run
    with pytest.raises(SystemExit):
        pretrain.parse(["--dry_run", "--export"])
