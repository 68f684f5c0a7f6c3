"""Fields of `config.json` about attention: rotary positions, and which layers are global."""

from collections.abc import Mapping
from typing import Any

from bertjax.base.files import brief
from bertjax.config.model import ROPE_FIELDS
from bertjax.weights.family import check_choice

SCALED_ROPE = {name: name for name in ("rope_type", *ROPE_FIELDS["yarn"], *ROPE_FIELDS["llama3"])}
# Values of keys of `rope_parameters` without which transformers has these.
_USUAL = {
    "beta_slow": 1.0,
    "beta_fast": 32.0,
    "attention_factor": None,
    "truncate": True,
    "partial_rotary_factor": 1.0,
}
# {base of the rotary positions: the layers that have it, by their name in `layer_types`}.
_TYPES = {"global_rope_theta": "full_attention", "local_rope_theta": "sliding_attention"}


def read_rope(rope: Any, theta: float) -> dict[str, Any]:
    """Returns `rope_theta` and the fields of BertConfig that an entry of `rope_parameters` gives.

    `theta` is the base if the entry has none.

    Raises:
        ValueError: a key is missing, unknown or, like `partial_rotary_factor`, without effect in
            transformers; or the rotations depend on other texts of a batch, as those of longrope.
    """
    if not isinstance(rope, dict):
        raise ValueError(f"rope_parameters={brief(rope)}: it must map names to values.")
    content = _USUAL | {"rope_theta": theta, "rope_type": rope.get("type", "default")} | rope
    kind = content["rope_type"]
    check_choice("rope_type", kind, [*ROPE_FIELDS])
    keys = [name.removeprefix("rope_") for name in ROPE_FIELDS[kind]]
    missing = [key for key in keys if key not in content]
    for key in content.keys() - {*keys, "rope_theta", "rope_type", "type"}:
        if content[key] not in (None, _USUAL.get(key)):
            missing.append(key)
    if missing:
        raise ValueError(
            f"rope_parameters={brief(rope)}: {', '.join(sorted(missing))} is missing, or not "
            f"supported with rope_type={kind}."
        )
    fields = {f"rope_{key}": content[key] for key in keys}
    return fields | {"rope_type": kind, "rope_theta": content["rope_theta"]}


def write_rope(fields: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Returns an entry of `rope_parameters` with the base theta, the inverse of `read_rope`."""
    rope = {"rope_type": fields["rope_type"], "rope_theta": theta}
    for name in ROPE_FIELDS[fields["rope_type"]]:
        if fields[name] is not None:
            rope[name.removeprefix("rope_")] = fields[name]
    return rope


def without_rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `fields` without those that `write_rope` writes."""
    return {name: value for name, value in fields.items() if name not in SCALED_ROPE}


def read_ropes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of BertConfig that `rope_parameters` gives, with an entry per layer type.

    Without `rope_parameters`, the bases are `global_rope_theta` and `local_rope_theta`.

    Raises:
        ValueError: rotary positions are not supported, see `read_rope`, or scaled in local layers.
    """
    ropes = values.get("rope_parameters") or {}
    read = []
    for name, kind in _TYPES.items():
        known = isinstance(ropes, dict) and not ropes.keys() - {*_TYPES.values()}
        if not known or not isinstance(ropes.get(kind), dict | None):
            raise ValueError(f"rope_parameters={brief(ropes)}: it must map {kind} to its settings.")
        rope = ropes.get(kind) or {"rope_type": "default"}
        rope = rope | (values.get("rope_scaling") or {})
        read.append(read_rope(rope, values[name]))
    everywhere, nearby = read
    if nearby["rope_type"] != "default":
        raise ValueError(
            f"rope_parameters={brief(ropes)}, rope_scaling={brief(values.get('rope_scaling'))}: "
            "scaled rotary positions are supported in layers of full_attention alone."
        )
    # transformers 4, without a local base: as in the global layers
    theta = everywhere.pop("rope_theta")
    local_theta = nearby["rope_theta"] or theta
    return everywhere | {"global_rope_theta": theta, "local_rope_theta": local_theta}


def write_ropes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `rope_parameters` with an entry per layer type, the inverse of `read_ropes`."""
    return {
        "full_attention": write_rope(fields, fields["global_rope_theta"]),
        "sliding_attention": {"rope_type": "default", "rope_theta": fields["local_rope_theta"]},
    }


def layer_types(layers: int, period: int, first: int = 0) -> list[str]:
    """Returns `layer_types` of layers of which `first`, first + period, ... are global."""
    types = []
    for layer in range(layers):
        is_global = layer % period == first
        types.append("full_attention" if is_global else "sliding_attention")
    return types


def global_layers(types: Any, layers: Any, likely: tuple[Any, Any]) -> tuple[int, int]:
    """Returns (period, first), the inverse of `layer_types`; first = layers if none is global.

    Several pairs may give the same types: `likely` is returned if it is one of them.

    Raises:
        ValueError: there are not as many types as layers, or the global layers have no period.
    """
    if isinstance(types, list) and len(types) == layers:
        count = len(types)
        places = [place for place, kind in enumerate(types) if kind == "full_attention"]
        first, second = [*places, count, count][:2]
        # At least first + 1, so that no earlier layer is global.
        period = max(first + 1, second - first)
        for n, start in (likely, (period, first)):
            if isinstance(n, int) and n > 0 and types == layer_types(count, n, start):
                return n, start
    raise ValueError(
        f"layer_types={brief(types)}, also if attention_windows say so, is not supported: it must "
        f"have an entry for each of the {brief(layers)} layers, full_attention for every n-th one "
        "and sliding_attention for all others."
    )
