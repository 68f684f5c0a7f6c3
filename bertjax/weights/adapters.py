"""Reads and writes the adapters of PEFT: LoRA's matrices beside the layers of a base model."""

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from bertjax.base.files import brief, read_json
from bertjax.model import BertConfig
from bertjax.weights.families import FAMILIES, family_name
from bertjax.weights.hf import open_weights
from bertjax.weights.names import LazyTensors, find, to_hf

SETTINGS = "adapter_config.json"
MATRICES = ("adapter_model.safetensors", "adapter_model.bin")
# Fields that are followed, and those that choose what is trained or its initial values, which the
# tensors in the file tell; docs/weights.md gives the reasons.
_KNOWN = set(
    """
    peft_type r lora_alpha use_rslora rank_pattern alpha_pattern base_model_name_or_path
    task_type auto_mapping init_lora_weights target_modules exclude_modules bias
    modules_to_save layers_to_transform layers_pattern fan_in_fan_out lora_dropout inference_mode
    megatron_core peft_version loftq_config eva_config corda_config lora_ga_config
    qalora_group_size runtime_config
    """.split()
)
# Initial values with which the base model stays as it is; PiSSA's and others change it.
_INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
_CLASSES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
_LORA = re.compile(r"(.+)\.lora_(embedding_)?([AB])(\.weight)?")
_UNSET: Any = (None, False, {}, [], "main")  # the last one is a revision
_EMBEDDING = "bert/embeddings/word_embeddings/embedding"
_WRAPPERS = re.compile(r"^base_model\.model\.|\.base_layer\b|\.modules_to_save\b|\.default\b")


