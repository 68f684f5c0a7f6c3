"""Fine-tuning on one-hot columns, several targets and distributions, and what reads the model."""

import csv
import functools
import json
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax import finetune, predict, score
from bertjax.inference.pretrained import Pretrained
from bertjax.record.predictions import read_scores
from bertjax.tasks import finetune_config
from bertjax.weights import load_model
from tests.cases import WEEKLY, others_weekly
from tests.conftest import write_csv
from tests.lines import json_lines

NAMES = ["valence", "arousal", "calm mood"]


def numbers_of(sentence, index):
    """Three numbers that a sentence tells, of different scales, some of which are missing."""
    numbers = [len(sentence) / 10, sentence.count("a") * 100, -sentence.count("e")]
    return [None if index % 5 == n else number for n, number in enumerate(numbers)]


def shares_of(sentence):
    share = round(0.1 + 0.8 * ("a" in sentence[:9]), 3)
    return [share, round((1 - share) / 2, 3), round(1 - share - round((1 - share) / 2, 3), 3)]


def rows_of(kind, sentences):
    header = ["text", *NAMES]
    if kind == "targets":
        cells = [numbers_of(s, i) for i, s in enumerate(sentences)]
    elif kind == "distribution":
        cells = [shares_of(s) for s in sentences]
    elif kind == "multi_label":
        cells = [[int(x in s) for x in "abc"] for s in sentences]
    else:
        cells = [[int(i % 3 == n) for n in range(3)] for i in range(len(sentences))]
    return [header, *([s, *row] for s, row in zip(sentences, cells, strict=True))]


KINDS = {
    "targets": "pearson_spearman",
    "distribution": "loss",
    "multi_label": "micro_f1",
    "classes": "accuracy",
}
OF_KINDS = [
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("targets", "multi_label")),
    *(pytest.param(kind, marks=WEEKLY) for kind in ("distribution", "classes")),
]


@pytest.fixture(scope="module")
def config_of(tmp_path_factory, one_layer, sentences):
    """kind of labels -> how a model is fine-tuned on them."""

    @functools.cache
    def make(kind):
        folder = tmp_path_factory.mktemp(kind)
        named = kind in ("targets", "distribution")
        return finetune_config(
            task="regress" if kind == "targets" else "classify",
            init=str(one_layer),
            train=write_csv(folder / "train.csv", rows_of(kind, sentences[:48])),
            dev=write_csv(folder / "dev.csv", rows_of(kind, sentences[100:120])),
            label_columns=tuple(NAMES) if named else (),
            max_length=32,
            batch_size=16,
            max_steps=4,
            evals_per_epoch=1,
            unroll=1,
            workdir=str(folder / "w"),
        )

    return make


@pytest.fixture(scope="module")
def run(config_of):
    """Fine-tunes once per kind of labels; returns the workdir, the dev file and the config."""

    @functools.cache
    def run_of(kind):
        config = config_of(kind)
        finetune.run(config)
        workdir = Path(config.workdir)
        return workdir, str(workdir.with_name("dev.csv")), config

    return run_of


@pytest.mark.parametrize("kind", OF_KINDS)
def test_a_model_of_each_kind_of_labels_is_saved_predicts_and_is_scored(kind, run, tmp_path):
    workdir, dev, _ = run(kind)
    scores = read_scores(workdir / "scores.json")
    described = json.loads((workdir / "model" / "task.json").read_text())
    assert described["label_kind"] == kind
    config = json.loads((workdir / "model" / "config.json").read_text())
    assert [*config["id2label"].values()] == NAMES
    again = bertjax.evaluate(workdir / "model", data=dev)
    of_dev = {f"dev/{name}": value for name, value in again.items()}
    assert of_dev == pytest.approx(scores, rel=1e-4)
    assert f"dev/{KINDS[kind]}" in scores
    output = tmp_path / "p.csv"
    assert predict.main(["--model", str(workdir), "--input", dev, "--output", str(output)]) == 0
    with output.open() as file:
        columns = next(csv.reader(file))
    prefix = "predicted" if kind == "targets" else "probability"
    assert {f"{prefix}_{name}" for name in NAMES} < {*columns}
    summary = json.loads((workdir / "predictions" / "dev.summary.json").read_text())
    assert summary["examples"] == 20 and summary["mistakes"]


@pytest.mark.parametrize("kind", OF_KINDS)
def test_two_models_of_each_kind_of_labels_are_compared(kind, run, capsys):
    workdir, dev, _ = run(kind)
    lines = str(workdir / "predictions" / "dev.jsonl")
    for gold in ([], ["--gold", dev]):
        assert score.main(["--compare", lines, lines, *gold]) == 0
        found = json.loads(capsys.readouterr().out)
        of_metric = found["metrics"][KINDS[kind]]
        assert found["examples"] == 20
        assert of_metric["difference"] == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("kind", others_weekly(KINDS, "targets"))
def test_transformers_reads_the_model_with_equal_logits(kind, run, sentences):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = run(kind)[0] / "model"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    problem = {"targets": "regression", "multi_label": "multi_label_classification"}
    assert model.config.problem_type == problem.get(kind, "single_label_classification")
    assert (model.num_labels, model.config.id2label[2]) == (3, NAMES[2])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        inputs = tokenizer(list(sentences[:5]), return_tensors="pt", padding=True)
        expected = model(**inputs).logits.numpy()
    loaded = Pretrained(load_model(folder, None))
    np.testing.assert_allclose(
        loaded(list(sentences[:5]))["logits"], expected, rtol=1e-3, atol=1e-4
    )
    if kind == "targets":
        predicted = [p["scores"] for p in loaded.predict(list(sentences[:5]))]
        values = [[of_text[name] for name in NAMES] for of_text in predicted]
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_folds_and_groups_work_with_each_kind_of_labels(kind, run, sentences, tmp_path):
    *_, config = run(kind)
    header, *rows = rows_of(kind, sentences[:48])
    grouped = [[*header, "patient"], *([*row, f"p{i // 3}"] for i, row in enumerate(rows))]
    train = write_csv(tmp_path / "grouped.csv", grouped)
    folds = finetune_config(
        config, train=train, dev=None, folds=2, group_column="patient", workdir=str(tmp_path / "w")
    )
    finetune.run(folds)
    lines = json_lines(tmp_path / "w" / "predictions" / "out_of_fold.jsonl")
    assert len(lines) == 48 and all("gold" in line for line in lines)
    assert (tmp_path / "w" / "label_errors.csv").is_file() == (kind != "targets")
    scores = json.loads((tmp_path / "w" / "cross_validation.json").read_text())["metrics"]
    assert KINDS[kind] in scores


@pytest.mark.slow
@pytest.mark.exhaustive
def test_models_of_distributions_and_targets_are_taught_and_resumed(run, tmp_path):
    for kind in ("distribution", "targets"):
        workdir, _, config = run(kind)
        student = finetune_config(
            config, teacher={"model": str(workdir / "model")}, workdir=str(tmp_path / kind)
        )
        finetune.run(student)
        assert KINDS[kind] in {name[4:] for name in read_scores(tmp_path / kind / "scores.json")}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"class_weights": "balanced"}, "--class_weights.*probabilities"),
        ({"calibrate": True}, "--calibrate: classify does not have one class"),
        ({"shots": 2}, "--shots 2: classify does not have one class"),
    ],
)
def test_what_probabilities_of_classes_do_not_have_is_refused(
    setting, message, config_of, tmp_path
):
    config = config_of("distribution")
    with pytest.raises(ValueError, match=message):
        finetune.run(finetune_config(config, **setting, workdir=str(tmp_path / "w")))
