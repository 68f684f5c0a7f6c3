"""Files of other programs: a setting is followed as the libraries do, refused or named."""

import itertools
import json
import unicodedata

import pytest
import tokenizers

from bertjax.tokenization import UnigramTokenizer, extend, load_tokenizer, train_unigram
from tests.cases import WEEKLY

KINDS = "wordpiece bpe albert xlm-roberta camembert modernbert gemma deberta".split()
TEXTS = [
    "see <url> now: x<url>y, <url>s",
    "Abc [E1] déf [E1]ghi  two   spaces ",
    "a [unused1] b\tc, [MASK] <mask> d",
    "ABCDEFGHIJ abc-def 你好 ``x'' e\u0301 ﬁ\u0000\u200b .",
    "",
]
PLAIN = {
    "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False,
}  # fmt: skip


def edit(folder, name, change):
    """Rewrites a JSON file: `change` takes its content and returns the new one, or changes it."""
    file = folder / name
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(change(content) or content))


def saved(kinds, name, folder):
    kinds[name].save(folder)
    return len(kinds[name].tokens)


def added(*tokens, **settings):
    """Returns a change that appends tokens to those of a tokenizer.json."""

    def change(content):
        content["added_tokens"] += [
            {"id": content["size"] + i, "content": token, **PLAIN, **settings}
            for i, token in enumerate(tokens)
        ]
        del content["size"]

    return change


def check(tokenizer, theirs, folder, copy):
    """Compares ids with a tokenizer of the library, before and after copying."""
    tokenizer.save(copy)
    copies = [load_tokenizer(copy), tokenizers.Tokenizer.from_file(str(copy / "tokenizer.json"))]
    assert copies[0].fingerprint == tokenizer.fingerprint == load_tokenizer(folder).fingerprint
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).ids
        for found in (tokenizer, copies[0]):
            assert found.encode_prompt(text)[0] == found.join(expected)[0], text
        assert copies[1].encode(text, add_special_tokens=False).ids == expected
        special = set(tokenizer.special_ids) - {tokenizer.unk_token_id}
        if not special & set(expected):
            assert tokenizer.encode([text]) == [expected], text
        assert not special & set(tokenizer.encode([text])[0])
    a, b = (theirs.encode(text, add_special_tokens=False).ids for text in TEXTS[:2])
    assert tokenizer.encode_prompt(TEXTS[0], TEXTS[1])[0] == tokenizer.join(a, b)[0]


