"""Chooses how texts are encoded, stored and searched: by the kind of a model."""

import functools
from collections.abc import Mapping
from typing import Any

from bertjax.inference.embedder import Embedder, Encoder
from bertjax.inference.late_interaction import TokenEmbedder, TokenIndex
from bertjax.inference.retrieval import DenseIndex, IndexKind, embedders
from bertjax.inference.sparse import SparseEmbedder, SparseIndex
from bertjax.tasks.late_interaction import MEAN_MAXSIM
from bertjax.tasks.sparse import Activity
from bertjax.weights import LoadedModel
from bertjax.weights.sentence_transformers import SentenceModules

_KINDS = {
    "sentence_embedding": Embedder,
    "sparse": SparseEmbedder,
    "late_interaction": TokenEmbedder,
}
# Options that have no effect on a kind of encoder.
_IDLE = {
    Embedder: ("max_active_dims", "pool_factor"),
    SparseEmbedder: ("pooling", "normalize", "layers", "truncate_dim", "pool_factor"),
    TokenEmbedder: ("pooling", "normalize", "layers", "truncate_dim", "max_active_dims"),
}


def encoder_kind(loaded: LoadedModel, pooling: str | None) -> type[Encoder]:
    """Returns what encodes texts by a loaded model, whose files say so; with a `pooling`, which
    ignores them, it is an `Embedder`.

    Raises OSError or ValueError if these files cannot be read or followed.
    """
    if pooling is not None:
        return Embedder
    modules = loaded.source.usage.modules.result() or SentenceModules()
    return _KINDS[modules.head]


def _fitting(loaded: LoadedModel, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the kind of encoder, and its options; raises ValueError if another one is set."""
    kind = encoder_kind(loaded, options.get("pooling"))
    fitting = dict(options)
    for name in _IDLE[kind]:
        value = fitting.pop(name, None)
        if value not in (None, (-1,)):
            raise ValueError(
                f"{name}={value} has no effect on the embeddings of {loaded.source.where}: leave "
                "it out."
            )
    return kind, fitting


def encoder_of(loaded: LoadedModel, *, prompt: str | None = None, **options: Any) -> Any:
    """Returns what encodes texts by a loaded model, as `encoder_kind` says.

    `options` are those of all kinds. Raises ValueError if one does not fit the model.
    """
    kind, fitting = _fitting(loaded, options)
    if prompt == "query" and fitting.get("pool_factor") is not None:
        raise ValueError(
            f"pool_factor={fitting['pool_factor']} has no effect on queries, whose vectors are not "
            "pooled: leave it out."
        )
    return kind(loaded, prompt=prompt, **fitting)


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
    kind, fitting = _fitting(loaded, options)
    cosine = cosine and kind is Embedder
    if cosine:
        fitting["normalize"] = True
    embed = embedders(loaded, kind, **fitting)
    similarity = "cosine" if cosine else embed["query"].similarity
    if kind is TokenEmbedder:
        opener = functools.partial(TokenIndex, embed, mean=similarity == MEAN_MAXSIM)
        return IndexKind(embed, opener)
    if similarity not in ("cosine", "dot"):
        raise ValueError(
            f"{loaded.source.where} has similarity_fn_name={similarity}: give --pooling."
        )
    if kind is SparseEmbedder:
        opener = functools.partial(SparseIndex, embed, cosine=similarity == "cosine")
        return IndexKind(embed, opener, functools.partial(_activity, embed))
    return IndexKind(embed, functools.partial(DenseIndex, embed, cosine=similarity == "cosine"))


def _activity(embed: Mapping[str, Any]) -> dict[str, float]:
    activity = Activity()
    for embedder in embed.values():
        activity.merge(embedder.activity)
    return activity.metrics()
