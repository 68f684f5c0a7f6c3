"""WordPiece: the ids that BERT's own tokenizer gives, and vocabularies that cannot work refused."""

import json
from array import array

import pytest
import tokenizers

from bertjax.data.preparation.chunks import SentenceEncoder
from bertjax.tokenization import WordPieceTokenizer, load_tokenizer, train_wordpiece
from bertjax.tokenization.base import SPECIAL_TOKENS


def vocab_of(*words: str) -> dict[str, int]:
    return {token: i for i, token in enumerate([*SPECIAL_TOKENS, *words])}


def test_words_are_cut_into_the_longest_known_pieces():
    tokenizer = WordPieceTokenizer(
        vocab_of("un", "##aff", "##able", "##ff", ",", "unaff"), do_lower_case=True
    )
    (ids,) = tokenizer.encode(["Unaffable, xyz"])
    assert [tokenizer.tokens[i] for i in ids] == ["unaff", "##able", ",", "[UNK]"]
    assert tokenizer.decode(ids) == "unaffable, [UNK]"


def test_lower_casing_strips_accents_and_casing_keeps_them():
    words = ("hello", "Héllo", "中", "文")
    (lower,) = WordPieceTokenizer(vocab_of("hello", "中", "文"), do_lower_case=True).encode(
        ["HÉLLO中文"]
    )
    cased = WordPieceTokenizer(vocab_of(*words), do_lower_case=False)
    assert len(lower) == 3
    assert cased.encode(["Héllo"]) == [[cased.vocab["Héllo"]]]


def test_special_tokens_written_in_a_corpus_are_split_and_those_of_a_prompt_are_not():
    tokenizer = WordPieceTokenizer(vocab_of("[", "]", "mask"), do_lower_case=True)
    (text,) = tokenizer.encode(["[MASK]"])
    assert [tokenizer.tokens[i] for i in text] == ["[", "mask", "]"]
    ids, types = tokenizer.encode_prompt("[MASK]", "mask")
    assert [tokenizer.tokens[i] for i in ids] == ["[CLS]", "[MASK]", "[SEP]", "mask", "[SEP]"]
    assert types == [0, 0, 0, 1, 1]


def test_offsets_are_characters_of_the_text_as_it_was_written():
    vocab = vocab_of("[", "]", "mask", "cafe", "中", "##s", "ᄒ", "##ᅡ")
    tokenizer = WordPieceTokenizer(vocab, do_lower_case=True)
    text = " [MASK]\t\x00CAFÉs 中\U0001d54f하"
    ids, offsets = tokenizer.encode_with_offsets(text)
    (expected,) = tokenizer.encode([text])
    assert ids.tolist() == expected
    found = [text[begin:end] for begin, end in offsets]
    # A syllable of two pieces is the place of both.
    assert found == ["[", "MASK", "]", "CAFÉ", "s", "中", "\U0001d54f하"]
    assert tokenizer.encode_with_offsets("하")[1].tolist() == [[0, 1], [0, 1]]
    ids, offsets = tokenizer.encode_with_offsets(" ")
    assert ids.shape == (0,) and offsets.shape == (0, 2)


def test_a_word_of_more_than_100_characters_is_unknown():
    tokenizer = WordPieceTokenizer(vocab_of("a", "##a"), do_lower_case=True)
    assert len(tokenizer.encode(["a" * 100])[0]) == 100
    assert tokenizer.encode(["a" * 101]) == [[tokenizer.unk_token_id]]


TEXT = (
    "See <URL> now: x<url>y [E1] covid-19 covidien [unused1] [MASK] <url>s foobar foo café ACME "
    "acme acmes xs xss mask masks"
)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """The tokenizer.json of another program, with added tokens and a limit of 5 characters."""
    words = "see now x y < > [ ] : - url ##s 19 e1 cov ##id [unused1] foo ##bar cafe ien ##1 mask"
    vocab = vocab_of(*words.split(), "unused", "ac", "##me")
    backend = WordPieceTokenizer(vocab, do_lower_case=True)._prompt_backend
    backend.model.max_input_chars_per_word = 5
    whole = [tokenizers.AddedToken(word, single_word=True) for word in ("xs", "mask")]
    backend.add_tokens(["covid", tokenizers.AddedToken("<url>", normalized=False), "café", *whole])
    backend.add_special_tokens(["[E1]", "[unused1]", "acme"])
    folder = tmp_path_factory.mktemp("foreign")
    backend.save(str(folder / "tokenizer.json"))
    return folder, backend


