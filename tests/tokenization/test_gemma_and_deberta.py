"""The tokenizers of mmBERT (Gemma's) and DeBERTa, and other tokenizers that others made."""

import itertools
import json
import random
import tarfile
from collections import Counter

import numpy as np
import pytest
import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from bertjax import prepare
from bertjax.config import PrepareConfig
from bertjax.data.records import decode_row, read_shard
from bertjax.data.text.sentences import split_sentences
from bertjax.tasks.dataset import Example
from bertjax.tasks.question_answering import SpanTask
from bertjax.tokenization import (
    BPETokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    load_tokenizer,
    train_bpe,
)
from tests.cases import WEEKLY
from tests.tokenization.conftest import (
    GEMMAS,
    METASPACE,
    deberta_folder,
    sentencepiece_of,
    train_gemma,
)

ODD = [
    "",
    "abc",
    "  two   spaces ",
    "tab\tand\nlines\n\n\nand more \r\n",
    "Ünïcode café cafe\u0301 你好 🙂 ﬁ ｆｕｌｌ",
    "it's (5,000), well-known; A.B. end.",
    "a <mask> [MASK] <mask>b <bos><eos> [CLS][SEP] x <unk> [UNK] <pad>[PAD]",
    "▁ ▁▁ a▁b <unused0>user <0x41> \x00\u200b",
]


def offsets_of(encoding, text):
    """The characters of each token without the space before a word."""
    return [(b - len(text[a:b].lstrip() or text[a:b]), b) for a, b in encoding]


def check_with_transformers(tokenizer, theirs, texts, lengths=(None, 7, 16, 61)):
    """Compares ids, token types, offsets, truncated texts and pairs."""
    special = set(tokenizer.special_ids)
    pairs = [*texts[1:], texts[0]]
    for text, pair in zip(texts, (pair or " " for pair in pairs), strict=True):  # "" is no pair
        single = theirs(text, return_token_type_ids=True, return_offsets_mapping=True)
        ids, types = tokenizer.encode_prompt(text)
        assert (single["input_ids"], single["token_type_ids"]) == (ids, types), text
        if not special & {*ids[1:-1]}:  # as ordinary text is encoded in a corpus
            found, offsets = tokenizer.encode_with_offsets(text)
            assert found.tolist() == ids[1:-1] == tokenizer.encode([text])[0], text
            expected = offsets_of(single["offset_mapping"][1:-1], text)
            assert [tuple(place) for place in offsets.tolist()] == expected, text
        for length in lengths:
            cut = {} if length is None else {"truncation": True, "max_length": length}
            both = theirs(text, pair, return_token_type_ids=True, **cut)
            found = tokenizer.encode_prompt(text, pair, length)
            assert (both["input_ids"], both["token_type_ids"]) == found, (text, pair)
    assert not (special - {tokenizer.unk_token_id}) & {*sum(tokenizer.encode(texts), [])}


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


SETTINGS = [
    {},
    {"do_lower_case": True},
    {"split_by_punct": True},
    {"add_prefix_space": False},
    {"do_lower_case": True, "split_by_punct": True, "add_prefix_space": False},
]


PIECES = ({}, {"user_defined_symbols": ["user", "(5"]})


@pytest.mark.parity
@pytest.mark.parametrize(
    ("settings", "pieces"),
    [
        pytest.param(
            settings, pieces, marks=WEEKLY if pieces and settings not in SETTINGS[::4] else ()
        )
        for settings in SETTINGS
        for pieces in PIECES
    ],
    ids=str,
)
def test_deberta_is_that_of_transformers(tmp_path, texts, capsys, settings, pieces):
    transformers = pytest.importorskip("transformers")
    lines = [*texts, *ODD[2:6]]
    folder = deberta_folder(tmp_path / "bare", sentencepiece_of(lines, **pieces), **settings)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(theirs).__name__ == "DebertaV2Tokenizer"
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_tokenizer(folder)
    loaded.save(tmp_path / "ours")
    for copy in ("bare", "theirs", "ours"):
        tokenizer = load_tokenizer(tmp_path / copy)
        assert isinstance(tokenizer, UnigramTokenizer) and tokenizer.is_usual
        assert tokenizer.fingerprint == loaded.fingerprint
        assert tokenizer.tokens[:4] == ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
        assert tokenizer.tokens[-1] == "[MASK]"
        check_with_transformers(tokenizer, theirs, [*texts[:9], *ODD])
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(again) is type(theirs) and again.mask_token_id == theirs.mask_token_id
    check_with_transformers(loaded, again, [*texts[:9], *ODD])
    assert capsys.readouterr().err.count("warning") == 0


