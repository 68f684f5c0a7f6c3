"""Loads a tokenizer from a model directory, a vocabulary file, or the Hugging Face hub.

The tokenizers library loads a `tokenizer.json` as it is, and our classes wrap the result;
without one, they build the tokenizer. The files beside it are followed as by transformers 5.
"""

import base64
import dataclasses
import functools
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from bertjax.base.files import (
    MAX_JSON_BYTES,
    brief,
    naming_read_errors,
    read_bytes,
    read_json,
    refuse_links_outside,
)
from bertjax.cloud.copies import local_copy
from bertjax.cloud.hub import fetch, may_be_hub_name
from bertjax.shipped import shipped_model
from bertjax.tokenization.base import (
    GENERIC_CLASS,
    SPECIAL_TOKENS,
    Layout,
    Tokenizer,
    explaining_the_library,
    numbered,
    state,
    steps,
)
from bertjax.tokenization.bpe import (
    ROBERTA,
    BPETokenizer,
    ByteLevelBPETokenizer,
    ModernBertTokenizer,
)
from bertjax.tokenization.unigram import (
    DEBERTA,
    LAYOUTS,
    UnigramTokenizer,
    check_charsmap,
    check_pieces,
    read_sentencepiece,
    steps_of_albert,
    steps_of_deberta,
)
from bertjax.tokenization.wordpiece import WordPieceTokenizer, looks_cased

_KIND_OF_FILE = {
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "merges.txt": "BPE",
    "spiece.model": "Unigram",
    "sentencepiece.bpe.model": "Unigram",
    "spm.model": "Unigram",
}
VOCABULARY_FILES = ("tokenizer.json", *_KIND_OF_FILE)
"""The names of all files that hold a vocabulary."""
_CONFIG, _ADDED, _SPECIAL = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
TOKENIZER_FILES = (*VOCABULARY_FILES, _CONFIG, _ADDED, _SPECIAL)
"""The names of all files from which tokenizers are loaded."""
# Names of BERT's tokenizer in transformers, which gives token types.
_BERT = ("BertTokenizer", "ElectraTokenizer")
_KIND_OF_CLASS = {
    **dict.fromkeys((*_BERT, "DistilBertTokenizer"), "WordPiece"),
    "RobertaTokenizer": "BPE",
    **dict.fromkeys(LAYOUTS, "Unigram"),
}
# The class that transformers takes for a model_type in config.json, where the files name none.
_CLASS_OF_TYPE = {
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie"), "BertTokenizer"),
    **dict.fromkeys(("roberta", "data2vec-text"), "RobertaTokenizer"),
    **{"xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"},
    **{"albert": "AlbertTokenizer", "deberta-v2": DEBERTA, "mpnet": "MPNetTokenizer"},
    "modernbert": GENERIC_CLASS,
}
_ALBERT = "AlbertTokenizer"
# What these classes assume without the field.
_DEFAULTS = {
    **dict.fromkeys((*_BERT, "DistilBertTokenizer"), {"do_lower_case": True}),
    "RobertaTokenizer": {"add_prefix_space": False},
    _ALBERT: {"do_lower_case": True, "keep_accents": False},
}
# Generic classes of transformers take a tokenizer.json as it is; the others set these fields of it.
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
_FIELDS = {
    "do_lower_case": "lowercase",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "strip_accents": "strip_accents",
    "add_prefix_space": "add_prefix_space",
}
_FLAGS_OF_DEBERTA = {"do_lower_case": False, "split_by_punct": False, "add_prefix_space": True}
_FLAGS = (*_FIELDS, "keep_accents", "split_by_punct")
# What the fields of tokenizer_config.json that are followed must be.
_VALID = {
    **dict.fromkeys(_FLAGS, (lambda x: isinstance(x, bool), "true or false")),
    "strip_accents": (lambda x: x is None or isinstance(x, bool), "true or false"),
    "split_special_tokens": (lambda x: x is False, "false, for else no text could have a mask"),
    "model_max_length": (lambda x: type(x) in (int, float) and x >= 1, "a number of tokens"),
    "model_input_names": (
        lambda x: isinstance(x, list | None) and all(isinstance(n, str) for n in x or ()),
        "a list of names",
    ),
    "tokenizer_class": (lambda x: isinstance(x, str | None), "a name"),
    "truncation_side": (lambda x: x in ("right", "left"), "right or left"),
    "added_tokens_decoder": (lambda x: isinstance(x, dict), "an object"),
    "additional_special_tokens": (lambda x: isinstance(x, list | None), "a list"),
    "extra_special_tokens": (lambda x: isinstance(x, list | dict | None), "a list or an object"),
}
# Fields of tokenizer_config.json that change no id.
_HARMLESS = (
    # Text from ids; templates of chats.
    *("clean_up_tokenization_spaces", "errors", "spaces_between_special_tokens", "chat_template"),
    # Padding, which masks hide, and lengths: callers say how a batch is made.
    *("padding_side", "pad_to_multiple_of", "pad_token_type_id", "padding", "truncation"),
    *("truncation_strategy", "max_length", "stride"),
    # Where and how the files were written.
    *("name_or_path", "backend", "is_local", "local_files_only", "processor_class", "use_fast"),
    *("vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file"),
    # Only slow tokenizers of transformers 4 or other families read them.
    *("do_basic_tokenize", "never_split", "sp_model_kwargs", "remove_space", "legacy"),
    *("trim_offsets", "add_bos_token", "add_eos_token", "vocab_type", "unk_id"),
)


