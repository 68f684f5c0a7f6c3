"""Reports of a split: scores of classes and entity types, confusions, summaries of the data."""

import csv
import json

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from bertjax.record.predictions import ClassReport, print_scores
from bertjax.tasks import Example, finetune_config
from bertjax.tasks.classification import ClassificationTask, MultiLabelTask
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.training_data import TrainingData
from bertjax.train.run_plan import summary


def report_of(labels, golds, answers):
    report = ClassReport(ClassificationTask(name="classify", labels=labels))
    pairs = [
        (Example(id="", where="", label=gold), {"label": answer})
        for gold, answer in zip(golds, answers, strict=True)
    ]
    assert list(report.observe(pairs)) == pairs
    return report


@pytest.mark.parametrize("classes", [3, 30])
def test_scores_are_those_of_scikit_learn_and_fit_80_columns(classes, tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = tuple(f"class {i:02}" for i in range(classes))
    golds = [labels[i] for i in rng.integers(0, classes, 300)]
    answers = [labels[i] for i in rng.integers(0, classes, 300)]
    report = report_of(labels, golds, answers)
    expected = precision_recall_fscore_support(golds, answers, labels=labels, zero_division=0.0)
    found = np.array([row[1:] for row in report.scores()])
    np.testing.assert_allclose(found.T, np.array(expected), atol=1e-12)
    report.print("classify, dev")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert ("confusions" in printed) == (classes == 30)
    assert len(printed.splitlines()) < 2 * classes + 30  # of the confusions, the most frequent ones
    report.write(tmp_path, "dev")
    assert json.loads((tmp_path / "dev.report.json").read_text())[0]["name"] == labels[0]
    rows = list(csv.reader((tmp_path / "dev.confusion.csv").read_text().splitlines()))
    matrix = np.array([row[1:] for row in rows[1:]], int)
    assert rows[0] == ["label", *labels] and matrix.sum() == 300
    assert matrix[0, 0] == sum(a == b == labels[0] for a, b in zip(golds, answers, strict=True))


@pytest.mark.parametrize(
    "label", ["\x1b[31mred", "a\x9b2Jb", "\u202etxt.exe", "line\nbreak", "x" * 3000, "[bold]b"]
)
@pytest.mark.parametrize("classes", [2, 30])
def test_labels_of_strangers_cannot_command_the_terminal(label, classes, capsys):
    labels = (label, *(f"class {i:02}" for i in range(1, classes)))
    report_of(labels, [label, labels[1]], [labels[1], label]).print("classify, dev")
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert len(printed) < 8000
    assert label != "[bold]b" or label in printed


def test_many_classes_without_a_mistake_have_no_empty_table(capsys):
    labels = tuple(f"class {i:02}" for i in range(30))
    report_of(labels, labels, labels).print("classify, dev")
    printed = capsys.readouterr().out
    assert "classify, dev: no wrong prediction" in printed and "confusions" not in printed


def test_entities_are_reported_by_type():
    task = TagTask.of_labels(("O", "B-LOC", "I-LOC", "B-PER", "I-PER"), name="tag")
    report = ClassReport(task)
    example = Example(id="", where="", label=("B-PER", "I-PER", "O", "B-LOC"))
    list(report.observe([(example, {"labels": ["B-PER", "I-PER", "B-LOC", "O"]})]))
    assert [tuple(row) for row in report.scores()] == [("LOC", 0, 0, 0, 1), ("PER", 1, 1, 1, 1)]


def test_the_summary_counts_classes_and_warns_of_classes_that_look_alike(tmp_path):
    task = ClassificationTask(name="c", labels=("NEGATIVE", "negative", "pos-itive", "Pos itive"))
    data = TrainingData(tmp_path, np.arange(1, 101), np.array([70, 20, 9, 1]), "", 100)
    lines = summary(task, data, finetune_config(task="classify", batch_size=32))
    assert lines[0].startswith("train: 100 examples of 1 to 100 tokens (median 51, 95 % have at")
    assert lines[0].endswith("an epoch has 4 updates of 32")
    assert "4 classes by examples: NEGATIVE 70 (70.0 %), negative 20 (20.0 %)" in lines[1]
    assert len(lines) == 4 and all(line.startswith("warning: the classes") for line in lines[2:])


def test_the_summary_warns_of_a_rare_class_that_may_be_misspelt(tmp_path):
    labels = ("negative", "positive", "postive", "neutral", "grade 1", "grade 2")
    task = ClassificationTask(name="c", labels=labels)
    data = TrainingData(tmp_path, np.arange(1, 163), np.array([80, 40, 2, 10, 29, 1]), "", 162)
    lines = summary(task, data, finetune_config(task="classify"))
    (warning,) = [line for line in lines if line.startswith("warning")]
    assert warning == (
        "warning: the class 'postive' (2) is almost 'positive': if it is misspelt, correct it in "
        "the file."
    )


def test_several_labels_per_example_are_counted_and_reported_by_label(tmp_path, capsys):
    rng = np.random.default_rng(0)
    names = ("a", "b", "c", "never")
    golds, answers = ((rng.random((200, 4)) < (0.5, 0.2, 0.1, 0)) for _ in range(2))
    task = MultiLabelTask(name="classify", labels=names)
    pairs = []
    for gold, answer in zip(golds, answers, strict=True):
        labels = tuple(name for name, has in zip(names, gold, strict=True) if has)
        probabilities = {n: 0.9 if has else 0.1 for n, has in zip(names, answer, strict=True)}
        found = [name for name, p in probabilities.items() if p > 0.5]
        pairs.append(
            (
                Example(id="", where="", label=labels),
                {"labels": found, "probabilities": probabilities},
            )
        )
    report = ClassReport(task)
    scores = task.score(report.observe(pairs))
    expected = precision_recall_fscore_support(golds, answers, zero_division=0.0)
    np.testing.assert_allclose(
        np.array([row[1:] for row in report.scores()]).T, np.array(expected), atol=1e-12
    )
    right = (golds == answers).mean()
    expected_loss = -right * np.log(0.9) - (1 - right) * np.log(0.1)
    assert scores["loss"] == pytest.approx(expected_loss)
    report.print("classify, dev")
    (line,) = [row for row in capsys.readouterr().out.splitlines() if "never" in row]
    assert line.count("-") == 3
    report.write(tmp_path, "dev")
    assert [*tmp_path.iterdir()] == [tmp_path / "dev.report.json"]
    data = TrainingData(tmp_path, np.arange(1, 201), golds.sum(0), "", 200)
    lines = summary(task, data, finetune_config(task="classify", batch_size=32))
    share = f"a {golds[:, 0].sum()} ({golds[:, 0].mean():.1%}".replace("%", " %")
    assert f"4 labels by examples: {share}" in lines[1]


def test_tables_say_held_out_for_each_dev_split(capsys):
    scores = {"": {"dev/macro_f1": 0.5, "dev_mismatched/accuracy": 0.25, "test/loss": 1.5}}
    print_scores(scores, ClassificationTask(name="classify", labels=("a", "b")))
    printed = capsys.readouterr().out
    for name in ("held-out macro F1", "held-out (mismatched) accuracy", "test loss"):
        assert name in printed
    assert "dev" not in printed


def test_labels_in_a_confusion_matrix_are_no_formulas_but_numbers_stay(tmp_path):
    labels = ("=1+1", "=1", "@sum", "-1", "+2", "-x", "fine")
    report_of(labels, labels, labels).write(tmp_path, "dev")
    with (tmp_path / "dev.confusion.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    names = ["'=1+1", "'=1", "'@sum", "-1", "+2", "'-x", "fine"]
    assert rows[0] == ["label", *names] and [row[0] for row in rows[1:]] == names
    assert [row["name"] for row in json.loads((tmp_path / "dev.report.json").read_text())] == [
        *labels
    ]
