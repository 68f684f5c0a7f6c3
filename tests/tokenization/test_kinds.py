"""Byte-level BPE and unigram: layouts, files that are found out or refused, vocabularies learnt."""

import json
import sys
import unicodedata

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from bertjax.tokenization import (
    ByteLevelBPETokenizer,
    WordPieceTokenizer,
    extend,
    load_tokenizer,
    train_bpe,
    train_unigram,
)

ODD = ["", "  two  spaces ", "Ünïcode café 你好 🙂", "it''s ``so``, 9,5", "a <mask> [MASK] </s>"]


KINDS = "wordpiece bpe albert xlm-roberta camembert modernbert gemma deberta".split()


@pytest.mark.parametrize("name", KINDS)
def test_saving_and_loading_keeps_every_id(kinds, texts, tmp_path, name):
    tokenizer = kinds[name]
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(texts + ODD) == tokenizer.encode(texts + ODD)
    assert loaded.model_input_names == tokenizer.model_input_names
    if name in ("wordpiece", "bpe", "albert"):
        # The vocabulary in its own files says the same.
        (tmp_path / "tokenizer.json").unlink()
        assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("name", KINDS)
def test_a_pair_has_the_special_tokens_and_types_of_its_family(kinds, name):
    tokenizer = kinds[name]
    ids, types = tokenizer.encode_pair("a", "b")
    a, b = tokenizer.encode(["a", "b"])
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    if name in ("modernbert", "gemma"):
        assert (ids, types) == ([cls, *a, sep, *b, sep], [0] * len(ids))
        assert tokenizer.model_input_names == ("input_ids", "attention_mask")
    elif name in ("wordpiece", "albert", "deberta"):
        assert ids == [cls, *a, sep, *b, sep]
        assert types == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert "token_type_ids" in tokenizer.model_input_names
    else:
        assert ids == [cls, *a, sep, sep, *b, sep]
        assert types == [0] * len(ids)
        assert "token_type_ids" not in tokenizer.model_input_names


