"""Probable label errors: those of cleanlab, by class, by label and by entity."""

import csv

import numpy as np
import pytest

from bertjax.record.predictions import write_label_errors
from bertjax.tasks.classification import ClassificationTask, MultiLabelTask, RegressionTask
from bertjax.tasks.label_errors import LabelErrors, judge
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.tagging import TagTask
from tests.scored_pairs import CLASSES, TAGS, example
from tests.tables import read_tables


def random_problem(seed):
    """Returns probabilities and labels, about a tenth of which are wrong."""
    rng = np.random.default_rng(seed)
    count, classes = int(rng.integers(50, 400)), int(rng.integers(2, 9))
    truth = rng.integers(classes, size=count)
    logits = rng.normal(0, 1.5, (count, classes)) + 3 * np.eye(classes)[truth]
    labels = np.where(rng.random(count) < 0.1, rng.integers(classes, size=count), truth)
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(1, keepdims=True), labels


@pytest.mark.parametrize("seed", range(20))
def test_issues_and_their_order_are_those_of_cleanlab(seed):
    filters = pytest.importorskip("cleanlab.filter")
    rank = pytest.importorskip("cleanlab.rank")
    probabilities, labels = random_problem(seed)
    judged = judge(probabilities, labels)
    expected = filters.find_label_issues(
        labels,
        probabilities,
        filter_by="confident_learning",
        return_indices_ranked_by="normalized_margin",
    )
    assert judged.ranked().tolist() == expected.tolist()
    confidence = rank.get_label_quality_scores(labels, probabilities, method="self_confidence")
    margin = rank.get_label_quality_scores(labels, probabilities, method="normalized_margin")
    np.testing.assert_allclose(judged.self_confidence, confidence)
    np.testing.assert_allclose(judged.margin, margin)


def test_thresholds_are_the_mean_probabilities_of_the_classes():
    # Class 1 is predicted with .6 where it is the label, so that .55 is not sure enough.
    p = np.array([0.1, 0.2, 0.55, 0.9, 0.6, 0.6, 0.6, 0.6])
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    judged = judge(np.stack([1 - p, p], axis=1), labels)
    assert judged.ranked().tolist() == [3]
    assert judged.suggested.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert judged.margin[3] == pytest.approx((0.1 - 0.9 + 1) / 2)


def judged_rows(task, pairs):
    errors = LabelErrors(task)
    assert list(errors.observe(pairs)) == pairs
    return errors.rows()


def test_rows_name_the_example_the_label_and_the_suggested_one():
    task = ClassificationTask(name="classify", labels=CLASSES)
    pairs = []
    for index in range(30):
        label = CLASSES[index % 3]
        likely = "b" if index == 3 else label
        probabilities = {name: 0.9 if name == likely else 0.05 for name in CLASSES}
        prediction = {"label": likely, "probabilities": probabilities}
        pairs.append((example(index, text=f"text {index}", label=label), prediction))
    pairs.append((example(30, text="without a label"), pairs[0][1]))
    (row,) = judged_rows(task, pairs)
    assert row == {
        "id": "3",
        "place": "row 3",
        "text": "text 3",
        "pair": "",
        "label": "a",
        "suggested_label": "b",
        "probability": 0.9,
        "self_confidence": 0.05,
        "normalized_margin": pytest.approx(0.075),
    }


def test_of_several_labels_each_is_judged_by_itself():
    task = MultiLabelTask(name="classify", labels=("toxic", "rude"))
    pairs = []
    for index in range(40):
        toxic, rude = bool(index % 2), bool(index % 4 < 2)
        p = {"toxic": 0.9 if toxic else 0.1, "rude": 0.8 if rude else 0.2}
        label = [name for name, has in (("toxic", toxic), ("rude", rude)) if has]
        if index == 1:
            label.remove("toxic")
        if index == 2:
            label.append("rude")
        labels = [name for name, value in p.items() if value >= 0.5]
        prediction = {"labels": labels, "probabilities": p}
        pairs.append((example(index, text="x", label=tuple(label)), prediction))
    errors = LabelErrors(task)
    assert list(errors.observe(pairs)) == pairs
    assert {*errors._examples} == {1, 2}  # the others are not kept
    named = [(row["id"], row["label"], row["suggested_label"]) for row in errors.rows()]
    assert named == [("1", "not toxic", "toxic"), ("2", "rude", "not rude")]


