"""WordPiece as BERT uses it: split on spaces and punctuation, then greedily into known pieces.

Follows transformers where it differs from Google's release: a word longer than 100 characters
becomes [UNK] (Google: 200).
"""

import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_CHARACTERS_PER_WORD = 100
# Above this share of entries with a capital letter a vocabulary is cased: the released uncased
# ones hold at most 0.01 %, the cased ones 14 % and more.
CASED_SHARE = 0.01


class WordPieceTokenizer:
    """Encodes text for BERT with the `tokenizers` library.

    Args:
        vocab: token -> id; ids must be 0..n-1.
        do_lower_case: lower-case and strip accents first.
        tokenize_chinese_chars: put spaces around CJK characters.
        strip_accents: None means "as do_lower_case says".
        model_max_length: the longest input of the model that this tokenizer belongs to.

    Raises:
        ValueError: a special token is missing, ids have gaps, or a cased vocabulary would be
            lower-cased, so that all its capitalised words could never be produced.
    """

    def __init__(
        self,
        vocab: dict[str, int],
        *,
        do_lower_case: bool,
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        model_max_length: int = 512,
    ):
        _check_vocab(vocab, do_lower_case)
        self.vocab = vocab
        self.do_lower_case = do_lower_case
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.strip_accents = strip_accents
        self.model_max_length = model_max_length
        self.tokens = sorted(vocab, key=vocab.__getitem__)
        self.pad_token_id, self.unk_token_id, self.cls_token_id = (
            vocab[token] for token in SPECIAL_TOKENS[:3]
        )
        self.sep_token_id, self.mask_token_id = vocab["[SEP]"], vocab["[MASK]"]
        self._prompt_backend = self._make_backend()
        # In corpus text "[MASK]" is five characters that somebody wrote, not our mask.
        self._text_backend = self._make_backend()
        self._text_backend.encode_special_tokens = True

    def _make_backend(self) -> tokenizers.Tokenizer:
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
    def vocab_size(self) -> int:
        """Number of entries in the vocabulary."""
        return len(self.tokens)

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of [PAD], [UNK], [CLS], [SEP], [MASK], in this order."""
        return tuple(self.vocab[token] for token in SPECIAL_TOKENS)

    @property
    def word_starts(self) -> np.ndarray:
        """Bool [vocab_size]: False where a piece (`##ing`) continues the word before it."""
        return np.array([not token.startswith("##") for token in self.tokens])

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides which ids a text gets."""
        settings = (self.do_lower_case, self.tokenize_chinese_chars, self.strip_accents)
        return hashlib.sha256(json.dumps([self.tokens, settings]).encode()).hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without [CLS] and [SEP]; special tokens written in it are split."""
        encodings = self._text_backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids as `encode` gives them, and where in the text each token stands.

        Returns:
            ids int32 [n], and int32 [n, 2]: the first character of each token, and the one behind
            its last. Pieces of one character, as a Korean syllable may have them, share its place.
        """
        encoding = self._text_backend.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        return np.array(encoding.ids, np.int32), offsets

    def encode_prompt(
        self, text: str, pair: str | None = None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Ids and token types of `[CLS] text [SEP] (pair [SEP])`; "[MASK]" is the mask token.

        More than `max_length` tokens are cut, from the end of the longer of the two.
        """
        return self._cut(self._prompt_backend.encode(text, pair), pair, max_length)

    def encode_pair(
        self, text: str, pair: str | None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """As `encode_prompt`, but special tokens written in the texts are split."""
        return self._cut(self._text_backend.encode(text, pair), pair, max_length)

    def _cut(
        self, encoding: tokenizers.Encoding, pair: str | None, max_length: int | None
    ) -> tuple[list[int], list[int]]:
        ids, types = encoding.ids, encoding.type_ids
        if max_length is None or len(ids) <= max_length:
            return ids, types
        first = types.index(1) if pair is not None else len(ids)
        a, b = ids[1 : first - 1], ids[first:-1]
        room = max_length - (2 if pair is None else 3)
        # As transformers does: the odd token goes to the longer one, to the second if equal.
        half = room // 2 + (room % 2 if len(b) >= len(a) else 0)
        keep_b = min(len(b), max(room - len(a), half))
        a, b = a[: room - keep_b], b[:keep_b]
        head = [self.cls_token_id, *a, self.sep_token_id]
        tail = [] if pair is None else [*b, self.sep_token_id]
        return head + tail, [0] * len(head) + [1] * len(tail)

    def encode_prompts(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Ids of `[CLS] text [SEP]` for many texts, on all cores, cut to `max_length` tokens."""
        encodings = self._prompt_backend.encode_batch_fast(list(texts))
        rows = [encoding.ids for encoding in encodings]
        return [
            ids if len(ids) <= max_length else [*ids[: max_length - 1], self.sep_token_id]
            for ids in rows
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, pieces joined, special tokens kept."""
        return self._prompt_backend.decode(list(ids), skip_special_tokens=False)

    def save(self, directory: str | Path) -> None:
        """Writes `vocab.txt`, `tokenizer.json` and `tokenizer_config.json`, as transformers reads.

        The config is not optional: given the vocabulary alone, transformers lower-cases.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        _write_if_other(directory / "vocab.txt", "".join(token + "\n" for token in self.tokens))
        _write_if_other(directory / "tokenizer.json", self._prompt_backend.to_str(pretty=True))
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.do_lower_case,
            "tokenize_chinese_chars": self.tokenize_chinese_chars,
            "strip_accents": self.strip_accents,
            "model_max_length": self.model_max_length,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "mask_token": "[MASK]",
        }
        _write_if_other(directory / "tokenizer_config.json", json.dumps(settings, indent=2) + "\n")


def _write_if_other(path: Path, text: str) -> None:
    """Writes a file whole, unless it holds just this: other processes may be reading it."""
    content = text.encode()
    if path.is_file() and path.read_bytes() == content:
        return
    # Several machines may share the directory.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


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
) -> WordPieceTokenizer:
    """Learns a WordPiece vocabulary of at most `vocab_size` entries from an iterable of texts.

    The same texts give the same vocabulary, in whatever order they come.

    Raises:
        ValueError: the texts hold no word at all.
    """
    words = _count_words(texts, do_lower_case)
    if not words:
        raise ValueError(
            "The corpus gave no word to learn a vocabulary from: check that --input names "
            "files that hold text."
        )
    tokens = _learn_tokens(words, vocab_size, min_frequency)
    vocab = {token: index for index, token in enumerate(tokens)}
    return WordPieceTokenizer(vocab, do_lower_case=do_lower_case, model_max_length=model_max_length)


