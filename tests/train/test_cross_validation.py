"""Cross-validation, few shots and calibration of small runs on files of one's own."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax import finetune
from bertjax.base.signals import Interrupted
from bertjax.config import FinetuneConfig, OptimizerConfig
from bertjax.tasks import finetune_config
from bertjax.tasks.calibration import expected_calibration_error
from bertjax.train import experiments as variants
from tests.lines import json_lines


@pytest.fixture(scope="module")
def config(one_layer, files) -> FinetuneConfig:
    return finetune_config(
        task="classify",
        init=str(one_layer),
        train=files["classify"]["train"],
        max_length=32,
        batch_size=8,
        max_steps=6,
        optimizer=OptimizerConfig(
            recipe="adamw", learning_rate=3e-3, schedule="hf", warmup_steps=0
        ),
        unroll=1,
    )


def results(workdir):
    names = ("model/model.safetensors", "predictions/out_of_fold.jsonl", "scores.json")
    names += ("cross_validation.json", "model/task.json", "predictions/test.jsonl")
    return {name: (workdir / name).read_bytes() for name in names}


@pytest.mark.slow
def test_folds_predict_every_example_once_and_resume_with_the_same_bytes(
    config, files, tmp_path, monkeypatch, capsys
):
    config = finetune_config(config, folds=2, test=files["classify"]["dev"])
    whole = finetune_config(config, workdir=str(tmp_path / "whole"))
    result = bertjax.finetune(whole)
    folder = tmp_path / "whole"
    assert set(result.runs) == {"fold1", "fold2", "all"} and result.best == "all"
    summary = json.loads((folder / "cross_validation.json").read_text())
    values = [result.runs[f"fold{i}"]["dev/accuracy"] for i in (1, 2)]
    accuracy = summary["metrics"]["accuracy"]
    assert accuracy["folds"] == values
    assert accuracy["mean"] == pytest.approx(np.mean(values))
    assert accuracy["std"] == pytest.approx(np.std(values, ddof=1))
    low, high = accuracy["interval"]
    assert low <= accuracy["mean"] <= high
    stored = json.loads((folder / "scores.json").read_text())["intervals"]
    assert stored["mean"]["rows"]["dev/accuracy"] == [low, high]
    assert set(stored) == {"fold1", "fold2", "all", "mean"} and stored["fold1"]
    predictions = json_lines(folder / "predictions/out_of_fold.jsonl")
    wrong = [line["id"] for line in predictions if line["label"] != line["input"]["label"]]
    with (folder / "label_errors.csv").open(newline="") as file:
        assert {row["id"] for row in csv.DictReader(file)} <= set(wrong)
    rows = [line["input"]["text"] for line in predictions]
    table = [line.split(",")[0] for line in Path(config.options.train).read_text().splitlines()[1:]]
    assert rows == table and len(rows) == 64
    assert [line for line in predictions if line["fold"] == "fold2"][0].keys() > {"label", "id"}
    right = [line["label"] == line["input"]["label"] for line in predictions]
    of_folds = [line["fold"] for line in predictions]
    for i, value in enumerate(values, 1):
        assert (
            np.mean([r for r, f in zip(right, of_folds, strict=True) if f == f"fold{i}"]) == value
        )
    # The exported model is that of the run on all examples, which alone predicts the test split.
    for part in ("model/model.safetensors", "predictions/test.jsonl"):
        assert (folder / part).read_bytes() == (folder / "all" / part).read_bytes()
    assert not (folder / "fold1/predictions/test.jsonl").exists()
    printed = capsys.readouterr().out
    assert {"mean", "std"} <= set(printed.split()) and "best by" not in printed

    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert evaluation["scores"]["dev/accuracy"] == accuracy["mean"]
    simple = evaluation["baselines"]["splits"]["dev"]["bag of words"]["accuracy"]
    of_folds = [json.loads((folder / f"fold{i}/evaluation.json").read_text()) for i in (1, 2)]
    of_folds = [fold["baselines"]["splits"]["dev"]["bag of words"] for fold in of_folds]
    assert simple == pytest.approx(np.mean([fold["accuracy"] for fold in of_folds]))
    assert "2 folds: baseline, held-out accuracy: majority" in printed
    assert f"bag of words {100 * simple:.2f} %; this model" in printed
    assert evaluation["data"]["splits"]["train"]["examples"] == 64
    assert sum(row["support"] for row in evaluation["by_class"]["dev"]) == 64
    assert {"sensitivity", "specificity", "auroc"} <= evaluation["by_class"]["dev"][0].keys()
    assert evaluation["verdict"] in printed
    card = (folder / "model/README.md").read_text()
    assert "means over 2 folds" in card and "of the examples of all folds together" in card
    assert "\n# whole\n" in card and "# all" not in card
    methods = [line for line in card.splitlines() if line.startswith("Methods: ")]
    of_test, of_folds = methods
    assert "in 2 folds" in of_folds and "folds" not in of_test
    assert "seed 0" in of_folds and f"bertjax {bertjax.__version__}" in of_folds
    assert f"bag of words {100 * simple:.2f} % |" in card
    assert f"| held-out accuracy | {100 * accuracy['mean']:.2f} % |" in card

    calls = []
    train_run = variants.train_run

    def killed(*args):
        calls.append(args[-2])  # the name of the run
        if calls in (["fold1", "fold2"], ["fold1", "fold2", "fold1", "fold2", "all"]):
            raise Interrupted("killed")
        return train_run(*args)

    monkeypatch.setattr(variants, "train_run", killed)
    cut = finetune_config(config, workdir=str(tmp_path / "cut"))
    for _ in range(2):
        with pytest.raises(Interrupted):
            finetune.run(cut)
    assert finetune.run(cut) == result.runs
    assert results(tmp_path / "cut") == results(folder)
    with pytest.raises(ValueError, match="another config: folds: 2 -> 4"):
        finetune.run(finetune_config(cut, folds=4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["qa", *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("regress", "tag"))]
)
@pytest.mark.exhaustive
def test_every_kind_of_own_file_has_folds(config, files, task, tmp_path):
    config = finetune_config(
        config, task=task, train=files[task]["train"], max_length=60, max_steps=1, folds=2,
        workdir=str(tmp_path / "run"),
    )  # fmt: skip
    finetune.run(config)
    assert len(json_lines(tmp_path / "run/predictions/out_of_fold.jsonl")) == 60 + 4 * (
        task != "qa"
    )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_each_seed_draws_its_own_shots_and_no_score_selects_a_model(
    config, files, tmp_path, capsys
):
    config = finetune_config(
        config, dev=files["classify"]["dev"], shots=4, seeds=3, max_steps=5, select_by="last",
        workdir=str(tmp_path / "run"),
    )  # fmt: skip
    result = bertjax.finetune(config)
    assert result.best == "seed0" and set(result.runs) == {"seed0", "seed1", "seed2"}
    for name in result.runs:
        metrics = json_lines(tmp_path / f"run/{name}/metrics.jsonl")
        evaluations = [line["step"] for line in metrics if "eval/accuracy" in line]
        assert evaluations == [5]
    prints = {
        name: json.loads((tmp_path / f"run/{name}/run.json").read_text())["data_fingerprint"]
        for name in result.runs
    }
    assert len(set(prints.values())) == 3
    top, first = tmp_path / "run/model", tmp_path / "run/seed0/model"
    assert (top / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    of_mean = json.loads((tmp_path / "run/scores.json").read_text())["intervals"]["mean"]
    assert set(of_mean) == {"rows", "seeds", "both"}
    widths = {name: np.ptp(bounds["dev/accuracy"]) for name, bounds in of_mean.items()}
    assert widths["both"] >= max(widths["rows"], widths["seeds"]) > 0
    printed = capsys.readouterr().out
    card = (tmp_path / "run/model/README.md").read_text()
    assert "## Means over 3 runs" in card and "seed0 of 3 runs, which no score has chosen" in card
    assert "95 %: both" in printed and "both: other models on other rows" in printed
    assert "train: 8 examples" in printed and "best by" not in printed
    assert "exported: seed0, the model of the first draw, which no score has chosen" in printed
    shutil.rmtree(tmp_path / "run/seed1")
    assert bertjax.finetune(config).runs == result.runs


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_calibrated_model_predicts_the_same_classes_with_scaled_probabilities(
    config, files, tmp_path, capsys
):
    settings = {"dev": files["classify"]["dev"], "test": files["classify"]["dev"]}
    plain = finetune_config(config, workdir=str(tmp_path / "plain"), **settings)
    scaled = finetune_config(plain, workdir=str(tmp_path / "scaled"), calibrate=True)
    finetune.run(plain)
    finetune.run(scaled)
    folder = tmp_path / "scaled"
    made = json.loads((folder / "calibration.json").read_text())
    temperature = made["temperature"]
    assert "calibration: temperature" in capsys.readouterr().out and made["bins"] == 15
    assert json.loads((folder / "model/task.json").read_text())["temperature"] == temperature
    for part in ("model/model.safetensors", "model/config.json", "predictions/dev.jsonl"):
        assert (folder / part).read_bytes() == (tmp_path / "plain" / part).read_bytes()

    def table(path):
        return np.array([[*line["probabilities"].values()] for line in json_lines(path)])

    before = table(tmp_path / "plain/predictions/test.jsonl")
    after = table(folder / "predictions/test.jsonl")
    powers = before ** (1 / temperature)
    np.testing.assert_allclose(after, powers / powers.sum(-1, keepdims=True), rtol=1e-9)
    assert (before.argmax(-1) == after.argmax(-1)).all()
    dev = json_lines(folder / "predictions/dev.jsonl")
    names = list(dev[0]["probabilities"])
    labels = np.array([names.index(line["input"]["label"]) for line in dev])
    expected = expected_calibration_error(table(folder / "predictions/dev.jsonl"), labels)
    assert made["ece_before"] == pytest.approx(expected) and made["examples"] == len(dev)
    # predict, evaluate and the report follow it.
    texts = [line["input"]["text"] for line in dev]
    predicted = bertjax.load_pretrained(folder / "model", head=None).predict(texts)
    again = np.array([[*line["probabilities"].values()] for line in predicted])
    np.testing.assert_allclose(again, after, rtol=1e-4)
    summary = json.loads((folder / "predictions/dev.summary.json").read_text())
    assert summary["calibration"]["scaled"]["temperature"] == temperature


def test_calibration_needs_classes_and_a_dev_split(config, files):
    config = finetune_config(config, calibrate=True, workdir="unused")
    with pytest.raises(TypeError, match="--calibrate belongs to .*; --task=regress"):
        finetune_config(config, task="regress", train=files["regress"]["train"])
    several = finetune_config(config, **files["multi"])
    with pytest.raises(ValueError, match="--calibrate: classify does not have one class"):
        finetune.run(several)
    with pytest.raises(ValueError, match="--calibrate needs the probabilities of a dev split"):
        finetune.run(finetune_config(config, dev_fraction=0.0))
