"""Creates parameter trees, initialised at random or filled with tensors under PyTorch names."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base.files import MAX_MESSAGE, listed
from bertjax.model import BertConfig, BertWithHead
from bertjax.model.recipe import flattened, nested
from bertjax.weights import names


class Filled(NamedTuple):
    """The parameters of a model, as a tree of numpy arrays, that `fill` has converted from tensors.

    Attributes:
        absent: the parts (such as "classifier" or "bert/pooler") that the source lacks and that
            were initialised at random.
        unused: the parts that the source has and the model lacks.
    """

    params: dict[str, Any]
    absent: list[str]
    unused: list[str]


def init_params(model: BertWithHead, seed: int) -> Any:
    """Initialises all parameters of `model`; the values depend on `seed`, not on the devices."""
    return jax.jit(_init, static_argnums=0)(model, jax.random.key(seed))


def param_shapes(model: BertWithHead) -> dict[str, Any]:
    """Returns {path: shape and dtype} of all parameters of `model` without computing any values."""
    hashable: Any = model
    return dict(_param_shapes(hashable))


@functools.lru_cache(maxsize=64)  # tracing takes longer than reading the weights of a small model
def _param_shapes(model: BertWithHead) -> dict[str, Any]:
    tree: Any = jax.eval_shape(lambda key: _init(model, key), jax.random.key(0))
    flat = flattened(tree)
    return flat


def _init(model: BertWithHead, key: jax.Array) -> Any:
    ids = jnp.zeros((1, 8), jnp.int32)
    starts = jnp.zeros((1, 1), jnp.int32)
    # With unroll=1, the initialisation is compiled once and not once per layer.
    return model.clone(unroll=1).init(key, ids, ids, ids, ids, starts)["params"]


def fresh(model: BertWithHead, paths: frozenset[str], seed: int) -> dict[str, np.ndarray]:
    """Initialises only the parameters of `model` at `paths`; returns {path: parameter}.

    The values are the same as if all parameters were initialised from `seed`.
    """

    if not paths:
        return {}

    @jax.jit
    def init(key: jax.Array) -> dict[str, jax.Array]:
        flat = flattened(_init(model, key))
        return {path: flat[path] for path in sorted(paths)}

    return jax.device_get(init(jax.random.key(seed)))


def with_training_parts(params: dict[str, Any], model: BertWithHead, seed: int) -> dict[str, Any]:
    """Returns `params` with new parameters under the keys `model.training_parts` that it lacks.

    They exist only during training, so loaded parameters may lack them.
    """
    lacking = {*model.training_parts} - params.keys()
    if not lacking:
        return params
    paths = frozenset(path for path in param_shapes(model) if path.partition("/")[0] in lacking)
    return params | nested(fresh(model, paths, seed))


def fill(
    tensors: Mapping[str, np.ndarray],
    model: BertWithHead,
    where: str,
    seed: int = 0,
    *,
    skip: str | None = None,
    known: Mapping[str, np.ndarray] | None = None,
) -> Filled:
    """Converts tensors with PyTorch names to the parameters of a model.

    If `tensors`, which are read one at a time, lack all tensors of the pooler, or of a layer of the
    head, this part is initialised at random from `seed`, as is the part `skip`, such as
    "classifier", in any case. If they have tensors of a head of another program, whose names begin
    otherwise than all that are known, a warning names them. `known` are {path: parameter} of
    parameters that are not read. Raises ValueError, which says `where`, if tensors are missing,
    unexpected, of a wrong shape or type, or not finite.
    """
    config = model.config
    known = known or {}
    located = names.located(tensors, config)
    if not known:
        _check_layers(located, config, where)
    wanted = {path: shape for path, shape in param_shapes(model).items() if path not in known}
    placed, unused, unexpected = _assigned(located, wanted, skip)
    present = {""}
    seen = set()
    has_room = True
    for _, target in placed:
        present.add(_part(target.path))
        seen.add((target.path, target.layer))
        if (target.layer or 0) >= config.groups:
            has_room = False
    absent = sorted({_part(path) for path in wanted} - present)
    lacking = frozenset(path for path in wanted if _part(path) in absent)
    missing = names.missing_names(wanted.keys() - lacking, seen, config)
    left_out = [name for name in unexpected if names.is_left_out(name, config.model_type)]
    unexpected = [name for name in unexpected if name not in left_out]
    refused = missing or (unexpected and (known or not _are_foreign(unexpected, located)))
    # Arrays are allocated only if the source has all tensors, so that its size bounds the memory.
    filled: dict[str, np.ndarray] = {}
    into = None
    if has_room and not refused:
        into = filled
    misshaped = []
    for stored, target in placed:
        problem = _place(into, wanted[target.path], target, tensors[stored], config)
        if problem:
            misshaped.append(f"{stored} {problem}")
    if refused or misshaped:
        raise ValueError(_misfit(where, missing, unexpected, misshaped))
    if left_out:
        print(f"note: {where} has {listed(left_out)}, left out as in transformers")
    if unexpected:
        print(
            f"warning: {where} has tensors that no {config.model_type} model of transformers has, "
            f"and that are ignored: {listed(unexpected)}"
        )
    names.set_unused_layers(filled, wanted, config.model_type)
    filled |= {**known, **fresh(model, lacking, seed)}
    return Filled(nested(filled), absent, sorted(unused))


def _assigned(
    located: Mapping[str, list[names.Target]], wanted: Mapping[str, Any], skip: str | None
) -> tuple[list[tuple[str, names.Target]], set[str], list[str]]:
    """Returns the tensors that become parameters with their targets, the parts that the model does
    not have, and the unexpected tensors."""
    placed: list[tuple[str, names.Target]] = []
    seen: set[tuple[str, int | None]] = set()
    unused: set[str] = set()
    unexpected = []
    for stored, targets in sorted(located.items()):
        if not targets:
            unexpected.append(stored)
            continue
        path = targets[0].path
        part = _part(path)
        places = {(target.path, target.layer) for target in targets}
        if part and part == skip:
            continue
        if part and path not in wanted:
            unused.add(part)
        elif path not in wanted or places & seen:
            unexpected.append(stored)
        else:
            seen |= places
            placed += [(stored, target) for target in targets]
    return placed, unused, unexpected


def _are_foreign(unexpected: list[str], located: Mapping[str, list[names.Target]]) -> bool:
    """Whether the names of unexpected tensors begin otherwise than all that are known."""
    beginnings = {name.partition(".")[0] for name, targets in located.items() if targets}
    return beginnings.isdisjoint(name.partition(".")[0] for name in unexpected)


def _misfit(where: str, *problems: list[str]) -> str:
    room = MAX_MESSAGE - 90 - len(where)
    texts = [""] * len(problems)
    # Characters that short lists do not need are left to the longer lists.
    lengths = [sum(map(len, tensors)) for tensors in problems]
    shortest_first = sorted(range(len(problems)), key=lengths.__getitem__)
    lists_left = len(problems)
    for index in shortest_first:
        share = room // lists_left
        texts[index] = listed(problems[index], max(share, 40))
        room -= len(texts[index])
        lists_left -= 1
    missing, unexpected, wrong = texts
    return (
        f"{where} does not fit the model. Missing: {missing}. Unexpected: {unexpected}. Wrong: "
        f"{wrong}. Give all files of one model."
    )


def _check_layers(
    located: Mapping[str, list[names.Target]], config: BertConfig, where: str
) -> None:
    """Raises ValueError if `config` has more layers than the tensors.

    It comes first, because the time and memory of `fill` grow with the number in `config`.
    """
    layers = 0
    for targets in located.values():
        for target in targets:
            if target.layer is not None:
                layers = max(layers, target.layer + 1)
    if located and not any(located.values()):
        raise ValueError(
            f"{where} does not fit the model: none of its {len(located)} tensors has a name of "
            f"{config.model_type} models: {listed(sorted(located), 100)}. Give the weights of this "
            "architecture, under the names of transformers."
        )
    if config.groups > max(layers, 1):
        raise ValueError(
            f"{where} does not fit the model: its config has num_hidden_layers="
            f"{config.num_hidden_layers}, but its weights have {layers} layers. Check that the "
            "files are complete."
        )


def part_in_words(part: str) -> str:
    """Returns how messages call a part of `Filled.absent`."""
    words = {"predictions": "masked LM head", "seq_relationship": "sentence-pair head"}
    return words.get(part, part)


def _part(path: str) -> str:
    """Returns the part that a source may lack, "bert/pooler" or a layer of the head; else ""."""
    if path.startswith("bert/pooler/"):
        return "bert/pooler"
    first, _, _ = path.partition("/")
    if first == "bert":
        return ""
    return first


def _place(
    filled: dict[str, np.ndarray] | None,
    like: Any,
    target: names.Target,
    tensor: np.ndarray,
    config: BertConfig,
) -> str | None:
    """Writes a tensor to `filled`, unless it is None; returns what is wrong with the tensor."""
    path = target.path
    layer = target.layer
    shape = like.shape
    if layer is not None:
        shape = shape[1:]
    tensor = target.part_of(tensor)
    if tensor.size != int(np.prod(shape)):
        # Numpy refuses 2^63 bytes, so of sizes below 2^31, a value may have one.
        without_memory = np.broadcast_to(np.int8(0), shape)
        wanted = target.rule.transform.to_hf(without_memory, config).shape
        return f"has shape {tensor.shape}, but the model has {wanted}"
    if layer is not None and layer >= like.shape[0]:
        return f"belongs to layer {layer}, but the model has num_hidden_layers={like.shape[0]}"
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        return f"is of type {tensor.dtype}: quantised models are not supported"
    value = target.rule.transform.from_hf(tensor.astype(np.float32, copy=False), config)
    if value.shape != shape:
        return f"has shape {value.shape} in bertjax's layout, but the model has {shape}"
    if not np.isfinite(value).all():
        return f"has {np.count_nonzero(~np.isfinite(value))} values that are not finite"
    # The value is always copied in row-major order, so that the page faults of a mapped file and
    # the cost of a transposed view occur only here, not in later uses.
    if filled is None:
        return None
    if layer is None:
        filled[path] = np.array(value, order="C")
    else:
        if path not in filled:
            filled[path] = np.empty(like.shape, np.float32)
        filled[path][layer] = value
    return None
