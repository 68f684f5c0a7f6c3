"""Ids of all kinds equal those of transformers, on real text and after saving."""

import json
import random
import tarfile

import pytest

from bertjax.tasks.dataset import Example
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.conll import read_conll2003
from bertjax.tasks.sources.squad import read_squad
from bertjax.tasks.tagging import TagTask
from bertjax.tokenization import Tokenizer, UnigramTokenizer, load_tokenizer
from tests.cases import WEEKLY, others_weekly

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
    pytest.param(
        "distilbert",
        "Xenova/distiluse-base-multilingual-cased-v2",
        "bert-base-multilingual-cased",
        marks=WEEKLY,
    ),
    pytest.param(
        "distilbert",
        "distilbert/distilbert-base-multilingual-cased",
        "bert-base-multilingual-cased",
        marks=WEEKLY,
    ),
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


def reference(transformers, tokenizer: Tokenizer, directory, **settings):
    """transformers' own tokenizer of a released vocabulary."""
    if not isinstance(tokenizer, UnigramTokenizer):
        found = getattr(transformers, tokenizer.tokenizer_class)
        settings |= {"do_lower_case": tokenizer.do_lower_case}
        return found.from_pretrained(directory, **settings)
    # Given spiece.model, transformers 5.23 cuts words at the file's "user-defined" pieces, such as
    # "(" and ".", before it looks for others, as neither ALBERT nor its released tokenizer.json
    # does. Given the pieces, it does as they do.
    return transformers.AlbertTokenizer(
        vocab=tokenizer.pieces, _spm_precompiled_charsmap=tokenizer.charsmap
    )


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.exhaustive
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
@pytest.mark.parametrize(
    "name", "wordpiece bpe albert xlm-roberta camembert modernbert gemma deberta".split()
)
def test_a_saved_directory_is_the_same_tokenizer_to_transformers(kinds, texts, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    tokenizer = kinds[name]
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(theirs, getattr(transformers, tokenizer.tokenizer_class))
    assert theirs.model_max_length == tokenizer.model_max_length
    found = theirs("abc", "def")
    assert set(found) == set(tokenizer.model_input_names)
    mask = tokenizer.layout.special_tokens.mask
    odd = ["Ünïcode café 你好 🙂", "it''s ``so``, 9,5", f"abc {mask} def", f"{mask} x {mask} ."]
    for text in [*texts[:50], *odd]:
        assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)[0], text
    _check_pairs(tokenizer, theirs, texts[:20])


TAGS = TagTask(name="tag", labels=("O",), metric=lambda *_: {})
SPANS = SpanTask(name="squad")
WITH_WORDS = ["albert-base-v2", "bert-base-cased", "roberta-base"]


def _check_words(tokenizer, theirs, words):
    """Ids of words, and which word each token begins, as `is_split_into_words` gives them."""
    (feature,) = TAGS.features(Example(id="1", where="here", words=words), tokenizer, 512)
    found = theirs(list(words), is_split_into_words=True, verbose=False)
    assert feature.input_ids.tolist() == found["input_ids"], words
    word_ids = found.word_ids()
    first = [-1 if w is None or w == b else w for w, b in zip(word_ids, [None, *word_ids])]  # noqa: B905
    assert feature.origins is not None and feature.origins.tolist() == first, words


@pytest.mark.real
@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize("name", others_weekly(WITH_WORDS, "roberta-base"))
def test_words_of_conll_get_the_ids_of_transformers(shared, name):
    transformers = pytest.importorskip("transformers")
    tokenizer = load_tokenizer(shared / "vocab" / name)
    prefix = {"add_prefix_space": True} if name == "roberta-base" else {}
    theirs = reference(transformers, tokenizer, shared / "vocab" / name, **prefix)
    for number, example in enumerate(read_conll2003(shared / "conll2003").examples("dev")):
        if number % 5 == 0:
            _check_words(tokenizer, theirs, example.words)
    _check_words(
        tokenizer, theirs, ("Ünïcode", "$9.5", "wor ld", "\u4f60\u597d", "\U0001f642", "end")
    )


@pytest.mark.parity
@pytest.mark.parametrize("name", ["bpe", "albert", "xlm-roberta", "camembert", "gemma", "deberta"])
def test_words_get_the_ids_of_transformers(kinds, texts, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    kinds[name].save(tmp_path)
    prefix = {"add_prefix_space": True} if name == "bpe" else {}
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, **prefix)
    for text in texts[:50]:
        _check_words(kinds[name], theirs, tuple(text.split()))


@pytest.mark.parity
def test_odd_words_get_the_ids_of_transformers_with_a_space_before_each(kinds, tmp_path):
    transformers = pytest.importorskip("transformers")
    kinds["bpe"].save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, add_prefix_space=True)
    odd = ["a b", " x", "  y", "z ", "\u00a0q", "\n", "\r\n", "\t", " ", "🙂", "👩‍👩‍👧", "e\u0301"]
    odd += [
        "don't",
        "'s",
        "``",
        "(",
        "1,000",
        "日本",
        "<mask",
        "\u200b",
        "\ufeffa",
        "İ",
        "ﬁ",
        "\u0301",
    ]
    draw = random.Random(0)
    for _ in range(200):
        _check_words(kinds["bpe"], theirs, tuple(draw.choices(odd, k=draw.randint(1, 12))))


@pytest.mark.real
@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", others_weekly(["roberta-base", "bert-base-uncased"], "roberta-base")
)
def test_questions_on_passages_get_ids_and_offsets_of_transformers(shared, name):
    transformers = pytest.importorskip("transformers")
    tokenizer = load_tokenizer(shared / "vocab" / name)
    theirs = reference(transformers, tokenizer, shared / "vocab" / name)
    for number, example in enumerate(read_squad(shared / "squad", "1.1").examples("dev")):
        if number % 40:
            continue
        (feature,) = SPANS.features(example, tokenizer, 2048)
        found = theirs(
            example.text.strip(), example.pair, return_offsets_mapping=True, verbose=False
        )
        assert feature.input_ids.tolist() == found["input_ids"]
        assert feature.origins is not None
        of_passage = [i == 1 for i in found.sequence_ids()]
        assert (feature.origins[:, 0] >= 0).tolist() == of_passage
        offsets = [
            place
            for place, is_its in zip(found["offset_mapping"], of_passage, strict=True)
            if is_its
        ]
        assert [tuple(place) for place in feature.origins[of_passage].tolist()] == offsets
