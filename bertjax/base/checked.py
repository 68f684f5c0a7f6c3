"""Frozen dataclasses that compare the values of their fields with the types and ranges of these.

    rate: Annotated[float | None, "[0, 1)"] = None

is a number from 0 to below 1, or None.
"""

import dataclasses
import numbers
import os
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from bertjax.base.files import brief, did_you_mean

Part = TypeVar("Part")
Count = Annotated[int, "[1, inf)"]
AtLeast0 = Annotated[int, "[0, inf)"]
NonNegative = Annotated[float, "[0, inf)"]
Positive = Annotated[float, "(0, inf)"]
Rate = Annotated[float, "[0, 1)"]

_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    type(None): "null",
}
_BASES: dict[Any, Any] = {int: numbers.Integral, float: numbers.Real, str: (str, os.PathLike)}


class Checked:
    """Base class of dataclasses whose values are checked when they are set.

    A list becomes a tuple if the type of the field is one.

    Raises:
        ValueError: a value is not of the type of its field, is none of its literals, or is outside
            of its range; the message names the most similar literal.
    """

    def __post_init__(self):
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, kinds = getattr(self, field.name), tuple(_alternatives(field.type))
            if isinstance(value, list) and any(get_origin(kind) is tuple for kind, _ in kinds):
                value = tuple(value)
                object.__setattr__(self, field.name, value)
            _check(field.name, value, kinds)

    def refuse_idle(self, fields: str, reason: str) -> None:
        """Raises ValueError, which ends with `reason`, if `fields` differ from their defaults."""
        defaults = {f.name: f.default for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in fields.split()}
        changed = [f"{name}={v!r}" for name, v in values.items() if v != defaults[name]]
        if changed:
            raise ValueError(f"{', '.join(changed)} has no effect {reason}")


def part_of(config: Any, kind: type[Part]) -> Part:
    """Returns the dataclass `kind` with the values that `config` has for its fields."""
    return kind(**{f.name: getattr(config, f.name) for f in dataclasses.fields(kind)})  # type: ignore[arg-type]


def check_literal(name: str, value: Any, known: Any) -> None:
    """Raises ValueError, which names the most similar one, if `value` is none of `known`."""
    if value not in tuple(known):
        raise ValueError(
            f"{name}={brief(repr(value))} is not known. {did_you_mean(value, known)}Known: "
            f"{', '.join(known)}."
        )


def _alternatives(kind: Any, interval: str = "") -> Iterator[tuple[Any, str]]:
    """Yields (type, range) of each part of a union."""
    if get_origin(kind) is Annotated:
        kind, interval = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from _alternatives(part, interval)
    else:
        yield kind, interval


def _check(name: str, value: Any, kinds: tuple[tuple[Any, str], ...]) -> None:
    for kind, interval in kinds:
        if get_origin(kind) is tuple and isinstance(value, tuple):
            parts = tuple(_alternatives(get_args(kind)[0], interval))
            for part in value:
                _check(name, part, parts)
            return
        if get_origin(kind) is Literal:
            if isinstance(value, str) and value in get_args(kind):
                return
        elif isinstance(value, _BASES.get(kind, get_origin(kind) or kind)):
            if not isinstance(value, bool) or kind is bool:
                return _check_range(name, value, interval)
    if literals := [v for kind, _ in kinds if get_origin(kind) is Literal for v in get_args(kind)]:
        check_literal(name, value, literals)
    classes = [get_origin(kind) or kind for kind, _ in kinds]
    known = " or ".join(_NAMES.get(kind) or f"a {kind.__name__}" for kind in classes)
    raise ValueError(f"{name}={brief(repr(value))}: it must be {known}.")


def _check_range(name: str, value: Any, interval: str) -> None:
    if not interval or value is None:
        return
    ends = (end.strip().partition("^") for end in interval[1:-1].split(","))
    low, high = (float(base) ** int(power or 1) for base, _, power in ends)
    if (low < value or (interval[0] == "[" and value == low)) and (
        value < high or (interval[-1] == "]" and value == high)
    ):
        return
    advice = f"choose it in {interval}"
    if interval.endswith(", inf)"):
        advice = "it must be positive" if interval[0] == "(" else f"it must be at least {low:g}"
    raise ValueError(f"{name}={value}: {advice}.")