def load_tokenizer(path: str | Path, do_lower_case: bool | None = None) -> Tokenizer:
    """Loads a tokenizer from a directory, a vocabulary file, or the Hugging Face hub.

    The files determine the tokenization algorithm: `vocab.txt` means WordPiece, `vocab.json` with
    `merges.txt` means byte-level BPE, `spiece.model`, `sentencepiece.bpe.model` and `spm.model`
    mean unigram, and `tokenizer.json` names the algorithm. `tokenizer.json` takes precedence over
    the other vocabulary files. A warning names the fields that nobody here knows.

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
        path = fetch(str(path), (*TOKENIZER_FILES, "config.json"))
    source = _find(Path(path), do_lower_case)
    with naming_read_errors(source.file):
        tokenizer = {"WordPiece": _wordpiece, "BPE": _bpe, "Unigram": _unigram}[source.kind](source)
        if do_lower_case not in (None, tokenizer.do_lower_case):
            does = "keeps" if do_lower_case else "lower-cases"
            raise ValueError(
                f"do_lower_case={do_lower_case}, but the {source.kind} tokenizer in "
                f"{source.directory} {does} capital letters: leave do_lower_case out."
            )
    with naming_read_errors(source.directory / _CONFIG):
        _add_tokens(source, tokenizer)
    is_usual = tokenizer.is_usual and tokenizer.tokenizer_class != GENERIC_CLASS
    if source.json and source.tokenizer_class and not is_usual:
        _warn(
            f"{source.file} is followed, also in settings that transformers' "
            f"{source.tokenizer_class} ignores: its ids may differ"
        )
    tokenizer.truncation_side = source.config.get("truncation_side") or "right"
    if do_lower_case is None:
        _say_settings(source, tokenizer.settings())
    _say_types(source, tokenizer)
    return tokenizer


@dataclasses.dataclass
class _Source:
    """The files of a tokenizer, and its kind: "WordPiece", "BPE" or "Unigram"."""

    directory: Path
    kind: str
    file: Path
    """tokenizer.json, or else `bare`."""
    json: dict[str, Any]
    """The content of tokenizer.json; {}: there is none."""
    bare: Path | None
    """A file such as vocab.txt."""
    config: dict[str, Any]
    """The fields of tokenizer_config.json."""
    model: dict[str, Any]
    """The content of config.json beside it; {}: there is none."""
    tokenizer_class: str
    """The class of transformers; "": the files name none, or a generic one."""
    flags: dict[str, Any]
    """The settings that the class or the caller changes."""
    common: dict[str, Any]
    """Arguments for all classes."""


def _find(path: Path, do_lower_case: bool | None) -> _Source:
    if path.is_dir():
        refuse_links_outside(path)
    directory = path if path.is_dir() else path.parent
    names = VOCABULARY_FILES if path.is_dir() else (path.name,)
    names = [name for name in names if (directory / name).is_file()]
    if not names:
        raise FileNotFoundError(
            f"No tokenizer at {path}: expected tokenizer.json, vocab.txt, vocab.json with "
            "merges.txt, spiece.model, sentencepiece.bpe.model or spm.model, or a directory that "
            "contains one of these."
        )
    config, model = _read_config(directory / _CONFIG), _optional(directory / "config.json")
    file = directory / names[0]
    has_json = file.suffix == ".json" and file.name not in _KIND_OF_FILE
    content = _read_tokenizer_json(file) if has_json else {}
    bare = next((directory / name for name in names[has_json:]), None)
    by_suffix = {".json": "BPE", ".model": "Unigram"}
    kinds = {n: _KIND_OF_FILE.get(n) or by_suffix.get(Path(n).suffix, "WordPiece") for n in names}
    if has_json:
        kinds[file.name] = content["model"]["type"]
    kind = kinds[file.name]
    said = _CONFIG if config.get("tokenizer_class") else "config.json"
    named = config.get("tokenizer_class") or model.get("tokenizer_class") or ""
    implied = _CLASS_OF_TYPE.get(str(model.get("model_type")), "")
    if has_json and (not named or implied == GENERIC_CLASS):
        named = implied
        if _KIND_OF_CLASS.get(named, kind) != kind:
            _warn(
                f"{file} is taken as it is; transformers takes the class {named} for it, by the "
                f"model_type in config.json, so that its ids differ: write tokenizer_class into "
                f"{_CONFIG}, such as {GENERIC_CLASS}, which takes it as it is"
            )
            named = GENERIC_CLASS
    named = str(named).removesuffix("Fast")
    if named in _KIND_OF_CLASS:
        kinds = {f"{named} in {said}": _KIND_OF_CLASS[named], **kinds}
    elif named and named not in _GENERIC:
        verb = "implies" if named == implied else "specifies"
        problem = f"{directory / said} {verb} the tokenizer class {brief(named, 60)}, which is"
        if not has_json:
            raise ValueError(f"{problem} not supported. Supported: {', '.join(_KIND_OF_CLASS)}.")
        _warn(f"{problem} unknown here: {file.name} is taken as it is")
    if kind not in _KIND_OF_FILE.values():
        raise ValueError(
            f"{file} specifies the model type {brief(kind, 60)}, which is not supported. "
            "Supported: WordPiece, BPE and Unigram."
        )
    if len({*kinds.values()}) > 1:
        listed = "; ".join(f"{file}: {kind}" for file, kind in kinds.items())
        raise ValueError(
            f"{directory} has files of different tokenizers: {listed}. Delete the wrong files."
        )
    # A config without a length means no limit, as in transformers, which writes 1e30 for it.
    length = int(min(config.get("model_max_length", 1e30 if config else 512), 2**31 - 1))
    input_names = config.get("model_input_names")
    if input_names is None and not _has_types(named, model):
        input_names = ["input_ids", "attention_mask"]
    generic = bool(named) and named not in _KIND_OF_CLASS
    flags = {} if has_json and generic else {n: config[n] for n in _FLAGS if n in config}
    if do_lower_case is not None:
        flags["do_lower_case"] = do_lower_case
    common = {"model_max_length": length, "model_input_names": input_names}
    tokenizer_class = "" if generic else named
    how = (tokenizer_class, flags, common)
    return _Source(directory, kind, file, content, bare, config, model, *how)


def _say_settings(source: _Source, actual: dict[str, Any]) -> None:
    """Warns of settings of tokenizer.json that the class of transformers would not take."""
    is_alone = source.kind == "WordPiece" and not (source.directory / _CONFIG).is_file()
    name = source.tokenizer_class or ("BertTokenizer" if is_alone else "")
    defaults = _DEFAULTS.get(name, {}) if source.json else {}
    for flag, value in (defaults | source.config).items():
        if flag in _FLAGS and value not in (actual.get(flag, value), None):
            by = "" if flag in source.config else f", as transformers' {name} has by default"
            _warn(f"{source.file} is followed: {flag} is {actual[flag]}, and not {value}{by}")


def _say_types(source: _Source, tokenizer: Tokenizer) -> None:
    """Warns of token types of pairs that depend on the version of transformers."""
    model_type, sizes = source.model.get("model_type"), source.model.get("type_vocab_size", 2)
    has_types = model_type in ("bert", "electra", "ernie", "albert") and sizes != 1
    if not has_types or not tokenizer.layout.second_type or source.config.get("model_input_names"):
        return
    if tokenizer.second_type and model_type != "albert":
        return
    does = "as in transformers 4, but not 5" if tokenizer.second_type else "as in transformers 5"
    _warn(
        f"{source.directory} does not say whether its tokenizer gives token types: the texts of a "
        f"pair get the types 0 and {tokenizer.second_type}, {does}. If the model was trained "
        f"otherwise, write model_input_names into {_CONFIG}, with or without token_type_ids"
    )


def _has_types(named: str, model: dict[str, Any]) -> bool:
    """Whether a tokenizer gives token types if its config does not say so, as in transformers 5.

    ALBERT was trained with them, and got them in transformers 4. A tokenizer without a model gets
    those of its kind.
    """
    if not model:
        return named != "DistilBertTokenizer"
    is_albert = model.get("model_type") == "albert" and named == _ALBERT
    return named in ("", *_BERT, DEBERTA) or is_albert


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _read_config(file: Path) -> dict[str, Any]:
    config = _optional(file)
    for name, (is_valid, what) in _VALID.items():
        if name in config and not is_valid(config[name]):
            raise ValueError(f"{file} has {name}={brief(config[name])}: it must be {what}.")
    if unknown := [x for x in config if x not in (*_VALID, *_HARMLESS) and x[-6:] != "_token"]:
        _warn(f"{file} has fields of unknown meaning: {brief(unknown, 120)}")
    if "added_tokens_decoder" not in config:
        config |= _optional(file.with_name(_SPECIAL))
    return config


def _read_tokenizer_json(file: Path) -> dict[str, Any]:
    content = read_json(file)
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{file} has no 'model': it is not a file of the tokenizers library.")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict | list):
        raise ValueError(f"{file} has no vocabulary in its 'model': download it again.")
    # Older files do not name the type of the model.
    guess = "Unigram" if isinstance(vocab, list) else "BPE" if "merges" in model else "WordPiece"
    model["type"] = str(model.get("type") or guess)
    return content


def _wordpiece(source: _Source) -> Tokenizer:
    if source.json:
        unk, layout = source.json["model"].get("unk_token"), Layout(special_tokens=SPECIAL_TOKENS)
        return _wrapped(source, WordPieceTokenizer, layout, unk)
    vocab = read_vocab_txt(source.file)
    flags = {"do_lower_case": not looks_cased(vocab), **source.flags}
    flags = {name: value for name, value in flags.items() if name in list(_FIELDS)[:3]}
    return WordPieceTokenizer(vocab, **flags, **source.common)


def _bpe(source: _Source) -> Tokenizer:
    files = None
    if source.bare:
        two = [source.bare.with_name(name) for name in ("vocab.json", "merges.txt")]
        missing = [file for file in two if not file.is_file()]
        if not missing:
            files = read_json(two[0]), read_merges(two[1])
        elif not source.json:
            raise FileNotFoundError(
                f"{missing[0]} is missing: a byte-level BPE needs vocab.json and merges.txt, or a "
                "tokenizer.json."
            )
    if files and not source.json:
        space = source.flags.get("add_prefix_space", False)
        return ByteLevelBPETokenizer(*files, add_prefix_space=space, **source.common)
    model, steps_before = source.json["model"], steps(source.json.get("pre_tokenizer"))
    merges = [_pair(m, source.file) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    if files not in (None, (model["vocab"], merges)):
        _refuse_two(source, "vocabulary or merges", "vocab.json and merges.txt")
    if model.get("dropout"):
        raise ValueError(
            f"{source.file} splits words at random, with dropout={brief(model['dropout'])}, which "
            "is not supported: set it to null."
        )
    prefix = model.get("continuing_subword_prefix") or ""
    # With a prefix that merges do not have, the library ends the process.
    if not all(second.startswith(prefix) for _, second in merges):
        raise ValueError(
            f"{source.file} has merges whose second piece lacks the continuing_subword_prefix="
            f"{brief(prefix)!r}: download it again."
        )
    added = {token["content"] for token in source.json.get("added_tokens") or []}
    known = {*added, *model["vocab"]}
    if any(step.get("type") == "ByteLevel" for step in steps_before) and not prefix:
        kind = ModernBertTokenizer if {*SPECIAL_TOKENS} <= known else ByteLevelBPETokenizer
        return _wrapped(source, kind, kind.layout_of_class)
    layouts = (BPETokenizer.layout_of_class, ModernBertTokenizer.layout_of_class, ROBERTA)
    fitting = [layout for layout in layouts if {*layout.special_tokens} <= known]
    return _wrapped(source, BPETokenizer, (fitting or layouts)[0], model.get("unk_token"))


def _unigram(source: _Source) -> Tokenizer:
    name = _unigram_class(source)
    flags = {"do_lower_case": False, "keep_accents": True}
    if name == "AlbertTokenizer":
        flags = {flag: value for flag, value in source.flags.items() if flag in flags}
    given = {x: source.flags.pop(x, y) for x, y in _FLAGS_OF_DEBERTA.items() if name == DEBERTA}
    pieces, charsmap, added, model_file = [], b"", [], None
    if source.bare:
        model_file = read_bytes(source.bare, MAX_JSON_BYTES)
        pieces, charsmap, added = read_sentencepiece(model_file, str(source.bare), name)
    if not source.json:
        options = {"tokenizer_class": name, "charsmap": charsmap, "model_file": model_file}
        if name == DEBERTA:
            options |= {"charsmap": b"", "added": added}
        return UnigramTokenizer(pieces, **options, **flags | given, **source.common)
    model, found = source.json["model"], steps(source.json.get("normalizer"))
    check_pieces(model["vocab"])
    if pieces and [piece for piece, _ in pieces] != [piece for piece, _ in model["vocab"]]:
        _refuse_two(source, f"{len(model['vocab'])} pieces", f"the {len(pieces)} in {source.bare}")
    types = [step.get("type") for step in found]
    actual = {"do_lower_case": "Lowercase" in types, "keep_accents": "StripAccents" not in types}
    if name == "AlbertTokenizer" and actual | flags != actual:
        table = [step for step in found if "precompiled_charsmap" in step]
        normalizers = [*map(state, steps_of_albert(**actual | flags)), *table]
        source.json["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    if name == DEBERTA and source.tokenizer_class:  # as in transformers, it keeps pieces alone
        normalizers, words = ([*map(state, x)] for x in steps_of_deberta(**given))
        source.json["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
        source.json["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": words}
    if model.get("unk_id") is None and not model.get("byte_fallback"):
        raise ValueError(
            f"{source.file} has no unk_id, so that the library cannot encode a text with a "
            "character that no piece has: give the index of the piece for unknown characters."
        )
    unk = None if model.get("unk_id") is None else model["vocab"][model["unk_id"]][0]
    tokenizer = _wrapped(source, UnigramTokenizer, LAYOUTS[name], unk, tokenizer_class=name)
    tokenizer.model_file = model_file
    return tokenizer


def _refuse_two(source: _Source, what: str, other: str) -> None:
    raise ValueError(
        f"{source.directory} has two tokenizers: the {what} in tokenizer.json differ from {other}. "
        "Delete the wrong files."
    )


def _unigram_class(source: _Source) -> str:
    if source.tokenizer_class:
        return source.tokenizer_class
    if source.json:
        pieces = {piece for piece, _ in source.json["model"]["vocab"]}
        if "[CLS]" in pieces:
            return DEBERTA if SPECIAL_TOKENS.pad in pieces else "AlbertTokenizer"
        return "CamembertTokenizer" if "<s>NOTUSED" in pieces else "XLMRobertaTokenizer"
    if source.file.name != "sentencepiece.bpe.model":
        return DEBERTA if source.file.name == "spm.model" else "AlbertTokenizer"
    model_type = source.model.get("model_type")
    classes = {"xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"}
    if model_type not in classes:
        raise ValueError(
            f"{source.file} may be from XLM-RoBERTa or CamemBERT, whose ids differ: add a "
            'tokenizer_config.json with {"tokenizer_class": "XLMRobertaTokenizer"} or '
            '"CamembertTokenizer" to its directory.'
        )
    return classes[model_type]


def _wrapped(
    source: _Source, kind: type[Any], layout: Layout, unk: str | None = None, **options: Any
) -> Any:
    """Loads tokenizer.json, with the settings of its class, by the library; wraps the result."""
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    for step in (step for part in parts for step in steps(source.json.get(part))):
        if isinstance(table := step.get("precompiled_charsmap"), str):
            check_charsmap(base64.b64decode(table))
        step |= {_FIELDS[n]: x for n, x in source.flags.items() if _FIELDS.get(n) in step}
        if "prepend_scheme" in step and "add_prefix_space" in source.flags:
            step["prepend_scheme"] = "always" if source.flags["add_prefix_space"] else "never"
    for token in source.json.get("added_tokens") or ():  # as transformers reads them
        if isinstance(token, dict) and "content" in token:
            defaults = dict.fromkeys(("special", "single_word", "lstrip", "rstrip"), False)
            token |= defaults | {"normalized": not token.get("special")} | token
    for part in parts:
        _check_readable(source.file, part, source.json.get(part))
    with explaining_the_library():
        backend = tokenizers.Tokenizer.from_str(json.dumps(source.json))
    source.config.setdefault("truncation_side", (backend.truncation or {}).get("direction"))
    backend.no_truncation()  # callers choose lengths
    backend.no_padding()
    model = source.json["model"]
    if source.kind == "Unigram":  # the library's parser of JSON rounds the scores
        pieces, fallback = list(map(tuple, model["vocab"])), model.get("byte_fallback", False)
        backend.model = models.Unigram(pieces, model.get("unk_id"), fallback)
    known = ("type", "vocab", "merges", "unk_id", "byte_fallback", *dir(backend.model))
    unread = [f"model.{name}" for name in model if name not in known]
    for part in parts:
        unread += _unread(source.json.get(part), state(getattr(backend, part)), part)
    if unread:
        _warn(f"{source.file} has fields of unknown meaning: {brief(unread, 120)}")
    special = layout.special_tokens
    named = {name: _content(source.config.get(f"{name}_token")) for name in special._fields}
    named["unk"] = unk or named["unk"]
    for name, token in named.items():
        if token and backend.token_to_id(str(token)) is None:
            raise ValueError(
                f"{source.directory} has {name}_token={brief(repr(token), 60)}, which the "
                f"vocabulary in {source.file.name} lacks: correct the name, or add the token."
            )
    special = special._replace(**{name: str(token) for name, token in named.items() if token})
    layout = _arranged(source, backend, dataclasses.replace(layout, special_tokens=special))
    return kind.wrap(backend, layout, **source.common, **options)


def _check_readable(file: Path, part: str, step: Any) -> None:
    """Refuses a part of tokenizer.json that the installed library lacks, with its type."""
    members = ("normalizers", "pretokenizers", "processors", "decoders")
    inner = [step[name] for name in members if isinstance(step, dict) and name in step]
    for member in inner[0] if inner and isinstance(inner[0], list) else ():
        _check_readable(file, part, member)
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    try:
        with explaining_the_library():
            tokenizers.Tokenizer.from_str(json.dumps({"model": empty, part: step}))
    except ValueError as error:
        name = step.get("type") if isinstance(step, dict) else step
        raise ValueError(
            f"{file} has the {part} {brief(name, 60)!r}, which tokenizers "
            f"{tokenizers.__version__} cannot read ({brief(error.__cause__, 80)}): update the "
            "library, or correct the file."
        ) from error


def _unread(given: Any, read: Any, name: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(read, dict):
        for key in given:
            # Older files have these two fields of Metaspace, which the library reads.
            if key in read or key in ("str_rep", "add_prefix_space"):
                yield from _unread(given[key], read.get(key), f"{name}.{key}")
            else:
                yield f"{name}.{key}"
    elif isinstance(given, list) and isinstance(read, list):
        for first, second in zip(given, read, strict=False):
            yield from _unread(first, second, name)


def _arranged(source: _Source, backend: tokenizers.Tokenizer, layout: Layout) -> Layout:
    """Returns the layout that transformers makes: of the class or, if it keeps it, of the file."""
    with explaining_the_library():
        one, two = backend.encode("a"), backend.encode("a", "b")
        a, b = (backend.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
    named, absent = source.config.get("tokenizer_class"), not source.json.get("post_processor")
    replaces = source.tokenizer_class not in ("", *(() if absent else ("AlbertTokenizer",)))
    if one.ids == a and (replaces or not named):
        if not named:
            _warn(f"{source.file} adds no special tokens to a text: BERT's are added")
        backend.post_processor = None
        return layout
    cls, sep = map(backend.token_to_id, (layout.special_tokens.cls, layout.special_tokens.sep))
    separators = max(len(two.ids) - len(a) - len(b) - 2, 1)
    head, tail = [cls, *a, *[sep] * separators], [*b, sep]
    second = two.type_ids[-1] if layout.second_type else 0
    types = [0] * len(head) + [second] * len(tail) if layout.second_type else two.type_ids
    fits = one.ids == [cls, *a, sep] and two.ids == [*head, *tail]
    fits = fits and two.type_ids[1:] == types[1:] and not (layout.second_type and any(one.type_ids))
    arranged = dataclasses.replace(layout, separators=separators, second_type=second)
    if fits and (arranged == layout or not replaces):
        return arranged
    problem = (
        f"{source.file} arranges two texts as {brief(two.tokens, 80)}, with the token types "
        f"{brief(two.type_ids, 40)}, by its post_processor"
    )
    if not replaces:
        raise ValueError(
            f"{problem}: only {layout.special_tokens.cls} A {layout.special_tokens.sep} B "
            f"{layout.special_tokens.sep} is supported."
        )
    _warn(f"{problem}: it is replaced by that of {source.tokenizer_class}, as in transformers")
    backend.post_processor = None
    return layout


def _add_tokens(source: _Source, tokenizer: Tokenizer) -> None:
    """Adds the tokens that the files beside the vocabulary declare, as transformers 5 does."""
    config, special = source.config, tokenizer.layout.special_tokens
    order = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    others = [n for n in config if n.endswith("_token") and isinstance(config[n], str | dict)]
    others.sort(key=lambda name: isinstance(config[name], str))
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    named = [config[n] for n in dict.fromkeys([*order, *others]) if n in others]
    named += extra.values() if isinstance(extra, dict) else extra
    contents = [_content(token) for token in named]
    names = special._asdict()
    if source.kind == "Unigram" and special.cls == "<s>":  # its class puts these around a text
        names |= {"bos": special.cls, "eos": special.sep}
    for name, token in names.items():
        said = _content(config.get(f"{name}_token"))
        # Nothing is inserted for the others, so that an empty name changes no id.
        if said not in (None, token) and (said or name in ("cls", "sep", "bos", "eos")):
            raise ValueError(
                f"{source.directory / _CONFIG} has {name}_token={brief(said)}, but the vocabulary "
                f"has {token}: correct it, or save the tokenizer with transformers, which writes a "
                "tokenizer.json."
            )
    file, declared = source.directory / _CONFIG, config.get("added_tokens_decoder")
    ids = {token["content"]: token["id"] for token in source.json.get("added_tokens") or []}
    if declared is None:
        declared = {
            index: {"content": t, "special": t in contents, "normalized": t not in contents}
            for t, index in _optional(source.directory / _ADDED).items()
            if t not in ids
        }
    tokens = {int(index): _added_token(token) for index, token in declared.items()}
    tokenizer.add_tokens([tokens[index] for index in sorted(tokens)])
    ids |= {token.content: index for index, token in tokens.items()}
    for token, index in ids.items():
        # The library leaves out empty tokens, which no text contains.
        if (actual := tokenizer.vocab.get(token, index)) != index:
            _warn(f"{file}: {brief(token)!r} is {actual}, as in transformers, and not {index}")
    known = {*ids, *(token.content for token in tokenizer.added())}
    more = [t for t in named if _content(t) not in (ids if isinstance(t, dict) else known)]
    tokenizer.add_tokens([_added_token(token, special=True) for token in more])


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _added_token(token: Any, **changes: Any) -> AddedToken:
    fields = token if isinstance(token, dict) else {"content": token}
    return AddedToken(**{k: v for k, v in fields.items() if k != "__type"} | changes)


@functools.cache
def _warn(message: str) -> None:
    print(f"warning: {message}.", file=sys.stderr)


def read_vocab_txt(file: Path) -> dict[str, int]:
    """Reads a `vocab.txt` with one token per line; returns {token: index of its line, from 0}.

    Blank lines become the entries "", "\\r", "\\r\\r"..., which no text produces.
    """
    tokens = _lines(file)
    while tokens and not tokens[-1]:
        tokens.pop()
    blank = itertools.count()
    tokens = [token or "\r" * next(blank) for token in tokens]
    vocab = numbered(tokens)
    if twice := [token for token, count in Counter(tokens).items() if count > 1]:
        raise ValueError(
            f"{file} has {len(tokens) - len(vocab)} duplicate entries (first: "
            f"{brief(twice[0])!r}): rename all but the last of each, for example to [unused], so "
            "that ids stay."
        )
    return vocab


def read_merges(file: Path) -> list[tuple[str, str]]:
    """Reads a `merges.txt`; returns the BPE merges as pairs of tokens, in order of rank."""
    lines = _lines(file)
    if lines[0].startswith("#version"):
        lines = lines[1:]
    return [_pair(line, file) for line in lines if line]


def _pair(text: str, file: Path) -> tuple[str, str]:
    pieces = text.split(" ")
    if len(pieces) != 2 or not all(pieces):
        raise ValueError(
            f"{file}: {brief(text)!r} is not a merge of two pieces: download it again."
        )
    return pieces[0], pieces[1]


def _lines(file: Path) -> list[str]:
    # Only "\n" ends a line: splitlines() would also split at U+2028, which is an entry of some
    # released vocabularies.
    with naming_read_errors(file):
        text = read_bytes(file, MAX_JSON_BYTES).decode("utf-8-sig")
    return [line.rstrip("\r") for line in text.split("\n")]
