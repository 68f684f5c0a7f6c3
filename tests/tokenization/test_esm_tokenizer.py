"""The tokenizer of ESM: residues are tokens, as in transformers."""

import pytest

from bertjax.tokenization import load_tokenizer

VOCABULARY = """<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . -
<null_1> <mask>""".split()
TEXTS = ["MKTAYIAKQR", "M K  T", "MKabcT?", "mkt", "M.-<null_1>K", "BUZOX", ""]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    return tmp_path


def test_each_residue_is_a_token(folder):
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode_pair("MKT", None)[0] == [0, 20, 15, 11, 2]
    assert tokenizer.mask_token_id == 32


@pytest.mark.parity
def test_ids_equal_those_of_transformers_and_of_a_copy(folder, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    ours = load_tokenizer(folder)
    ours.save(tmp_path / "copy", 100)
    copy = load_tokenizer(tmp_path / "copy")
    theirs = transformers.EsmTokenizer(folder / "vocab.txt")
    of_copy = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    for text in TEXTS:
        expected = theirs(text)["input_ids"]
        assert ours.encode_pair(text, None)[0] == expected
        assert copy.encode_pair(text, None)[0] == expected
        assert of_copy(text)["input_ids"] == expected
    assert ours.encode_pair("MK", "AY")[0] == theirs("MK", "AY")["input_ids"]


def test_a_class_whose_steps_are_not_in_its_files_is_refused(folder):
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RoFormerTokenizerFast"}')
    with pytest.raises(ValueError, match="RoFormerTokenizer.*rjieba"):
        load_tokenizer(folder)
