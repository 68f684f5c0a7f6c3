"""Converts JSON values to instances of dataclasses and checks the type of every value."""

import dataclasses
import math
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bertjax.base.files import brief


def typed(kind: Any, value: Any, where: str) -> Any:
    """Checks the type of a JSON value and converts JSON objects to instances of dataclasses.

    Args:
        kind: the expected type: a dataclass, int, float, str, bool, Any, a Literal of strings,
            list, dict with string keys, or the union of one of these types and None. Integers must
            not be negative.
        value: the value that `json.loads` returned.
        where: the name of the value for error messages, such as "metadata".

    Raises:
        ValueError: `value` or a nested value has a wrong type, or an object lacks a required field
            of its dataclass or has an unknown field.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, where)
    if origin in (Union, types.UnionType):
        return None if value is None and type(None) in args else typed(args[0], value, where)
    if origin is Literal:
        if not isinstance(value, str) or value not in args:
            raise ValueError(f"{where} is {brief(repr(value))}, not one of {', '.join(args)}")
    elif origin is dict and isinstance(value, dict):
        return {name: typed(args[1], v, f"{where}.{brief(name, 20)}") for name, v in value.items()}
    elif (origin or kind) is list and isinstance(value, list):
        return [typed(args[0] if args else Any, v, f"{where}[{i}]") for i, v in enumerate(value)]
    elif not _is(origin or kind, value):
        raise ValueError(
            f"{where} is {brief(repr(value))}, not a valid {(origin or kind).__name__}"
        )
    return value


def _is(kind: type, value: Any) -> bool:
    if kind is int:
        return type(value) is int and 0 <= value < 1 << 63
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind


def _object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {brief(repr(value))}, not a JSON object")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = [name for name in value if name not in fields]
    missing = [
        name
        for name, field in fields.items()
        if name not in value
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if unknown or missing:
        raise ValueError(
            f"{where} has missing fields: {brief(missing or 'none')}; unknown fields: "
            f"{brief(unknown or 'none')}"
        )
    return kind(**{name: typed(hints[name], v, f"{where}.{name}") for name, v in value.items()})
