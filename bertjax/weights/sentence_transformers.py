"""The files of sentence-transformers in a model directory: how a text becomes an embedding.

`modules.json` lists the modules that sentence-transformers applies: the transformer, a pooling of
its hidden states, and possibly a normalisation to length 1. All else is refused by its name, and
copied as it is.
"""

import contextlib
import json
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief, read_json
from bertjax.model import BertWithHead
from bertjax.model.sentence_embedding import BertForSentenceEmbedding
from bertjax.tokenization import Tokenizer

MODULES = "modules.json"
_MODEL = "config_sentence_transformers.json"
_POOLING = "1_Pooling/config.json"
# Of several, sentence-transformers reads the first one; old versions wrote the name of the family.
_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SENTENCE_FILES = (MODULES, _MODEL, *_SETTINGS, "[0-9]*_*/*")
MAX_BYTES = 1 << 20
_EMBEDDING = "sentence_embedding"
REMEDY = "download it again, or give --pooling"
_ANY = object()
# The values that are followed; any, if other code reads the field or no embedding depends on it.
_USUAL = {
    "Transformer": {
        **dict.fromkeys(("max_seq_length", "do_lower_case", "unpad_inputs"), _ANY),
        **dict.fromkeys(("query_length", "document_length"), _ANY),  # not of `encode`
        "transformer_task": "feature-extraction",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "last_hidden_state"}
        },
        "module_output_name": "token_embeddings",
    },
    "Pooling": dict.fromkeys(
        ("word_embedding_dimension", "embedding_dimension", "include_prompt", "pooling_mode"), _ANY
    ),
    "SentenceTransformer": {"model_type": "SentenceTransformer", "truncate_dim": None},
}


class SentenceModules(NamedTuple):
    """How sentence-transformers computes embeddings with a model.

    Attributes:
        pooling: "mean" for the mean over all tokens, or "cls" for the hidden state of [CLS].
        normalize: whether vectors are divided by their Euclidean length.
        max_length: maximum number of tokens per text; None: the maximum of the model.
        similarity: how two vectors are compared.
    """

    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None
    similarity: str = "cosine"


def read_sentence_modules(
    directory: Path, tokenizer: Tokenizer | None = None
) -> SentenceModules | None:
    """Reads the modules of sentence-transformers in a model directory; None if it has none.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is damaged, the directory has modules other than a transformer, a
            pooling by mean or [CLS], and a normalisation, a setting of them is not followed, or
            sentence-transformers would change the texts: by a default prompt, or by lower-casing
            that `tokenizer` does not do anyway.
    """
    if not (directory / MODULES).is_file():
        return None
    kinds, folders = zip(*_modules(directory) or [("none", "")], strict=True)
    if kinds[:2] != ("Transformer", "Pooling") or not {*kinds[2:]} <= {"Normalize"}:
        raise ValueError(
            f"{directory / MODULES} has the modules {brief(', '.join(kinds), 80)}, but bertjax has "
            "only Transformer, Pooling and Normalize: give --pooling to embed without them."
        )
    normalizes = [_normalizes(directory / folder / "config.json") for folder in folders[2:]]
    places = [directory / folders[0] / name for name in _SETTINGS]
    settings = next((file for file in places if _read_optional(file)), places[0])
    content = _read_optional(settings)
    _refuse_others(settings, content, _USUAL["Transformer"])
    length = content.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise ValueError(f"{settings}: max_seq_length is {brief(length, 40)}; correct it.")
    lowers = content.get("do_lower_case") and not (tokenizer and tokenizer.do_lower_case)
    change = f"{settings} says that sentence-transformers lower-cases" if lowers else ""
    file = directory / _MODEL
    model = _read_optional(file)
    _refuse_others(file, model, _USUAL["SentenceTransformer"], others=True)
    prompts, name = model.get("prompts"), model.get("default_prompt_name")
    prompts = {"query": "", "document": ""} | (prompts if isinstance(prompts, dict) else {})
    prompt = prompts.get(str(name), name)
    if prompt not in (None, ""):
        change = f"{file} says by default_prompt_name={brief(repr(name), 40)} that "
        change += f"sentence-transformers puts {brief(repr(prompt), 60)} before"
    if change:
        raise ValueError(
            f"{change} each text, which bertjax does not do: change your texts so, and give "
            "--pooling to use the model on them as they are."
        )
    pooling = read_pooling(directory / folders[1] / "config.json")
    similarity = str(model.get("similarity_fn_name") or "cosine")
    return SentenceModules(pooling, any(normalizes), length, similarity)


