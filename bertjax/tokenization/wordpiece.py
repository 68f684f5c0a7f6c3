"""WordPiece as BERT uses it: split on spaces and punctuation, then greedily into known pieces.

Follows transformers where it differs from Google's release: a word longer than 100 characters
becomes [UNK] (Google: 200).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertjax.tokenization.base import Layout, SpecialTokens, Tokenizer
from bertjax.tokenization.counting import Report, count_words, repeated

SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_CHARACTERS_PER_WORD = 100
# Above this share of entries with a capital letter a vocabulary is cased: the released uncased
# ones hold at most 0.01 %, the cased ones 14 % and more.
CASED_SHARE = 0.01


class WordPieceTokenizer(Tokenizer):
    """BERT's and DistilBERT's: `[CLS] A [SEP] B [SEP]`.

    Args:
        vocab: token -> id; ids must be 0..n-1.
        do_lower_case: lower-case and strip accents first.
        tokenize_chinese_chars: put spaces around CJK characters.
        strip_accents: None means "as do_lower_case says".
        model_max_length: the longest input of the model that this tokenizer belongs to.
        model_input_names: what transformers shall return; DistilBERT's takes no token types.

    Raises:
        ValueError: a special token is missing, ids have gaps, or a cased vocabulary would be
            lower-cased, so that all its capitalised words could never be produced.
    """

    tokenizer_class = "BertTokenizer"

    def __init__(
        self,
        vocab: dict[str, int],
        *,
        do_lower_case: bool,
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        model_max_length: int = 512,
        model_input_names: Sequence[str] | None = None,
    ):
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.strip_accents = strip_accents
        super().__init__(
            vocab,
            Layout(special_tokens=SPECIAL_TOKENS),
            do_lower_case=do_lower_case,
            model_max_length=model_max_length,
            model_input_names=model_input_names,
        )
        if do_lower_case and looks_cased(vocab):
            raise ValueError(
                "do_lower_case=True, but the vocabulary is cased: none of its capitalised entries "
                "could ever be produced. Set do_lower_case to false in tokenizer_config.json, or "
                "use the uncased vocabulary."
            )

    def _make_prompt_backend(self) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(
            models.WordPiece(
                self.vocab,
                unk_token="[UNK]",
                max_input_chars_per_word=MAX_CHARACTERS_PER_WORD,
            )
        )
        backend.normalizer = _normalizer(
            self.do_lower_case, self.tokenize_chinese_chars, self.strip_accents
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##")
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[(t, self.vocab[t]) for t in ("[CLS]", "[SEP]")],
        )
        backend.add_special_tokens(list(SPECIAL_TOKENS))
        return backend

    @property
    def word_starts(self) -> np.ndarray:
        """Bool [vocab_size]: False where a piece (`##ing`) continues the word before it."""
        return np.array([not token.startswith("##") for token in self.tokens])

    def _identity(self) -> Any:
        settings = (self.do_lower_case, self.tokenize_chinese_chars, self.strip_accents)
        return [self.tokens, settings]

    def _settings(self) -> dict[str, Any]:
        return {
            "tokenize_chinese_chars": self.tokenize_chinese_chars,
            "strip_accents": self.strip_accents,
        }

    def _vocabulary_files(self) -> dict[str, str]:
        return {"vocab.txt": "".join(token + "\n" for token in self.tokens)}


def looks_cased(vocab: Iterable[str]) -> bool:
    """Whether a vocabulary keeps capital letters (special and unused entries aside)."""
    words = [token for token in vocab if not (token.startswith("[") and token.endswith("]"))]
    capitalised = sum(any("A" <= character <= "Z" for character in word) for word in words)
    return capitalised > CASED_SHARE * len(words)


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int,
    do_lower_case: bool = True,
    min_frequency: int = 2,
    model_max_length: int = 512,
    report: Report | None = None,
) -> WordPieceTokenizer:
    """Learns a WordPiece vocabulary of at most `vocab_size` entries from an iterable of texts.

    The same texts give the same vocabulary, in whatever order they come, unless they hold so many
    words that rare ones are forgotten (`counting.count_words`, which tells `report`).

    Raises:
        ValueError: the texts hold no word at all.
    """
    words = count_words(_words_of(texts, do_lower_case), report)
    if not words:
        raise ValueError(
            "The corpus gave no word to learn a vocabulary from: check that --input names "
            "files that hold text."
        )
    tokens = _learn_tokens(words, vocab_size, min_frequency)
    vocab = {token: index for index, token in enumerate(tokens)}
    return WordPieceTokenizer(vocab, do_lower_case=do_lower_case, model_max_length=model_max_length)


def _words_of(texts: Iterable[str], do_lower_case: bool) -> Iterator[list[str]]:
    normalizer = _normalizer(do_lower_case, True, None)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for text in texts:
        words = pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
        # Longer words are [UNK] whatever the vocabulary.
        yield [word for word, _ in words if len(word) <= MAX_CHARACTERS_PER_WORD]


def _learn_tokens(words: Counter[str], vocab_size: int, min_frequency: int) -> list[str]:
    """Special tokens, characters, `##` characters, then joined pieces, in order of their ids.

    The trainer of the library numbers the `##` characters as it meets them in a hash table with a
    random seed, and breaks ties between pairs by these numbers. Given all of them beforehand, in
    order, it gives the same vocabulary every time.
    """
    characters: Counter[str] = Counter()
    for word, count in words.items():
        characters[word[0]] += count
        for character in word[1:]:
            characters["##" + character] += count
            characters[character] += 0  # the trainer gives every character an entry of its own
    room = vocab_size - len(SPECIAL_TOKENS)
    if len(characters) > room:
        # The rarest go; the trainer would keep them all, beyond vocab_size.
        kept = sorted(characters, key=lambda token: (-characters[token], token))[:room]
    else:
        kept = list(characters)
    alphabet = [*SPECIAL_TOKENS, *sorted(kept, key=lambda token: (len(token), token))]
    if len(alphabet) >= vocab_size:
        return alphabet
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=alphabet,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    backend.train_from_iterator(repeated(words), trainer)
    vocab = backend.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def _normalizer(do_lower_case: bool, chinese: bool, strip_accents: bool | None):
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=strip_accents,
        lowercase=do_lower_case,
    )