SETTINGS = [
    {},
    {"special": True, "normalized": False},
    {"normalized": False, "lstrip": True, "rstrip": True},
    {"single_word": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_added_tokens_of_a_tokenizer_json_are_found(kinds, tmp_path, name, settings):
    size = saved(kinds, name, tmp_path)
    edit(tmp_path, "tokenizer.json", lambda content: content | {"size": size})
    edit(tmp_path, "tokenizer.json", added("<url>", "[E1]", "[unused1]", **settings))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab["<url>"] == size and tokenizer.added_tokens["<url>"]["content"]
    assert size in tokenizer.encode(["see <url> now"])[0]
    check(tokenizer, theirs, tmp_path, tmp_path / "copy")
    places = [TEXTS[0][a:b].strip() for a, b in tokenizer.encode_with_offsets(TEXTS[0])[1]]
    assert "<url>" in places


# Where tokens are declared beside the vocabulary: (file, entries by the next free id).
TOKEN = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
BESIDE = {
    "added_tokens.json": lambda n: ("added_tokens.json", {"<url>": n, "[E1]": n + 1}),
    "added_tokens_decoder": lambda n: (
        "tokenizer_config.json",
        {
            "added_tokens_decoder": {
                str(n + 1): {"content": "[E1]", "special": False, **TOKEN},
                str(n): {"content": "<url>", "special": True, **TOKEN},
            }
        },
    ),
    "additional_special_tokens": lambda n: (
        "tokenizer_config.json",
        {"additional_special_tokens": ["<url>", "[E1]"]},
    ),
    "extra_special_tokens": lambda n: (
        "tokenizer_config.json",
        {"extra_special_tokens": {"url_token": "<url>", "e1_token": "[E1]"}},
    ),
    "special_tokens_map.json": lambda n: (
        "special_tokens_map.json",
        {"extra_special_tokens": [{"content": "<url>", **TOKEN}, "[E1]"]},
    ),
    "a named token": lambda n: (
        "tokenizer_config.json",
        {"e1_token": "[E1]", "url_token": {"__type": "AddedToken", "content": "<url>", **TOKEN}},
    ),
}


def declared_mask(tokenizer):
    """The mask of DeBERTa, which is no piece, as transformers declares it beside the vocabulary."""
    token = {"content": "[MASK]", "special": True, **TOKEN}
    return {str(tokenizer.mask_token_id): token} if "[MASK]" == tokenizer.tokens[-1] else {}


def one_in(number, cases):
    """Parameters of pairs: those that are not marked have every value, but not every pair."""
    return [pytest.param(*x, marks=WEEKLY if i % number else ()) for i, x in enumerate(cases)]


OF_WORDPIECE = [("wordpiece", bare, form) for bare in (False, True) for form in BESIDE]
OF_OTHERS = [
    (name, bare, form)
    for form in BESIDE
    for name in KINDS[1:]
    for bare in (False, True)
    if not bare or name in ("bpe", "albert")  # others have no other file of their vocabulary
]


@pytest.mark.parity
@pytest.mark.parametrize(("name", "bare", "form"), OF_WORDPIECE + one_in(4, OF_OTHERS))
def test_added_tokens_beside_the_vocabulary_are_those_of_transformers(
    kinds, tmp_path, name, bare, form
):
    transformers = pytest.importorskip("transformers")
    size = saved(kinds, name, tmp_path)
    if bare:
        (tmp_path / "tokenizer.json").unlink()
    file, entries = BESIDE[form](size)
    if form == "added_tokens_decoder":
        entries[form] |= declared_mask(kinds[name])
    edit(tmp_path, file, lambda content: content | entries)
    tokenizer = load_tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.vocab["<url>"] == theirs.convert_tokens_to_ids("<url>") == size
    tokenizer.save(tmp_path / "copy")
    copy = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    again = load_tokenizer(tmp_path / "copy")
    for text in TEXTS[:2]:
        ids = theirs(text)["input_ids"]
        assert tokenizer.encode_prompt(text)[0] == ids == copy(text)["input_ids"], text
        assert again.encode_prompt(text)[0] == ids and size in tokenizer.encode(TEXTS)[0]


def bert(**fields):
    return lambda content: content["normalizer"].update(fields)


def model(**fields):
    return lambda content: content["model"].update(fields)


def part(**parts):
    return lambda content: content.update(parts)


def other_prefix(content):
    vocab = content["model"]["vocab"]
    content["model"]["continuing_subword_prefix"] = "@@"
    content["model"]["vocab"] = {
        "@@" + token[2:] if token.startswith("##") else token: i for token, i in vocab.items()
    }


def other_unknown(content):
    content["model"]["vocab"]["<oov>"] = content["model"]["vocab"].pop("[UNK]")
    content["model"]["unk_token"] = "<oov>"
    content["added_tokens"][1]["content"] = "<oov>"


LOWERCASE = {"type": "Lowercase"}
NFC = {"type": "NFC"}
# As transformers 4 wrote XLM-R.
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def before_lower(content):
    steps = [LOWERCASE, content["normalizer"]] if content["normalizer"] else [LOWERCASE]
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}


def as_transformers_4(content):
    table = [s for s in content["normalizer"]["normalizers"] if s["type"] == "Precompiled"]
    content["normalizer"] = {"type": "Sequence", "normalizers": [*table, STRIP, SPACES]}
    content["pre_tokenizer"] = METASPACE


def saved_lengths(content):
    content["truncation"] = {
        "max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right",
    }  # fmt: skip
    content["padding"] = {
        "strategy": {"Fixed": 16}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip


CHANGES = {
    "clean_text": ("wordpiece", bert(clean_text=False)),
    "lowercase": ("wordpiece", bert(lowercase=False)),
    "strip_accents": ("wordpiece", bert(strip_accents=False)),
    "handle_chinese_chars": ("wordpiece", bert(handle_chinese_chars=False)),
    "no normalizer": ("wordpiece", part(normalizer=None)),
    "NFC": ("wordpiece", part(normalizer=NFC)),
    "Lowercase": ("wordpiece", part(normalizer=LOWERCASE)),
    "Lowercase before": ("wordpiece", before_lower),
    "no pre-tokenizer": ("wordpiece", part(pre_tokenizer=None)),
    "Whitespace": ("wordpiece", part(pre_tokenizer={"type": "Whitespace"})),
    "WhitespaceSplit": ("wordpiece", part(pre_tokenizer={"type": "WhitespaceSplit"})),
    "max_input_chars_per_word": ("wordpiece", model(max_input_chars_per_word=5)),
    "prefix": ("wordpiece", other_prefix),
    "unknown": ("wordpiece", other_unknown),
    "lengths": ("wordpiece", saved_lengths),
    "Lowercase of a BPE": ("bpe", part(normalizer=LOWERCASE)),
    "NFC of a BPE": ("bpe", part(normalizer=NFC)),
    "prefix space": ("bpe", lambda c: c["pre_tokenizer"].update(add_prefix_space=True)),
    "no regex": ("bpe", lambda c: c["pre_tokenizer"].update(use_regex=False)),
    "lengths of a BPE": ("bpe", saved_lengths),
    "digits": (
        "modernbert",
        lambda c: c.update(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    c["pre_tokenizer"],
                ],
            }
        ),
    ),
    "Lowercase of ModernBERT": ("modernbert", before_lower),
    "no NFC": ("modernbert", part(normalizer=None)),
    "XLM-R of transformers 4": ("xlm-roberta", as_transformers_4),
    "CamemBERT of transformers 4": ("camembert", as_transformers_4),
    "Lowercase of XLM-R": ("xlm-roberta", before_lower),
    "Whitespace of ALBERT": ("albert", part(pre_tokenizer={"type": "Whitespace"})),
    "no normalizer of ALBERT": ("albert", part(normalizer=None)),
    "no pre-tokenizer of XLM-R": ("xlm-roberta", part(pre_tokenizer=None)),
    "lengths of XLM-R": ("xlm-roberta", saved_lengths),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tokenizer_json_is_loaded_as_it_is(kinds, tmp_path, change):
    name, edited = CHANGES[change]
    saved(kinds, name, tmp_path)
    edit(tmp_path, "tokenizer.json", edited)
    # A generic class takes the file as it is; no other says what the file does not.
    edit(
        tmp_path,
        "tokenizer_config.json",
        lambda content: {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 9},
    )
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    tokenizer = load_tokenizer(tmp_path)
    check(tokenizer, theirs, tmp_path, tmp_path / "copy")
    if not change.startswith("lengths"):
        assert tokenizer.fingerprint != kinds[name].fingerprint


@pytest.mark.parity
@pytest.mark.parametrize("change", CHANGES)
def test_transformers_reads_the_copy_of_a_strange_tokenizer(kinds, tmp_path, change):
    transformers = pytest.importorskip("transformers")
    name, edited = CHANGES[change]
    saved(kinds, name, tmp_path)
    edit(tmp_path, "tokenizer.json", edited)
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.save(tmp_path / "copy")
    copy = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    for text in TEXTS:
        assert copy(text)["input_ids"] == tokenizer.encode_prompt(text)[0], text
    found = copy(TEXTS[0], TEXTS[1], return_token_type_ids=True)
    ids, types = tokenizer.encode_prompt(TEXTS[0], TEXTS[1])
    assert (found["input_ids"], found["token_type_ids"]) == (ids, types)


# Settings of tokenizer_config.json that contradict tokenizer.json.
CONFLICTS = [
    ("wordpiece", {"do_lower_case": False}),
    ("wordpiece", {"strip_accents": False}),
    ("wordpiece", {"tokenize_chinese_chars": False}),
    ("wordpiece", {"do_lower_case": False, "tokenizer_class": "BertTokenizerFast"}),
    ("wordpiece", {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}),
    ("wordpiece", {"strip_accents": False, "tokenizer_class": "TokenizersBackend"}),
    ("wordpiece", {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False}),
    ("bpe", {"add_prefix_space": True}),
    ("bpe", {"add_prefix_space": True, "tokenizer_class": "PreTrainedTokenizerFast"}),
    ("albert", {"do_lower_case": False}),
    ("albert", {"keep_accents": True}),
    ("albert", {"keep_accents": True, "do_lower_case": False}),
    ("albert", {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}),
    ("albert", {"add_prefix_space": False}),
    ("xlm-roberta", {"add_prefix_space": False}),
    ("camembert", {"add_prefix_space": False}),
    ("modernbert", {"add_prefix_space": True}),
    ("xlm-roberta", {"do_lower_case": True}),
]


@pytest.mark.parity
@pytest.mark.parametrize(("name", "entries"), CONFLICTS, ids=str)
def test_settings_that_contradict_tokenizer_json_are_followed_as_by_transformers(
    kinds, tmp_path, name, entries
):
    transformers = pytest.importorskip("transformers")
    saved(kinds, name, tmp_path)
    edit(tmp_path, "tokenizer_config.json", lambda content: content | entries)
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.save(tmp_path / "copy")
    assert load_tokenizer(tmp_path / "copy").fingerprint == tokenizer.fingerprint
    for folder in (tmp_path, tmp_path / "copy"):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        for text in TEXTS:
            assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)[0], text