@pytest.mark.parametrize("name", KINDS)
def test_a_cut_pair_is_as_long_as_asked_and_keeps_its_special_tokens(kinds, texts, name):
    tokenizer = kinds[name]
    needed = tokenizer.layout.num_special_tokens(pair=True)
    a, b = tokenizer.encode(texts[:2])
    for length in range(needed, needed + len(a) + len(b)):
        ids, types = tokenizer.encode_pair(*texts[:2], length)
        assert len(ids) == len(types) == length
        special = [i for i in ids if i in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
        assert len(special) == needed
    with pytest.raises(ValueError, match=f"max_length={needed - 1} is too short for the {needed} "):
        tokenizer.encode_pair("a", "b", needed - 1)
    assert [len(r) for r in tokenizer.encode_prompts(texts[:3], 6)] == [6, 6, 6]


@pytest.mark.parametrize("name", KINDS)
def test_special_tokens_are_split_in_a_corpus_and_found_in_a_prompt(kinds, name):
    tokenizer = kinds[name]
    special = tokenizer.layout.special_tokens
    for text in special:
        unwanted = set(tokenizer.special_ids) - {tokenizer.unk_token_id}
        assert not unwanted & set(tokenizer.encode([f"a {text} b"])[0])
    ids, _ = tokenizer.encode_prompt(f"a {special.mask} b")
    assert ids.count(tokenizer.mask_token_id) == 1
    # The mask of a prompt takes the space before it along.
    a, b = tokenizer.encode(["a", " b"])
    assert ids[1:-1] == [*a, tokenizer.mask_token_id, *b]


@pytest.mark.parametrize("name", KINDS)
def test_a_text_with_many_is_encoded_as_with_each(kinds, texts, name):
    tokenizer = kinds[name]
    passages = [texts[0] * 3, texts[2], "a", texts[3]]
    for length in (8, 17, 99):
        expected = [tokenizer.encode_prompt(texts[1], passage, length) for passage in passages]
        assert tokenizer.encode_pairs(texts[1], passages, length) == expected


@pytest.mark.parametrize("name", KINDS)
def test_offsets_leave_out_the_space_before_a_word(kinds, name):
    tokenizer = kinds[name]
    text = "abc  def ghi"
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode([text])[0]
    pieces = [text[begin:end] for begin, end in offsets]
    assert not any(piece.strip(" ") not in (piece, "") for piece in pieces)
    # A space that is added before the text has the place of the first character.
    assert "".join(pieces).removeprefix("a").removeprefix("a").startswith("bc")


def test_words_start_at_spaces(kinds):
    for name, text in (("bpe", " a, b"), ("albert", "a, b")):
        tokenizer = kinds[name]
        (ids,) = tokenizer.encode([text])
        starts = [tokenizer.tokens[i].lstrip("Ġ▁") for i in ids if tokenizer.word_starts[i]]
        assert starts[0] in ("a", "") and len(starts) >= 2
        assert tokenizer.word_starts.shape == (tokenizer.vocab_size,)
        assert tokenizer.word_starts[list(tokenizer.special_ids)].all()
    assert not kinds["bpe"].word_starts[kinds["bpe"].vocab[","]]


MARKED = [
    "Größe über Wälder",
    "हिन्दी में लिखा है",
    "がぎぐ と かきく",
    "Tiếng Việt có dấu",
    "بِسْمِ اللَّهِ",
    "ตีน้ำ",
]


@pytest.fixture(scope="module")
def cased_unigram():
    return train_unigram(MARKED * 9, vocab_size=150, do_lower_case=False)


def test_a_cased_unigram_keeps_the_marks_of_all_scripts(cased_unigram, tmp_path):
    for text in MARKED:
        (ids,) = cased_unigram.encode([text])
        # SentencePiece normalises to NFKC.
        assert cased_unigram.decode(ids) == unicodedata.normalize("NFKC", text)
    cased_unigram.save(tmp_path)
    more = extend(load_tokenizer(tmp_path), [f"{MARKED[1]} {MARKED[0]}"] * 9, 3)
    for tokenizer in (load_tokenizer(tmp_path), more.tokenizer):
        (ids,) = tokenizer.encode([MARKED[1]])
        assert tokenizer.decode(ids) == MARKED[1]
    lower = train_unigram(MARKED * 9, vocab_size=150, strip_accents=True)
    assert lower.decode(lower.encode(MARKED[:1])[0]) == "große uber walder"


def test_a_mark_of_a_unigram_does_not_start_a_word():
    tokenizer = train_unigram(["क की को के कि"] * 9, vocab_size=30, do_lower_case=False)
    (ids,) = tokenizer.encode(["की को"])
    assert tokenizer.decode(ids) == "की को" and len(ids) > 2
    starts = [tokenizer.tokens[i] for i in ids if tokenizer.word_starts[i]]
    assert all(token.startswith("▁") for token in starts) and len(starts) == 2


@pytest.mark.parity
def test_transformers_gives_the_ids_of_a_cased_unigram(cased_unigram, tmp_path):
    transformers = pytest.importorskip("transformers")
    cased_unigram.save(tmp_path)
    for name in ("tokenizer.json", "spiece.model"):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        for text in MARKED:
            ids, _ = cased_unigram.encode_prompt(text)
            assert theirs(text)["input_ids"] == ids
            assert theirs.decode(ids[1:-1]) == unicodedata.normalize("NFKC", text)
        (tmp_path / name).unlink()


def test_a_byte_level_bpe_knows_every_text(kinds):
    for text in ["\x00\t\n", "Ünïcode 你好 🙂", "ghi <unk>"]:
        (ids,) = kinds["bpe"].encode([text])
        assert kinds["bpe"].unk_token_id not in ids
        assert kinds["bpe"].decode(ids) == text


def test_vocabularies_do_not_depend_on_the_order_of_the_texts(kinds, texts):
    mixed = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]
    assert train_bpe(mixed, vocab_size=300).fingerprint == kinds["bpe"].fingerprint
    assert train_unigram(mixed, vocab_size=80).fingerprint == kinds["albert"].fingerprint
    assert kinds["albert"].tokens[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert kinds["bpe"].tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]


def test_vocabularies_that_cannot_be_learnt_are_refused(texts):
    with pytest.raises(ValueError, match="vocab_size=260 is too small"):
        train_bpe(texts, vocab_size=260)
    with pytest.raises(ValueError, match="no word to learn"):
        train_bpe(["", " "], vocab_size=300)
    for given, size in (([], 100), (texts, 8)):
        with pytest.raises(ValueError, match=f"No unigram vocabulary of {size} entries"):
            train_unigram(given, vocab_size=size)


