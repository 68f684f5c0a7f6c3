"""The files of sentence-transformers in a model directory: how a text becomes an embedding.

`modules.json` lists the modules that sentence-transformers applies: the transformer, a pooling of
its hidden states, and then linear layers (Dense), LayerNorms and normalisations to length 1. All
else is refused by its name, and copied as it is.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import jax
import numpy as np
import safetensors.numpy

from bertjax.base.checked import Checked, Count, read_fields
from bertjax.base.files import brief, did_you_mean, listed, read_json
from bertjax.config.model import Pooling
from bertjax.model import BertConfig, BertWithHead
from bertjax.model.recipe import flattened, nested
from bertjax.model.sentence_embedding import (
    ACTIVATIONS,
    BertForSentenceEmbedding,
    SentenceModule,
    activation,
)
from bertjax.weights.hf import BIN, SAFETENSORS, open_weights

MODULES = "modules.json"
ROUTER = "router_config.json"
MODEL = "config_sentence_transformers.json"
_POOLING = "1_Pooling/config.json"
# Of several, sentence-transformers reads the first one; old versions wrote the name of the family.
SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SENTENCE_FILES = (MODULES, MODEL, ROUTER, *SETTINGS, "[0-9]*_*/*", "query_*/*", "document_*/*")
MAX_BYTES = 1 << 20
_EMBEDDING = "sentence_embedding"
REMEDY = "download it again, or give --pooling"
Value = TypeVar("Value")
Fields = TypeVar("Fields")
# The flags of poolings in files of old versions, the oldest of which have only the first four.
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# {PyTorch name: path after the index of the module in our tree} of the modules.
_TENSORS = {
    "Dense": {
        "linear.weight": "/kernel",
        "linear.bias": "/bias",
        "residual.weight": "_residual/kernel",
    },
    "LayerNorm": {"norm.weight": "/scale", "norm.bias": "/bias"},
    "Normalize": {},
}
# The usual value of a field of `TransformerFields`.
_TEXTS = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
STATIC = "StaticEmbedding"
LENGTHS = ("query_length", "document_length")
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
SIMILARITIES = get_args(Similarity)
_NO_PROMPTS = {"query": "", "document": ""}


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
        query_length: maximum number of tokens with the prompt "query", and `document_length` with
            "document"; None: as `max_length`.
        tokens: of models with one vector per token, the `TokenModules` of `late_interaction`; their
            `after_pooling` are the modules that make vectors of hidden states.
        sparse: of sparse encoders, the `SparseModules` of `sparse_modules`.
    """

    pooling: str = "mean"
    include_prompt: bool = True
    after_pooling: tuple[SentenceModule, ...] = ()
    folders: tuple[str, ...] = ()
    params: Mapping[str, Any] = {}
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = _NO_PROMPTS
    default_prompt: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    query_length: int | None = None
    document_length: int | None = None
    tokens: Any = None
    sparse: Any = None

    @property
    def head(self) -> str:
        """The name in `bertjax.model.HEADS` of the head that computes the embeddings."""
        if self.tokens is not None:
            return "late_interaction"
        if self.sparse is not None:
            return "sparse"
        return "sentence_embedding"

    def prompt(self, name_or_text: str | None) -> str:
        """Returns the prompt of this name, a text that is no name as it is, or for None, the
        default prompt. Raises ValueError if no prompt has the name, a word without punctuation."""
        name = name_or_text
        if name is None:
            name = self.default_prompt
        if name is None:
            return ""
        if name in self.prompts:
            return self.prompts[name]
        if name.replace("-", "_").isidentifier():
            raise ValueError(
                f"prompt={brief(name, 60)!r}: the model has no prompt of this name. "
                f"{did_you_mean(name, self.prompts)}Known: {listed(sorted(self.prompts))}. A text "
                "that is one word needs a space or a colon at its end."
            )
        return name


