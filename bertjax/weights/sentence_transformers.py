"""The files of sentence-transformers in a model directory: how a text becomes an embedding.

`modules.json` lists the modules that sentence-transformers applies: the transformer, a pooling of
its hidden states, and then linear layers (Dense), LayerNorms and normalisations to length 1. All
else is refused by its name, and copied as it is.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.base.files import brief, did_you_mean, listed, read_json
from bertjax.config.model import Pooling
from bertjax.model import BertConfig, BertWithHead
from bertjax.model.sentence_embedding import (
    ACTIVATIONS,
    BertForSentenceEmbedding,
    SentenceModule,
    activation,
)
from bertjax.weights.hf import BIN, SAFETENSORS, open_weights

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
# The flags of poolings in files of old versions, the oldest of which have only the first four.
_FLAGS = {
    **{"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"},
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# {PyTorch name: path after the index of the module in our tree} of the modules.
_TENSORS = {
    "Dense": {
        **{"linear.weight": "/kernel", "linear.bias": "/bias"},
        "residual.weight": "_residual/kernel",
    },
    "LayerNorm": {"norm.weight": "/scale", "norm.bias": "/bias"},
    "Normalize": {},
}
# The values that are followed; any, if other code reads the field or no embedding depends on it.
_USUAL = {
    "Transformer": {
        **dict.fromkeys(("max_seq_length", "query_length", "document_length"), _ANY),
        **dict.fromkeys(("do_lower_case", "unpad_inputs"), _ANY),
        "transformer_task": "feature-extraction",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "last_hidden_state"}
        },
        "module_output_name": "token_embeddings",
    },
    "Pooling": dict.fromkeys(
        ("word_embedding_dimension", "embedding_dimension", "include_prompt", "pooling_mode"), _ANY
    ),
    "Dense": {"module_input_name": _EMBEDDING, "module_output_name": _EMBEDDING},
    "LayerNorm": {"dimension": _ANY},
    "SentenceTransformer": {"model_type": "SentenceTransformer"},
}
LENGTHS = ("query_length", "document_length")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


class SentenceModules(NamedTuple):
    """How sentence-transformers computes embeddings with a model.

    Attributes:
        pooling: as in `pooled`; `include_prompt` tells whether it includes the tokens of prompts.
        after_pooling: the modules that follow the pooling; `folders` are their folders, and
            `params` a tree {"modules": their parameters}, {} if they have none.
        normalize: whether vectors are divided by their Euclidean length in the end.
        max_length: maximum number of tokens per text; None: the maximum of the model.
        lower_case: whether texts are lower-cased, whatever the tokenizer does.
        prompts: {name: text to put before each text}, always with "query" and "document".
        default_prompt: the name of the prompt that is used if none is named; None: no prompt.
        similarity: how two vectors are compared, one of `SIMILARITIES`.
        truncate_dim: the number of dimensions that are kept in the end; None: all.
        query_length: maximum number of tokens of a text with the prompt "query", as from
            `encode_query`, and `document_length` with "document"; None: as `max_length`.
    """

    pooling: str = "mean"
    include_prompt: bool = True
    after_pooling: tuple[SentenceModule, ...] = ()
    folders: tuple[str, ...] = ()
    params: Mapping[str, Any] = {}
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = {"query": "", "document": ""}
    default_prompt: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    query_length: int | None = None
    document_length: int | None = None

    def prompt(self, name_or_text: str | None) -> str:
        """Returns the prompt of this name, a text that is no name as it is, or for None, the
        default prompt. Raises ValueError if no prompt has the name, a word without punctuation."""
        name = self.default_prompt if name_or_text is None else name_or_text
        if name is None or name in self.prompts:
            return "" if name is None else self.prompts[name]
        if name.replace("-", "_").isidentifier():
            raise ValueError(
                f"prompt={brief(name, 60)!r}: the model has no prompt of this name. "
                f"{did_you_mean(name, self.prompts)}Known: {listed(sorted(self.prompts))}. A text "
                f"that is one word needs a space or a colon at its end, {brief(name, 60) + ': '!r}."
            )
        return name


Read = Future[SentenceModules | None]
"""What `read_sentence_modules` has returned or raised."""


def read_sentence_modules(directory: Path) -> SentenceModules | None:
    """Reads the modules of sentence-transformers in a model directory; None if it has none.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is damaged, the directory has modules other than a transformer, a
            pooling, and modules that `SentenceModule` describes, their sizes or weights do not fit,
            or a setting of them is not followed.
    """
    if not (directory / MODULES).is_file():
        return None
    kinds, folders = zip(*_modules(directory) or [("none", "")], strict=True)
    if kinds[:2] != ("Transformer", "Pooling") or not {*kinds[2:]} <= {*_TENSORS}:
        raise ValueError(
            f"{directory / MODULES} has the modules {brief(', '.join(kinds), 80)}, but bertjax has "
            "only Transformer, Pooling and, after these, Dense, LayerNorm and Normalize: give "
            "--pooling to embed without them."
        )
    places = [directory / folders[0] / name for name in _SETTINGS]
    settings = next((file for file in places if _read_optional(file)), places[0])
    content = _read_optional(settings)
    _refuse_others(settings, content, _USUAL["Transformer"])
    pooling, include_prompt = read_pooling(directory / folders[1] / "config.json")
    config = directory / folders[0] / "config.json"
    sizes = (_count(config, _read_optional(config), name) for name in ("hidden_size", "dim"))
    first = next(filter(None, sizes), BertConfig.hidden_size) * len(pooling.split("+"))
    modules, params = _read_modules(directory, [*zip(kinds, folders, strict=True)][2:], first)
    count = len(modules)
    while modules and modules[-1][1].kind == "Normalize":
        modules.pop()
    file = directory / _MODEL
    model = _read_optional(file)
    _refuse_others(file, model, _USUAL["SentenceTransformer"], others=True)
    prompts, name = model.get("prompts") or {}, model.get("default_prompt_name")
    texts = prompts.values() if isinstance(prompts, dict) else [prompts, 0]
    if not all(isinstance(text, str | None) for text in texts):
        raise _wrong(file, model, "prompts", "which are no texts by their names")
    prompts = {key: text or "" for key, text in {**SentenceModules().prompts, **prompts}.items()}
    if name not in (None, *prompts):
        known = f"but only the prompts {listed(sorted(prompts))}"
        raise _wrong(file, model, "default_prompt_name", known)
    if (similarity := model.get("similarity_fn_name") or "cosine") not in SIMILARITIES:
        raise _wrong(file, model, "similarity_fn_name", f"not one of {', '.join(SIMILARITIES)}")
    return SentenceModules(
        *(pooling, include_prompt),
        tuple(module for _, module in modules),
        tuple(folder for folder, _ in modules),
        {"modules": unflatten_dict(params, sep="/")} if params else {},
        len(modules) < count,
        _count(settings, content, "max_seq_length"),
        bool(content.get("do_lower_case")),
        *(prompts, name, similarity, _count(file, model, "truncate_dim")),
        *(_count(settings, content, length) for length in LENGTHS),
    )


def _wrong(file: Path, content: Mapping[str, Any], name: str, why: str) -> ValueError:
    value = f"{brief(name, 40)}={brief(repr(content.get(name)), 80)}"
    return ValueError(f"{file} has {value}, {why}: correct it, or give --pooling.")


def _count(file: Path, content: Mapping[str, Any], name: str) -> int | None:
    value = content.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{file}: {name} is {brief(value, 40)}; correct it.")
    return value


def _read_modules(
    directory: Path, names: Iterable[tuple[str, str]], size: int
) -> tuple[list[tuple[str, SentenceModule]], dict[str, np.ndarray]]:
    """Reads the modules after a pooling of `size`, (kind, folder) each.

    Returns (folder, module) of those that are not without effect, and {path: parameter}.
    """
    modules, params = [], {}
    for kind, folder in names:
        file, module = directory / folder / "config.json", SentenceModule(kind)
        if kind == "Normalize":
            modules += [(folder, module)] if _normalizes(file) else []
            continue
        content = read_json(file, REMEDY, MAX_BYTES)
        _refuse_others(file, content, _USUAL[kind], others=kind == "Dense")
        if kind == "Dense":
            features = _count(file, content, "out_features") or 0
            path = str(content.get("activation_function", module.activation_function))
            has = bool(content.get("bias", True)), bool(content.get("use_residual"))
            module = SentenceModule(kind, features, has[0], path, has[1])
            if activation(path) is None:
                known = f"but bertjax has only {', '.join(ACTIVATIONS)} of torch.nn"
                raise _wrong(file, content, "activation_function", known)
        inputs = "in_features" if kind == "Dense" else "dimension"
        if content.get(inputs) != size:
            raise _wrong(file, content, inputs, f"but its input has {size} numbers")
        for name, value in _read_weights(directory / folder, _shapes(module, size)).items():
            params[f"{len(modules)}{_TENSORS[kind][name]}"] = np.ascontiguousarray(value.T)
        size = module.out_features or size
        modules.append((folder, module))
    return modules, params


def _shapes(module: SentenceModule, size: int) -> dict[str, tuple[int, ...]]:
    """Returns {PyTorch name: shape} of the parameters of a module with inputs of `size`."""
    if module.kind == "LayerNorm":
        return dict.fromkeys(_TENSORS[module.kind], (size,))
    features = module.out_features
    shapes = {"linear.weight": (features, size)}
    shapes |= {"linear.bias": (features,)} if module.bias else {}
    is_projected = module.use_residual and features != size
    return shapes | ({"residual.weight": (features, size)} if is_projected else {})


def _read_weights(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    file = next((x for x in (folder / SAFETENSORS, folder / BIN) if x.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{folder} has no {SAFETENSORS} or {BIN}: {REMEDY}.")
    tensors = open_weights([file])
    stored = {name: tensors[name].shape for name in tensors}
    if stored != shapes:
        has = f"the tensors {brief(stored, 120)}, but its config.json asks for {shapes}"
        raise ValueError(f"{file} has {has}: {REMEDY}.")
    return {name: np.asarray(tensors[name], np.float32) for name in shapes}


def _normalizes(file: Path) -> bool:
    """Whether a Normalize normalises embeddings of texts, and not something else, or nothing."""
    config = _read_optional(file)
    read = config.get("module_input_name", _EMBEDDING)
    written = config.get("module_output_name")
    written = read if written is None else written
    others = ("token_embeddings", "attention_mask", "input_ids")
    are_names = isinstance(read, str) and isinstance(written, str)
    if not are_names or (written == _EMBEDDING and read in others):
        raise _wrong(file, config, "module_input_name", "which bertjax does not follow")
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
            raise _wrong(file, content, name, "which bertjax does not follow")


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json(file, REMEDY, MAX_BYTES) if file.is_file() else {}


def read_pooling(file: Path) -> tuple[str, bool]:
    """Returns pooling and include_prompt of `file`, the config of a Pooling module.

    Raises ValueError if the config has an unknown mode, or none.
    """
    config = read_json(file, REMEDY, MAX_BYTES)
    flagged = [mode for mode in get_args(Pooling) if config.get(_FLAGS[mode])]
    modes = config.get("pooling_mode", flagged)
    modes = modes if isinstance(modes, list) else [modes]
    modes = modes or ["mean"] * bool(config)  # as in sentence-transformers
    if not modes or not {*map(str, modes)} <= {*_FLAGS}:
        asked = brief(", ".join(map(str, modes)) or "none", 60)
        raise ValueError(
            f"{file} asks for the pooling {asked}, but bertjax has only {', '.join(_FLAGS)}: give "
            "--pooling to embed with one of them."
        )
    others = {key: x for key, x in config.items() if key not in _FLAGS.values()}
    _refuse_others(file, others, _USUAL["Pooling"])
    return "+".join(modes), bool(config.get("include_prompt", True))


def transformer_folder(directory: Path) -> Path:
    """Returns the folder of the transformer of `modules.json`; without this file, `directory`."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if (directory / MODULES).is_file():
            return directory / _modules(directory)[0][1]
    return directory


