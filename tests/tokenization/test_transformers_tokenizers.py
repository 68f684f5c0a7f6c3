"""Ids of all kinds equal those of transformers, on real text and after saving."""

import json
import tarfile

import pytest

from bertjax.tokenization import Tokenizer, UnigramTokenizer, load_tokenizer

NUM_LINES = 10_000
VOCABULARIES = [
    "albert-base-v2",
    "bert-base-cased",
    "bert-base-chinese",
    "bert-base-multilingual-cased",
    "bert-base-uncased",
    "roberta-base",
]
# (file, model in it, the vocabulary that it has)
GOLDEN = [
    ("albert", "Xenova/albert-base-v2", "albert-base-v2"),
    ("bert", "Xenova/bert-base-uncased", "bert-base-uncased"),
    ("bert", "Xenova/bert-base-cased", "bert-base-cased"),
    ("bert", "google-bert/bert-base-cased", "bert-base-cased"),
    ("bert", "Xenova/bert-base-multilingual-cased-ner-hrl", "bert-base-multilingual-cased"),
    ("bert", "Xenova/bge-base-zh-v1.5", "bert-base-chinese"),
    ("distilbert", "Xenova/distilbert-base-cased-distilled-squad", "bert-base-cased"),
    ("distilbert", "Xenova/distilbert-base-uncased-finetuned-sst-2-english", "bert-base-uncased"),
    ("distilbert", "Xenova/distiluse-base-multilingual-cased-v2", "bert-base-multilingual-cased"),
    ("distilbert", "distilbert/distilbert-base-multilingual-cased", "bert-base-multilingual-cased"),
    ("roberta", "Xenova/all-distilroberta-v1", "roberta-base"),
]


@pytest.mark.real
@pytest.mark.parametrize(("file", "model", "vocabulary"), GOLDEN)
def test_released_models_give_their_ids(shared, file, model, vocabulary):
    cases = json.loads((shared / "golden" / f"transformersjs_{file}.json").read_text())[model]
    tokenizer = load_tokenizer(shared / "vocab" / vocabulary)
    assert cases
    for case in cases.values():
        ids, _ = tokenizer.encode_prompt(case["text"], case.get("text_pair"))
        assert ids == case["ids"], case["text"]


@pytest.fixture(scope="module")
def lines(shared) -> list[str]:
    found: list[str] = []
    with tarfile.open(shared / "text" / "enwiki-2014-wikiextractor.tar.xz") as archive:
        for member in archive:
            if content := archive.extractfile(member):
                text = content.read().decode()
                found += [x for x in text.splitlines() if x.strip() and "doc" not in x[:5]]
            if len(found) >= NUM_LINES:
                return found[:NUM_LINES]
    raise AssertionError(f"only {len(found)} lines")


def reference(transformers, tokenizer: Tokenizer, directory):
    """transformers' own tokenizer of a released vocabulary."""
    if not isinstance(tokenizer, UnigramTokenizer):
        found = getattr(transformers, tokenizer.tokenizer_class)
        return found.from_pretrained(directory, do_lower_case=tokenizer.do_lower_case)
    # Given spiece.model, transformers 5.23 cuts words at the file's "user-defined" pieces, such as
    # "(" and ".", before it looks for others, as neither ALBERT nor its released tokenizer.json
    # does. Given the pieces, it does as they do.
    return transformers.AlbertTokenizer(
        vocab=tokenizer.pieces, _spm_precompiled_charsmap=tokenizer.charsmap
    )


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", VOCABULARIES)
def test_lines_of_wikipedia_get_the_ids_of_transformers(shared, lines, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    tokenizer = load_tokenizer(shared / "vocab" / name)
    tokenizer.save(tmp_path)
    for theirs in (
        reference(transformers, tokenizer, shared / "vocab" / name),
        transformers.AutoTokenizer.from_pretrained(tmp_path),
    ):
        expected = [ids for i in range(0, NUM_LINES, 500) for ids in _ids(theirs, lines[i:][:500])]
        assert [tokenizer.join(ids)[0] for ids in tokenizer.encode(lines)] == expected
        assert tokenizer.encode_prompts(lines, 10**6) == expected
        _check_pairs(tokenizer, theirs, lines[:200])


def _ids(theirs, texts):
    return theirs(texts, verbose=False)["input_ids"]


def _check_pairs(tokenizer, theirs, texts):
    for first, second in zip(texts[::2], texts[1::2], strict=True):
        for length in (None, 7, 16, 61, 128):
            cut = {} if length is None else {"truncation": True, "max_length": length}
            found = theirs(first, second, return_token_type_ids=True, verbose=False, **cut)
            expected = found["input_ids"], found["token_type_ids"]
            assert tokenizer.encode_pair(first, second, length) == expected


@pytest.mark.parity
@pytest.mark.parametrize("name", ["wordpiece", "bpe", "albert", "xlm-roberta", "camembert"])
def test_a_saved_directory_is_the_same_tokenizer_to_transformers(kinds, texts, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    tokenizer = kinds[name]
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == tokenizer.tokenizer_class
    assert theirs.model_max_length == tokenizer.model_max_length
    found = theirs("abc", "def")
    assert set(found) == set(tokenizer.model_input_names)
    mask = tokenizer.layout.special_tokens.mask
    odd = ["Ünïcode café 你好 🙂", "it''s ``so``, 9,5", f"abc {mask} def", f"{mask} x {mask} ."]
    for text in [*texts[:50], *odd]:
        assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)[0], text
    _check_pairs(tokenizer, theirs, texts[:20])