@pytest.mark.parametrize("copied", [False, True], ids=["itself", "a copy"])
def test_added_tokens_and_the_longest_word_are_those_of_the_file(foreign, tmp_path, copied):
    folder, backend = foreign
    tokenizer = load_tokenizer(folder)
    if copied:
        tokenizer.save(tmp_path)
        tokenizer = load_tokenizer(tmp_path)
        backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = backend.encode(TEXT, add_special_tokens=False)
    assert {"<url>", "covid", "[E1]", "[unused1]"} <= set(expected.tokens)
    ids, _ = tokenizer.encode_prompt(TEXT)
    assert ids == tokenizer.join(expected.ids)[0]
    # In the text of a corpus, only the special tokens of BERT are text.
    (text,) = tokenizer.encode([TEXT])
    at = expected.tokens.index("[MASK]")
    mask = [tokenizer.vocab[token] for token in ("[", "mask", "]")]
    assert text == [*expected.ids[:at], *mask, *expected.ids[at + 1 :]]
    encoder = SentenceEncoder(tokenizer)  # which prepares corpora
    assert array(encoder.typecode, encoder.encode([TEXT])[0]).tolist() == text
    assert tokenizer.fingerprint == load_tokenizer(folder).fingerprint
    places = [TEXT[a:b] for a, b in tokenizer.encode_with_offsets(TEXT)[1]]
    assert {"<url>", "[E1]", "covid"} <= set(places)


@pytest.mark.parity
def test_transformers_reads_added_tokens_from_a_copy(foreign, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = load_tokenizer(foreign[0])
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "see <url> now [E1] covid-19"  # transformers' own class has the limit of 100 characters
    assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)[0]


@pytest.mark.real
@pytest.mark.parametrize("name", ["01_added_token", "05_max_chars"])
def test_strangers_tokenizers_give_their_ids(shared, name):
    folder = shared / "strangers"
    expected = json.loads((folder / "expected.json").read_text())[name]
    tokenizer = load_tokenizer(folder / name)
    assert tokenizer.encode([expected["text"]]) == [expected["ids"]]
    assert tokenizer.encode_prompt(expected["text"])[0][1:-1] == expected["ids"]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_saving_and_loading_keeps_every_id(tmp_path, sentences, do_lower_case):
    texts = [s.title() for s in sentences]
    tokenizer = train_wordpiece(texts, vocab_size=90, do_lower_case=do_lower_case)
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(texts) == tokenizer.encode(texts)
    (tmp_path / "tokenizer.json").unlink()
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


def test_saving_again_leaves_equal_files_alone_and_no_other(tmp_path):
    tokenizer = WordPieceTokenizer(vocab_of("the"), do_lower_case=True)
    tokenizer.save(tmp_path)
    before = {path: path.stat() for path in tmp_path.iterdir()}
    tokenizer.save(tmp_path)
    for path, stat in before.items():
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    (tmp_path / "vocab.txt").write_text("cut sho")
    tokenizer.save(tmp_path)
    assert (tmp_path / "vocab.txt").stat().st_size == before[tmp_path / "vocab.txt"].st_size
    assert set(tmp_path.iterdir()) == before.keys()


def test_casing_of_a_bare_vocabulary_is_told_from_its_entries(tmp_path):
    for words, lower in ((["the", "##s"], True), (["The", "the", "##S"], False)):
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join([*SPECIAL_TOKENS, *words]), encoding="utf-8")
        assert load_tokenizer(path).do_lower_case is lower


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path):
    path = tmp_path / "vocab.txt"
    lines = [*SPECIAL_TOKENS, "the", "##s", "\u2028"]
    path.write_bytes("\n".join(lines).encode())
    expected = load_tokenizer(path).tokens
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    assert load_tokenizer(path).tokens == expected == lines


