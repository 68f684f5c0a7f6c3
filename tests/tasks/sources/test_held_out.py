"""A part of the train file is held out where there is no dev file."""

import itertools
import json
from collections import Counter

import pytest

from bertjax.tasks import make_task
from bertjax.tasks.classification import ClassifyOptions
from bertjax.tasks.question_answering import QaOptions
from bertjax.tasks.sources.held_out import BY_CLASS, BY_RAREST, grouped, spread, stratified
from tests.tables import read_tables


def test_every_class_is_held_out_in_its_proportion_and_never_whole():
    labels = ["a"] * 500 + ["b"] * 100 + ["c"] * 2 + ["d"]
    held_out = stratified(labels, 0.1)
    assert Counter(labels[i] for i in held_out) == {"a": 50, "b": 10, "c": 1}
    assert held_out == stratified(labels, 0.1)
    assert stratified(["a"], 0.5) == frozenset()


def test_rare_combinations_of_labels_do_not_enlarge_what_is_held_out():
    labels = [tuple(f"l{j}" for j in range(9) if i >> j & 1) for i in range(512)] + [("rare",)] * 2
    held_out = BY_RAREST.fraction(labels, 0.1)
    assert 45 <= len(held_out) <= 60
    assert sum(labels[i] == ("rare",) for i in held_out) == 1
    assert len(stratified(labels, 0.1)) == 1  # every other combination occurs once


def test_numbers_are_held_out_over_their_whole_range():
    values = [float(x) for x in range(1000)]
    held_out = sorted(values[i] for i in spread(values, 0.1))
    assert len(held_out) == 100
    assert all(100 * n <= held_out[10 * n] < 100 * (n + 1) for n in range(10))


def test_groups_are_held_out_whole():
    groups = [i // 7 for i in range(700)]
    held_out = grouped(groups, 0.1)
    assert 70 <= len(held_out) < 77
    inside = {groups[i] for i in held_out}
    assert len(held_out) == 7 * len(inside)


@pytest.fixture
def options(tmp_path):
    rows = [f"text {i},{'rare' if i % 50 == 0 else 'usual'}\n" for i in range(200)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(rows))
    return ClassifyOptions(train=str(tmp_path / "train.csv"), dev_fraction=0.1)


def test_a_task_without_a_dev_file_evaluates_a_tenth_and_says_so(options, capsys):
    task = make_task("classify", options)
    assert "21 of the 200 examples in train.csv are not trained on" in capsys.readouterr().out
    texts = {split: [e.text for e in task.source.examples(split)] for split in ("train", "dev")}
    assert len(texts["dev"]) == 21 and len(texts["train"]) == 179
    assert set(texts["dev"]).isdisjoint(texts["train"])
    assert texts["train"] == sorted(texts["train"], key=lambda text: int(text.split()[1]))
    assert Counter(e.label for e in task.source.examples("dev")) == {"usual": 20, "rare": 1}


def test_nothing_is_held_out_where_there_is_a_dev_file_or_the_user_wants_all(options, tmp_path):
    everything = ClassifyOptions(train=options.train, dev_fraction=0.0)
    assert make_task("classify", everything).source.splits == ("train",)
    two = ClassifyOptions(train=options.train, dev=options.train)
    assert len(list(make_task("classify", two).source.examples("train"))) == 200


def test_copies_of_a_text_are_not_evaluated_with_a_model_that_saw_them(tmp_path, capsys):
    rows = [f"text {i % 60},{'yes' if i % 7 < 3 else 'no'}\n" for i in range(300)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(rows))
    task = make_task(
        "classify", ClassifyOptions(train=str(tmp_path / "train.csv"), dev_fraction=0.1)
    )
    texts = {split: [e.text for e in task.source.examples(split)] for split in ("train", "dev")}
    assert len(texts["dev"]) == 30 and len(texts["train"]) == 270
    assert set(texts["dev"]).isdisjoint(texts["train"])
    assert "240 examples repeat the text of an earlier one: " in capsys.readouterr().out


def test_it_is_said_if_no_example_can_be_held_out(tmp_path, capsys):
    # The columns are swapped: the classes are taken for the texts.
    rows = [f"{'ab'[i % 2]},class {i % 10}\n" for i in range(40)]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(rows))
    task = make_task("classify", ClassifyOptions(train=str(tmp_path / "a.csv"), dev_fraction=0.1))
    assert "dev" not in task.source.splits
    printed = capsys.readouterr().out
    assert (
        "none of the 40 examples in a.csv can be held out (the same share of every class" in printed
    )


def test_examples_of_the_dev_file_that_are_trained_on_are_counted(options, tmp_path, capsys):
    (tmp_path / "dev.csv").write_text("text,label\ntext 3,usual\ntext 4,rare\nnew,rare\n")
    make_task("classify", ClassifyOptions(train=options.train, dev=str(tmp_path / "dev.csv")))
    assert "2 of the 3 examples of dev (66.7%) are in train" in capsys.readouterr().out


def test_questions_about_one_passage_stay_together(tmp_path):
    paragraphs = [
        {
            "context": f"Word {p}.",
            "qas": [
                {
                    "id": f"{p}-{q}",
                    "question": "?",
                    "answers": [{"text": "Word", "answer_start": 0}],
                }
                for q in range(4)
            ],
        }
        for p in range(10)
    ]
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    task = make_task("qa", QaOptions(train=str(tmp_path / "train.json"), dev_fraction=0.1))
    dev = [e.pair for e in task.source.examples("dev")]
    assert len(dev) == 4 and len(set(dev)) == 1
    assert dev[0] not in {e.pair for e in task.source.examples("train")}


def test_datasets_never_change_and_are_split_by_the_rows_that_are_left(tmp_path):
    rows = [f"text {i},{('x', 'y', '1', '1.0')[i % 4]}\n" for i in range(40)]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(rows))
    data = read_tables("classify", train=tmp_path / "a.csv", bad_rows="skip")
    problems = {f"{tmp_path / 'a.csv'}, row {row}": "not meant" for row in (2, 7)}
    steps = {
        "split": lambda data: data.split(BY_CLASS, fraction=0.2),
        "labelled": lambda data: data.labelled(["x", "y", "1"]),
        "without": lambda data: data.without("train", problems),
    }

    def read(data):
        return {split: [(e.text, e.label) for e in data.examples(split)] for split in data.splits}

    before = read(data)
    results = {True: [], False: []}  # by whether rows were left out before the split
    for order in itertools.permutations(steps):
        made = data
        for step in order:
            made = steps[step](made)
            made.rows["train"].forget()  # which only frees memory
        result = read(made), made.held_out_indices(), made.all_bad_rows()
        results[order.index("without") < order.index("split")].append(result)
    for of_order in results.values():
        assert all(result == of_order[0] for result in of_order)
        examples, held_out, bad = of_order[0]
        assert len(held_out) == len(examples["dev"]) == 8 and len(bad) == 2
        assert {label for _, label in examples["train"]} == {"x", "y", "1"}
        assert not {"text 0", "text 5"} & {text for text, _ in examples["train"]}
    assert not {"text 0", "text 5"} & {text for text, _ in examples["dev"]}
    assert read(data) == before and data.splits == ("train",)
