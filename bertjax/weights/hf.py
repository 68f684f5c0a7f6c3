"""Model directories of Hugging Face: `config.json`, `model.safetensors`, tokenizer files."""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from flax.traverse_util import flatten_dict

from bertjax.model import BertConfig
from bertjax.tokenization import Tokenizer
from bertjax.weights import names
from bertjax.weights.families import architecture, config_to_hf
from bertjax.weights.replace import replaced_whole
from bertjax.weights.torch_bin import open_bin

SAFETENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
BIN = "pytorch_model.bin"
# Beside an encoder: the tagger that was trained on its hidden states.
TAGGER = "tagger.safetensors"


class SafetensorsFiles(Mapping[str, np.ndarray]):
    """Tensors of one or several safetensors files; each is read when it is asked for.

    Raises:
        ValueError: a file is cut short or no safetensors file, or two files hold one name.
    """

    def __init__(self, files: Iterable[Path]):
        self._files: dict[str, Any] = {}
        for file in files:
            try:
                opened = safetensors.safe_open(file, framework="numpy")
            except (safetensors.SafetensorError, OSError) as error:
                raise ValueError(
                    f"{file} ({file.stat().st_size:,} bytes) is not a whole safetensors file: "
                    f"{error}. Copy or download it again."
                ) from error
            for name in opened.keys():
                if name in self._files:
                    raise ValueError(f"{file} holds {name}, as another file of the model does.")
                self._files[name] = opened

    def __getitem__(self, name: str) -> np.ndarray:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def read_json(file: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ValueError: it is not JSON, or something else than an object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not an object")
    except ValueError as error:
        raise ValueError(f"{file} cannot be read ({error}): copy or download it again.") from error
    return content


def has_weights(directory: Path) -> bool:
    """Whether a directory holds weights in one of Hugging Face's forms."""
    return any((directory / name).is_file() for name in (SAFETENSORS, INDEX, BIN))


def open_hf(directory: Path) -> Mapping[str, np.ndarray]:
    """The tensors of a model directory, by PyTorch name, read when asked for.

    Takes `model.safetensors`, or its shards with their index, or `pytorch_model.bin`.

    Raises:
        FileNotFoundError: there is none, or shards that the index names are missing.
        ValueError: a file is damaged, or is a pickle that holds more than tensors.
    """
    if (directory / SAFETENSORS).is_file():
        return SafetensorsFiles([directory / SAFETENSORS])
    if (directory / INDEX).is_file():
        places = read_json(directory / INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
            raise ValueError(
                f"{directory / INDEX} has no weight_map that gives each tensor's file: copy or "
                "download it again."
            )
        files = sorted(set(places.values()))
        missing = [file for file in files if not (directory / file).is_file()]
        if missing:
            raise FileNotFoundError(f"{directory} lacks {missing} that {INDEX} names: fetch them.")
        return SafetensorsFiles(directory / file for file in files)
    if (directory / BIN).is_file():
        return open_bin(directory / BIN)
    raise FileNotFoundError(f"No {SAFETENSORS}, {INDEX} or {BIN} in {directory}.")


def save_hf(
    directory: str | Path,
    params: Any,
    config: BertConfig,
    tokenizer: Tokenizer,
    *,
    head: str = "pretraining",
    extra: Mapping[str, Any] | None = None,
    card: str | None = None,
    files: Mapping[str, str] | None = None,
    tagger: Any = None,
) -> None:
    """Writes a directory that transformers loads without a warning.

    Args:
        directory: to write, whole; a model that is there is replaced.
        params: a tree of arrays; it is written tensor by tensor, so memory does not double.
        config: the architecture.
        tokenizer: its files are written, too.
        head: which of `bertjax.model.HEADS` the weights are for.
        extra: more fields of `config.json`, such as id2label.
        card: the text of README.md, the model card.
        files: more files, name -> text.
        tagger: parameters of `model.tagger` besides the encoder's, for a file of their own.

    Raises:
        ValueError: `directory` holds something else than a model, or transformers has no such
            model.
        OSError: no space; what was in `directory` stays.
    """
    content = {"architectures": [architecture(config, head)], "dtype": "float32"}
    content |= config_to_hf(config) | dict(extra or {})
    with replaced_whole(directory) as beside:
        flat: Any = flatten_dict(dict(params), sep="/")
        write_safetensors(beside / SAFETENSORS, flat, config)
        if tagger is not None:
            own: Any = flatten_dict(dict(tagger), sep="/")
            write_safetensors(beside / TAGGER, own, config)
        text = json.dumps(content, indent=2) + "\n"
        (beside / "config.json").write_text(text, encoding="utf-8")
        tokenizer.save(beside)
        if card is not None:
            (beside / "README.md").write_text(card, encoding="utf-8")
        for name, text in dict(files or {}).items():
            (beside / name).write_text(text + "\n", encoding="utf-8")


def write_safetensors(path: Path, flat: Mapping[str, Any], config: BertConfig) -> None:
    """Writes flat parameters as float32 under their PyTorch names, one tensor in memory at a time.

    The format: length of the header (8 bytes), the header as JSON, then the tensors' bytes. The
    library would want all tensors, made contiguous, at once.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, value in names.to_hf(flat, config):
        end = at + 4 * value.size
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, end]}
        at = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for _, value in names.to_hf(flat, config):
            file.write(np.ascontiguousarray(value, "<f4").data)
        file.flush()
        os.fsync(file.fileno())
