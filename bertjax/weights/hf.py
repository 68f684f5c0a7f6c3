"""Model directories of Hugging Face: `config.json`, `model.safetensors`, tokenizer files."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.model.config import BertConfig
from bertjax.tokenization import WordPieceTokenizer
from bertjax.weights import names

# What may be missing in a checkpoint, and starts from its initialisation: the parts that other
# heads than those of pretraining do without.
OPTIONAL_PARTS = ("bert/pooler", "predictions", "seq_relationship")


def load_hf(
    directory: str | Path, config: BertConfig, like: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """Reads `model.safetensors` into the shape of a parameter tree.

    Args:
        directory: of `model.safetensors`.
        config: the architecture of `like`.
        like: the parameter tree to fill; what a head lacks in the file is taken from it.

    Returns:
        The parameters as numpy arrays, and the names of the parts that the file lacks.

    Raises:
        FileNotFoundError: there is no `model.safetensors`.
        ValueError: names every missing, unexpected and misshaped tensor at once.
    """
    file = Path(directory) / "model.safetensors"
    if not file.is_file():
        raise FileNotFoundError(f"No model.safetensors in {directory}: is it a model directory?")
    wanted = flatten_dict(dict(like), sep="/")
    filled: dict[str, np.ndarray] = {}
    seen: set[str] = set()
    unexpected, misshaped = [], []
    with safetensors.safe_open(file, framework="numpy") as tensors:
        for stored in sorted(tensors.keys()):
            name = names.normalized(stored, config)
            if name is None:
                continue
            mapped = names.find(name, config)
            if mapped is None or mapped.path not in wanted or name in seen:
                unexpected.append(stored)
                continue
            seen.add(name)
            problem = _fill(filled, wanted[mapped.path], mapped, tensors.get_tensor(stored))
            if problem:
                misshaped.append(f"{stored} {problem}")
    missing = names.their_names(wanted, config) - seen
    absent = [part for part in OPTIONAL_PARTS if not any(path.startswith(part) for path in filled)]
    missing -= names.their_names([p for p in wanted if p.startswith(tuple(absent))], config)
    if missing or unexpected or misshaped:
        raise ValueError(
            f"{file} does not fit the model. Missing: {sorted(missing) or 'nothing'}. Unexpected: "
            f"{unexpected or 'nothing'}. Of another shape: {misshaped or 'nothing'}. Check that "
            "the config belongs to these weights."
        )
    return unflatten_dict({path: filled.get(path, wanted[path]) for path in wanted}, sep="/"), [
        part for part in absent if any(path.startswith(part) for path in wanted)
    ]


def _fill(
    filled: dict[str, np.ndarray], like: Any, mapped: names.Mapped, tensor: np.ndarray
) -> str | None:
    """Puts one tensor in its place; returns what is wrong with its shape, if anything."""
    shape = like.shape if mapped.layer is None else like.shape[1:]
    if tensor.size != int(np.prod(shape)):
        return f"is {tensor.shape}, the model has {shape}"
    if mapped.layer is not None and mapped.layer >= like.shape[0]:
        return f"is of layer {mapped.layer}, the model has {like.shape[0]} layers"
    value = mapped.to_ours(tensor.astype(np.float32, copy=False))
    if value.shape != shape:
        return f"becomes {value.shape}, the model has {shape}"
    if mapped.layer is None:
        filled[mapped.path] = value
    else:
        filled.setdefault(mapped.path, np.empty(like.shape, np.float32))[mapped.layer] = value
    return None


def save_hf(
    directory: str | Path,
    params: Any,
    config: BertConfig,
    tokenizer: WordPieceTokenizer,
    *,
    architecture: str = "BertForPreTraining",
) -> None:
    """Writes a directory that transformers loads without a warning.

    It is written beside and renamed, so that a directory that was there stays whole until then.
    """
    directory = Path(directory)
    beside = directory.with_name(directory.name + ".writing")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    flat = flatten_dict(dict(params), sep="/")
    arrays = {path: np.asarray(value, np.float32) for path, value in flat.items()}
    tensors = {k: np.ascontiguousarray(v) for k, v in names.to_theirs(arrays, config)}
    safetensors.numpy.save_file(tensors, beside / "model.safetensors", metadata={"format": "pt"})
    content = {"architectures": [architecture], "dtype": "float32", **config.to_dict()}
    (beside / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(beside)
    if directory.exists():
        old = directory.with_name(directory.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
        beside.rename(directory)
        shutil.rmtree(old)
    else:
        beside.rename(directory)
