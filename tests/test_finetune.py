"""Fine-tuning from files to a model directory: all kinds of tasks, resumed runs, seeds."""

import csv
import dataclasses
import json
import os
import shutil
import signal
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas
import pytest
from safetensors.numpy import load_file

import bertjax
from bertjax import finetune
from bertjax.base.signals import Interrupted
from bertjax.config import FinetuneConfig, OptimizerConfig, TaskOptions
from bertjax.devices.sharding import make_mesh
from bertjax.inference.predictor import Predictor
from bertjax.model import HEADS
from bertjax.model.heads import BertForSequenceClassification
from bertjax.record.predictions import read_scores
from bertjax.tasks import check_task, finetune_config, make_task
from bertjax.tasks.classification import ClassificationTask
from bertjax.train import experiments, facts, finetuning
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.experiments import variants
from bertjax.weights import load_model
from tests.cases import WEEKLY
from tests.lines import json_lines
from tests.steps import run_until

RATE = OptimizerConfig(
    recipe="adamw", learning_rate=3e-3, schedule="hf", warmup_steps=0, warmup_proportion=0.1
)


@pytest.fixture(scope="session")
def config(encoder, files) -> FinetuneConfig:
    """Two epochs of eight updates of classification, dropout on."""
    return finetune_config(
        task="classify",
        init=str(encoder),
        **files["classify"],
        max_length=32,
        batch_size=8,
        num_epochs=2,
        optimizer=RATE,
        unroll=1,
        log_every=2,
    )


def of_task(config, kind, given, workdir):
    task = "classify" if kind == "multi" else kind
    return finetune_config(config, task=task, workdir=str(workdir), max_length=60, **given)


