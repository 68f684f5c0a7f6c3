"""The BPE tokenizers of RoBERTa, ModernBERT and mmBERT, and the training of byte-level BPE.

Byte-level BPE encodes any text without unknown tokens (Radford et al. 2019, 2.2; Liu et al. 2019,
4.4). ModernBERT's differs in Unicode normalisation (NFC), in the special tokens, which are BERT's,
and in tokens that are found in a text before it is split, such as runs of spaces (Warner et al.
2024, 2.1.1; it is a modified tokenizer of OLMo). mmBERT has the one of Gemma 2, which merges
characters and writes rare ones as pieces of one byte each (Marone et al. 2025).
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self
from unicodedata import category

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertjax.base import progress
from bertjax.base.files import brief
from bertjax.tokenization.base import (
    GENERIC_CLASS,
    METASPACE,
    SPECIAL_TOKENS,
    VISIBLE_SPACE,
    Layout,
    Report,
    SpecialTokens,
    Tokenizer,
    build_backend,
    count_words,
    explaining_the_library,
    learnt,
    numbered,
    steps,
)

ROBERTA = Layout(
    special_tokens=SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>"),
    separators=2,
    second_type=0,
)
ROBERTA_ORDER = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""The special tokens in the order of the ids of RoBERTa and XLM-RoBERTa."""
GEMMA = Layout(
    special_tokens=SpecialTokens("<pad>", "<unk>", "<bos>", "<eos>", "<mask>"), second_type=0
)
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # a piece that stands for a byte
SPACE = "Ġ"
"""The character that stands for a space in the tokens of a byte-level BPE vocabulary."""
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
# Maps each character of a byte-level token to its byte: printable bytes stand for themselves, the
# others are numbered from 256 on (Radford et al. 2019, "encoder.py").
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + n): byte for n, byte in enumerate(b for b in range(256) if b not in _PRINTABLE)
}


