"""The byte-level BPE tokenizer of ModernBERT and Ettin, and the training of such a vocabulary.

It differs from RoBERTa's in Unicode normalisation (NFC), in the special tokens, which are BERT's,
and in tokens that are found in a text before it is split, such as runs of spaces (Warner et al.
2024, 2.1.1; it is a modified tokenizer of OLMo).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, normalizers, processors

from bertjax.tokenization.base import Layout, SpecialTokens, settings_of_added
from bertjax.tokenization.bpe import ByteLevelBPETokenizer, learn_bpe
from bertjax.tokenization.counting import Report
from bertjax.tokenization.tokenizer_files import TokenizerJson

SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# [MASK] includes the space before it.
_SPECIAL = {token: {"lstrip": token == "[MASK]", "special": True} for token in SPECIAL_TOKENS}


class ModernBertTokenizer(ByteLevelBPETokenizer):
    """The tokenizer of ModernBERT, which encodes pairs as `[CLS] A [SEP] B [SEP]`.

    All token type ids are 0.

    Args:
        vocab: maps each token to its id, added tokens included; the n tokens must have the ids 0 to
            n - 1.
        merges: the BPE merges, each a pair of tokens, in order of rank.
        added: the tokens that are found in a text before it is split, each with its settings in
            `tokenizer.json`; None: the special tokens.
        nfc: whether texts are normalised to NFC.
        add_prefix_space: whether to encode the first word of a text as if a space preceded it.
        model_max_length: the maximum input length of the model, in tokens.
        model_input_names: names of the arrays that the transformers tokenizer returns; None:
            input_ids and attention_mask.

    Raises:
        ValueError: a special token is missing, the ids are not 0 to n - 1, or the vocabulary lacks
            a token of a merge or the token that results from a merge.
    """

    tokenizer_class = "PreTrainedTokenizerFast"
    layout_of_class = Layout(special_tokens=SPECIAL_TOKENS, second_type=0)

    def __init__(
        self,
        vocab: dict[str, int],
        merges: Sequence[tuple[str, str]],
        *,
        added: Mapping[str, Mapping[str, bool]] | None = None,
        nfc: bool = True,
        add_prefix_space: bool = False,
        model_max_length: int = 8192,
        model_input_names: Sequence[str] | None = None,
    ):
        self.added = settings_of_added(_SPECIAL if added is None else added)
        self.nfc = nfc
        super().__init__(
            vocab,
            merges,
            add_prefix_space=add_prefix_space,
            model_max_length=model_max_length,
            model_input_names=model_input_names,
        )

    @classmethod
    def from_json(cls, read: TokenizerJson, **options: Any) -> "ModernBertTokenizer":
        """Returns the tokenizer of a parsed `tokenizer.json`, `read`.

        `options` are further arguments of the class.

        Raises:
            ValueError: see the class.
        """
        vocab = read.vocab() | {token: entry["id"] for token, entry in read.added_tokens.items()}
        nfc = read.normalizer("NFC") is not None
        return cls(vocab, read.merges(), added=read.added_tokens, nfc=nfc, **options)

    def _make_prompt_backend(self) -> tokenizers.Tokenizer:
        backend = super()._make_prompt_backend()
        if self.nfc:
            backend.normalizer = normalizers.NFC()
        backend.post_processor = self._template()
        return backend

    def _make_text_backend(self) -> tokenizers.Tokenizer:
        backend = super()._make_text_backend()
        # Offsets leave out the space before a word, as RoBERTa's do: ModernBERT's files keep it.
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
        return backend

    def _added_tokens(self) -> list[AddedToken]:
        by_id = sorted(self.added, key=self.vocab.__getitem__)
        return [AddedToken(token, **self.added[token]) for token in by_id]

    @property
    def word_starts(self) -> np.ndarray:
        """Whether each token begins with a space or is an added token, bool [vocab_size]."""
        return super().word_starts | np.array([token in self.added for token in self.tokens])

    def readable(self, token: str) -> str:
        if token in self.added:
            return token.replace(" ", "␣")
        return super().readable(token)

    def _identity(self) -> Any:
        return [super()._identity(), sorted(map(list, self.added.items()), key=str), self.nfc]

    def _settings(self) -> dict[str, Any]:
        return {"add_prefix_space": self.add_prefix_space}

    def _vocabulary_files(self) -> dict[str, str]:
        return {}


def is_modernbert(read: TokenizerJson) -> bool:
    """Returns whether the byte-level BPE in a parsed `tokenizer.json` has BERT's special tokens."""
    return set(SPECIAL_TOKENS) <= read.added_tokens.keys()


def train_modernbert_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    model_max_length: int = 8192,
    report: Report | None = None,
) -> ModernBertTokenizer:
    """Learns a byte-level BPE vocabulary of at most `vocab_size` tokens, as for ModernBERT.

    The texts are normalised to NFC. The special tokens have the ids 0 to 4, and a token for each of
    the 256 bytes follows. `min_frequency`, `model_max_length` and `report` are those of
    `bpe.train_bpe`.

    Raises:
        ValueError: `vocab_size` is too small for the special tokens and the byte tokens, or the
            texts contain no word.
    """
    normalizer = normalizers.NFC()
    vocab, merges = learn_bpe(
        (normalizer.normalize_str(text) for text in texts),
        SPECIAL_TOKENS,
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        report=report,
    )
    return ModernBertTokenizer(vocab, merges, model_max_length=model_max_length)