def check_first_module(directory: Path) -> None:
    """Raises ValueError if the first module is another one than a transformer, such as
    StaticEmbedding, BoW, WordEmbeddings or Router."""
    kinds = [kind for kind, _ in _modules(directory)] if (directory / MODULES).is_file() else []
    if kinds[:1] not in ([], ["Transformer"]):
        raise ValueError(
            f"{directory / MODULES} has the modules {brief(', '.join(kinds), 80)}, but bertjax has "
            "only models whose first one is a Transformer: use sentence-transformers for it."
        )


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
) -> tuple[str, int | None, str]:
    """Reads how a CrossEncoder scores texts, in its config.json and `sentence_files`.

    Returns the class of the activation of the logits, "" if none is named; the maximum number of
    tokens, None: that of the tokenizer; and the text that is put before each query. Raises
    ValueError if other modules than a transformer, or a lower-casing that the tokenizer does not do
    (`lowers`), would change the scores, or if the default prompt has no text.
    """
    model, text = _first_of(files, _MODEL), _first_of(files, *_SETTINGS)
    modules = json.loads(files.get(MODULES, b"[]"))
    kinds = [str(x.get("type") if isinstance(x, dict) else x) for x in modules]
    others = [x for x in kinds if not re.fullmatch(r"sentence_transformers\.(.*\.)?Transformer", x)]
    length = text.get("max_seq_length")
    others += ["max_seq_length"] * (length is not None and not (type(length) is int and length > 0))
    others += ["do_lower_case"] * bool(text.get("do_lower_case") and not lowers)
    name, prompts = model.get("default_prompt_name"), model.get("prompts") or {}
    prompt = prompts.get(name) if isinstance(name, str) and isinstance(prompts, dict) else None
    others += ["default_prompt_name"] * (name is not None and not isinstance(prompt, str))
    if others:
        raise ValueError(
            f"{brief(others[0], 60)} in its files of sentence-transformers is not followed by "
            "bertjax: use the logits, load_pretrained(...)(texts), or delete it there."
        )
    settings = [model, config.get("sentence_transformers")]
    settings = [x.get("activation_fn") for x in settings if isinstance(x, dict)]
    settings.append(config.get("sbert_ce_default_activation_function"))
    path = next((str(x) for x in settings if x is not None), "")
    return path.rpartition(".")[2] if path.startswith("torch.") else path, length, prompt or ""


