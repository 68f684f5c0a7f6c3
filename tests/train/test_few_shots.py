"""Draws of a few examples per class are balanced, and the same for the same seed."""

import dataclasses
import re

import numpy as np
import pytest

from bertjax import finetune
from bertjax.config import FinetuneConfig
from bertjax.data.batches.batch import decode_feature
from bertjax.data.records import read_shard
from bertjax.tasks import make_task
from bertjax.tasks.classification import ClassifyOptions, RegressOptions
from bertjax.tasks.training_data import write_training_data
from bertjax.train.experiments import _by_shots, draw, shots_of, variants


def test_a_draw_is_balanced_and_told_by_its_seed():
    classes = np.random.default_rng(0).choice(3, 500, p=[0.8, 0.15, 0.05])
    draws = [draw(classes, 8, seed) for seed in range(10)]
    for chosen in draws:
        assert np.bincount(classes[chosen]).tolist() == [8, 8, 8]
        assert len(set(chosen.tolist())) == 24 and (np.diff(chosen) > 0).all()
    assert (draws[3] == draw(classes, 8, 3)).all()
    assert len({tuple(chosen.tolist()) for chosen in draws}) == 10


@pytest.fixture(scope="module")
def classify(files, tokenizer, tmp_path_factory):
    task = make_task("classify", ClassifyOptions(**files["classify"]))
    path = tmp_path_factory.mktemp("shots") / "train.array_record"
    return task, write_training_data(task, tokenizer, 32, path)


def test_the_drawn_records_are_those_of_the_training_data(classify):
    task, data = classify
    whole = list(read_shard(data.path))
    drawn = shots_of(task, data, 3, seed=1)
    records = list(read_shard(drawn.path))
    assert [whole.index(record) for record in records] == sorted(
        whole.index(record) for record in records
    )
    labels = [int(decode_feature(record).labels[0]) for record in records]
    assert np.bincount(labels).tolist() == drawn.class_counts.tolist() == [3, 3]
    assert drawn.sizes.tolist() == [len(decode_feature(record).input_ids) for record in records]
    again, other = shots_of(task, data, 3, seed=1), shots_of(task, data, 3, seed=2)
    assert again.fingerprint == drawn.fingerprint != other.fingerprint


def test_shots_of_a_class_are_of_different_patients(tmp_path, tokenizer):
    # The length of a note tells which it is.
    rows = [f"{'note ' * (n + 1)},{n % 17},{'ab'[n % 17 % 2]}\n" for n in range(170)]
    (tmp_path / "notes.csv").write_text("text,patient,label\n" + "".join(rows))
    options = ClassifyOptions(train=str(tmp_path / "notes.csv"), group_column=("patient",))
    task = make_task("classify", options)
    data = write_training_data(task, tokenizer, 200, tmp_path / "train.array_record")
    whole = list(read_shard(data.path))
    patients = [example.row["patient"] for example in task.source.examples("train")]
    drawn = [whole.index(record) for record in read_shard(shots_of(task, data, 6, seed=3).path)]
    assert len({patients[index] for index in drawn}) == len(drawn) == 12
    with pytest.raises(ValueError, match=re.escape("fewer groups of ")):
        shots_of(task, data, 9, seed=3)


def test_too_few_examples_and_tasks_without_classes_are_refused(classify, files):
    task, data = classify
    with pytest.raises(ValueError, match=re.escape("fewer examples of high (22): give at most")):
        shots_of(task, data, 23, seed=0)
    regress = make_task("regress", RegressOptions(**files["regress"]))
    with pytest.raises(ValueError, match="regress does not have one class per example"):
        shots_of(regress, data, 3, seed=0)


def test_several_numbers_of_shots_have_as_many_runs_each():
    config = finetune.parse(["--task=sst2", "--shots", "32", "8", "32", "--seeds=2"])
    assert config.shots == (32, 8, 32) and config.shot_counts == (8, 32)
    runs = variants(dataclasses.replace(config, workdir="run"))
    assert [name for name, _ in runs] == [
        *("shots8_seed0", "shots8_seed1", "shots32_seed0", "shots32_seed1")
    ]
    assert [(run.shots, run.seed, run.seeds) for _, run in runs] == [
        *((8, 0, 1), (8, 1, 1), (32, 0, 1), (32, 1, 1))
    ]
    assert runs[0][1].workdir == "run/shots8_seed0"
    groups = _by_shots(config, {name: {} for name, _ in runs})
    assert [[*group] for group in groups] == [
        ["shots8_seed0", "shots8_seed1"],
        ["shots32_seed0", "shots32_seed1"],
    ]
    one = finetune.parse(["--task=sst2", "--shots", "8", "--seeds=1"])
    assert [name for name, _ in variants(one)] == [""]
    with pytest.raises(ValueError, match="shots=0: it must be at least 1"):
        dataclasses.replace(config, shots=(8, 0))


def test_the_defaults_of_shots_are_those_of_few_shots_unless_a_config_is_given():
    config = finetune.parse(["--task=sst2", "--shots", "4", "--seeds=3"])
    assert (config.task, config.shots, config.seeds, config.select_by) == ("sst2", 4, 3, "last")
    assert config.max_steps is not None and config.optimizer.learning_rate == 2e-5
    plain = finetune.parse(["--task=sst2", "--shots=4", "--config=sst2"])
    assert (plain.max_steps, plain.seeds, plain.select_by) == (None, 1, None)
    assert plain.optimizer == FinetuneConfig.optimizer


def test_settings_without_effect_with_shots_are_refused(capsys):
    with pytest.raises(ValueError, match="num_epochs=20 .* max_steps=200"):
        finetune.parse(["--task=sst2", "--shots=8", "--num_epochs=20"])
    config = finetune.parse(["--task=sst2", "--shots=8", "--num_epochs=20", "--max_steps=None"])
    assert (config.num_epochs, config.max_steps) == (20, None)
    with pytest.raises(SystemExit):
        finetune.parse(["--task=sst2", "--shots=8", "--patience=3"])
    printed = " ".join(capsys.readouterr().err.split())
    assert "patience=3" in printed and "--select_by last (the default of --shots)" in printed