def test_a_missing_half_is_named(kinds, tmp_path):
    kinds["bpe"].save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"merges\.txt is missing"):
        load_tokenizer(tmp_path)


def test_files_of_two_kinds_are_refused(kinds, tmp_path):
    kinds["bpe"].save(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]")
    with pytest.raises(ValueError, match="files of different tokenizers: .*WordPiece"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    config = tmp_path / "tokenizer_config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps(said | {"tokenizer_class": "BertTokenizer"}))
    with pytest.raises(ValueError, match="different"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["bpe", "wordpiece", "albert", "xlm-roberta"])
def test_of_an_unknown_class_tokenizer_json_is_taken_as_it_is(kinds, texts, tmp_path, name, capsys):
    kinds[name].save(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    said = json.loads(config.read_text()) | {"tokenizer_class": "TomorrowsTokenizer"}
    config.write_text(json.dumps(said))
    assert load_tokenizer(tmp_path).encode_prompts(texts, 99) == kinds[name].encode_prompts(
        texts, 99
    )
    assert "TomorrowsTokenizer, which is unknown here" in capsys.readouterr().err
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    with pytest.raises(ValueError, match="TomorrowsTokenizer, which is not supported"):
        load_tokenizer(tmp_path)


def test_two_forms_of_a_vocabulary_that_disagree_are_refused(kinds, texts, tmp_path):
    kinds["bpe"].save(tmp_path)
    train_bpe(texts, vocab_size=290).save(tmp_path / "other")
    (tmp_path / "merges.txt").write_bytes((tmp_path / "other" / "merges.txt").read_bytes())
    with pytest.raises(ValueError, match="vocabulary or merges in tokenizer.json differ"):
        load_tokenizer(tmp_path)
    kinds["albert"].save(tmp_path / "a")
    train_unigram(texts, vocab_size=60).save(tmp_path / "b")
    model = (tmp_path / "b" / "spiece.model").read_bytes()
    (tmp_path / "a" / "spiece.model").write_bytes(model)
    with pytest.raises(ValueError, match="pieces in tokenizer.json differ"):
        load_tokenizer(tmp_path / "a")


def test_a_tokenizer_json_of_another_model_is_refused(kinds, tmp_path):
    kinds["bpe"].save(tmp_path)
    file = tmp_path / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model": model}))
    with pytest.raises(ValueError, match="specifies the model type WordLevel"):
        load_tokenizer(file)


def test_older_files_write_merges_as_one_string(kinds, tmp_path):
    kinds["bpe"].save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    del content["model"]["type"]
    file.write_text(json.dumps(content))
    assert load_tokenizer(tmp_path).fingerprint == kinds["bpe"].fingerprint


def test_a_fairseq_file_needs_its_family(kinds, tmp_path):
    file = tmp_path / "sentencepiece.bpe.model"
    file.write_bytes(kinds["albert"].model_file)
    with pytest.raises(ValueError, match="may be from XLM-RoBERTa or CamemBERT"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.tokens[-1] == "<mask>"
    # New pieces have no place in the file, whose last piece would be taken for the mask.
    extended = extend(tokenizer, ["zzyzx zzyzx"] * 20, 3).tokenizer
    extended.save(tmp_path / "extended")
    assert load_tokenizer(tmp_path / "extended").fingerprint == extended.fingerprint


def test_a_damaged_file_is_named(tmp_path):
    file = tmp_path / "spiece.model"
    file.write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match=r"spiece\.model is not a SentencePiece model"):
        load_tokenizer(file)
    for name, content in (("vocab.json", "{}"), ("merges.txt", "#version: 0.2\na b c\n")):
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"merges\.txt: 'a b c' is not a merge"):
        load_tokenizer(tmp_path / "vocab.json")


def test_lower_casing_is_refused_where_a_family_knows_none(kinds, tmp_path):
    for name in ("bpe", "xlm-roberta"):
        kinds[name].save(tmp_path / name)
        with pytest.raises(ValueError, match="do_lower_case=True, but"):
            load_tokenizer(tmp_path / name, do_lower_case=True)


def test_distilberts_tokenizer_tells_transformers_of_no_types(kinds, tmp_path):
    kinds["wordpiece"].save(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    said = json.loads(config.read_text()) | {"tokenizer_class": "DistilBertTokenizer"}
    del said["model_input_names"]
    config.write_text(json.dumps(said))
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, WordPieceTokenizer)
    assert loaded.model_input_names == ("input_ids", "attention_mask")


def test_merges_of_another_vocabulary_are_refused(kinds):
    with pytest.raises(ValueError, match=r"1 of 1 merges .*first: \('x', 'yz'\)"):
        ByteLevelBPETokenizer(kinds["bpe"].vocab, [("x", "yz")])


def test_a_name_that_is_not_here_is_looked_for_on_the_hub(tmp_path, tokenizer, monkeypatch):
    asked = []

    def download(name, *, repo_type, revision, allow_patterns, tqdm_class):
        assert (repo_type, revision) == ("model", "main")
        asked.append((name, "vocab.txt" in allow_patterns))
        tokenizer.save(tmp_path / "cache")
        return str(tmp_path / "cache")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    assert load_tokenizer("somebody/some-bert").fingerprint == tokenizer.fingerprint
    assert asked == [("somebody/some-bert", True)]


def test_sentencepiece_files_do_not_need_the_protobuf_of_the_library(monkeypatch, tmp_path, texts):
    # sentencepiece 0.2.3 refuses to import its message class with a protobuf below 7.36.1.
    try:
        from sentencepiece import sentencepiece_model_pb2 as shipped
    except Exception:  # which is not of a public class
        shipped = None
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    monkeypatch.delattr("sentencepiece.sentencepiece_model_pb2", raising=False)
    train_unigram(texts, vocab_size=80).save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()  # so that spiece.model is read
    tokenizer = load_tokenizer(tmp_path)
    extended = extend(tokenizer, ["zzyzx zzyzx"] * 20, 3).tokenizer
    extended.save(tmp_path / "extended")
    content = (tmp_path / "extended" / "spiece.model").read_bytes()
    if shipped is not None:
        model = shipped.ModelProto.FromString(content)  # type: ignore[attr-defined]
        assert len(model.pieces) == model.trainer_spec.vocab_size == extended.vocab_size
        assert model.SerializeToString() == content


def model_folder(tokenizer, folder, model_type, **changes):
    """A model directory without its weights: `changes` are fields of tokenizer_config.json."""
    tokenizer.save(folder)
    for file in folder.glob("[!t]*"):  # tokenizer.json alone holds the vocabulary
        file.unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    said = json.loads((folder / "tokenizer_config.json").read_text()) | changes
    said = {name: value for name, value in said.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


WITHOUT, WITH = ["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]
NAMES = [  # kind, model_type, class, names, whether pairs get two token types, what a warning says
    ("wordpiece", "bert", "BertTokenizer", WITHOUT, False, ""),
    ("wordpiece", "bert", "BertTokenizerFast", None, True, ""),
    ("wordpiece", "bert", "ElectraTokenizer", None, True, ""),
    ("wordpiece", "bert", None, None, True, ""),
    ("wordpiece", "bert", "PreTrainedTokenizerFast", None, False, "the types 0 and 0"),
    ("wordpiece", "bert", "PreTrainedTokenizerFast", WITH, True, ""),
    ("wordpiece", "bert", "TokenizersBackend", None, False, "the types 0 and 0"),
    ("wordpiece", "bert", "DistilBertTokenizer", None, False, "the types 0 and 0"),
    ("wordpiece", "distilbert", "DistilBertTokenizer", None, False, ""),
    ("wordpiece", "bert", "DistilBertTokenizer", WITH, True, ""),
    ("deberta", "deberta-v2", "DebertaV2Tokenizer", None, True, ""),
    ("deberta", "deberta-v2", "DebertaV2Tokenizer", WITHOUT, False, ""),
    ("albert", "albert", "AlbertTokenizer", WITHOUT, False, ""),
    ("albert", "albert", "AlbertTokenizer", None, True, "as in transformers 4, but not 5"),
    ("bpe", "roberta", "RobertaTokenizer", None, False, ""),
]


@pytest.mark.parametrize(("kind", "model_type", "name", "names", "typed", "message"), NAMES)
def test_the_names_of_a_models_inputs_decide_its_token_types(
    kinds, tmp_path, capsys, kind, model_type, name, names, typed, message
):
    changes = {"tokenizer_class": name, "model_input_names": names}
    folder = model_folder(kinds[kind], tmp_path / "a", model_type, **changes)
    tokenizer = load_tokenizer(folder)
    err = capsys.readouterr().err
    assert (message in err) if message else "token types" not in err
    for _ in range(2):
        ids, types = tokenizer.encode_pair("abc", "def")
        assert set(types) == ({0, 1} if typed else {0}) and len(types) == len(ids)
        assert tokenizer.join([5], [6])[1][-1] == int(typed)
        tokenizer.save(tmp_path / "b")  # a copy says what it does
        said = json.loads((tmp_path / "b/tokenizer_config.json").read_text())["model_input_names"]
        assert ("token_type_ids" in said) == typed
        tokenizer = load_tokenizer(tmp_path / "b")


def test_a_tokenizer_without_a_model_keeps_the_token_types_of_its_kind(kinds, tmp_path):
    changes = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": None}
    folder = model_folder(kinds["wordpiece"], tmp_path, "bert", **changes)
    (folder / "config.json").unlink()
    assert load_tokenizer(folder).encode_pair("a", "b")[1][-1] == 1


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "model_type", "name", "names", "typed", "message"), NAMES)
def test_pairs_have_the_token_types_of_transformers(
    kinds, tmp_path, kind, model_type, name, names, typed, message
):
    transformers = pytest.importorskip("transformers")
    changes = {"tokenizer_class": name, "model_input_names": names}
    folder = model_folder(kinds[kind], tmp_path, model_type, **changes)
    found = transformers.AutoTokenizer.from_pretrained(folder)("abc def", "ghi")
    ids, types = load_tokenizer(folder).encode_pair("abc def", "ghi")
    assert found["input_ids"] == ids
    if "but not 5" not in message:
        assert found.get("token_type_ids", [0] * len(ids)) == types


# kind, model_type in config.json, flags that are left out, what a warning says of other ids.
UNNAMED = [
    ("wordpiece", "bert", (), ""),
    ("wordpiece", "mpnet", (), "config.json implies the tokenizer class MPNetTokenizer"),
    ("bpe", "bert", (), "transformers takes the class BertTokenizer for it"),
    ("bpe", "roberta", (), ""),
    ("albert", "albert", (), ""),
    ("albert", "deberta-v2", (), "settings that transformers' DebertaV2Tokenizer ignores"),
    ("xlm-roberta", "albert", (), "settings that transformers' AlbertTokenizer ignores"),
    ("xlm-roberta", "xlm-roberta", (), ""),
    ("deberta", "deberta-v2", ("do_lower_case", "split_by_punct", "add_prefix_space"), ""),
    ("modernbert", "modernbert", (), ""),
    ("modernbert", "roberta", (), "settings that transformers' RobertaTokenizer ignores"),
]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("kind", "model_type", "flags", "message"), UNNAMED)
def test_a_class_that_config_json_implies_is_that_of_transformers_or_is_said(
    kinds, tmp_path, capsys, kind, model_type, flags, message, alone
):
    changes = dict.fromkeys(("tokenizer_class", "model_input_names", *flags))
    folder = model_folder(kinds[kind], tmp_path, model_type, **changes)
    if alone:
        (folder / "tokenizer_config.json").unlink()
    if alone and ("DebertaV2" in message or "Albert" in message):
        with pytest.raises(ValueError):  # without the names of its special tokens
            load_tokenizer(folder)
        return
    tokenizer = load_tokenizer(folder)
    err = capsys.readouterr().err
    assert message in err and (message or "its ids" not in err)
    assert tokenizer.encode(["abc def"]) == kinds[kind].encode(["abc def"])