PLACES = ("tokenizer_config.json", "tokenizer.json")


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "saved_in"),
    [
        pytest.param(name, place, marks=() if place == PLACES[i % 2] else WEEKLY)
        for i, name in enumerate(KINDS)
        for place in PLACES
    ],
)
def test_texts_are_truncated_on_the_side_of_the_files(kinds, texts, tmp_path, name, saved_in):
    transformers = pytest.importorskip("transformers")
    saved(kinds, name, tmp_path)
    if saved_in == "tokenizer.json":
        edit(tmp_path, "tokenizer.json", saved_lengths)
        edit(tmp_path, "tokenizer.json", lambda c: c["truncation"].update(direction="Left"))
    else:
        edit(tmp_path, saved_in, lambda c: c | {"truncation_side": "left"})
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.save(tmp_path / "copy")
    for folder in (tmp_path, tmp_path / "copy"):
        theirs, loaded = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
        for length in (6, 9, 12, 99):
            cut = {"truncation": True, "max_length": length}
            (expected,) = loaded.encode_prompts(texts[:1], length)
            assert theirs(texts[0], **cut)["input_ids"] == expected
            pair = tokenizer.encode_prompt(texts[0], texts[1], length)[0]
            assert theirs(texts[0], texts[1], **cut)["input_ids"] == pair


