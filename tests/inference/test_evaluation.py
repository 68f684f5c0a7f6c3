"""`bertjax.evaluate` gives the metrics of training; splits share their compiled programs."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from jax import monitoring

import bertjax
from bertjax import finetune, predict
from bertjax.config import MeshConfig
from bertjax.devices.sharding import make_mesh
from bertjax.inference.predictor import Predictor
from bertjax.inference.saved_task import with_task
from bertjax.predict import PredictConfig
from bertjax.tasks import Example, finetune_config
from bertjax.tasks.sources.glue import GLUE
from bertjax.weights import load_model


@pytest.fixture(scope="module")
def mnli(tmp_path_factory, sentences):
    """A folder with MNLI's official files, with dev sets of different lengths."""
    folder = tmp_path_factory.mktemp("glue") / "MNLI"
    folder.mkdir()
    names = ["entailment", "neutral", "contradiction"]
    splits = {"train": 24, "dev_matched": 30, "dev_mismatched": 17}
    for split, count in {**splits, "test_matched": 9, "test_mismatched": 9}.items():
        labelled = split in splits
        head = ["index", "sentence1", "sentence2"] + ["gold_label"] * labelled
        rows = [
            [str(i), sentences[i], sentences[i + 40]] + [names[i % 3]] * labelled
            for i in range(count)
        ]
        text = "\n".join("\t".join(row) for row in [head, *rows])
        (folder / f"{split}.tsv").write_text(text + "\n")
    return folder


def train(encoder, workdir, **fields):
    return finetune(
        finetune_config(
            init=str(encoder),
            max_length=48,
            batch_size=8,
            max_steps=2,
            unroll=1,
            workdir=str(workdir),
            **fields,
        )
    )


@pytest.fixture(scope="module")
def on_mnli(one_layer, mnli):
    return train(one_layer, mnli.parent / "run", task="mnli", data_dir=str(mnli))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory, one_layer):
    """The directory of a classifier for MNLI that has learnt nothing."""
    folder = tmp_path_factory.mktemp("untrained") / "model"
    bertjax.load_pretrained(one_layer, "sequence_classification", num_labels=3).save(folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = dict(enumerate(GLUE["mnli"].labels))
    config["label2id"] = {label: index for index, label in enumerate(GLUE["mnli"].labels)}
    (folder / "config.json").write_text(json.dumps(config))
    task = {"task": "mnli", "label_kind": "classes", "max_length": 48}
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "checksums.json").unlink()
    return folder


@pytest.mark.slow
def test_an_official_task_has_the_scores_of_the_run(on_mnli, mnli):
    scores = bertjax.evaluate(on_mnli.directory, "mnli", data_dir=mnli)
    assert scores == pytest.approx(on_mnli.scores)
    one = bertjax.evaluate(on_mnli.model, "mnli", data_dir=mnli, split="dev_mismatched")
    names = ("accuracy", "loss")
    assert one == {name: pytest.approx(scores[f"dev_mismatched/{name}"]) for name in names}


@pytest.mark.slow
def test_the_command_prints_what_the_function_returns(on_mnli, mnli, tmp_path, capsys):
    model, output = str(on_mnli.directory), str(tmp_path / "out")
    predict.run(PredictConfig(model=model, task="mnli", data_dir=str(mnli), output=output))
    lines = [json.loads(x) for x in capsys.readouterr().out.splitlines() if x.startswith("{")]
    splits = [line.pop("split") for line in lines]
    assert all(line.pop("examples") > 0 for line in lines)
    printed = zip(splits, lines, strict=True)
    found = {f"{split}/{key}": x for split, line in printed for key, x in line.items()}
    assert found == pytest.approx(on_mnli.scores)
    assert len(splits) == 4  # the test splits have no labels


@pytest.mark.slow
def test_the_predictions_of_a_task_replace_no_file_of_the_user(on_mnli, mnli, tmp_path):
    (tmp_path / "dev_matched.jsonl").write_text('{"_id": "1", "text": "mine"}\n')
    config = PredictConfig(model=str(on_mnli.directory), task="mnli", output=str(tmp_path))
    with pytest.raises(ValueError, match="dev_matched.jsonl would replace .* did not write"):
        predict.run(dataclasses.replace(config, data_dir=str(mnli)))
    assert [path.name for path in tmp_path.iterdir()] == ["dev_matched.jsonl"]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["classify", "qa", "tag", "choice"])
def test_a_file_has_the_scores_of_the_run(kind, one_layer, files, tmp_path, capsys):
    result = train(one_layer, tmp_path / "run", task=kind, **files[kind])
    scores = bertjax.evaluate(result.model, data=files[kind]["dev"])
    scores = {f"dev/{key}": value for key, value in scores.items()}
    assert scores == pytest.approx(result.scores, abs=1e-5)
    if kind == "classify":
        rows = [{"text": "abc de", "label": "low"}, {"text": "hij", "label": "high"}]
        scores = bertjax.evaluate(result.model, data=rows)
        assert scores["accuracy"] in (0, 0.5, 1)
        assert "without a label" not in capsys.readouterr().err  # which slow compilations add to
        more = bertjax.evaluate(result.model, data=[*rows, {"text": "abc", "label": ""}])
        assert more == pytest.approx(scores, abs=1e-6)
        assert "data: examples without a label, which the metrics leave out: 1" in (
            capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either task"),
        ({"task": "mnli", "data": "a.csv"}, "either task"),
        ({"task": "mnli", "split": "test"}, "no labels"),
        ({"task": "mnli", "split": "valid"}, "dev_matched, dev_mismatched"),
        ({"task": "rte"}, "has the labels"),
        ({"task": "classify"}, "--input"),
        ({"task": "new.csv"}, "is a file and not the name of a task: give it as data='new.csv'"),
        ({"data": [{"sentence1": "a", "sentence2": "b"}]}, "no labels"),
        ({"task": "mnli", "max_length": 100}, "reads 5 to 64 tokens"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(arguments, message, untrained, mnli, tmp_path):
    for split in ("train", "dev", "test"):  # of RTE
        (tmp_path / f"{split}.tsv").write_text(
            "index\tsentence1\tsentence2\tlabel\n0\tabc\tde\tentailment\n"
        )
    folder = {"mnli": mnli, "rte": tmp_path}.get(arguments.get("task", ""))
    with pytest.raises(ValueError, match=message):
        bertjax.evaluate(untrained, **arguments, data_dir=folder)


def test_splits_and_runs_share_one_compiled_program_per_shape(untrained):
    """Each split and each seed has its own predictor, but not its own programs."""
    loaded, task, _ = with_task(load_model(str(untrained), None))
    mesh = make_mesh(MeshConfig(data=1), jax.local_devices()[:1])
    params = jax.device_put(loaded.params)
    compilations = []

    def count(event: str, seconds: float, **kwargs) -> None:
        if event == "/jax/core/compile/jaxpr_trace_duration" and "apply" in str(kwargs):
            compilations.append(seconds)

    monitoring.register_event_duration_secs_listener(count)
    try:
        seen = []
        for _ in range(5):
            # Another instance of the same architecture, as another run has.
            model = loaded.model.clone()
            predictor = Predictor(task, model, loaded.tokenizer, 32, mesh)
            examples = [Example(id=str(i), where="", text="abc", pair="de") for i in range(70)]
            predictions = [p for _, p in predictor(params, examples)]
            assert len(predictions) == 70
            seen.append(len(compilations))
    finally:
        monitoring.unregister_event_duration_listener(count)
    assert seen[0] > 0 and seen[-1] == seen[0]
    assert np.isfinite([*predictions[0]["probabilities"].values()]).all()
