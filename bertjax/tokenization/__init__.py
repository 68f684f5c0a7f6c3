"""Text to token ids and back. Needs no jax."""

from bertjax.tokenization.load import load_tokenizer
from bertjax.tokenization.wordpiece import WordPieceTokenizer, train_wordpiece

__all__ = ["WordPieceTokenizer", "load_tokenizer", "train_wordpiece"]
