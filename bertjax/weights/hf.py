"""Reads and writes Hugging Face model directories: `config.json`, weights and tokenizer files."""

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from flax.traverse_util import flatten_dict

from bertjax.base.checksums import CHECKSUMS, find_damage, write_checksums
from bertjax.base.files import brief, is_file_name, listed, read_json, replacing_folder
from bertjax.base.progress import BYTES, progress
from bertjax.model import HEADS, BertConfig
from bertjax.tokenization import Tokenizer
from bertjax.weights import names
from bertjax.weights.families import architecture, config_to_hf
from bertjax.weights.torch_files import open_bin

SAFETENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
# A directory that contains one of these files is a model directory, which may be overwritten.
MODEL_FILES = ("config.json", "bert_config.json")
BIN = "pytorch_model.bin"
WEIGHT_SUFFIXES = (".safetensors", ".bin")
# The model card.
CARD = "README.md"
# The file with the parameters of a tagger whose frozen encoder is in `model.safetensors`.
TAGGER = "tagger.safetensors"


class SafetensorsFiles(Mapping[str, np.ndarray]):
    """The tensors of one or several safetensors files; a tensor is read when it is accessed.

    Raises:
        ValueError: a file is truncated or not a safetensors file, or two files have tensors of the
            same name.
    """

    def __init__(self, files: Iterable[Path]):
        self._files: dict[str, Any] = {}
        for file in files:
            with _opening(file):
                opened = safetensors.safe_open(file, framework="numpy")
                stored = list(opened.keys())
            for name in stored:
                if name in self._files:
                    raise ValueError(
                        f"{file} and another file of the model both have a tensor "
                        f"{brief(name)}: copy or download the model again."
                    )
                self._files[name] = file, opened

    def __getitem__(self, name: str) -> np.ndarray:
        file, opened = self._files[name]
        with _opening(file):
            return opened.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@contextlib.contextmanager
def _opening(file: Path) -> Iterator[None]:
    """A context in which errors of safetensors become a ValueError that names `file`."""
    try:
        yield
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} ({file.stat().st_size:,} bytes) is not a whole safetensors file: "
            f"{brief(error)}. Copy or download it again."
        ) from error


def has_weights(directory: Path) -> bool:
    """Whether a directory holds weights in one of Hugging Face's formats."""
    return any((directory / name).is_file() for name in (SAFETENSORS, INDEX, BIN))