@pytest.mark.parity
def test_deberta_as_transformers_4_wrote_it_keeps_the_id_of_its_mask(tmp_path, texts):
    transformers = pytest.importorskip("transformers")
    folder = deberta_folder(tmp_path / "spm", sentencepiece_of(texts))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    mask, known = theirs.mask_token_id, load_tokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    names = {"bos": "[CLS]", "eos": "[SEP]", "cls": "[CLS]", "sep": "[SEP]"}
    names |= {"pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    write(
        folder,
        added_tokens={"[MASK]": mask},
        special_tokens_map={f"{name}_token": token for name, token in names.items()},
        tokenizer_config=settings
        | {"tokenizer_class": "DebertaV2Tokenizer", "sp_model_kwargs": {}, "split_by_punct": False},
    )
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.mask_token_id == theirs.mask_token_id == mask
    assert tokenizer.fingerprint == known.fingerprint
    check_with_transformers(tokenizer, theirs, [*texts[:9], *ODD])


@pytest.mark.parity
@pytest.mark.parametrize("older", [False, True])
def test_flags_of_deberta_go_before_tokenizer_json(tmp_path, texts, older):
    transformers = pytest.importorskip("transformers")
    load_tokenizer(deberta_folder(tmp_path / "a", sentencepiece_of(texts))).save(tmp_path / "b")
    config = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    if older:  # as transformers 4 wrote it, which transformers 5 does not follow
        file = tmp_path / "b" / "tokenizer.json"
        steps = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC()])
        new = {"normalizer": json.loads(steps.__getstate__())}
        file.write_text(json.dumps(json.loads(file.read_text()) | new))
    for settings in SETTINGS:
        write(tmp_path / "b", tokenizer_config=config | settings)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
        check_with_transformers(load_tokenizer(tmp_path / "b"), theirs, [*texts[:3], *ODD])


GEMMA_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, "padding_side": "right",
    "bos_token": "<bos>", "eos_token": "<eos>", "cls_token": "<bos>", "sep_token": "<eos>",
    "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
    "clean_up_tokenization_spaces": False, "model_input_names": ["input_ids", "attention_mask"],
    "extra_special_tokens": ["<unused0>"],
}  # fmt: skip
OF_GEMMA = pre_tokenizers.Split(" ", "merged_with_previous")


def mmbert_folder(folder, backend, **config):
    write(folder, tokenizer_config=GEMMA_CONFIG | config)
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parity
@pytest.mark.parametrize(
    ("byte_fallback", "pre_tokenizer"),
    [
        *((True, METASPACE), (False, OF_GEMMA)),
        *(pytest.param(*x, marks=WEEKLY) for x in ((False, METASPACE), (True, OF_GEMMA))),
    ],
    ids=["mmbert", "gemma without bytes", "mmbert without bytes", "gemma"],
)
def test_mmbert_is_that_of_transformers(tmp_path, texts, capsys, byte_fallback, pre_tokenizer):
    transformers = pytest.importorskip("transformers")
    backend = train_gemma(texts, byte_fallback=byte_fallback, pre_tokenizer=pre_tokenizer)
    folder = mmbert_folder(tmp_path / "mmbert", backend)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    loaded = load_tokenizer(folder)
    loaded.save(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    for copy in ("mmbert", "ours", "theirs"):
        tokenizer = load_tokenizer(tmp_path / copy)
        assert type(tokenizer) is BPETokenizer and tokenizer.fingerprint == loaded.fingerprint
        assert tuple(tokenizer.tokens[:5]) == GEMMAS
        check_with_transformers(tokenizer, theirs, [*texts[:9], *ODD])
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / copy)
        check_with_transformers(tokenizer, again, [*texts[:9], *ODD])
    assert capsys.readouterr().err == ""
    (ids,) = loaded.encode(["你"])
    assert (loaded.unk_token_id in ids) != byte_fallback
    assert not byte_fallback or loaded.decode(ids).strip() == "你"


