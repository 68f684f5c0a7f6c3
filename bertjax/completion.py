"""Prints the script of a shell that completes commands, flags and values: `bertjax completion`.

The script holds all names, so that completing starts no Python. Print it anew after an update.
"""

import dataclasses
import importlib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

from bertjax.base import command_line, signals
from bertjax.completion_scripts import (
    CompletedCommand,
    CompletedFlag,
    bash_script,
    fish_script,
    zsh_script,
)
from bertjax.config import FinetuneConfig, PretrainConfig, config_names
from bertjax.config.finetune_config import GLUE_TASK
from bertjax.shipped import shipped_names

_SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
# The phases whose flags are completed; no config that comes with bertjax has more.
_PHASES = 2
_DESCRIPTION_CHARACTERS = 70


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """Config of `bertjax.completion`."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Shell whose completion is printed."""


def run(config: CompletionConfig) -> None:
    """Prints the completion script of `config.shell` to standard output."""
    from bertjax.__main__ import COMMANDS

    print(_SCRIPTS[config.shell](completed_commands(COMMANDS)), end="")


def completed_commands(descriptions: Mapping[str, str]) -> list[CompletedCommand]:
    """Returns the commands with their flags and the values of these, as completion offers them.

    The modules of all commands are imported, and their `parse` tells the flags.

    Args:
        descriptions: {name of a command: what it does}, such as `bertjax.__main__.COMMANDS`.

    Raises:
        TypeError: the function `parse` of a command does not pass its `argv` to `command_line`, so
            that its flags are unknown.
    """
    commands = []
    for name, description in descriptions.items():
        try:
            importlib.import_module(f"bertjax.{name}").parse(command_line.DECLARED_ONLY)
        except command_line.Declared as declared:
            configs, hidden = declared.configs, declared.hidden
        else:
            raise TypeError(f"bertjax.{name}.parse does not pass `argv` to `command_line`.")
        fields = [field for config in configs for field in _fields(config)]
        words = next((choices(f.type)[0] for f in fields if f.is_positional), ())
        flags = [
            _flag(field, configs)
            for field in sorted(fields, key=lambda field: field.name)
            if not field.is_positional and field.name.split(".")[0] not in hidden
        ]
        commands.append(CompletedCommand(name, description, flags, words))
    return commands


@dataclasses.dataclass(frozen=True)
class _Field:
    """A field of a config or of a config in it, with the name of its flag without dashes."""

    name: str
    type: Any
    is_positional: bool
    help: str


def _fields(config: Any, prefix: str = "") -> Iterator[_Field]:
    """Yields the fields of a config dataclass, or an instance of one, and those of its configs."""
    config_class = config if isinstance(config, type) else type(config)
    for field in command_line.fields_of(config):
        name, field_type = f"{prefix}{field.name}", field.type
        elements = [part for part in get_args(field_type) if dataclasses.is_dataclass(part)]
        if dataclasses.is_dataclass(field_type):
            yield from _fields(field_type, f"{name}.")
        elif elements:
            for number in range(_PHASES):
                yield from _fields(elements[0], f"{name}.{number}.")
        else:
            hint = config_class.__dataclass_fields__[field.name].type
            text = field.helptext() if callable(field.helptext) else field.helptext
            yield _Field(name, field_type, tyro.conf.Positional in get_args(hint), text or "")


def _flag(field: _Field, configs: Sequence[Any]) -> CompletedFlag:
    values, is_boolean = choices(field.type)
    is_closed = bool(values)
    if not values:
        values = _suggestions(field.name, configs)
    # The first clause of the first sentence.
    description = " ".join(re.split(r"[.;:](?:\s|$)|\s\(", field.help, maxsplit=1)[0].split())
    if len(description) > _DESCRIPTION_CHARACTERS:
        description = description[:_DESCRIPTION_CHARACTERS].rpartition(" ")[0] + " ..."
    return CompletedFlag(f"--{field.name}", values, is_closed, is_boolean, description)


def choices(field_type: Any) -> tuple[tuple[str, ...], bool]:
    """Returns (the values that a field of a type can have, whether it can be a boolean).

    Args:
        field_type: the annotation of a field. The values are known of `bool`, `Literal`, unions of
            these and None, and tuples of any length of one of these; of other types, they are ().
    """
    origin, args = get_origin(field_type), get_args(field_type)
    if field_type is bool:
        return ("True", "False"), True
    if origin is Literal:
        return tuple(str(value) for value in args), False
    if origin is Annotated:
        return choices(args[0])
    if origin in (Union, types.UnionType):
        found = [choices(part) for part in args if part is not types.NoneType]
        if all(values for values, _ in found):
            values = tuple(value for values, _ in found for value in values)
            none = ("None",) if types.NoneType in args else ()
            return values + none, any(is_boolean for _, is_boolean in found)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return choices(args[0])[0], False
    return (), False


def _suggestions(name: str, configs: Sequence[Any]) -> tuple[str, ...]:
    """Returns values to offer for a flag that takes others as well, such as a path."""
    last = name.rpartition(".")[2]
    if last == "config":
        kinds = [config if isinstance(config, type) else type(config) for config in configs]
        kind = FinetuneConfig if FinetuneConfig in kinds else PretrainConfig
        return tuple(config_names(kind))
    if last == "task":
        from bertjax.tasks import TASKS

        kinds = [config if isinstance(config, type) else type(config) for config in configs]
        return (*TASKS, *([GLUE_TASK] if FinetuneConfig in kinds else []))
    return tuple(shipped_names()) if last in ("model", "init", "teacher", "tokenizer") else ()


def parse(argv: Sequence[str] | None = None) -> CompletionConfig:
    """Parses the command-line flags."""
    return command_line.parse(
        CompletionConfig,
        argv,
        command="completion",
        description="Prints a script that completes the commands and flags of bertjax in a shell: "
        'eval "$(bertjax completion bash)".',
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags, prints the script and returns the exit status."""
    return signals.run_reporting_errors(lambda: run(parse(argv)))


if __name__ == "__main__":
    signals.leave(main())