def merged(
    base: Mapping[str, np.ndarray], config: Mapping[str, Any], folder: Path
) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """Adds the adapter in `folder` to the tensors of its base model, as PEFT does.

    Returns the tensors and `config`, the config.json of the base model, with the class that the
    adapter was trained with, and without the names of classes if the adapter has others.

    Raises FileNotFoundError if there are no weights, and ValueError if the adapter is not one of
    LoRA that can be merged, or does not fit the model.
    """
    settings = read_settings(folder)
    model_type = config.get("model_type", "bert")
    files = [folder / name for name in MATRICES]
    file = next(filter(Path.is_file, files), None)
    if file is None:
        raise FileNotFoundError(f"{folder} has no {' or '.join(MATRICES)}: copy it there.")
    tensors = open_weights([file])
    config = dict(config)
    base_class = (settings.get("auto_mapping") or {}).get("base_model_class")
    if suffix := _CLASSES.get(str(settings.get("task_type"))):
        base_class = FAMILIES[model_type].class_name + suffix
    if base_class:
        config["architectures"] = [base_class]
    readers = _readers(base)
    stored = {_place(name, model_type): name for name in base}
    own_tensors = _readers(tensors)
    # Whole layers come first: matrices may be added to one.
    for name in sorted(own_tensors, key=lambda name: ".lora_" in name):
        read = own_tensors[name]
        wanted = _WRAPPERS.sub("", name)
        lora = _LORA.fullmatch(wanted)
        if lora:
            wanted = f"{lora[1]}.weight"
        place = _place(wanted, model_type)
        own = stored.get(place)
        if own is None and not lora:
            own = wanted  # a layer of a head that the base model lacks
        other = re.sub("(.*lora_.*)A", r"\1B", name)
        if not place or not own or other not in tensors:
            raise ValueError(
                f"{file} has {brief(name, 90)}, which does not belong to a layer of its base "
                "model: give the base model that the adapter was trained on."
            )
        path, _ = place
        if path == _EMBEDDING and ("predictions/bias", None) in stored:
            # The output matrix stays tied to the embedding of the base model.
            decoder = family_name("cls.predictions.decoder.weight", model_type, projected=False)
            readers.setdefault(decoder, readers[own])
        if path == "classifier/bias" and read().size != len(config.get("id2label") or ()):
            config.pop("id2label", None)
            config.pop("num_labels", None)
        if not lora:
            readers[own] = read
        elif lora[3] == "A":
            scale = _scale(settings, lora[1], len(read()), folder)
            second = own_tensors[other]
            transposed = bool(lora[2])
            readers[own] = functools.partial(
                _sum, readers[own], read, second, scale, transposed, file
            )
    return LazyTensors(readers), config


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads `adapter_config.json`; raises ValueError if it asks for more than can be merged."""
    settings = read_json(folder / SETTINGS)
    refused = [name for name in settings.keys() - _KNOWN if settings[name] not in _UNSET]
    if settings.get("init_lora_weights") not in _INITIAL:
        refused.append("init_lora_weights")
    refused.sort()
    if settings.get("peft_type") != "LORA":
        refused = ["peft_type"]
    if refused:
        values = []
        for name in refused[:3]:
            values.append(f"{name}={brief(settings.get(name), 40)}")
        raise ValueError(
            f"{folder / SETTINGS} has {', '.join(values)}, but bertjax merges only plain LoRA: "
            "merge the adapter with PEFT (merge_and_unload), and save the whole model."
        )
    return settings


def _readers(tensors: Mapping[str, np.ndarray]) -> dict[str, Callable[[], np.ndarray]]:
    return {
        name: functools.partial(tensors.__getitem__, name)
        for name in tensors
        if ".original_module." not in name
    }


def _place(name: str, model_type: str) -> tuple[str, int | None] | None:
    targets = find(name, model_type)
    if not targets:
        return None
    return targets[0].path, targets[0].layer


def _scale(settings: Mapping[str, Any], module: str, rank: int, folder: Path) -> float:
    """Returns the factor of the product of the matrices of a layer."""
    values: dict[str, Any] = {"r": 8, "lora_alpha": 8, **settings}  # PEFT's defaults
    for name, patterns in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
        for key, value in (values.get(patterns) or {}).items():
            if re.match(rf"(.*\.)?({key})$", module):
                values[name] = value
                break
    alpha = values["lora_alpha"]
    if values["r"] != rank or not isinstance(alpha, int | float):
        raise ValueError(
            f"{folder / SETTINGS} has r={brief(values['r'], 20)} and lora_alpha="
            f"{brief(alpha, 20)} for {brief(module, 60)}, whose matrices have rank {rank}: give "
            "the file that belongs to these matrices."
        )
    if values.get("use_rslora"):
        return alpha / math.sqrt(rank)
    return alpha / rank


def _sum(
    weight: Callable[[], np.ndarray],
    first: Callable[[], np.ndarray],
    second: Callable[[], np.ndarray],
    scale: float,
    transposed: bool,
    file: Path,
) -> np.ndarray:
    """Returns a layer's weight plus `scale` times the product of LoRA's matrices B and A."""
    whole, a, b = (np.asarray(read(), np.float32) for read in (weight, first, second))
    if transposed:
        a, b = b.T, a.T  # [in, rank], [out, rank]
    product_shape = (*b.shape[:-1], *a.shape[1:])
    if a.ndim != 2 or b.shape[-1] != len(a) or product_shape != whole.shape:
        raise ValueError(
            f"{file} has matrices of shapes {b.shape} and {a.shape} for a layer of shape "
            f"{whole.shape}: give the base model that the adapter was trained on."
        )
    return whole + np.float32(scale) * (b @ a)


def adapter_files(
    adapters: Mapping[str, tuple[np.ndarray, np.ndarray]],
    params: Mapping[str, np.ndarray],
    config: BertConfig,
    facts: Mapping[str, Any],
) -> dict[str, str | bytes]:
    """Returns the files of a LoRA adapter as PEFT writes them, {relative path: content}.

    `adapters` are {PyTorch name of a layer, with "{layer}": A [layers, in, rank] and B [layers,
    rank, out]}, `params` {path: parameter} of the head, which were trained as a whole, and `facts`
    further fields of adapter_config.json.
    """
    prefix = f"{FAMILIES[config.model_type].prefix}."
    tensors = dict(to_hf(params, config))
    modules = {name.removeprefix(prefix).partition(".")[0] for name in tensors}
    for name, matrices in adapters.items():
        for side, stacked in zip("AB", matrices, strict=True):
            for layer, matrix in enumerate(stacked):
                tensors[f"{name.format(layer=layer)}.lora_{side}.weight"] = matrix.T
    suffixes = []
    for name in adapters:
        _, _, suffix = name.partition("{layer}.")
        suffixes.append(re.escape(suffix))
    targets = "|".join(suffixes)
    content = {
        "peft_type": "LORA",
        "target_modules": rf".*\.\d+\.({targets})",
        "modules_to_save": sorted(modules) or None,
        "inference_mode": True,
        **facts,
    }
    written = {}
    for name, tensor in tensors.items():
        if not modules:  # in transformers, the names of an encoder without a head have no prefix
            name = name.removeprefix(prefix)
        written[f"base_model.model.{name}"] = np.array(tensor, "<f4", order="C")
    return {
        f"adapter/{SETTINGS}": json.dumps(content, indent=2),
        f"adapter/{MATRICES[0]}": save(written, {"format": "pt"}),
    }
