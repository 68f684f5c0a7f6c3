"""Words added to a vocabulary: old ids stay, and texts change only where tokens are saved."""

import random

import numpy as np
import pytest

from bertjax.tokenization import (
    ByteLevelBPETokenizer,
    WordPieceTokenizer,
    extend,
    load_tokenizer,
    train_wordpiece,
)
from bertjax.tokenization.base import SPECIAL_TOKENS
from tests.cases import WEEKLY

KINDS = "wordpiece bpe modernbert gemma albert xlm-roberta camembert deberta".split()
ADD = 30


@pytest.fixture(scope="module")
def domain() -> list[str]:
    """Text of a domain with words of its own, of the letters of the old language."""
    rng = np.random.default_rng(1)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(3, 9))) for _ in range(80)]
    return [" ".join(rng.choice(words, 8)) + "." for _ in range(200)]


@pytest.fixture(scope="module")
def extended(kinds, domain):
    """Name of a kind -> its extension by words of the domain."""
    return {name: extend(kinds[name], domain, ADD) for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_old_ids_keep_their_tokens_and_new_entries_follow(kinds, extended, name):
    old, new = kinds[name], extended[name].tokenizer
    assert new.tokens == [*old.tokens, *extended[name].entries]
    assert len(set(extended[name].entries)) == ADD
    assert new.special_ids == old.special_ids
    assert not new.difference_from(old) and old.difference_from(new)


@pytest.mark.parametrize("name", KINDS)
def test_texts_change_only_where_tokens_are_saved(kinds, extended, texts, domain, name):
    old, new = kinds[name], extended[name].tokenizer
    for of_text, many in ((texts, 0), (domain, len(domain) / 2)):
        before, after = old.encode(of_text), new.encode(of_text)
        changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
        assert len(changed) >= many
        for ids, fewer in changed:
            assert len(fewer) < len(ids) and max(fewer) >= old.vocab_size
            assert new.decode(fewer) == old.decode(ids)
            # Apart from the new entries, there are the old pieces.
            if name != "wordpiece":  # which splits the rest of a word on its own
                assert [piece for i in fewer for piece in old.split(new.tokens[i])] == ids


@pytest.mark.parametrize("name", KINDS)
def test_the_tokens_saved_are_those_that_are_said(kinds, extended, domain, name):
    spaced = [f" {text}" for text in domain] if name in ("bpe", "modernbert") else domain
    for tokenizer, said in (
        (kinds[name], extended[name].tokens_before),
        (extended[name].tokenizer, extended[name].tokens_after),
    ):
        assert sum(map(len, tokenizer.encode(spaced))) == said
    assert extended[name].words < extended[name].tokens_after < extended[name].tokens_before


@pytest.mark.parity
@pytest.mark.parametrize("name", KINDS)
def test_transformers_gives_the_ids_of_the_extended_vocabulary(
    extended, texts, domain, tmp_path, name
):
    transformers = pytest.importorskip("transformers")
    new = extended[name].tokenizer
    new.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == new.fingerprint
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    mask = new.layout.special_tokens.mask
    inside = "".join(new.readable(entry).strip("␣") for entry in extended[name].entries[:3])
    for text in [*texts[:50], *domain[:50], f"{inside} x{inside} {mask}", "Ünïcode 你好 🙂"]:
        assert theirs(text)["input_ids"] == new.encode_prompt(text)[0], text


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "albert"])
def test_the_vocabulary_in_its_own_files_says_the_same(extended, tmp_path, name):
    new = extended[name].tokenizer
    new.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert load_tokenizer(tmp_path).fingerprint == new.fingerprint


def wordpiece(*entries: str) -> WordPieceTokenizer:
    vocab = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *entries])}
    return WordPieceTokenizer(vocab, do_lower_case=True)


def test_words_are_chosen_by_the_tokens_that_they_save():
    old = wordpiece("a", "b", "c", "##a", "##b")
    # abb saves 2 tokens twice, ba one token three times, ca one twice; cb occurs only once.
    text = ["abb abb ba ba ba ca ca cb"]
    assert extend(old, text, 2).entries == ["abb", "ba"]
    assert extend(old, text, 9).entries == ["abb", "ba", "ca"]
    assert extend(old, text, 9, min_frequency=1).entries == ["abb", "ba", "ca", "cb"]


