"""Tokenizers, which convert text to token ids and back; the package does not import JAX."""

from bertjax.tokenization.base import Tokenizer
from bertjax.tokenization.bpe import (
    BPETokenizer,
    ByteLevelBPETokenizer,
    ModernBertTokenizer,
    train_bpe,
    train_modernbert_bpe,
)
from bertjax.tokenization.dictionary import check_dictionary
from bertjax.tokenization.extension import Extension, extend
from bertjax.tokenization.load_tokenizer import load_tokenizer
from bertjax.tokenization.tokenizer_files import TOKENIZER_FILES, VOCABULARY_FILES
from bertjax.tokenization.unigram import UnigramTokenizer, train_unigram
from bertjax.tokenization.wordpiece import WordPieceTokenizer, train_wordpiece

__all__ = [
    "TOKENIZER_FILES",
    "VOCABULARY_FILES",
    "BPETokenizer",
    "ByteLevelBPETokenizer",
    "Extension",
    "ModernBertTokenizer",
    "Tokenizer",
    "UnigramTokenizer",
    "WordPieceTokenizer",
    "check_dictionary",
    "extend",
    "load_tokenizer",
    "train_bpe",
    "train_modernbert_bpe",
    "train_unigram",
    "train_wordpiece",
]
