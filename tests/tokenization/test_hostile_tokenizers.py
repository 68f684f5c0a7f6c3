"""Damaged tokenizer files are refused by one line that names them."""

import json
import struct

import pytest

from bertjax.tokenization import load_tokenizer, train_unigram, train_wordpiece
from bertjax.tokenization.unigram import _model_proto
from tests.cases import others_weekly

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDPIECE = {"model": {"type": "WordPiece", "vocab": {t: i for i, t in enumerate(SPECIAL)}}}


def refusal(folder, file):
    with pytest.raises(ValueError) as error:
        load_tokenizer(folder)
    message = str(error.value)
    assert str(folder / file) in message and len(message) <= 400
    return message


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"no": "type"}},
        {"normalizer": [1]},
        {"normalizer": {"type": "BertNormalizer", "lowercase": 1.5}},
        {"normalizer": {"type": "Sequence"}},
        {"pre_tokenizer": {"type": ["x"] * 1000}},
        {"added_tokens": [{"content": ["a"], "id": 5, "special": True}]},
        {"added_tokens": [7]},
        {"added_tokens": [{"content": "a"}]},
        {"model": {"type": {"a": 1}, "vocab": {"a": 1}}},
        {"model": {"type": "x" * 9000, "vocab": {"a": 1}}},
        {"model": {"type": "WordPiece", "vocab": {**WORDPIECE["model"]["vocab"], "a": [1]}}},
        {"model": {"type": "WordPiece", "vocab": {**WORDPIECE["model"]["vocab"], "a": 9}}},
        {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
        {"model": {"type": "WordPiece", "vocab": ["a", "b"]}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"], ["b"], "c"]}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [[["a"], "b"]]}},
        {"model": {"type": "Unigram", "vocab": [7]}},
        {"model": {"type": "Unigram", "vocab": [["a", "b"]]}},
        {"model": {"type": "Unigram", "vocab": [["[CLS]", float("nan")]]}},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_tokenizer_json_with_wrong_types_is_refused(tmp_path, change):
    (tmp_path / "tokenizer.json").write_text(json.dumps(WORDPIECE | change))
    refusal(tmp_path, "tokenizer.json")


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": ["x"]},
        {"tokenizer_class": "x" * 3000},
        {"model_max_length": "long"},
        {"model_max_length": -5},
        {"model_max_length": float("nan")},
        {"model_input_names": 7},
        {"do_lower_case": "yes" * 1000},
        {"strip_accents": [None] * 500},
    ],
    ids=lambda config: str(config)[:40],
)
def test_a_tokenizer_config_with_wrong_types_is_refused(tmp_path, config):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    refusal(tmp_path, "tokenizer_config.json")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "UnicodeDecodeError"),
        (b"a\nb", "lacks"),
        (b"x" * 9000 + b"\n" + b"x" * 9000, "duplicate"),
    ],
)
def test_a_damaged_vocab_txt_is_named(tmp_path, content, says):
    (tmp_path / "vocab.txt").write_bytes(content)
    assert says in refusal(tmp_path, "vocab.txt")


def test_merges_that_are_none_make_a_short_message(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("a " * 40_000)
    refusal(tmp_path, "merges.txt")
    (tmp_path / "merges.txt").write_bytes(b"\xff a\n")
    refusal(tmp_path, "merges.txt")


def test_what_the_library_refuses_in_a_sentencepiece_model_is_named(tmp_path):
    tokenizer = train_unigram(["some words of text here"] * 20, vocab_size=30)
    assert tokenizer.model_file
    model = _model_proto()()
    model.ParseFromString(tokenizer.model_file)
    # The size of a table is not believed: the library would allocate 3.5 GB, and end the process.
    for table in (
        b"\xff" * 40,
        struct.pack("<I", 3_543_485_648) + b"text" * 10,
        b"\1",
        b"\2\0\0\0ab",
    ):
        model.normalizer_spec.precompiled_charsmap = table
        (tmp_path / "spiece.model").write_bytes(model.SerializeToString())
        assert "precompiled_charsmap is damaged" in refusal(tmp_path, "spiece.model")
    model.ParseFromString(tokenizer.model_file)
    model.pieces[7].score = float("nan")
    (tmp_path / "spiece.model").write_bytes(model.SerializeToString())
    refusal(tmp_path, "spiece.model")
    model.ParseFromString(tokenizer.model_file)
    model.pieces[7].piece = ""
    (tmp_path / "spiece.model").write_bytes(model.SerializeToString())
    refusal(tmp_path, "spiece.model")


@pytest.mark.parametrize("part", others_weekly(["normalizer", "pre_tokenizer"], "pre_tokenizer"))
def test_a_regular_expression_that_takes_too_long_is_an_error(part, tmp_path):
    pattern = {"pattern": {"Regex": "(a+)+$"}}
    steps = {
        "normalizer": {"type": "Replace", **pattern, "content": ""},
        "pre_tokenizer": {"type": "Split", **pattern, "behavior": "Isolated", "invert": False},
    }
    train_wordpiece(["a b"], vocab_size=20).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text()) | {part: steps[part]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer, text = load_tokenizer(tmp_path), "a" * 40 + "!"
    for use in (
        lambda: tokenizer.encode([text]),
        lambda: tokenizer.encode_pair("a", text),
        lambda: tokenizer.encode_prompts([text], 9),
        lambda: tokenizer.encode_with_offsets(text),
        lambda: tokenizer.words(text),
    ):
        with pytest.raises(ValueError, match=r"The tokenizers library cannot .*retry-limit"):
            use()