def _count_words(texts: Iterable[str], do_lower_case: bool) -> Counter[str]:
    normalizer = _normalizer(do_lower_case, True, None)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        words = pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
        # Longer words are [UNK] whatever the vocabulary.
        counts.update(word for word, _ in words if len(word) <= MAX_CHARACTERS_PER_WORD)
    return counts


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
    backend.train_from_iterator(_repeated(words), trainer)
    vocab = backend.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Every word as often as it was counted, some at a time: the library takes no counts."""
    at_once = 1000
    for word in sorted(words):
        whole, rest = divmod(words[word], at_once)
        if whole:
            text = " ".join([word] * at_once)
            for _ in range(whole):
                yield text
        if rest:
            yield " ".join([word] * rest)


def _normalizer(do_lower_case: bool, chinese: bool, strip_accents: bool | None):
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=strip_accents,
        lowercase=do_lower_case,
    )


def _check_vocab(vocab: dict[str, int], do_lower_case: bool) -> None:
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise ValueError(
            f"The vocabulary ({len(vocab)} entries) lacks the special tokens {missing}: BERT "
            f"needs {list(SPECIAL_TOKENS)}. Add them, or train one with bertjax.train_tokenizer."
        )
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError(
            f"The ids of the vocabulary ({len(vocab)} entries, largest id "
            f"{max(vocab.values())}) are not 0..{len(vocab) - 1}: give every id one token."
        )
    if do_lower_case and looks_cased(vocab):
        raise ValueError(
            "do_lower_case=True, but the vocabulary is cased: none of its capitalised entries "
            "could ever be produced. Set do_lower_case to false in tokenizer_config.json, or use "
            "the uncased vocabulary."
        )
