"""Prints the script of a shell that completes commands, flags and values: `bertjax completion`.

The scripts are tyro's. They hold all names, so that completing imports nothing of bertjax. Print
them anew after an update.
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import operator
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro
from tyro.constructors import MISSING_NONPROP, PrimitiveConstructorSpec, StructFieldSpec

from bertjax.base import command_line, signals
from bertjax.config import FinetuneConfig, PretrainConfig, config_names
from bertjax.config.finetune_config import GLUE_TASK
from bertjax.shipped import shipped_names

# {shell: the last line of tyro's script}. It is replaced by bertjax/shipped/completion.SHELL, with
# which names may be written --like-this and --flag=VALUE, and files are offered where nothing is.
_LAST_LINES = {"bash": "", "zsh": '_tyro_bertjax "$@"', "fish": ""}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """Config of `bertjax.completion`."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Shell whose completion is printed."""


def run(config: CompletionConfig) -> None:
    """Prints the completion script of `config.shell` to standard output."""
    print(completion_script(config.shell), end="")


def completion_script(shell: str) -> str:
    """Returns the script for `shell`, which is "bash", "zsh" or "fish".

    The modules of all commands are imported, and their `parse` tells the flags; errors are those of
    `declared`.
    """
    from bertjax.__main__ import COMMANDS

    boxes: Sequence[command_line.Box] = ()
    registry = command_line.registry_of(lambda field: _completed(field, boxes))
    commands: list[Any] = []
    with registry:
        for name in COMMANDS:
            boxes = declared(name)
            flags: Any = command_line.type_of_flags(boxes, (), "all")
            commands.append(Annotated[flags, tyro.conf.subcommand(name)])
    args = ["--tyro-write-completion", shell, "-"]
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        tyro.cli(
            functools.reduce(operator.or_, commands),
            prog="bertjax",
            args=args,
            registry=registry,
            **command_line.TYRO,
        )
    end = (files("bertjax.shipped") / f"completion.{shell}").read_text(encoding="utf-8")
    return f"{text.getvalue().rstrip().removesuffix(_LAST_LINES[shell])}\n{end}"


def declared(command: str) -> Sequence[command_line.Box]:
    """Returns the boxes of all flags of `command`.

    Raises TypeError if its function `parse` does not pass its `argv` to `command_line`.
    """
    try:
        importlib.import_module(f"bertjax.{command}").parse(command_line.DECLARED_ONLY)
    except command_line.Declared as declared:
        return declared.boxes
    raise TypeError(f"bertjax.{command}.parse does not pass `argv` to `command_line`.")


def _completed(field: StructFieldSpec, boxes: Sequence[command_line.Box]) -> StructFieldSpec:
    """Returns a field of a command with a short help text and the values to offer."""
    field_type = field.type
    default = field.default
    parts = get_args(field_type)
    if field.name == "shell":  # tyro completes the names of commands, and no other positionals
        nothing: Any = command_line.type_of_flags((), (), "all")
        shells = (tyro.conf.subcommand(shell, prefix_name=False) for shell in _LAST_LINES)
        field_type = functools.reduce(operator.or_, (Annotated[nothing, s] for s in shells))
    elif get_origin(field_type) is tuple and dataclasses.is_dataclass(parts[0]):  # phases
        field_type, default = tuple[parts[0], parts[0]], MISSING_NONPROP  # two phases
    elif str in (field_type, *parts) and (values := _suggestions(field.name, boxes)):
        spec = PrimitiveConstructorSpec(
            nargs=1,
            metavar="NAME",
            instance_from_str=lambda words: words[0],
            is_instance=lambda value: True,
            str_from_instance=lambda value: [str(value)],
            choices=values,
        )
        field_type = Annotated[str, spec]
        default = str(default)
    # The first clause of the first sentence.
    text = re.split(r"[.;:](?:\s|$)|\s\(", command_line.help_of(field), maxsplit=1)[0]
    return dataclasses.replace(field, type=field_type, default=default, helptext=text)


def _suggestions(name: str, boxes: Sequence[command_line.Box]) -> tuple[str, ...]:
    """Returns values to offer for a flag that takes others as well, such as a path."""
    is_finetuning = any(isinstance(box.config, FinetuneConfig) for box in boxes)
    if name == "config":
        return tuple(config_names(FinetuneConfig if is_finetuning else PretrainConfig))
    if name == "task":
        from bertjax.tasks import TASKS

        if is_finetuning:
            return (*TASKS, GLUE_TASK)
        return tuple(TASKS)
    if name in ("model", "init", "teacher", "tokenizer"):
        return tuple(shipped_names())
    return ()


parse, main = command_line.command_of(
    CompletionConfig,
    run,
    "completion",
    "Prints a script that completes the commands and flags of bertjax in a shell: "
    'eval "$(bertjax completion bash)".',
)


if __name__ == "__main__":
    signals.leave(main())
