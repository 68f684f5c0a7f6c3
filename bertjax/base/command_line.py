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
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

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
from bertjax.base.checked import Checked, dataclass_in
from bertjax.base.files import did_you_mean
from bertjax.base.printable import printable_output

Config = TypeVar("Config")

TYRO: dict[str, Any] = {
    "use_underscores": True,
    "config": (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName),
}
_TRUTH = {"true": "True", "false": "False"}


# A command's `parse`, given this very list as `argv`, raises `Declared` instead of parsing.
DECLARED_ONLY: list[str] = []


class Declared(Exception):
    """Raised in place of parsing `DECLARED_ONLY`, to tell which flags a command has.

    The flags are those of `boxes`.
    """

    def __init__(self, boxes: Sequence["Box"]):
        super().__init__("The flags were asked for, and not parsed.")
        self.boxes = boxes


class Box(NamedTuple):
    """Flags that stand in one box of `--help`: fields of a dataclass.

    Attributes:
        title: the title of the box; "": that of --help and --version.
        config: the dataclass, or an instance whose values are the defaults.
        names: the fields that are flags; None: all. The others keep their values.
    """

    title: str
    config: Any
    names: Collection[str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigFlags(Checked):
    """Base class of the flags of the commands that read a config file, named by `--config`."""

    config: str | None = None
    """Config file with the defaults of the other flags, or a name such as bert_base; None: in
    bertjax.finetune, that of the task."""


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
    return parse_boxes([Box("", config)], argv, command=command, description=description)[0]


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


def run_boxes(title: str, config: Any, base: type[Any], hidden: Collection[str] = ()) -> list[Box]:
    """Returns the boxes of a run's config: that of its own fields, and that of its `base` class.

    Fields in `hidden` are no flags.
    """
    shared = {field.name for field in dataclasses.fields(base)} - {*hidden}
    names = {field.name for field in dataclasses.fields(config)} - {*hidden}
    return [Box(title, config, names - shared), Box("training", config, names & shared)]


def parse_boxes(
    boxes: Sequence[Box],
    argv: Sequence[str] | None,
    *,
    command: str,
    description: str,
    hint: Callable[[str], str] = lambda flag: "",
) -> list[Any]:
    """Parses the flags of several configs together.

    A field that may be None or a dataclass, such as `lora`, has flags if one of them is given or
    the field is set. `--help` shows a line for each dataclass in a config, `--help all` its flags.

    Args:
        boxes: the flags; no two boxes have the same flag.
        hint: function (name of an unknown flag) -> what is said about it; "": the nearest flag.

    Returns the configs of the boxes, each once. Other arguments and errors are as in `parse`.
    """
    if argv is DECLARED_ONLY:
        raise Declared(boxes)
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
    detail = _detail(argv)
    argv = ["--help"] if detail else argv
    types = {name: kind for box in boxes for name, kind in _flag_types(box)}
    booleans = {name for name, kind in types.items() if bool in (kind, *get_args(kind))}
    argv = _with_values(argv, booleans)
    if booleans:
        intro, gap, more = description.partition("\n")
        description = f"{intro} --no_FLAG sets a BOOL to False.{gap}{more}"
    if unknown := [*_unknown_flags(argv, types, booleans, hint)]:
        lines = [
            f"bertjax {command} has no flag {flag}. {about}".rstrip() for flag, about in unknown
        ]
        refuse("\n".join([*lines, f"All flags: python -m bertjax.{command} --help"]))
    given = {word.removeprefix("--").partition("=")[0].replace("-", "_") for word in argv}
    if not detail and (missing := ", ".join(_missing_flags(boxes, given))):
        refuse(f"{missing} must be given. All flags: python -m bertjax.{command} --help")
    groups = {flag.partition(".")[0] for flag in given}
    registry = registry_of(_with_help_on_one_line)
    with registry:
        root: Any = type_of_flags(boxes, groups, detail)
    with printable_output(wanted=False):  # tyro colours what it prints
        return tyro.cli(
            root,
            prog=f"python -m bertjax.{command}",
            description=description,
            args=argv,
            registry=registry,
            **TYRO,
        )


def _detail(argv: Sequence[str]) -> Literal["", "brief", "all"]:
    """Returns which help is asked for."""
    for word, following in itertools.zip_longest(argv, argv[1:]):
        if word in ("--help", "-h"):
            return "all" if following == "all" else "brief"
        if word == "--help=all":
            return "all"
    return ""


def refuse(message: str) -> NoReturn:
    """Ends the process because of a wrong command line: prints the error, exits with status 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


class _Group:
    spec: StructConstructorSpec


def registry_of(changed: Callable[[StructFieldSpec], StructFieldSpec]) -> ConstructorRegistry:
    """Returns a tyro registry that knows `_Group` types and applies `changed` to every field."""
    registry = ConstructorRegistry()
    inside = False

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


def type_of_flags(boxes: Sequence[Box], groups: Collection[str], detail: str = "") -> type[_Group]:
    """Returns a type for tyro whose fields are the flags of `boxes`.

    `tyro.cli` with this type parses the flags and returns the list of configs. `groups` are the
    dataclasses in configs of which a flag is given, and `detail` is that of `--help`, if any.
    """
    version = "Print the version and exit."
    top = [StructFieldSpec(name="version", type=bool, default=False, helptext=version)]
    fields = list(top)
    for box in boxes:
        shown = [*_fields_of(box, groups, detail)]
        if box.title:
            kind = _group(dict, shown)
            fields.append(
                StructFieldSpec(name=box.title, type=kind, default=MISSING_NONPROP, helptext="")
            )
        else:
            fields += shown

    def instantiate(**values: Any) -> list[Any]:
        for box in boxes:
            values |= values.pop(box.title, {})
        configs: dict[int, Any] = {}
        for box in boxes:
            if id(box.config) not in configs:
                try:
                    configs[id(box.config)] = _with_fields(box.config, values)
                except ValueError as error:  # tyro would put it into a box
                    refuse(str(error))
        return [*configs.values()]

    return _group(instantiate, fields)


def _with_fields(config: Any, values: Mapping[str, Any]) -> Any:
    """Returns the dataclass or instance `config` with those of `values` that are its fields."""
    own = {f.name: values[f.name] for f in dataclasses.fields(config) if f.name in values}
    if isinstance(config, type):
        return config(**own)
    return dataclasses.replace(config, **own)


def _fields_of(box: Box, groups: Collection[str], detail: str) -> Iterator[StructFieldSpec]:
    """Yields tyro's fields of a box: those of which flags are given or shown."""
    config_class = _class_of(box.config)
    default = MISSING_NONPROP if isinstance(box.config, type) else box.config
    info = StructTypeInfo.make(config_class, default, in_union_context=False)
    spec = ConstructorRegistry.get_struct_spec(info)
    assert isinstance(spec, StructConstructorSpec)
    for field in spec.fields:
        if box.names is not None and field.name not in box.names:
            continue
        nested = dataclass_in(field.type)
        if nested is not None and detail == "brief":
            yield _summary_of(field)
            continue
        if nested is not None and nested is not field.type:
            if field.default is None and field.name not in groups and detail != "all":
                continue
            value = MISSING_NONPROP if field.default is None else field.default
            field = dataclasses.replace(field, type=nested, default=value)
        about = tyro.conf.arg(prefix_name=False, metavar=_metavar(field.type))
        markers = (about, tyro.conf.FlagConversionOff)
        yield dataclasses.replace(field, type=Annotated[field.type, *markers])


_METAVARS = {int: "INT", float: "FLOAT", str: "STR", bool: "BOOL"}


def _metavar(kind: Any) -> str | None:
    """Returns what help calls the value of a flag that takes a single number, string or truth."""
    parts = [kind]
    if get_origin(kind) in (Union, types.UnionType):
        parts = [part for part in get_args(kind) if part is not type(None)]
    if len(parts) > 1:
        return None
    plain = get_args(parts[0])[0] if get_origin(parts[0]) is Annotated else parts[0]
    return _METAVARS.get(plain)


def _summary_of(field: StructFieldSpec) -> StructFieldSpec:
    """Returns the field that stands for the flags of a dataclass in a short help."""
    shown = tyro.conf.arg(prefix_name=False, metavar="VALUE", help_behavior_hint="")
    return dataclasses.replace(
        field, name=f"{field.name}.FIELD", type=Annotated[str, shown], default=""
    )


def _class_of(config: Any) -> type:
    if isinstance(config, type):
        return config
    return type(config)


def _flag_types(box: Box) -> Iterator[tuple[str, Any]]:
    """Yields (flag, type) of a box: "optimizer.learning_rate", "phases.0.num_steps", ..."""
    for name, kind in get_type_hints(_class_of(box.config)).items():
        if name not in box.config.__dataclass_fields__:
            continue  # a class variable
        if box.names is not None and name not in box.names:
            continue
        nested = dataclass_in(kind)
        if nested is not None:
            value = getattr(box.config, name, None) or nested
            for flag, inner in _flag_types(Box("", value)):
                yield f"{name}.{flag}", inner
            continue
        yield name, kind
        for part in get_args(kind):
            if dataclasses.is_dataclass(part) and getattr(box.config, name, ()):
                for flag, inner in _flag_types(Box("", part)):
                    yield f"{name}.0.{flag}", inner


def _unknown_flags(
    argv: Sequence[str],
    known: Collection[str],
    booleans: Collection[str],
    hint: Callable[[str], str],
) -> Iterator[tuple[str, str]]:
    """Yields (a flag in `argv` that is unknown, what is said about it)."""
    for word in argv:
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        first = re.sub(r"\.\d+\.", ".0.", name)
        if not word.startswith("--") or not name or first in (*known, "help", "version"):
            continue
        name = re.sub(r"\blr$", "learning_rate", name)  # its name in PyTorch
        # The most frequent mistake is to leave out the name of the nested config.
        nested = [f"--{n}" for n in sorted(known) if n.endswith(f".{name}")]
        if name.startswith("phases.") and not any(n.startswith("phases.") for n in known):
            yield flag, "Flags change the phases of a config: add --config FILE."
        elif about := hint(name):
            yield flag, about
        elif nested:
            yield flag, f"Did you mean {' or '.join(nested)}?"
        else:
            similar = {*known}
            if name.startswith("no_"):  # `--strip_accents` would reverse `--no_strip_accent`
                similar -= {*booleans}
                similar |= {f"no_{n}" for n in booleans}
            yield flag, did_you_mean(f"--{name}", [f"--{n}" for n in sorted(similar)])


def _missing_flags(boxes: Sequence[Box], given: Collection[str]) -> Iterator[str]:
    """Yields the flags without a default that `given` lacks; arguments without a name are none."""
    for box in boxes:
        if isinstance(box.config, type):
            for name, field in inspect.signature(box.config).parameters.items():
                has_name = tyro.conf.Positional not in get_args(field.annotation)
                if field.default is field.empty and has_name and name not in given:
                    yield f"--{name}"


def _with_values(argv: Sequence[str], flags: Collection[str]) -> list[str]:
    """Returns `argv` with every boolean flag rewritten as `--flag=True` or `--flag=False`."""
    booleans = {flag.rpartition(".")[2] for flag in flags}
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
