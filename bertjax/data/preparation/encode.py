"""Tokenizes sentences with a cache of words, several times as fast as the tokenizer alone.

BERT's WordPiece splits text at spaces and ASCII punctuation marks, so the token ids of a sentence
are the concatenated token ids of its words. About 98 % of the words of a text are already in the
cache when they are needed. Other tokenizers, and a WordPiece with added tokens, which may hold
spaces and punctuation marks, encode whole sentences, without the cache.
"""

import re
from array import array
from collections.abc import Iterable, Sequence

from bertjax.tokenization import Tokenizer, WordPieceTokenizer

# Number of words, about 150 MB, above which the cache is cleared.
MOST_WORDS = 1_000_000
LARGEST_UINT16 = (1 << 16) - 1
_WORDS = re.compile(r"[^ !-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")


class SentenceEncoder:
    """Encodes each sentence as bytes, which hold the token ids of the sentence.

    Args:
        tokenizer: the tokenizer.

    Attributes:
        typecode: type code of the ids for `array.array`: "H" (uint16) if the vocabulary has at most
            65536 entries, else "I" (uint32).
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._words: dict[str, bytes] = {}
        self.typecode = "H" if tokenizer.vocab_size - 1 <= LARGEST_UINT16 else "I"

    def encode(
        self, sentences: Sequence[str], following: Sequence[bool] | None = None
    ) -> list[bytes]:
        """Returns the token ids of each sentence as bytes; b"" for a sentence without tokens.

        Args:
            sentences: sentences whose words are separated by single spaces.
            following: for each sentence, whether it follows another sentence and a space, which
                byte-level BPE encodes with the sentence's first word; None: False for all
                sentences.
        """
        if not isinstance(self._tokenizer, WordPieceTokenizer) or self._tokenizer.added_tokens:
            # Pieces of other tokenizers contain the space before a word: encode whole sentences.
            return self._encode_whole(sentences, following or [False] * len(sentences))
        if self._tokenizer.do_lower_case:
            # Non-ASCII text is lower-cased by the tokenizer's own rules.
            sentences = [s.lower() if s.isascii() else s for s in sentences]
        split = list(map(_WORDS.findall, sentences))
        self._learn({word for words in split for word in words} - self._words.keys())
        get = self._words.__getitem__
        return [b"".join(map(get, words)) for words in split]

    def _encode_whole(self, sentences: Sequence[str], following: Sequence[bool]) -> list[bytes]:
        def select(wanted: bool) -> list[str]:
            return [s for s, follows in zip(sentences, following, strict=True) if follows == wanted]

        rows = {
            True: iter(self._tokenizer.encode_after_space(select(True))),
            False: iter(self._tokenizer.encode(select(False))),
        }
        return [array(self.typecode, next(rows[follows])).tobytes() for follows in following]

    def _learn(self, new_words: Iterable[str]) -> None:
        new_words = list(new_words)
        typecode = self.typecode
        for word, ids in zip(new_words, self._tokenizer.encode(new_words), strict=True):
            self._words[word] = array(typecode, ids).tobytes()

    def forget_if_full(self) -> None:
        """Clears the cache of words if it has more than MOST_WORDS words, to bound the memory."""
        if len(self._words) > MOST_WORDS:
            self._words.clear()
