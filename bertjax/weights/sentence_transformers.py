"""The files of sentence-transformers in a model directory: how a text becomes an embedding.

`modules.json` lists the modules that sentence-transformers applies: the transformer, a pooling of
its hidden states, and possibly a normalisation to length 1.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief, read_json
from bertjax.model import BertWithHead
from bertjax.model.sentence_embedding import BertForSentenceEmbedding

MODULES = "modules.json"
_SETTINGS = "sentence_bert_config.json"
_POOLING = "1_Pooling/config.json"
_MODEL = "config_sentence_transformers.json"
SENTENCE_FILES = (MODULES, _SETTINGS, _MODEL, _POOLING)
MAX_BYTES = 1 << 20
REMEDY = "download it again, or give --pooling"


class SentenceModules(NamedTuple):
    """How sentence-transformers computes embeddings with a model.

    Attributes:
        pooling: "mean" for the mean over all tokens, or "cls" for the hidden state of [CLS].
        normalize: whether vectors are divided by their Euclidean length.
        max_length: maximum number of tokens per text; None: the maximum of the model.
    """

    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None


def read_sentence_modules(directory: Path) -> SentenceModules | None:
    """Reads the modules of sentence-transformers in a model directory; None if it has none.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is damaged, the directory has modules other than a transformer, a
            pooling by mean or [CLS], and a normalisation, or sentence-transformers would change the
            texts: by a default prompt, or by lower-casing that the tokenizer does not do anyway.
    """
    if not (directory / MODULES).is_file():
        return None
    modules = read_json(directory / MODULES, REMEDY, MAX_BYTES, list)
    # Types are names of classes, such as sentence_transformers.models.Pooling.
    kinds = [str(x.get("type")).rpartition(".")[2] for x in modules if isinstance(x, dict)]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise ValueError(
            f"{directory / MODULES} has the modules {brief(', '.join(kinds), 80)}, but bertjax has "
            "only Transformer, Pooling and Normalize: give --pooling to embed without them."
        )
    settings = directory / _SETTINGS
    content = _read_optional(settings)
    length = content.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise ValueError(f"{settings}: max_seq_length is {brief(length, 40)}; correct it.")
    tokenizer = _read_optional(directory / "tokenizer_config.json")
    if length is None:
        # As version 6 of sentence-transformers writes it; 1e30 means that there is no limit.
        found = tokenizer.get("model_max_length")
        length = found if type(found) is int and found > 0 else None
    lowers = content.get("do_lower_case") and not tokenizer.get("do_lower_case")
    change = f"{settings} says that sentence-transformers lower-cases" if lowers else ""
    file = directory / _MODEL
    model = _read_optional(file)
    prompts, name = model.get("prompts"), model.get("default_prompt_name")
    prompt = prompts.get(str(name), name) if isinstance(prompts, dict) else name
    if prompt not in (None, ""):
        change = f"{file} says by default_prompt_name={brief(repr(name), 40)} that "
        change += f"sentence-transformers puts {brief(repr(prompt), 60)} before"
    if change:
        raise ValueError(
            f"{change} each text, which bertjax does not do: change your texts so, and give "
            "--pooling to use the model on them as they are."
        )
    path = str(modules[1].get("path") or "1_Pooling")
    file = directory / path / "config.json"
    if ".." in Path(path).parts or Path(path).is_absolute() or len(path) > 60 or "\0" in path:
        raise ValueError(f"{directory / MODULES} names the folder {brief(path, 60)!r}: correct it.")
    return SentenceModules(read_pooling(file), "Normalize" in kinds, length)


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json(file, REMEDY, MAX_BYTES) if file.is_file() else {}


def read_pooling(file: Path) -> str:
    """Returns the pooling mode, "mean" or "cls", in `file`, the config of a Pooling module.

    Raises ValueError if the config has another mode, several modes or none.
    """
    config = read_json(file, REMEDY, MAX_BYTES)
    modes = {key.removeprefix("pooling_mode_") for key, on in config.items() if on is True} - {
        "include_prompt"
    }
    mode = config.get("pooling_mode")
    modes |= {mode} if isinstance(mode, str) else set()
    names = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
    if len(modes) != 1 or not modes <= names.keys():
        asked = brief(", ".join(sorted(modes)) or "none", 60)
        raise ValueError(
            f"{file} asks for the pooling {asked}, but bertjax has only mean and cls: give "
            "--pooling to embed with one of them."
        )
    return names[modes.pop()]


def sentence_files(directory: Path) -> dict[str, str]:
    """Returns {file name: text} of the files of sentence-transformers in a model directory."""
    if not (directory / MODULES).is_file():
        return {}
    files = {name: directory / name for name in SENTENCE_FILES if (directory / name).is_file()}
    return {name: file.read_text(encoding="utf-8").rstrip("\n") for name, file in files.items()}


def files_of_head(model: BertWithHead, max_length: int) -> dict[str, str]:
    """Returns {file name: text} of the files of sentence-transformers for a trained model.

    The result is {} if the head of the model computes no sentence embeddings.
    """
    if not isinstance(model, BertForSentenceEmbedding):
        return {}
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules += [("2_Normalize", "Normalize")] if model.normalize else []
    contents = {
        MODULES: [
            {
                "idx": index,
                "name": str(index),
                "path": path,
                "type": f"sentence_transformers.models.{name}",
            }
            for index, (path, name) in enumerate(modules)
        ],
        _POOLING: {
            "word_embedding_dimension": model.config.hidden_size,
            "pooling_mode_cls_token": model.pooling == "cls",
            "pooling_mode_mean_tokens": model.pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        _SETTINGS: {"max_seq_length": max_length, "do_lower_case": False},
        _MODEL: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    }
    return {name: json.dumps(content, indent=2) for name, content in contents.items()}


def with_head_fields(
    model: BertWithHead, directory: Path, fields: Mapping[str, Any]
) -> BertWithHead:
    """Sets fields of a model's head and, for sentence embeddings, pooling and normalisation.

    Unless `fields` sets the pooling, both are read from the files of sentence-transformers.
    """
    if isinstance(model, BertForSentenceEmbedding) and "pooling" not in fields:
        modules = read_sentence_modules(directory) or SentenceModules()
        model = model.clone(pooling=modules.pooling, normalize=modules.normalize)
    return model.clone(**fields) if fields else model