@pytest.mark.parity
def test_gemmas_class_of_transformers_is_followed_if_it_arranges_texts_as_bert(tmp_path, texts):
    transformers = pytest.importorskip("transformers")
    model = json.loads(train_gemma(texts).to_str())["model"]
    theirs = transformers.GemmaTokenizer(
        vocab=model["vocab"], merges=[*map(tuple, model["merges"])]
    )
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="only <bos> A <eos> B <eos> is supported"):
        load_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    template = train_gemma(texts).post_processor
    content["post_processor"] = json.loads(template.__getstate__())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(theirs, transformers.GemmaTokenizer)
    check_with_transformers(load_tokenizer(tmp_path), theirs, [*texts[:9], *ODD])


def test_no_text_of_a_corpus_is_a_special_token_even_if_merges_lead_to_it(tmp_path, texts):
    content = json.loads(train_gemma([*texts, "<mask> <bos>"] * 2, vocab_size=420).to_str())
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    for token in ("<mask>", "<bos>"):
        for end in range(2, len(token) + 1):
            for piece in (token[: end - 1], token[end - 1], token[:end]):
                vocab.setdefault(piece, len(vocab) + 3)
            merges.append([token[: end - 1], token[end - 1]])
    for index, piece in enumerate(sorted(vocab, key=vocab.__getitem__)):
        vocab[piece] = index
    for index, token in enumerate(content["added_tokens"][5:]):
        token["id"] = len(vocab) + index
    for ignore_merges in (False, True):
        content["model"]["ignore_merges"] = ignore_merges
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        tokenizer = load_tokenizer(tmp_path)
        (prompt,) = tokenizer.encode_prompts(["a <mask>"], 9)
        assert tokenizer.mask_token_id in prompt
        found = sum(tokenizer.encode(["<mask>", "a<mask>", "<mas k> <bos>"]), [])
        assert not {*found} & {*tokenizer.special_ids}
        assert "".join(tokenizer.tokens[i] for i in tokenizer.encode(["<mask>"])[0]) == "▁<mask>"


def test_pieces_of_mmbert_know_their_words_and_bytes(kinds):
    tokenizer = kinds["gemma"]
    (ids,) = tokenizer.encode(["abc 你.", ])  # fmt: skip
    starts = [tokenizer.tokens[i] for i in ids if tokenizer.word_starts[i]]
    assert [token for token in starts if token[0] == "▁"] == starts[: len(starts) - 1]
    assert starts[-1] == "."
    assert b"".join(tokenizer.written(tokenizer.tokens[i]) for i in ids) == " abc 你.".encode()
    assert tokenizer.readable("▁abc") == "␣abc"


@pytest.mark.parametrize("name", ["gemma", "deberta"])
def test_a_corpus_is_prepared_with_its_special_tokens_as_text(kinds, texts, tmp_path, name):
    tokenizer = kinds[name]
    tokenizer.save(tmp_path / "tokenizer")
    special = " ".join(tokenizer.layout.special_tokens)
    lines = [f"{text} {special} {text}" for text in texts[:40]]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    prepare.run(
        PrepareConfig(
            input=(str(tmp_path / "text.txt"),),
            tokenizer=str(tmp_path / "tokenizer"),
            output=str(tmp_path / "data"),
            max_length=(64,),
            objective="mlm",
            num_processes=1,
        )
    )
    rows = [r for file in sorted((tmp_path / "data").glob("train*")) for r in read_shard(file)]
    found = [decode_row(row).input_ids for row in rows]
    sentences = [sentence for line in lines for sentence in split_sentences(line)]
    expected = Counter(itertools.chain(*tokenizer.encode_after_space(sentences)))
    assert Counter(itertools.chain(*(ids[1:-1].tolist() for ids in found))) == expected
    for ids in found:
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        inside = {*ids[1:-1].tolist()} & {*tokenizer.special_ids}
        assert inside <= {tokenizer.unk_token_id}


@pytest.mark.parametrize("name", ["gemma", "deberta"])
def test_answers_are_found_in_passages_without_the_space_before_them(kinds, texts, name):
    tokenizer, passage = kinds[name], f"{texts[0]}  {texts[1]}"
    words = passage.split()
    answer = (words[2], passage.index(words[2]))
    example = Example(id="1", where="here", text=texts[2], pair=passage, answers=(answer,))
    (feature,) = SpanTask(name="squad").features(example, tokenizer, 200)
    assert feature.input_ids.tolist() == tokenizer.encode_pair(texts[2], passage)[0]
    assert feature.origins is not None and feature.labels is not None
    (first, _), (_, end) = (feature.origins[i] for i in feature.labels)
    assert (passage[first:end], first) == answer


