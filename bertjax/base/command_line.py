"""Command-line code shared by all commands: flags from dataclasses, and help."""

import dataclasses
import inspect
import itertools
import json
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import (
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

import bertjax
from bertjax.base import signals
from bertjax.base.checked import Checked
from bertjax.base.files import did_you_mean
from bertjax.base.printable import printable_output

Config = TypeVar("Config")
Flags = TypeVar("Flags")

# The boxes of `--help`, in order. A config's `GROUPS` maps each box to its fields; a field in no
# group is listed in the first box, which contains --help.
GROUPS = ("data", "model", "training", "hardware", "output")

TYRO: dict[str, Any] = {
    "use_underscores": True,
    "config": (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName),
}
_TRUTH = {"true": "True", "false": "False"}


# A command's `parse`, given this very list as `argv`, raises `Declared` instead of parsing.
DECLARED_ONLY: list[str] = []


class Declared(Exception):
    """Raised in place of parsing `DECLARED_ONLY`, to tell which flags a command has.

    The flags are the fields of `configs`, dataclasses or instances, except the fields in `hidden`.
    """

    def __init__(self, configs: Sequence[Any], hidden: Collection[str]):
        super().__init__("The flags were asked for, and not parsed.")
        self.configs, self.hidden = configs, hidden


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigFlags(Checked):
    """Base class of the flags of the commands that read a config file, named by `--config`."""

    config: str | None = None
    """Config file whose values are the defaults of the other flags: a Python file that defines the
    variable `config`, or the name of a config that comes with bertjax, such as bert_base; a path
    such as configs/pretrain/bert_base.py that the current folder does not have is looked up among
    these; None: in bertjax.finetune, configs/finetune/TASK.py; bertjax.pretrain (but for --export),
    plan and benchmark require --config, because there are no default phases."""


def parse(
    config: type[Config] | Config, argv: Sequence[str] | None, *, command: str, description: str
) -> Config:
    """Parses the flags in `argv` (None: `sys.argv[1:]`) and returns the command's config.

    Flags may be written `--like_this` or `--like-this`, with or without `=`; a nested field is
    written `--optimizer.learning_rate`.

    Args:
        config: a config dataclass, or an instance whose values are the defaults.
        command: the name of the command, as in `python -m bertjax.COMMAND`.
        description: the description of the command that `--help` prints.

    Raises:
        SystemExit: a flag is unknown, for which similar ones are named, or has a wrong value
            (status 2); or the help or the version was requested and printed (status 0).
        Declared: `argv` is the list `DECLARED_ONLY`, so that nothing was parsed.
    """
    return _parse((config,), argv, command, description)[0]


def command_of(
    config: type[Config],
    run: Callable[[Config], Any],
    command: str,
    description: str,
    memory_remedy: str = "",
) -> tuple[Callable[..., Config], Callable[..., int]]:
    """Returns the functions `parse(argv=None)` and `main(argv=None)` of a command.

    `parse` is this module's with the other arguments given; `main` runs the command as its flags
    say, and returns the exit status (see `signals.run_reporting_errors`).
    """

    def parse_flags(argv: Sequence[str] | None = None) -> Config:
        return parse(config, argv, command=command, description=description)

    def main(argv: Sequence[str] | None = None) -> int:
        return signals.run_reporting_errors(lambda: run(parse_flags(argv)), memory_remedy)

    return parse_flags, main


def parse_both(
    flags: type[Flags],
    config: type[Config] | Config,
    argv: Sequence[str] | None,
    *,
    command: str,
    description: str,
    hidden: Collection[str] = (),
) -> tuple[Config, Flags]:
    """Parses a command line that mixes the command's own flags with the fields of a run's config.

    `flags` and `config` must not have a field of the same name; `--help` does not list the fields
    of `config` in `hidden`. Other arguments and errors are as in `parse`.
    """
    first, second = _parse((flags, config), argv, command, description, hidden)
    return second, first


def _parse(
    configs: Sequence[Any],
    argv: Sequence[str] | None,
    command: str,
    description: str,
    hidden: Collection[str] = (),
) -> list[Any]:
    if argv is DECLARED_ONLY:
        raise Declared(configs, hidden)
    argv = arguments(argv)
    if "--version" in argv:
        print(f"bertjax {bertjax.__version__}")
        raise SystemExit(0)
    for word in argv:
        if re.search("[\ud800-\udfff]", word):
            refuse(
                f"{ascii(word)} is not UTF-8, which names of files and texts must be: rename the "
                "file or its folder."
            )
    registry = registry_of(_with_help_on_one_line)
    with registry:
        root: Any = type_of_flags(configs, hidden)
    types = {name: t for config in configs for name, t in _flag_types(config)}
    argv = _with_values(argv, types)
    if unknown := [*_unknown_flags(argv, types, hidden)]:
        lines = [f"bertjax {command} has no flag {flag}. {hint}".rstrip() for flag, hint in unknown]
        refuse("\n".join([*lines, f"All flags: python -m bertjax.{command} --help"]))
    with printable_output(wanted=False):  # tyro colours what it prints
        return tyro.cli(
            root,
            prog=f"python -m bertjax.{command}",
            description=description,
            args=argv,
            registry=registry,
            **TYRO,
        )


def refuse(message: str) -> NoReturn:
    """Ends the process because of a wrong command line: prints the error, exits with status 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


class _Group:
    spec: StructConstructorSpec


def registry_of(changed: Callable[[StructFieldSpec], StructFieldSpec]) -> ConstructorRegistry:
    """Returns a tyro registry that knows `_Group` types and applies `changed` to every field."""
    registry, inside = ConstructorRegistry(), False

    @registry.struct_rule
    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        nonlocal inside
        if isinstance(info.type, type) and issubclass(info.type, _Group):
            return info.type.spec
        if inside or not dataclasses.is_dataclass(info.type):
            return None
        inside = True  # lets tyro's own rule apply
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            inside = False
        assert isinstance(spec, StructConstructorSpec)
        return dataclasses.replace(spec, fields=tuple(map(changed, spec.fields)))

    return registry


def help_of(field: StructFieldSpec) -> str:
    """Returns the help text of a field, on one line."""
    text = field.helptext() if callable(field.helptext) else field.helptext
    return " ".join((text or "").split())


def _with_help_on_one_line(field: StructFieldSpec) -> StructFieldSpec:
    return dataclasses.replace(field, helptext=lambda: help_of(field) or None)


def _group(instantiate: Callable[..., Any], fields: Sequence[StructFieldSpec]) -> type[_Group]:
    spec = StructConstructorSpec(instantiate=instantiate, fields=tuple(fields))
    return type("the flags", (_Group,), {"spec": spec})  # "Error parsing the flags: ..."


def type_of_flags(configs: Sequence[Any], hidden: Collection[str]) -> type[_Group]:
    """Returns a type for tyro with the fields of all `configs`, in the boxes of `--help`.

    `tyro.cli` with this type parses the flags and returns the list of configs.
    """
    classes = [_class_of(config) for config in configs]
    version = "Print the version and exit."
    ungrouped = [StructFieldSpec(name="version", type=bool, default=False, helptext=version)]
    grouped: dict[str, list[StructFieldSpec]] = {name: [] for name in GROUPS}
    for config, config_class in zip(configs, classes, strict=True):
        # The order is that of GROUPS: a dataclass has the fields of its base class first.
        names = " ".join(getattr(config_class, "GROUPS", {}).values()).split()
        place = {name: index for index, name in enumerate(names)}
        for field in sorted(_fields_of(config), key=lambda field: place.get(field.name, -1)):
            group = group_of(config_class, field.name)
            if group is None:
                ungrouped.append(field)
                continue
            field_type: Any = Annotated[
                field.type, tyro.conf.arg(prefix_name=False), tyro.conf.FlagConversionOff
            ]
            if field.name in hidden:
                field_type = tyro.conf.Suppress[field_type]
            grouped[group].append(dataclasses.replace(field, type=field_type))

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


def _fields_of(config: Any) -> Sequence[StructFieldSpec]:
    default = MISSING_NONPROP if isinstance(config, type) else config
    info = StructTypeInfo.make(_class_of(config), default, in_union_context=False)
    spec = ConstructorRegistry.get_struct_spec(info)
    assert isinstance(spec, StructConstructorSpec)
    return spec.fields


def _class_of(config: Any) -> type:
    return config if isinstance(config, type) else type(config)


def _flag_types(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (flag, type) of a config: "optimizer.learning_rate", "phases.0.num_steps", ..."""
    for name, field_type in get_type_hints(_class_of(config)).items():
        if name not in config.__dataclass_fields__:
            continue  # a class variable
        if dataclasses.is_dataclass(field_type):
            yield from _flag_types(field_type, f"{prefix}{name}.")
            continue
        yield f"{prefix}{name}", field_type
        for part in get_args(field_type):
            if dataclasses.is_dataclass(part) and getattr(config, name, ()):
                yield from _flag_types(part, f"{prefix}{name}.0.")


def _unknown_flags(
    argv: Sequence[str], known: Collection[str], hidden: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yields (a flag in `argv` that is unknown, a hint at what is meant)."""
    suggested = sorted(name for name in known if name.partition(".")[0] not in hidden)
    for word in argv:
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        first = re.sub(r"\.\d+\.", ".0.", name)
        if not word.startswith("--") or not name or first in (*known, "help", "version"):
            continue
        name = re.sub(r"\blr$", "learning_rate", name)  # its name in PyTorch
        # The most frequent mistake is to leave out the name of the nested config.
        nested = [f"--{n}" for n in suggested if n.endswith(f".{name}")]
        if name.startswith("phases.") and not any(n.startswith("phases.") for n in known):
            yield flag, "Flags change the phases of a config: add --config FILE."
        elif nested:
            yield flag, f"Did you mean {' or '.join(nested)}?"
        else:
            yield flag, did_you_mean(f"--{name}", [f"--{n}" for n in suggested])


def _with_values(argv: Sequence[str], types: Mapping[str, Any]) -> list[str]:
    """Returns `argv` with every boolean flag rewritten as `--flag=True` or `--flag=False`."""
    booleans = {n.rpartition(".")[2] for n, t in types.items() if bool in (t, *get_args(t))}
    words: list[str] = []
    waiting = None  # the boolean flag that the next word may be the value of
    for word in [*argv, "--"]:
        truth = _TRUTH.get(word.lower())
        if waiting is not None:
            words.append(f"{waiting}={truth or True}")
        if waiting is not None and truth is not None:
            waiting = None
            continue
        waiting = None
        path, equals, value = word.partition("=")
        prefix, dot, name = path.removeprefix("--").replace("-", "_").rpartition(".")
        if path.startswith("--") and name in booleans:
            if equals:
                words.append(f"{path}={_TRUTH.get(value.lower(), value)}")
            else:
                waiting = path
        elif path.startswith("--") and name.removeprefix("no_") in booleans and not equals:
            words.append(f"--{prefix}{dot}{name.removeprefix('no_')}=False")
        else:
            words.append(word)
    return words[:-1]


def group_of(config_class: type, field: str) -> str | None:
    """Returns the box of `--help` that lists `field`, by `config_class.GROUPS`, or None."""
    groups: dict[str, str] = getattr(config_class, "GROUPS", {})
    return next((group for group, fields in groups.items() if field in fields.split()), None)


def arguments(argv: Sequence[str] | None) -> list[str]:
    """Returns `argv` as a list, or `sys.argv[1:]` if `argv` is None."""
    return list(sys.argv[1:] if argv is None else argv)


def value_of(flag: str, argv: Sequence[str] | None) -> str | None:
    """Returns the value of --`flag` in the unparsed command line `argv`; None if it is absent."""
    value = None
    words = arguments(argv)
    for word, following in itertools.zip_longest(words, words[1:], fillvalue="--"):
        name, equals, after = word.partition("=")
        if name == f"--{flag}" and (equals or not following.startswith("--")):
            value = after if equals else following
    return value


def write_json(content: Any, where: str) -> None:
    """Writes `content` as JSON to the file `where`, or to standard output if `where` is "-"."""
    text = json.dumps(content, indent=2) + "\n"
    if where == "-":
        print(text, end="")
    else:
        Path(where).write_text(text, encoding="utf-8")


class CallableModule(types.ModuleType):
    """Class that makes a command's module callable, after `sys.modules[__name__].__class__ = ...`.

    `bertjax.prepare` is a module with `main` and `parse`; `bertjax.prepare(...)` calls its
    function `prepare`.
    """

    def _function(self) -> Callable[..., Any]:
        return getattr(self, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function that has the name of the module with `args` and `kwargs`."""
        return self._function()(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())
