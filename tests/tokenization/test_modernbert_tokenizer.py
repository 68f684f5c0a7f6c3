"""ModernBERT's tokenizer: equal to transformers' on real text, and files as it was released."""

import itertools
import json

import pytest

from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.data.text.sentences import sentences_of
from bertjax.tokenization import ModernBertTokenizer, load_tokenizer, train_modernbert_bpe

LINES = 10_000


def as_released(folder, tokenizer):
    """Writes `tokenizer.json` with what the released file has and a trained one lacks.

    These are tokens for runs of spaces and for what was removed from the data, which are not
    special; [unusedN]; and a merge as one string. The special tokens follow the vocabulary.
    """
    tokenizer.save(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    size = len(content["model"]["vocab"])
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    texts = [" " * 4, " " * 3, " " * 2, "|||EMAIL_ADDRESS|||", "[unused0]"]
    content["added_tokens"] += [
        {"id": size + i, "content": text, **plain, "special": False} for i, text in enumerate(texts)
    ]
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for name in ("do_lower_case", "add_prefix_space"):
        del config[name]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


TEXTS = [
    "two  spaces, three   and     five",
    "cafe\u0301 is caf\u00e9, \u1100\u1161 is \uac00",
    "write to |||EMAIL_ADDRESS||| or [unused0]",
    "def f(x):\r\n    return x\r\n",
    "a [MASK] and [CLS] 🙂",
]


@pytest.mark.parity
def test_added_tokens_are_found_as_transformers_finds_them(kinds, texts, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    as_released(tmp_path / "released", kinds["modernbert"])
    loaded = load_tokenizer(tmp_path / "released")
    assert isinstance(loaded, ModernBertTokenizer)
    assert loaded.vocab_size == kinds["modernbert"].vocab_size + 5
    loaded.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").fingerprint == loaded.fingerprint
    for folder in ("released", "saved"):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        for text in [*TEXTS, *texts[:20]]:
            assert theirs(text)["input_ids"] == loaded.encode_prompt(text)[0], text
        first, second = TEXTS[:2]
        assert theirs(first, second)["input_ids"] == loaded.encode_prompt(first, second)[0]


def test_composed_and_decomposed_characters_are_one_text(kinds):
    composed, decomposed = kinds["modernbert"].encode(["caf\u00e9", "cafe\u0301"])
    assert composed == decomposed
    ids, offsets = kinds["modernbert"].encode_with_offsets("x cafe\u0301 y")
    assert ids.tolist() == kinds["modernbert"].encode(["x caf\u00e9 y"])[0]
    assert offsets.max() == 9


@pytest.mark.real
@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.exhaustive
def test_lines_of_wikipedia_get_the_ids_of_transformers(shared, tmp_path):
    """10,000 lines, with a vocabulary of ModernBERT's kind that is learnt from them."""
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    corpus = Corpus([str(shared / "text" / "enwiki-2014-wikiextractor.tar.xz")], ReadOptions())
    sentences = itertools.chain.from_iterable(map(sentences_of, corpus.documents()))
    lines = list(itertools.islice(sentences, LINES))
    assert len(lines) == LINES
    tokenizer = train_modernbert_bpe(lines, vocab_size=20_000)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.is_fast
    found = [tokenizer.encode_prompt(line)[0] for line in lines]
    assert theirs(lines, verbose=False)["input_ids"] == found
    assert load_tokenizer(tmp_path).encode(lines) == [ids[1:-1] for ids in found]