KINDS = ("BPE", "WordPiece", "Unigram")
NORMALIZERS = [
    normalizers.NFC(),
    normalizers.NFKD(),
    normalizers.Lowercase(),
    normalizers.StripAccents(),
    normalizers.Strip(),
    normalizers.Replace(Regex(r"\s+"), " "),
    normalizers.Replace(" ", "▁"),
    normalizers.Prepend("▁"),
    normalizers.BertNormalizer(lowercase=False),
]
PRE_TOKENIZERS = [
    pre_tokenizers.Metaspace(prepend_scheme="first"),
    pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
    pre_tokenizers.Whitespace(),
    pre_tokenizers.WhitespaceSplit(),
    pre_tokenizers.BertPreTokenizer(),
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.Punctuation("contiguous"),
    pre_tokenizers.Split(Regex(r"\d{1,3}"), "isolated"),
    pre_tokenizers.UnicodeScripts(),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    pre_tokenizers.CharDelimiterSplit("-"),
]
NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def random_tokenizer(draw, texts):
    """A tokenizer of the library with parts drawn at random, learnt from `texts`."""
    kind = draw.choice(KINDS)
    makers = {
        "BPE": lambda: models.BPE(unk_token="[UNK]", fuse_unk=draw.random() < 0.5),
        "WordPiece": lambda: models.WordPiece(unk_token="[UNK]"),
        "Unigram": models.Unigram,
    }
    backend = tokenizers.Tokenizer(makers[kind]())
    backend.normalizer = normalizers.Sequence(draw.sample(NORMALIZERS, draw.randint(0, 3)))
    steps = draw.sample(PRE_TOKENIZERS, draw.randint(1, 3))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    options = {"vocab_size": 150, "special_tokens": NAMES, "show_progress": False}
    if kind == "BPE" and draw.random() < 0.3:
        options |= {"end_of_word_suffix": "</w>"}
    elif kind == "BPE" and draw.random() < 0.3:
        options |= {"continuing_subword_prefix": "##"}
    if kind == "Unigram":
        options |= {"unk_token": "[UNK]"}
    makers_of_trainers = {
        "BPE": trainers.BpeTrainer,
        "WordPiece": trainers.WordPieceTrainer,
        "Unigram": trainers.UnigramTrainer,
    }
    backend.train_from_iterator(texts, makers_of_trainers[kind](**options))
    cls, sep = (backend.get_vocab()[token] for token in ("[CLS]", "[SEP]"))
    backend.post_processor = draw.choice(
        [
            processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls)),
            processors.RobertaProcessing(("[SEP]", sep), ("[CLS]", cls)),
            processors.TemplateProcessing(
                single="[CLS] $A [SEP]",
                pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
            ),
        ]
    )
    backend.decoder = draw.choice([decoders.Metaspace(), decoders.ByteLevel(), decoders.Fuse()])
    backend.add_tokens(
        [
            AddedToken(
                content,
                lstrip=draw.random() < 0.5,
                rstrip=draw.random() < 0.5,
                normalized=draw.random() < 0.5,
                single_word=draw.random() < 0.3,
            )
            for content in draw.sample(["<url>", "two words", "ab", "[E1]", "É"], 2)
        ]
    )
    return kind, backend


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < 15 else WEEKLY) for seed in range(40)]
)
def test_a_tokenizer_of_any_parts_is_used_as_it_is(tmp_path, texts, seed):
    draw = random.Random(seed)
    kind, theirs = random_tokenizer(draw, [*texts[:80], *ODD])
    config = {
        f"{name}_token": token
        for name, token in zip(("pad", "unk", "cls", "sep", "mask"), NAMES, strict=True)
    }
    write(tmp_path, tokenizer_config=config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    expected = {"BPE": BPETokenizer, "WordPiece": WordPieceTokenizer, "Unigram": UnigramTokenizer}
    assert isinstance(tokenizer, expected[kind])
    tokenizer.save(tmp_path / "copy")
    copy = load_tokenizer(tmp_path / "copy")
    assert copy.fingerprint == tokenizer.fingerprint
    lines = [*texts[:9], *ODD, "see<url>two words ab [E1] É"]
    special = {*tokenizer.special_ids}
    for text in lines:
        encoding = theirs.encode(text)
        for found in (tokenizer, copy):
            assert found.encode_prompt(text)[0] == encoding.ids, text
            pair = theirs.encode(text, lines[0])
            ids, types = found.encode_prompt(text, lines[0])
            assert ids == pair.ids and (not any(types) or types == pair.type_ids)
        if not special & {*encoding.ids[1:-1]}:
            assert tokenizer.encode([text]) == [encoding.ids[1:-1]]
            ids, offsets = tokenizer.encode_with_offsets(text)
            assert ids.tolist() == encoding.ids[1:-1]
            assert (np.diff(offsets, axis=1) >= 0).all()
    assert not (special - {tokenizer.unk_token_id}) & {*sum(tokenizer.encode(lines), [])}


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "post_processor", "decoder"])
@pytest.mark.parametrize("nested", [True, False])
def test_a_part_that_the_library_lacks_is_named(kinds, tmp_path, part, nested):
    kinds["gemma"].save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    new = {"type": "PartOfTomorrow", "setting": 1}
    members = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
    members |= {"post_processor": "processors", "decoder": "decoders"}
    step = {"type": "Sequence", members[part]: [content[part], new]} if nested else new
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {part: step}))
    with pytest.raises(ValueError) as error:
        load_tokenizer(tmp_path)
    message = str(error.value)
    assert f"{tmp_path / 'tokenizer.json'} has the {part} 'PartOfTomorrow'" in message
    assert "\n" not in message and tokenizers.__version__ in message and len(message) < 400