def tagged(index, gold, answer, probabilities, own):
    words = tuple(f"word{i}" for i in range(len(gold)))
    prediction = {
        "words": [*words],
        "labels": answer,
        "probabilities": probabilities,
        "gold_probabilities": own,
    }
    return example(index, words=words, label=tuple(gold)), prediction


def test_tags_are_judged_by_entity():
    task = TagTask.of_labels(TAGS, name="tag")
    right = ["B-PER", "I-PER", "O", "O"]
    pairs = [tagged(i, right, right, [0.9] * 4, [0.9] * 4) for i in range(20)]
    longer = ["B-PER", "I-PER", "I-PER", "O"]  # the model has three words where two are given
    pairs.append(tagged(20, right, longer, [0.9, 0.9, 0.95, 0.9], [0.9, 0.9, 0.02, 0.9]))
    none = ["O"] * 4
    pairs.append(tagged(21, none, ["O", "O", "O", "B-PER"], [0.9] * 4, [0.9, 0.9, 0.9, 0.08]))
    unread = tagged(22, right, right, [0.9, 0.9, None, 0.9], [0.9, 0.9, None, 0.9])
    rows = judged_rows(task, [*pairs, unread])
    shown = [(row["id"], row["words"], row["label"], row["suggested_label"]) for row in rows]
    assert shown == [
        ("20", "word0 word1 word2", "PER: word0 word1", "PER: word0 word1 word2"),
        ("21", "word3", "no entity", "PER: word3"),
    ]
    assert rows[0]["self_confidence"] == 0.02


def test_tags_without_entities_are_judged_by_word():
    task = TagTask.of_labels(("DET", "NOUN"), name="tag")
    pairs = [tagged(i, ["DET", "NOUN"], ["DET", "NOUN"], [0.8] * 2, [0.8] * 2) for i in range(9)]
    pairs.append(tagged(9, ["DET", "DET"], ["DET", "NOUN"], [0.8, 0.9], [0.8, 0.1]))
    (row,) = judged_rows(task, pairs)
    assert (row["words"], row["label"], row["suggested_label"]) == ("word1", "DET", "NOUN")


def test_flipped_labels_are_found_first():
    probabilities, labels = random_problem(3)
    truth = probabilities.argmax(1)
    rng = np.random.default_rng(0)
    flipped = rng.choice(len(labels), len(labels) // 20, replace=False)
    labels = truth.copy()
    labels[flipped] = (labels[flipped] + 1) % probabilities.shape[1]
    first = judge(probabilities, labels).ranked()[: len(flipped)]
    assert np.isin(first, flipped).mean() > 0.9


def test_errors_are_found_in_the_file_by_their_row_and_written_as_it_is(tmp_path):
    path = tmp_path / "notes.csv"
    rows = [f"P{n // 3};0{1 + n % 9}.06.2024;Größe {n};{CLASSES[n % 3]}\n" for n in range(30)]
    path.write_text("\ufeffPatienten-ID;Datum;Text;Diagnose\n" + "".join(rows), "utf-8")
    columns = Columns(text="Text", label="Diagnose", dividing=("Patienten-ID",))
    data = read_tables("classify", train=path, columns=columns)
    task = ClassificationTask(name="classify", labels=CLASSES, source=data)
    pairs = []
    for number, found in enumerate(data.examples("train")):
        likely = "b" if number == 3 else found.label
        probabilities = {name: 0.9 if name == likely else 0.05 for name in CLASSES}
        pairs.append((found, {"label": likely, "probabilities": probabilities}))
    issues = judged_rows(task, pairs)
    write_label_errors(tmp_path / "errors.csv", issues, data)
    assert (tmp_path / "errors.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    with (tmp_path / "errors.csv").open(newline="", encoding="utf-8-sig") as file:
        (row,) = csv.DictReader(file, delimiter=";")
    assert row["place"].endswith("notes.csv, row 5") and row["text"] == "Größe 3"
    assert (row["label"], row["suggested_label"]) == ("a", "b")


def test_numbers_have_no_label_errors():
    pairs = [(example(0, label=1.0), {"score": 5.0})]
    assert judged_rows(RegressionTask(name="regress"), pairs) == []