def test_blank_lines_of_a_vocabulary_keep_the_ids_of_the_others(kinds, tmp_path):
    tokens = kinds["wordpiece"].tokens
    lines = [*tokens[:20], "", *tokens[20:30], "", "", *tokens[30:]]
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == len(tokens) + 3
    moved = [lines.index(token) for token in tokens]
    for text in TEXTS:
        expected = [moved[i] for i in kinds["wordpiece"].encode([text])[0]]
        assert tokenizer.encode([text]) == [expected]
    tokenizer.save(tmp_path / "copy")
    copied = (tmp_path / "copy" / "vocab.txt").read_bytes().decode().split("\n")
    assert [line.rstrip("\r") for line in copied] == [*lines, ""]
    (tmp_path / "copy" / "tokenizer.json").unlink()
    assert load_tokenizer(tmp_path / "copy").fingerprint == tokenizer.fingerprint


REFUSED = [
    ("tokenizer_config.json", {"truncation_side": "both"}, "truncation_side='both' .*right"),
    ("tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens"),
    ("tokenizer_config.json", {"mask_token": "<mask>"}, "mask_token='<mask>', which the voc"),
    ("tokenizer_config.json", {"mask_token": " "}, "mask_token=' ', which the vocabulary"),
    ("tokenizer_config.json", {"cls_token": {"content": "[X]"}}, r"cls_token='\[X\]', which"),
    ("tokenizer.json", {"something": 1}, "cannot use"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "entries", "message"), REFUSED, ids=lambda x: str(x)[:30])
