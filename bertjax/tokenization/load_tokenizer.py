"""Loads a tokenizer from a model directory, a vocabulary file, or the Hugging Face hub."""

import base64
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.files import (
    MAX_JSON_BYTES,
    brief,
    naming_read_errors,
    read_bytes,
    read_json,
    refuse_links_outside,
)
from bertjax.cloud.copies import local_copy
from bertjax.shipped import shipped_model
from bertjax.tokenization.base import SPECIAL_TOKENS, Tokenizer
from bertjax.tokenization.bpe import ByteLevelBPETokenizer, ModernBertTokenizer
from bertjax.tokenization.hub import fetch, may_be_hub_name
from bertjax.tokenization.unigram import LAYOUTS, UnigramTokenizer, read_sentencepiece
from bertjax.tokenization.wordpiece import MAX_CHARACTERS_PER_WORD, WordPieceTokenizer, looks_cased


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerJson:
    """The parsed content of a `tokenizer.json`, the file format of the tokenizers library.

    `kind` is the model type in the file, and `model` its section "model", which contains "vocab".
    `normalizers` and `pre_tokenizers` are lists, with nested sequences flattened. `added_tokens`
    maps each added token to its entry in the file, with its id and settings.
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
        return base64.b64decode(step["precompiled_charsmap"]) if step else b""

    def merges(self) -> list[tuple[str, str]]:
        """Returns the merges of a BPE model as pairs of tokens, in order of rank.

        Older files store each merge as one string, newer files as a list of two strings.
        """
        merges = [
            _pair(m, self.file) if isinstance(m, str) else (m[0], m[1])
            for m in self.model.get("merges", [])
        ]
        _check_texts((piece for merge in merges for piece in merge), "a piece of a merge")
        return merges

    def vocab(self) -> dict[str, int]:
        """Returns the vocabulary of a WordPiece or BPE model as {token: id}."""
        return dict(self.model["vocab"].items())

    def pieces(self) -> list[tuple[str, float]]:
        """Returns the (piece, natural log probability) pairs of a unigram model, by id."""
        pieces = [(piece, float(score)) for piece, score in self.model["vocab"]]
        _check_texts((piece for piece, _ in pieces), "a piece")
        return pieces


def read_tokenizer_json(file: Path) -> TokenizerJson:
    """Reads a `tokenizer.json`; raises ValueError if it is not one, or has no vocabulary."""
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
    """Reads a `vocab.txt` with one token per line; returns {token: index of its line, from 0}."""
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
    """Reads a `merges.txt`; returns the BPE merges as pairs of tokens, in order of rank."""
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
    """Raises ValueError if one of `values` is not a string, or not one that UTF-8 can encode."""
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


_KIND_OF_FILE = {
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "merges.txt": "BPE",
    "spiece.model": "Unigram",
    "sentencepiece.bpe.model": "Unigram",
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", *_KIND_OF_FILE)
"""The names of all files from which tokenizers are loaded."""
_KIND_OF_CLASS = {
    "BertTokenizer": "WordPiece",
    "DistilBertTokenizer": "WordPiece",
    "RobertaTokenizer": "BPE",
    **dict.fromkeys(LAYOUTS, "Unigram"),
}
# Generic tokenizer classes of transformers, which do not determine the tokenization algorithm.
_ANY_CLASS = ("PreTrainedTokenizer", "TokenizersBackend")


@dataclasses.dataclass(frozen=True)
class _Source:
    """The files of a tokenizer: `json` (tokenizer.json), `bare` (such as vocab.txt), or both.

    `config` holds the fields of tokenizer_config.json; it is empty if that file does not exist.
    """

    directory: Path
    json: TokenizerJson | None
    bare: Path | None
    config: dict[str, Any]
    tokenizer_class: str | None
    """The transformers class that tokenizer_config.json names, without the suffix "Fast"; None if
    the file names no class or a generic class."""

    @property
    def config_file(self) -> Path:
        return self.directory / "tokenizer_config.json"

    @property
    def vocabulary_file(self) -> Path:
        file = self.json.file if self.json else self.bare
        assert file is not None
        return file

    @property
    def kind(self) -> str:
        if self.json:
            return self.json.kind
        assert self.bare is not None
        by_suffix = {".json": "BPE", ".model": "Unigram"}
        return _KIND_OF_FILE.get(self.bare.name, by_suffix.get(self.bare.suffix, "WordPiece"))

    def common(self) -> dict[str, Any]:
        """Returns `model_max_length` and `model_input_names` of tokenizer_config.json."""
        # transformers writes 1e30 for "no limit".
        length = self.config.get("model_max_length", 512)
        names = self.config.get("model_input_names")
        is_number = isinstance(length, int | float) and not isinstance(length, bool)
        if not is_number or not 1 <= length:
            raise ValueError(
                f"{self.config_file} has model_max_length={brief(length)}: it must be a number of "
                "tokens."
            )
        if not isinstance(names, list | None) or not all(isinstance(n, str) for n in names or ()):
            raise ValueError(
                f"{self.config_file} has model_input_names={brief(names)}: it must be a list of "
                "names."
            )
        length = int(min(length, 2**31 - 1))
        if names is None and self.tokenizer_class == "DistilBertTokenizer":
            names = ["input_ids", "attention_mask"]
        return {"model_max_length": length, "model_input_names": names}


def load_tokenizer(path: str | Path, do_lower_case: bool | None = None) -> Tokenizer:
    """Loads a tokenizer from a directory, a vocabulary file, or the Hugging Face hub.

    The files determine the tokenization algorithm: `vocab.txt` means WordPiece, `vocab.json` with
    `merges.txt` means byte-level BPE, `spiece.model` and `sentencepiece.bpe.model` mean unigram,
    and `tokenizer.json` names the algorithm. `tokenizer.json` takes precedence over the other
    vocabulary files.

    Args:
        path: the directory or file, the name of a model on the hub, or `bertjax:NAME` for a model
            that comes with bertjax.
        do_lower_case: whether to lower-case text; None: the setting in the files. If the files
            lack this setting, ALBERT's tokenizer lower-cases text, and a WordPiece tokenizer
            lower-cases text unless over 1 % of its tokens contain a capital letter
            (`wordpiece.looks_cased`).

    Raises:
        FileNotFoundError: there is no vocabulary at `path` or on the hub, or, without a
            tokenizer.json, only one of vocab.json and merges.txt exists.
        ValueError: the tokenizer is not supported or lacks special tokens, the files contradict
            each other, a link leads out of the directory, or `do_lower_case` is True for a
            tokenizer that keeps capital letters.
    """
    path = shipped_model(path) or local_copy(path)
    if may_be_hub_name(path) and Path(path).suffix not in (".txt", ".json", ".model"):
        path = fetch(str(path), TOKENIZER_FILES)
    source = _find(Path(path))
    load = {"WordPiece": _load_wordpiece, "BPE": _load_bpe, "Unigram": _load_unigram}
    with naming_read_errors(source.vocabulary_file):
        return load[source.kind](source, do_lower_case)


def _find(path: Path) -> _Source:
    if path.is_dir():
        refuse_links_outside(path)
    directory = path if path.is_dir() else path.parent
    names = [name for name in _KIND_OF_FILE if (directory / name).is_file()]
    as_json, bare = directory / "tokenizer.json", directory / names[0] if names else None
    if not path.is_dir():
        is_json = path.suffix == ".json" and path.name not in _KIND_OF_FILE
        as_json, bare = (path, None) if is_json else (None, path)
    if not any(file and file.is_file() for file in (as_json, bare)):
        raise FileNotFoundError(
            f"No tokenizer at {path}: expected tokenizer.json, vocab.txt, vocab.json with "
            "merges.txt, spiece.model or sentencepiece.bpe.model, or a directory that contains "
            "one of these."
        )
    config_file = directory / "tokenizer_config.json"
    config = read_json(config_file) if config_file.is_file() else {}
    name = config.get("tokenizer_class")
    if not isinstance(name, str | None):
        raise ValueError(f"{config_file} has tokenizer_class={brief(name)}: it must be a name.")
    short = name.removesuffix("Fast") if name else None
    read = read_tokenizer_json(as_json) if as_json and as_json.is_file() else None
    source = _Source(directory, read, bare, config, None if short in _ANY_CLASS else short)
    kinds = {name: _KIND_OF_FILE[name] for name in names} if path.is_dir() else {}
    _refuse_other_kinds(source, kinds)
    return source


def _refuse_other_kinds(source: _Source, kinds: dict[str, str]) -> None:
    """Raises ValueError if the algorithm is unsupported or differs between the files."""
    config_file, name = source.directory / "tokenizer_config.json", source.tokenizer_class
    if name and name not in _KIND_OF_CLASS:
        raise ValueError(
            f"{config_file} specifies the tokenizer class {brief(name, 60)}, which is not "
            f"supported. Supported: {', '.join(_KIND_OF_CLASS)}."
        )
    if source.kind not in _KIND_OF_FILE.values():
        raise ValueError(
            f"{source.directory / 'tokenizer.json'} specifies the model type "
            f"{brief(source.kind, 60)}, which is not supported. Supported: WordPiece, BPE "
            "(byte-level) and Unigram."
        )
    if source.json:
        kinds = {source.json.file.name: source.json.kind, **kinds}
    if name:
        kinds = {f"{name} in {config_file.name}": _KIND_OF_CLASS[name], **kinds}
    if any(kind != source.kind for kind in kinds.values()):
        listed = "; ".join(f"{file}: {kind}" for file, kind in kinds.items())
        raise ValueError(
            f"{source.directory} has files of different tokenizers: {listed}. Delete the "
            "wrong files."
        )


def _load_wordpiece(source: _Source, do_lower_case: bool | None) -> WordPieceTokenizer:
    settings: dict[str, Any] = {}
    if source.json:
        vocab = source.json.vocab()
        # The other tokens follow, as in files of transformers, or are taken for pieces as well.
        follow = max(vocab.values(), default=0) < len(vocab) and {*SPECIAL_TOKENS} <= vocab.keys()
        num_words = len(vocab) if follow else None
        for token, added in source.json.added_tokens.items():
            vocab.setdefault(token, added["id"])
        steps = [step["type"] for step in (*source.json.normalizers, *source.json.pre_tokenizers)]
        if not set(steps) <= {"BertNormalizer", "BertPreTokenizer"}:
            raise ValueError(
                f"{source.json.file} preprocesses text by {brief(steps)}: only BertNormalizer and "
                "BertPreTokenizer, as in BERT, are supported for WordPiece."
            )
        limit = source.json.model.get("max_input_chars_per_word", MAX_CHARACTERS_PER_WORD)
        settings = {"num_words": num_words, "added_tokens": source.json.added_tokens}
        settings["max_input_chars_per_word"] = limit
        if normalizer := source.json.normalizer("BertNormalizer"):
            settings |= {
                "do_lower_case": normalizer["lowercase"],
                "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
                "strip_accents": normalizer["strip_accents"],
            }
    else:
        assert source.bare is not None
        vocab = read_vocab_txt(source.bare)
    names = ("do_lower_case", "tokenize_chinese_chars", "strip_accents")
    settings = _with_config(source, settings, names, do_lower_case)
    settings.setdefault("do_lower_case", not looks_cased(vocab))
    return WordPieceTokenizer(vocab, **settings, **source.common())


def _load_bpe(source: _Source, do_lower_case: bool | None) -> ByteLevelBPETokenizer:
    if do_lower_case:
        raise ValueError(
            f"do_lower_case=True, but the byte-level BPE in {source.directory} keeps capital "
            "letters: leave do_lower_case out."
        )
    # tokenizer.json may exist alone, but must agree with vocab.json and merges.txt if they exist.
    vocabularies, settings = [], {}
    if source.json and set(SPECIAL_TOKENS) <= source.json.added_tokens.keys():
        settings = {"add_prefix_space": _prefix_space_of(source.json, ["NFC"])}
        settings = _with_config(source, settings, ("add_prefix_space",), None)
        added = source.json.added_tokens
        return ModernBertTokenizer(
            source.json.vocab() | {token: entry["id"] for token, entry in added.items()},
            source.json.merges(),
            added=added,
            nfc=source.json.normalizer("NFC") is not None,
            **settings,
            **source.common(),
        )
    if source.json:
        vocabularies.append((source.json.vocab(), source.json.merges()))
        settings["add_prefix_space"] = _prefix_space_of(source.json)
        _refuse_added_tokens(source.json, vocabularies[0][0])
    if source.bare:
        two = [source.bare.with_name(name) for name in ("vocab.json", "merges.txt")]
        missing = [file for file in two if not file.is_file()]
        if not missing:
            vocabularies.append((read_json(two[0]), read_merges(two[1])))
        elif not source.json:
            raise FileNotFoundError(
                f"{missing[0]} is missing: a byte-level BPE needs vocab.json and merges.txt, or a "
                "tokenizer.json."
            )
    if any(other != vocabularies[0] for other in vocabularies[1:]):
        raise ValueError(
            f"{source.directory} has two tokenizers: the vocabulary or merges in tokenizer.json "
            "differ from vocab.json and merges.txt. Delete the wrong files."
        )
    settings = _with_config(source, settings, ("add_prefix_space",), None)
    return ByteLevelBPETokenizer(*vocabularies[0], **settings, **source.common())


def _prefix_space_of(read: TokenizerJson, normalizers: Sequence[str] = ()) -> bool:
    """Returns `add_prefix_space`; other steps than `normalizers` and ByteLevel are refused."""
    steps = [step["type"] for step in (*read.normalizers, *read.pre_tokenizers)]
    known = [*(step for step in steps[:-1] if step in normalizers), "ByteLevel"]
    if steps != known or not read.pre_tokenizers[0].get("use_regex", True):
        raise ValueError(
            f"{read.file} preprocesses text by {brief(steps)}: only "
            f"{[*normalizers, 'ByteLevel']} with use_regex, as in "
            f"{'ModernBERT' if normalizers else 'RoBERTa'}, is supported."
        )
    return read.pre_tokenizers[0]["add_prefix_space"]


def _load_unigram(source: _Source, do_lower_case: bool | None) -> UnigramTokenizer:
    tokenizer_class = _unigram_class(source)
    is_albert = tokenizer_class == "AlbertTokenizer"
    settings: dict[str, Any] = {}
    pieces, charsmap, model_file = [], b"", None
    if source.bare:
        pieces, charsmap, model_file = read_sentencepiece(source.bare, tokenizer_class)
    if source.json:
        json_pieces = source.json.pieces()
        if pieces and [piece for piece, _ in pieces] != [piece for piece, _ in json_pieces]:
            raise ValueError(
                f"{source.directory} has two tokenizers: the {len(json_pieces)} pieces in "
                f"tokenizer.json differ from the {len(pieces)} in {source.bare}. Delete one file."
            )
        pieces, charsmap = json_pieces, source.json.charsmap()
        _refuse_added_tokens(source.json, dict(pieces))
        settings = _normalisation_of(source.json, is_albert)
    names = ("do_lower_case", "keep_accents")
    if is_albert:
        settings = _with_config(source, settings, names, do_lower_case)
    elif do_lower_case:
        raise ValueError(
            f"do_lower_case=True, but a {tokenizer_class} keeps capital letters: leave "
            "do_lower_case out."
        )
    else:
        # transformers has no such settings for XLM-RoBERTa and CamemBERT.
        settings = dict(zip(names, (False, True), strict=True))
    return UnigramTokenizer(
        pieces,
        tokenizer_class=tokenizer_class,
        charsmap=charsmap,
        model_file=model_file,
        **settings,
        **source.common(),
    )


def _unigram_class(source: _Source) -> str:
    if source.tokenizer_class:
        return source.tokenizer_class
    if source.json:
        pieces = {piece for piece, _ in source.json.pieces()}
        if "[CLS]" in pieces:
            return "AlbertTokenizer"
        return "CamembertTokenizer" if "<s>NOTUSED" in pieces else "XLMRobertaTokenizer"
    assert source.bare is not None
    if source.bare.name != "sentencepiece.bpe.model":
        return "AlbertTokenizer"
    model = source.directory / "config.json"
    model_type = read_json(model).get("model_type") if model.is_file() else None
    classes = {"xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"}
    if model_type not in classes:
        raise ValueError(
            f"{source.bare} may be from XLM-RoBERTa or CamemBERT, whose ids differ: add a "
            'tokenizer_config.json with {"tokenizer_class": "XLMRobertaTokenizer"} or '
            '"CamembertTokenizer" to its directory.'
        )
    return classes[model_type]


def _normalisation_of(read: TokenizerJson, is_albert: bool) -> dict[str, Any]:
    """Reads `do_lower_case` and `keep_accents` from the normalizers in a unigram tokenizer.json."""
    types = [step["type"] for step in read.normalizers]
    known = {"Replace", "Precompiled"} | (
        {"NFKD", "StripAccents", "Lowercase"} if is_albert else set()
    )
    before = [step["type"] for step in read.pre_tokenizers]
    if not set(types) <= known or before[-1:] != ["Metaspace"]:
        raise ValueError(
            f"{read.file} preprocesses text by {brief([*types, *before])}: only "
            f"{sorted(known)}, followed by Metaspace, are supported."
        )
    return {"do_lower_case": "Lowercase" in types, "keep_accents": "StripAccents" not in types}


def _refuse_added_tokens(read: TokenizerJson, vocab: dict[str, Any]) -> None:
    more = [
        t
        for t, token in read.added_tokens.items()
        if t not in vocab or token["special"] is not True
    ]
    if more:
        raise ValueError(
            f"{read.file} has {len(more)} added tokens (first: {brief(more[0], 60)!r}) that are "
            "not in the vocabulary or not marked special, which is not supported: remove them from "
            "its added_tokens."
        )


def _with_config(
    source: _Source, settings: dict[str, Any], names: tuple[str, ...], do_lower_case: bool | None
) -> dict[str, Any]:
    """Returns `settings`, completed by tokenizer_config.json and overridden by `do_lower_case`."""
    configured = {name: source.config[name] for name in names if name in source.config}
    for name, value in configured.items():
        if not isinstance(value, bool) and not (value is None and name == "strip_accents"):
            raise ValueError(
                f"{source.config_file} has {name}={brief(value)}: it must be true or false."
            )
    if do_lower_case is None and source.json:
        _refuse_disagreement(settings, source, names)
    override = {} if do_lower_case is None else {"do_lower_case": do_lower_case}
    return {**configured, **settings, **override}


def _refuse_disagreement(settings: dict, source: _Source, names: tuple[str, ...]) -> None:
    def value(fields: dict, name: str) -> object:
        if name == "strip_accents" and fields.get(name) is None:
            return fields.get("do_lower_case", settings["do_lower_case"])
        return fields.get(name)

    different = [
        f"{name} is {settings[name]} in tokenizer.json, {brief(source.config[name], 20)} in "
        "tokenizer_config.json"
        for name in names
        if name in settings
        and name in source.config
        and value(settings, name) != value(source.config, name)
    ]
    if different:
        raise ValueError(
            f"The files in {source.directory} differ: {'; '.join(different)}. Correct one of the "
            "two files, or delete tokenizer.json if tokenizer_config.json and the vocabulary are "
            "correct."
        )
