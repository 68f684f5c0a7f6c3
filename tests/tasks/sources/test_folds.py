"""Folds divide the examples: stratified, over the range of the targets, or by whole passages."""

import json
from collections import Counter

import numpy as np
import pytest

from bertjax.tasks import make_task
from bertjax.tasks.classification import ClassifyOptions
from bertjax.tasks.dataset import Fold
from bertjax.tasks.registry import options_class
from bertjax.tasks.sources.held_out import (
    BY_CLASS,
    BY_PASSAGE,
    BY_RAREST,
    BY_TARGET,
    grouped_folds,
    spread_folds,
    stratified_folds,
)
from bertjax.tasks.tagging import TagOptions


@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_label_is_dealt_evenly_and_sizes_differ_by_one_at_most(count, seed):
    labels = ["a"] * 53 + ["b"] * 17 + ["c"] * 4 + ["d"]
    folds = stratified_folds(labels, count, seed)
    sizes = np.bincount(folds, minlength=count)
    assert sizes.max() - sizes.min() <= 1 and sizes.sum() == 75
    for label in "abcd":
        of_label = np.bincount(folds[[x == label for x in labels]], minlength=count)
        assert of_label.max() - of_label.min() <= 1


def test_targets_are_dealt_evenly_over_their_range():
    values = np.random.default_rng(3).normal(size=103)
    folds = spread_folds(values, 5, 0)
    order = np.argsort(values)
    for start in range(0, 100, 5):
        assert sorted(folds[order[start : start + 5]]) == [0, 1, 2, 3, 4]


def test_groups_stay_whole_and_folds_are_of_about_equal_size():
    groups = [i // size for size in (1, 3, 9) for i in range(90)]
    groups = [(n // 90, group) for n, group in enumerate(groups)]
    folds = grouped_folds(groups, 4, 0)
    assert len({(group, int(fold)) for group, fold in zip(groups, folds, strict=True)}) == len(
        set(groups)
    )
    sizes = np.bincount(folds, minlength=4)
    assert sizes.max() - sizes.min() <= 9


@pytest.mark.parametrize("choice", [BY_CLASS, BY_TARGET, BY_PASSAGE])
def test_folds_are_drawn_by_the_seed(choice):
    keys = [i % 7 for i in range(70)] if choice is not BY_PASSAGE else list(range(70))
    first, same, other = (choice.folds(keys, 5, seed) for seed in (3, 3, 4))
    assert (first == same).all() and (first != other).any()
    several = [(key, "x") for key in keys]
    assert (BY_RAREST.folds(several, 5, 3) == BY_RAREST.folds(several, 5, 3)).all()


def parts(task: str, count: int, **files):
    made = []
    for index in range(count):
        source = make_task(task, options_class(task)(**files), Fold(index, count, 0)).source
        texts = {s: [(e.text, e.pair) for e in source.examples(s)] for s in ("train", "dev")}
        made.append((source.held_out_indices(), texts["train"], texts["dev"]))
    return made


def test_each_example_of_a_file_is_held_out_once_and_copies_stay_together(tmp_path, capsys):
    rows = [f"text {i % 50},{'rare' if i % 50 < 6 else 'usual'}\n" for i in range(60)]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(rows))
    folds = parts("classify", 3, train=str(tmp_path / "a.csv"))
    assert sorted(i for indices, *_ in folds for i in indices) == list(range(60))
    for indices, train, dev in folds:
        assert len(train) + len(dev) == 60 and not set(train) & set(dev)
        assert dev == [(f"text {i % 50}", None) for i in indices]
        assert Counter(int(text.split()[1]) < 6 for text, _ in set(dev))[True] == 2
    printed = capsys.readouterr().out
    assert "Fold 2 of 3: " in printed and "the same share of every class" in printed


def test_every_fold_has_the_same_classes_although_one_lacks_an_example_of_a_class(tmp_path):
    rows = [f"text {i},{'once' if i == 7 else 'ab'[i % 2]}\n" for i in range(20)]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(rows))
    for index in range(4):
        options = ClassifyOptions(train=str(tmp_path / "a.csv"))
        assert make_task("classify", options, Fold(index, 4, 0)).labels == ("a", "b", "once")


def test_questions_about_a_passage_are_in_one_fold(tmp_path):
    answers = {"answers": [{"text": "Word", "answer_start": 0}], "question": "?"}
    paragraphs = [
        {"context": f"Word {p}.", "qas": [{"id": f"{p}-{q}", **answers} for q in range(3)]}
        for p in range(8)
    ]
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    folds = parts("qa", 4, train=str(tmp_path / "a.json"))
    for _, train, dev in folds:
        assert len(dev) == 6 and not {passage for _, passage in train} & {p for _, p in dev}


def test_too_many_folds_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\none,a\ntwo,b\nthree,a\n")
    options = ClassifyOptions(train=str(tmp_path / "a.csv"))
    with pytest.raises(ValueError, match="--folds 5: the 3 examples in .*: give fewer folds"):
        make_task("classify", options, Fold(0, 5, 0))


def test_rare_entity_types_are_held_out_in_proportion(tmp_path, capsys):
    rows = [
        {"words": ["a", str(i)], "tags": ["O", "B-RARE" if i % 20 == 0 else "O"]}
        for i in range(200)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task("tag", TagOptions(train=str(tmp_path / "a.jsonl"), dev_fraction=0.2))
    dev = [e.label for e in task.source.examples("dev")]
    assert Counter(dev) == {("O", "O"): 38, ("O", "B-RARE"): 2}
    assert ": the same share of every label; " in capsys.readouterr().out
