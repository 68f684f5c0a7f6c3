"""Finds the files of a tokenizer in a directory, and what they say about its kind and settings.

The files beside the vocabulary are followed as by transformers 5. Fields of the configs are
followed, known to change no id, or named in a warning.
"""

import dataclasses
import functools
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from bertjax.base.checked import check
from bertjax.base.files import (
    MAX_JSON_BYTES,
    brief,
    naming_read_errors,
    read_bytes,
    read_json,
    refuse_links_outside,
)
from bertjax.tokenization.base import GENERIC_CLASS, numbered
from bertjax.tokenization.unigram import DEBERTA, LAYOUTS

_KIND_OF_FILE = {
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "merges.txt": "BPE",
    "spiece.model": "Unigram",
    "sentencepiece.bpe.model": "Unigram",
    "spm.model": "Unigram",
    "vocab.bpe": "BPE",
}
VOCABULARY_FILES = ("tokenizer.json", *_KIND_OF_FILE)
"""The names of all files that hold a vocabulary."""
CONFIG = "tokenizer_config.json"
ADDED = "added_tokens.json"
_SPECIAL = "special_tokens_map.json"
TOKENIZER_FILES = (*VOCABULARY_FILES, CONFIG, ADDED, _SPECIAL)
"""The names of all files from which tokenizers are loaded."""
ALBERT_CLASS = "AlbertTokenizer"
ESM_CLASS = "EsmTokenizer"
ESMC_CLASS = "EsmcTokenizer"
# Classes whose tokenizer.json lacks a step of the class.
_REFUSED_CLASSES = {"RoFormerTokenizer": "it splits Chinese into words by the package rjieba"}
_KIND_OF_CLASS = {
    "BertTokenizer": "WordPiece",
    "ElectraTokenizer": "WordPiece",
    "DistilBertTokenizer": "WordPiece",
    ESM_CLASS: "WordPiece",
    "RobertaTokenizer": "BPE",
    ESMC_CLASS: "BPE",
    **dict.fromkeys(LAYOUTS, "Unigram"),
}
# The class that transformers takes for a model_type in config.json, where the files name none.
_CLASS_OF_TYPE = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "ernie": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "data2vec-text": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": ALBERT_CLASS,
    "deberta-v2": DEBERTA,
    "mpnet": "MPNetTokenizer",
    "modernbert": GENERIC_CLASS,
    "megatron-bert": "BertTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "xlm-roberta-xl": GENERIC_CLASS,
    "bert-generation": "BertGenerationTokenizer",
    "rembert": "RemBertTokenizer",
    "roformer": "RoFormerTokenizer",
    "nomic_bert": "BertTokenizer",
    "gte": "XLMRobertaTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "esm": ESM_CLASS,
    "esmc": ESMC_CLASS,
}
# Generic classes of transformers take a tokenizer.json as it is.
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
FLAGS = (
    "do_lower_case",
    "tokenize_chinese_chars",
    "strip_accents",
    "add_prefix_space",
    "keep_accents",
    "split_by_punct",
)
"""The fields of tokenizer_config.json by which text is changed or split."""
# The types of the fields of tokenizer_config.json that are followed.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(FLAGS, bool),
    "strip_accents": bool | None,
    "split_special_tokens": bool,
    "model_max_length": Annotated[float, "[1, inf]"],
    "model_input_names": list[str] | None,
    "tokenizer_class": str | None,
    "truncation_side": Literal["right", "left"],
    "added_tokens_decoder": dict,
    "additional_special_tokens": list | None,
    "extra_special_tokens": list | dict | None,
}
# Fields of tokenizer_config.json that change no id: of text from ids and templates of chats; of
# padding, which masks hide, and lengths, which callers choose; of where and how the files were
# written; and those that only slow tokenizers of transformers 4 or other families read.
_HARMLESS = """
    clean_up_tokenization_spaces errors spaces_between_special_tokens chat_template
    padding_side pad_to_multiple_of pad_token_type_id padding truncation
    truncation_strategy max_length stride
    name_or_path backend is_local local_files_only processor_class use_fast
    vocab_file merges_file tokenizer_file special_tokens_map_file
    do_basic_tokenize never_split sp_model_kwargs remove_space legacy
    trim_offsets add_bos_token add_eos_token vocab_type unk_id
    """.split()


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
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


