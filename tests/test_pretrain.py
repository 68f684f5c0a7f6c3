"""Pretraining from prepared data to a model directory: resumed runs, refused runs."""

import dataclasses
import json
import os
import re
import shutil
import types
from pathlib import Path

import grain
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax import prepare, pretrain
from bertjax.base.checksums import steps_in
from bertjax.config import OptimizerConfig, Phase, PrepareConfig, PretrainConfig
from bertjax.data.metadata import shard_paths, unigram_entropy
from bertjax.data.records import decode_row
from bertjax.inference.masks import fill_mask
from bertjax.tokenization import load_tokenizer, train_bpe, train_wordpiece
from bertjax.train import program, run
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.pretraining import PretrainingJob, make_job
from bertjax.train.program import make_masking
from bertjax.weights import load_model
from tests.conftest import prepare_config
from tests.lines import metrics_of
from tests.steps import after_each_step, run_until


def _leaves(tree):
    return jax.tree.leaves(jax.device_get(tree))


@pytest.fixture(scope="session")
def config(prepared, one_layer_config, tokenizer) -> PretrainConfig:
    """Two phases over more than an epoch each; dropout, accumulation, batch-size warm-up."""
    return PretrainConfig(
        data=str(prepared),
        model=dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size),
        phases=(
            Phase(
                num_steps=12,
                max_length=16,
                batch_size=48,
                warmup_batch_sizes=(32,),
                batch_size_warmup_steps=5,
            ),
            Phase(num_steps=8, max_length=32, batch_size=32, accumulation_steps=2),
        ),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
        unroll=1,
        log_every=5,
        eval_every=6,
        eval_rows=40,
        save_every=4,
        keep_checkpoints=2,
        peak_tflops=0.1,
    )


def last_state(config, workdir):
    run = make_job(dataclasses.replace(config, workdir=str(workdir)))
    checkpointer = Checkpointer(workdir / "checkpoints")
    state, progress = checkpointer.restore(run.program.state_shapes)
    checkpointer.close()
    assert progress.pop("run_id") == run.workdir.read()["run_id"]
    return state, progress


