"""A user's file is parsed once in a fine-tuning, however often its examples are read."""

import builtins
import json
from collections import Counter
from pathlib import Path

import pytest

from bertjax import finetune
from bertjax.tasks import finetune_config, make_task
from bertjax.tasks.classification import ClassifyOptions
from bertjax.tasks.dataset import Example, KeptExamples
from bertjax.tasks.registry import options_class
from bertjax.tasks.sources import tables
from bertjax.tasks.sources.held_out import BY_PASSAGE
from bertjax.tasks.sources.squad import read_questions
from bertjax.tasks.tagging import TagOptions
from bertjax.tasks.training_data import check_splits, write_training_data
from tests.tables import read_tables

SPLITS = {"train": 60, "dev": 20, "test": 10}


def write_splits(folder, suffix, lines_of):
    """Writes a file for each split, with `lines_of(number of examples)`."""
    files = {}
    for split, count in SPLITS.items():
        (folder / f"{split}{suffix}").write_text("\n".join(lines_of(count)) + "\n")
        files[split] = str(folder / f"{split}{suffix}")
    return files


def table(header, row):
    return lambda count: [header, *(row.format(i=i, k=i % 3) for i in range(count))]


def objects(row):
    return lambda count: [json.dumps(row(i)) for i in range(count)]


FORMATS = {
    "classify": (".csv", table("text,label", "text number {i},c{k}")),
    "regress": (".tsv", table("text\tscore", "text number {i}\t{i}.5")),
    "choice": (".csv", table("text,choice0,choice1,choice2,label", "text {i},a,b,c,{k}")),
    "embed": (".csv", table("anchor,positive", "text number {i},text like number {i}")),
    "tag": (".jsonl", objects(lambda i: {"words": ["a", f"{i}"], "tags": ["O", f"S-X{i % 2}"]})),
    "qa": (
        ".jsonl",
        objects(lambda i: {"question": "who?", "context": f"text {i}", "answer": "text"}),
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("has_dev", [True, False], ids=["dev file", "held out"])
def test_examples_do_not_need_their_files_again(kind, has_dev, tmp_path, tokenizer):
    files = write_splits(tmp_path, *FORMATS[kind])
    if not has_dev:
        del files["dev"]

    def made():
        task = make_task(kind, options_class(kind)(**files, dev_fraction=None if has_dev else 0.2))
        write_training_data(task, tokenizer, 32, tmp_path / "train.array_record")
        return check_splits(task, tokenizer, 32).source

    source, again = made(), made()
    expected = {split: list(again.examples(split)) for split in ("dev", "test")}
    for file in files.values():
        Path(file).unlink()
    for _ in range(2):
        assert {split: list(source.examples(split)) for split in ("dev", "test")} == expected
    assert len(expected["test"]) == SPLITS["test"]
    assert has_dev or len(expected["dev"]) == len(source.held_out_indices())


@pytest.mark.parametrize("columns", ["a O\nb B-X\n\n", "a\tI-X\nb\tO\n\n"])
def test_conll_columns_are_read_once(columns, tmp_path, tokenizer):
    files = write_splits(tmp_path, ".conll", lambda count: [columns] * count)
    task = make_task("tag", TagOptions(**files))
    check_splits(task, tokenizer, 32)
    for file in files.values():
        Path(file).unlink()
    assert {len(list(task.source.examples(split))) for split in ("dev", "test")} == {10, 20}


@pytest.mark.parametrize("has_dev", [True, False], ids=["dev file", "held out"])
def test_no_row_is_parsed_twice_but_the_first_ones(has_dev, tmp_path, tokenizer, monkeypatch):
    files = write_splits(tmp_path, *FORMATS["classify"])
    read_csv, rows = tables.read_csv, Counter()

    def counted(path):
        for row in read_csv(path):
            rows[path.stem] += 1
            yield row

    monkeypatch.setattr(tables, "read_csv", counted)
    monkeypatch.setattr(tables, "FIRST_ROWS", 2)
    if has_dev:
        options = ClassifyOptions(train=files["train"], dev=files["dev"])
    else:
        options = ClassifyOptions(train=files["train"], dev_fraction=0.2)
    task = make_task("classify", options)
    data = write_training_data(task, tokenizer, 32, tmp_path / "train.array_record")
    for _ in range(3):
        check_splits(task, tokenizer, 32)
    assert data.examples == SPLITS["train"] - (0 if has_dev else 12)
    # The header is read for the columns, and with the first rows to guess them.
    assert rows["train"] <= SPLITS["train"] + 1 + 1 + (1 + 2)
    if has_dev:
        assert rows["dev"] <= SPLITS["dev"] + 1 + 1


@pytest.mark.slow
def test_a_fine_tuning_opens_its_data_after_its_first_step_for_baselines_and_tables_alone(
    encoder, files, tmp_path, monkeypatch
):
    opened, original = [], builtins.open

    def recorded(file, *args, **kwargs):
        opened.append(str(file))
        return original(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", recorded)
    given = files["classify"]
    config = finetune_config(
        **{"task": "classify", "init": str(encoder), "workdir": str(tmp_path / "run"), **given},
        **{"max_length": 32, "batch_size": 8, "num_epochs": 2, "unroll": 1},
    )
    finetune.run(config)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert sum("eval/accuracy" in line for line in lines) == 2
    first = next(i for i, name in enumerate(opened) if name.startswith(str(tmp_path / "run")))
    data = [i for i, name in enumerate(opened) if name in given.values()]
    later = [opened[i] for i in data if i > first]
    # The baselines read it. Two tables are written as it is: label errors and confusions.
    assert data[0] < first and later == 3 * [given["train"]]


def test_predictions_begin_before_a_file_has_been_parsed(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\none,x\ntwo,"y')  # a quote that is not closed
    examples = read_tables("classify", test=tmp_path / "a.csv", keep=False).examples("test")
    assert next(examples).text == "one"
    with pytest.raises(ValueError, match="is not a row of CSV"):
        list(examples)


def test_kept_examples_are_those_that_were_read_in_memory_and_on_disk(monkeypatch):
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    examples = [Example(id=str(i), where=f"a, row {i}", text="x" * i) for i in range(600)]
    examples[300] = Example(id="300", where="deep", row={"more": nested})
    for memory in (KeptExamples.MEMORY, 100):
        monkeypatch.setattr(KeptExamples, "MEMORY", memory)
        kept = KeptExamples(iter(examples))
        both = [(a.id, b.id) for a, b in zip(kept, kept, strict=True)]  # two readers at once
        assert both == [(str(i), str(i)) for i in range(600)]
        assert next(iter(kept)) == examples[0]
    assert list(KeptExamples([])) == []


def test_questions_of_one_file_can_be_held_out_and_left_out(tmp_path):
    rows = [{"question": "who?", "context": f"text {i}", "answer": "text"} for i in range(10)]
    rows[3]["question"] = ""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = read_questions({"train": tmp_path / "a.jsonl"}, "skip")
    source = source.split(BY_PASSAGE, fraction=0.5)
    (tmp_path / "a.jsonl").unlink()
    ids = {split: {x.id for x in source.examples(split)} for split in ("train", "dev")}
    assert ids["train"] | ids["dev"] == {str(i) for i in range(10)} - {"3"}
    assert not ids["train"] & ids["dev"] and len(source.all_bad_rows()) == 1
    assert source.path("dev") == source.path("train")
