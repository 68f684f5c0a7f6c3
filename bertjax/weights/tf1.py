"""Reads and writes Google's TF1 checkpoints: `bert_model.ckpt.*` with `bert_config.json`.

Tensors are read and written one at a time; callers of this module use PyTorch's names and layout.
`bert_config.json` does not say whether the vocabulary is cased. `load_tokenizer(directory)` treats
a `vocab.txt` with capital letters as cased and any other `vocab.txt` as uncased; the argument
`do_lower_case` overrides this guess. `bert_config.json` contains neither labels nor the epsilon of
LayerNorm, which is 1e-12 in Google's code. bertjax reads the activation "gelu" as the exact GELU,
although Google's code has used the tanh approximation since February 2019.

Most names in TF1 and PyTorch differ only in spelling: TF1 has `/` instead of `.`, `layer_0` instead
of `layer.0`, `kernel` and `gamma` instead of `weight`, and `beta` instead of `bias`. TF1 variables
named `kernel` have the shape [in, out]; TF1 variables named `output_weights` are [out, in].
"""

import contextlib
import errno
import functools
import importlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bertjax.base.checksums import write_checksums
from bertjax.base.files import brief, listed, read_bytes
from bertjax.base.outputs import replacing_folder
from bertjax.weights.names import LazyTensors

# Modules whose names differ in spelling only.
_MODULES = """
dense  bert/encoder/layer_{layer}/attention/self/query
dense  bert/encoder/layer_{layer}/attention/self/key
dense  bert/encoder/layer_{layer}/attention/self/value
dense  bert/encoder/layer_{layer}/attention/output/dense
dense  bert/encoder/layer_{layer}/intermediate/dense
dense  bert/encoder/layer_{layer}/output/dense
dense  bert/pooler/dense
dense  cls/predictions/transform/dense
norm   bert/embeddings/LayerNorm
norm   bert/encoder/layer_{layer}/attention/output/LayerNorm
norm   bert/encoder/layer_{layer}/output/LayerNorm
norm   cls/predictions/transform/LayerNorm
"""


def _names() -> dict[str, str]:
    """Returns {name in TF1: name in PyTorch}; TF1's variables named `kernel` are transposed."""
    names = {
        "bert/embeddings/word_embeddings": "bert.embeddings.word_embeddings.weight",
        "bert/embeddings/position_embeddings": "bert.embeddings.position_embeddings.weight",
        "bert/embeddings/token_type_embeddings": "bert.embeddings.token_type_embeddings.weight",
        "cls/predictions/output_bias": "cls.predictions.bias",
        "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
        "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
        "output_weights": "classifier.weight",
        "output_bias": "classifier.bias",
        "cls/squad/output_weights": "qa_outputs.weight",
        "cls/squad/output_bias": "qa_outputs.bias",
    }
    for line in _MODULES.strip().splitlines():
        kind, tf1 = line.split()
        weight, bias = ("kernel", "bias") if kind == "dense" else ("gamma", "beta")
        pytorch = tf1.replace("/layer_", "/layer/").replace("/", ".")
        names[f"{tf1}/{weight}"] = f"{pytorch}.weight"
        names[f"{tf1}/{bias}"] = f"{pytorch}.bias"
    return names


NAMES = _names()
_FROM_PYTORCH = {pytorch: tf1 for tf1, pytorch in NAMES.items()}


def from_tf1(tf1: str) -> str | None:
    """Returns the PyTorch name of a TF1 variable; None if it is not a parameter of BERT."""
    return _translated(tf1, r"(?<=/layer_)(0|[1-9]\d*)(?=/)", NAMES)


def from_pytorch(pytorch: str) -> str | None:
    """Returns the TF1 name of a PyTorch tensor; None if it has no name in TF1."""
    return _translated(pytorch, r"(?<=\.layer\.)(0|[1-9]\d*)(?=\.)", _FROM_PYTORCH)


def _translated(name: str, number: str, names: Mapping[str, str]) -> str | None:
    layer = re.search(number, name)
    if layer is None:
        return names.get(name) if "{" not in name else None
    other = names.get(re.sub(number, "{layer}", name))
    return other and other.format(layer=layer[0])


