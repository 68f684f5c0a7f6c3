"""Metrics of embeddings: ranks among all texts, triplets, and cosines beside scores."""

import numpy as np
import pytest

from bertjax.tasks.dataset import Example
from bertjax.tasks.embedding import ContrastiveTask, Retrieval, SimilarityTask
from tests.lines import json_lines


def at(degrees):
    return [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]


def outputs(*degrees, length=3.0):
    return [{"sentence_embedding": length * np.array(at(x), np.float32)} for x in degrees]


def test_an_anchor_ranks_its_positive_among_all_other_texts():
    retrieval = Retrieval()
    retrieval.add(["a", "x", "n"], np.array([at(0), at(10), at(5)]))  # behind n: rank 2
    retrieval.add(["b", "y", "m"], np.array([at(90), at(80), at(170)]))  # rank 1
    retrieval.add(["a", "z", "n"], np.array([at(0), at(60), at(5)]))  # behind n, x is right as well
    ranks = np.array([2, 1, 2])
    assert retrieval.scores() == {
        "mrr": pytest.approx(np.mean(1 / ranks)),
        "recall_at_1": pytest.approx(1 / 3),
        "recall_at_10": 1.0,
        "triplet_accuracy": pytest.approx(1 / 3),
    }


def test_the_text_of_the_anchor_is_no_wrong_candidate():
    retrieval = Retrieval()
    retrieval.add(["a", "b"], np.array([at(0), at(10)]))
    retrieval.add(["c", "a"], np.array([at(90), at(0)]))  # where "a" is a candidate
    assert retrieval.scores()["mrr"] == pytest.approx(np.mean([1, 1 / 2]))


def test_equal_embeddings_find_nothing():
    retrieval = Retrieval()
    for i in range(20):
        retrieval.add([f"a{i}", f"p{i}"], np.array([at(0), at(0)]))
    scores = retrieval.scores()
    assert scores["mrr"] < 0.1 and scores["recall_at_1"] == scores["recall_at_10"] == 0
    assert "triplet_accuracy" not in scores and Retrieval().scores() == {}


def test_similarities_are_cosines_and_are_compared_on_the_scale_of_the_scores():
    task = SimilarityTask(name="embed", lowest=1.0, highest=5.0)
    example = Example(id="0", where="row 1", text="a", pair="b", choices=("c",), label=3.0)
    prediction = task.predict(example, [], outputs(0, 60, 90))
    assert prediction["similarity"] == pytest.approx(0.5)
    assert prediction["negatives"] == [pytest.approx(0, abs=1e-6)]
    assert task.predicted_label(prediction) == pytest.approx(3.0)
    pairs = [(example, {"similarity": x}) for x in (0.1, 0.4)]
    assert set(task.score(pairs)) == set(task.metric_names())


def test_predictions_are_written_without_the_vectors_that_are_scored(tmp_path):
    task = ContrastiveTask(name="embed", num_texts=3, scored=False)
    examples = [
        Example(id=str(i), where="", text=f"a{i}", pair=f"p{i}", choices=("n",)) for i in range(3)
    ]
    pairs = [
        (x, task.predict(x, [], outputs(40 * i, 40 * i + 5, 10))) for i, x in enumerate(examples)
    ]
    scores = task.score(task.write_predictions(tmp_path, "dev", iter(pairs)))
    assert set(scores) == set(task.metric_names()) and scores["recall_at_1"] == 1.0
    lines = json_lines(tmp_path / "dev.jsonl")
    assert [set(line) for line in lines] == [{"id", "similarity", "negatives"}] * 3