def test_what_cannot_be_followed_is_refused_by_name(kinds, tmp_path, file, entries, message):
    saved(kinds, "wordpiece", tmp_path)
    edit(tmp_path, file, lambda content: content | entries)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


ARRANGEMENTS = {
    "no sep": ("C $A", "C $A S $B S"),
    "two cls": ("C C $A S", "C C $A S $B S"),
    "swapped": ("S $A C", "S $A C $B C"),
    "nothing between": ("C $A S", "C $A $B S"),
    "order": ("C $A S", "C $B S $A S"),
    "types": ("C $A:1 S", "C $A:1 S $B S"),
    "types of one": ("C $A:1 S", "C $A S $B:1 S:1"),
    "nothing": ("$A", "$A $B"),
}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        *((change, "wordpiece") for change in ARRANGEMENTS),
        *one_in(
            3,
            itertools.product(ARRANGEMENTS, ("bpe", "xlm-roberta", "albert", "modernbert")),
        ),
    ],
)
def test_another_arrangement_is_that_of_the_class_or_refused(kinds, tmp_path, name, change, capsys):
    transformers = pytest.importorskip("transformers")
    saved(kinds, name, tmp_path)
    special, vocab = kinds[name].layout.special_tokens, kinds[name].vocab
    single, pair = (
        text.replace("S", "{sep}").replace("C", "{cls}").format(**special._asdict())
        for text in ARRANGEMENTS[change]
    )
    template = tokenizers.processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(token, vocab[token]) for token in (special.cls, special.sep)],
    )
    new = json.loads(template.__getstate__())
    edit(tmp_path, "tokenizer.json", lambda c: c.update(post_processor=new))
    if name not in ("albert", "modernbert"):  # classes that make their own arrangement
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        tokenizer = load_tokenizer(tmp_path)
        tokenizer.save(tmp_path / "copy")
        copy = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
        for texts in (("a list",), ("a list", "of words")):
            ids, types = tokenizer.encode_prompt(*texts)
            expected = theirs(*texts, return_token_type_ids=True)
            assert (ids, types) == (expected["input_ids"], expected["token_type_ids"])
            assert ids == copy(*texts)["input_ids"]
        assert (
            change in ("nothing", "types", "types of one")
            or "is replaced by that of" in capsys.readouterr().err
        )
        generic = {"tokenizer_class": "TokenizersBackend"}
        edit(tmp_path, "tokenizer_config.json", lambda c: c | generic)
    if change.startswith("types") and not kinds[name].layout.second_type:
        return  # RoBERTas have one token type
    with pytest.raises(ValueError, match="post_processor"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bpe", model(dropout=0.1), "at random, with dropout=0.1"),
        ("gemma", model(dropout=0.1), "at random, with dropout=0.1"),
        ("bpe", model(continuing_subword_prefix="##"), "lacks the continuing_subword_prefix='##'"),
        ("gemma", model(continuing_subword_prefix="##"), "lacks the continuing_subword_prefix"),
        ("xlm-roberta", model(unk_id=None), r"tokenizer\.json has no unk_id, .*give the index"),
    ],
)
def test_a_model_that_is_random_or_contradicts_itself_is_refused(
    kinds, tmp_path, name, change, message
):
    saved(kinds, name, tmp_path)
    edit(tmp_path, "tokenizer.json", change)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("tokenizer_config.json", lambda c: c | {"new_setting": 1}, "new_setting"),
        ("tokenizer_config.json", lambda c: c | {"auto_map": {}}, "auto_map"),
        ("tokenizer.json", bert(new_step=1), "normalizer.new_step"),
        ("tokenizer.json", model(new_size=7), "model.new_size"),
        ("tokenizer_config.json", lambda c: c | {"padding_side": "left", "errors": "strict"}, ""),
        ("tokenizer_config.json", lambda c: c | {"clean_up_tokenization_spaces": True}, ""),
    ],
)
def test_a_field_of_unknown_meaning_is_named_once(kinds, tmp_path, capsys, file, change, named):
    saved(kinds, "wordpiece", tmp_path)
    edit(tmp_path, file, change)
    load_tokenizer(tmp_path)
    load_tokenizer(tmp_path)
    said = capsys.readouterr().err
    assert said.count("unknown meaning") == said.count("\n") == bool(named) and named in said