@pytest.fixture(scope="session")
def whole(config, tmp_path_factory):
    """The workdir of a run without interruption."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    pretrain.run(dataclasses.replace(config, workdir=str(workdir)))
    return workdir


def check_equal(config, workdir, whole):
    """Metrics, state and place in the data are those of the uninterrupted run."""
    assert metrics_of(workdir) == metrics_of(whole)
    (found, place), (expected, expected_place) = (last_state(config, w) for w in (workdir, whole))
    assert place == expected_place
    for a, b in zip(_leaves(found), _leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


# 7 and 17 are neither lines of metrics nor checkpoints; the batch size changes after 5; the first
# phase ends at 12, after more than an epoch; 16 and 17 are in the second phase.
@pytest.mark.slow
@pytest.mark.parametrize(
    "stop_after", [7, *(pytest.param(i, marks=pytest.mark.exhaustive) for i in (1, 5, 12, 16, 17))]
)
def test_resume_equals_an_uninterrupted_run(config, whole, tmp_path, monkeypatch, stop_after):
    here = dataclasses.replace(config, workdir=str(tmp_path / "run"))
    run_until(stop_after, lambda: pretrain.run(here), monkeypatch)
    assert last_state(config, tmp_path / "run")[0].step == stop_after
    pretrain.run(here)
    check_equal(config, tmp_path / "run", whole)


def test_a_run_without_its_last_checkpoint_goes_on_from_the_one_before(config, whole, tmp_path):
    """As after a kill: metrics of later steps are there, and are cut and written anew."""
    workdir = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(workdir / "model")
    before, last = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())[-2:]
    shutil.rmtree(workdir / "checkpoints" / str(last))
    assert last_state(config, workdir)[0].step == before < last == 20
    pretrain.run(dataclasses.replace(config, workdir=str(workdir)))
    check_equal(config, workdir, whole)
    model = (workdir / "model" / "model.safetensors").read_bytes()
    assert model == (whole / "model" / "model.safetensors").read_bytes()


def test_the_batches_of_a_warm_up_read_every_row_once_and_in_order(config, tmp_path):
    stages = {"warmup_batch_sizes": (16, 32), "batch_size_warmup_steps": 4}
    phase = dataclasses.replace(config.phases[0], **stages)
    config = dataclasses.replace(config, phases=(phase, *config.phases[1:]))
    run = make_job(dataclasses.replace(config, workdir=str(tmp_path)))
    assert [(s.num_steps, s.batch_size) for s in phase.stages] == [(2, 16), (2, 32), (8, 48)]
    read = [np.asarray(next(run.batches(0, n))["input_ids"]) for n in range(6)]
    assert [len(batch) for batch in read] == [16, 16, 32, 32, 48, 48]
    constant = dataclasses.replace(phase, warmup_batch_sizes=(), batch_size_warmup_steps=0)
    run.config = dataclasses.replace(run.config, phases=(constant, *config.phases[1:]))
    expected = [np.asarray(next(run.batches(0, n))["input_ids"]) for n in range(4)]
    np.testing.assert_array_equal(np.concatenate(read), np.concatenate(expected))
    # Batches beyond the last step, which rollbacks need, go on with the last size.
    run.config = dataclasses.replace(run.config, phases=config.phases)
    assert run.rows_of_batch(0, 13) == (96 + 9 * 48, 96 + 10 * 48 - 1)
    assert run.progress(0, 12) == {"phase": 0, "row": phase.num_rows} == {"phase": 0, "row": 480}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_kill_between_checkpoints_repeats_from_the_last_one(config, whole, tmp_path, monkeypatch):
    def kill(step):
        if step == 11:
            raise MemoryError("killed")

    here = dataclasses.replace(config, workdir=str(tmp_path / "run"))
    with monkeypatch.context() as patch:
        after_each_step(patch, kill)
        with pytest.raises(MemoryError):
            pretrain.run(here)
    assert last_state(config, tmp_path / "run")[0].step == 8
    pretrain.run(here)
    assert metrics_of(tmp_path / "run") == metrics_of(whole)


def test_a_run_learns_and_says_so(config, whole, tokenizer):
    lines = metrics_of(whole)
    losses = [line["train/mlm_loss"] for line in lines if "train/mlm_loss" in line]
    assert losses[-1] < losses[0] - 0.5
    evaluations = [line for line in lines if "eval/mlm_loss" in line]
    assert [line["step"] for line in evaluations] == [6, 12, 18, 20]
    entropies = [line["eval/unigram_entropy"] for line in evaluations]
    expected = []
    for phase in config.phases:  # all held-out rows are evaluated, for they are fewer than 40
        records = grain.sources.ArrayRecordDataSource(
            shard_paths(config.data, "eval", phase.max_length)
        )
        ids = np.concatenate([decode_row(record).input_ids for record in records])
        special = [tokenizer.cls_token_id, tokenizer.sep_token_id]
        expected += [unigram_entropy(np.bincount(ids[~np.isin(ids, special)]))] * 2
    assert entropies == pytest.approx(expected, abs=1e-9)


def test_a_finished_run_has_nothing_left_to_do_and_keeps_its_report(config, whole, capsys):
    before, names = metrics_of(whole), ("report.html", "processes.jsonl", "goodput.jsonl")
    files = [(whole / name).read_bytes() for name in names]
    pretrain.run(dataclasses.replace(config, workdir=str(whole)))
    assert metrics_of(whole) == before
    assert [(whole / name).read_bytes() for name in names] == files
    said = capsys.readouterr().out
    assert f"The run in {whole} is finished (step 20 of 20): nothing is left to train" in said
    assert "choose another --workdir" in said and "resuming" not in said


def test_the_model_directory_holds_the_last_parameters(config, whole):
    params = last_state(config, whole)[0].params
    for a, b in zip(_leaves(load_model(whole).params), _leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_model_keeps_how_many_positions_were_trained(whole, started, tmp_path):
    for place in (whole, whole / "model"):
        config = load_model(place).config
        assert (config.trained_positions, config.max_length) == (32, 64)
    shutil.copytree(started.workdir, tmp_path / "run")  # --init had trained 32, this run 16 so far
    pretrain.export(str(tmp_path / "run"))
    stored = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert stored["trained_positions"] == 32


def test_the_model_card_has_the_facts_of_the_training(whole):
    card = (whole / "model" / "README.md").read_text()
    last = [line for line in metrics_of(whole) if "eval/mlm_loss" in line][-1]
    assert card.startswith("---\nlibrary_name: transformers\n")
    for fact in (
        "| steps done | 20 |",
        "12 steps of 48 rows (32 in the first 5 steps) of 16 tokens; "
        "8 steps of 32 rows of 32 tokens",
        "google, peak 0.01",
        f"| held-out MLM loss (nats) | {last['eval/mlm_loss']:.3f} |",
    ):
        assert fact in card


def test_fill_mask_gives_the_best_words_first(whole, sentences):
    masked = sentences[0].rsplit(" ", 1)[0] + " [MASK] [MASK]"
    answers = fill_mask(load_model(whole), masked, top_k=4)
    assert len(answers) == 2
    for words in answers:
        probabilities = [p for _, p in words]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ngrams_ordinary_words_and_lamb_train(config, tmp_path):
    new = dataclasses.replace(
        config,
        workdir=str(tmp_path / "run"),
        phases=(Phase(num_steps=30, max_length=16, batch_size=48),),
        optimizer=OptimizerConfig(
            recipe="lamb", learning_rate=1e-2, warmup_steps=3, decay_power=0.5
        ),
        max_ngram=3,
        random_words="ordinary",
    )
    masking = make_masking(new, new.phases[0], load_tokenizer(new.data))
    assert masking.max_ngram == 3 and masking.word_starts is not None
    assert masking.never_drawn == (0, 1, 2, 3, 4)
    pretrain.run(new)
    losses = [x["eval/mlm_loss"] for x in metrics_of(tmp_path / "run") if "eval/mlm_loss" in x]
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_model_learns_to_predict_the_next_token(config, tmp_path):
    # The rate of the other runs is too high for 200 steps: what becomes of them is luck.
    new = dataclasses.replace(
        config,
        workdir=str(tmp_path / "run"),
        model=dataclasses.replace(
            config.model,
            is_decoder=True,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=3e-3),
        phases=(Phase(num_steps=200, max_length=16, batch_size=48),),
        predict="next_token",
        eval_every=50,
        save_every=200,
    )
    masking = make_masking(new, new.phases[0], load_tokenizer(new.data))
    assert (masking.predict, masking.max_predictions) == ("next_token", 16)
    pretrain.run(new)
    found = [line for line in metrics_of(tmp_path / "run") if "eval/mlm_loss" in line]
    # Better than the frequencies of the words: it uses those before.
    assert found[-1]["eval/mlm_loss"] < found[-1]["eval/unigram_entropy"] - 0.8


@pytest.fixture(scope="module")
def started(config, whole, tmp_path_factory):
    """The config of a run from the model of another, which is gone; it stopped after 5 steps."""
    folder = tmp_path_factory.mktemp("started")
    shutil.copytree(whole / "model", folder / "model")
    start = dataclasses.replace(config, init=str(folder / "model"), workdir=str(folder / "run"))
    with pytest.MonkeyPatch.context() as patch:
        run_until(5, lambda: pretrain.run(start), patch)
    shutil.rmtree(folder / "model")
    return start


@pytest.mark.slow
def test_a_run_can_start_from_the_model_of_another(started, whole):
    first = next(line for line in metrics_of(Path(started.workdir)) if "train/mlm_loss" in line)
    last = metrics_of(whole)[-1]["eval/mlm_loss"]
    assert abs(first["train/mlm_loss"] - last) < 0.5
    assert first["train/learning_rate"] == metrics_of(whole)[0]["train/learning_rate"]


def test_export_writes_the_newest_checkpoint(config, started, tmp_path):
    shutil.copytree(started.workdir, tmp_path / "run")
    # What Orbax is writing at the moment, in a run that goes on, is not touched.
    under_way = tmp_path / "run" / "checkpoints" / "9.orbax-checkpoint-tmp"
    under_way.mkdir()
    pretrain.export(str(tmp_path / "run"))
    assert under_way.is_dir()
    written = load_file(tmp_path / "run" / "model" / "model.safetensors")
    params = last_state(started, tmp_path / "run")[0].params
    np.testing.assert_array_equal(written["cls.predictions.bias"], params["predictions"]["bias"])


def claim(config) -> PretrainingJob:
    job = make_job(config)
    run.claim(job, job.workdir)
    return job


def test_a_checkpoint_of_another_run_is_neither_resumed_from_nor_exported(config, whole, tmp_path):
    """Also not of a run with the same config, and not if it is older than the run's own."""
    here = dataclasses.replace(config, workdir=str(tmp_path / "run"))
    claim(here).workdir.release()
    newest = max(steps_in(whole / "checkpoints"))
    shutil.copytree(whole / "checkpoints" / f"{newest}", tmp_path / f"run/checkpoints/{newest}")
    before = (tmp_path / "run" / "run.json").read_bytes()
    for use in (lambda: pretrain.run(here), lambda: pretrain.export(str(tmp_path / "run"))):
        with pytest.raises(ValueError, match=f"of steps {newest} in .* are of another run"):
            use()
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    shutil.copytree(whole, tmp_path / "copy")  # the whole workdir is the run itself
    claim(dataclasses.replace(config, workdir=str(tmp_path / "copy"))).workdir.release()
    pretrain.export(str(tmp_path / "copy"))