# Names of training state in checkpoints: moments of Adam and LAMB, counters and loss scaling.
_NOT_PARAMETERS = re.compile(
    r"global_step|(.*/)?(adam_[mv]|lamb_[mv]|Adam(_\d+)?|LAMB(_\d+)?|Momentum)"
    r"|(.*/)?(beta\d_power(_\d+)?|(current_)?loss_scale|good_steps|bad_steps)"
)


def is_parameter(tf1: str) -> bool:
    """Whether a TF1 variable is a model parameter, not training state such as Adam's moments."""
    return _NOT_PARAMETERS.fullmatch(tf1) is None


def open_tf1(prefix: str | Path) -> Mapping[str, np.ndarray]:
    """Opens a TF1 checkpoint (`prefix` as for `find_tf1`); a tensor is read when it is accessed.

    Returns a mapping of PyTorch names to float32 arrays in the shapes of PyTorch. Variables that
    are no parameters of BERT keep their names, shapes and dtypes of TF1. The optimizer state is
    left out.

    Raises:
        FileNotFoundError: there is no checkpoint, or one of its files is missing.
        ValueError: there are several checkpoints, or the checkpoint is damaged or of TF2.
        ImportError: TensorFlow is not installed.
    """
    checkpoint = find_tf1(prefix)
    tf = _tensorflow()
    with _reading(tf, checkpoint):
        reader = tf.train.load_checkpoint(str(checkpoint))
        stored = reader.get_variable_to_shape_map()
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in stored:
        raise ValueError(
            f"{checkpoint} is a TF2 checkpoint: only TF1 checkpoints of google-research/bert can "
            "be read."
        )
    readers = {}
    for name in sorted(stored):
        if is_parameter(name):
            read = functools.partial(_read, tf, checkpoint, reader, name)
            readers[from_tf1(name) or name] = read
    return LazyTensors(readers)


def _read(tf: ModuleType, checkpoint: Path, reader: Any, name: str) -> np.ndarray:
    with _reading(tf, checkpoint):
        value = reader.get_tensor(name)
    if from_tf1(name) is None:  # This is no parameter of BERT and may have any dtype.
        return value
    value = value.astype(np.float32, copy=False)
    if name.endswith("/kernel"):
        return value.T
    return value


@contextlib.contextmanager
def _reading(tf: ModuleType, prefix: Path) -> Iterator[None]:
    try:
        yield
    except (tf.errors.OpError, RuntimeError, IndexError) as error:
        raise ValueError(
            f"{prefix} cannot be read ({brief(error)}): copy its files again."
        ) from error


def find_tf1(path: str | Path) -> Path:
    """Returns the prefix of a TF1 checkpoint's files, without importing TensorFlow.

    `path` is the prefix itself, one of the files, or a directory with one checkpoint or with a file
    `checkpoint` that names the latest checkpoint.

    Raises:
        FileNotFoundError: there is no checkpoint, or one of its files is missing.
        ValueError: the directory has several checkpoints, of which none is named the latest.
    """
    path = Path(path)
    if path.is_dir():
        path = _latest(path)
    prefix = path.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name))
    if not prefix.with_name(f"{prefix.name}.index").is_file():
        raise FileNotFoundError(
            f"No TF1 checkpoint at {path}: expected {prefix.name}.index and {prefix.name}.data-*, "
            "or a directory that holds them."
        )
    shard = re.compile(re.escape(prefix.name) + r"\.data-\d{5}-of-(\d{5})")
    shards = []
    for file in prefix.parent.iterdir():
        if match := shard.fullmatch(file.name):
            shards.append(match[1])
    if not any(shards.count(total) == int(total) for total in shards):
        raise FileNotFoundError(
            f"{prefix}.index needs {int(max(shards, default='1'))} files {prefix.name}.data-* in "
            f"its directory, which has {len(shards)}: copy all of them."
        )
    return prefix