class Read(NamedTuple, Generic[Value]):
    """What a file holds, or the error with which its reading failed."""

    value: Value | None = None
    error: Exception | None = None

    def result(self) -> Value:
        """Returns the value, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


# The fields of JSON files, and the values of them that are followed. A field of any type is checked
# where it is used, or no embedding depends on it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerFields(Checked):
    """The settings of a Transformer module."""

    max_seq_length: Count | None = None
    query_length: Count | None = None
    document_length: Count | None = None
    do_lower_case: Any = None
    unpad_inputs: Any = None
    transformer_task: Literal["feature-extraction"] | None = None
    modality_config: Any = None
    module_output_name: Literal["token_embeddings"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFields(Checked):
    """The config of a model."""

    model_type: Literal["SentenceTransformer"] | None = None
    prompts: dict[str, str | None] = dataclasses.field(default_factory=dict)
    default_prompt_name: Any = None
    similarity_fn_name: Similarity = "cosine"
    truncate_dim: Count | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseFields(Checked):
    """The config of a Dense module."""

    in_features: Any = None
    out_features: Count | None = None
    bias: bool = True
    activation_function: str | None = None
    use_residual: bool = False
    module_input_name: Literal["sentence_embedding"] | None = None
    module_output_name: Literal["sentence_embedding"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LayerNorm(Checked):
    dimension: Any = None


def parsed(kind: type[Fields], file: Path, content: Mapping[str, Any], strict: bool) -> Fields:
    """Reads the content of a file; `strict`: fields that `kind` lacks are refused if they are set.

    sentence-transformers itself refuses them in the settings of these modules.
    """
    values = {name: value for name, value in content.items() if value not in (None, "", [], {})}
    if strict:
        _refuse_others(file, values, [field.name for field in dataclasses.fields(kind)])  # type: ignore[arg-type]
    try:
        return read_fields(values, kind)
    except ValueError as error:
        raise ValueError(
            f"{file}: {error} Correct it, or give --pooling, with which it is not read."
        ) from error


def _refuse_others(file: Path, content: Mapping[str, Any], known: Collection[str]) -> None:
    for name, value in content.items():
        if name not in known and value not in (None, {}):
            raise wrong(file, content, name, "which bertjax does not follow")


def read_sentence_modules(directory: Path) -> SentenceModules | None:
    """Reads the modules of sentence-transformers in a model directory; None if it has none.

    Raises OSError if a file cannot be read, and ValueError if one is damaged, or modules, their
    weights or settings are not followed.
    """
    if not (directory / MODULES).is_file():
        return None
    named = modules_of(directory)
    kinds = [kind for kind, _ in named]
    first = ["Transformer", "Pooling"]
    if kinds[:1] == [STATIC]:
        first = [STATIC]
    if kinds[: len(first)] != first or not {*kinds[len(first) :]} <= _TENSORS.keys():
        raise ValueError(
            f"{directory / MODULES} has the modules {brief(', '.join(kinds) or 'none', 80)}, but "
            "bertjax has only Transformer and Pooling, or StaticEmbedding, and, after these, "
            "Dense, LayerNorm and Normalize: give --pooling to embed without them."
        )
    folder = directory / named[0][1]
    if first == [STATIC]:
        settings = TransformerFields()
        pooling = "mean"
        include_prompt = True
        _, size = read_table(folder).shape
    else:
        settings = read_settings(folder)
        pooling, include_prompt = read_pooling(directory / named[1][1] / "config.json")
        size = hidden_size(folder) * len(pooling.split("+"))
    modules, params = _read_modules(directory, named[len(first) :], size)
    count = len(modules)
    while modules and modules[-1][1].kind == "Normalize":
        modules.pop()
    model = read_model(directory / MODEL, read_optional(directory / MODEL))
    return SentenceModules(
        pooling=pooling,
        include_prompt=include_prompt,
        after_pooling=tuple(module for _, module in modules),
        folders=tuple(folder for folder, _ in modules),
        params={"modules": nested(params)} if params else {},
        normalize=len(modules) < count,
        max_length=settings.max_seq_length,
        lower_case=bool(settings.do_lower_case),
        prompts={name: text or "" for name, text in model.prompts.items()},
        default_prompt=model.default_prompt_name,
        similarity=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
        query_length=settings.query_length,
        document_length=settings.document_length,
    )


def is_static(directory: Path) -> bool:
    """Whether the model in a directory is a table of embeddings, StaticEmbedding."""
    with contextlib.suppress(OSError, ValueError):
        if (directory / MODULES).is_file():
            return [kind for kind, _ in modules_of(directory)][:1] == [STATIC]
    return False


def read_table(folder: Path) -> np.ndarray:
    """Reads the embeddings of a StaticEmbedding or of Model2Vec, float32 [V, D].

    Raises FileNotFoundError if there is no file of weights, and ValueError if it has none.
    """
    file = weights_file(folder)
    tensors = open_weights([file])
    if "embedding.weight" in tensors:
        return np.asarray(tensors["embedding.weight"], np.float32)
    if "embeddings" not in tensors:
        raise ValueError(
            f"{file} has the tensors {brief(', '.join(tensors), 80)}, but static embeddings are "
            f"embedding.weight or, of Model2Vec, embeddings: {REMEDY}."
        )
    table = np.asarray(tensors["embeddings"], np.float32)
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    if "weights" in tensors:
        table = table * np.asarray(tensors["weights"], np.float32)[:, None]
    return table


def hidden_size(folder: Path) -> int:
    """Returns the size of the hidden states of the transformer in a folder."""
    config = read_optional(folder / "config.json")
    return config.get("hidden_size") or config.get("dim") or BertConfig.hidden_size


def read_settings(
    folder: Path,
    kind: type[TransformerFields] = TransformerFields,
    defaults: Mapping[str, Any] | None = None,
    texts: Mapping[str, Any] = _TEXTS,
) -> Any:
    """Reads the settings of the transformer in a folder, which has `defaults` for missing ones.

    `texts` is the only value of `modality_config` that is followed.
    """
    names = [name for name in SETTINGS if read_optional(folder / name)]
    file = folder / [*names, SETTINGS[0]][0]
    content = {**(defaults or {}), **read_optional(file)}
    settings = parsed(kind, file, content, strict=True)
    if settings.modality_config not in (None, texts):
        raise wrong(file, content, "modality_config", "which bertjax does not follow")
    return settings


def read_model(file: Path, content: Mapping[str, Any], kind: type[Any] = ModelFields) -> Any:
    """Reads the prompts, similarity and dimensions of a model, `content` of `file`."""
    model = parsed(kind, file, content, strict=False)
    prompts = {**_NO_PROMPTS, **model.prompts}
    if model.default_prompt_name not in (None, *prompts):
        known = f"but only the prompts {listed(sorted(prompts))}"
        raise wrong(file, content, "default_prompt_name", known)
    return dataclasses.replace(model, prompts=prompts)


def wrong(file: Path, content: Mapping[str, Any], name: str, why: str) -> ValueError:
    """Returns the error that names a field of a file, its value and what is wrong with it."""
    value = brief(repr(content.get(name)), 80)
    return ValueError(f"{file} has {brief(name, 40)}={value}, {why}: give --pooling.")


def _read_modules(
    directory: Path, names: Iterable[tuple[str, str]], size: int
) -> tuple[list[tuple[str, SentenceModule]], dict[str, np.ndarray]]:
    """Reads the modules after a pooling of `size`, (kind, folder) each.

    Returns (folder, module) of those that are not without effect, and {path: parameter}.
    """
    modules = []
    params = {}
    for kind, folder in names:
        file = directory / folder / "config.json"
        if kind == "Normalize":
            if _normalizes(file):
                modules.append((folder, SentenceModule(kind)))
            continue
        module = read_module(file, kind, size)
        params |= read_module_params(directory / folder, module, size, str(len(modules)))
        size = module.out_features or size
        modules.append((folder, module))
    return modules, params


def read_module_params(
    folder: Path, module: SentenceModule, size: int, name: str
) -> dict[str, np.ndarray]:
    """Reads the parameters of a module with inputs of `size`, {path that begins with `name`: x}."""
    params = {}
    for tensor, value in _read_weights(folder, _shapes(module, size)).items():
        params[f"{name}{_TENSORS[module.kind][tensor]}"] = np.ascontiguousarray(value.T)
    return params


def read_module(
    file: Path, kind: str, size: int, dense: type[DenseFields] = DenseFields
) -> SentenceModule:
    """Reads the config of a Dense or a LayerNorm whose input has `size` numbers."""
    content = read_json(file, REMEDY, MAX_BYTES)
    if kind == "Dense":
        inputs = "in_features"
        parsed(dense, file, content, strict=False)
    else:
        inputs = "dimension"
        parsed(_LayerNorm, file, content, strict=True)
    fields = {name: content[name] for name in SentenceModule._fields[1:] if name in content}
    module = SentenceModule(kind, **fields)
    if activation(module.activation_function) is None:
        known = f"but bertjax has only {', '.join(ACTIVATIONS)} of torch.nn"
        raise wrong(file, content, "activation_function", known)
    if content.get(inputs) != size:
        raise wrong(file, content, inputs, f"but its input has {size} numbers")
    return module


def _shapes(module: SentenceModule, size: int) -> dict[str, tuple[int, ...]]:
    """Returns {PyTorch name: shape} of the parameters of a module with inputs of `size`."""
    if module.kind == "LayerNorm":
        return dict.fromkeys(_TENSORS[module.kind], (size,))
    features = module.out_features
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (features, size)}
    if module.bias:
        shapes["linear.bias"] = (features,)
    if module.use_residual and features != size:
        shapes["residual.weight"] = (features, size)
    return shapes


def weights_file(folder: Path) -> Path:
    """Returns the file of weights in a folder; raises FileNotFoundError if there is none."""
    for name in (SAFETENSORS, BIN):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{folder} has no {SAFETENSORS} or {BIN}: {REMEDY}.")


def _read_weights(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    file = weights_file(folder)
    tensors = open_weights([file])
    stored = {name: tensors[name].shape for name in tensors}
    if stored != shapes:
        raise ValueError(
            f"{file} has the tensors {brief(stored, 120)}, but its config.json asks for {shapes}: "
            f"{REMEDY}."
        )
    return {name: np.asarray(tensors[name], np.float32) for name in shapes}


def _normalizes(file: Path) -> bool:
    """Whether a Normalize normalises embeddings of texts, and not something else, or nothing."""
    config = read_optional(file)
    read = config.get("module_input_name", _EMBEDDING)
    written = config.get("module_output_name")
    if written is None:
        written = read
    are_names = isinstance(read, str) and isinstance(written, str)
    others = ("token_embeddings", "attention_mask", "input_ids")
    if not are_names or (written == _EMBEDDING and read in others):
        raise wrong(file, config, "module_input_name", "which bertjax does not follow")
    return read == written == _EMBEDDING


def modules_of(directory: Path) -> list[tuple[str, str]]:
    """Returns (class, folder) of each module; the class of another library has its full name."""
    modules = []
    for index, module in enumerate(read_json(directory / MODULES, REMEDY, MAX_BYTES, list)):
        fields = module if isinstance(module, dict) else {}
        kind, folder = _named(fields.get("type"), fields.get("path"), directory / MODULES)
        if index and not folder:
            folder = f"{index}_{kind}"
        modules.append((kind, folder))
    return modules


def _named(kind: Any, path: Any, file: Path) -> tuple[str, str]:
    """Returns (class, folder) of a module that `file` describes."""
    kind = str(kind)
    if kind.startswith("sentence_transformers."):
        kind = kind.rpartition(".")[2]
    path = str(path or "")
    parts = Path(path).parts
    is_outside = ".." in parts or Path(path).is_absolute()
    if is_outside or len(path) > 60 or "\0" in path:
        raise ValueError(f"{file} names the folder {brief(path, 60)!r}: correct it.")
    return kind, "/".join(parts)


def routes_of(directory: Path) -> dict[str, list[tuple[str, str]]]:
    """Returns {route: (class, folder) of each module} of a Router; {} if there is none."""
    file = directory / ROUTER
    content = read_optional(file)
    types = content.get("types") or {}
    routes = {}
    for route, names in (content.get("structure") or {}).items():
        routes[route] = [_named(types.get(name), name, file) for name in names]
    return routes


def read_optional(file: Path) -> dict[str, Any]:
    """Reads a JSON object; {} if there is no such file."""
    if file.is_file():
        return read_json(file, REMEDY, MAX_BYTES)
    return {}


def read_pooling(file: Path) -> tuple[str, bool]:
    """Returns pooling and include_prompt of `file`, the config of a Pooling module.

    Raises ValueError if the config has an unknown mode, or none.
    """
    config = read_json(file, REMEDY, MAX_BYTES)
    flagged = [mode for mode in get_args(Pooling) if config.get(_FLAGS[mode])]
    modes = config.get("pooling_mode", flagged)
    if not isinstance(modes, list):
        modes = [modes]
    if not modes and config:
        modes = ["mean"]  # as in sentence-transformers
    names = [str(mode) for mode in modes]
    if not names or not {*names} <= _FLAGS.keys():
        raise ValueError(
            f"{file} asks for the pooling {brief(', '.join(names) or 'none', 60)}, but bertjax has "
            f"only {', '.join(_FLAGS)}: give --pooling to embed with one of them."
        )
    sizes = ("word_embedding_dimension", "embedding_dimension")
    known = (*sizes, "include_prompt", "pooling_mode", *_FLAGS.values())
    _refuse_others(file, config, known)
    return "+".join(names), bool(config.get("include_prompt", True))


def transformer_folder(directory: Path) -> Path:
    """Returns the folder of the transformer of `modules.json`; without this file, `directory`."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError, TypeError):
        if (directory / MODULES).is_file():
            kind, folder = modules_of(directory)[0]
            if kind == "Router":
                folder = routes_of(directory).get("document", [(kind, folder)])[0][1]
            return directory / folder
    return directory


