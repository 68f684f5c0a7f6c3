"""The files of models with one vector per token: of sentence-transformers, PyLate and Stanford.

`modules.json` of a MultiVectorEncoder lists a Transformer, then Dense and Normalize that make the
vectors, a MultiVectorMask, which tells which tokens have one, and perhaps HierarchicalTokenPooling.
PyLate's directories have the settings of the mask and of queries in the config of the model, and
Stanford's `HF_ColBERT` has them in `artifact.metadata`. Both are read as sentence-transformers
reads them.
"""

import dataclasses
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
from tokenizers import AddedToken

from bertjax.base.checked import AtLeast0, Checked, Count, read_fields
from bertjax.model import BertConfig, BertWithHead
from bertjax.model.late_interaction import (
    IDENTITY,
    NORMALIZE,
    BertForLateInteraction,
    TokenMask,
    projection_to,
)
from bertjax.model.recipe import nested
from bertjax.model.sentence_embedding import SentenceModule
from bertjax.tasks.late_interaction import (
    MAXSIM,
    MEAN_MAXSIM,
    Expansion,
    LateInteractionOptions,
    TokenPooling,
)
from bertjax.tokenization import Tokenizer
from bertjax.weights import sentence_transformers as files
from bertjax.weights.families import family_of
from bertjax.weights.hf import open_weights

METADATA = "artifact.metadata"
# Dimensions of the vectors that a new layer makes.
VECTOR_SIZE = 128
_ARCHITECTURE = "HF_ColBERT"
_MODEL_TYPES = ("MultiVectorEncoder", "ColBERT")
_TOKENS = "token_embeddings"
_LINEAR = "linear.weight"
PUNCTUATION = tuple(string.punctuation)
_FOLLOWED = ("Dense", "Normalize", "MultiVectorMask", "HierarchicalTokenPooling")
Roles = tuple[str, ...]


class TokenModules(NamedTuple):
    """What the modules of a MultiVectorEncoder say besides `SentenceModules`.

    Attributes:
        expansion: the tokens that fill up queries; None: none do.
        skipped: the tokens without a vector, in texts of the roles `skipped_in`.
        kept: the ids of the only tokens of documents with a vector; empty: all.
        has_mask: whether there is a MultiVectorMask.
        pooling: how vectors are pooled; None: they are not.
        markers: texts before queries or documents that are one token, if there is such a token.
    """

    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()
    skipped_in: Roles = ("document",)
    kept: tuple[int, ...] = ()
    has_mask: bool = True
    pooling: TokenPooling | None = None
    markers: tuple[str, ...] = ()

    def mask(self, tokenizer: Tokenizer) -> TokenMask:
        """Returns which tokens have a vector; words that are no token are left out."""
        known = [tokenizer.vocab[word] for word in self.skipped if word in tokenizer.vocab]
        expansion = self.expansion is not None and (self.has_mask or self.expansion.attend)
        return TokenMask(tuple(known), self.skipped_in, self.kept, expansion)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Transformer(files.TransformerFields):
    query_expansion: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Model(files.ModelFields):
    model_type: Literal["MultiVectorEncoder", "ColBERT"] | None = None  # type: ignore[assignment]
    similarity_fn_name: Any = None  # unknown ones are maxsim there, too


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Expansion(Checked):
    strategy: Literal["fixed", "min"]
    length: Count
    attend: bool = False
    token: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Dense(files.DenseFields):
    module_input_name: Literal["token_embeddings"] | None = None  # type: ignore[assignment]
    module_output_name: Literal["token_embeddings"] | None = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mask(Checked):
    skiplist_words: tuple[str, ...] = ()
    skiplist_tasks: str | tuple[str, ...] = ("document",)
    keep_only_token_ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pooling(Checked):
    pool_factor: Annotated[float, "[1, inf)"] = 1.0
    num_protected_tokens: AtLeast0 = 1
    normalize_embeddings: bool = False  # of files that lack it
    tasks: str | tuple[str, ...] = ("document",)


