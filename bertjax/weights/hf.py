"""Reads and writes Hugging Face model directories: config, weights, tokenizer, model card."""

import contextlib
import functools
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

import bertjax
from bertjax.base.checksums import CHECKSUMS, find_damage, write_checksums
from bertjax.base.files import brief, is_file_name, listed, read_json
from bertjax.base.outputs import replacing_folder
from bertjax.base.progress import BYTES, progress
from bertjax.model import HEADS, BertConfig, TaggerConfig
from bertjax.model.recipe import flattened
from bertjax.tokenization import Tokenizer
from bertjax.weights.families import architecture, config_to_hf
from bertjax.weights.names import LazyTensors, to_hf
from bertjax.weights.torch_files import open_bin

SAFETENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
BIN = "pytorch_model.bin"
BIN_INDEX = "pytorch_model.bin.index.json"
# Of several, transformers reads the first one, too.
WEIGHTS = (SAFETENSORS, INDEX, BIN, BIN_INDEX)
_LFS = b"version https://git-lfs.github.com/spec/"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".ckpt", ".pt", ".pth")
CARD = "README.md"
# The file with the parameters of a tagger whose frozen encoder is in `model.safetensors`.
TAGGER = "tagger.safetensors"


# The only tensor of static embeddings, in files of sentence-transformers.
STATIC_TABLE = "embedding.weight"


def open_weights(files: Iterable[Path]) -> LazyTensors:
    """Returns {PyTorch name: tensor} of files of safetensors or torch; a tensor is read on access.

    Raises ValueError if a file is damaged, or two files have tensors of the same name.
    """
    readers: dict[str, Callable[[], np.ndarray]] = {}
    beside: dict[Any, Any] = {}
    for file in files:
        with file.open("rb") as opened:
            start = opened.read(len(_LFS))
            if start == _LFS:
                raise ValueError(
                    f"{file} is a pointer of Git LFS and not the weights: run `git lfs pull` in "
                    "its repository, or download it."
                )
        # A safetensors file begins with the length of its header, which is JSON.
        is_safe = file.suffix == ".safetensors" or start[8:9] == b"{"
        tensors = _open_safetensors(file) if is_safe else open_bin(file)
        beside |= tensors.beside
        for name in tensors:
            if name in readers:
                raise ValueError(
                    f"{file} and another file of the model both have a tensor "
                    f"{brief(name)}: copy or download the model again."
                )
            readers[name] = functools.partial(tensors.__getitem__, name)
    return LazyTensors(readers, beside)


def _open_safetensors(file: Path) -> LazyTensors:
    with _opening(file):
        opened: Any = safetensors.safe_open(file, framework="numpy")
        types = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    for name, kind in types.items():
        if kind.startswith(("F8", "F6", "F4")):
            raise ValueError(
                f"{file}: {brief(name)} is of type {kind}: quantised models are not supported. "
                "Load the model with transformers in float32 and save it again."
            )
    readers = {}
    for name in types:
        readers[name] = functools.partial(_read_safetensor, file, opened, name)
    return LazyTensors(readers)


def _read_safetensor(file: Path, opened: Any, name: str) -> np.ndarray:
    with _opening(file):
        return opened.get_tensor(name)


@contextlib.contextmanager
def _opening(file: Path) -> Iterator[None]:
    try:
        yield
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} ({file.stat().st_size:,} bytes) is not a whole safetensors file: "
            f"{brief(error)}. Copy or download it again."
        ) from error


def has_weights(directory: Path) -> bool:
    """Whether a directory holds weights in one of Hugging Face's formats."""
    return any((directory / name).is_file() for name in WEIGHTS)