def check_first_module(directory: Path) -> None:
    """Raises ValueError if the first module is another one than a transformer, such as
    StaticEmbedding, BoW, WordEmbeddings or Router."""
    if not (directory / MODULES).is_file():
        return
    kinds = [kind for kind, _ in modules_of(directory)]
    if kinds[:1] not in ([], ["Transformer"], [STATIC]):
        raise ValueError(
            f"{directory / MODULES} has the modules {brief(', '.join(kinds), 80)}, but bertjax has "
            "only models whose first one is a Transformer or StaticEmbedding: use "
            "sentence-transformers for it."
        )


def sentence_files(directory: Path) -> dict[str, bytes]:
    """Returns {relative path: content} of the files of sentence-transformers in a model directory.

    They are all files of modules, except those of the transformer's config, weights and tokenizer.
    The path of the transformer becomes "", since a copy has its files beside `modules.json`.
    """
    if not (directory / MODULES).is_file():
        return {}
    root = transformer_folder(directory)
    modules = modules_of(directory)
    files = [directory / MODULES, directory / MODEL, directory / ROUTER]
    files += [root / name for name in SETTINGS]
    for routed in routes_of(directory).values():
        modules += routed
    for name in {name: None for _, name in modules}:
        folder = directory / name
        if folder not in (root, directory):
            files += sorted(folder.rglob("*"))
    contents = {}
    for file in files:
        if file.is_file():
            base = directory
            if file.parent == root:
                base = root
            contents[file.relative_to(base).as_posix()] = file.read_bytes()
    if root == directory:
        return contents
    described = json.loads(contents[MODULES])
    described[0]["path"] = ""
    contents[MODULES] = json.dumps(described, indent=2).encode()
    if ROUTER in contents:
        # The transformer of the copy is beside the file.
        name = json.dumps(root.relative_to(directory).as_posix())
        contents[ROUTER] = contents[ROUTER].replace(name.encode(), b'"."')
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
    model = _first_of(files, MODEL)
    text = _first_of(files, *SETTINGS)
    not_followed = []
    for module in json.loads(files.get(MODULES, b"[]")):
        if isinstance(module, dict):
            module = module.get("type")
        kind = str(module)
        if not re.fullmatch(r"sentence_transformers\.(.*\.)?Transformer", kind):
            not_followed.append(kind)
    length = text.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        not_followed.append("max_seq_length")
    if text.get("do_lower_case") and not lowers:
        not_followed.append("do_lower_case")
    name = model.get("default_prompt_name")
    prompts = model.get("prompts")
    prompt = None
    if isinstance(name, str) and isinstance(prompts, dict):
        prompt = prompts.get(name)
    if name is not None and not isinstance(prompt, str):
        not_followed.append("default_prompt_name")
    if not_followed:
        raise ValueError(
            f"{brief(not_followed[0], 60)} in its files of sentence-transformers is not followed "
            "by bertjax: use the logits, load_pretrained(...)(texts), or delete it there."
        )
    return _activation_of_logits(model, config), length, prompt or ""