# The floors are far above what a model scores that has not been trained.
@pytest.mark.parametrize(
    ("kind", "metric", "floor", "head"),
    [
        pytest.param(
            *("regress", "pearson_spearman", 0.6, "sequence_classification"),
            marks=WEEKLY,
        ),
        pytest.param(
            *("multi", "micro_f1", 0.7, "sequence_classification"),
            marks=WEEKLY,
        ),
        pytest.param(
            *("tag", "f1", 0.5, "token_classification"),
            marks=WEEKLY,
        ),
        pytest.param(
            *("choice", "accuracy", 0.8, "multiple_choice"),
            marks=WEEKLY,
        ),
        pytest.param("qa", "f1", 0.5, "question_answering", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_task_learns_and_leaves_model_and_predictions(
    config, files, tmp_path, kind, metric, floor, head
):
    config = finetune_config(config, num_epochs=4)
    scores = finetune.run(of_task(config, kind, files[kind], tmp_path / "run"))
    assert floor <= scores[""][f"dev/{metric}"] <= 1
    lines = json_lines(tmp_path / "run/predictions/dev.jsonl")
    loaded = load_model(tmp_path / "run/model", None)
    assert loaded.head == head and not loaded.absent
    task = json.loads((tmp_path / "run/model/task.json").read_text())
    assert task["max_length"] == 60
    if kind == "tag":
        assert loaded.labels == ["O", "B-X", "I-X"]
        assert all(len(x["labels"]) == len(x["probabilities"]) for x in lines)
    if kind == "qa":
        answers = json.loads((tmp_path / "run/predictions/dev_answers.json").read_text())
        assert answers == {x["id"]: x["answer"] for x in lines}
    if kind == "multi":
        problem = json.loads((tmp_path / "run/model/config.json").read_text())["problem_type"]
        assert problem == "multi_label_classification" and loaded.labels == ["a", "b", "c"]


@pytest.fixture(scope="session")
def result(config, tmp_path_factory):
    """What the function returns of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    return bertjax.finetune(finetune_config(config, workdir=str(workdir), num_epochs=6))


@pytest.fixture(scope="session")
def whole(result):
    """The workdir of an uninterrupted run."""
    return result.directory.parent


class SharperHead(BertForSequenceClassification):
    factor: float = 1.0

    def head_outputs(self, *args, **kwargs):
        outputs = super().head_outputs(*args, **kwargs)
        return outputs | {"logits": self.factor * outputs["logits"]}


@pytest.mark.slow
def test_a_saved_model_keeps_the_fields_of_its_head(config, monkeypatch, tmp_path):
    monkeypatch.setitem(HEADS, "sequence_classification", SharperHead)
    monkeypatch.setattr(ClassificationTask, "head_fields", {"factor": 3.0})
    finetune.run(finetune_config(config, workdir=str(tmp_path / "run"), num_epochs=1))
    lines = json_lines(tmp_path / "run/predictions/dev.jsonl")
    texts = [line["input"]["text"] for line in lines]
    model = bertjax.load_pretrained(tmp_path / "run/model")
    expected = [[*line["probabilities"].values()] for line in lines]
    found = [[*prediction["probabilities"].values()] for prediction in model.predict(texts)]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    short = [index for index, text in enumerate(texts) if len(text) < 30]  # the run cuts others
    logits = model([texts[index] for index in short])["logits"]
    np.testing.assert_allclose(jax.nn.softmax(logits), np.array(expected)[short], atol=1e-4)
    # A run that starts from the model and says nothing else has and keeps them, too.
    monkeypatch.setattr(ClassificationTask, "head_fields", {})
    further = {"init": str(tmp_path / "run/model"), "workdir": str(tmp_path / "further")}
    finetune.run(finetune_config(config, **further, max_steps=1))
    for folder in ("run", "further"):
        assert load_model(tmp_path / folder / "model", None).model.factor == 3.0


def test_scores_have_intervals_and_labels_that_may_be_wrong_are_listed(whole):
    content = json.loads((whole / "scores.json").read_text())
    intervals = content.pop("intervals")
    baselines = content.pop("baselines")["dev"]
    assert set(baselines) == {"majority", "bag of words"}
    (high, low) = content.pop("by_class")["dev"]
    assert (high["name"], low["name"]) == ("high", "low")
    assert high["sensitivity"] == low["specificity"] and high["auroc"] == pytest.approx(
        low["auroc"]
    )
    assert set(intervals) == set(content)
    for key, (low, high) in intervals.items():
        assert low <= content[key] <= high and low < high
    summary = json.loads((whole / "predictions/dev.summary.json").read_text())
    assert {f"dev/{key}": bounds for key, bounds in summary["intervals"].items()} == intervals
    with (whole / "label_errors.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert summary["label_errors"]["count"] == len(rows)
    golds = {line["id"]: line["gold"] for line in json_lines(whole / "predictions/dev.jsonl")}
    assert set(golds.values()) == {"high", "low"}
    assert all(row["label"] == golds[row["id"]] != row["suggested_label"] for row in rows)


def evaluations(workdir):
    return [line for line in json_lines(workdir / "metrics.jsonl") if "eval/accuracy" in line]


def test_a_task_that_can_be_learnt_is_learnt_and_the_best_checkpoint_is_kept(whole, sentences):
    found = [line["eval/accuracy"] for line in evaluations(whole)]
    scores = read_scores(whole / "scores.json")
    assert len(found) == 6
    assert scores["dev/accuracy"] == max(found) > 0.8
    predictions = json_lines(whole / "predictions/dev.jsonl")
    golds = ["low" if i % 3 else "high" for i in range(30)]
    right = [p["label"] == gold for p, gold in zip(predictions, golds, strict=True)]
    assert np.mean(right) == scores["dev/accuracy"]
    assert all(abs(sum(p["probabilities"].values()) - 1) < 1e-9 for p in predictions)


# An epoch has eight updates, after which the model is evaluated; a line of metrics is of two.
@pytest.mark.slow
@pytest.mark.parametrize(
    "stop_after",
    [*(pytest.param(i, marks=pytest.mark.exhaustive) for i in (3, 8)), 11],
)
def test_resume_equals_an_uninterrupted_run(
    config, whole, tmp_path, monkeypatch, capsys, stop_after
):
    workdir = tmp_path / "run"
    config = finetune_config(config, workdir=str(workdir), num_epochs=6)
    run_until(stop_after, lambda: finetune.run(config), monkeypatch)
    assert capsys.readouterr().out.count("has no classifier for this task") == 1
    with pytest.raises(ValueError, match="is not finished.*repeat its command"):
        load_model(workdir)
    with pytest.raises(FileNotFoundError, match="has not written its model: repeat its command"):
        load_model(workdir / "model")
    finetune.run(config)
    printed = capsys.readouterr().out
    assert "has no classifier" not in printed and f"resuming at step {stop_after}" in printed
    check_equal(workdir, whole)


def test_a_finished_run_has_nothing_to_do_until_something_is_missing(
    config, whole, tmp_path, capsys
):
    """The same command leaves the files of a finished run as they are, and says so."""
    workdir = tmp_path / "run"
    shutil.copytree(whole, workdir)
    scores = read_scores(workdir / "scores.json")
    config = finetune_config(config, workdir=str(workdir), num_epochs=6)

    def contents():
        files = sorted(path for path in workdir.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    before = contents()
    assert finetune.run(config) == {"": scores}
    printed = capsys.readouterr().out
    assert f"{workdir} is finished: there is nothing to do." in printed
    assert "held-out accuracy" in printed and "steps" not in printed
    assert contents() == before
    shutil.rmtree(workdir / "predictions")
    assert finetune.run(config) == {"": scores}
    printed = capsys.readouterr().out
    assert "nothing is left to train" in printed and "nothing to do" not in printed
    assert (workdir / "predictions/dev.jsonl").is_file()


def check_equal(workdir, whole):
    """Metrics without times, and every tensor of the model, are those of the uninterrupted run."""

    def without_clock(folder):
        lines = json_lines(folder / "metrics.jsonl")
        return [{k: v for k, v in line.items() if "per_second" not in k} for line in lines]

    assert without_clock(workdir) == without_clock(whole)
    resumed, uninterrupted = (
        load_file(folder / "model/model.safetensors") for folder in (workdir, whole)
    )
    for name, tensor in uninterrupted.items():
        np.testing.assert_array_equal(resumed[name], tensor)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_signal_while_the_first_evaluation_compiles_ends_the_run_and_loses_no_step(
    config, whole, tmp_path, monkeypatch
):
    workdir = tmp_path / "run"
    config = finetune_config(config, workdir=str(workdir), num_epochs=6)
    steps = []

    def compiling(self, params, split):
        steps.extend(int(path.name) for path in (workdir / "checkpoints").iterdir())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)  # as long as the compiler looks at no signal

    with monkeypatch.context() as patch:
        patch.setattr(finetuning.FinetuningJob, "predict_split", compiling)
        with pytest.raises(Interrupted, match="everything up to step 8 is saved"):
            finetune.run(config)
    assert steps == [8] and not evaluations(workdir)
    finetune.run(config)
    check_equal(workdir, whole)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_kill_between_the_report_of_an_evaluation_and_its_checkpoint_reports_it_once(
    config, whole, tmp_path, monkeypatch
):
    workdir = tmp_path / "run"
    config = finetune_config(config, workdir=str(workdir), num_epochs=6)

    def killed(*_):
        raise Interrupted("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "replace", killed)
        with pytest.raises(Interrupted, match="killed"):
            finetune.run(config)
    assert len(evaluations(workdir)) == 1
    finetune.run(config)
    check_equal(workdir, whole)


def test_the_features_of_a_batch_are_counted_through_the_epochs():
    run = SimpleNamespace(
        data=SimpleNamespace(sizes=[1] * 20),
        config=SimpleNamespace(batch_size=8),
        plan=SimpleNamespace(batches_per_epoch=3),
    )
    rows = [finetuning.FinetuningJob.rows_of_batch(run, 0, batch) for batch in range(4)]
    assert rows == [(0, 7), (8, 15), (16, 19), (20, 27)]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_seeds_are_runs_of_their_own_and_finished_ones_are_not_repeated(
    config, tmp_path, monkeypatch, capsys
):
    load, reads = facts.load_model, []
    monkeypatch.setattr(
        facts,
        "load_model",
        lambda path, *more, **named: reads.append(path) or load(path, *more, **named),
    )
    config = finetune_config(config, workdir=str(tmp_path / "run"), seeds=2, num_epochs=1)
    scores = finetune.run(config)
    assert set(scores) == {"seed0", "seed1"} and reads == [config.init]
    assert {"mean", "std"} <= set(capsys.readouterr().out.split())
    best = max(scores, key=lambda name: scores[name]["dev/accuracy"])
    for part in ("model/model.safetensors", "predictions/dev.jsonl"):
        top, own = (tmp_path / "run" / part), (tmp_path / "run" / best / part)
        assert top.read_bytes() == own.read_bytes()
    weights = [load_file(tmp_path / f"run/seed{i}/model/model.safetensors") for i in (0, 1)]
    assert (weights[0]["classifier.weight"] != weights[1]["classifier.weight"]).any()
    for folder in (tmp_path / "run", tmp_path / "run" / "seed0"):
        assert load_model(folder, None).source.where == folder / "model"
    monkeypatch.setattr(experiments, "train", lambda *_, **__: pytest.fail("it was finished"))
    assert finetune.run(config) == scores
    with pytest.raises(ValueError, match="another config: batch_size"):
        finetune.run(finetune_config(config, batch_size=16))


@pytest.mark.slow
def test_other_data_is_refused_and_signs_in_labels_are_no_markup(config, tmp_path, files, capsys):
    rows = Path(files["classify"]["train"]).read_text().replace(",low", ",[/low]")
    (tmp_path / "train.csv").write_text(rows)
    (tmp_path / "dev.csv").write_text("text,label\nabc,[/low]\n")
    config = finetune_config(
        config,
        train=str(tmp_path / "train.csv"),
        dev=str(tmp_path / "dev.csv"),
        workdir=str(tmp_path / "run"),
        max_steps=1,
    )
    finetune.run(config)
    assert "[/low]" in capsys.readouterr().out
    (tmp_path / "train.csv").write_text("\n".join(rows.split("\n")[:-5]) + "\n")
    with pytest.raises(ValueError, match="data differs from the data of .*train.csv"):
        finetune.run(config)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_tags_that_mark_no_entities_are_chosen_by_accuracy(config, tmp_path):
    (tmp_path / "a.conll").write_text("abc NN\nde VB\n\nfg NN\n\n" * 8)
    file = str(tmp_path / "a.conll")
    config = of_task(config, "tag", {"train": file, "dev": file}, tmp_path / "run")
    scores = finetune.run(finetune_config(config, max_steps=1))
    assert list(scores[""]) == ["dev/accuracy"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_submission_is_that_of_the_best_seed(config, tmp_path, sentences):
    folder = tmp_path / "RTE"
    folder.mkdir()
    for name in ("train", "dev", "test"):
        rows = [
            f"{i}\t{a}\t{a}" + f"\t{'not_' * (i % 2)}entailment" * (name != "test")
            for i, a in enumerate(sentences[:24])
        ]
        head = "index\tsentence1\tsentence2" + "\tlabel" * (name != "test")
        (folder / f"{name}.tsv").write_text("\n".join([head, *rows]) + "\n")
    config = finetune_config(
        config,
        task="rte",
        data_dir=str(tmp_path),
        max_steps=2,
        max_length=48,
        seeds=3,
        workdir=str(tmp_path / "run"),
        submission=str(tmp_path / "new" / "glue.zip"),
    )
    scores = finetune.run(config)
    best = max(scores, key=lambda name: scores[name]["dev/accuracy"])
    with zipfile.ZipFile(tmp_path / "new" / "glue.zip") as archive:
        assert archive.namelist() == ["RTE.tsv"]
        submitted = archive.read("RTE.tsv").decode()
    assert submitted == (tmp_path / "run" / best / "predictions/RTE.tsv").read_text()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_sweep_keeps_the_best_and_shows_what_is_taken_for_what(
    config, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(experiments, "SWEEP_BATCH_SIZES", (16,))
    monkeypatch.setattr(experiments, "SWEEP_LEARNING_RATES", (1e-9, 3e-3))
    monkeypatch.setattr(experiments, "SWEEP_EPOCHS", (3,))
    scores = finetune.run(finetune_config(config, workdir=str(tmp_path / "run"), sweep=True))
    names = ["batch16_rate1e-09_epochs3", "batch16_rate0.003_epochs3"]
    assert list(scores) == names
    best = max(names, key=lambda name: scores[name]["dev/accuracy"])
    top, own = (tmp_path / "run/model", tmp_path / "run" / best / "model")
    assert (top / "model.safetensors").read_bytes() == (own / "model.safetensors").read_bytes()
    assert not list((tmp_path / "run").glob("*/checkpoints"))
    printed = capsys.readouterr().out
    assert "predicted" in printed and f"best by held-out accuracy: {best}" in printed


def test_the_sweep_is_the_grid_of_the_paper(config):
    runs = variants(finetune_config(config, sweep=True, workdir="w"))
    found = {(c.batch_size, c.optimizer.learning_rate, c.num_epochs) for _, c in runs}
    assert len(runs) == len(found) == 18
    assert found == {(b, r, e) for b in (16, 32) for r in (5e-5, 3e-5, 2e-5) for e in (2, 3, 4)}
    assert len({c.workdir for _, c in runs}) == 18


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_gets_no_better_stops_early(config, tmp_path):
    still = dataclasses.replace(config.optimizer, learning_rate=1e-12)
    config = finetune_config(
        config, workdir=str(tmp_path / "run"), num_epochs=9, patience=2, optimizer=still
    )
    finetune.run(config)
    assert len(evaluations(tmp_path / "run")) == 3
    # Three epochs of eight updates; of equals the latest is the best.
    assert "| updates | 24 of" in (tmp_path / "run" / "model" / "README.md").read_text()
    finetune.run(config)  # it is finished: nothing is trained again
    assert len(evaluations(tmp_path / "run")) == 3


@pytest.mark.slow
def test_mnli_has_two_dev_sets_and_a_submission(config, tmp_path, sentences):
    folder = tmp_path / "MNLI"
    folder.mkdir()
    names = ["entailment", "neutral", "contradiction"]
    for name, labelled in {
        "train": True,
        "dev_matched": True,
        "dev_mismatched": True,
        "test_matched": False,
        "test_mismatched": False,
    }.items():
        head = ["index", "sentence1", "sentence2"] + ["gold_label"] * labelled
        rows = [
            [str(i), a, b] + [names[i % 3]] * labelled
            for i, (a, b) in enumerate(zip(sentences[:24], sentences[24:48], strict=True))
        ]
        text = "\n".join("\t".join(row) for row in [head, *rows])
        (folder / f"{name}.tsv").write_text(text + "\n")
    submission = tmp_path / "glue.zip"
    config = finetune_config(
        dataclasses.replace(config, options=TaskOptions()),
        task="mnli",
        data_dir=str(tmp_path),
        num_epochs=1,
        max_length=48,
        workdir=str(tmp_path / "run"),
        submission=str(submission),
    )
    scores = finetune.run(config)[""]
    metrics = ("accuracy", "loss")
    assert set(scores) == {f"dev_{part}/{m}" for part in ("matched", "mismatched") for m in metrics}
    with zipfile.ZipFile(submission) as archive:
        assert archive.namelist() == ["MNLI-m.tsv", "MNLI-mm.tsv"]
        lines = archive.read("MNLI-m.tsv").decode().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 25
    assert {line.split("\t")[1] for line in lines[1:]} <= set(names)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_packing_leaves_predictions_alone(whole, config):
    """One text by itself gets the probabilities that it got among others in a row."""
    task = make_task("classify", config.options)
    config = finetune_config(config, init=str(whole / "model"))
    loaded = facts.load_for_task(config, task)
    mesh = make_mesh(config.mesh)
    predictor = Predictor(task, loaded.model, loaded.tokenizer, 32, mesh)
    params = jax.device_put(loaded.params)
    assert task.source is not None
    examples = list(task.source.examples("dev"))
    together = [p for _, p in predictor(params, examples)]
    for index in (0, 7, 29):
        [(_, alone)] = predictor(params, examples[index : index + 1])
        for label, probability in alone["probabilities"].items():
            assert abs(together[index]["probabilities"][label] - probability) < 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "clasify"}, "Did you mean 'classify'"),
        ({"max_length": 100}, "--max_length=64"),
        ({"class_weights": (1.0,)}, "2 classes"),
        ({"label_separator": "|", "label_smoothing": 0.1}, "--label_smoothing 0.1"),
        ({"dev_fraction": 0.2}, "dev_fraction=0.2: --dev"),
        ({"dev": None, "dev_fraction": 0.0, "patience": 1}, "dev split"),
        ({"dev": None, "dev_fraction": 0.0, "sweep": True}, "dev split"),
        ({"submission": "a.zip"}, "--submission belongs to --task="),
        ({"train": "none.csv"}, "none.csv"),
        ({"max_query_length": 9}, "--max_query_length belongs to --task=squad, squad2, qa"),
        ({"doc_stride": 0}, "doc_stride=0: it must be at least 1"),
        ({"choice_columns": ("a", "b")}, "--choice_columns belongs to --task=choice"),
    ],
)
def test_what_does_not_fit_is_refused(config, tmp_path, changes, message):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        finetune.run(finetune_config(config, workdir=str(tmp_path / "run"), **changes))


@pytest.mark.parametrize(
    ("split", "text", "message"),
    [
        ("dev", "text,label\nabc,low\nabc,odd\n", "dev.csv, row 3: label 'odd' does not occur"),
        ("test", "text,label\nabc,low\n  ,low\n", "test.csv, row 3"),
        ("train", "text,label\nabc,low\n,high\n", "train.csv, row 3"),
        ("dev", "txt,label\nabc,low\n", "text"),
        ("dev", "text,label\n", "dev split has no examples"),
    ],
)
def test_a_damaged_row_is_named_before_training_starts(config, tmp_path, split, text, message):
    (tmp_path / f"{split}.csv").write_text(text)
    broken = finetune_config(
        config, workdir=str(tmp_path / "run"), **{split: str(tmp_path / f"{split}.csv")}
    )
    with pytest.raises(ValueError, match=message):
        finetune.run(broken)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_mixed_line_ends_and_a_huge_text_are_fine(config, files, tmp_path, monkeypatch, capsys):
    sizes = []

    def train_run(plan, read, *_):
        sizes.extend(read.data.sizes)
        raise Interrupted("the data are read")

    monkeypatch.setattr(experiments, "train_run", train_run)
    rows = Path(files["classify"]["train"]).read_text().split("\n")
    rows[5] = "hij " + "abc " * 100_000 + ",high"
    mixed = "".join(
        row.rstrip("\r") + end for row, end in zip(rows, ["\n", "\r\n", "\r"] * 99, strict=False)
    )
    (tmp_path / "train.csv").write_bytes(mixed.encode())
    config = finetune_config(
        config, workdir=str(tmp_path / "run"), train=str(tmp_path / "train.csv")
    )
    with pytest.raises(Interrupted, match="are read"):
        finetune.run(config)
    printed = capsys.readouterr().out
    assert "max_length=32" in printed and "train.csv, row 6" in printed
    assert len(sizes) == 64 and max(sizes) == 32


def test_flags_override_the_config_of_the_task(monkeypatch):
    parsed = finetune.parse(["--task=rte", "--batch_size", "16", "--optimizer.learning-rate=3e-5"])
    assert (parsed.task, parsed.batch_size) == ("rte", 16)
    assert parsed.optimizer.learning_rate == 3e-5
    assert parsed.optimizer.warmup_proportion == 0.1
    assert finetune.parse(["--task=SST2"]).batch_size == finetune.parse(["--task=sst2"]).batch_size
    assert check_task("RTE") == "rte"


def test_the_function_returns_scores_history_and_model(result, whole):
    assert result.scores == result.runs[""] == read_scores(whole / "scores.json")
    assert [line["step"] for line in result.metrics if "eval/accuracy" in line] == [
        *range(8, 49, 8)
    ]
    assert result.history["eval/accuracy"].max() == result.scores["dev/accuracy"]
    assert result.history["train/loss"].notna().any()
    assert set(result.model.labels) == {"high", "low"} and not result.model.absent


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_function_takes_rows_and_returns_scores_history_and_model(config, tmp_path, sentences):
    rows = [{"text": s, "label": "yes" if s[0] < "e" else "no"} for s in sentences[:40]]
    # Two steps, more than the one epoch has.
    fields = {"init": config.init, "max_length": 32, "batch_size": 40, "max_steps": 2}
    fields["num_epochs"] = 1
    frame, workdir = pandas.DataFrame(rows[:8]), str(tmp_path / "run")
    result = bertjax.finetune(task="classify", train=rows, dev=frame, workdir=workdir, **fields)
    assert result.scores == result.runs[""] and 0 <= result.scores["dev/accuracy"] <= 1
    assert [line["step"] for line in result.metrics if "eval/accuracy" in line] == [1, 2]
    assert result.history.loc[2, "eval/accuracy"] == result.scores["dev/accuracy"]
    assert result.history["train/loss"].notna().any()
    assert result.model.labels == ["no", "yes"] and not result.model.absent
    lines = (tmp_path / "run" / "predictions" / "dev.jsonl").read_text().splitlines()
    assert [json.loads(line)["input"] for line in lines] == rows[:8]
    with pytest.raises((TypeError, ValueError), match="batchsize"):
        bertjax.finetune(task="classify", train=rows, batchsize=3)


def test_another_seed_draws_the_parts_that_a_model_lacks_as_if_it_were_loaded_again(config):
    task = make_task("classify", config.options)
    first = facts.load_for_task(config, task)
    again = facts.load_for_task(finetune_config(config, seed=5), task)
    found = facts.reinitialized(first, 5)
    assert first.absent == ["classifier"]
    jax.tree.map(np.testing.assert_array_equal, found.params, again.params)
    kernels = (x.params["classifier"]["kernel"] for x in (first, again))
    assert not np.array_equal(*kernels)