def _normalizes(file: Path) -> bool:
    """Whether a Normalize normalises embeddings of texts, and not something else, or nothing."""
    config = _read_optional(file)
    read = config.get("module_input_name", _EMBEDDING)
    written = config.get("module_output_name")
    written = read if written is None else written
    others = ("token_embeddings", "attention_mask", "input_ids")
    are_names = isinstance(read, str) and isinstance(written, str)
    if not are_names or (written == _EMBEDDING and read in others):
        raise ValueError(
            f"{file} has module_input_name={brief(repr(read), 60)} and module_output_name="
            f"{brief(repr(written), 60)}, which bertjax does not follow: give --pooling to embed "
            "without it."
        )
    return read == written == _EMBEDDING


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Returns (class, folder) of each module; the class of another library has its full name."""
    modules = []
    for index, module in enumerate(read_json(directory / MODULES, REMEDY, MAX_BYTES, list)):
        module = module if isinstance(module, dict) else {}
        kind = str(module.get("type"))
        kind = kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind
        parts = Path(path := str(module.get("path") or "")).parts
        if ".." in parts or Path(path).is_absolute() or len(path) > 60 or "\0" in path:
            raise ValueError(
                f"{directory / MODULES} names the folder {brief(path, 60)!r}: correct it."
            )
        modules.append((kind, "/".join(parts) or (f"{index}_{kind}" if index else "")))
    return modules


def _refuse_others(
    file: Path, content: Mapping[str, Any], usual: Mapping[str, Any], others: bool = False
) -> None:
    """Refuses values that are not `usual`; unless `others`, as sentence-transformers, all fields
    that are not there."""
    for name, value in content.items():
        if others and name not in usual:
            continue
        if usual.get(name) is not _ANY and value not in (None, {}, usual.get(name)):
            raise ValueError(
                f"{file} has {brief(name, 40)}={brief(repr(value), 60)}, which bertjax does not "
                "follow: give --pooling to embed without it."
            )


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json(file, REMEDY, MAX_BYTES) if file.is_file() else {}


def read_pooling(file: Path) -> str:
    """Returns the pooling mode, "mean" or "cls", in `file`, the config of a Pooling module.

    Raises ValueError if the config has another mode, several modes or none.
    """
    config = read_json(file, REMEDY, MAX_BYTES)
    flags = {key.removeprefix("pooling_mode_"): x for key, x in config.items() if "mode_" in key}
    modes = config.get("pooling_mode", [mode for mode, on in flags.items() if on])
    modes = modes if isinstance(modes, list) else [modes]
    modes = modes or ["mean"] * bool(config)  # as in sentence-transformers
    names = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
    if len(modes) != 1 or str(modes[0]) not in names:
        asked = brief(", ".join(map(str, modes)) or "none", 60)
        raise ValueError(
            f"{file} asks for the pooling {asked}, but bertjax has only mean and cls: give "
            "--pooling to embed with one of them."
        )
    others = {key: x for key, x in config.items() if key.removeprefix("pooling_mode_") not in flags}
    _refuse_others(file, others, _USUAL["Pooling"])
    return names[str(modes[0])]


def transformer_folder(directory: Path) -> Path:
    """Returns the folder of the transformer of `modules.json`; without this file, `directory`."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if (directory / MODULES).is_file():
            return directory / _modules(directory)[0][1]
    return directory


def sentence_files(directory: Path) -> dict[str, bytes]:
    """Returns {relative path: content} of the files of sentence-transformers in a model directory.

    They are all files of modules, except those of the transformer's config, weights and tokenizer.
    The path of the transformer becomes "", since a copy has its files beside `modules.json`.
    """
    if not (directory / MODULES).is_file():
        return {}
    root, modules = transformer_folder(directory), _modules(directory)
    files = [directory / MODULES, directory / _MODEL, *(root / name for name in _SETTINGS)]
    for _, folder in modules[1:]:
        files += sorted((directory / folder).rglob("*"))
    contents = {
        file.relative_to(root if file.parent == root else directory).as_posix(): file.read_bytes()
        for file in files
        if file.is_file()
    }
    if root != directory:
        described = json.loads(contents[MODULES])
        described[0]["path"] = ""
        contents[MODULES] = json.dumps(described, indent=2).encode()
    return contents


def read_cross_encoder(
    config: Mapping[str, Any], files: Mapping[str, bytes], *, lowers: bool
) -> tuple[str, int | None]:
    """Reads how a CrossEncoder scores texts, in its config.json and `sentence_files`.

    Returns the class of the activation of the logits, "" if none is named, and the maximum number
    of tokens; None: that of the tokenizer. Raises ValueError if other modules than a transformer, a
    prompt, or a lower-casing that the tokenizer does not do (`lowers`), would change the scores.
    """
    model = json.loads(files.get(_MODEL, b"{}"))
    text = next((json.loads(files[name]) for name in _SETTINGS if name in files), {})
    kinds = [str(module.get("type")) for module in json.loads(files.get(MODULES, b"[]"))]
    others = [kind for kind in kinds if kind.rpartition(".")[2] != "Transformer"]
    others += ["do_lower_case"] * bool(text.get("do_lower_case") and not lowers)
    others += ["default_prompt_name"] * bool(model.get("default_prompt_name"))
    if others:
        raise ValueError(
            f"{brief(others[0], 60)} in its files of sentence-transformers is not followed by "
            "bertjax: use the logits, load_pretrained(...)(texts), or delete it there."
        )
    settings = [model, config.get("sentence_transformers")]
    settings = [x.get("activation_fn") for x in settings if isinstance(x, dict)]
    settings.append(config.get("sbert_ce_default_activation_function"))
    path = next((str(x) for x in settings if x is not None), "")
    name = path.rpartition(".")[2] if path.startswith("torch.") else path
    return name, text.get("max_seq_length")


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
        _SETTINGS[0]: {"max_seq_length": max_length, "do_lower_case": False},
        _MODEL: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    }
    return {name: json.dumps(content, indent=2) for name, content in contents.items()}


def with_head_fields(
    model: BertWithHead, read: Future[SentenceModules | None], fields: Mapping[str, Any]
) -> BertWithHead:
    """Sets fields of a model's head and, for sentence embeddings, pooling and normalisation.

    Unless `fields` sets the pooling, both are those of the modules that were `read`.
    """
    if isinstance(model, BertForSentenceEmbedding) and "pooling" not in fields:
        modules = read.result() or SentenceModules()
        model = model.clone(pooling=modules.pooling, normalize=modules.normalize)
    return model.clone(**fields) if fields else model
