"""Recipes: which parameters of a model are trained, and how the model's are made from these.

A training state holds trained parameters, with gradients and optimizer state, and fixed ones, which
have neither. A recipe splits the parameters of a model into both, and joins them again: the model
is applied to what `join` returns. Freezing and LoRA are in `train/recipes.py`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

Params = dict[str, Any]

TABLES = ("bert/embeddings/word_embeddings/", "bert/embeddings/position_embeddings/")
EMBEDDINGS = (
    *TABLES,
    "bert/embeddings/token_type_embeddings/",
    "bert/embeddings/layer_norm/",
)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Trains all parameters of a model, as they are; the base class of the other recipes."""

    def split(self, params: Params, *, is_new: bool = False) -> tuple[Params, Params]:
        """Converts the parameters of a model to (trained parameters, fixed parameters).

        The top-level keys of the two differ, since checkpoints hold both in one tree. `is_new`
        tells whether `params` were drawn at random for the first step of a run.
        """
        return params, {}

    def join(self, params: Params, fixed: Params) -> Params:
        """Converts trained and fixed parameters to the parameters of the model."""
        return params


class FixedEncoder(Recipe):
    """Trains the head alone."""

    def split(self, params: Params, *, is_new: bool = False) -> tuple[Params, Params]:
        head = dict(params)
        encoder = head.pop("bert")
        return head, {"bert": encoder}

    def join(self, params: Params, fixed: Params) -> Params:
        return params | fixed


class SharedEmbeddings(Recipe):
    """Shares the embeddings of discriminator and generator ("es", Clark et al. 2020, 3.2).

    What is trained lacks the generator's, if they have the same shape.
    """

    def split(self, params: Params, *, is_new: bool = False) -> tuple[Params, Params]:
        trained = flattened(params)
        for path, of_generator in _in_both_encoders(trained, EMBEDDINGS):
            if trained[path].shape == trained[of_generator].shape:
                del trained[of_generator]
        return nested(trained), {}

    def join(self, params: Params, fixed: Params) -> Params:
        joined = flattened(params)
        for path, of_generator in _in_both_encoders(joined, EMBEDDINGS):
            joined.setdefault(of_generator, joined[path])
        return nested(joined)


class EmbeddingDifferences(Recipe):
    """Trains how the discriminator's embeddings differ from the generator's ("gdes").

    The generator's get no gradient of the discriminator (He et al. 2021, 3.2). The differences
    begin with 0.
    """

    def split(self, params: Params, *, is_new: bool = False) -> tuple[Params, Params]:
        trained = flattened(params)
        for path, of_generator in _in_both_encoders(trained, TABLES):
            begin = of_generator if is_new else path
            trained[path] = trained[begin] - trained[of_generator]
        return nested(trained), {}

    def join(self, params: Params, fixed: Params) -> Params:
        joined = flattened(params)
        for path, of_generator in _in_both_encoders(joined, TABLES):
            joined[path] = joined[path] + jax.lax.stop_gradient(joined[of_generator])
        return nested(joined)


# Recipes of replaced-token detection, by `RtdConfig.sharing`.
SHARINGS = {"none": Recipe(), "es": SharedEmbeddings(), "gdes": EmbeddingDifferences()}


def _in_both_encoders(flat: Params, prefixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields (path in the discriminator, path in the generator) of the embeddings `prefixes`."""
    for path in list(flat):
        if path.startswith(prefixes):
            yield path, f"generator/{path}"


def flattened(params: Params) -> dict[str, Any]:
    """Returns {path: array} of a tree of parameters; `nested` is the inverse."""
    flat: Any = flatten_dict(params, sep="/")
    return flat


def nested(flat: dict[str, Any]) -> Params:
    """Returns the tree of parameters with these paths."""
    return unflatten_dict(flat, sep="/")
