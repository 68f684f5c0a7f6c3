import random
from array import array

import pytest

from bertjax.data.preparation.chunks import SentenceEncoder
from bertjax.tokenization import train_wordpiece
from bertjax.tokenization.bpe import train_bpe
from bertjax.tokenization.unigram import train_unigram

TEXT = [
    "The quick brown fox, it's said, jumps over the lazy dog! Ünïcode naïve café 中文字 (1999)."
]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_words_joined_equal_the_sentence_encoded_whole(do_lower_case):
    tokenizer = train_wordpiece(
        TEXT * 3, vocab_size=300, do_lower_case=do_lower_case, min_frequency=1
    )
    encoder = SentenceEncoder(tokenizer)
    rng = random.Random(0)
    alphabet = "abcTHE019 ,.!?'\"()[]-_#@$\x00\x1f\x7f\xad\u200d\u0301\u037eéÉÜßİΣς中。，’“—ﬁ½①한"
    sentences = [
        " ".join("".join(rng.choices(alphabet + " " * 12, k=rng.randrange(60))).split())
        for _ in range(3000)
    ]
    sentences += ["[MASK] [CLS] x[SEP]y [pad]", "a" * 99, "a" * 100, "a" * 101 + " b", ""]
    expected = [array("H", ids) for ids in tokenizer.encode(sentences)]
    assert encoder.encode(sentences) == expected
    assert encoder.encode(sentences) == expected  # out of memory this time


def test_large_vocabularies_take_four_bytes():
    tokenizer = train_wordpiece(TEXT, vocab_size=300, min_frequency=1)
    assert SentenceEncoder(tokenizer).typecode == "H"
    large = type(tokenizer)(
        {**tokenizer.vocab, **{f"x{n}": n for n in range(tokenizer.vocab_size, 70_000)}},
        do_lower_case=True,
    )
    encoder = SentenceEncoder(large)
    assert encoder.typecode == "I"
    ids = array("I")
    ids.extend(encoder.encode(["x69999 the"])[0])
    assert ids.tolist() == large.encode(["x69999 the"])[0]


@pytest.mark.parametrize("train", [train_bpe, train_unigram])
def test_pieces_that_hold_the_space_before_a_word_are_those_of_the_whole_sentence(train):
    words = ["river", "rivers", "stone", "stones", "under", "quiet", "The", "old"]
    rng = random.Random(1)
    sentences = [" ".join(rng.choices(words, k=rng.randrange(1, 9))) for _ in range(200)]
    tokenizer = train(sentences, vocab_size=300 if train is train_bpe else 40)
    expected = [array("H", ids) for ids in tokenizer.encode(sentences)]
    assert SentenceEncoder(tokenizer).encode(sentences) == expected
