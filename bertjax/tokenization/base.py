"""Base class of the tokenizers, and the counting of words for training and extending them."""

import abc
import contextlib
import copy
import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers

from bertjax.base.files import brief, write_bytes

METASPACE = "▁"
"""The character that stands for a space in the pieces of a SentencePiece vocabulary."""
VISIBLE_SPACE = "␣"
"""The character that stands for a space in readable tokens."""


_BREAKS = r"\p{lb=ID}\p{lb=CJ}\p{lb=NS}\p{lb=SA}\p{lb=AK}\p{lb=AS}\p{lb=AP}"
UNSPACED = rf"[[{_BREAKS}]&&[\p{{Alphabetic}}--[\p{{M}}\p{{Hangul}}\p{{Latin}}]]]"
"""Pattern of the letters of scripts without spaces, such as kana and Thai, for `regex` with V1:
those beside which a line may break."""
CHARACTER = rf"{UNSPACED}[\p{{M}}\u200c\u200d]*"
"""Pattern of such a letter with its marks."""


class SpecialTokens(NamedTuple):
    """The special tokens of a model family, such as "[PAD]" and "<mask>"."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The special tokens of BERT and ModernBERT."""


# Number of ids without an entry that a vocabulary may have beyond the number of its entries.
MAX_GAP = 1000
GENERIC_CLASS = "PreTrainedTokenizerFast"
"""The class of transformers that takes a `tokenizer.json` as it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The arrangement of text and special tokens in an input of a model family.

    A text A becomes `cls A sep`; a pair (A, B) becomes `cls A sep B sep`, or `cls A sep sep B sep`.
    """

    special_tokens: SpecialTokens
    separators: int = 1
    """Number of `sep` tokens between the two texts of a pair."""
    second_type: int = 1
    """Token type of the second text and the `sep` after it; all other tokens have type 0."""

    def num_special_tokens(self, pair: bool) -> int:
        """Returns the number of special tokens in an input of one text, or of two if `pair`."""
        return 2 + pair * self.separators