@pytest.mark.parity
@pytest.mark.parametrize(
    ("file", "name"),
    [
        *((file, "wordpiece") for file in ("added_tokens.json", "added_tokens_decoder")),
        *one_in(
            3,
            itertools.product(("added_tokens.json", "added_tokens_decoder"), KINDS[1:]),
        ),
    ],
)
def test_an_added_token_of_another_id_is_named(kinds, tmp_path, capsys, name, file):
    transformers = pytest.importorskip("transformers")
    size = saved(kinds, name, tmp_path)
    if file == "added_tokens.json":
        masks = {token["content"]: int(i) for i, token in declared_mask(kinds[name]).items()}
        edit(tmp_path, file, lambda content: {**masks, "<url>": 70 + size})
    else:
        tokens = {str(70 + size): {"content": "<url>", **TOKEN}, **declared_mask(kinds[name])}
        entries = {"added_tokens_decoder": tokens}
        edit(tmp_path, "tokenizer_config.json", lambda content: content | entries)
    assert load_tokenizer(tmp_path).vocab["<url>"] == size
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("<url>")["input_ids"][1:-1] == [
        size
    ]
    assert f"'<url>' is {size}, as in transformers, and not {70 + size}" in capsys.readouterr().err


def test_special_tokens_of_other_names_are_those_of_the_files(kinds, tmp_path):
    saved(kinds, "wordpiece", tmp_path)
    names = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}

    def renamed(text):
        for old, new in names.items():
            text = text.replace(old, new)
        return text

    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_text(renamed((tmp_path / file).read_text()))
    tokenizer = load_tokenizer(tmp_path)
    assert list(tokenizer.layout.special_tokens) == ["<pad>", "[UNK]", "<s>", "</s>", "<mask>"]
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode_prompt("a <mask> b", "c")[0] == theirs.encode("a <mask> b", "c").ids
    check(tokenizer, theirs, tmp_path, tmp_path / "copy")


