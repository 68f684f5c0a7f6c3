"""The WordPiece tokenizer of BERT, which splits text into words, and each word into subword tokens.

A word is split from left to right into the longest tokens of the vocabulary (Wu et al. 2016, 4.1).
As in transformers, a word longer than 100 characters becomes [UNK], unless tokenizer.json has
another limit; in google-research/bert, the limit is 200 characters.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable
from functools import partial
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from bertjax.base import progress
from bertjax.tokenization.base import (
    SPECIAL_TOKENS,
    Layout,
    Report,
    Tokenizer,
    build_backend,
    count_words,
    explaining_the_library,
    learnt,
    numbered,
)
from bertjax.tokenization.letters import strip_by_default

MAX_CHARACTERS_PER_WORD = 100
# A vocabulary with a larger share of capitalised entries is cased. Released uncased vocabularies
# have at most 0.01 %, cased ones at least 14 %.
CASED_SHARE = 0.01
_CAPITAL = re.compile("[A-Z]")


class WordPieceTokenizer(Tokenizer):
    """The tokenizer of BERT and DistilBERT, which encodes pairs as `[CLS] A [SEP] B [SEP]`.

    Args:
        vocab: maps each token to its id; the n tokens must have the ids 0 to n - 1.
        tokenize_chinese_chars: whether to put spaces around CJK characters, so that each is a word.
        strip_accents: whether to strip accents; None means the value of `do_lower_case`.

    Raises:
        ValueError: see `Tokenizer`, or `do_lower_case` is True for a cased vocabulary, whose
            capitalised tokens would never be produced.
    """

    tokenizer_class = "BertTokenizer"

    def __init__(
        self,
        vocab: dict[str, int],
        *,
        do_lower_case: bool,
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        **options: Any,
    ):
        if do_lower_case and looks_cased(vocab):
            raise ValueError(
                "do_lower_case=True, but the vocabulary is cased: none of its capitalised entries "
                "could ever be produced. Set do_lower_case to false in tokenizer_config.json, or "
                "use the uncased vocabulary."
            )
        with explaining_the_library():
            backend = build_backend(
                models.WordPiece(vocab, unk_token="[UNK]"),
                SPECIAL_TOKENS,
                lstrip_mask=False,
                normalizer=_normalizer(do_lower_case, tokenize_chinese_chars, strip_accents),
                pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
                decoder=decoders.WordPiece(prefix="##"),
            )
        super().__init__(backend, Layout(special_tokens=SPECIAL_TOKENS), **options)

    @property
    def prefix(self) -> str:
        """What an entry begins with that continues a word, `##` in BERT."""
        return self._prompt_backend.model.continuing_subword_prefix

    def _text_model(self) -> models.Model:
        # Reading the fields of the model as JSON would take as long as all else.
        backend = self._prompt_backend
        model = self._prompt_backend.model
        has_more = backend.get_vocab_size(with_added_tokens=False) < len(self.vocab)
        vocab = backend.get_vocab(with_added_tokens=False) if has_more else dict(self.vocab)
        for token in vocab.keys() & {*self.layout.special_tokens}:
            vocab[self._hidden(token)] = vocab.pop(token)
        return models.WordPiece(
            vocab,
            unk_token=self._hidden(model.unk_token),
            max_input_chars_per_word=model.max_input_chars_per_word,
            continuing_subword_prefix=model.continuing_subword_prefix,
        )

    def _tiny(self) -> Tokenizer:
        return WordPieceTokenizer(numbered(SPECIAL_TOKENS), **self.settings())

    def split(self, word: str) -> list[int]:
        """Returns the ids of the pieces of a word or, after `prefix`, of the rest of a word."""
        if not word.startswith(self.prefix):
            return super().split(word)
        rest = word.removeprefix(self.prefix)
        pieces = longest_matches(rest, self.vocab, self.prefix)
        return [self.vocab[piece] for piece in pieces] or [self.unk_token_id]

    def written(self, token: str) -> bytes:
        return token.removeprefix(self.prefix).encode()

    @property
    def word_starts(self) -> np.ndarray:
        prefix = self.prefix
        return np.array([not (prefix and token.startswith(prefix)) for token in self.tokens])

    def _usual_identity(self) -> Any:
        return [self.tokens, tuple(self.settings().values())]

    def settings(self) -> dict[str, Any]:
        steps = [step for step in self._normalizers if step["type"] == "BertNormalizer"]
        step = steps[0] if steps else {"handle_chinese_chars": False, "strip_accents": None}
        chinese = step["handle_chinese_chars"]
        accents = step["strip_accents"]
        return super().settings() | {"tokenize_chinese_chars": chinese, "strip_accents": accents}

    def _vocabulary_files(self) -> dict[str, str]:
        words = self.tokens[: self._prompt_backend.get_vocab_size(with_added_tokens=False)]
        return {"vocab.txt": "".join(token + "\n" for token in words)}


def longest_matches(rest: str, vocab: Container[str], prefix: str) -> tuple[str, ...]:
    """Splits the rest of a word, whose beginning has been split, into the longest entries.

    The entries begin with `prefix`. Returns () if there are none.
    """
    pieces = []
    start = 0
    while start < len(rest):
        ends = range(len(rest), start, -1)
        end = next((end for end in ends if prefix + rest[start:end] in vocab), None)
        if end is None:
            return ()
        pieces.append(prefix + rest[start:end])
        start = end
    return tuple(pieces)


def looks_cased(vocab: Iterable[str]) -> bool:
    """Returns whether over 1 % of the tokens in `vocab` contain a capital letter A-Z.

    Tokens in square brackets, such as [UNK] and [unused0], are left out of the count.
    """
    words = [token for token in vocab if not (token.startswith("[") and token.endswith("]"))]
    capitalised = sum(_CAPITAL.search(word) is not None for word in words)
    return capitalised > CASED_SHARE * len(words)


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    split: str = "words",
    min_frequency: int = 2,
    model_max_length: int = 512,
    report: Report | None = None,
) -> WordPieceTokenizer:
    """Learns a WordPiece vocabulary of at most `vocab_size` tokens from an iterable of texts.

    Marks, such as accents, are stripped if `strip_accents`; if it is None, they are with
    `do_lower_case`, unless over 1 % of the letters have marks outside of Latin, Greek and Cyrillic
    (`report` is then called with a message). If `split` is "residues", each character is a token,
    as for proteins and DNA, and case and marks are kept.

    Pairs of tokens that occur less often than `min_frequency` times are not merged. If `vocab_size`
    is too small for all characters in the texts, the rarest characters are left out. The vocabulary
    does not depend on the order of the texts, unless `count_words` drops rare words; `report` is
    then called with a message. Raises ValueError if no word has at most 100 characters.
    """
    by_word = split == "words"
    lowers = do_lower_case and by_word
    pre_tokenizer = pre_tokenizers.BertPreTokenizer() if by_word else residues()
    left_out: Counter[str] = Counter()

    def words_of(normalizer: normalizers.Normalizer, text: str) -> list[str]:
        normal = normalizer.normalize_str(text)
        words = [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]
        if max(map(len, words), default=0) <= MAX_CHARACTERS_PER_WORD:
            return words
        # Longer words become [UNK] with any vocabulary.
        long = [word for word in words if len(word) > MAX_CHARACTERS_PER_WORD]
        left_out.update(words=len(long), characters=sum(map(len, long)))
        return [word for word in words if len(word) <= MAX_CHARACTERS_PER_WORD]

    if not by_word:
        strip_accents = False
    undecided = strip_accents is None and lowers
    normalizer = _normalizer(lowers, by_word, False if undecided else strip_accents)
    words = count_words(map(partial(words_of, normalizer), texts), report)
    if undecided:
        stripping = _normalizer(lowers, by_word, True)
        is_stripped, words = strip_by_default(words, partial(words_of, stripping), report)
        strip_accents = None if is_stripped else False
    _check_words(words, left_out, report)
    vocab = numbered(_learn_tokens(words, vocab_size, min_frequency))
    tokenizer = WordPieceTokenizer(
        vocab,
        do_lower_case=lowers,
        tokenize_chinese_chars=by_word,
        strip_accents=strip_accents,
        model_max_length=model_max_length,
    )
    if by_word:
        return tokenizer
    return tokenizer.with_parts(pre_tokenizer=pre_tokenizer, decoder=decoders.Fuse())


def residues() -> pre_tokenizers.PreTokenizer:
    """Returns the pre-tokenizer that makes a word of each character but spaces."""
    each = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), each])


def _check_words(words: Counter[str], left_out: Counter[str], report: Report | None) -> None:
    why = "check that --input names files with text."
    if left_out:
        characters = left_out["characters"]
        share = characters / (characters + sum(len(word) * words[word] for word in words))
        why = (
            f"{left_out['words']:,} words of more than {MAX_CHARACTERS_PER_WORD} characters, "
            f"{share:.1%} of the characters of the text, were left out, because WordPiece makes "
            "one unknown token of each. Use --kind bpe or unigram or, for proteins, DNA and the "
            "like, --split residues, which makes a token of each character."
        )
        if report and words:
            report(f"warning: {why}")
    if not words:
        raise ValueError(f"The corpus contains no word to learn a vocabulary from: {why}")


def _learn_tokens(words: Counter[str], vocab_size: int, min_frequency: int) -> list[str]:
    """Learns the tokens of a WordPiece vocabulary from word counts; returns them in order of ids.

    The special tokens come first, then single characters, then those with the prefix `##`, and then
    longer tokens. All characters are passed to the trainer in a fixed order, because its own order
    of the `##` characters, by which it breaks ties, is random.
    """
    characters: Counter[str] = Counter()
    for word, count in words.items():
        characters[word[0]] += count
        for character in word[1:]:
            characters["##" + character] += count
            characters[character] += 0  # the trainer adds an entry for every character
    room = max(vocab_size - len(SPECIAL_TOKENS), 0)
    # Drop the rarest characters; the trainer would keep all of them and exceed vocab_size.
    kept = sorted(characters, key=lambda token: (-characters[token], token))[:room]
    alphabet = [*SPECIAL_TOKENS, *sorted(kept, key=lambda token: (len(token), token))]
    if len(alphabet) >= vocab_size:
        return alphabet
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=alphabet,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    with progress.progress("learning the vocabulary"):
        vocab = learnt(models.WordPiece(unk_token="[UNK]"), words, trainer)["vocab"]
    return sorted(vocab, key=vocab.__getitem__)


def _normalizer(do_lower_case: bool, chinese: bool, strip_accents: bool | None):
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=strip_accents,
        lowercase=do_lower_case,
    )