def _activation_of_logits(model: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    path = model.get("activation_fn")
    nested = config.get("sentence_transformers")
    if path is None and isinstance(nested, dict):
        path = nested.get("activation_fn")
    if path is None:
        path = config.get("sbert_ce_default_activation_function")
    if path is None:
        return ""
    name = str(path)
    if name.startswith("torch."):
        _, _, name = name.rpartition(".")
    return name


def _first_of(files: Mapping[str, bytes], *names: str) -> dict[str, Any]:
    for name in names:
        if name in files:
            content = json.loads(files[name])
            if not isinstance(content, dict):
                return {}
            return content
    return {}


def files_of_head(
    model: BertWithHead, params: Any, max_length: int, read: Read[SentenceModules | None]
) -> dict[str, str | bytes]:
    """Returns {file name: content} of the files of sentence-transformers for a trained model.

    What the model does not tell is as `read`. The result is {} if the head of the model computes no
    sentence embeddings.
    """
    if not isinstance(model, BertForSentenceEmbedding):
        return {}
    kept = read.result() or SentenceModules()
    modules = [*model.after_pooling]
    if model.normalize:
        modules.append(SentenceModule("Normalize"))
    is_table = model.config.is_static
    if is_table:
        table = [module_row(0, STATIC, "")]
    else:
        table = [module_row(0, "Transformer", ""), module_row(1, "Pooling", "1_Pooling")]
    settings = text_settings(kept, max_length)
    described = described_model(kept)
    if kept.truncate_dim:
        described["truncate_dim"] = kept.truncate_dim
    contents: dict[str, Any] = {MODULES: table, MODEL: described}
    if not is_table:
        contents |= {_POOLING: _pooling_config(model), SETTINGS[0]: settings}
    size = model.config.hidden_size * len(model.pooling.split("+"))
    folders = []
    for index, module in enumerate(modules, len(table)):
        folder = f"{index}_{module.kind}"
        folders.append(folder)
        table.append(module_row(index, module.kind, folder))
        if module.kind != "Normalize":
            contents[f"{folder}/config.json"] = module_config(module, size)
        size = module.out_features or size
    texts = {name: json.dumps(content, indent=2) for name, content in contents.items()}
    return texts | module_weights(model.after_pooling, folders, params)


def text_settings(kept: SentenceModules, max_length: int) -> dict[str, Any]:
    """Returns the settings of a transformer: how texts are truncated and lower-cased."""
    settings: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": kept.lower_case}
    for name in LENGTHS:  # fields that versions of sentence-transformers before 6 do not know
        length = getattr(kept, name)
        if length:
            settings[name] = min(length, max_length)
    return settings


def described_model(kept: SentenceModules) -> dict[str, Any]:
    """Returns the config of a model: its prompts and its similarity."""
    prompts = {}
    for name, prompt in kept.prompts.items():
        if prompt or name not in _NO_PROMPTS:
            prompts[name] = prompt
    return {
        "prompts": prompts,
        "default_prompt_name": kept.default_prompt,
        "similarity_fn_name": kept.similarity,
    }


def module_row(index: int, kind: str, folder: str) -> dict[str, Any]:
    """Returns the entry of a module in `modules.json`."""
    kind = f"sentence_transformers.models.{kind}"
    return {"idx": index, "name": str(index), "path": folder, "type": kind}


def _pooling_config(model: BertForSentenceEmbedding) -> dict[str, Any]:
    modes = model.pooling.split("+")
    config: dict[str, Any] = {"word_embedding_dimension": model.config.hidden_size}
    for index, (mode, flag) in enumerate(_FLAGS.items()):
        if index < 4 or mode in modes:
            config[flag] = mode in modes
    if modes != [mode for mode in get_args(Pooling) if mode in modes]:
        config["pooling_mode"] = modes  # an order that flags do not tell
    if not model.include_prompt:
        config["include_prompt"] = False
    return config


def module_config(module: SentenceModule, size: int) -> dict[str, Any]:
    """Returns the config of a Dense or a LayerNorm with inputs of `size`."""
    if module.kind == "LayerNorm":
        return {"dimension": size}
    config = {"in_features": size, **module._asdict()}
    del config["kind"]
    if not module.use_residual:
        del config["use_residual"]  # which old versions do not know
    return config


def module_weights(
    modules: Sequence[SentenceModule], folders: Sequence[str], params: Mapping[str, Any]
) -> dict[str, bytes]:
    """Returns {path: content} of the safetensors files of modules, from a model's parameters."""
    flat = flattened(params.get("modules", {}))
    files = {}
    for index, (module, folder) in enumerate(zip(modules, folders, strict=False)):
        tensors = {}
        for name, end in _TENSORS[module.kind].items():
            if f"{index}{end}" in flat:
                tensors[name] = np.ascontiguousarray(flat[f"{index}{end}"].T, np.float32)
        if tensors:
            content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
            files[f"{folder}/{SAFETENSORS}"] = content
    return files


def changed_weights(
    read: Read[SentenceModules | None], params: Mapping[str, Any]
) -> dict[str, bytes]:
    """Returns the files of those weights of modules in `params` that are not as `read`."""
    modules = read.value or SentenceModules()
    before = module_weights(modules.after_pooling, modules.folders, modules.params)
    now = module_weights(modules.after_pooling, modules.folders, params)
    return {name: content for name, content in now.items() if content != before[name]}


def with_head_fields(
    model: BertWithHead,
    params: Any,
    read: Read[SentenceModules | None],
    fields: Mapping[str, Any],
) -> tuple[BertWithHead, Any]:
    """Sets fields of a model's head and, for sentence embeddings, pooling and further modules.

    Unless `fields` sets the pooling, both are those of the modules that were `read`, whose
    parameters are added to `params`.
    """
    if isinstance(model, BertForSentenceEmbedding) and "pooling" not in fields:
        modules = read.result() or SentenceModules()
        if modules.tokens is not None:  # they make vectors of tokens
            modules = SentenceModules()
        model = model.clone(
            pooling=modules.pooling,
            after_pooling=modules.after_pooling,
            normalize=modules.normalize,
        )
        params = {**params, **jax.tree.map(np.array, modules.params)}
    if fields:
        model = model.clone(**fields)
    return model, params
