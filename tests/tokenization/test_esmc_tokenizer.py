"""The tokenizer of ESM C: characters are tokens, as in transformers."""

import json

import pytest

from bertjax.tokenization import load_tokenizer

TEXTS = ["MKTAYIAKQR", "M K  T", "MKabcT?", "mkt", "M.-|K", "BUZOX", " MK ", ""]


@pytest.fixture
def theirs(tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    tokenizer = transformers.EsmcTokenizer()
    tokenizer.save_pretrained(tmp_path / "theirs")
    return tokenizer


@pytest.mark.parity
@pytest.mark.parametrize("config", [{}, {"model_type": "esmc"}])
def test_ids_equal_those_of_transformers_and_of_a_copy(config, theirs, tmp_path, capsys):
    from transformers import AutoTokenizer

    ours = load_tokenizer(tmp_path / "theirs")
    assert "warning" not in capsys.readouterr().err
    ours.save(tmp_path / "copy", 100)
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    copy = load_tokenizer(tmp_path / "copy")
    of_copy = AutoTokenizer.from_pretrained(tmp_path / "copy")
    for text in TEXTS:
        expected = theirs(text)["input_ids"]
        assert ours.encode_pair(text, None)[0] == expected
        assert copy.encode_pair(text, None)[0] == expected
        assert of_copy(text)["input_ids"] == expected
    assert ours.mask_token_id == theirs.mask_token_id
    assert ours.encode_pair("MK", "AY")[0] == [0, 20, 15, 2, 5, 19, 2]
    assert of_copy("MK", "AY")["input_ids"] == [0, 20, 15, 2, 5, 19, 2]


@pytest.mark.parity
def test_a_vocabulary_that_transformers_would_not_read_is_refused(theirs, tmp_path):
    file = tmp_path / "theirs" / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    vocab["L"], vocab["A"] = vocab["A"], vocab["L"]
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="tokenizer.json.*EsmcTokenizer"):
        load_tokenizer(tmp_path / "theirs")
