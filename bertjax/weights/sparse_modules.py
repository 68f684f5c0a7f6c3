"""The files of sparse encoders of sentence-transformers: SpladePooling, and static query weights.

`modules.json` lists a masked LM (a Transformer with the task fill-mask, or the older
MLMTransformer) and a SpladePooling, or a Router. The Router's file tells which modules encode
queries, a SparseStaticEmbedding, and which encode documents, a masked LM and a SpladePooling.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.numpy

from bertjax.base.checked import Checked, Count
from bertjax.base.files import brief, read_json
from bertjax.base.lock import scratch_folder
from bertjax.model import BertWithHead
from bertjax.model.heads import BertForSparseEmbedding
from bertjax.tasks.sparse import SparseTask
from bertjax.tokenization import Tokenizer, load_tokenizer
from bertjax.weights import sentence_transformers as files
from bertjax.weights.hf import SAFETENSORS, open_weights

WEIGHT = "query_weights"
# Of a text; a query with static weights has none.
SPECIAL_TOKENS = 2
_KINDS = {"SpladePooling", "MLMTransformer", "SparseAutoEncoder", "SparseStaticEmbedding"}
_LOGITS = {"text": {"method": "forward", "method_output_name": "logits"}}
_POOLING = "1_SpladePooling"
_QUERY = "query_0_SparseStaticEmbedding"
_DOCUMENT = "document_1_SpladePooling"
_MODULES = "sentence_transformers.sparse_encoder.models"


class SparseModules(NamedTuple):
    """What the modules of a SparseEncoder say besides `SentenceModules`.

    Attributes:
        pooling: as `activation`, in `pooled_words`.
        max_active_dims: the number of the highest weights of a text that are kept; None: all.
        default_route: how texts without a role are encoded, as a "query" or a "document".
        query_weights: the static weights of queries, float32 [V]; None: the model encodes queries.
        frozen: whether they are not trained.
        query_tokens: the maximum number of tokens of a query with static weights.
        query_folder: the folder of these weights.
    """

    pooling: str = "max"
    activation: str = "relu"
    max_active_dims: int | None = None
    default_route: str = "document"
    query_weights: np.ndarray | None = None
    frozen: bool = False
    query_tokens: int | None = None
    query_folder: str = _QUERY


# What is followed without such files.
NO_FILES = files.SentenceModules(similarity="dot", sparse=SparseModules())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Transformer(files.TransformerFields):
    transformer_task: Literal["fill-mask"] | None = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Model(files.ModelFields):
    model_type: Literal["SparseEncoder"] | None = None  # type: ignore[assignment]
    similarity_fn_name: files.Similarity = "dot"
    truncate_dim: Any = None  # which sentence-transformers does not follow, either
    max_active_dims: Count | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pooling(Checked):
    pooling_strategy: Literal["max", "sum"] = "max"
    activation_function: Literal["relu", "log1p_relu"] = "relu"
    embedding_dimension: Any = None  # no embedding depends on these fields
    word_embedding_dimension: Any = None
    chunk_size: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Static(Checked):
    frozen: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Router(Checked):
    default_route: Literal["query", "document"] | None = None
    allow_empty_key: bool = True
    route_mappings: Any = None


def reads(directory: Path) -> bool:
    """Whether a model directory says that its model is a sparse encoder."""
    if not (directory / files.MODULES).is_file():
        return False
    modules = files.modules_of(directory)
    for routed in files.routes_of(directory).values():
        modules += routed
    return any(kind in _KINDS for kind, _ in modules)


def read_sparse_modules(directory: Path) -> files.SentenceModules:
    """Reads how a model directory makes sparse embeddings.

    Raises OSError if a file cannot be read, and ValueError if one is damaged, or modules, their
    weights or settings are not followed.
    """
    modules = files.modules_of(directory)
    sparse = SparseModules()
    if [kind for kind, _ in modules] == ["Router"]:
        modules, sparse = _read_router(directory)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
        raise ValueError(
            f"{directory / files.MODULES} has the modules {brief(', '.join(kinds), 80)}, but "
            "bertjax has only sparse encoders of a masked LM and SpladePooling, and a Router with "
            "SparseStaticEmbedding for queries: use sentence-transformers for it."
        )
    (kind, transformer), (_, folder) = modules
    defaults = {}
    if kind == "MLMTransformer":
        defaults = {"transformer_task": "fill-mask"}
    settings = files.read_settings(directory / transformer, _Transformer, defaults, _LOGITS)
    if settings.transformer_task is None:
        raise ValueError(
            f"{directory / transformer} has no transformer_task, so that SpladePooling gets hidden "
            "states instead of the logits of a masked LM: set it to fill-mask there."
        )
    if settings.do_lower_case and sparse.query_weights is not None:
        raise ValueError(
            f"{directory / transformer} has do_lower_case, which does not apply to queries with "
            "static weights: use a tokenizer that lower-cases."
        )
    pooling_file = directory / folder / "config.json"
    pooling = files.parsed(_Pooling, pooling_file, read_json(pooling_file), strict=True)
    file = directory / files.MODEL
    model = files.read_model(file, files.read_optional(file), _Model)
    return files.SentenceModules(
        max_length=settings.max_seq_length,
        lower_case=bool(settings.do_lower_case),
        prompts={name: text or "" for name, text in model.prompts.items()},
        default_prompt=model.default_prompt_name,
        similarity=model.similarity_fn_name,
        query_length=settings.query_length,
        document_length=settings.document_length,
        sparse=sparse._replace(
            pooling=pooling.pooling_strategy,
            activation=pooling.activation_function,
            max_active_dims=model.max_active_dims,
        ),
    )


def _read_router(directory: Path) -> tuple[list[tuple[str, str]], SparseModules]:
    """Returns (kind, folder) of the modules of documents, and what is said of queries."""
    file = directory / files.ROUTER
    content = read_json(file)
    routes = files.routes_of(directory)
    router = files.parsed(_Router, file, content.get("parameters") or {}, strict=True)
    static = routes.get("query", [])
    documents = routes.get("document", [])
    kinds = {route: [kind for kind, _ in modules] for route, modules in routes.items()}
    is_known = {*routes} == {"query", "document"} and not router.route_mappings
    if not is_known or kinds["query"] != ["SparseStaticEmbedding"]:
        raise ValueError(
            f"{file} has the routes {brief(kinds, 160)} with route_mappings="
            f"{router.route_mappings}, but bertjax has only query, a SparseStaticEmbedding, and "
            "document, a masked LM and SpladePooling: use sentence-transformers for it."
        )
    default = router.default_route
    if default is None and router.allow_empty_key:
        default = next(iter(routes))
    if default is None:
        raise ValueError(
            f"{file} has no default_route, so that texts without a role have no embedding: set it "
            "to document there."
        )
    folder = directory / static[0][1]
    config = folder / "config.json"
    settings = files.parsed(_Static, config, files.read_optional(config), strict=True)
    tokenizer = load_tokenizer(folder)
    of_documents = load_tokenizer(directory / documents[0][1]) if documents else tokenizer
    if tokenizer.fingerprint != of_documents.fingerprint:
        raise ValueError(
            f"{folder} has another tokenizer than the documents, whose words would have other "
            "weights: use sentence-transformers for it."
        )
    weights = open_weights([files.weights_file(folder)])
    value = np.asarray(weights["weight"], np.float32)
    if [*weights] != ["weight"] or value.shape != (tokenizer.vocab_size,):
        raise ValueError(
            f"{folder} has the tensors {[*weights]}, and weight {value.shape}: one weight of each "
            f"of the {tokenizer.vocab_size} tokens is expected."
        )
    return documents, SparseModules(
        default_route=default,
        query_weights=value,
        frozen=settings.frozen,
        query_tokens=tokenizer.model_max_length,
        query_folder=static[0][1],
    )


def following_sparse(
    task: SparseTask, modules: files.SentenceModules, model: Any, params: Mapping[str, Any]
) -> tuple[SparseTask, files.SentenceModules]:
    """Makes a task follow the modules of a sparse encoder, and the modules its model.

    Raises ValueError if the similarity of the modules is no product of weights.
    """
    if modules.similarity not in ("dot", "cosine"):
        raise ValueError(
            f"similarity_fn_name={modules.similarity} in {files.MODEL}: bertjax compares sparse "
            "embeddings by dot or cosine; set one of them there."
        )
    sparse: SparseModules = modules.sparse
    weights = params.get(WEIGHT) if model.static_queries else None
    sparse = sparse._replace(
        pooling=model.pooling,
        activation=model.activation,
        query_weights=weights,
        frozen=model.frozen_queries,
    )
    task = dataclasses.replace(
        task, static_queries=model.static_queries, max_active_dims=sparse.max_active_dims
    )
    if model.static_queries and sparse.query_tokens:
        longest = sparse.query_tokens + SPECIAL_TOKENS
        task = dataclasses.replace(task, query_length=int(min(longest, model.config.max_length)))
    return task, modules._replace(sparse=sparse)


def with_sparse_fields(
    model: BertForSparseEmbedding,
    params: Any,
    read: files.Read[files.SentenceModules | None],
    fields: Mapping[str, Any],
) -> tuple[BertForSparseEmbedding, Any]:
    """Sets fields of a model, by default as in the files that were `read`, and its query weights.

    Raises ValueError if the static weights of queries do not fit the vocabulary.
    """
    modules = read.result()
    sparse = SparseModules()
    if modules is not None and modules.sparse is not None:
        sparse = modules.sparse
    own = {"pooling": sparse.pooling, "activation": sparse.activation, **fields}
    own.setdefault("static_queries", sparse.query_weights is not None)
    own.setdefault("frozen_queries", sparse.frozen)
    model = model.clone(**own)
    if not model.static_queries:
        return model, params
    size = model.config.vocab_size
    weights = sparse.query_weights
    if weights is None:
        weights = np.ones(size, np.float32)
    if len(weights) != size:
        raise ValueError(
            f"{len(weights)} static weights of queries do not fit the {size} words of the model, "
            "which sentence-transformers could not compare either: let the model encode queries."
        )
    return model, {**params, WEIGHT: np.array(weights)}


def sparse_files(
    model: BertWithHead,
    params: Any,
    max_length: int,
    read: files.Read[files.SentenceModules | None],
    tokenizer: Tokenizer,
) -> dict[str, str | bytes]:
    """Returns {file name: content} of the files of sentence-transformers for a sparse encoder.

    What the model does not tell is as `read`. The result is {} for a model of another kind.
    """
    if not isinstance(model, BertForSparseEmbedding):
        return {}
    kept = read.result() or NO_FILES
    settings = {
        "transformer_task": "fill-mask",
        "modality_config": _LOGITS,
        "module_output_name": "token_embeddings",
        **files.text_settings(kept, max_length),
    }
    described = {"model_type": "SparseEncoder", **files.described_model(kept)}
    if kept.sparse.max_active_dims:
        described["max_active_dims"] = kept.sparse.max_active_dims
    pooling = {"pooling_strategy": model.pooling, "activation_function": model.activation}
    contents: dict[str, Any] = {files.SETTINGS[0]: settings, files.MODEL: described}
    weights: dict[str, bytes] = {}
    if model.static_queries:
        transformer = "."  # where transformers finds it, too
        types = {
            _QUERY: f"{_MODULES}.SparseStaticEmbedding",
            transformer: "sentence_transformers.models.Transformer",
            _DOCUMENT: f"{_MODULES}.SpladePooling",
        }
        contents[files.ROUTER] = {
            "types": types,
            "structure": {"query": [_QUERY], "document": [transformer, _DOCUMENT]},
            "parameters": {"default_route": kept.sparse.default_route, "allow_empty_key": True},
        }
        contents[files.MODULES] = [files.module_row(0, "Router", "")]
        contents[f"{_QUERY}/config.json"] = {"frozen": model.frozen_queries}
        contents[f"{_DOCUMENT}/config.json"] = pooling
        weights = {f"{_QUERY}/{SAFETENSORS}": _weights_file(params[WEIGHT])}
        weights |= _tokenizer_files(tokenizer, max_length)
    else:
        splade = {**files.module_row(1, "", _POOLING), "type": f"{_MODULES}.SpladePooling"}
        contents[files.MODULES] = [files.module_row(0, "Transformer", ""), splade]
        contents[f"{_POOLING}/config.json"] = pooling
    texts = {name: json.dumps(content, indent=2) for name, content in contents.items()}
    return texts | weights


def _weights_file(weights: Any) -> bytes:
    return safetensors.numpy.save(
        {"weight": np.asarray(weights, np.float32)}, metadata={"format": "pt"}
    )


def _tokenizer_files(tokenizer: Tokenizer, max_length: int) -> dict[str, bytes]:
    with scratch_folder() as scratch:
        folder = scratch / "tokenizer"
        tokenizer.save(folder, max_length - SPECIAL_TOKENS)
        return {f"{_QUERY}/{file.name}": file.read_bytes() for file in folder.iterdir()}


def changed_query_weights(
    read: files.Read[files.SentenceModules | None], params: Mapping[str, Any]
) -> dict[str, bytes]:
    """Returns the file of the static weights of queries, if they are not as `read`."""
    if read.value is None or WEIGHT not in params:
        return {}
    sparse: Any = read.value.sparse
    if np.array_equal(np.asarray(params[WEIGHT]), sparse.query_weights):
        return {}
    return {f"{sparse.query_folder}/{SAFETENSORS}": _weights_file(params[WEIGHT])}