@pytest.mark.parity
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("kind", "model_type", "flags", "message"), UNNAMED)
def test_a_class_that_is_not_named_gives_the_ids_of_transformers(
    kinds, texts, tmp_path, kind, model_type, flags, message, alone
):
    if message:
        pytest.skip("transformers rebuilds this tokenizer with other ids, and a warning says so")
    transformers = pytest.importorskip("transformers")
    changes = dict.fromkeys(("tokenizer_class", "model_input_names", *flags))
    folder = model_folder(kinds[kind], tmp_path, model_type, **changes)
    if alone:
        (folder / "tokenizer_config.json").unlink()
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    for text in [*texts[:20], "A  b\tÉ ``x''"]:
        assert theirs(text)["input_ids"] == ours.encode_pair(text, None)[0]


@pytest.mark.parametrize(("lower", "accents"), [(False, True), (True, True), (False, False)])
def test_what_a_class_assumes_without_a_field_is_said(kinds, tmp_path, capsys, lower, accents):
    fields = {"do_lower_case": lower, "keep_accents": accents}
    kinds["albert"].save(tmp_path / "a")
    said = json.loads((tmp_path / "a/tokenizer_config.json").read_text()) | fields
    (tmp_path / "a/tokenizer_config.json").write_text(json.dumps(said))
    cased = load_tokenizer(tmp_path / "a")
    folder = model_folder(cased, tmp_path / "b", "albert", do_lower_case=None, keep_accents=None)
    load_tokenizer(folder)
    err = capsys.readouterr().err
    assert ("do_lower_case is False, and not True, as transformers' Albert" in err) != lower
    assert ("keep_accents is True, and not False, as transformers' Albert" in err) == accents


