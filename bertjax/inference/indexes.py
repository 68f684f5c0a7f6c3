"""Chooses how texts are encoded, stored and searched: by the kind of a model."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bertjax.inference.embedder import Embedder
from bertjax.inference.late_interaction import (
    has_token_vectors,
    token_index_of,
    token_options,
)
from bertjax.inference.retrieval import DenseIndex, OpenIndex, embedders
from bertjax.inference.sparse import SparseEmbedder, SparseIndex, sparse_embedders
from bertjax.tasks.sparse import Activity
from bertjax.weights import LoadedModel


class IndexKind(NamedTuple):
    """How a model searches.

    Attributes:
        encoders: what encodes texts of the roles "query" and "document". Each has `settings`, which
            determine the result besides model and text, and calls `after_batch`.
        open: opens an index of passages.
        metrics: returns {metric: value} of the texts that were encoded, besides those of rankings.
    """

    encoders: Mapping[str, Any]
    open: OpenIndex
    metrics: Callable[[], dict[str, float]] = dict


# Options of `embed` and `search` that say how hidden states become one vector.
_OF_VECTORS = {"normalize": None, "layers": (-1,), "truncate_dim": None, "pool_factor": None}
_OF_OTHERS = {"max_active_dims": None, "pool_factor": None}


def _is_sparse(loaded: LoadedModel, options: dict[str, Any]) -> bool:
    """Whether a model makes sparse embeddings; with a pooling, it makes others."""
    modules = loaded.source.usage.modules.value
    return options.get("pooling") is None and modules is not None and modules.sparse is not None


def _fitting(loaded: LoadedModel, options: dict[str, Any], idle: Mapping[str, Any]) -> None:
    """Removes the options that have no effect; raises ValueError if one is set."""
    for name, default in idle.items():
        value = options.pop(name, default)
        if value is not default and value != default:
            raise ValueError(
                f"{name}={value} has no effect on the embeddings of {loaded.source.where}: leave "
                "it out."
            )


def encoder_of(loaded: LoadedModel, *, prompt: str | None = None, **options: Any) -> Any:
    """Returns what encodes texts by a loaded model: an `Embedder`, or a `SparseEmbedder`.

    `options` are those of the two. Raises ValueError if one does not fit the model.
    """
    if _is_sparse(loaded, options):
        options.pop("pooling", None)
        _fitting(loaded, options, _OF_VECTORS)
        return SparseEmbedder(loaded, prompt=prompt, **options)
    _fitting(loaded, options, _OF_OTHERS)
    return Embedder(loaded, prompt=prompt, **options)


def index_of(loaded: LoadedModel, *, cosine: bool = False, **options: Any) -> IndexKind:
    """Returns how a loaded model searches.

    Args:
        loaded: the model, whose files tell its kind.
        cosine: whether models with one vector per text compare by cosines, whatever their files
            say.
        options: as of `encoder_of`, and `max_length` as of `embedders`; None: as the files say.

    Raises:
        ValueError: an option does not fit the model, or it has another similarity than cosines and
            dot products.
    """
    if has_token_vectors(loaded, options.get("pooling")):
        return IndexKind(*token_index_of(loaded, **token_options(options)))
    embed: Mapping[str, Any]
    is_sparse = _is_sparse(loaded, options)
    if is_sparse:
        options.pop("pooling", None)
        _fitting(loaded, options, _OF_VECTORS)
        embed = sparse_embedders(loaded, **options)
    else:
        _fitting(loaded, options, _OF_OTHERS)
        if cosine:
            options["normalize"] = True
        embed = embedders(loaded, **options)
    similarity = embed["query"].similarity
    if cosine and not is_sparse:
        similarity = "cosine"
    if similarity not in ("cosine", "dot"):
        raise ValueError(
            f"{loaded.source.where} has similarity_fn_name={similarity}: give --pooling."
        )
    opened = SparseIndex if is_sparse else DenseIndex
    opener = functools.partial(opened, embed, cosine=similarity == "cosine")
    if is_sparse:
        return IndexKind(embed, opener, functools.partial(_activity, embed))
    return IndexKind(embed, opener)


def _activity(embed: Mapping[str, Any]) -> dict[str, float]:
    activity = Activity()
    for embedder in embed.values():
        activity.merge(embedder.activity)
    return activity.metrics()
