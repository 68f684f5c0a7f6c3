"""A student taught in pretraining: it learns, resumes bit for bit, and wrong teachers are named."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax import pretrain
from bertjax.config import DistillationConfig, OptimizerConfig, Phase, PretrainConfig
from bertjax.tokenization import train_wordpiece
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.pretraining import make_job
from bertjax.weights import load_model, save_hf
from tests.lines import metrics_of
from tests.steps import run_until


@pytest.fixture(scope="module")
def config(prepared, encoder, tiny_config, tokenizer) -> PretrainConfig:
    """One of the teacher's two layers, with dropout, learns for an epoch or two."""
    model = dataclasses.replace(tiny_config, vocab_size=tokenizer.vocab_size, num_hidden_layers=1)
    return PretrainConfig(
        data=str(prepared),
        model=model,
        distillation=DistillationConfig(teacher=str(encoder), layers=(1,)),
        phases=(Phase(num_steps=10, max_length=16, batch_size=16),),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
        unroll=1,
        log_every=3,
        eval_every=5,
        eval_rows=32,
        save_every=20,
        peak_tflops=0.1,
    )


def last_state(config, workdir):
    checkpointer = Checkpointer(workdir / "checkpoints")
    run = make_job(dataclasses.replace(config, workdir=str(workdir)))
    state, _ = checkpointer.restore(run.program.state_shapes)
    checkpointer.close()
    return state


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole") / "run"
    pretrain.run(dataclasses.replace(config, workdir=str(workdir)))
    return workdir


@pytest.mark.slow
def test_a_taught_student_comes_nearer_to_its_teacher_and_says_so(whole, config):
    lines = metrics_of(whole)
    first, last = (line for line in lines if "eval/soft_loss" in line)
    assert last["eval/soft_loss"] < first["eval/soft_loss"]
    assert last["eval/cosine_loss"] < first["eval/cosine_loss"]
    assert {"eval/mlm_loss", "eval/unigram_entropy"} <= last.keys()
    trained = [line for line in lines if "train/loss" in line]
    assert trained[-1]["train/loss"] < trained[0]["train/loss"]
    for line in trained:
        loss = sum(
            weight * line[f"train/{name}"]
            for name, weight in (("soft_loss", 5), ("mlm_loss", 2), ("cosine_loss", 1))
        )
        np.testing.assert_allclose(line["train/loss"], loss, rtol=1e-6)
    assert f"| taught by | {config.distillation.teacher} |" in (
        whole / "model/README.md"
    ).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_resumed_student_equals_an_uninterrupted_one(config, whole, tmp_path, monkeypatch):
    # The teacher may have moved meanwhile: it is known by its weights.
    moved = shutil.copytree(config.distillation.teacher, tmp_path / "moved")
    here = dataclasses.replace(config, workdir=str(tmp_path / "run"))
    run_until(4, lambda: pretrain.run(here), monkeypatch)
    there = dataclasses.replace(config.distillation, teacher=str(moved))
    pretrain.run(dataclasses.replace(here, distillation=there))
    assert metrics_of(tmp_path / "run") == metrics_of(whole)
    states = [jax.device_get(last_state(config, path)) for path in (tmp_path / "run", whole)]
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_teacher_is_in_no_checkpoint(config, whole):
    state = last_state(config, whole)
    assert state.params.keys() == {"bert", "predictions"}


@pytest.mark.slow
def test_a_run_does_not_go_on_with_another_teacher(config, whole, written, tmp_path, tokenizer):
    teacher = load_model(config.distillation.teacher).config
    other = written(tmp_path / "other", teacher, "pretraining", tokenizer, seed=7)
    changed = dataclasses.replace(config.distillation, teacher=str(other))
    with pytest.raises(ValueError, match="distillation.teacher_weights: '[0-9a-f]{64}' -> '"):
        pretrain.run(dataclasses.replace(config, workdir=str(whole), distillation=changed))


@pytest.fixture(scope="module")
def teachers(tmp_path_factory, encoder, tokenizer, sentences):
    """Models that cannot teach."""
    folder = tmp_path_factory.mktemp("teachers")
    loaded = load_model(encoder, "masked_lm")

    def save(name, params, tokenizer=tokenizer, head="masked_lm", **changes):
        config = dataclasses.replace(loaded.config, **changes)
        save_hf(folder / name, params, config, tokenizer, head=head)

    def with_rows(name, count):
        """The model with a table of so many rows, and a bias for each."""
        flat = flatten_dict(loaded.params, sep="/")
        for path in (f"bert/embeddings/{name}/embedding", "predictions/bias"):
            if name == "word_embeddings" or "embeddings" in path:
                tail = [(0, 0)] * (flat[path].ndim - 1)
                flat[path] = np.pad(flat[path], [(0, count), *tail])[:count]
        return unflatten_dict(flat, sep="/")

    foreign = train_wordpiece([s[::-1] for s in sentences], vocab_size=tokenizer.vocab_size)
    save("headless", {"bert": load_model(encoder, "encoder").params["bert"]}, head="encoder")
    save("short", with_rows("position_embeddings", 8), max_position_embeddings=8)
    wider = tokenizer.vocab_size + 8
    save("wider", with_rows("word_embeddings", wider), vocab_size=wider)
    save("foreign", loaded.params, foreign)
    return folder


@pytest.mark.parametrize(
    ("teacher", "model", "message"),
    [
        ("headless", {}, "has no predictions: the teacher must have a masked LM head"),
        ("short", {}, "max_length=16, but .* reads at most 8 tokens"),
        ("wider", {}, r"give --model.vocab_size="),
        ("foreign", {}, "prepare the data with --tokenizer .*foreign"),
        (None, {"hidden_size": 64}, r"Give --distillation.cosine=0 or --model.hidden_size=32"),
    ],
)
def test_teachers_that_do_not_fit_are_refused(config, teachers, tmp_path, teacher, model, message):
    name = str(teachers / teacher) if teacher else config.distillation.teacher
    here = dataclasses.replace(
        config,
        workdir=str(tmp_path / "run"),
        model=dataclasses.replace(config.model, **model),
        distillation=DistillationConfig(teacher=name),
    )
    with pytest.raises(ValueError, match=message):
        pretrain.run(here)
    assert not (tmp_path / "run").exists()


def test_a_start_that_does_not_fit_is_refused(config):
    here = dataclasses.replace(config, workdir="nowhere", head="pretraining")
    with pytest.raises(ValueError, match="head='pretraining' with distillation.nsp=0"):
        make_job(here)
    with pytest.raises(ValueError, match="leave out --init or --distillation.layers"):
        dataclasses.replace(config, init="somewhere")
    lessons = dataclasses.replace(config.distillation, layers=(0, 1))
    with pytest.raises(ValueError, match="name one layer of the teacher for each"):
        dataclasses.replace(config, distillation=lessons)
