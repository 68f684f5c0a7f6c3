"""Intervals of several runs belong to the scores of the runs, whatever became of the files."""

import dataclasses
import json

import pytest

from bertjax.record.predictions import print_scores
from bertjax.tasks.dataset import Dataset
from bertjax.tasks.measures import scored_rows
from bertjax.train.experiments import _summary
from bertjax.train.run_intervals import NotStoredError, of_folds, of_seeds, stored_pairs
from tests.scored_pairs import TASKS, pairs_of


@pytest.fixture
def runs(tmp_path):
    """Returns a task with its examples, the scores of two runs, and the folder of the runs."""
    scores = {}
    task, pairs = pairs_of("classes", 40)
    for seed in range(2):
        _, others = pairs_of("classes", 40, seed=seed)
        predicted = [(pair[0], other[1]) for pair, other in zip(pairs, others, strict=True)]
        folder = tmp_path / f"seed{seed}" / "predictions"
        folder.mkdir(parents=True)
        found = task.score(task.write_predictions(folder, "test", predicted))
        scores[f"seed{seed}"] = {f"test/{name}": value for name, value in found.items()}
    return with_examples(task, [example for example, _ in pairs]), scores, tmp_path


def with_examples(task, examples):
    source = Dataset(name="own", files={"test": "t"}, rows={"test": examples})
    return dataclasses.replace(task, source=source)


def test_intervals_are_those_of_the_labels_that_the_scores_are_of(runs):
    task, scores, folder = runs
    expected = of_seeds(folder, task, scores)
    assert set(expected) == {"rows", "seeds", "both"}
    edited = [dataclasses.replace(x, label="a") for x in task.data.examples("test")]
    assert of_seeds(folder, with_examples(task, edited), scores) == expected


def test_without_the_predictions_of_the_examples_there_are_intervals_over_seeds_alone(runs):
    task, scores, folder = runs
    examples = [*task.data.examples("test")]
    appended = with_examples(task, [*examples, dataclasses.replace(examples[0], id="40")])
    assert set(of_seeds(folder, appended, scores)) == {"seeds"}
    exchanged = with_examples(task, examples[::-1])
    assert set(of_seeds(folder, exchanged, scores)) == {"seeds"}
    (folder / "seed1/predictions/test.jsonl").unlink()
    assert set(of_seeds(folder, task, scores)) == {"seeds"}
    with pytest.raises(NotStoredError, match="lacks predictions.*delete"):
        list(stored_pairs(task, folder / "seed1", "test"))


def test_folds_are_summarised_by_the_scores_that_all_of_them_have(capsys):
    task, _ = pairs_of("squad2", 1)
    folds = {"fold1": {"dev/f1": 0.5}, "fold2": {"dev/f1": 0.7, "dev/NoAns_exact": 1.0}}
    config = dataclasses.make_dataclass("Config", ["folds", "seed"])(2, 0)
    summary = _summary(config, folds, {})
    assert list(summary["metrics"]) == ["f1"]
    print_scores(folds, with_examples(task, []))
    assert "NoAns" not in capsys.readouterr().out
    json.dumps(summary)


@pytest.mark.parametrize("kind", TASKS)
def test_folds_have_intervals_of_the_scores_of_the_task_alone(kind):
    pairs = [pairs_of(kind, 40, seed=seed) for seed in range(2)]
    folds = [scored_rows(*of_fold) for of_fold in pairs]
    task, of_first = pairs[0]
    scores = {f"dev/{name}" for name in task.score(of_first)}
    assert of_folds(folds)["rows"].keys() <= scores
