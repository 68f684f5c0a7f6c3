"""Reads the vocabulary files from which `load_tokenizer` creates tokenizers."""

import base64
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertjax.base.files import MAX_JSON_BYTES, brief, naming_read_errors, read_bytes, read_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerJson:
    """The parsed content of a `tokenizer.json`, the file format of the tokenizers library.

    Attributes:
        file: the path of the file.
        kind: the model type in the file: WordPiece, BPE, Unigram or another type of the library.
        model: the section "model" of the file, which contains "vocab".
        normalizers: the normalizers in the file, as a list; nested sequences are flattened.
        pre_tokenizers: the pre-tokenizers in the file, in the same form.
        added_tokens: maps each added token to its entry in the file, with its id and settings.
    """

    file: Path
    kind: str
    model: dict[str, Any]
    normalizers: list[dict[str, Any]]
    pre_tokenizers: list[dict[str, Any]]
    added_tokens: dict[str, dict[str, Any]]

    def normalizer(self, kind: str) -> dict[str, Any] | None:
        """Returns the first normalizer of the type `kind`; None if no normalizer has this type."""
        return next((step for step in self.normalizers if step["type"] == kind), None)

    def charsmap(self) -> bytes:
        """Returns SentencePiece's precompiled normalization table; b"" if the file has no table."""
        step = self.normalizer("Precompiled")
        with naming_read_errors(self.file):
            return base64.b64decode(step["precompiled_charsmap"]) if step else b""

    def merges(self) -> list[tuple[str, str]]:
        """Returns the merges of a BPE model as pairs of tokens, in order of rank.

        Older files store each merge as one string, newer files as a list of two strings.

        Raises:
            ValueError: the merges are malformed.
        """
        with naming_read_errors(self.file):
            merges = [
                _pair(m, self.file) if isinstance(m, str) else (m[0], m[1])
                for m in self.model.get("merges", [])
            ]
            _check_texts((piece for merge in merges for piece in merge), "a piece of a merge")
        return merges

    def vocab(self) -> dict[str, int]:
        """Returns the vocabulary of a WordPiece or BPE model as {token: id}."""
        with naming_read_errors(self.file):
            return dict(self.model["vocab"].items())

    def pieces(self) -> list[tuple[str, float]]:
        """Returns the (piece, log probability) pairs of a unigram model, in order of ids.

        The logarithms are natural ones.

        Raises:
            ValueError: the pieces are malformed.
        """
        with naming_read_errors(self.file):
            pieces = [(piece, float(score)) for piece, score in self.model["vocab"]]
            _check_texts((piece for piece, _ in pieces), "a piece")
        return pieces


def read_tokenizer_json(file: Path) -> TokenizerJson:
    """Reads a `tokenizer.json`, the file format of the tokenizers library.

    Raises:
        ValueError: the file is not in the format of the tokenizers library, or has no vocabulary.
    """
    content = read_json(file)
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{file} has no 'model': it is not a file of the tokenizers library.")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict | list):
        raise ValueError(f"{file} has no vocabulary in its 'model': download it again.")
    # Older files do not name the type of the model.
    guess = "Unigram" if isinstance(vocab, list) else "BPE" if "merges" in model else "WordPiece"
    with naming_read_errors(file):
        added = content.get("added_tokens") or []
        _check_texts((token["content"] for token in added), "the content of an added token")
        return TokenizerJson(
            file=file,
            kind=str(model.get("type") or guess),
            model=model,
            normalizers=_steps(content.get("normalizer"), "normalizers"),
            pre_tokenizers=_steps(content.get("pre_tokenizer"), "pretokenizers"),
            added_tokens={token["content"]: token for token in added},
        )


def read_vocab_txt(file: Path) -> dict[str, int]:
    """Reads a `vocab.txt` with one token per line; returns {token: index of its line, from 0}.

    Raises:
        ValueError: a token occurs twice.
    """
    tokens = _lines(file)
    while tokens and not tokens[-1]:
        tokens.pop()
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        seen: set[str] = set()
        twice = [token for token in tokens if token in seen or seen.add(token)]
        raise ValueError(
            f"{file} has {len(twice)} duplicate entries (first: {brief(twice[0])!r}): remove them."
        )
    return vocab


def read_merges(file: Path) -> list[tuple[str, str]]:
    """Reads a `merges.txt`; returns the BPE merges as pairs of tokens, in order of rank.

    Raises:
        ValueError: a line does not consist of two tokens.
    """
    lines = _lines(file)
    if lines[0].startswith("#version"):
        lines = lines[1:]
    return [_pair(line, file) for line in lines if line]


def _pair(text: str, file: Path) -> tuple[str, str]:
    first, space, second = text.partition(" ")
    if not (first and space and second) or " " in second:
        raise ValueError(
            f"{file}: {brief(text)!r} is not a merge of two pieces: download it again."
        )
    return first, second


def _lines(file: Path) -> list[str]:
    # Only "\n" ends a line: splitlines() would also split at U+2028, which is an entry of some
    # released vocabularies.
    with naming_read_errors(file):
        text = read_bytes(file, MAX_JSON_BYTES).decode("utf-8-sig")
    return [line.rstrip("\r") for line in text.split("\n")]


def _check_texts(values: Iterable[Any], what: str) -> None:
    """Raises ValueError if one of `values` is not a string or cannot be encoded in UTF-8.

    `what` describes such a value in the error message, for example "a piece of a merge".
    """
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"{what} is {brief(repr(value))}, not a text")
        value.encode()


def _steps(step: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    if not step:
        return []
    if not isinstance(step["type"], str):
        raise ValueError(f"a normalizer or pre-tokenizer has the type {brief(step['type'])}")
    if step["type"] == "Sequence":
        return [inner for member in step[members] for inner in _steps(member, members)]
    return [step]
