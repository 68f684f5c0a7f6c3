"""Single changes of users' tables mean the same here and to pandas, or a message names them."""

import dataclasses
import json
import os
import random

import pytest

from bertjax.tasks.dataset import Dataset
from tests.cases import others_weekly
from tests.programs import table_meaning
from tests.programs.table_changes import (
    TASKS,
    Change,
    File,
    change_files,
    make_files,
    read_again,
    sentence,
)

SEED = int(os.environ.get("BERTJAX_FUZZ_SEED", "0"))
# Tables of a class, of words, of texts, and several files.
OFTEN = others_weekly(TASKS, "classify", "tag", "embed", "retrieval")


@pytest.mark.parametrize("task", OFTEN)
def test_unchanged_tables_mean_what_pandas_reads(task, tmp_path):
    for index in range(6):
        files, options = make_files(random.Random(index), task)
        folder = tmp_path / str(index)
        folder.mkdir()
        nothing = Change("none", "nothing", set())
        name = next(iter(files))
        assert table_meaning.judge(task, files, options, name, nothing, folder) == ("equal", "")


def test_changes_depend_on_the_seed_only():
    for task in TASKS:
        made = [[change_files(random.Random(i), task)[3].what for i in range(9)] for _ in range(2)]
        assert made[0] == made[1]
        assert len({*made[0]}) > 4


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """What the judge says of a table of classes whose sixth example is read as `change` of it."""
    whole = Dataset.examples

    def outcome(change):
        rows = [{"text": sentence(i), "label": str(i % 2)} for i in range(12)]
        file = File({"text": "text", "label": "label"}, rows)

        def read(source, split):
            for number, example in enumerate(whole(source, split)):
                yield change(example) if number == 5 else example

        monkeypatch.setattr(Dataset, "examples", read)
        odd = Change("odd row", "", {"label"}, 5)
        return table_meaning.judge("classify", {"train": file}, {}, "train", odd, tmp_path)

    return outcome


def test_the_judge_sees_what_is_wrong(judged):
    def other(example):
        return dataclasses.replace(example, label="0")

    def told(example):
        print("warning: train.jsonl, row 6: the label is another")
        return other(example)

    def raising(error):
        def raise_it(example):
            raise error

        return raise_it

    assert judged(lambda example: example) == ("equal", "")
    assert judged(other)[0] == "silent"
    assert "example 5" in judged(other)[1]
    assert judged(told)[0] == "told"
    assert judged(raising(ValueError("train.jsonl, row 6: no class")))[0] == "refused"
    assert judged(raising(ValueError("a bad file")))[0] == "nameless"
    assert judged(raising(KeyError("label")))[0] == "traceback"


def test_the_other_reader_is_not_ours(tmp_path):
    rows = [{"text": "a, b", "label": "x"}, {"text": "", "label": ""}]
    file = File({"text": "text", "label": "label"}, rows, "csv")
    path = tmp_path / "train.csv"
    path.write_text('\ufefftext,label\n"a, b",x\n,\n', encoding="utf-8")
    assert read_again(file, path) == rows[:1]
    path = tmp_path / "train.json"
    path.write_text(json.dumps(rows))
    file.format = "json"
    assert read_again(file, path) == rows


@pytest.mark.parametrize("task", OFTEN)
def test_no_change_of_a_table_is_silent(task):
    results = list(table_meaning.run(task, 25, SEED))
    wrong = [result for result in results if result["outcome"] in table_meaning.WRONG]
    assert not wrong, json.dumps(wrong, indent=1)
    assert {"equal", "refused"} <= {result["outcome"] for result in results}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("task", TASKS)
def test_no_change_of_a_thousand_is_silent(task):
    results = list(table_meaning.run(task, 1000, SEED))
    print(table_meaning.table(results))
    wrong = [result for result in results if result["outcome"] in table_meaning.WRONG]
    assert not wrong, json.dumps(wrong, indent=1)
