"""Reads config files, and compares a config with the saved config of a run."""

import ast
import dataclasses
import difflib
import importlib.machinery
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from bertjax.base.checked import Checked, dataclass_in
from bertjax.base.files import did_you_mean
from bertjax.config.finetune_config import FinetuneConfig
from bertjax.config.pretrain_config import PretrainConfig
from bertjax.config.training import TrainingConfig

Config = TypeVar("Config")


_FOLDERS: dict[type[Any], str] = {PretrainConfig: "pretrain", FinetuneConfig: "finetune"}


def load_config_file(path: str | None, config_class: type[Config]) -> Config:
    """Executes the config file `path` and returns its `config`; without a path, `config_class()`.

    `path` may also be the name of a config that comes with bertjax, such as "bert_base", or its
    path in the repository, such as "configs/pretrain/bert_base.py".

    Raises:
        FileNotFoundError: there is no such file; the message suggests the most similar name.
        ValueError: the file does not define a `config` of the class `config_class`, or raises
            TypeError, for example because it sets an unknown field.
    """
    if not path:
        return config_class()
    file = _find_config_file(path, config_class)
    loader = importlib.machinery.SourceFileLoader("bertjax_run_config", str(file))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except TypeError as error:
        raise ValueError(f"{file}: {error}. {_nearest_field(str(error))}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if not isinstance(getattr(module, "config", None), config_class):
        name = config_class.__name__
        raise ValueError(
            f"{file} defines no `config` of type {name}: end it with `config = {name}(...)`."
        )
    return module.config


def _nearest_field(message: str) -> str:
    """Returns advice for the message of a TypeError that a config file raised."""
    unknown = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", message)
    for config_class in (*Checked.__subclasses__(), *TrainingConfig.__subclasses__()):
        if unknown and config_class.__name__ == unknown[1]:
            return _known_fields(config_class, unknown[2])
    return "Check the types of the values in this file."


def _known_fields(config_class: type[Any], name: str) -> str:
    known = [field.name for field in dataclasses.fields(config_class)]
    return f"{did_you_mean(name, known)}Fields of {config_class.__name__}: {', '.join(known)}."


def config_from(
    config_class: type[Config], config: Config | None, fields: Mapping[str, Any]
) -> Config:
    """Returns a copy of `config` with the fields in `fields` replaced, for the Python API.

    Args:
        config_class: the class of the config.
        config: an instance of `config_class`; None: the default config.
        fields: {field name: value}, values that replace the config's. For a tuple field, a list
            or a single value is converted to a tuple. For a field that is a config itself,
            such as `optimizer`, a dictionary replaces only the nested fields that it names.

    Raises:
        TypeError: `config` is not an instance of `config_class`, or a name in `fields` is unknown;
            the message suggests the field with the most similar name.
    """
    if config is not None and not isinstance(config, config_class):
        raise TypeError(
            f"{config!r:.80} is a {type(config).__name__}: pass a {config_class.__name__}, or its "
            "fields as keyword arguments."
        )
    base: Any = config_class if config is None else config
    types = {field.name: str(field.type) for field in dataclasses.fields(base)}
    hints = get_type_hints(config_class)
    values = {}
    for name, value in fields.items():
        if name not in types:
            raise TypeError(f"Unknown field {name!r}. {_suggested(config_class, name, value)}")
        if isinstance(value, dict) and (nested := dataclass_in(hints[name])) is not None:
            value = config_from(nested, getattr(base, name, None), value)
        if types[name].startswith("tuple") and not isinstance(value, tuple | list):
            value = (value,)
        values[name] = value
    if config is None:
        return config_class(**values)
    return dataclasses.replace(base, **values)


def _suggested(config_class: type[Any], name: str, value: Any) -> str:
    """Returns the advice to set the field with the most similar name, maybe of a nested config."""
    last = name.rsplit(".", 1)[-1]
    hints = get_type_hints(config_class)
    nested = {
        inner.name: field.name
        for field in dataclasses.fields(config_class)
        if (part := dataclass_in(hints[field.name])) is not None
        for inner in dataclasses.fields(part)
    }
    known = [field.name for field in dataclasses.fields(config_class)]
    similar = difflib.get_close_matches(last, [*known, *nested], n=1, cutoff=0.4)
    if similar and similar[0] not in known:
        return f"Write {nested[similar[0]]}={{{similar[0]!r}: {value!r}}}."
    return _known_fields(config_class, name)


def config_names(config_class: type[Any]) -> list[str]:
    """Returns the names of the configs of a class that come with bertjax, such as "bert_base"."""
    folder = _config_folder() / _FOLDERS[config_class]
    return sorted(file.stem for file in folder.glob("[!_]*.py"))


def config_summaries(config_class: type[Any]) -> list[tuple[str, str]]:
    """Returns (name, first line of the docstring) of each config that comes with bertjax."""
    folder = _config_folder() / _FOLDERS[config_class]
    summaries = []
    for name in config_names(config_class):
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        summaries.append((name, str(ast.get_docstring(tree)).partition("\n")[0]))
    return summaries


def _config_folder() -> Path:
    """Returns bertjax/configs if installed, else configs/ beside the package, as in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    if installed.is_dir():
        return installed
    return package.parent / "configs"


def _find_config_file(path: str, config_class: type[Any]) -> Path:
    if Path(path).is_file():
        return Path(path)
    folder = _config_folder()
    names = config_names(config_class)
    if path in names:
        return folder / _FOLDERS[config_class] / f"{path}.py"
    relative = Path(path).relative_to("configs") if path.startswith("configs/") else Path(path)
    if (folder / relative).is_file():
        return folder / relative
    is_name = Path(path).name == path and not path.endswith(".py")
    known = sorted(f"configs/{file.relative_to(folder)}" for file in folder.glob("*/[!_]*.py"))
    hint = did_you_mean(path, names if is_name else known)
    raise FileNotFoundError(
        f"No config file {path!r}. {hint}Configs that come with bertjax: {', '.join(names)}; or "
        "give the path of a Python file."
    )


def differences(
    config: Mapping[str, Any],
    saved: Mapping[str, Any],
    ignore: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """Lists the fields in which `config` and `saved` differ, as `name: saved value -> new value`.

    Configs are nested dictionaries; a nested field has a name like `optimizer.learning_rate`.

    Args:
        config: the new config.
        saved: the saved config.
        ignore: fields to leave out of the list; each entry is the full name of a field, or the
            first or the last component of the name.
        defaults: the default config, which fills in the fields that an older version did not save.
    """
    new, old, known = (
        _flatten(json.loads(json.dumps(fields))) for fields in (config, saved, defaults or {})
    )
    old = {key: value for key, value in known.items() if key in new} | old
    return [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in sorted(new.keys() | old.keys())
        if not {key, key.split(".")[0], key.split(".")[-1]} & {*ignore}
        and old.get(key) != new.get(key)
    ]


def defaults_of(config: Any, default: Any = None) -> dict[str, Any]:
    """Returns the default values of a config's fields; nested dataclasses become dictionaries.

    The defaults are the values of the instance `default` or, if it is None, the declared ones;
    fields without a default are left out.
    """
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        standard = getattr(default, field.name, field.default)
        if dataclasses.is_dataclass(value):
            nested = None
            if dataclasses.is_dataclass(standard):
                nested = standard
            defaults[field.name] = defaults_of(value, nested)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            defaults[field.name] = [defaults_of(item) for item in value]
        elif standard is not dataclasses.MISSING:
            defaults[field.name] = standard
    return defaults


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        children = tree.items()
    elif isinstance(tree, list):
        children = ((str(index), value) for index, value in enumerate(tree))
    else:
        return {prefix: tree}
    return {
        key: value
        for name, child in children
        for key, value in _flatten(child, f"{prefix}.{name}" if prefix else name).items()
    }
