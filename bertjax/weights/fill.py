"""Fills a parameter tree from tensors under PyTorch names, and says all that does not fit."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.model import BertConfig, BertWithHead
from bertjax.weights import names


class Filled(NamedTuple):
    """Parameters (numpy), parts that the source lacks, and parts that the model has no use for."""

    params: dict[str, Any]
    absent: list[str]
    unused: list[str]


def init_params(model: BertWithHead, seed: int) -> Any:
    """Fresh parameters; the same for a seed, however many devices there are."""
    return jax.jit(_init, static_argnums=0)(model, jax.random.key(seed))


def param_shapes(model: BertWithHead) -> dict[str, Any]:
    """Path -> shape and dtype of each parameter, without making any."""
    tree: Any = jax.eval_shape(lambda key: _init(model, key), jax.random.key(0))
    flat: Any = flatten_dict(tree, sep="/")
    return flat


def _init(model: BertWithHead, key: jax.Array) -> Any:
    ids = jnp.zeros((1, 8), jnp.int32)
    starts = jnp.zeros((1, 1), jnp.int32)
    # In a loop: layers written out would each have their own program to draw the same numbers.
    return model.clone(unroll=1).init(key, ids, ids, ids, ids, starts)["params"]


def fresh(model: BertWithHead, paths: frozenset[str], seed: int) -> dict[str, np.ndarray]:
    """The initial values of some parameters; the others are not computed."""

    @jax.jit
    def init(key: jax.Array) -> dict[str, jax.Array]:
        flat: Any = flatten_dict(_init(model, key), sep="/")
        return {path: flat[path] for path in sorted(paths)}

    return jax.device_get(init(jax.random.key(seed))) if paths else {}


def fill(
    tensors: Mapping[str, np.ndarray],
    model: BertWithHead,
    where: str,
    seed: int = 0,
    *,
    skip: str | None = None,
    known: Mapping[str, np.ndarray] | None = None,
) -> Filled:
    """Puts each tensor in its place; heads that are missing as a whole are initialised.

    Args:
        tensors: by PyTorch name; read one at a time.
        model: what the parameters are for.
        where: the source, for errors.
        seed: of the initialisation.
        skip: tensors whose normalized names begin so are left out.
        known: path -> parameters that are there already.

    Raises:
        ValueError: names every missing, unexpected, misshaped and not finite tensor at once.
    """
    config, known = model.config, known or {}
    wanted = {path: shape for path, shape in param_shapes(model).items() if path not in known}
    filled: dict[str, np.ndarray] = {}
    seen: set[str] = set()
    unused: set[str] = set()
    unexpected, misshaped = [], []
    for stored in sorted(tensors):
        name = names.normalized(stored, config)
        mapped = names.find(name, config) if name else None
        part = mapped and _part(mapped.path)
        if name is None or (skip and part == skip):
            continue
        if mapped is None or name in seen or (mapped.path not in wanted and part is None):
            unexpected.append(stored)
        elif mapped.path not in wanted:
            unused.add(str(part))
        else:
            seen.add(name)
            problem = _place(filled, wanted[mapped.path], mapped, tensors[stored])
            if problem:
                misshaped.append(f"{stored} {problem}")
    absent = sorted({part for path in wanted if (part := _part(path))} - set(map(_part, filled)))
    lacking = frozenset(path for path in wanted if _part(path) in absent)
    missing = names.missing_names(wanted.keys() - lacking, seen, config)
    if missing or unexpected or misshaped:
        raise ValueError(
            f"{where} does not fit the model. Missing: {missing or 'nothing'}. Unexpected: "
            f"{unexpected or 'nothing'}. Wrong: {misshaped or 'nothing'}. Check that the config "
            "belongs to these weights, and that they are whole."
        )
    filled |= {**known, **fresh(model, lacking, seed)}
    return Filled(unflatten_dict(filled, sep="/"), absent, sorted(unused))


def _part(path: str) -> str | None:
    """The part of the model that a source may lack or have as a whole: a head or the pooler."""
    first, _, rest = path.partition("/")
    return ("bert/pooler" if rest.startswith("pooler/") else None) if first == "bert" else first


def _place(
    filled: dict[str, np.ndarray], like: Any, mapped: names.Mapped, tensor: np.ndarray
) -> str | None:
    """Puts one tensor in its place; returns what is wrong with it, if anything."""
    shape = like.shape if mapped.layer is None else like.shape[1:]
    if tensor.size != int(np.prod(shape)):
        return f"is {tensor.shape}, the model has {shape}"
    if mapped.layer is not None and mapped.layer >= like.shape[0]:
        return f"is of layer {mapped.layer}, the model has {like.shape[0]} layers"
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        return f"is of type {tensor.dtype}, which only a quantised model has"
    value = mapped.to_ours(tensor.astype(np.float32, copy=False))
    if value.shape != shape:
        return f"becomes {value.shape}, the model has {shape}"
    if not np.isfinite(value).all():
        return f"holds {np.count_nonzero(~np.isfinite(value))} values that are not finite"
    # Always into memory of our own, laid out as the model reads it: what a file's mapping or a
    # transposed view would cost, it costs once, here.
    if mapped.layer is None:
        filled[mapped.path] = np.array(value, order="C")
    else:
        filled.setdefault(mapped.path, np.empty(like.shape, np.float32))[mapped.layer] = value
    return None


def resize_vocabulary(
    params: dict[str, Any], model: BertWithHead, config: BertConfig, seed: int = 0
) -> dict[str, Any]:
    """Gives the word table, and the MLM head, the rows of `model.config` instead of `config`.

    Rows that are new start as the model's initialisation draws them.
    """
    flat: Any = flatten_dict(params, sep="/")
    shapes = param_shapes(model)
    grown = frozenset(path for path in flat if flat[path].shape != shapes[path].shape)
    for path, start in fresh(model, grown, seed).items():
        size = min(config.vocab_size, model.config.vocab_size)
        axis = start.shape.index(model.config.vocab_size)
        kept = (slice(None),) * axis + (slice(size),)
        start = np.array(start)
        start[kept] = flat[path][kept]
        flat[path] = start
    return unflatten_dict(flat, sep="/")