def open_hf(directory: Path) -> LazyTensors:
    """Returns {PyTorch name: tensor} of a model directory; a tensor is read when it is accessed.

    The tensors are read from the first of `WEIGHTS` that exists, or from the files that it names if
    it is an index of shards. Raises FileNotFoundError if one of these is missing, and ValueError if
    one is damaged.
    """
    file = next((file for name in WEIGHTS if (file := directory / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(
            f"No weights in {directory}: expected {SAFETENSORS}, {INDEX} or {BIN}."
        )
    if file.suffix != ".json":
        return open_weights([file])
    places = read_json(file).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise ValueError(
            f"{file} has no weight_map from tensors to files: copy or download it again."
        )
    shards = sorted(set(places.values()))
    outside = [shard for shard in shards if not is_file_name(shard)]
    if outside:
        raise ValueError(
            f"{file} names {brief(outside[0])!r}, which is not a file of this directory: download "
            "it again."
        )
    files = [directory / shard for shard in shards]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{directory} lacks {listed(missing)}, which {file.name} names: copy or download them."
        )
    return open_weights(files)


def save_hf(
    directory: str | Path,
    params: Any,
    config: BertConfig,
    tokenizer: Tokenizer | None,
    *,
    head: str = "pretraining",
    extra: Mapping[str, Any] | None = None,
    card: str | None = None,
    files: Mapping[str, str | bytes] | None = None,
    tagger: Any = None,
    kept: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes a model directory that transformers loads without a warning.

    Args:
        directory: the directory to write; an existing model in it is replaced atomically.
        params: the parameters; the head's `training_parts` and `separate_parts` are left out.
        head: the name of the head in `bertjax.model.HEADS`.
        extra: additional fields of `config.json`, such as id2label.
        card: the text of the model card, README.md.
        files: additional files to write, {relative path: text, which gets an end of line, or
            bytes}.
        tagger: the parameters of a tagger on the frozen encoder, for `tagger.safetensors`.
        kept: {PyTorch name: tensor} of tensors that no output depends on, to write instead of
            those of the same name and shape.

    Raises:
        ValueError: `directory` holds files that bertjax did not write, or transformers does not
            support the head or a value of `config` for the model family.
        OSError: the disk is full; the previous content of `directory` remains.
    """
    if head == "masked_lm" and config.enhanced_mask_decoder:
        print(
            f"warning: transformers has no enhanced mask decoder: its logits of {directory} differ "
            "from those of bertjax; the hidden states are equal"
        )
    content = {"architectures": [architecture(config, head)], "dtype": "float32"}
    content |= config_to_hf(config) | dict(extra or {})
    with replacing_folder(directory) as beside:
        left_out = (*HEADS[head].training_parts, *HEADS[head].separate_parts)
        written = {name: part for name, part in params.items() if name not in left_out}
        write_safetensors(beside / SAFETENSORS, written, config, kept)
        if tagger is not None:
            write_safetensors(beside / TAGGER, tagger, config)
        text = json.dumps(content, indent=2) + "\n"
        (beside / "config.json").write_text(text, encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(beside, config.max_length)
        if card is not None:
            (beside / CARD).write_text(card, encoding="utf-8")
        for name, file in dict(files or {}).items():
            path = beside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file if isinstance(file, bytes) else f"{file}\n".encode())
        write_checksums(beside)


def check_files(directory: Path) -> None:
    """Compares the files of a model directory with their checksums, if bertjax wrote the directory.

    The model card may differ, because users may edit it. Raises ValueError if another file is
    damaged, missing or changed.
    """
    if not (directory / CHECKSUMS).is_file():
        return
    damage = find_damage(directory, without=(CARD,))
    if damage is not None:
        raise ValueError(
            f"{directory}: {damage}. Copy the model again or, if the file was changed on purpose, "
            f"delete {directory / CHECKSUMS}."
        )


def write_safetensors(
    path: Path,
    params: Mapping[str, Any],
    config: BertConfig,
    kept: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes a tree of parameters to a safetensors file as float32, under PyTorch names.

    A tensor in `kept` that has the name and the shape of another is written instead of it.

    To save memory, one tensor at a time is converted and written; the safetensors library would
    need contiguous copies of all tensors at once.
    """
    flat = flattened(dict(params))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, value in to_hf(flat, config):
        end = start + 4 * value.size
        if config.is_static:
            name = STATIC_TABLE
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [start, end]}
        start = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        with progress(f"writing {path.name}", start, BYTES) as state:
            for name, value in to_hf(flat, config):
                if kept and name in kept and kept[name].shape == value.shape:
                    value = kept[name]
                state.advance(file.write(np.ascontiguousarray(value, "<f4").data))
        file.flush()
        os.fsync(file.fileno())


_HEAD = """---
library_name: {library}
tags:
- {config.model_type}
---
# {title}

An encoder of the {config.model_type} family: {config.num_hidden_layers} layers, hidden size \
{config.hidden_size}, {config.num_attention_heads} attention heads,
a vocabulary of {config.vocab_size:,} tokens ({casing}), and inputs of at most \
{config.max_length} tokens. Written by
bertjax {version}; transformers loads it as `{architecture}`.
"""

_TAGGER = """
`tagger.safetensors` holds {network} for the tags of `config.json`,
trained on the hidden states {layers} (0 = embeddings, -1 = the last), {join},
of this encoder, which was frozen (Devlin et al. 2018, 5.3). `python -m bertjax.predict --model DIR`
applies the encoder and `tagger.safetensors`; transformers loads only the encoder.
"""
_NETWORKS = {"bilstm": "a two-layer BiLSTM and a classifier", "linear": "a linear classifier"}
_JOINS = {"concat": "concatenated", "sum": "summed"}
_CASINGS = {True: "uncased", False: "cased", None: "without a tokenizer"}


_EMBEDDINGS = """
It computes embeddings of texts, as `bertjax.load_pretrained(DIR).embed(texts)`
and, in sentence-transformers, `SentenceTransformer(DIR).encode(texts)`.
"""


_TOKEN_VECTORS = """
It computes one vector per token, for late interaction, as
`bertjax.load_pretrained(DIR).token_vectors(texts)` and, in sentence-transformers,
`MultiVectorEncoder(DIR).encode_document(texts)`.
"""
_OF_HEADS = {"sentence_embedding": _EMBEDDINGS, "late_interaction": _TOKEN_VECTORS}


def in_markdown(title: str) -> str:
    """Returns the title of a model card, whose characters have no meaning in Markdown."""
    return re.sub(r"([\\`*<>\[\]|#!])", r"\\\1", brief(title))


# The heading before the facts of the training.
TRAINING = "\n## Training\n\n"


def model_card(
    title: str,
    head: str,
    config: BertConfig,
    do_lower_case: bool | None,
    facts: Sequence[tuple[str, Any]] = (),
    tagger: TaggerConfig | None = None,
    sections: str = "",
) -> str:
    """Returns the text of a model card in Markdown.

    `head` is a name in `bertjax.model.HEADS`, `do_lower_case` is None without a tokenizer, `facts`
    are (name, value) pairs that describe the training, for a table, and `sections` stand before it.
    """
    embeds = head in _OF_HEADS
    text = _HEAD.format(
        library="sentence-transformers" if embeds else "transformers",
        title=in_markdown(title),
        casing=_CASINGS[do_lower_case],
        config=config,
        version=bertjax.__version__,
        architecture=architecture(config, head),
    )
    text += _OF_HEADS.get(head, "")
    if tagger is not None:
        text += _TAGGER.format(
            network=_NETWORKS[tagger.kind],
            layers=", ".join(map(str, tagger.layers)),
            join=_JOINS[tagger.join],
        )
    if not facts:
        return text
    rows = "".join(f"| {name} | {value} |\n" for name, value in facts)
    return f"{text}{sections}{TRAINING}| | |\n|---|---|\n{rows}"


def _planned(phase: Mapping[str, Any]) -> str:
    smaller = ""
    if phase.get("warmup_batch_sizes"):
        smaller = " ({sizes} in the first {batch_size_warmup_steps:,} steps)"
    text = "{num_steps:,} steps of {batch_size} rows" + smaller + " of {max_length} tokens"
    sizes = ", ".join(map(str, phase.get("warmup_batch_sizes") or ()))
    return text.format(sizes=sizes, **phase)


def training_facts(
    config: Mapping[str, Any], step: int, evaluation: Mapping[str, float] | None
) -> list[tuple[str, Any]]:
    """Returns the (name, value) pairs that describe a pretraining run in its model card.

    `config` is the config in run.json, and `evaluation` the last one at or before `step`.
    """
    objective = HEADS[config.get("head") or "pretraining"].objectives["pretraining"]
    masked = config.get("predict", "masked") == "masked"
    facts: list[tuple[str, Any]] = [
        ("objective", objective.description if masked else "causal language modelling"),
        ("steps done", f"{step:,}"),
        ("planned", "; ".join(map(_planned, config["phases"]))),
    ]
    if masked:
        facts.append(("masked", f"{config['mlm_probability']:.0%} of the tokens"))
    recipe = (
        "{recipe}, peak {learning_rate:g}, warm-up {warmup_steps:,} steps, decay {weight_decay:g}"
    )
    facts.append(("optimizer", recipe.format(**config["optimizer"])))
    facts.append(("started from", config["init"] or "random weights"))
    if config.get("distillation"):
        facts.append(("taught by", config["distillation"]["teacher"]))
    facts += [("computed in", config["dtype"]), ("seed", config["seed"])]
    names = {
        **{f"eval/{metric}": name for metric, name in objective.metric_names.items()},
        "eval/soft_loss": "held-out KL divergence from the teacher (nats, times temperature^2)",
        "eval/cosine_loss": "held-out 1 - cosine similarity to the teacher's last hidden states",
    }
    for key, name in names.items():
        value = (evaluation or {}).get(key)
        if value is not None:
            facts.append((name, f"{value:.3f}"))
    return facts