def _first_of(files: Mapping[str, bytes], *names: str) -> dict[str, Any]:
    content = json.loads(next((files[name] for name in names if name in files), b"{}"))
    return content if isinstance(content, dict) else {}


def files_of_head(
    model: BertWithHead, params: Any, max_length: int, read: Read
) -> dict[str, str | bytes]:
    """Returns {file name: content} of the files of sentence-transformers for a trained model.

    What the model does not tell is as `read`. The result is {} if the head of the model computes no
    sentence embeddings.
    """
    if not isinstance(model, BertForSentenceEmbedding):
        return {}
    kept = read.result() or SentenceModules()
    trained = [*model.after_pooling, *[SentenceModule("Normalize")] * model.normalize]
    names = ["Transformer", "Pooling", *(module.kind for module in trained)]
    folders = ["", *(f"{index}_{name}" for index, name in enumerate(names) if index)]
    modes, size = model.pooling.split("+"), model.config.hidden_size
    unset = SentenceModules().prompts
    pooling: dict[str, Any] = {"word_embedding_dimension": size}
    pooling |= {_FLAGS[mode]: mode in modes for mode in _FLAGS if mode in (*modes, *[*_FLAGS][:4])}
    if modes != [mode for mode in get_args(Pooling) if mode in modes]:
        pooling["pooling_mode"] = modes  # an order that flags do not tell
    pooling |= {} if model.include_prompt else {"include_prompt": False}
    # Versions of sentence-transformers before 6 do not know these fields.
    lengths = {name: min(x, max_length) for name in LENGTHS if (x := getattr(kept, name))}
    contents: dict[str, Any] = {
        MODULES: [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(zip(folders, names, strict=True))
        ],
        _POOLING: pooling,
        _SETTINGS[0]: {
            **{"max_seq_length": max_length, "do_lower_case": kept.lower_case},
            **lengths,
        },
        _MODEL: {
            "prompts": {name: x for name, x in kept.prompts.items() if x or name not in unset},
            "default_prompt_name": kept.default_prompt,
            "similarity_fn_name": kept.similarity,
            **({"truncate_dim": kept.truncate_dim} if kept.truncate_dim else {}),
        },
    }
    size *= len(modes)
    for folder, module in zip(folders[2:], trained, strict=True):
        described = {"dimension": size}
        if module.kind == "Dense":  # old versions do not know use_residual
            described = {"in_features": size, **dict([*module._asdict().items()][1:])}
            described |= {} if described.pop("use_residual") is False else {"use_residual": True}
        if module.kind != "Normalize":
            contents[f"{folder}/config.json"] = described
        size = module.out_features or size
    texts = {name: json.dumps(content, indent=2) for name, content in contents.items()}
    return texts | module_weights(model.after_pooling, folders[2:], params)


