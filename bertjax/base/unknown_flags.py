"""The error about flags that a command does not have, which suggests the most similar ones."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, get_args, get_type_hints

from bertjax.base.files import did_you_mean

# Flags of every command.
COMMON = ("help", "version")
_INDEX = re.compile(r"\.\d+\.")


def flag_names(configs: Sequence[Any]) -> list[str]:
    """Returns the names of all flags of a command, without the dashes.

    A nested field has a name such as "optimizer.learning_rate", a field of the first of several
    nested configs one such as "phases.0.num_steps".

    Args:
        configs: the dataclasses, or instances of them, whose fields are the flags.
    """
    classes = [config if isinstance(config, type) else type(config) for config in configs]
    return [name for config_class in classes for name in _names(config_class, "")]


def _names(config_class: Any, prefix: str) -> Iterator[str]:
    for name, field_type in get_type_hints(config_class).items():
        if name not in config_class.__dataclass_fields__:
            continue  # a class variable
        if dataclasses.is_dataclass(field_type):
            yield from _names(field_type, f"{prefix}{name}.")
            continue
        yield f"{prefix}{name}"
        for part in get_args(field_type):
            if dataclasses.is_dataclass(part):
                yield from _names(part, f"{prefix}{name}.0.")
                yield from _names(part, f"{prefix}{name}.")


def error_of_unknown(
    argv: Sequence[str], configs: Sequence[Any], command: str, hidden: Collection[str] = ()
) -> str:
    """Returns a message about the flags in `argv` that a command does not have; "" if it has all.

    Args:
        argv: the command line after the name of the command.
        configs: the dataclasses, or instances of them, whose fields are the flags.
        command: the name of the command.
        hidden: the names of fields that are not suggested.
    """
    names = flag_names(configs)
    known = {*names, *COMMON}
    suggested = [name for name in known if name.partition(".")[0] not in hidden]
    lines = []
    for word in argv:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if not word.startswith("--") or not name or _INDEX.sub(".0.", name) in known:
            continue
        # The most frequent mistake is to leave out the name of the nested config.
        nested = [n for n in suggested if n.endswith(f".{name}") and ".0" not in n]
        if nested:
            advice = f"Did you mean {' or '.join(f'--{n}' for n in sorted(nested))}? "
        else:
            advice = did_you_mean(f"--{name}", [f"--{n}" for n in sorted(suggested)])
        lines.append(f"bertjax {command} has no flag {word.partition('=')[0]}. {advice}")
    if not lines:
        return ""
    return "\n".join([*map(str.rstrip, lines), f"All flags: python -m bertjax.{command} --help"])
