"""Preparation of mixtures: sources keep to their own shards, weights may change, bad inputs."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from bertjax import prepare, train_tokenizer
from bertjax.config import TrainTokenizerConfig
from bertjax.data.metadata import Metadata, open_prepared, row_sources
from bertjax.data.preparation import prepared_dir
from bertjax.data.records import decode_row, read_shard

LETTERS = {"wiki": "abcde", "books": "fghij"}


@pytest.fixture
def mixed(small_chunks, tmp_path, sentences, monkeypatch):
    """Two sources, which are told apart by their words."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("wiki", 200), ("books", 60)):
        letters = LETTERS[name]
        text = [s.translate(str.maketrans("abcdefghij", letters * 2)) for s in sentences[:count]]
        documents = ["\n".join(text[i : i + 10]) for i in range(0, count, 10)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text("\n\n".join(documents))
    return dataclasses.replace(small_chunks, input=("wiki=0.7,books=0.3",), num_processes=1)


def files(directory) -> dict[str, bytes]:
    return {
        str(p.relative_to(directory)): p.read_bytes()
        for p in sorted(Path(directory).rglob("*"))
        if p.suffix in (".array_record", ".json") and not p.name.startswith("metadata-")
    }


def check_sources(directory, tokenizer, length=16):
    """Each source has rows of its own words only, in all splits."""
    specials = {"[CLS]", "[SEP]", "."}
    for split in ("train", "eval"):
        for source in row_sources(directory, split, length):
            records = [record for path in source.paths for record in read_shard(path)]
            assert records
            ids = np.unique(np.concatenate([decode_row(r).input_ids for r in records])).tolist()
            tokens = {tokenizer.tokens[i] for i in ids} - specials
            assert set("".join(tokens)) <= set(LETTERS[source.name] + "#")


def test_the_rows_of_the_sources_are_in_different_shards(mixed, tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(prepared_dir, "SHARD_BYTES", 1 << 12)
    mixed = dataclasses.replace(mixed, max_length=(16, 32), pack=True, objective="mlm")
    metadata = prepare.run(mixed)
    assert metadata is not None and metadata == open_prepared(mixed.output)
    assert [(s.name, s.weight) for s in metadata.sources or ()] == [("wiki", 7), ("books", 3)]
    for length in (16, 32):
        check_sources(mixed.output, tokenizer, length)
    for split, total in metadata.splits.items():
        parts = [source.splits[split] for source in metadata.sources or ()]
        assert total.documents == sum(part.documents for part in parts)
        assert total.text_tokens == sum(part.text_tokens for part in parts)
    out = capsys.readouterr().out
    assert "source books: 30.00% of the training rows of length 16; its" in out
    wiki, books = (s.splits["train"].lengths["16"] for s in metadata.sources or ())
    rows = [0.7 * c.tokens / c.records for c in (wiki,)] + [0.3 * books.tokens / books.records]
    expected = (rows[0] * wiki.attended + rows[1] * books.attended) / sum(rows)
    assert metadata.attended(16) == pytest.approx(expected)


def test_parts_and_processes_give_the_same_files(mixed, tmp_path):
    prepare.run(mixed)
    changes: list[dict] = [{"num_processes": 2}]
    if importlib.util.find_spec("apache_beam"):
        changes += [{"runner": "direct", "parts": 3, "num_processes": None}]
    for number, change in enumerate(changes):
        other = dataclasses.replace(mixed, output=str(tmp_path / f"other{number}"), **change)
        prepare.run(other)
        assert files(other.output) == files(mixed.output)
    parts = dataclasses.replace(mixed, output=str(tmp_path / "parts"))
    assert prepare.run(dataclasses.replace(parts, shard="1/2")) is None
    with pytest.raises(ValueError, match=r"weighted sources were wiki=7, books=3, now wiki=1, "):
        prepare.run(dataclasses.replace(parts, input=("wiki=1,books=1",), shard="0/2"))
    assert prepare.run(dataclasses.replace(parts, shard="0/2")) is not None
    assert files(parts.output) == files(mixed.output)


def test_other_weights_only_change_the_metadata(mixed, capsys):
    first = prepare.run(mixed)
    before = files(mixed.output)
    again = prepare.run(dataclasses.replace(mixed, input=("wiki=1", "books=3")))
    assert (
        "add up to 4, not to 1; the shares of the rows are wiki 25.00%" in capsys.readouterr().out
    )
    assert again == open_prepared(mixed.output) and first is not None and again is not None
    assert [source.weight for source in again.sources or ()] == [1, 3]
    changed = {name for name, content in files(mixed.output).items() if content != before[name]}
    assert changed == {"metadata.json", "prepare.json"}
    assert prepare.run(mixed) == first and files(mixed.output) == before
    # A kill between the writes of the two files.
    Path(mixed.output, "metadata.json").write_text(again.to_json())
    assert prepare.run(mixed) == first


def test_an_interrupted_preparation_continues_with_other_weights(mixed, tmp_path, monkeypatch):
    expected = prepare.run(dataclasses.replace(mixed, output=str(tmp_path / "whole")))
    with monkeypatch.context() as patch:
        patch.setattr("bertjax.data.preparation.prepared_dir.finish", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare.run(dataclasses.replace(mixed, input=("wiki=1,books=1",)))
    assert prepare.run(mixed) == expected
    assert files(mixed.output) == files(tmp_path / "whole")


def test_a_damaged_shard_of_a_mixture_is_written_again(mixed):
    metadata = prepare.run(mixed)
    before = files(mixed.output)
    assert metadata is not None and metadata.sources
    (shard,) = metadata.sources[1].splits["train"].lengths["16"].shards
    Path(mixed.output, shard.file).write_bytes(b"")
    assert prepare.run(mixed) == metadata and files(mixed.output) == before


def test_other_sources_are_refused_with_the_difference(mixed):
    prepare.run(mixed)
    with pytest.raises(ValueError, match="weighted sources were wiki=7, books=3, now none"):
        prepare.run(dataclasses.replace(mixed, input=("wiki", "books")))


def test_a_file_whose_name_looks_like_a_weight_is_a_file(mixed, tmp_path):
    (tmp_path / "books" / "text.txt").rename(tmp_path / "x=1")
    metadata = prepare.run(dataclasses.replace(mixed, input=("x=1",)))
    assert metadata is not None and metadata.sources is None
    assert "sources" not in json.loads(metadata.to_json())


def test_a_source_without_text_is_refused_before_the_work_begins(mixed, tmp_path):
    (tmp_path / "books" / "text.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="source 'books' of the mixture contains no text"):
        prepare.run(mixed)
    assert not list(Path(mixed.output).glob("chunks/*.json"))


def test_a_source_of_a_single_document_is_refused_for_sentence_pairs(mixed, tmp_path):
    (tmp_path / "books" / "text.txt").write_text("a b c.\nd e f.\n")
    with pytest.raises(ValueError, match=r"source 'books' .* single document"):
        prepare.run(dataclasses.replace(mixed, text_format="lines"))


def test_metadata_whose_sources_do_not_fit_is_refused(mixed):
    metadata = prepare.run(mixed)
    assert metadata is not None
    fields = json.loads(metadata.to_json())
    for change, message in (
        (lambda s: s.reverse(), "the shards of its sources are others than its own"),
        (lambda s: s[0].update(weight=0), "weights must be positive"),
        (lambda s: s.clear(), "must not be empty"),
        (lambda s: s[1]["splits"].pop("train"), "has no rows of 16"),
    ):
        damaged = json.loads(json.dumps(fields))
        change(damaged["sources"])
        with pytest.raises(ValueError, match=message):
            Metadata.from_json(json.dumps(damaged))


def test_a_tokenizer_is_trained_on_all_sources(mixed, tmp_path):
    for number, inputs in enumerate((mixed.input, ("wiki", "books"))):
        output = str(tmp_path / f"tokenizer{number}")
        train_tokenizer.run(TrainTokenizerConfig(input=inputs, output=output, vocab_size=80))
    first, second = (tmp_path / f"tokenizer{number}" / "vocab.txt" for number in range(2))
    assert first.read_bytes() == second.read_bytes()