def test_export_without_a_run_or_a_checkpoint_leaves_nothing_behind(config, tmp_path):
    with pytest.raises(FileNotFoundError, match="No model at"):
        pretrain.export(str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    claim(dataclasses.replace(config, workdir=str(tmp_path / "run"))).workdir.release()
    with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
        pretrain.export(str(tmp_path / "run"))


def test_the_model_of_init_decides_on_the_architecture_and_on_dropout_that_is_not_given(
    config, whole, tmp_path, capsys
):
    other = dataclasses.replace(config.model, hidden_size=64, hidden_dropout_prob=0.0)
    start = dataclasses.replace(config, workdir=str(tmp_path / "run"), init=str(whole), model=other)
    own = config.model.hidden_dropout_prob
    for rate, expected in ((None, own), (0.25, 0.25), (0.0, 0.0)):
        model = make_job(dataclasses.replace(start, dropout=rate)).config.model
        rates = {model.hidden_dropout_prob, model.attention_probs_dropout_prob}
        assert (model.hidden_size, rates) == (32, {expected})
        said = capsys.readouterr().out
        assert f"--init {whole} determines the architecture: " in said
        assert "hidden_size: 64 -> 32" in said
        # The rate of the model is said only where the run has it.
        change = f"hidden_dropout_prob: 0.0 -> {own}"
        assert (change in said) == (rate is None) and said.count("dropout_prob") == (rate is None)
    match = r"dropout=0.25 has no effect without --init: set --model.hidden_dropout_prob"
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(config, dropout=0.25)


def test_flags_of_the_architecture_beside_init_are_refused_but_for_positions():
    more = ["--model.max-position-embeddings", "1024"]
    assert pretrain.parse(["--init", "m", *more])[0].model.max_position_embeddings == 1024
    with pytest.raises(ValueError, match="--model.num_hidden_layers=3 has no effect with --init m"):
        pretrain.parse(["--init", "m", "--model.num_hidden_layers=3"])
    assert pretrain.parse(["--model.num_hidden_layers=3"])[0].model.num_hidden_layers == 3


def test_a_resumed_run_does_not_need_the_model_that_it_started_from(started):
    job = claim(started)
    job.workdir.release()
    assert job.config.model.hidden_size == 32


def test_a_workdir_without_a_checkpoint_may_be_claimed_anew(config, tmp_path):
    here = dataclasses.replace(config, workdir=str(tmp_path / "run"))
    claim(here).workdir.release()
    claim(dataclasses.replace(here, seed=5)).workdir.release()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["seed"] == 5


def test_a_workdir_that_another_run_writes_is_refused(config, tmp_path):
    here = dataclasses.replace(config, workdir=str(tmp_path / "run"))
    first = claim(here)
    with pytest.raises(ValueError, match=rf"another run \(process {os.getpid()} on .*stop it"):
        claim(here)
    first.workdir.release()
    claim(here).workdir.release()


def test_a_damaged_run_json_does_not_block_the_run(config, whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("")
    pretrain.run(dataclasses.replace(config, workdir=str(tmp_path / "run")))
    assert "run.json.damaged-1" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["seed"] == config.seed


def test_a_damaged_run_is_no_model_and_says_why(whole, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints" / "20" / "state")
    before = sorted(int(path.name) for path in (run / "checkpoints").iterdir())[-2]
    assert load_model(run).source.config["step"] == before
    assert f"are damaged; step {before} is read" in capsys.readouterr().out
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path / "state", ignore_errors=True)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint yet that is whole \(state/"):
        load_model(run)


def test_the_model_of_a_run_is_read_with_the_spare_copy_of_run_json(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "run.json").write_text("{}")
    assert load_model(run).config == load_model(whole).config
    (run / ".run.json").unlink()
    with pytest.raises(ValueError, match=r"run\.json cannot be read, because it has no config"):
        load_model(run)


def test_a_damaged_shard_stops_the_run_before_its_first_step(config, prepared, tmp_path):
    data = shutil.copytree(prepared, tmp_path / "data")
    shard = next(data.glob("train-16-*.array_record"))
    content = bytearray(shard.read_bytes())
    content[320] ^= 1
    shard.write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"1 of \d+ shards of .* are missing, or their .*{shard.name}"
    ):
        make_job(dataclasses.replace(config, data=str(data), workdir="w"))


@pytest.mark.parametrize("init", [True, False])
def test_sentence_pairs_for_a_family_without_their_head_are_refused_with_what_helps(
    config, tiny_family, tokenizer, written, tmp_path, init
):
    roberta = tiny_family("roberta")
    if init:
        start = written(tmp_path / "roberta", roberta, "masked_lm", tokenizer)
        config = dataclasses.replace(config, init=str(start))
    else:
        config = dataclasses.replace(config, model=roberta)
    message = "^roberta has no head for sentence pairs in transformers.*--head masked_lm.*mlm\\.$"
    with pytest.raises(ValueError, match=message) as raised:
        make_job(dataclasses.replace(config, workdir=str(tmp_path / "run")))
    assert "sequence_classification" not in str(raised.value)


def test_sentence_pairs_for_a_model_without_a_pooler_are_refused(config, tiny_family, tmp_path):
    modernbert = tiny_family("modernbert")
    config = dataclasses.replace(config, model=modernbert, workdir=str(tmp_path / "run"))
    with pytest.raises(ValueError, match="(?s)modernbert has no head.*no pooler.*--head masked_lm"):
        make_job(config)


def test_data_whose_tokenizer_was_exchanged_is_refused(config, prepared, tmp_path, sentences):
    shutil.copytree(prepared, tmp_path / "data")
    train_wordpiece([s[::-1] for s in sentences], vocab_size=90).save(tmp_path / "data")
    with pytest.raises(ValueError, match="not the one that the rows were made with"):
        make_job(dataclasses.replace(config, data=str(tmp_path / "data"), workdir="w"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_data_without_sentence_pairs_trains_with_finite_losses(
    config, tmp_path, sentences, tokenizer
):
    (tmp_path / "text.txt").write_text("\n\n".join(sentences[:60]))
    tokenizer.save(tmp_path / "tokenizer")
    prepare.run(
        PrepareConfig(
            input=(str(tmp_path / "text.txt"),),
            tokenizer=str(tmp_path / "tokenizer"),
            output=str(tmp_path / "data"),
            max_length=(16,),
            objective="mlm",
            eval_fraction=0.2,
            num_processes=1,
        )
    )
    here = dataclasses.replace(
        config,
        data=str(tmp_path / "data"),
        workdir=str(tmp_path / "run"),
        phases=(Phase(num_steps=6, max_length=16, batch_size=48),),
    )
    pretrain.run(here)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text and "nsp" not in text and "train/loss" in text


def test_another_config_in_the_same_workdir_is_refused_by_name(config, whole):
    changed = dataclasses.replace(
        config, workdir=str(whole), optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=3)
    )
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: 0.01 -> 0.02"):
        pretrain.run(changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": ()}, "0 phases"),
        ({"data": "nowhere"}, "contains no metadata.json"),
        (
            {"phases": (Phase(num_steps=9, max_length=64, batch_size=8),)},
            r"holds rows of \[16, 32\] tokens, but the config has max_length=64",
        ),
        (
            {"phases": (Phase(num_steps=9, max_length=16, batch_size=12),)},
            "batch_size=12 does not divide over 8 devices",
        ),
    ],
)
def test_configs_that_do_not_fit_are_refused(config, tmp_path, change, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain.run(dataclasses.replace(config, workdir=str(tmp_path / "run"), **change))
    assert not (tmp_path / "run").exists()


def test_a_model_with_fewer_embeddings_than_tokens_is_refused(config, tmp_path):
    small = dataclasses.replace(config.model, vocab_size=50)
    with pytest.raises(ValueError, match="--model.vocab_size "):
        pretrain.run(dataclasses.replace(config, workdir=str(tmp_path), model=small))


@pytest.mark.parametrize("vocab_size", [0, 128, 30522])
def test_rows_that_no_token_uses_and_all_lengths_that_are_needed_are_named(
    config, tmp_path, capsys, vocab_size
):
    phases = [Phase(num_steps=9, max_length=n, batch_size=8) for n in (64, 16, 64, 32)]
    model = dataclasses.replace(config.model, vocab_size=vocab_size or config.model.vocab_size)
    changed = dataclasses.replace(
        config, workdir=str(tmp_path / "run"), model=model, phases=tuple(phases)
    )
    with pytest.raises(ValueError, match=r"\[16, 32\] tokens, .* max_length=16, 32, 64"):
        pretrain.run(changed)
    warned = "rows would only make the run slower" in capsys.readouterr().out
    assert warned == (vocab_size > 128)


def test_a_workdir_with_other_files_is_left_alone(config, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        pretrain.run(dataclasses.replace(config, workdir=str(tmp_path)))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("is_installed", [False, True])
def test_runs_say_how_many_tokens_have_no_spaces_to_tell_words(
    config, one_layer_config, tmp_path, capsys, monkeypatch, is_installed
):
    found = types.SimpleNamespace() if is_installed else None
    monkeypatch.setattr(program, "find_spec", lambda name: found)
    (tmp_path / "text.txt").write_text(
        "เราเรียนรู้แบบจำลอง abc.\n\nយើងរៀនអំពីគំរូភាសា abc.\n\nことばのモデルを abc.\n\n" * 30
    )
    tokenizer = train_bpe([(tmp_path / "text.txt").read_text()], vocab_size=350)
    tokenizer.save(tmp_path / "tokenizer")
    fields = {"objective": "mlm", "max_length": (16,), "num_processes": 1}
    prepare.run(prepare_config(tmp_path, tmp_path / "data", **fields))
    capsys.readouterr()
    new = dataclasses.replace(
        config,
        data=str(tmp_path / "data"),
        workdir=str(tmp_path / "run"),
        model=dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size),
        phases=config.phases[:1],
        whole_word_masking=True,
    )
    job = make_job(new)
    said = capsys.readouterr().out
    assert re.search(r"[5-9]\d\.\d % of the tokens are in scripts without spaces", said)
    assert ("words are those of ICU" in said) is is_installed
    assert ("pip install 'bertjax[icu]'" in said) is not is_installed
    assert (job.identity.get("word_segmenter") == "icu") is is_installed
