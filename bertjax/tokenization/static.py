"""The tokenizer of static embeddings, which adds no special tokens to a text."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from bertjax.base.files import MAX_JSON_BYTES, naming_read_errors, read_bytes, write_bytes
from bertjax.tokenization.base import (
    SPECIAL_TOKENS,
    Layout,
    Tokenizer,
    explaining_the_library,
    state,
    steps,
)

# Tokens that BERT's vocabulary keeps free.
_UNUSED = re.compile(r"\[unused\d+\]")


class StaticTokenizer(Tokenizer):
    """Wraps a tokenizer of the `tokenizers` library as it is, without special tokens.

    Texts are not truncated, up to `model_max_length` tokens. Padding has the id 0, which the table
    may use for another token.
    """

    tokenizer_class = "PreTrainedTokenizerFast"

    @classmethod
    def load(cls, file: Path, model_max_length: int) -> "StaticTokenizer":
        """Reads a `tokenizer.json`; raises ValueError if it is damaged."""
        with naming_read_errors(file), explaining_the_library():
            backend = tokenizers.Tokenizer.from_buffer(read_bytes(file, MAX_JSON_BYTES))
        return cls.wrap(
            backend, Layout(special_tokens=SPECIAL_TOKENS), model_max_length=model_max_length
        )

    @classmethod
    def of(cls, tokenizer: Tokenizer, model_max_length: int) -> tuple["StaticTokenizer", list[int]]:
        """Returns a copy of a tokenizer without unused and special tokens, and the ids it has kept.

        Padding and the unknown token are kept. Token i of the copy had the i-th of the ids.
        """
        content = json.loads(tokenizer._prompt_backend.to_str())
        special = tokenizer.layout.special_tokens
        dropped = {token["content"] for token in content["added_tokens"] if token["special"]}
        dropped -= {special.pad, special.unk}
        ids = []
        places = {}
        for index, token in enumerate(tokenizer.tokens):
            if token and token not in dropped and not _UNUSED.match(token):
                places[token] = len(ids)
                ids.append(index)
        model = content["model"]
        vocab = model["vocab"]
        if isinstance(vocab, list):  # unigram: pieces with their scores, by id
            if model.get("unk_id") is not None:
                unk, _ = vocab[model["unk_id"]]
                model["unk_id"] = places[unk]
            model["vocab"] = [[piece, score] for piece, score in vocab if piece in places]
        else:
            kept = vocab.keys() & places.keys()
            model["vocab"] = {token: places[token] for token in kept}
        added = []
        for token in content["added_tokens"]:
            if token["content"] in places:
                token["id"] = places[token["content"]]
                added.append(token)
        for step in steps(content["pre_tokenizer"]):
            if "add_prefix_space" in step:
                step["add_prefix_space"] = True
        content |= {"added_tokens": added, "post_processor": None}
        with explaining_the_library():
            backend = tokenizers.Tokenizer.from_str(json.dumps(content))
        layout = Layout(special_tokens=special)
        return cls.wrap(backend, layout, model_max_length=model_max_length), ids

    def _read(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.vocab = backend.get_vocab()
        by_id = {index: token for token, index in self.vocab.items()}
        self.tokens = [by_id.get(index, "") for index in range(max(by_id, default=-1) + 1)]
        self.pad_token_id = 0
        self.unk_token_id = self.cls_token_id = self.sep_token_id = self.mask_token_id = -1
        self._normalizers = steps(state(backend.normalizer))
        self._pre_tokenizers = steps(state(backend.pre_tokenizer))
        self._prompt_backend = self._text_backend = backend
        self.added_tokens = {token.content: token.__getstate__() for token in self.added()}

    def join(
        self, first: Sequence[int], second: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        ids = [*first, *(second or ())]
        return ids, [0] * len(ids)

    def _room(self, max_length: int, pair: bool) -> int:
        return max_length

    def decode(self, ids: Iterable[int]) -> str:
        return self._prompt_backend.decode(list(ids), skip_special_tokens=False)

    @property
    def word_starts(self) -> np.ndarray:
        return np.ones(self.vocab_size, bool)

    def _text_model(self) -> Any:
        return self._prompt_backend.model

    def _tiny(self) -> Tokenizer:
        return self

    def _usual_identity(self) -> Any:
        return self._prompt_backend.to_str()

    def _vocabulary_files(self) -> dict[str, str | bytes]:
        return {}

    def save(self, directory: str | Path, longest: int | None = None) -> None:
        """Writes `tokenizer.json` to `directory`."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        content = self._prompt_backend.to_str(pretty=True)
        write_bytes(Path(directory) / "tokenizer.json", content.encode())