def test_a_vocabulary_without_mask_is_refused_by_name():
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS[:4], "a"])}
    with pytest.raises(ValueError, match=r"lacks the special tokens \['\[MASK\]'\]"):
        WordPieceTokenizer(vocab, do_lower_case=True)


def test_a_cased_vocabulary_with_a_lower_casing_config_is_refused(tmp_path):
    WordPieceTokenizer(vocab_of("The", "the"), do_lower_case=False).save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"do_lower_case": True}))
    with pytest.raises(ValueError, match="the vocabulary is cased"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("tokenizer.json", "{}", "no 'model'"), ("tokenizer.json", "[]", "not an object"),
     ("tokenizer.json", '{"model": {}}', "no vocabulary"),
     ("tokenizer_config.json", "{", "not JSON")],
)  # fmt: skip
def test_a_broken_file_is_named(tmp_path, name, content, message):
    WordPieceTokenizer(vocab_of("the"), do_lower_case=True).save(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name} .*{message}|{name} .*is {message}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("free", [(), (5,), (5, 6, 9), (7, *range(10, 300))])
def test_ids_may_have_gaps_and_stay(tmp_path, free):
    ids = [index for index in range(400) if index not in free]
    entries = [*SPECIAL_TOKENS, "a", "b", "##c", "d", "##e"]
    vocab = dict(zip(entries, ids, strict=False))
    tokenizer = WordPieceTokenizer(vocab, do_lower_case=True)
    expected = [vocab[token] for token in ("a", "b", "##c", "d", "##e")]
    assert tokenizer.vocab_size == max(vocab.values()) + 1
    assert all(tokenizer.tokens[index] == token for token, index in vocab.items())
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.tokens == tokenizer.tokens and not again.difference_from(tokenizer)
    for each in (tokenizer, again):
        assert each.encode(["a bc de"])[0] == expected


@pytest.mark.parity
def test_a_vocabulary_with_gaps_gives_the_ids_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    vocab = vocab_of("a") | {"b": 9, "##c": 11}
    WordPieceTokenizer(vocab, do_lower_case=True).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids, _ = load_tokenizer(tmp_path).encode_prompt("a bc b", "bccc", 16)
    assert ids == theirs("a bc b", "bccc")["input_ids"]


@pytest.mark.parametrize("vocab", [{"b": 9000}, {"b": 0}, {"b": 2**31 - 1}])
def test_ids_of_two_entries_or_of_almost_none_are_refused(vocab):
    with pytest.raises(ValueError, match="an id of its own"):
        WordPieceTokenizer(vocab_of("a") | vocab, do_lower_case=True)


def test_lines_that_stand_twice_are_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a", "b", "a"]))
    with pytest.raises(ValueError, match="'a'"):
        load_tokenizer(tmp_path)


def test_a_place_without_vocabulary_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected tokenizer.json, vocab.txt"):
        load_tokenizer(tmp_path)


@pytest.mark.real
def test_bert_base_uncased_encodes_the_pair_of_its_paper(shared):
    tokenizer = load_tokenizer(shared / "vocab" / "bert-base-uncased")
    ids, types = tokenizer.encode_prompt(
        "the man went to grocery store.", "he bought a gallon of milk."
    )
    assert ids == [
        *(101, 1996, 2158, 2253, 2000, 13025, 3573, 1012, 102),
        *(2002, 4149, 1037, 25234, 1997, 6501, 1012, 102),
    ]
    assert types == [0] * 9 + [1] * 8


@pytest.mark.real
@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-cased"])
def test_released_vocabularies_give_the_ids_of_transformers(shared, name):
    cases = json.loads((shared / "golden" / "transformersjs_bert.json").read_text())
    tokenizer = load_tokenizer(shared / "vocab" / name)
    checked = 0
    for model, of_model in cases.items():
        if model.split("/")[-1] == name:
            for case in of_model.values():
                assert (
                    tokenizer.encode_prompt(case["text"], case.get("text_pair"))[0] == (case["ids"])
                ), case["text"]
                checked += 1
    assert checked