def reads(directory: Path) -> bool:
    """Whether a model directory says that its model has one vector per token."""
    if (directory / files.MODULES).is_file():
        return files.read_optional(directory / files.MODEL).get("model_type") in _MODEL_TYPES
    return _is_stanford(files.read_optional(directory / "config.json"))


def _is_stanford(config: Mapping[str, Any]) -> bool:
    architectures = config.get("architectures")
    return isinstance(architectures, list) and _ARCHITECTURE in architectures


def read_token_modules(directory: Path) -> files.SentenceModules:
    """Reads how a model directory makes one vector per token.

    Raises OSError if a file cannot be read, and ValueError if one is damaged, or modules, their
    weights or settings are not followed.
    """
    if not (directory / files.MODULES).is_file():
        return _read_stanford(directory)
    (first, folder), *others = files.modules_of(directory)
    folders = []
    kinds = []
    for kind, name in others:
        if kind == "pylate.models.Dense.Dense":
            kind = "Dense"
        folders.append((kind, name))
        kinds.append(kind)
    follows = first == "Transformer" and {*kinds} <= {*_FOLLOWED}
    has_one_mask = kinds.count("MultiVectorMask") < 2
    pools_last = "HierarchicalTokenPooling" not in kinds[:-1]
    if not follows or not has_one_mask or not pools_last:
        raise ValueError(
            f"{directory / files.MODULES} has the modules {', '.join([first, *kinds])}, but "
            "bertjax follows only Transformer, Dense, Normalize, one MultiVectorMask and, in the "
            "end, one HierarchicalTokenPooling: use sentence-transformers for it."
        )
    described = files.read_optional(directory / files.MODEL)
    model = files.read_model(directory / files.MODEL, described, _Model)
    legacy = _of_pylate(described)
    settings = files.read_settings(directory / folder, _Transformer, legacy)
    tokens = TokenModules(has_mask=False)
    if described.get("model_type") == "ColBERT":
        tokens = TokenModules(skipped=PUNCTUATION)
        words = described.get("skiplist_words")
        if words is not None:
            tokens = TokenModules(skipped=tuple(words))
        folders.append(("Normalize", ""))
    projection = []
    params: dict[str, np.ndarray] = {}
    named = []
    size = files.hidden_size(directory / folder)
    for kind, name in folders:
        file = directory / name / "config.json"
        if kind == "MultiVectorMask":
            mask = _fields(_Mask, file, "skiplist_tasks")
            tokens = tokens._replace(
                skipped=mask.skiplist_words,
                skipped_in=_roles(mask.skiplist_tasks),
                kept=mask.keep_only_token_ids,
                has_mask=True,
            )
        elif kind == "HierarchicalTokenPooling":
            fields = _fields(_Pooling, file, "tasks")
            pooling = TokenPooling(
                fields.pool_factor,
                fields.num_protected_tokens,
                fields.normalize_embeddings,
                _roles(fields.tasks),
            )
            tokens = tokens._replace(pooling=pooling)
        elif kind == "Dense":
            module = files.read_module(file, kind, size, _Dense)
            path = str(len(projection))
            params |= files.read_module_params(directory / name, module, size, path)
            size = module.out_features
            projection.append(module)
            named.append(name)
        elif not name or _normalizes(file):
            projection.append(NORMALIZE)
            named.append(name)
    prompts = {name: text or "" for name, text in model.prompts.items()}
    markers = []
    for role in ("query", "document"):
        prefix = described.get(f"{role}_prefix")
        if prefix:
            markers.append(prefix)
            prompts[role] = prefix + prompts[role].removeprefix(prefix)
    expansion = None
    if settings.query_expansion is not None:
        expansion = _read_expansion(settings.query_expansion, directory)
        if expansion.length > (settings.query_length or expansion.length):
            raise ValueError(
                f"{directory}: query_length={settings.query_length} is below the length of "
                f"query_expansion={settings.query_expansion}: correct one of them."
            )
    similarity = model.similarity_fn_name
    return files.SentenceModules(
        after_pooling=tuple(projection),
        folders=tuple(named),
        params={"modules": nested(params)} if params else {},
        prompts=prompts,
        default_prompt=model.default_prompt_name,
        similarity=similarity if similarity == MEAN_MAXSIM else MAXSIM,
        max_length=settings.max_seq_length,
        lower_case=bool(settings.do_lower_case),
        query_length=settings.query_length,
        document_length=settings.document_length,
        tokens=tokens._replace(expansion=expansion, markers=tuple(markers)),
    )


