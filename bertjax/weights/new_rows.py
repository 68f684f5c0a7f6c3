"""Extends loaded models by embeddings of new words and of new positions.

A new word starts from the mean of its old pieces (Gee et al. 2022, "Fast Vocabulary Transfer for
Language Model Compression"). New positions repeat the old ones (Beltagy et al. 2020, "Longformer",
5), or all positions are interpolated.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.model import BertWithHead
from bertjax.tokenization import Tokenizer
from bertjax.weights.fill import fresh, param_shapes
from bertjax.weights.load_model import LoadedModel

# Vocabularies that grow are padded to a multiple of this number, which divides over the axes of
# usual meshes and fills the tiles of accelerators.
PADDED_TO = 64
NewPositions = Literal["tile", "interpolate"]


def with_new_words(loaded: LoadedModel, tokenizer: Tokenizer, seed: int) -> LoadedModel:
    """Extends the vocabulary of a model to that of `tokenizer`.

    The rows of each new id are the mean of the rows of the pieces into which the model's own
    tokenizer splits the new entry: in the word embedding, in the output bias and, if it is not
    tied, in the output matrix of the masked LM head. A character that the old vocabulary lacked,
    and a word of such characters, have the unknown token as their only old piece: they all start
    from its row, and differ only after training. If the embedding has too few rows, it gets as many
    as the new tokenizer has entries, rounded up to a multiple of 64; the rows without an entry are
    initialised at random from `seed`.

    Args:
        loaded: the model and its old tokenizer.
        tokenizer: the old tokenizer with further entries.
        seed: the seed of the rows that no entry has.

    Raises:
        ValueError: `tokenizer` is not the model's tokenizer with further entries.
    """
    old = loaded.tokenizer
    if difference := tokenizer.difference_from(old):
        raise ValueError(
            f"The tokenizer is not that of {loaded.source.where} with further entries "
            f"({difference})."
        )
    size = loaded.config.vocab_size
    if tokenizer.vocab_size > size:
        size = -(-tokenizer.vocab_size // PADDED_TO) * PADDED_TO
    pieces = [old.split(token) for token in tokenizer.tokens[old.vocab_size :]]

    axes = _axes_of(loaded.model, "vocab_size")
    larger = size > loaded.config.vocab_size
    drawn = (
        fresh(_resized(loaded.model, "vocab_size", size), frozenset(axes), seed) if larger else {}
    )

    def grow(path: str, rows: np.ndarray) -> np.ndarray:
        grown = rows.copy()
        if larger:
            new = np.moveaxis(np.asarray(drawn[path]), axes[path], 0)[len(rows) :]
            grown = np.concatenate([rows, new])
        for index, ids in enumerate(pieces, old.vocab_size):
            grown[index] = rows[ids].mean(axis=0)
        return grown

    return _with_rows(loaded, "vocab_size", size, grow)._replace(tokenizer=tokenizer)


def with_positions(
    loaded: LoadedModel, max_position_embeddings: int, method: NewPositions
) -> LoadedModel:
    """Extends the position embedding of a model to `max_position_embeddings` rows.

    The first `position_offset` rows, which stand for no position, are kept. A model without
    position embeddings only gets the new number in its config.

    Args:
        loaded: the model.
        max_position_embeddings: the number of rows, not below that of the model.
        method: "tile" keeps the old rows, and the new ones repeat them from the first position;
            "interpolate" spreads the old rows evenly over all positions, and those between are
            interpolated linearly.
    """
    offset = loaded.config.position_offset
    count = max_position_embeddings - offset

    def grow(path: str, rows: np.ndarray) -> np.ndarray:
        del path
        first, rows = rows[:offset], rows[offset:]
        if method == "tile":
            grown = rows[np.arange(count) % len(rows)]
        else:
            places = np.linspace(0, len(rows) - 1, count)
            below = np.minimum(places.astype(int), max(len(rows) - 2, 0))
            share = (places - below)[:, None].astype(rows.dtype)
            above = np.minimum(below + 1, len(rows) - 1)
            grown = rows[below] * (1 - share) + rows[above] * share
        return np.concatenate([first, grown])

    return _with_rows(loaded, "max_position_embeddings", max_position_embeddings, grow)


def _with_rows(
    loaded: LoadedModel,
    field: str,
    size: int,
    grow: Callable[[str, np.ndarray], np.ndarray],
) -> LoadedModel:
    """Returns a model whose config field `field` is `size`, with the parameters that this changes.

    `grow` is a function (path, old rows) -> new rows; it is called with the parameters whose size
    along some axis is the value of the field, that axis first.
    """
    model = _resized(loaded.model, field, size)
    flat: Any = flatten_dict(loaded.params, sep="/")
    for path, axis in _axes_of(loaded.model, field).items():
        grown = grow(path, np.moveaxis(np.asarray(flat[path]), axis, 0))
        flat[path] = np.ascontiguousarray(np.moveaxis(grown, 0, axis))
    return loaded._replace(model=model, config=model.config, params=unflatten_dict(flat, sep="/"))


def _resized(model: BertWithHead, field: str, size: int) -> BertWithHead:
    return model.clone(config=dataclasses.replace(model.config, **{field: size}))


def _axes_of(model: BertWithHead, field: str) -> dict[str, int]:
    """Returns {path: axis} of the parameters that have an axis of the size `field` of the config.

    Sizes may be equal by chance, so that the axes are found by the shapes of a larger model.
    """
    after: Any = param_shapes(_resized(model, field, getattr(model.config, field) + 1))
    return {
        path: next(axis for axis, size in enumerate(shape.shape) if size != after[path].shape[axis])
        for path, shape in param_shapes(model).items()
        if shape.shape != after[path].shape
    }