def find_tokenizer(path: Path, do_lower_case: bool | None) -> TokenizerFiles:
    """Finds the files of the tokenizer at `path`, a directory or a file.

    Raises:
        FileNotFoundError: there is no vocabulary.
        ValueError: the files are damaged, not supported, or contradict each other.
    """
    directory = path.parent
    names = (path.name,)
    if path.is_dir():
        refuse_links_outside(path)
        directory = path
        names = VOCABULARY_FILES
    names = [name for name in names if (directory / name).is_file()]
    if not names:
        raise FileNotFoundError(
            f"No tokenizer at {path}: expected tokenizer.json, vocab.txt, vocab.json with "
            "merges.txt, spiece.model, sentencepiece.bpe.model, spm.model, or vocab.bpe with "
            "fairseq's dict.txt, or a directory that contains one of these."
        )
    config = _read_config(directory / CONFIG)
    model = read_optional(directory / "config.json")
    kinds = {name: _kind_of_file(name) for name in names}
    file = directory / names[0]
    content = {}
    if file.suffix == ".json" and file.name not in _KIND_OF_FILE:
        content = _read_tokenizer_json(file)
        kinds[file.name] = content["model"]["type"]
        names = names[1:]
    kind = kinds[file.name]
    if kind not in _KIND_OF_FILE.values():
        raise ValueError(
            f"{file} specifies the model type {brief(kind, 60)}, which is not supported. "
            "Supported: WordPiece, BPE and Unigram."
        )
    named = _named_class(file, config, model, kind if content else None)
    if named in _KIND_OF_CLASS:
        kinds = {f"{named} in its config": _KIND_OF_CLASS[named], **kinds}
    if len({*kinds.values()}) > 1:
        each = "; ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise ValueError(
            f"{directory} has files of different tokenizers: {each}. Delete the wrong files."
        )
    is_generic = named != "" and named not in _KIND_OF_CLASS
    flags = {}
    if not content or not is_generic:
        flags = {name: config[name] for name in FLAGS if name in config}
    if do_lower_case is not None:
        flags["do_lower_case"] = do_lower_case
    # A config without a length means no limit, as in transformers, which writes 1e30 for it.
    length = config.get("model_max_length", 1e30 if config else 512)
    input_names = config.get("model_input_names")
    if input_names is None and not _has_types(named, model):
        input_names = ["input_ids", "attention_mask"]
    return TokenizerFiles(
        directory=directory,
        kind=kind,
        file=file,
        json=content,
        bare=directory / names[0] if names else None,
        config=config,
        model=model,
        tokenizer_class="" if is_generic else named,
        flags=flags,
        common={
            "model_max_length": int(min(length, 2**31 - 1)),
            "model_input_names": input_names,
        },
    )


def _kind_of_file(name: str) -> str:
    by_suffix = {".json": "BPE", ".model": "Unigram"}
    return _KIND_OF_FILE.get(name) or by_suffix.get(Path(name).suffix, "WordPiece")


def _named_class(
    file: Path, config: dict[str, Any], model: dict[str, Any], kind_of_json: str | None
) -> str:
    """Returns the class of transformers that the configs name or imply, without "Fast"; or ""."""
    named = config.get("tokenizer_class") or model.get("tokenizer_class") or ""
    implied = _CLASS_OF_TYPE.get(str(model.get("model_type")), "")
    if kind_of_json and (not named or implied == GENERIC_CLASS):
        named = implied
        if _KIND_OF_CLASS.get(named, kind_of_json) != kind_of_json:
            warn(
                f"{file} is taken as it is; transformers takes the class {named} for it, by the "
                f"model_type in config.json, so that its ids differ: write tokenizer_class into "
                f"{CONFIG}, such as {GENERIC_CLASS}, which takes it as it is"
            )
            named = GENERIC_CLASS
    named = str(named).removesuffix("Fast")
    if named in _REFUSED_CLASSES:
        raise ValueError(
            f"{file.parent} has the tokenizer class {named}, which is not supported, since "
            f"{_REFUSED_CLASSES[named]}."
        )
    if named and named not in _KIND_OF_CLASS and named not in _GENERIC:
        said = "config.json"
        if config.get("tokenizer_class"):
            said = CONFIG
        verb = "implies" if named == implied else "specifies"
        problem = f"{file.parent / said} {verb} the tokenizer class {brief(named, 40)}, which is"
        if not kind_of_json:
            raise ValueError(f"{problem} not supported. Supported: {', '.join(_KIND_OF_CLASS)}.")
        warn(f"{problem} unknown here: {file.name} is taken as it is")
    return named


