"""Tokenizers of every kind, learnt from a made-up language."""

import pytest

from bertjax.tokenization import (
    Tokenizer,
    UnigramTokenizer,
    train_bpe,
    train_modernbert_bpe,
    train_unigram,
    train_wordpiece,
)
from bertjax.tokenization.base import SPECIAL_TOKENS


@pytest.fixture(scope="session")
def texts(sentences) -> list[str]:
    return [sentence.capitalize() for sentence in sentences]


@pytest.fixture(scope="session")
def kinds(texts) -> dict[str, Tokenizer]:
    """One of each kind, and XLM-RoBERTa's and CamemBERT's numbering of a unigram."""
    unigram = train_unigram(texts, vocab_size=80, model_max_length=64)
    own = unigram.pieces[5:]
    roberta = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    camembert = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)]
    camembert += [("<unk>NOTUSED", -100.0), ("<s>", 0.0), ("</s>", 0.0)]
    return {
        "wordpiece": train_wordpiece(texts, vocab_size=90, model_max_length=64),
        "bpe": train_bpe(texts, vocab_size=300, model_max_length=64),
        "albert": unigram,
        "xlm-roberta": _as_roberta(unigram, [*roberta, *own], "XLMRobertaTokenizer"),
        "modernbert": train_modernbert_bpe(texts, vocab_size=300, model_max_length=64),
        "camembert": _as_roberta(unigram, [*camembert, *own], "CamembertTokenizer"),
        "deberta": UnigramTokenizer(
            [*((token, 0.0) for token in SPECIAL_TOKENS), *own],
            tokenizer_class="DebertaV2Tokenizer",
            charsmap=b"",
            do_lower_case=False,
            keep_accents=True,
            model_max_length=64,
        ),
    }


def _as_roberta(unigram, pieces, tokenizer_class):
    return UnigramTokenizer(
        [*pieces, ("<mask>", 0.0)],
        tokenizer_class=tokenizer_class,
        charsmap=unigram.charsmap,
        do_lower_case=False,
        keep_accents=True,
    )