def module_weights(
    modules: Sequence[SentenceModule], folders: Sequence[str], params: Mapping[str, Any]
) -> dict[str, bytes]:
    """Returns {path: content} of the safetensors files of modules, from a model's parameters."""
    flat: Any = flatten_dict(params.get("modules", {}), sep="/")
    files = {}
    for index, (module, folder) in enumerate(zip(modules, folders, strict=False)):
        paths = {name: f"{index}{end}" for name, end in _TENSORS[module.kind].items()}
        tensors = {name: flat[path].T for name, path in paths.items() if path in flat}
        tensors = {name: np.ascontiguousarray(x, np.float32) for name, x in tensors.items()}
        content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
        files |= {f"{folder}/{SAFETENSORS}": content} if tensors else {}
    return files


def changed_weights(read: Read, params: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the files of those weights of modules in `params` that are not as `read`."""
    modules = (None if read.exception() else read.result()) or SentenceModules()
    before, now = (
        module_weights(modules.after_pooling, modules.folders, some)
        for some in (modules.params, params)
    )
    return {name: content for name, content in now.items() if content != before[name]}


def with_head_fields(
    model: BertWithHead, params: Any, read: Read, fields: Mapping[str, Any]
) -> tuple[BertWithHead, Any]:
    """Sets fields of a model's head and, for sentence embeddings, pooling and further modules.

    Unless `fields` sets the pooling, both are those of the modules that were `read`, whose
    parameters are added to `params`.
    """
    if isinstance(model, BertForSentenceEmbedding) and "pooling" not in fields:
        modules = read.result() or SentenceModules()
        names = ("pooling", "after_pooling", "normalize")
        model = model.clone(**{name: getattr(modules, name) for name in names})
        params = {**params, **jax.tree.map(np.array, modules.params)}
    return (model.clone(**fields) if fields else model), params