@pytest.mark.parity
@pytest.mark.parametrize("tokens", [[], ["<url>", "[E1]"]], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_what_transformers_saves_is_read_without_a_warning(
    kinds, texts, tmp_path, capsys, name, tokens
):
    transformers = pytest.importorskip("transformers")
    size = saved(kinds, name, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.add_tokens(tokens[:1])
    theirs.add_tokens(tokens[1:], special_tokens=True)
    theirs(texts[:2], padding=True, truncation=True, max_length=6)  # is saved as well
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer = load_tokenizer(tmp_path / "theirs")
    assert capsys.readouterr().err == "" and tokenizer.vocab_size == size + len(tokens)
    assert tokens or tokenizer.fingerprint == kinds[name].fingerprint
    for text in [*TEXTS, *texts[:20]]:
        assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)[0], text


@pytest.mark.parametrize(
    ("name", "part", "field", "value"),
    [
        ("wordpiece", "normalizer", "clean_text", False),
        ("wordpiece", "model", "max_input_chars_per_word", 3),
        ("bpe", "model", "ignore_merges", True),
        ("albert", "pre_tokenizer", "type", "Whitespace"),
    ],
)
def test_what_the_class_of_transformers_ignores_is_followed_and_said(
    kinds, tmp_path, capsys, name, part, field, value
):
    saved(kinds, name, tmp_path)
    load_tokenizer(tmp_path)
    assert not capsys.readouterr().err

    def change(content):
        content[part] = {"type": value} if field == "type" else content[part] | {field: value}
        return content

    edit(tmp_path, "tokenizer.json", change)
    load_tokenizer(tmp_path)
    said = capsys.readouterr().err
    assert f"transformers' {kinds[name].tokenizer_class} ignores" in said


@pytest.mark.parity
@pytest.mark.parametrize("name", KINDS[:-1])
def test_special_tokens_that_a_tokenizer_json_does_not_add_are_matched(kinds, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    saved(kinds, name, tmp_path)
    size = len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"])
    edit(tmp_path, "tokenizer.json", lambda content: content | {"added_tokens": []})
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.save(tmp_path / "copy")
    copy = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(copy) == len(theirs) == size
    for text in TEXTS:
        ids = tokenizer.encode_prompt(text)[0]
        assert copy(text)["input_ids"] == theirs(text)["input_ids"] == ids, text


# Short texts of ten scripts: an XLM-R knows the first eight, and lacks the last two.
TEN = {
    "Latin": "Größe und Wälder, Tiếng Việt",
    "Cyrillic": "Ёлка в мой край; їжак",
    "Greek": "Πού είναι το σπίτι;",
    "Hindi": "मैं घर जाता हूँ। हिन्दी",
    "Arabic": "هذا كتاب جديد؟ نعم",
    "Hebrew": "שלום עולם, מה נשמע",
    "Thai": "แมวกินปลา ตีน้ำ",
    "Chinese and Japanese": "猫が魚を食べた。这是一本书。",
    "Khmer": "ខ្ញុំ ទៅ ផ្ទះ។",
    "Amharic": "ቤቱ ትልቅ ነው።",
}


@pytest.fixture(scope="module")
def xlmr_of_transformers_4(tmp_path_factory):
    """The folder of a small XLM-R as transformers 4 wrote it."""
    texts = [*TEN.values()][:8]
    unigram = train_unigram(texts * 9, vocab_size=200, do_lower_case=False)
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    folder = tmp_path_factory.mktemp("xlmr")
    UnigramTokenizer(
        [*first, *unigram.pieces[5:], ("<mask>", 0.0)],
        tokenizer_class="XLMRobertaTokenizer",
        charsmap=unigram.charsmap,
        do_lower_case=False,
        keep_accents=True,
    ).save(folder)
    edit(folder, "tokenizer.json", as_transformers_4)
    return folder


def ten_texts(script):
    text = TEN[script]
    apart = unicodedata.normalize("NFD", text)
    return [text, f" {text}  {text} ", f"{text}\n{text}\t", apart, f"{TEN['Latin']} <mask> {text}"]


@pytest.mark.parametrize("script", TEN)
def test_xlmr_of_transformers_4_gives_its_ids_and_is_extended(
    xlmr_of_transformers_4, tmp_path, script
):
    file = str(xlmr_of_transformers_4 / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(file)
    old = load_tokenizer(xlmr_of_transformers_4)
    assert old.fingerprint == load_tokenizer(file).fingerprint
    for text in ten_texts(script):
        assert old.encode_prompt(text)[0] == theirs.encode(text).ids, text
    lacks = script in ("Khmer", "Amharic")
    assert (old.unk_token_id in old.encode([TEN[script]])[0]) == lacks
    added = extend(old, [f"{TEN[script]} neues Wort"] * 3, 60)
    added.tokenizer.save(tmp_path)
    new, library = (
        load_tokenizer(tmp_path),
        tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")),
    )
    assert new.tokens[: old.vocab_size] == old.tokens and not new.difference_from(old)
    for text in ten_texts(script):
        ids = new.encode_prompt(text)[0]
        assert ids == added.tokenizer.encode_prompt(text)[0] == library.encode(text).ids
        assert not lacks or len(set(ids)) > 3
    assert new.unk_token_id not in new.encode([TEN[script]])[0]
    (before,), (after,) = old.encode([TEN[script]]), new.encode([TEN[script]])
    assert len(after) < len(before) or lacks
    others = [text for name, text in TEN.items() if name != script and name != "Latin"]
    if lacks:
        assert new.encode(others[:6]) == old.encode(others[:6])


@pytest.mark.parity
@pytest.mark.parametrize(
    "script",
    [pytest.param(x, marks=() if x in ("Latin", "Hindi", "Khmer") else WEEKLY) for x in TEN],
)
def test_transformers_gives_the_ids_of_an_extended_xlmr(xlmr_of_transformers_4, tmp_path, script):
    transformers = pytest.importorskip("transformers")
    old = load_tokenizer(xlmr_of_transformers_4)
    new = extend(old, [f"{TEN[script]} neues Wort"] * 3, 60).tokenizer
    for tokenizer in (old, new):
        tokenizer.save(tmp_path / str(tokenizer.vocab_size))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / str(tokenizer.vocab_size))
        for text in ten_texts(script):
            assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)[0], text


@pytest.mark.parametrize("field", ["special", "single_word", "lstrip", "rstrip", "normalized"])
@pytest.mark.parametrize("name", ["wordpiece", "bpe"])
def test_added_tokens_may_lack_fields(kinds, texts, tmp_path, name, field):
    transformers = pytest.importorskip("transformers")
    saved(kinds, name, tmp_path)
    edit(tmp_path, "tokenizer.json", lambda c: [t.pop(field) for t in c["added_tokens"]] and None)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for text in texts[:20]:
        assert tokenizer.encode_prompt(text)[0] == theirs(text)["input_ids"]


@pytest.mark.parametrize("token", ["unk", "pad", "mask"])
@pytest.mark.parametrize("name", ["wordpiece", "bpe", "xlm-roberta"])
def test_an_empty_name_of_a_token_that_is_not_inserted_changes_nothing(
    kinds, tmp_path, name, token
):
    saved(kinds, name, tmp_path)
    edit(tmp_path, "tokenizer_config.json", lambda c: c | {f"{token}_token": ""})
    assert load_tokenizer(tmp_path).encode(TEXTS) == kinds[name].encode(TEXTS)
    edit(tmp_path, "tokenizer_config.json", lambda c: c | {"sep_token": ""})
    with pytest.raises(ValueError, match="sep_token="):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("cased", [True, False])
def test_a_cased_tokenizer_json_alone_is_said_to_differ_from_transformers(
    kinds, tmp_path, capsys, cased
):
    saved(kinds, "wordpiece", tmp_path)
    edit(tmp_path, "tokenizer.json", bert(lowercase=not cased))
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).do_lower_case is not cased
    message = "do_lower_case is False, and not True, as transformers' BertTokenizer has by default"
    assert (message in capsys.readouterr().err) == cased
