"""Chooses how passages are encoded, stored and searched: by the kind of a model."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from bertjax.inference.late_interaction import (
    has_token_vectors,
    token_index_of,
    token_options,
)
from bertjax.inference.retrieval import DenseIndex, OpenIndex, embedders
from bertjax.weights import LoadedModel


class IndexKind(NamedTuple):
    """How a model searches.

    Attributes:
        encoders: what encodes texts of the roles "query" and "document". Each has `settings`, which
            determine the result besides model and text, and calls `after_batch`.
        open: opens an index of passages.
    """

    encoders: Mapping[str, Any]
    open: OpenIndex


def index_of(loaded: LoadedModel, *, cosine: bool = False, **options: Any) -> IndexKind:
    """Returns how a loaded model searches.

    Args:
        loaded: the model, whose files tell its kind.
        cosine: whether models with one vector per text compare by cosines, whatever their files
            say.
        options: as of `embedders`; None: as the files of the model say.

    Raises:
        ValueError: an option does not fit the model, or it has another similarity than cosines and
            dot products.
    """
    if has_token_vectors(loaded, options.get("pooling")):
        return IndexKind(*token_index_of(loaded, **token_options(options)))
    if options.pop("pool_factor", None) is not None:
        raise ValueError(
            f"pool_factor: {loaded.source.where} has one vector per text, so that there is nothing "
            "to pool: leave it out."
        )
    if cosine:
        options["normalize"] = True
    embed = embedders(loaded, **options)
    similarity = embed["query"].similarity
    if cosine:
        similarity = "cosine"
    if similarity not in ("cosine", "dot"):
        raise ValueError(
            f"{loaded.source.where} has similarity_fn_name={similarity}: give --pooling."
        )
    return IndexKind(embed, functools.partial(DenseIndex, embed, cosine=similarity == "cosine"))