def _fields(kind: type[Any], file: Path, roles: str) -> Any:
    """Reads the config of a module; an empty list of `roles` is none, and not the default."""
    content = files.read_optional(file)
    fields = files.parsed(kind, file, content, strict=True)
    if content.get(roles) == []:
        fields = dataclasses.replace(fields, **{roles: ()})
    return fields


def _roles(tasks: str | tuple[str, ...]) -> Roles:
    if isinstance(tasks, str):
        return (tasks,)
    return tasks


def _read_expansion(content: Any, directory: Path) -> Expansion:
    known = ("strategy", "length", "attend", "token")
    if not isinstance(content, dict) or not {*content} <= {*known}:
        raise ValueError(
            f"{directory} has query_expansion={content}: bertjax follows only {known}."
        )
    try:
        fields = read_fields(content, _Expansion)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{directory} has query_expansion={content}: {error}") from error
    return Expansion(fields.strategy, fields.length, fields.attend, fields.token)


def _normalizes(file: Path) -> bool:
    """Whether a Normalize normalises the vectors of tokens, or something that does not exist."""
    config = files.read_optional(file)
    read = config.get("module_input_name", "sentence_embedding")
    written = config.get("module_output_name")
    if read != "sentence_embedding" and (read, written or read) != (_TOKENS, _TOKENS):
        raise files.wrong(file, config, "module_input_name", "which bertjax does not follow")
    return read == _TOKENS