# Two thousand lines each in Latin letters, twice, Devanagari, Thai, Arabic, Han and Cyrillic.
LANGUAGES = ("de", "hi", "th", "ar", "vi", "zh-cn", "fortunes-ru")


@pytest.fixture(scope="module")
def real_lines(shared) -> list[str]:
    """10,000 lines of Wikipedia, 2,000 of each language, and 2,000 of random Hangul."""
    found: list[str] = []
    with tarfile.open(shared / "text" / "enwiki-2014-wikiextractor.tar.xz") as archive:
        for member in archive:
            if content := archive.extractfile(member):
                lines = content.read().decode().splitlines()
                found += [line for line in lines if line.strip() and "doc" not in line[:5]]
            if len(found) >= 10_000:
                break
    found = found[:10_000]
    with tarfile.open(shared / "text" / "languages.tar.xz") as archive:
        for language in LANGUAGES:
            name = next(x for x in archive.getnames() if x.endswith(f"{language}.jsonl"))
            content = archive.extractfile(name)
            assert content is not None
            texts = (json.loads(line)["text"] for line in content.read().decode().splitlines())
            lines = [line for text in texts for line in text.splitlines() if line.strip()]
            assert len(lines) >= 2000, language
            found += lines[:2000]
    draw = random.Random(0)

    def word() -> str:
        return "".join(chr(draw.randint(0xAC00, 0xD7A3)) for _ in range(draw.randint(1, 4)))

    return found + [" ".join(word() for _ in range(9)) for _ in range(2000)]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parity
@pytest.mark.parametrize("name", ["deberta", "deberta, lower, split", "mmbert", "no bytes", "bpe"])
def test_lines_of_eight_languages_get_the_ids_of_transformers(real_lines, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    some = real_lines[::4]
    if name.startswith("deberta"):
        flags = dict.fromkeys(("do_lower_case", "split_by_punct"), "lower" in name)
        model = sentencepiece_of(some, 8000, max_sentence_length=10_000)
        deberta_folder(tmp_path, model, **flags)
    elif name == "bpe":
        train_bpe(some, vocab_size=8000).save(tmp_path)
    else:
        mmbert_folder(tmp_path, train_gemma(some, 8000, byte_fallback=name == "mmbert"))
    tokenizer = load_tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.save(tmp_path / "ours")
    copy = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    expected = theirs(real_lines, verbose=False)["input_ids"]
    assert copy(real_lines, verbose=False)["input_ids"] == expected
    assert [tokenizer.join(ids)[0] for ids in tokenizer.encode(real_lines)] == expected
    assert tokenizer.encode_prompts(real_lines, 10**6) == expected
    check_with_transformers(tokenizer, theirs, real_lines[::24])
