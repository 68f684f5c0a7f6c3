"""Baselines: those of scikit-learn by hand, for every kind of labels, and never an error."""

import csv
import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, mean_absolute_error

from bertjax.tasks import make_task
from bertjax.tasks.baselines import Baselines
from bertjax.tasks.classification import ClassifyOptions, RegressOptions
from bertjax.tasks.tagging import TagOptions
from bertjax.tasks.training_data import TrainingData


def table(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def texts_of(rng, count):
    """Returns texts, and whether each of them has more good than bad words."""
    words = rng.choice(["good", "bad", "the", "film", "was"], (count, 9))
    return [" ".join(row) for row in words], (words == "good").sum(1) > (words == "bad").sum(1)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    paths = {}
    for split, count in (("train", 300), ("dev", 100)):
        texts, good = texts_of(rng, count)
        rows = [*zip(texts, np.where(good, "yes", "no"), good + rng.random(count), strict=True)]
        paths[split] = table(tmp_path / f"{split}.csv", [("text", "label", "number"), *rows])
    return paths


def read(path):
    with open(path, newline="") as file:
        return [*csv.DictReader(file)]


def data_of(task, **fields):
    count = sum(1 for _ in task.data.examples("train"))
    return TrainingData(Path(), np.ones(count), np.zeros(0), "", count, **fields)


def content_of(task, **fields):
    return Baselines(task, data_of(task, **fields)).content


def test_a_bag_of_words_is_logistic_regression_on_tfidf(files):
    task = make_task("classify", ClassifyOptions(**files, ignore_columns=("number",)))
    content = content_of(task)
    train, dev = read(files["train"]), read(files["dev"])
    words = TfidfVectorizer(sublinear_tf=True).fit([row["text"] for row in train])
    x, y = [words.transform([row["text"] for row in rows]) for rows in (train, dev)]
    labels = [row["label"] for row in train]
    answers = LogisticRegression(max_iter=200).fit(x, labels).predict(y)
    golds = [row["label"] for row in dev]
    scores = content["splits"]["dev"]
    assert scores["bag of words"]["accuracy"] == accuracy_score(golds, answers)
    most = max({*labels}, key=labels.count)
    assert scores["majority"]["accuracy"] == np.mean([gold == most for gold in golds])
    assert scores["majority"].keys() == {"accuracy", "macro_f1", "weighted_f1"}
    assert (content["rows"], content["skipped"]) == (300, "")


def test_numbers_are_compared_with_their_mean_and_ridge_regression(files):
    options = RegressOptions(**files, label_column="number", ignore_columns=("label",))
    scores = content_of(make_task("regress", options))["splits"]["dev"]
    train, dev = read(files["train"]), read(files["dev"])
    numbers = [[float(row["number"]) for row in rows] for rows in (train, dev)]
    mean = [np.mean(numbers[0])] * len(dev)
    assert scores["mean"]["mae"] == pytest.approx(mean_absolute_error(numbers[1], mean))
    words = TfidfVectorizer(sublinear_tf=True).fit([row["text"] for row in train])
    x, y = [words.transform([row["text"] for row in rows]) for rows in (train, dev)]
    answers = Ridge().fit(x, numbers[0]).predict(y)
    expected = mean_absolute_error(numbers[1], answers)
    assert scores["bag of words"]["mae"] == pytest.approx(expected, rel=1e-6)


def test_several_labels_have_a_classifier_each(tmp_path):
    rng = np.random.default_rng(0)
    texts, good = texts_of(rng, 400)
    labels = np.where(good, "a|b", np.where(rng.random(400) < 0.5, "b", ""))
    rows = [("text", "label"), *zip(texts, labels, strict=True)]
    options = ClassifyOptions(train=table(tmp_path / "a.csv", rows), label_separator="|")
    scores = content_of(make_task("classify", options))["splits"]["dev"]
    assert scores["bag of words"]["micro_f1"] > scores["majority"]["micro_f1"]
    assert scores.keys() == {"majority", "bag of words"}


def test_the_most_probable_class_is_learnt_of_soft_labels(tmp_path):
    rng = np.random.default_rng(0)
    texts, good = texts_of(rng, 300)
    shares = np.where(good, 0.8, 0.3)
    rows = [("text", "yes", "no"), *zip(texts, shares, 1 - shares, strict=True)]
    options = ClassifyOptions(
        train=table(tmp_path / "a.csv", rows), label_columns=("yes", "no"), text_column="text"
    )
    task = make_task("classify", options)
    assert task.label_kind == "distribution"
    scores = content_of(task)["splits"]["dev"]
    assert scores["bag of words"]["accuracy"] > 0.9 > scores["majority"]["accuracy"]


def test_scripts_without_spaces_have_words(tmp_path):
    rng = np.random.default_rng(0)
    rows = [("text", "label")]
    for _ in range(200):
        label = rng.choice(["yes", "no"])
        signs = rng.choice(["好" if label == "yes" else "坏", "天", "地", "人"], 6)
        rows.append(("".join(signs), label))
    options = ClassifyOptions(train=table(tmp_path / "a.csv", rows))
    scores = content_of(make_task("classify", options))["splits"]["dev"]
    assert scores["bag of words"]["accuracy"] > 0.8


def test_drawn_examples_alone_are_trained_on(files):
    task = make_task("classify", ClassifyOptions(**files, ignore_columns=("number",)))
    labels = [row["label"] for row in read(files["train"])]
    rare = min({*labels}, key=labels.count)
    chosen = np.array([i for i, x in enumerate(labels) if x == rare][:9] + [labels.index("yes")])
    chosen = np.unique(np.append(chosen, labels.index("no")))
    content = Baselines(task, data_of(task, chosen=chosen)).content
    golds = [row["label"] == rare for row in read(files["dev"])]
    assert content["splits"]["dev"]["majority"]["accuracy"] == np.mean(golds)
    assert content["rows"] == len(chosen)


def test_what_cannot_be_compared_is_a_sentence(files, tmp_path):
    (tmp_path / "a.conll").write_text("Ada B-PER\nlives O\n\nhere O\n\n" * 20)
    task = make_task("tag", TagOptions(train=str(tmp_path / "a.conll"), dev_fraction=0.5))
    content = content_of(task)
    assert not content["splits"] and "tag" in content["skipped"]
    task = make_task("classify", ClassifyOptions(**files, ignore_columns=("number",)))
    data = data_of(task)
    task.data.rows["train"].forget()
    (tmp_path / "train.csv").unlink()
    content = Baselines(task, data).content
    assert not content["splits"] and "train.csv" in content["skipped"]


def test_a_train_file_that_changed_during_the_run_has_no_baselines(files):
    task = make_task("classify", ClassifyOptions(**files, ignore_columns=("number",)))
    baselines = Baselines(task, data_of(task))
    os.utime(files["train"], (baselines.began + 60, baselines.began + 60))
    assert files["train"] in baselines.content["skipped"]


def test_a_dataset_that_is_no_file_has_the_baselines_of_its_rows(files):
    task = make_task("classify", ClassifyOptions(**files, ignore_columns=("number",)))
    expected = content_of(task)
    source = dataclasses.replace(
        task.data, files={split: Path(f"glue, {split}") for split in task.data.files}
    )
    assert content_of(dataclasses.replace(task, source=source)) == expected