def _has_types(named: str, model: dict[str, Any]) -> bool:
    """Whether a tokenizer gives token types if its config does not say so, as in transformers 5.

    ALBERT was trained with them, and got them in transformers 4. A tokenizer without a model gets
    those of its kind.
    """
    if not model:
        return named != "DistilBertTokenizer"
    if named == ALBERT_CLASS:
        return model.get("model_type") == "albert"
    return named in ("", "BertTokenizer", "ElectraTokenizer", DEBERTA)


def read_optional(file: Path) -> dict[str, Any]:
    """Returns the content of a JSON file; {} if there is none."""
    return read_json(file) if file.is_file() else {}


def _read_config(file: Path) -> dict[str, Any]:
    config = read_optional(file)
    with naming_read_errors(file):
        for name, kind in _TYPES.items():
            if name in config:
                check(name, config[name], kind)
        if config.get("split_special_tokens"):
            raise ValueError("split_special_tokens=True: without it, a text can have a mask.")
    known = {*_TYPES, *_HARMLESS}
    unknown = [name for name in config if name not in known and not name.endswith("_token")]
    if unknown:
        warn(f"{file} has fields of unknown meaning: {brief(unknown, 120)}")
    if "added_tokens_decoder" not in config:
        config |= read_optional(file.with_name(_SPECIAL))
    return config


def _read_tokenizer_json(file: Path) -> dict[str, Any]:
    content = read_json(file)
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{file} has no 'model': it is not a file of the tokenizers library.")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict | list):
        raise ValueError(f"{file} has no vocabulary in its 'model': download it again.")
    implied = "BPE" if "merges" in model else "WordPiece"  # older files do not name it
    if isinstance(vocab, list):
        implied = "Unigram"
    model["type"] = str(model.get("type") or implied)
    return content


@functools.cache
def warn(message: str) -> None:
    """Prints a warning on stderr, once per message."""
    print(f"warning: {message}.", file=sys.stderr)


def read_vocab_txt(file: Path) -> dict[str, int]:
    """Reads a `vocab.txt` with one token per line; returns {token: index of its line, from 0}.

    Blank lines become the entries "", "\\r", "\\r\\r"..., which no text produces.
    """
    tokens = lines_of(file)
    while tokens and not tokens[-1]:
        tokens.pop()
    blank = itertools.count()
    tokens = [token or "\r" * next(blank) for token in tokens]
    vocab = numbered(tokens)
    if len(vocab) < len(tokens):
        twice, _ = Counter(tokens).most_common(1)[0]
        raise ValueError(
            f"{file} has {len(tokens) - len(vocab)} duplicate entries (such as {brief(twice)!r}): "
            "rename all but the last of each, for example to [unused], so that ids stay."
        )
    return vocab


def read_merges(file: Path) -> list[tuple[str, str]]:
    """Reads a `merges.txt`; returns the BPE merges as pairs of tokens, in order of rank."""
    lines = lines_of(file)
    if lines[0].startswith("#version"):
        lines = lines[1:]
    return [pair_of(line, file) for line in lines if line]


def pair_of(text: str, file: Path) -> tuple[str, str]:
    """Splits a line of merges into its two pieces; raises ValueError, which names `file`."""
    pieces = text.split(" ")
    if len(pieces) != 2 or not all(pieces):
        raise ValueError(
            f"{file}: {brief(text)!r} is not a merge of two pieces: download it again."
        )
    return pieces[0], pieces[1]


def lines_of(file: Path) -> list[str]:
    """Returns the lines of a file in UTF-8."""
    # Only "\n" ends a line: splitlines() would also split at U+2028, which is an entry of some
    # released vocabularies.
    with naming_read_errors(file):
        text = read_bytes(file, MAX_JSON_BYTES).decode("utf-8-sig")
    return [line.rstrip("\r") for line in text.split("\n")]