@contextlib.contextmanager
def explaining_the_library() -> Iterator[None]:
    """The tokenizers library raises plain Exceptions and Rust panics, which are no Exceptions."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(
            "The tokenizers library cannot use the vocabulary and settings "
            f"({type(error).__name__}: {brief(error)}): download them again."
        ) from error


class Tokenizer(abc.ABC):
    """Wraps a tokenizer of the `tokenizers` library, and adds the special tokens of a model family.

    The constructor of a subclass builds the wrapped tokenizer from a vocabulary; `wrap` takes one
    as it is. Ids without a token are "" in `tokens`.

    Args:
        model_max_length: the longest input of the model, in tokens, which `save` only stores.
        model_input_names: names of the arrays that a model is given; without token_type_ids, all
            token types are 0. None: input_ids, attention_mask and, if the layout has two token
            types, token_type_ids.
        tokenizer_class: replaces the attribute of the class.

    Raises ValueError if a special token is missing, two tokens have one id, most ids have none, or
    the library rejects the vocabulary.
    """

    tokenizer_class: str
    """The name of the class in transformers that loads the files of a saved tokenizer."""
    truncation_side = "right"
    """The side on which long texts are truncated, "right" or "left"."""
    added_tokens: dict[str, dict[str, Any]]
    """The settings of each added token, except the special tokens of the layout."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        layout: Layout,
        *,
        model_max_length: int = 512,
        model_input_names: Sequence[str] | None = None,
        tokenizer_class: str | None = None,
    ):
        self.layout = layout
        self.model_max_length = model_max_length
        if model_input_names is None:
            model_input_names = ["input_ids", "attention_mask"]
            if layout.second_type:
                model_input_names.insert(1, "token_type_ids")
        self.model_input_names = tuple(model_input_names)
        self.tokenizer_class = tokenizer_class or self.tokenizer_class
        self._read(backend)

    def _read(self, backend: tokenizers.Tokenizer) -> None:
        self.vocab = vocab = backend.get_vocab()
        special = self.layout.special_tokens
        _check_vocab(vocab, special)
        by_id = {index: token for token, index in vocab.items()}
        self.tokens = [by_id.get(index, "") for index in range(max(by_id) + 1)]
        self.pad_token_id = vocab[special.pad]
        self.unk_token_id = vocab[special.unk]
        self.cls_token_id = vocab[special.cls]
        self.sep_token_id = vocab[special.sep]
        self.mask_token_id = vocab[special.mask]
        self._normalizers = steps(state(backend.normalizer))
        self._pre_tokenizers = steps(state(backend.pre_tokenizer))
        with explaining_the_library():
            self._prompt_backend = backend
            self.added_tokens = {
                token.content: token.__getstate__()
                for token in self.added()
                if token.content not in special
            }
            if backend.post_processor is None:
                backend.post_processor = self._post_processor()
            self._text_backend = self._make_text_backend()

    @classmethod
    def wrap(cls, backend: tokenizers.Tokenizer, layout: Layout, **options: Any) -> Self:
        """Returns a tokenizer that wraps `backend`; the arguments are as for `Tokenizer`."""
        tokenizer = cls.__new__(cls)
        Tokenizer.__init__(tokenizer, backend, layout, **options)
        return tokenizer

    @functools.cached_property
    def _fields(self) -> dict[str, Any]:
        """The fields of the model in `tokenizer.json`, lists as the constructors take them."""
        fields = {}
        for name, value in state(self._prompt_backend.model).items():
            if value is not None:
                fields[name] = list(map(tuple, value)) if isinstance(value, list) else value
        return fields

    def _model(self, **changes: Any) -> models.Model:
        fields = self._fields | changes
        return getattr(models, fields.pop("type"))(**fields)

    def with_model(self, **changes: Any) -> Self:
        """Returns a copy whose model has other fields, and all tokens in its vocabulary."""
        return self._with_backend(self._copied(self._model(**changes), self.added()))

    def with_parts(self, **parts: Any) -> Self:
        """Returns a copy with another normalizer, pre_tokenizer or decoder of the library."""
        backend = self._copied(self._prompt_backend.model, self.added())
        for name, part in parts.items():
            setattr(backend, name, part)
        return self._with_backend(backend)

    def _with_backend(self, backend: tokenizers.Tokenizer) -> Self:
        copied = copy.copy(self)
        vars(copied).pop("_fields", None)
        copied._read(backend)
        return copied

    def normalised_first(self, first: normalizers.Normalizer) -> Self:
        """Returns a copy that applies the normalizer `first` to a text, before its own."""
        own = self._prompt_backend.normalizer
        both = [first] if own is None else [first, own]
        return self.with_parts(normalizer=normalizers.Sequence(both))

    def added(self) -> list[AddedToken]:
        """Returns all added tokens, special ones too, by their ids."""
        added = self._prompt_backend.get_added_tokens_decoder()
        return [added[index] for index in sorted(added)]

    def _copied(self, model: models.Model, added: list[AddedToken]) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
            setattr(backend, part, getattr(self._prompt_backend, part))
        backend.add_tokens(added)
        return backend

    def add_tokens(self, tokens: Sequence[AddedToken]) -> None:
        """Adds tokens that are matched in a text before it is split."""
        if tokens:
            self._prompt_backend.add_tokens(list(tokens))
            self._read(self._prompt_backend)

    def _make_text_backend(self) -> tokenizers.Tokenizer:
        # In the text of a corpus "[MASK]" is ordinary text, but other added tokens are found.
        added = []
        for token in self.added():
            token.special = token.content in self.layout.special_tokens
            if token.special:
                token = AddedToken(self._hidden(token.content), special=True)
            added.append(token)
        backend = self._copied(self._text_model(), added)
        backend.encode_special_tokens = True
        return backend

    @abc.abstractmethod
    def _text_model(self) -> models.Model:
        """Returns the model, in which no text is a special token, since `_hidden` renames them."""

    def _hidden(self, token: str) -> str:
        # U+FFFF is not a character, so that no text contains it.
        if token in self.layout.special_tokens:
            return f"\uffff{token}"
        return token

    def _post_processor(self) -> processors.PostProcessor:
        _, _, cls, sep, _ = self.layout.special_tokens
        between = f"{sep}:0 " * self.layout.separators
        second = self.layout.second_type
        return processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {between}$B:{second} {sep}:{second}",
            special_tokens=[(cls, self.cls_token_id), (sep, self.sep_token_id)],
        )

    @property
    def second_type(self) -> int:
        """The token type of the second text of a pair: that of the layout, or 0 for models whose
        `model_input_names` have no token types."""
        if "token_type_ids" in self.model_input_names:
            return self.layout.second_type
        return 0

    @property
    def do_lower_case(self) -> bool:
        """Whether text is lower-cased."""
        for step in self._normalizers:
            if step["type"] == "Lowercase" or step.get("lowercase"):
                return True
        return False

    @property
    def is_usual(self) -> bool:
        """Whether texts are split as by `tokenizer_class`, which knows few of all settings."""
        return self._pipeline() == self._tiny()._pipeline()

    def _pipeline(self) -> list[Any]:
        model = {name: value for name, value in self._fields.items() if value}
        if "merges" in self._fields:
            model.pop("unk_token", None)  # no byte is unknown
        for name in ("vocab", "merges", "fuse_unk"):
            model.pop(name, None)
        return [self._normalizers, self._pre_tokenizers, model, list(self.layout.special_tokens)]

    @abc.abstractmethod
    def _tiny(self) -> "Tokenizer":
        """Returns a tokenizer of the class and the settings that the class knows."""

    @property
    @abc.abstractmethod
    def word_starts(self) -> np.ndarray:
        """bool [vocab_size]: True for pieces that start a word, False for pieces inside a word."""

    @abc.abstractmethod
    def _usual_identity(self) -> Any:
        """Returns the vocabulary and settings of a usual tokenizer, as JSON values."""

    def _identity(self) -> Any:
        # That of a usual tokenizer stays as it was, and so does the fingerprint of prepared data.
        usual = self._usual_identity()
        added = {t: x for t, x in self.added_tokens.items() if not t.endswith(">NOTUSED")}
        if self.is_usual and not added:
            return usual
        return [usual, self._pipeline(), added]

    def settings(self) -> dict[str, Any]:
        """Returns the fields of `tokenizer_config.json` that determine the ids of a text."""
        return {"do_lower_case": self.do_lower_case}

    @abc.abstractmethod
    def _vocabulary_files(self) -> Mapping[str, str | bytes]:
        """Returns {file name: content} of all vocabulary files besides `tokenizer.json`."""

    @property
    def vocab_size(self) -> int:
        """The number of entries in the vocabulary."""
        return len(self.tokens)

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the pad, unk, cls, sep and mask tokens, in this order."""
        return tuple(self.vocab[token] for token in self.layout.special_tokens)

    @property
    def fingerprint(self) -> str:
        """A hash (16 hex digits) of the vocabulary and settings that determine a text's ids."""
        return hashlib.sha256(json.dumps(self._identity()).encode()).hexdigest()[:16]

    def difference_from(self, old: "Tokenizer") -> str:
        """Describes why this tokenizer is not `old` with further entries; "" if it is.

        Ids, preprocessing, and merges or pieces with their scores must begin with those of `old`.
        """
        if type(self) is not type(old):
            return f"{type(old).__name__} and {type(self).__name__} are different kinds"
        tokens = itertools.chain(self.tokens, itertools.repeat(None))
        for index, (before, token) in enumerate(zip(old.tokens, tokens, strict=False)):
            if token != before:
                now = "is missing" if token is None else f"is {brief(token, 40)!r}"
                return f"id {index} was {brief(before, 40)!r} and {now}"
        return _first_difference(old._identity(), self._identity())

    @explaining_the_library()
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text, without special tokens; "[MASK]" is ordinary text."""
        encodings = self._text_backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    @explaining_the_library()
    def normalise(self, text: str) -> str:
        """Returns a text as it is before it is split, for example lower-cased."""
        normalizer = self._text_backend.normalizer
        if normalizer is None:
            return text
        return normalizer.normalize_str(text)

    @explaining_the_library()
    def words(self, text: str) -> list[str]:
        """Splits a text, as if a space preceded it, into the words that `split` takes.

        The words are normalised, for example lower-cased, and written as in the vocabulary.
        """
        text = self.normalise(text)
        pre_tokenizer = self._text_backend.pre_tokenizer
        if pre_tokenizer is None:
            return [text] if text else []
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]

    def split(self, word: str) -> list[int]:
        """Returns the ids of the pieces of a word that is written as in the vocabulary."""
        return [token.id for token in self._text_backend.model.tokenize(word)]

    @explaining_the_library()
    def unknown_parts(self, texts: Sequence[str]) -> list[str]:
        """Returns the parts of the texts that are the unknown token."""
        encodings = self._text_backend.encode_batch(list(texts), add_special_tokens=False)
        parts = []
        for text, encoding in zip(texts, encodings, strict=True):
            for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if index == self.unk_token_id:
                    parts.append(text[start:end])
        return parts

    def encode_after_space(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text as if a space preceded it (for byte-level BPE)."""
        return self.encode(texts)

    def after_space(self) -> Self:
        """Returns a copy that encodes every text as if a space preceded it, as words of taggers."""
        return self

    @explaining_the_library()
    def encode_with_offsets(
        self, text: str, *, is_prompt: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids [n] of a text, and each token's characters, int32 [n, 2]: start and end.

        Ends are exclusive. Several tokens of one character all have its start and end. If the text
        `is_prompt`, "[MASK]" is the mask token, as in `encode_prompt`.
        """
        backend = self._prompt_backend if is_prompt else self._text_backend
        encoding = backend.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        starts = offsets[:, 0]
        ends = offsets[:, 1]
        # The space before a word is left out: pieces such as "▁a" contain it.
        visible = _next_visible(text)[starts]
        offsets[:, 0] = np.where(visible < ends, visible, starts)
        return np.array(encoding.ids, np.int32), offsets

    def encode_prompt(
        self, text: str, pair: str | None = None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Returns (ids, token types) of a text or pair, in which "[MASK]" becomes the mask token.

        The special tokens are added. The input is truncated to `max_length` tokens with them, the
        longer text of a pair first. Raises ValueError if there is no room for the special tokens.
        """
        return self._encode(self._prompt_backend, text, pair, max_length)

    def encode_pair(
        self, text: str, pair: str | None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Encodes a text or pair like `encode_prompt`, but "[MASK]" in a text is ordinary text."""
        return self._encode(self._text_backend, text, pair, max_length)

    def encode_pairs(
        self, text: str, pairs: Iterable[str], max_length: int
    ) -> list[tuple[list[int], list[int]]]:
        """Encodes a text with each of `pairs` like `encode_prompt`, but tokenizes it only once."""
        first, *others = self._ids(self._prompt_backend, [text, *pairs])
        return [self._joined(first, second, max_length=max_length) for second in others]

    def encode_prompts(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Encodes each text like `encode_prompt`, in several threads; returns only the ids."""
        with explaining_the_library():
            batch = self._prompt_backend.encode_batch_fast
            encodings = batch(list(texts), add_special_tokens=False)
        room = self._room(max_length, pair=False)
        return [self.join(self._cut(encoding.ids, room))[0] for encoding in encodings]

    def join(
        self, first: Sequence[int], second: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """Adds special tokens to the ids of one or two texts; returns the ids and token types."""
        head = [self.cls_token_id, *first, self.sep_token_id]
        if second is None:
            return head, [0] * len(head)
        head += [self.sep_token_id] * (self.layout.separators - 1)
        tail = [*second, self.sep_token_id]
        types = [0] * len(head) + [self.second_type] * len(tail)
        return head + tail, types

    def decode(self, ids: Iterable[int]) -> str:
        """Converts token ids to text; special tokens such as "[CLS]" remain in the text."""
        return self._prompt_backend.decode(list(ids), skip_special_tokens=False)

    def readable(self, token: str) -> str:
        """Returns a token as people read it: the token itself, or with "␣" for a space."""
        return token

    def written(self, token: str) -> bytes:
        """Returns what a token writes into a text, in UTF-8."""
        return token.encode()

    def save(self, directory: str | Path, longest: int | None = None) -> None:
        """Writes the vocabulary files, `tokenizer.json` and `tokenizer_config.json` to `directory`.

        `longest` is the largest number of tokens that the model reads; None: `model_max_length`.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        special = self.layout.special_tokens
        settings = {
            # transformers uses tokenizer.json as it is only for its generic class.
            "tokenizer_class": self.tokenizer_class if self.is_usual else GENERIC_CLASS,
            **self.settings(),
            "model_max_length": min(self.model_max_length, longest or self.model_max_length),
            "model_input_names": list(self.model_input_names),
        }
        for name, token in special._asdict().items():
            settings[f"{name}_token"] = token
        if self.truncation_side != "right":
            settings["truncation_side"] = self.truncation_side
        files = {
            **self._vocabulary_files(),
            "tokenizer.json": self._prompt_backend.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        }
        for name, content in files.items():
            if isinstance(content, str):
                content = content.encode()
            _write_if_changed(directory / name, content)

    def _encode(
        self, backend: tokenizers.Tokenizer, text: str, pair: str | None, max_length: int | None
    ) -> tuple[list[int], list[int]]:
        texts = [text]
        if pair is not None:
            texts.append(pair)
        return self._joined(*self._ids(backend, texts), max_length=max_length)

    def _ids(self, backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        with explaining_the_library():
            return [backend.encode(text, add_special_tokens=False).ids for text in texts]

    def _joined(
        self, first: list[int], second: list[int] | None = None, *, max_length: int | None
    ) -> tuple[list[int], list[int]]:
        if max_length is not None:
            room = self._room(max_length, pair=second is not None)
            if second is not None and len(first) + len(second) > room:
                # If `room` is odd, the longer text gets one token more, or the second if both are
                # equally long.
                half = room // 2
                if len(second) >= len(first):
                    half = room - half
                second = self._cut(second, max(room - len(first), half))
                room -= len(second)
            first = self._cut(first, room)
        return self.join(first, second)

    def _cut(self, ids: list[int], keep: int) -> list[int]:
        if self.truncation_side == "right":
            return ids[:keep]
        return ids[max(len(ids) - keep, 0) :]

    def _room(self, max_length: int, pair: bool) -> int:
        needed = self.layout.num_special_tokens(pair)
        if max_length < needed:
            raise ValueError(
                f"max_length={max_length} is too short for the {needed} special tokens of a "
                f"{'pair' if pair else 'text'}: increase it."
            )
        return max_length - needed


def _next_visible(text: str) -> np.ndarray:
    """Returns for each place of a text, its end too, that of the next character but spaces."""
    places = np.full(len(text) + 1, len(text))
    for place, character in enumerate(text):
        if not character.isspace():
            places[place] = place
    return np.minimum.accumulate(places[::-1])[::-1]


def state(component: Any) -> Any:
    """Returns a normalizer, pre-tokenizer, decoder or model as JSON values; None for None."""
    if component is None:
        return None
    return json.loads(component.__getstate__())


def steps(component: Any) -> list[dict[str, Any]]:
    """Returns the steps of a normalizer or pre-tokenizer in JSON, with sequences flattened."""
    members = component
    if isinstance(component, dict):
        members = [value for value in component.values() if isinstance(value, list)]
        if not members:
            return [component]
    flat = []
    for member in members if isinstance(members, list) else ():
        flat += steps(member)
    return flat


def build_backend(
    model: models.Model, special: SpecialTokens, *, lstrip_mask: bool = True, **parts: Any
) -> tokenizers.Tokenizer:
    """Builds a tokenizer with special tokens; `parts` are its normalizer, pre_tokenizer, ..."""
    backend = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(backend, name, part)
    for token in special:
        if model.token_to_id(token) is not None:
            lstrip = lstrip_mask and token == special.mask
            backend.add_special_tokens([AddedToken(token, normalized=False, lstrip=lstrip)])
    return backend


def _first_difference(before: Any, now: Any) -> str:
    """Describes how `now` differs from `before`, longer lists aside; "" if it does not."""
    if not isinstance(before, list) or not isinstance(now, list):
        if before == now:
            return ""
        return f"a setting or score was {brief(before, 60)} and is {brief(now, 60)}"
    if len(now) < len(before):
        return f"{brief(before[len(now)], 60)} is missing"
    for old, new in zip(before, now, strict=False):
        difference = _first_difference(old, new)
        if difference:
            return difference
    return ""


def _check_vocab(vocab: dict[str, int], special_tokens: SpecialTokens) -> None:
    missing = [token for token in special_tokens if token not in vocab]
    if missing:
        raise ValueError(
            f"The vocabulary ({len(vocab)} entries) lacks the special tokens {missing}: the model "
            f"needs {list(special_tokens)}. Add them."
        )
    ids = {*vocab.values()}
    largest = max(ids)
    if len(ids) != len(vocab) or largest > 2 * len(vocab) + MAX_GAP:
        raise ValueError(
            f"The vocabulary has {len(vocab)} entries and the largest id {largest}: each entry "
            "needs an id of its own, and most ids an entry."
        )


def _write_if_changed(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    write_bytes(path, content, unique=True)  # several machines may share the directory


Report = Callable[[str], None]

# The most characters of the distinct words that `count_words` keeps in memory: about 1.2 million
# English words, for which counting and training take about 1 GB.
MOST_CHARACTERS = 10_000_000
SHARE_KEPT = 0.5


def count_words(
    texts_of_words: Iterable[Iterable[str]],
    report: Report | None = None,
    most_characters: int = MOST_CHARACTERS,
) -> Counter[str]:
    """Counts how often each word occurs in the texts; returns {word: count}.

    When the distinct words have more than `most_characters` characters in total, the rarest so far
    are dropped until the others have at most half as many. A dropped word that occurs again is
    counted from 0. Only then do the counts depend on the order of the texts; `report` is called
    with a message after all texts.
    """
    counts: Counter[str] = Counter()
    checked = size = dropped = highest = 0
    for words in texts_of_words:
        if size > most_characters:
            threshold, size = _threshold(counts, int(SHARE_KEPT * most_characters))
            kept = Counter({word: n for word, n in counts.items() if n > threshold})
            dropped += len(counts) - len(kept)
            highest = max(highest, threshold)
            counts = kept
            checked = len(kept)
        counts.update(words)
        if len(counts) > checked:
            # The new words are at the end of the Counter.
            new = itertools.islice(reversed(counts), len(counts) - checked)
            size += sum(map(len, new))
            checked = len(counts)
    if dropped and report:
        report(
            f"To bound memory, {dropped:,} rare words were dropped (each had been counted at most "
            f"{highest} times); the vocabulary is learned from {len(counts):,} words."
        )
    return counts


def _threshold(counts: Counter[str], room: int) -> tuple[int, int]:
    """Returns the highest count to drop, and the number of characters to keep, up to `room`."""
    characters: Counter[int] = Counter()
    for word, count in counts.items():
        characters[count] += len(word)
    left = characters.total()
    for count in sorted(characters):
        left -= characters[count]
        if left <= room:
            return count, left
    raise AssertionError("unreachable: without any words, no characters remain")


def learnt(model: models.Model, counts: Counter[str], trainer: trainers.Trainer) -> dict[str, Any]:
    """Trains a model on words without spaces; returns its fields in a `tokenizer.json`."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_repeated(counts), trainer)
    return state(backend.model)


def _repeated(counts: Counter[str]) -> Iterator[str]:
    # Texts that contain each word as often as it counts: the trainers take no counts.
    at_once = 1000
    for word in sorted(counts):
        whole, rest = divmod(counts[word], at_once)
        text = " ".join([word] * at_once)
        for _ in range(whole):
            yield text
        if rest:
            yield " ".join([word] * rest)


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    """Returns {token: its index}."""
    return {token: index for index, token in enumerate(tokens)}
