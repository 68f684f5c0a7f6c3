"""Runs that start from a model with fewer words or positions than their data needs."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax import prepare, pretrain
from bertjax.config import OptimizerConfig, Phase, PrepareConfig, PretrainConfig
from bertjax.tokenization import extend, load_tokenizer, train_wordpiece
from bertjax.train.initial_model import initial_model
from bertjax.train.pretraining import make_job
from bertjax.train.run import claim
from bertjax.weights import load_model
from tests.browser import data_of
from tests.lines import metrics_of
from tests.steps import run_until


@pytest.fixture(scope="module")
def domain(tmp_path_factory, corpus, sentences, tokenizer) -> Path:
    """Text of another domain, and both domains prepared with a vocabulary that is extended by it.

    `data` has the new domain, `old` the old one, and `mixed` both.
    """
    folder = tmp_path_factory.mktemp("domain")
    own = [text.replace("a", "jb") for text in sentences]
    documents = ["\n".join(own[i : i + 10]) for i in range(0, len(own), 10)]
    (folder / "new.txt").write_text("\n\n".join(documents))
    extend(tokenizer, own, 20).tokenizer.save(folder / "tokenizer")
    new, old = str(folder / "new.txt"), str(corpus / "text.txt")
    for name, inputs in (
        ("data", (new,)),
        ("old", (old,)),
        ("mixed", (f"{new}=3", f"{old}=1")),
    ):
        prepare.run(
            PrepareConfig(
                input=inputs,
                tokenizer=str(folder / "tokenizer"),
                output=str(folder / name),
                max_length=(16, 80) if name == "data" else (16,),
                objective="mlm",
                eval_fraction=0.2,
                num_processes=1,
            )
        )
    return folder


@pytest.fixture(scope="module")
def config(domain, one_layer) -> PretrainConfig:
    return PretrainConfig(
        data=str(domain / "data"),
        eval_data=(str(domain / "old"),),
        init=str(one_layer),
        phases=(Phase(num_steps=6, max_length=16, batch_size=8),),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=1),
        unroll=1,
        log_every=2,
        eval_every=3,
        eval_rows=16,
        eval_at_start=True,
        save_every=2,
    )


@pytest.mark.slow
def test_a_run_with_new_words_resumes_as_if_uninterrupted_and_sees_both_domains(
    config, domain, tokenizer, tmp_path, monkeypatch, capsys
):
    whole, parts = (
        dataclasses.replace(config, workdir=str(tmp_path / name)) for name in ("whole", "parts")
    )
    pretrain.run(whole)
    printed = capsys.readouterr().out
    assert "20 new words start from the mean" in printed and "MLM loss (old)" in printed
    lines = metrics_of(Path(whole.workdir))
    evaluations = [line for line in lines if "eval/mlm_loss" in line]
    assert [line["step"] for line in evaluations] == [0, 3, 6]
    assert all({"eval/mlm_loss", "eval/mlm_loss_old"} <= line.keys() for line in evaluations)

    report = data_of((Path(whole.workdir) / "report.html").read_text(encoding="utf-8"))
    curves = report["runs"][0]["eval"]
    assert curves["steps"] == [0, 3, 6]
    assert all(curves["values"][f"eval/mlm_loss{name}"][0] for name in ("", "_old"))

    run_until(5, lambda: pretrain.run(parts), monkeypatch)
    pretrain.run(parts)
    assert metrics_of(Path(parts.workdir)) == lines
    one, other = (
        load_file(Path(run.workdir) / "model" / "model.safetensors") for run in (whole, parts)
    )
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    model = load_model(Path(whole.workdir) / "model", None)
    assert model.config.vocab_size == 128
    assert model.tokenizer.fingerprint == load_tokenizer(domain / "tokenizer").fingerprint


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_evaluation_before_the_first_step_is_repeated_without_a_checkpoint(config, tmp_path):
    short = dataclasses.replace(
        config,
        workdir=str(tmp_path / "run"),
        phases=(dataclasses.replace(config.phases[0], num_steps=2),),
    )
    run = make_job(short)
    claim(run, run.workdir)
    run.workdir.release()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0, "eval/mlm_loss": 9.0}\n')
    pretrain.run(short)
    evaluations = [x for x in metrics_of(tmp_path / "run") if "eval/mlm_loss" in x]
    assert [line["step"] for line in evaluations] == [0, 2]
    assert evaluations[0]["eval/mlm_loss"] != 9.0


@pytest.mark.slow
def test_a_mixture_and_other_data_have_different_names(config, domain, tmp_path):
    mixed = dataclasses.replace(
        config, data=str(domain / "mixed"), workdir=str(tmp_path / "run"), eval_at_start=False
    )
    run = make_job(mixed)
    state = run.new_state()
    found = run.evaluate(state.params, mixed.phases[0])
    names = [name for name in found if name.startswith("eval/mlm_loss")]
    assert len(names) == 4 and names[0] == "eval/mlm_loss" and names[3] == "eval/mlm_loss_old"
    # The old text is a source of the mixture, and other data.
    assert found[names[2]] == pytest.approx(found[names[3]], rel=0.2)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_of_longer_rows_than_the_model_reads_exports_their_length(config, tmp_path):
    longer = dataclasses.replace(
        config,
        workdir=str(tmp_path / "run"),
        eval_data=(),
        phases=(config.phases[0], dataclasses.replace(config.phases[0], max_length=80)),
    )
    run = make_job(longer)
    assert run.config.model.max_position_embeddings == 80
    # transformers' tokenizer truncates to this length.
    assert run.tokenizer.model_max_length == 80
    loss = run.evaluate(run.new_state().params, longer.phases[1])["eval/mlm_loss"]
    assert np.isfinite(loss)


@pytest.mark.parametrize("method", ["tile", pytest.param("interpolate", marks=pytest.mark.slow)])
def test_rows_longer_than_the_model_reads_get_positions(
    config, one_layer, prepared, tokenizer, method, capsys
):
    longer = dataclasses.replace(
        config,
        data=str(prepared),
        eval_data=(),
        new_positions=method,
        phases=(Phase(num_steps=1, max_length=100, batch_size=8),),
    )
    old = load_model(one_layer, "masked_lm").config.max_position_embeddings
    loaded = initial_model(dataclasses.replace(longer, head="masked_lm"), tokenizer)
    assert old == 64 and loaded.config.max_position_embeddings == 100
    assert f"64 -> 100 ({method[:4]}" in capsys.readouterr().out
    asked = dataclasses.replace(config.model, max_position_embeddings=600)
    more = dataclasses.replace(longer, head="masked_lm", model=asked)
    assert initial_model(more, tokenizer).config.max_position_embeddings == 600


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory, sentences, corpus) -> Path:
    """Data prepared with a vocabulary that has nothing to do with that of the model."""
    folder = tmp_path_factory.mktemp("other")
    train_wordpiece(sentences[:50], vocab_size=60).save(folder / "tokenizer")
    prepare.run(
        PrepareConfig(
            input=(str(corpus / "text.txt"),),
            tokenizer=str(folder / "tokenizer"),
            output=str(folder / "data"),
            max_length=(16,),
            objective="mlm",
            eval_fraction=0.0,
            num_processes=1,
        )
    )
    return folder


def test_data_of_another_vocabulary_is_refused_with_both_remedies(
    config, other_tokenizer, tmp_path
):
    run = dataclasses.replace(
        config, data=str(other_tokenizer / "data"), eval_data=(), workdir=str(tmp_path / "run")
    )
    with pytest.raises(ValueError, match=r"\(id \d+ was '.*' and is .*train_tokenizer --extend"):
        make_job(run)
    assert not (tmp_path / "run").exists()


def test_other_data_that_cannot_be_evaluated_is_refused(config, domain, other_tokenizer, tmp_path):
    run = dataclasses.replace(config, workdir=str(tmp_path / "run"))
    wrong = dataclasses.replace(run, eval_data=(str(other_tokenizer / "data"),))
    with pytest.raises(ValueError, match=r"another tokenizer \(60 entries\) than .*--tokenizer"):
        make_job(wrong)
    phases = (Phase(num_steps=1, max_length=16, batch_size=8),)
    without = domain / "without"
    prepare.run(
        PrepareConfig(
            input=(str(domain / "new.txt"),),
            tokenizer=str(domain / "tokenizer"),
            output=str(without),
            max_length=(16,),
            objective="mlm",
            eval_fraction=0.0,
            num_processes=1,
        )
    )
    wrong = dataclasses.replace(run, eval_data=(str(without),), phases=phases)
    with pytest.raises(ValueError, match="no held-out rows of 16 tokens: .*--eval_fraction"):
        make_job(wrong)