def _of_pylate(described: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a Transformer that PyLate writes into the config of the model."""
    settings = {}
    for name in ("query_length", "document_length"):
        if described.get(name) is not None:
            settings[name] = described[name]
    if "query_expansion" in described:
        settings["query_expansion"] = described["query_expansion"]
        return settings
    markers = ("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens")
    prefixes = ("query_prefix", "document_prefix", "skiplist_words")
    lengths = ("query_length", "document_length")
    if {*markers, *prefixes, *lengths}.isdisjoint(described):
        return settings
    if described.get("do_query_expansion") is not False:
        attend = described.get("attend_to_mask_tokens")
        attend = described.get("attend_to_expansion_tokens", attend)
        length = settings.pop("query_length", None) or 32
        settings["query_expansion"] = _fixed(length, attend)
    return settings


def _fixed(length: Any, attend: Any) -> dict[str, Any]:
    return {"strategy": "fixed", "length": length, "attend": bool(attend)}


def _read_stanford(directory: Path) -> files.SentenceModules:
    """Reads an `HF_ColBERT`, whose linear layer is in the file of the weights of the encoder."""
    content = files.read_optional(directory / METADATA)
    weights = files.weights_file(directory)
    linear = np.asarray(open_weights([weights])[_LINEAR], np.float32)
    query = f"{content.get('query_token_id') or '[unused0]'} "
    document = f"{content.get('doc_token_id') or '[unused1]'} "
    expansion = _fixed(content.get("query_maxlen") or 32, content.get("attend_to_mask_tokens"))
    dense = SentenceModule("Dense", len(linear), bias=False, activation_function=IDENTITY)
    return files.SentenceModules(
        after_pooling=(dense, NORMALIZE),
        folders=("1_Dense", "2_Normalize"),
        params={"modules": {"0": {"kernel": np.ascontiguousarray(linear.T)}}},
        prompts={"query": query, "document": document},
        similarity=MAXSIM,
        document_length=content.get("doc_maxlen"),
        tokens=TokenModules(
            expansion=_read_expansion(expansion, directory),
            skipped=PUNCTUATION if content.get("mask_punctuation", True) else (),
            markers=(query, document),
        ),
    )


def with_token_modules(
    model: BertForLateInteraction,
    read: files.Read[files.SentenceModules | None],
    tokenizer: Tokenizer,
    fields: Mapping[str, Any],
) -> tuple[BertForLateInteraction, dict[str, Any]]:
    """Sets fields of a model, by default as in the files that were `read`.

    Returns the model, and those of its parameters that were read with the files. With a
    `vector_size` in `fields`, the vectors are made by a new layer.
    """
    modules = read.result()
    own = {}
    size = fields.get("vector_size")
    if modules is None or modules.tokens is None:
        size = size or VECTOR_SIZE
    else:
        if tokenizer is None:
            raise FileNotFoundError("The model has one vector per token: copy its tokenizer, too.")
        add_markers(tokenizer, modules.tokens.markers)
        model = model.clone(**fields_of(modules, tokenizer))
        own = jax.tree.map(np.array, dict(modules.params))
    if size is not None:
        model = model.clone(projection=projection_to(size))
        own = {}
    return model, own


def with_options(
    read: files.Read[files.SentenceModules | None],
    options: LateInteractionOptions,
    model: BertForLateInteraction,
) -> files.SentenceModules:
    """Returns the modules of a model, which are as `read` where the options set nothing.

    Those of a model that had no vectors of tokens before are those of ColBERT.
    """
    modules = read.result() or files.SentenceModules()
    tokens: TokenModules = modules.tokens
    if tokens is None:
        attends = model.config.model_type == "deberta-v2"
        tokens = TokenModules(Expansion("fixed", 32, attends), PUNCTUATION)
        modules = modules._replace(similarity=MAXSIM, truncate_dim=None)
    expansion = tokens.expansion
    query_length = modules.query_length
    if options.query_expansion == "none":
        expansion = None
    elif options.query_expansion is not None:
        before = expansion or Expansion("", 32)
        expansion = before._replace(strategy=options.query_expansion)
        tokens = tokens._replace(has_mask=True)
    if expansion is None:
        if options.attend_expansion is not None:
            raise ValueError(
                f"attend_expansion={options.attend_expansion} has no effect, since nothing fills "
                "up queries: give --query_expansion."
            )
        query_length = options.query_length or query_length
    else:
        expansion = expansion._replace(length=options.query_length or expansion.length)
        if options.attend_expansion is not None:
            expansion = expansion._replace(attend=options.attend_expansion)
        if expansion.strategy == "fixed" or (query_length or 0) < expansion.length:
            query_length = None
    if options.skip_punctuation is not None:
        skipped = PUNCTUATION if options.skip_punctuation else ()
        tokens = tokens._replace(skipped=skipped, has_mask=True)
    return modules._replace(
        similarity=options.similarity or modules.similarity,
        after_pooling=model.projection,
        normalize=False,
        query_length=query_length,
        document_length=options.document_length or modules.document_length,
        tokens=tokens._replace(expansion=expansion),
    )


def files_of_head(
    model: BertWithHead,
    params: Any,
    max_length: int,
    read: files.Read[files.SentenceModules | None],
) -> dict[str, str | bytes]:
    """Returns {file name: content} of the files of sentence-transformers for a trained model.

    As `sentence_transformers.files_of_head`, also for models with one vector per token.
    """
    if not isinstance(model, BertForLateInteraction):
        return files.files_of_head(model, params, max_length, read)
    modules = with_options(read, LateInteractionOptions(), model)
    tokens: TokenModules = modules.tokens
    settings = files.text_settings(modules, max_length)
    if tokens.expansion is not None:
        settings["query_expansion"] = tokens.expansion._asdict()
    described = {
        "model_type": "MultiVectorEncoder",
        "prompts": dict(modules.prompts),
        "default_prompt_name": modules.default_prompt,
        "similarity_fn_name": modules.similarity,
    }
    table = [_row(0, "base.modules.transformer.Transformer", "")]
    contents: dict[str, Any] = {
        files.MODULES: table,
        files.SETTINGS[0]: settings,
        files.MODEL: described,
    }
    folders = []

    def add(path: str, config: dict[str, Any]) -> None:
        folder = f"{len(table)}_{path.rpartition('.')[2]}"
        table.append(_row(len(table), path, folder))
        contents[f"{folder}/config.json"] = config
        folders.append(folder)

    size = model.config.hidden_size
    for module in model.projection:
        config = {"module_input_name": _TOKENS, "module_output_name": _TOKENS}
        if module.kind == "Dense":
            config |= files.module_config(module, size)
            size = module.out_features
        add(f"base.modules.{module.kind.lower()}.{module.kind}", config)
    weights = files.module_weights(model.projection, folders, params)
    if tokens.has_mask:
        path = "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
        mask = _Mask(
            skiplist_words=tokens.skipped,
            skiplist_tasks=tokens.skipped_in,
            keep_only_token_ids=tokens.kept,
        )
        add(path, dataclasses.asdict(mask))
    if tokens.pooling is not None:
        path = "multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling"
        pooling = _Pooling(
            pool_factor=tokens.pooling.factor,
            num_protected_tokens=tokens.pooling.protected,
            normalize_embeddings=tokens.pooling.normalize,
            tasks=tokens.pooling.roles,
        )
        add(path, dataclasses.asdict(pooling))
    texts = {name: json.dumps(content, indent=2) for name, content in contents.items()}
    return texts | weights


def _row(index: int, path: str, folder: str) -> dict[str, Any]:
    return {
        "idx": index,
        "name": str(index),
        "path": folder,
        "type": f"sentence_transformers.{path}",
    }


def fields_of(modules: files.SentenceModules, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the fields of a `BertForLateInteraction` as modules say."""
    tokens: TokenModules = modules.tokens
    return {
        "projection": modules.after_pooling,
        "mask": tokens.mask(tokenizer),
        "attend_expansion": tokens.expansion is None or tokens.expansion.attend,
        "mean": modules.similarity == MEAN_MAXSIM,
    }


def check_expansion(expansion: Expansion | None, config: BertConfig, tokenizer: Tokenizer) -> None:
    """Raises ValueError if queries cannot be filled up as `expansion` says.

    What cannot be followed is how transformers computes tokens that attend to no token.
    """
    if expansion is None:
        return
    if expansion.token is not None and expansion.token not in tokenizer.vocab:
        raise ValueError(f"token={expansion.token!r} of query_expansion is not in the vocabulary.")
    fills_with_padding = expansion.token_id(tokenizer) == config.pad_token_id
    if fills_with_padding and family_of(config).positions_after_padding:
        raise ValueError(
            f"token={expansion.token!r} of query_expansion is the padding of a {config.model_type} "
            "model, which has no positions, and bertjax does not follow that: choose another."
        )
    if expansion.length > config.max_length:
        raise ValueError(
            f"query_expansion has the length {expansion.length}, but the model reads at most "
            f"{config.max_length} tokens: give a shorter --query_length."
        )
    window = config.local_attention
    is_beyond = window is not None and expansion.length - 2 > window // 2
    if not expansion.attend and (config.model_type == "deberta-v2" or is_beyond):
        raise ValueError(
            f"query_expansion has attend=False, which bertjax does not follow in a "
            f"{config.model_type} model with {expansion.length} tokens per query: give "
            "--attend_expansion."
        )


def add_markers(tokenizer: Tokenizer, markers: Sequence[str]) -> None:
    """Makes the tokenizer find the markers before texts that are tokens of its vocabulary."""
    for marker in markers:
        for token in (marker, *marker.split(maxsplit=1)[:1]):
            if token not in tokenizer.vocab:
                continue
            _, *ids, _ = tokenizer.encode_prompt(token)[0]
            if ids != [tokenizer.vocab[token]]:
                tokenizer.add_tokens([AddedToken(token, normalized=False, special=True)])
            break


def without_linear(
    tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> Mapping[str, np.ndarray]:
    """Returns the tensors of the encoder, without the linear layer of an `HF_ColBERT`."""
    if not _is_stanford(config):
        return tensors
    return {name: tensors[name] for name in tensors if name != _LINEAR}
