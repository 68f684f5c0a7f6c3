"""What the commands share: flags from dataclasses, help in groups, errors as one line."""

import dataclasses
import inspect
import itertools
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import (
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

import bertjax

Config = TypeVar("Config")
Flags = TypeVar("Flags")

# Boxes of `--help`, in this order. `GROUPS` of a config says which fields are in which; a field
# that is in none is shown beside --help.
GROUPS = ("data", "model", "training", "hardware", "output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigFlags:
    """The flag of commands that read a config file."""

    config: str | None = None
    """Config file, which sets the defaults of all other flags: Python that defines `config`, in the
    current folder or among the files of the package; None: no file."""


def parse(
    config: type[Config] | Config, argv: Sequence[str] | None, *, command: str, description: str
) -> Config:
    """Reads the flags of a command.

    Flags may be written `--like_this` or `--like-this`, with or without `=`; nested fields are
    `--optimizer.learning_rate`. Exits with status 2 on an unknown flag, naming the nearest one.

    Args:
        config: a dataclass, or an instance whose values are the defaults.
        argv: the flags; None: those of the process.
        command: its name, as in `python -m bertjax.COMMAND`.
        description: the first sentence of `--help`.
    """
    return _parse((config,), argv, command, description)[0]


def parse_both(
    flags: type[Flags],
    config: type[Config] | Config,
    argv: Sequence[str] | None,
    *,
    command: str,
    description: str,
) -> tuple[Flags, Config]:
    """Reads flags of the command alone and the fields of a run's config, all in one command line.

    The arguments are those of `parse`; no field may be in both classes.
    """
    first, second = _parse((flags, config), argv, command, description)
    return first, second


def _parse(
    configs: Sequence[Any], argv: Sequence[str] | None, command: str, description: str
) -> list[Any]:
    argv = arguments(argv)
    if "--version" in argv:
        print(f"bertjax {bertjax.__version__}")
        raise SystemExit(0)
    registry = _registry()
    with registry:
        root: Any = _root(configs)
    return tyro.cli(
        root,
        prog=f"python -m bertjax.{command}",
        description=description,
        args=argv,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName),
        registry=registry,
    )


class _Group:
    """Fields that tyro shows in one box of `--help`; the flags do not have its name."""

    spec: StructConstructorSpec


def _registry() -> ConstructorRegistry:
    """Tells tyro about groups, and to show the docstring of a field without its line breaks."""
    registry, inside = ConstructorRegistry(), False

    @registry.struct_rule
    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        nonlocal inside
        if isinstance(info.type, type) and issubclass(info.type, _Group):
            return info.type.spec
        if inside or not dataclasses.is_dataclass(info.type):
            return None
        inside = True  # now tyro's own rule answers
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            inside = False
        assert isinstance(spec, StructConstructorSpec)
        fields = [dataclasses.replace(f, helptext=_on_one_line(f.helptext)) for f in spec.fields]
        return dataclasses.replace(spec, fields=tuple(fields))

    return registry


def _on_one_line(helptext: Any) -> Callable[[], str | None]:
    def text() -> str | None:
        sentence: Any = helptext() if callable(helptext) else helptext
        return sentence and " ".join(sentence.split())

    return text


def _group(instantiate: Callable[..., Any], fields: Sequence[StructFieldSpec]) -> type[_Group]:
    spec = StructConstructorSpec(instantiate=instantiate, fields=tuple(fields))
    return type("the flags", (_Group,), {"spec": spec})  # "Error parsing the flags: ..."


def _root(configs: Sequence[Any]) -> type[_Group]:
    """All fields of the configs in their groups; tyro makes it a list of the configs."""
    classes = [config if isinstance(config, type) else type(config) for config in configs]
    version = "Print the version and exit."
    ungrouped = [StructFieldSpec(name="version", type=bool, default=False, helptext=version)]
    grouped: dict[str, list[StructFieldSpec]] = {name: [] for name in GROUPS}
    for config, config_class in zip(configs, classes, strict=True):
        default = MISSING_NONPROP if isinstance(config, type) else config
        spec = ConstructorRegistry.get_struct_spec(
            StructTypeInfo.make(config_class, default, in_union_context=False)
        )
        assert isinstance(spec, StructConstructorSpec)
        for field in spec.fields:
            group = group_of(config_class, field.name)
            if group is None:
                ungrouped.append(field)
                continue
            without_prefix: Any = Annotated[field.type, tyro.conf.arg(prefix_name=False)]
            grouped[group].append(dataclasses.replace(field, type=without_prefix))

    def instantiate(**values: Any) -> list[Any]:
        for name in GROUPS:
            values |= values.pop(name, {})
        return [
            config_class(**{f.name: values[f.name] for f in dataclasses.fields(config_class)})
            for config_class in classes
        ]

    groups = [
        StructFieldSpec(name=name, type=_group(dict, fields), default=MISSING_NONPROP, helptext="")
        for name, fields in grouped.items()
        if fields
    ]
    return _group(instantiate, [*ungrouped, *groups])


def group_of(config_class: type, field: str) -> str | None:
    """The box of `--help` that shows a field; None: the one of --help itself."""
    groups: dict[str, str] = getattr(config_class, "GROUPS", {})
    return next((group for group, fields in groups.items() if field in fields.split()), None)


def arguments(argv: Sequence[str] | None) -> list[str]:
    """The flags; those of the process for None."""
    return list(sys.argv[1:] if argv is None else argv)


def value_of(flag: str, argv: Sequence[str] | None) -> str | None:
    """The value that a flag has in the command line, before all is parsed; None without it."""
    value = None
    words = arguments(argv)
    for word, following in itertools.zip_longest(words, words[1:], fillvalue="--"):
        name, equals, after = word.partition("=")
        if name == f"--{flag}" and (equals or not following.startswith("--")):
            value = after if equals else following
    return value


def write_json(content: Any, where: str) -> None:
    """Writes what `--json FILE` asks for; "-" is the terminal."""
    text = json.dumps(content, indent=2) + "\n"
    if where == "-":
        print(text, end="")
    else:
        Path(where).write_text(text, encoding="utf-8")


def run_reporting_errors(run: Callable[[], Any]) -> int:
    """Calls `run` and returns an exit status; errors of the input are shown as one line.

    Set BERTJAX_TRACEBACK=1 to see where an error came from.
    """
    try:
        run()
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("BERTJAX_TRACEBACK"):
            traceback.print_exc()
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(
            f"{str(interrupt) or 'interrupted'}; run the same command again to resume",
            file=sys.stderr,
        )
        return 130
    return 0


class CallableModule(types.ModuleType):
    """The module of a command that is a function of the Python API as well.

    `bertjax.prepare` is a module, with `main` and `parse`; `bertjax.prepare(...)` calls its
    function of the same name. A module becomes callable by
    `sys.modules[__name__].__class__ = CallableModule`.
    """

    def _function(self) -> Callable[..., Any]:
        return getattr(self, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function()(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())
