"""Frozen dataclasses that compare the values of their fields with the types and ranges of these.

    rate: Annotated[float | None, "[0, 1)"] = None

is a number from 0 to below 1, or None.
"""

import dataclasses
import functools
import numbers
import os
import types
from collections.abc import Mapping, Sequence
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
_BASES: dict[Any, Any] = {
    int: (int, numbers.Integral),
    float: (float, int, numbers.Real),
    str: (str, os.PathLike),
}


class Checked:
    """Base class of dataclasses whose values are checked when they are set.

    A list becomes a tuple if the type of the field is one.

    Raises:
        ValueError: a value is not of the type of its field, is none of its literals, or is outside
            of its range; the message names the most similar literal.
    """

    def __post_init__(self):
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            bases = [base for base, _, _ in _alternatives(field.type)]
            if isinstance(value, list) and tuple in bases:
                value = tuple(value)
                object.__setattr__(self, field.name, value)
            check(field.name, value, field.type)

    def refuse_set(self, names: Sequence[str], mode: str, reason: str) -> None:
        """Raises ValueError if a field of `names` is set, which has no effect in a `mode`.

        `mode` is what else is set or not, such as "with --folds 5" or "without --pack", and
        `reason` is why the field has no effect then.
        """
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                raise ValueError(
                    f"{field.name}={brief(repr(value), 60)} has no effect {mode}: {reason}. Leave "
                    "it out."
                )


def part_of(config: Any, kind: type[Part]) -> Part:
    """Returns the dataclass `kind` with the values that `config` has for its fields."""
    return kind(**{f.name: getattr(config, f.name) for f in dataclasses.fields(kind)})  # type: ignore[arg-type]


def read_fields(content: Mapping[str, Any], kind: type[Part]) -> Part:
    """Returns the dataclass `kind` with the entries of `content` that are fields of it."""
    return kind(**{f.name: content[f.name] for f in dataclasses.fields(kind) if f.name in content})  # type: ignore[arg-type]


def dataclass_in(kind: Any) -> Any:
    """Returns `kind` if it is a dataclass, or the dataclass in a union with None; else None."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(filter(dataclasses.is_dataclass, get_args(kind)), None)
    if dataclasses.is_dataclass(kind):
        return kind
    return None


def check(name: str, value: Any, kind: Any) -> None:
    """Raises ValueError, which says `name`, unless `value` has the type and range of `kind`."""
    literals = []
    types = []
    for base, arguments, interval in _alternatives(kind):
        if _is_of(value, base, arguments):
            _check_content(name, value, base, arguments, interval)
            return
        if base is Literal:
            literals += arguments
        types.append(base)
    if literals:
        raise ValueError(
            f"{name}={brief(repr(value))} is not known. {did_you_mean(value, literals)}Known: "
            f"{', '.join(literals)}."
        )
    known = " or ".join(_NAMES.get(base) or f"a {base.__name__}" for base in types)
    raise ValueError(f"{name}={brief(repr(value))}: it must be {known}.")


def _is_of(value: Any, base: Any, arguments: tuple[Any, ...]) -> bool:
    if base is Any:
        return True
    if base is Literal:
        return isinstance(value, str) and value in arguments
    if type(value) is bool:
        return base is bool
    return isinstance(value, _BASES.get(base, base))


def _check_content(
    name: str, value: Any, base: Any, arguments: tuple[Any, ...], interval: str
) -> None:
    if base is Literal:
        return
    if base is dict and arguments:
        for item in value.values():
            check(name, item, arguments[1])
    elif arguments:  # of a tuple or list
        for item in value:
            check(name, item, arguments[0])
    elif interval:
        _check_range(name, value, interval)


@functools.cache
def _alternatives(kind: Any, interval: str = "") -> tuple[tuple[Any, tuple[Any, ...], str], ...]:
    """Returns (class, type arguments, range) of each part of a union."""
    if get_origin(kind) is Annotated:
        return _alternatives(*get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return sum((_alternatives(part, interval) for part in get_args(kind)), ())
    return ((get_origin(kind) or kind, get_args(kind), interval),)


@functools.cache
def _ends(interval: str) -> list[float]:
    ends = []
    for end in interval[1:-1].split(","):
        base, _, power = end.strip().partition("^")
        ends.append(float(base) ** int(power or 1))
    return ends


def _check_range(name: str, value: Any, interval: str) -> None:
    low, high = _ends(interval)
    if low < value < high:
        return
    if value == low and interval.startswith("[") or value == high and interval.endswith("]"):
        return
    advice = f"choose it in {interval}"
    if interval == "(0, inf)":
        advice = "it must be positive"
    elif interval.endswith(", inf)"):
        advice = f"it must be at least {low:g}"
    raise ValueError(f"{name}={value}: {advice}.")