def test_a_word_counts_for_the_words_that_begin_with_it():
    old = wordpiece("a", "##a", "##b", "##c", "##s")
    # abc saves 2 tokens itself and 2 in each of its plurals; aaa saves 2 tokens twice.
    extension = extend(old, ["abc abcs abcs aaa aaa"], 1, min_frequency=1)
    assert extension.entries == ["abc"]
    tokens = extension.tokenizer.tokens
    assert [tokens[i] for i in extension.tokenizer.encode(["abcs"])[0]] == ["abc", "##s"]


def test_a_word_that_would_be_split_otherwise_becomes_an_entry_as_well():
    # With the entry "dis", "discord" would be dis ##c ##ord, three pieces instead of di ##scord.
    old = wordpiece("d", "di", "##s", "##c", "##ord", "##scord")
    text = ["dis " * 9 + "discord"]
    assert extend(old, text, 5).entries == ["discord", "dis"]
    with pytest.raises(ValueError, match="no words to add"):
        extend(old, text, 1)  # there is no room for both


def test_a_word_that_its_beginning_would_make_unknown_becomes_an_entry_as_well():
    old = wordpiece("a", "##bc", "##b")
    extension = extend(old, ["ab ab ab abc"], 5)
    assert extension.entries == ["abc", "ab"]
    assert extension.tokenizer.unk_token_id not in extension.tokenizer.encode(["ab abc"])[0]


# Short texts in scripts that a Latin vocabulary lacks.
SCRIPTS = {
    "Khmer": ["ខ្ញុំ ទៅ ផ្ទះ។ គាត់ ទៅ សាលារៀន។", "ឆ្កែ ធំ ហើយ ឆ្មា តូច។ ខ្ញុំ ស្រឡាញ់ ឆ្កែ។"],
    "Amharic": ["ቤቱ ትልቅ ነው። ውሻው ትንሽ ነው።", "ልጁ ወደ ቤት መጣ። ድመቷ ወተት ጠጣች።"],
    "Georgian": ["სახლი დიდია. ძაღლი პატარაა.", "ბავშვი სახლში მოვიდა და რძე დალია."],
    "Thai": ["แมวกินปลา หมาวิ่งเล่น", "เด็กไปโรงเรียน แม่อยู่บ้าน"],
}


def unknown_share(tokenizer, texts) -> float:
    ids = [i for text in tokenizer.encode(texts) for i in text]
    return ids.count(tokenizer.unk_token_id) / len(ids)


# XLM-R's and ALBERT's are unigrams.
OF_SCRIPTS = pytest.mark.parametrize(
    ("name", "script"),
    [
        pytest.param(name, script, marks=WEEKLY if name != "wordpiece" and is_repeated else ())
        for script, is_repeated in zip(SCRIPTS, (False, True, True, False), strict=True)
        for name in ("wordpiece", "albert", "xlm-roberta")
    ],
)


@OF_SCRIPTS
def test_a_script_that_the_vocabulary_lacks_becomes_known(kinds, texts, domain, name, script):
    old, own = kinds[name], SCRIPTS[script] * 5
    added = extend(old, own + domain[:40], 120)
    new = added.tokenizer
    assert unknown_share(old, own) > 0.4 and unknown_share(new, own) == 0
    assert added.unknown[0] > 0.05 and added.unknown[1] == 0
    # First the characters, the most frequent ones first, then words of these characters.
    characters = [entry.removeprefix("##") for entry in added.entries[: added.characters]]
    assert set(map(len, characters)) == {1} and added.characters < len(added.entries) <= 120
    if name == "wordpiece":  # in both forms
        assert {*characters, *(f"##{c}" for c in characters)} <= new.vocab.keys()
    words = "".join(added.entries[added.characters :])
    assert set(words) & set(characters)
    # Old ids stay, and so does text of the old script, but for the words of the domain.
    assert new.tokens[: old.vocab_size] == old.tokens and not new.difference_from(old)
    changed = [(a, b) for a, b in zip(old.encode(texts), new.encode(texts), strict=True) if a != b]
    assert all(len(b) < len(a) for a, b in changed)
    # The order of the texts does not matter, and little room is for the most frequent characters.
    assert extend(old, (own + domain[:40])[::-1], 120).tokenizer.fingerprint == new.fingerprint
    few = extend(old, own, 3)
    assert few.entries == added.entries[:3] and few.characters == 3