def open_hf(directory: Path) -> Mapping[str, np.ndarray]:
    """Returns {PyTorch name: tensor} of a model directory; a tensor is read when it is accessed.

    The tensors have the shapes of PyTorch's parameters. They are those in the first of these files
    that exists: `model.safetensors`, the shards named in `model.safetensors.index.json`, or
    `pytorch_model.bin`.

    Raises:
        FileNotFoundError: there are no weights, or shards that the index names are missing.
        ValueError: the index or a file of weights is damaged, or `pytorch_model.bin` holds objects
            other than tensors.
    """
    if (directory / SAFETENSORS).is_file():
        return SafetensorsFiles([directory / SAFETENSORS])
    if (directory / INDEX).is_file():
        places = read_json(directory / INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
            raise ValueError(
                f"{directory / INDEX} has no weight_map from tensors to files: copy or download it "
                "again."
            )
        files = sorted(set(places.values()))
        outside = [file for file in files if not is_file_name(file)]
        if outside:
            raise ValueError(
                f"{directory / INDEX} names {brief(outside[0])!r}, which is not a file of this "
                f"directory, so {INDEX} is damaged: download {INDEX} again."
            )
        missing = [file for file in files if not (directory / file).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{directory} lacks {listed(missing)}, which {INDEX} names: copy or download them."
            )
        return SafetensorsFiles(directory / file for file in files)
    if (directory / BIN).is_file():
        return open_bin(directory / BIN)
    raise FileNotFoundError(f"No weights in {directory}: expected {SAFETENSORS}, {INDEX} or {BIN}.")


def open_weights(file: Path) -> Mapping[str, np.ndarray]:
    """Returns {PyTorch name: tensor} of a single `.safetensors` or `.bin` file.

    The tensors have the shapes of PyTorch's parameters.

    Raises:
        ValueError: the file is damaged, or holds objects other than tensors.
    """
    return open_bin(file) if file.suffix == ".bin" else SafetensorsFiles([file])


def save_hf(
    directory: str | Path,
    params: Any,
    config: BertConfig,
    tokenizer: Tokenizer | None,
    *,
    head: str = "pretraining",
    extra: Mapping[str, Any] | None = None,
    card: str | None = None,
    files: Mapping[str, str] | None = None,
    tagger: Any = None,
) -> None:
    """Writes a model directory that transformers loads without a warning.

    Args:
        directory: the directory to write; an existing model in it is replaced atomically.
        params: the parameters, which are converted and written one at a time to save memory;
            parameters that exist only for training (`training_parts` of the head) are left out.
        config: the architecture of the model.
        tokenizer: the tokenizer, whose files are written as well; None: no tokenizer files.
        head: the name of the head in `bertjax.model.HEADS`.
        extra: additional fields of `config.json`, such as id2label; None: no additional fields.
        card: the text of the model card, README.md; None: no model card.
        files: additional text files to write, {file name: text}; None: no additional files.
        tagger: the parameters of a tagger (classifier of words on the frozen encoder), written to
            `tagger.safetensors`; None: the model has no tagger.

    Raises:
        ValueError: `directory` holds files but no model, or transformers does not support the head
            or a value of `config` for the model family.
        OSError: the disk is full; the previous content of `directory` remains.
    """
    content = {"architectures": [architecture(config, head)], "dtype": "float32"}
    content |= config_to_hf(config) | dict(extra or {})
    with replacing_folder(directory, MODEL_FILES) as beside:
        training_parts = HEADS[head].training_parts
        written = {name: part for name, part in params.items() if name not in training_parts}
        flat: Any = flatten_dict(written, sep="/")
        write_safetensors(beside / SAFETENSORS, flat, config)
        if tagger is not None:
            flat_tagger: Any = flatten_dict(dict(tagger), sep="/")
            write_safetensors(beside / TAGGER, flat_tagger, config)
        text = json.dumps(content, indent=2) + "\n"
        (beside / "config.json").write_text(text, encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(beside)
        if card is not None:
            (beside / CARD).write_text(card, encoding="utf-8")
        for name, text in dict(files or {}).items():
            (beside / name).parent.mkdir(exist_ok=True)
            (beside / name).write_text(text + "\n", encoding="utf-8")
        write_checksums(beside, without=(CARD,))


def check_files(directory: Path) -> None:
    """Compares the files of a model directory with their checksums, if bertjax wrote the directory.

    The model card has no checksum, because users may edit the card.

    Raises:
        ValueError: a file of the model is damaged, missing or changed.
    """
    if not (directory / CHECKSUMS).is_file():
        return
    damage = find_damage(directory)
    if damage is not None:
        raise ValueError(
            f"{directory}: {damage}. Copy the model again or, if the file was changed on purpose, "
            f"delete {directory / CHECKSUMS}."
        )


def write_safetensors(path: Path, flat: Mapping[str, Any], config: BertConfig) -> None:
    """Writes parameters to the safetensors file `path` as float32, under PyTorch names.

    `flat` is {path in the parameter tree: array}, and `config` that of the model, whose family
    determines the names.

    A safetensors file consists of the length of the header (8 bytes), the header in JSON, and the
    bytes of the tensors. To save memory, this function converts and writes one tensor at a time;
    the safetensors library would need contiguous copies of all tensors at once.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, value in names.to_hf(flat, config):
        end = start + 4 * value.size
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [start, end]}
        start = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        with progress(f"writing {path.name}", start, BYTES) as state:
            for _, value in names.to_hf(flat, config):
                state.advance(file.write(np.ascontiguousarray(value, "<f4").data))
        file.flush()
        os.fsync(file.fileno())