class BPETokenizer(Tokenizer):
    """A BPE tokenizer of any kind, such as Gemma's, which mmBERT has; `wrap` makes one."""

    tokenizer_class = GENERIC_CLASS
    layout_of_class = GEMMA

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The BPE merges, each a pair of tokens, in order of rank."""
        return self._fields["merges"]

    @property
    def prefix(self) -> str:
        """What a piece begins with that continues a word; "": pieces do not show it."""
        return self._fields.get("continuing_subword_prefix", "")

    def joined(self, pieces: Sequence[str]) -> str:
        """Returns the piece that merges of `pieces` lead to."""
        return pieces[0] + "".join(piece.removeprefix(self.prefix) for piece in pieces[1:])

    def _text_model(self) -> models.Model:
        special = {*self.layout.special_tokens}
        merges = [pair for pair in self.merges if special.isdisjoint((*pair, self.joined(pair)))]
        return self._model(
            vocab={self._hidden(token): i for token, i in self._fields["vocab"].items()},
            merges=merges,
            unk_token=self._hidden(self._fields.get("unk_token", "")) or None,
        )

    def _tiny(self) -> Tokenizer:
        # Only byte-level BPE is rebuilt from its vocabulary by a class of transformers.
        return ByteLevelBPETokenizer(numbered(ROBERTA_ORDER), [])

    def encode_after_space(self, texts: Sequence[str]) -> list[list[int]]:
        spaced = [text if not text or text.startswith(" ") else f" {text}" for text in texts]
        return self.encode(spaced)

    def after_space(self) -> Self:
        if self.encode(["a", "0"]) == self.encode_after_space(["a", "0"]):
            return self
        if self._pre_tokenizers[:1] and self._pre_tokenizers[0]["type"] == "ByteLevel":
            content = json.loads(self._prompt_backend.to_str())
            for part in ("pre_tokenizer", "post_processor"):
                for step in steps(content[part]):
                    if "add_prefix_space" in step:
                        step["add_prefix_space"] = True
            return self._with_backend(tokenizers.Tokenizer.from_str(json.dumps(content)))
        one = normalizers.Replace(Regex(r"\A  "), " ")  # where the text begins with a space
        return self.normalised_first(normalizers.Sequence([normalizers.Prepend(" "), one]))

    def words(self, text: str) -> list[str]:
        if text.strip():
            return super().words(f" {text}")
        return []

    @property
    def word_starts(self) -> np.ndarray:
        """Whether each token starts a word, bool [vocab_size].

        These are added tokens, and those that begin with a space, or with punctuation.
        """
        added = {*self.layout.special_tokens, *self.added_tokens}
        prefix = self.prefix

        def continues(token: str) -> bool:
            if prefix:
                return token.startswith(prefix)
            return bool(_BYTE.fullmatch(token)) or category(token[:1] or " ")[0] in "LMN"

        return np.array([token in added or not continues(token) for token in self.tokens])

    def written(self, token: str) -> bytes:
        if byte := _BYTE.fullmatch(token):
            return bytes.fromhex(byte[1])
        return token.removeprefix(self.prefix).replace(METASPACE, " ").encode()

    def readable(self, token: str) -> str:
        return token.replace(METASPACE, VISIBLE_SPACE)

    def _usual_identity(self) -> Any:
        unknown = [self._fields.get(name) for name in ("unk_token", "fuse_unk")]
        return ["bpe", self.tokens, self.merges, *unknown]

    def _vocabulary_files(self) -> dict[str, str]:
        return {}


class ByteLevelBPETokenizer(BPETokenizer):
    """The tokenizer of RoBERTa, which encodes pairs as `<s> A </s></s> B </s>`.

    All token type ids are 0.

    Args:
        vocab: maps each token to its id; the n tokens must have the ids 0 to n - 1.
        merges: the BPE merges, each a pair of tokens, in order of rank.
        add_prefix_space: whether to encode the first word of a text as if a space preceded it.

    Raises:
        ValueError: see `Tokenizer`, or the vocabulary lacks a token of a merge or the token that
            results from a merge.
    """

    tokenizer_class = "RobertaTokenizer"
    layout_of_class = ROBERTA
    _normalizer: normalizers.Normalizer | None = None

    def __init__(
        self,
        vocab: dict[str, int],
        merges: Sequence[tuple[str, str]],
        *,
        add_prefix_space: bool = False,
        **options: Any,
    ):
        unknown = [pair for pair in merges if not {*pair, "".join(pair)} <= vocab.keys()]
        if unknown:
            raise ValueError(
                f"{len(unknown)} of {len(merges)} merges have pieces that the vocabulary "
                f"({len(vocab)} entries) lacks (first: {brief(unknown[0])}): use the merges.txt "
                "and vocab.json of the same tokenizer."
            )
        with explaining_the_library():
            backend = build_backend(
                models.BPE(vocab=vocab, merges=list(merges)),
                self.layout_of_class.special_tokens,
                normalizer=self._normalizer,
                pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space),
                decoder=decoders.ByteLevel(),
            )
        super().__init__(backend, self.layout_of_class, **options)

    @property
    def add_prefix_space(self) -> bool:
        """Whether the first word of a text is encoded as if a space preceded it."""
        return any(step.get("add_prefix_space") for step in self._pre_tokenizers)

    def _post_processor(self) -> processors.PostProcessor:
        if self.layout.separators == 1:
            return super()._post_processor()
        return processors.RobertaProcessing(
            (self.layout.special_tokens.sep, self.sep_token_id),
            (self.layout.special_tokens.cls, self.cls_token_id),
            trim_offsets=True,
            add_prefix_space=self.add_prefix_space,
        )

    def _make_text_backend(self) -> tokenizers.Tokenizer:
        backend = super()._make_text_backend()
        # Offsets leave out the space before a word: some files, such as ModernBERT's, keep it.
        backend.post_processor = processors.ByteLevel(
            trim_offsets=True, add_prefix_space=self.add_prefix_space
        )
        return backend

    def _text_model(self) -> models.Model:
        return self._prompt_backend.model

    def _hidden(self, token: str) -> str:
        return token  # no merge leads to a special token

    def _tiny(self) -> Tokenizer:
        vocab = numbered(self.layout_of_class.special_tokens)
        return type(self)(vocab, [], add_prefix_space=self.add_prefix_space)

    @property
    def word_starts(self) -> np.ndarray:
        """Whether each token begins with a space or is an added token, bool [vocab_size]."""
        added = {*self.layout.special_tokens, *self.added_tokens}
        return np.array([token.startswith(SPACE) or token in added for token in self.tokens])

    def written(self, token: str) -> bytes:
        known = set(token) <= _BYTES.keys() and token not in self.layout.special_tokens
        if known:
            return bytes(_BYTES[character] for character in token)
        return token.encode()

    def readable(self, token: str) -> str:
        """Returns the text of a token, with "␣" for a space and "↵" for a line break.

        The bytes of an incomplete character are written in hexadecimal, such as `<E2 80>`.
        """
        if token in self.layout.special_tokens or token in self.added_tokens:
            return token.replace(" ", VISIBLE_SPACE)
        text = decoders.ByteLevel().decode([token])
        if "\ufffd" in text and set(token) <= _BYTES.keys():
            text = "<" + " ".join(f"{_BYTES[character]:02X}" for character in token) + ">"
        return text.replace(" ", VISIBLE_SPACE).replace("\n", "↵").replace("\t", "⇥")

    def _usual_identity(self) -> Any:
        return ["bpe", self.tokens, self.merges, self.add_prefix_space]

    def settings(self) -> dict[str, Any]:
        settings = super().settings() | {"add_prefix_space": self.add_prefix_space}
        if self.layout_of_class is ROBERTA:
            _, _, cls, sep, _ = self.layout.special_tokens
            settings |= {"bos_token": cls, "eos_token": sep}
        return settings

    def _vocabulary_files(self) -> dict[str, str]:
        vocab = numbered(self.tokens[: len(self._fields["vocab"])])
        merges = "".join(f"{first} {second}\n" for first, second in self.merges)
        return {
            "vocab.json": json.dumps(vocab, ensure_ascii=False),
            "merges.txt": f"#version: 0.2\n{merges}",
        }


def train_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    model_max_length: int = 512,
    report: Report | None = None,
) -> ByteLevelBPETokenizer:
    """Learns a byte-level BPE vocabulary of at most `vocab_size` tokens from an iterable of texts.

    Pairs of tokens that occur less often than `min_frequency` times are not merged. The vocabulary
    includes the 256 bytes, and does not depend on the order of the texts, unless `count_words`
    drops rare words; `report` is then called with a message. Raises ValueError if `vocab_size` is
    too small for the special tokens and the bytes, or the texts contain no word.
    """
    options = {"vocab_size": vocab_size, "min_frequency": min_frequency, "report": report}
    vocab, merges = _learn(texts, ROBERTA_ORDER, **options)
    return ByteLevelBPETokenizer(vocab, merges, model_max_length=model_max_length)


def train_modernbert_bpe(
    texts: Iterable[str], *, model_max_length: int = 8192, **options: Any
) -> "ModernBertTokenizer":
    """Learns a byte-level BPE vocabulary of at most `vocab_size` tokens, as for ModernBERT.

    The texts are normalised to NFC. The special tokens have the ids 0 to 4, and the 256 bytes
    follow. The other arguments and errors are as in `train_bpe`.
    """
    normalised = map(normalizers.NFC().normalize_str, texts)
    vocab, merges = _learn(normalised, SPECIAL_TOKENS, **options)
    return ModernBertTokenizer(vocab, merges, model_max_length=model_max_length)


def _learn(
    texts: Iterable[str],
    special: Sequence[str],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    report: Report | None = None,
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Returns the vocabulary, in which `special` has the first ids, and the merges."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(special) + len(alphabet):
        raise ValueError(
            f"vocab_size={vocab_size} is too small for {len(special)} special tokens and "
            f"{len(alphabet)} bytes: use at least {len(special) + len(alphabet)}."
        )
    # Each byte, even a space, is written as a printable character: only words are split.
    words = count_words(_words_of(texts), report)
    if not words:
        raise ValueError(
            "The corpus contains no word to learn a vocabulary from: check that --input names "
            "files with text."
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    with progress.progress("learning the vocabulary"):
        model = learnt(models.BPE(), words, trainer)
    return model["vocab"], [(first, second) for first, second in model["merges"]]


def _words_of(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields the words of each text, with the space before it and with a character per byte."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in texts:
        if text.strip():
            yield [word for word, _ in byte_level.pre_tokenize_str(text)]


class ModernBertTokenizer(ByteLevelBPETokenizer):
    """The tokenizer of ModernBERT, which encodes pairs as `[CLS] A [SEP] B [SEP]`, after NFC."""

    tokenizer_class = GENERIC_CLASS
    layout_of_class = Layout(special_tokens=SPECIAL_TOKENS, second_type=0)
    _normalizer = normalizers.NFC()

    def _identity(self) -> Any:
        settings = []
        for token in self.added():
            its = token.__getstate__()
            settings.append([its.pop("content"), its])
        usual = [self._usual_identity(), sorted(settings, key=str), True]
        if self.is_usual:
            return usual
        return [usual, self._pipeline()]

    def _vocabulary_files(self) -> dict[str, str]:
        return {}