def test_a_class_that_config_json_names_is_followed_or_refused(kinds, tmp_path):
    kinds["wordpiece"].save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    config = {"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json specifies .* BertJapaneseTokenizer"):
        load_tokenizer(tmp_path)


def split_before_bytes(tokenizer):
    """As GPT-4 and others have it: a regular expression splits before the bytes are mapped."""
    parts = [
        pre_tokenizers.Split(Regex(r"\s?\S+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return tokenizer.with_parts(pre_tokenizer=pre_tokenizers.Sequence(parts))


def as_gemma_2(tokenizer):
    """Gemma itself puts no space before a text."""
    return tokenizer.with_parts(pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"))


OF_WORDS = [(name, lambda x: x) for name in KINDS]
OF_WORDS += [("bpe", split_before_bytes), ("modernbert", split_before_bytes)]
OF_WORDS += [("gemma", as_gemma_2)]


@pytest.mark.parametrize(("name", "change"), OF_WORDS)
def test_a_tokenizer_of_taggers_puts_a_space_before_every_text(kinds, texts, name, change):
    tokenizer = change(kinds[name])
    tagger = tokenizer.after_space()
    words = [*"abc . def (x) 0 é 🙂".split(), " spaced", ""]
    assert tagger.encode(words) == tokenizer.encode_after_space(words)
    assert tagger.encode_after_space(words) == tokenizer.encode_after_space(words)
    assert tagger.encode(texts[:20]) == tokenizer.encode_after_space(texts[:20])
    assert tagger.after_space() is tagger
    fields = ("vocab", "layout", "model_max_length", "model_input_names")
    assert all(getattr(tagger, x) == getattr(tokenizer, x) for x in fields)


@pytest.mark.parity
@pytest.mark.parametrize(("name", "change"), OF_WORDS)
def test_words_of_a_saved_tagger_are_split_as_in_training(kinds, texts, tmp_path, name, change):
    transformers = pytest.importorskip("transformers")
    tokenizer = change(kinds[name])
    tokenizer.after_space().save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    copy = load_tokenizer(tmp_path)
    for text in texts[:20]:
        words = text.removesuffix(".").split()
        trained = [x for ids in tokenizer.encode_after_space(words) for x in ids]
        found = theirs(words, is_split_into_words=True)
        assert found["input_ids"][1:-1] == trained
        assert [x for ids in copy.encode_after_space(words) for x in ids] == trained
        # A pipeline gives the text, in which spaces separate the words.
        whole = theirs(" ".join(words), return_offsets_mapping=True)
        assert whole["input_ids"][1:-1] == trained
        starts = {start for start, _ in whole["offset_mapping"][1:-1]}
        spaces = [place for place, c in enumerate(" ".join(words)) if c == " "]
        assert 0 in starts and all({place, place + 1} & starts for place in spaces)