def _latest(directory: Path) -> Path:
    present = sorted(file.name[:-6] for file in directory.iterdir() if file.suffix == ".index")
    pointer = directory / "checkpoint"
    text = ""
    if pointer.is_file():
        text = read_bytes(pointer, 1 << 20).decode("utf-8", "replace")
    if match := re.search(r'^model_checkpoint_path:\s*"(.+)"', text, re.MULTILINE):
        # A directory in `name` refers to the machine that wrote the checkpoint, so it is ignored.
        name = Path(match[1]).name
        if name not in present:
            raise FileNotFoundError(
                f"{pointer} names {brief(name, 60)}, but the directory holds {listed(present)}: "
                "give the prefix of the checkpoint to read."
            )
        return directory / name
    if not present:
        raise FileNotFoundError(f"No TF1 checkpoint in {directory}: expected an .index file there.")
    if len(present) > 1:
        raise ValueError(
            f"{directory} holds {len(present)} checkpoints, {listed(present)}: give the prefix of "
            f"one, such as {directory / present[-1]}."
        )
    return directory / present[0]


def save_tf1(
    directory: str | Path,
    tensors: Iterable[tuple[str, np.ndarray]],
    config_json: Mapping[str, Any],
    vocab: Sequence[str],
    *,
    name: str = "bert_model.ckpt",
) -> None:
    """Writes a directory with a checkpoint that google-research/bert reads as `init_checkpoint`.

    Google's code has heads for pretraining, classification and SQuAD. Its SQuAD model has a pooler,
    which keeps its random initial values if the checkpoint has no pooler.

    Args:
        directory: the directory to write; an existing model in it is replaced atomically.
        tensors: pairs (PyTorch name, array), in the shapes of PyTorch, written one at a time.
        config_json: the content of Hugging Face's `config.json`.
        vocab: the lines of `vocab.txt`, in the order of ids.
        name: the prefix of the names of the checkpoint's files.

    Raises:
        ValueError: Google's code does not support the model, or has no name for a tensor; tensors
            are missing; the vocabulary does not fit; `name` is not a file name; or `directory`
            holds files that bertjax did not write.
        OSError: the disk is full; the previous content of `directory` remains.
        ImportError: TensorFlow is not installed.
    """
    tf = _tensorflow()
    if Path(name).name != name:
        raise ValueError(f"name={name!r} is not a file name: use one such as 'bert_model.ckpt'.")
    config = _google_config(config_json)
    if len(vocab) > config["vocab_size"] or any("\n" in token for token in vocab):
        raise ValueError(
            f"The vocabulary has {len(vocab)} tokens, and vocab_size={config['vocab_size']}: give "
            "at most vocab_size tokens, none of them with a line break."
        )
    with replacing_folder(directory) as beside:
        scratch = beside / "tensors"
        places = _write_raw(scratch, tensors, layers=config["num_hidden_layers"])
        needed = scratch.stat().st_size
        free = shutil.disk_usage(beside).free
        if free < needed:  # TensorFlow would raise an error with a very long message.
            raise OSError(errno.ENOSPC, f"{free:,} bytes are free, but {needed:,} bytes are needed")
        # To save memory, the arrays are mapped from the file; TensorFlow copies no aligned arrays.
        mapped = np.memmap(scratch, mode="r")
        arrays = {}
        for tf1, (start, shape) in sorted(places.items()):
            content = mapped[start : start + 4 * int(np.prod(shape))]
            arrays[tf1] = content.view(np.float32).reshape(shape)
        _write_bundle(tf, beside / name, arrays)
        del mapped, arrays
        scratch.unlink()
        text = json.dumps(config, indent=2, sort_keys=True)
        (beside / "bert_config.json").write_text(f"{text}\n", encoding="utf-8")
        lines = "".join(f"{token}\n" for token in vocab)
        (beside / "vocab.txt").write_text(lines, encoding="utf-8", newline="\n")
        write_checksums(beside)