@OF_SCRIPTS
def test_pieces_are_learnt_where_words_are_not_apart(kinds, texts, name, script):
    words = [word for text in SCRIPTS[script] for word in text[:-1].split()]
    rng = random.Random(0)
    clauses = ["".join(rng.choices(words, k=4)).replace("។", "") for _ in range(90)]
    old, (first, held_out) = kinds[name], (clauses[:60], clauses[60:])
    added = extend(old, first, 150)
    new = added.tokenizer
    alone = extend(old, first, added.characters).tokenizer
    numbers = [sum(map(len, tokenizer.encode(held_out))) for tokenizer in (alone, new)]
    assert numbers[1] < 0.7 * numbers[0]
    # Nothing else changes: all new entries have a new character.
    assert new.encode(texts) == old.encode(texts) and new.tokens[: old.vocab_size] == old.tokens


@pytest.mark.parametrize("name", ["wordpiece", "albert"])
def test_rare_characters_stay_unknown_and_known_words_stay_whole(kinds, texts, name):
    old = kinds[name]
    text = f"{texts[0]} ა ა ბ"
    added = extend(old, [text], 50, min_frequency=2)
    assert added.characters and "ა" in "".join(added.entries)
    assert "ბ" not in "".join(added.entries)
    assert added.unknown[0] == pytest.approx(3 * added.unknown[1])
    only = extend(old, ["ა ა"], 1).tokenizer
    assert only.encode(texts) == old.encode(texts)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["wordpiece", "albert", "xlm-roberta"])
def test_transformers_gives_the_ids_of_new_characters(kinds, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    own = [text for texts in SCRIPTS.values() for text in texts]
    new = extend(kinds[name], own * 3, 300).tokenizer
    new.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == new.fingerprint
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*own, "abc დედა жук", own[0] + own[2]]:
        assert theirs(text)["input_ids"] == new.encode_prompt(text)[0], text
    if name != "xlm-roberta":  # whose extension has no file of SentencePiece
        (tmp_path / "tokenizer.json").unlink()
        assert load_tokenizer(tmp_path).fingerprint == new.fingerprint


def test_merges_follow_the_old_ones_in_order_of_frequency(kinds):
    old = kinds["bpe"]
    new = extend(old, ["zq zqx " * 4], 2).tokenizer
    assert isinstance(new, ByteLevelBPETokenizer)
    assert new.merges[: len(old.merges)] == old.merges
    assert new.merges[len(old.merges) :] == [("z", "q"), ("Ġ", "zq")]


def test_a_text_without_words_to_add_is_refused():
    old = train_wordpiece(["ab cd"] * 9, vocab_size=100)
    with pytest.raises(ValueError, match=r"none of its 2 different words occurs at least 2 times"):
        extend(old, ["ab ab ab", "cd"], 5)


def test_the_first_difference_from_an_extension_is_named(kinds, extended):
    old, new = wordpiece("a", "b", "##c"), wordpiece("a", "x", "##c")
    assert new.difference_from(old) == "id 6 was 'b' and is 'x'"
    assert wordpiece("a").difference_from(old) == "id 6 was 'b' and is missing"
    assert "different kinds" in kinds["bpe"].difference_from(old)
    cased = WordPieceTokenizer(old.vocab, do_lower_case=False)
    assert "(True, True, None)" in cased.difference_from(old)
    bpe, more = kinds["bpe"], extended["bpe"].tokenizer
    fewer = ByteLevelBPETokenizer(more.vocab, more.merges[1:])
    assert str(bpe.merges[0]) in fewer.difference_from(bpe)
