"""Config files, and how a config differs from the one that a run was started with."""

import dataclasses
import difflib
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertjax.config.distillation_config import DistillationConfig
from bertjax.config.finetune_config import FinetuneConfig
from bertjax.config.model import BertConfig
from bertjax.config.pretrain_config import Phase, PretrainConfig
from bertjax.config.training import DistributedConfig, MeshConfig, OptimizerConfig

Config = TypeVar("Config", PretrainConfig, FinetuneConfig)


def load_config_file(path: str | None, config_class: type[Config]) -> Config:
    """Runs a config file and returns its `config`, a `config_class`; without one, the defaults.

    Raises:
        FileNotFoundError: neither the current folder nor the package has it; nearest names said.
        ValueError: it defines no `config`.
    """
    if not path:
        return config_class()
    file = _find_config_file(path)
    spec = importlib.util.spec_from_file_location("bertjax_run_config", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except TypeError as error:
        raise ValueError(f"{file}: {error}. {_nearest_field(str(error))}") from error
    if not isinstance(getattr(module, "config", None), config_class):
        name = config_class.__name__
        raise ValueError(f"{file} defines no such `config`: end it with `config = {name}(...)`.")
    return module.config


def _nearest_field(message: str) -> str:
    """Which field was meant by an argument that no dataclass of ours has."""
    unknown = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", message)
    classes = (
        *(PretrainConfig, FinetuneConfig, Phase, OptimizerConfig, MeshConfig, BertConfig),
        *(DistillationConfig, DistributedConfig),
    )
    of_class = next((c for c in classes if unknown and c.__name__ == unknown[1]), None)
    if unknown is None or of_class is None:
        return "Check the types of its values."
    known = [field.name for field in dataclasses.fields(of_class)]
    nearest = difflib.get_close_matches(unknown[2], known, n=1, cutoff=0.0)[0]
    return f"Did you mean {nearest!r}? {of_class.__name__} knows: {', '.join(known)}."


def _find_config_file(path: str) -> Path:
    if Path(path).is_file():
        return Path(path)
    packaged = importlib.util.find_spec("bertjax.configs")
    roots = [Path(root) for root in (packaged and packaged.submodule_search_locations) or []]
    relative = Path(path).relative_to("configs") if path.startswith("configs/") else Path(path)
    for root in roots:
        if (root / relative).is_file():
            return root / relative
    known = sorted(f"configs/{f.relative_to(r)}" for r in roots for f in r.glob("*/[!_]*.py"))
    nearest = difflib.get_close_matches(path, known, n=1, cutoff=0.0)
    hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
    raise FileNotFoundError(f"No config file {path!r}. {hint}Known: {', '.join(known)}.")


def differences(
    now: Mapping[str, Any],
    saved: Mapping[str, Any],
    ignore: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """Names and values of the fields, flattened, in which a config differs from a saved one.

    Args:
        now, saved: the configs as nested dictionaries.
        ignore: fields that may differ: flattened names, first or last parts of them.
        defaults: values of fields that the saved config lacks because they were added later.
    """
    new, old = _flatten(json.loads(json.dumps(now))), _flatten(saved)
    known = _flatten(json.loads(json.dumps(defaults or {})))
    old = {key: value for key, value in known.items() if key in new} | old
    return [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in sorted(new.keys() | old.keys())
        if not {key, key.split(".")[0], key.split(".")[-1]} & {*ignore}
        and old.get(key) != new.get(key)
    ]


def defaults_of(config: Any, default: Any = None) -> dict[str, Any]:
    """Defaults of the fields of a config and of the dataclasses in it, as nested dictionaries.

    Fields without a default are left out. `default` is the instance that holds the defaults; None:
    those of the class.
    """
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        standard = getattr(default, field.name, field.default)
        if dataclasses.is_dataclass(value):
            nested = standard if dataclasses.is_dataclass(standard) else None
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