_CONFIG_FIELDS = (
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
_FIXED = {  # Fields that Google's code cannot set, with the values that it supports.
    "model_type": ("bert",),
    "hidden_act": ("gelu", "relu", "tanh"),
    "layer_norm_eps": (1e-12,),
    "tie_word_embeddings": (True,),
    "is_decoder": (False,),
    "embedding_size": (None,),
    "num_hidden_groups": (None,),
}


def _google_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if missing := [field for field in _CONFIG_FIELDS if field not in config]:
        raise ValueError(
            f"The config lacks the fields {missing}: add them, because bert_config.json needs them."
        )
    problems = []
    for field, known in _FIXED.items():
        if config.get(field, known[0]) not in known:
            problems.append(f"{field}={config[field]!r} (only {', '.join(map(repr, known))})")
    if problems:
        raise ValueError(
            f"Google's TF1 BERT does not support {'; '.join(problems)}: save a Hugging Face "
            "directory instead. ('gelu' in Google's current code is called 'gelu_new' here.)"
        )
    return {field: config[field] for field in _CONFIG_FIELDS}


def _write_raw(
    file: Path, tensors: Iterable[tuple[str, np.ndarray]], *, layers: int
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Writes the bytes of tensors to one file; returns {TF1 name: (offset in bytes, shape)}."""
    places: dict[str, tuple[int, tuple[int, ...]]] = {}
    nameless = []
    duplicate = []
    with file.open("wb") as raw:
        for name, tensor in tensors:
            tf1 = from_pytorch(name)
            if tf1 is None:
                nameless.append(name)
                continue
            if tf1 in places:
                duplicate.append(name)
                continue
            transposed = tf1.endswith("/kernel")
            value = np.ascontiguousarray(tensor.T if transposed else tensor, np.float32)
            raw.write(bytes(-raw.tell() % 64))  # TensorFlow needs this alignment.
            places[tf1] = raw.tell(), value.shape
            raw.write(value.data)
    encoder = [name for name in NAMES if name.startswith(("bert/embeddings", "bert/encoder"))]
    wanted = {tf1.format(layer=layer) for tf1 in encoder for layer in range(layers)}
    missing = sorted(wanted - places.keys())
    beyond = sorted(n for n in places if n.startswith("bert/encoder") and n not in wanted)
    if nameless or duplicate or missing or beyond:
        raise ValueError(
            f"These tensors are not a TF1 BERT of {layers} layers. Without a TF1 name: {nameless}. "
            f"Duplicate: {duplicate}. Missing: {missing}. Of layers that the config lacks: "
            f"{beyond}. Google's code has heads for pretraining (with tied embeddings), "
            "classification and SQuAD only: save models with other heads as a Hugging Face "
            "directory."
        )
    return places


def _write_bundle(tf: ModuleType, prefix: Path, arrays: Mapping[str, np.ndarray]) -> None:
    # Eager execution would allocate the memory of the GPUs, so this uses a graph and a session.
    with tf.Graph().as_default():
        inputs = {tf1: tf.compat.v1.placeholder(tf.float32, a.shape) for tf1, a in arrays.items()}
        save = tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(inputs),
            shape_and_slices=[""] * len(inputs),
            tensors=list(inputs.values()),
        )
        settings = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(config=settings) as session:
            try:
                session.run(save, {inputs[tf1]: array for tf1, array in arrays.items()})
            except tf.errors.OpError as error:  # The error has a very long message.
                raise OSError(errno.EIO, f"TensorFlow raised {type(error).__name__}") from error


def _tensorflow() -> ModuleType:
    # TF_CPP_MIN_LOG_LEVEL does not suppress the notice about oneDNN, so oneDNN is disabled. To use
    # it in the same process, import TensorFlow earlier or set TF_ENABLE_ONEDNN_OPTS.
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    for key in quiet.keys() & os.environ.keys():
        del quiet[key]
    os.environ.update(quiet)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("tensorflow")
    except ImportError as error:
        raise ImportError(
            f"TF1 checkpoints need TensorFlow ({error}): pip install 'bertjax[tf]'."
        ) from error
    finally:
        for key in quiet:
            os.environ.pop(key, None)
