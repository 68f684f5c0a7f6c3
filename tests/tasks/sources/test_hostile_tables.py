"""Files of tasks with damaged or hostile content are refused by one short line that names them."""

import json

import pytest

from bertjax.inference.saved_task import saved_task
from bertjax.tasks.sources import data_files
from bertjax.tasks.sources.own_files import learn_labels
from bertjax.tasks.sources.squad import read_questions
from bertjax.tasks.sources.tables import Table
from tests.tables import read_tables


def refusal(path, content, read):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as error:
        read(path)
    assert str(path) in str(error.value)
    assert max(map(len, str(error.value).splitlines())) <= 400
    return str(error.value)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_lines_are_bounded(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(data_files, "MAX_LINE", 1000)
    row = '{"text": "a", "label": "b"}' if suffix == ".jsonl" else "text\na"
    path = tmp_path / f"a{suffix}"
    message = refusal(path, f"{row}\n{'x' * 1001}\n", lambda p: list(Table(p).rows()))
    assert "more than 1,000 characters" in message
    refusal(path, "x" * 1001, Table)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_long_names_of_columns_make_short_messages(tmp_path, suffix):
    names = [f"column {'x' * 500} {i}" for i in range(50)]
    separator = "\t" if suffix == ".tsv" else ","
    text = separator.join(names) + "\n" + separator.join("a" for _ in names)
    if suffix == ".jsonl":
        text = json.dumps(dict.fromkeys(names, None))
    path = tmp_path / f"a{suffix}"
    refusal(path, text, lambda p: list(read_tables("regress", train=p).examples("train")))
    refusal(path, text, lambda p: list(read_tables("choice", train=p).examples("train")))


def test_a_single_label_names_the_file(tmp_path):
    path = tmp_path / "a.csv"
    refusal(path, "text,label\nx,a\n", lambda p: learn_labels(read_tables("classify", train=p)))


def test_a_value_that_is_nested_deeply_is_no_text(tmp_path):
    nested = "[" * 900 + "]" * 900
    path = tmp_path / "a.jsonl"
    content = f'{{"text": "a", "label": "b"}}\n{{"text": {nested}, "label": "b"}}\n'
    refusal(path, content, lambda p: list(read_tables("classify", train=p).examples("train")))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "x" * 5000, "question": 7},
        {"question": ["x"] * 500},
        {"answers": [{"text": "a", "answer_start": 10**40}]},
        {"answers": [{"text": "a", "answer_start": True}]},
        {"answers": [{"text": "a", "answer_start": ["x"] * 500}]},
        {"answers": {"text": "\ud83d"}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_squad_with_wrong_types_is_refused(tmp_path, change):
    question = {"id": "1", "question": "q?", "answers": []} | change
    data = {"data": [{"paragraphs": [{"context": "a b", "qas": [question]}]}]}
    read = lambda path: list(read_questions({"train": path}).examples("train"))  # noqa: E731
    refusal(tmp_path / "a.json", json.dumps(data), read)


@pytest.mark.parametrize(
    "description",
    [
        {"max_length": ["x"]},
        {"max_length": -5},
        {"task": 7},
        {"label_kind": "span", "doc_stride": "8"},
        {"columns": "text"},
        {"label_separator": 5},
    ],
    ids=str,
)
def test_a_task_json_with_wrong_types_is_refused(description):
    with pytest.raises(ValueError, match=": it must be "):
        saved_task("sequence_classification", ["a", "b"], 2, {}, description, 64)
