"""Loads models from directories, workdirs of runs, TF1 checkpoints, the hub and the package."""

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike

from bertjax.checkpoint_files import CHECKPOINTS, damaged_steps, without_older_checkpoints
from bertjax.cloud.copies import local_copy
from bertjax.config import model_at
from bertjax.files import brief, did_you_mean, is_remote, read_json
from bertjax.model import HEADS, BertConfig, BertWithHead
from bertjax.model.pretraining_heads import PRETRAINING_HEADS
from bertjax.run_file import holds_run, read_run
from bertjax.shipped import shipped_model
from bertjax.tokenization import TOKENIZER_FILES, Tokenizer, load_tokenizer
from bertjax.tokenization.hub import fetch, may_be_hub_name
from bertjax.weights import names
from bertjax.weights.families import FAMILIES, architecture, config_from_hf, heads_of
from bertjax.weights.fill import fill, param_shapes, resize_vocabulary
from bertjax.weights.fused_tensors import SplitTensors
from bertjax.weights.hf import (
    WEIGHT_SUFFIXES,
    check_files,
    has_weights,
    open_hf,
    open_weights,
)
from bertjax.weights.sentence_modules import SENTENCE_FILES, usable_modules, with_head_fields
from bertjax.weights.tf1 import open_tf1

_SMALL_FILES = ["config.json", "task.json", *TOKENIZER_FILES, *SENTENCE_FILES]

# The value of `head` that keeps the head of a fine-tuned model only.
AUTO = "auto"


class Source(NamedTuple):
    """An opened model directory, workdir or TF1 checkpoint, from which a model can be loaded.

    Attributes:
        kind: "hf" (Hugging Face), "run" (the workdir of a pretraining run) or "tf1".
        where: the path of the directory or checkpoint.
        config: the fields of `config.json` or `bert_config.json`; for a run, those of `BertConfig`.
        tensors: {PyTorch name: tensor} of the parameters.
        tokenizer: the model's tokenizer; None if the model has no tokenizer and the caller of
            `open_source` does not require one.
    """

    kind: str
    where: Path
    config: dict[str, Any]
    tensors: Mapping[str, np.ndarray]
    tokenizer: Tokenizer


class LoadedModel(NamedTuple):
    """A Flax module with its parameters, tokenizer and labels.

    Attributes:
        model: the Flax module.
        head: the name of the head in `bertjax.model.HEADS`.
        params: the parameters, a tree of numpy arrays (float32).
        config: the config of the encoder.
        tokenizer: the tokenizer; None only if the caller of `load_model` does not require one.
        labels: the class names in `id2label` of the source's config; None: the config has none, or
            their number is not the `num_labels` passed to `load_model`.
        absent: the parts of the model that the source lacks and that were initialised at random.
        unused: the parts of the source that the model does not have.
        source: the directory or checkpoint that the model was loaded from.
    """

    model: BertWithHead
    head: str
    params: dict[str, Any]
    config: BertConfig
    tokenizer: Tokenizer
    labels: list[str] | None
    absent: list[str]
    unused: list[str]
    source: Source


def open_source(path: str | Path, *, tokenizer_required: bool = True) -> Source:
    """Opens a model directory, the workdir of a run, a TF1 checkpoint or a model on the hub.

    `bertjax:NAME` is a model that comes with bertjax, such as `bertjax:tiny`. If `path` is a file
    `.bin` or `.safetensors`, the weights are read from this file, and all else from its directory.
    `tokenizer_required` says whether a model without a tokenizer is an error.

    Raises:
        FileNotFoundError: there is no model at `path`, neither locally nor on the hub, or the
            model has no tokenizer although one is required.
        ValueError: a file of the model is damaged.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(
            f"The model is {brief(repr(path), 60)}: give a directory, a checkpoint, or the name of "
            "a model on the hub."
        )
    path = shipped_model(path) or path
    path, address = local_copy(path, choose=without_older_checkpoints), path
    place = Path(path)
    if is_remote(address) and damaged_steps(place / CHECKPOINTS):
        local_copy(address)  # an older checkpoint may be undamaged
    if place.is_dir():
        if holds_run(place) and not _is_fine_tuned(place):
            return _open_run(place, tokenizer_required)
        if (place / "config.json").is_file() and has_weights(place):
            return _open_hf(place, None, tokenizer_required)
        if (place / "bert_config.json").is_file():
            return _open_tf1(place, place, tokenizer_required)
        if (place / "model" / "config.json").is_file():
            return open_source(place / "model", tokenizer_required=tokenizer_required)
    elif place.is_file() and place.suffix in WEIGHT_SUFFIXES:
        return _open_hf(place.parent, place, tokenizer_required)
    elif Path(f"{path}.index").is_file():
        return _open_tf1(place, place.parent, tokenizer_required)
    elif place.name == "model" and holds_run(place.parent):
        raise FileNotFoundError(
            f"The run in {place.parent} has not written its model: repeat its command to finish "
            f"it. (If it is a pretraining, {place.parent} itself can be given, for its newest "
            "checkpoint.)"
        )
    elif may_be_hub_name(path):
        return open_source(_fetch(str(path)), tokenizer_required=tokenizer_required)
    raise FileNotFoundError(
        f"No model at {path}: expected a directory with config.json and weights "
        "(model.safetensors, its shards and index, or pytorch_model.bin), the workdir of a run, a "
        "TF1 checkpoint beside its bert_config.json, a name on the hub, or bertjax:tiny."
    )


def _open_hf(directory: Path, weights: Path | None, tokenizer_required: bool) -> Source:
    """Opens a Hugging Face directory, with the weights in the file `weights` if it is not None."""
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} has no config.json, which describes the architecture of {weights}: copy "
            "it there."
        )
    check_files(directory)
    config = read_json(directory / "config.json")
    tokenizer = _open_tokenizer(directory, tokenizer_required)
    tensors = open_hf(directory) if weights is None else open_weights(weights)
    return Source("hf", directory, config, _split(tensors, config), tokenizer)


def _split(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> SplitTensors:
    """Returns the tensors with those apart that the files of the model's family join."""
    name = config.get("model_type", "bert") if isinstance(config, dict) else None
    family = FAMILIES.get(name) if isinstance(name, str) else None  # other values are refused later
    return SplitTensors(tensors, family.fused if family else {})


def _open_tokenizer(directory: Path, required: bool) -> Any:
    """Loads a model's tokenizer; returns None if the model has none and `required` is False."""
    vocabularies = (name for name in TOKENIZER_FILES if name != "tokenizer_config.json")
    if not required and not any((directory / name).is_file() for name in vocabularies):
        return None
    return load_tokenizer(directory)


def _open_tf1(checkpoint: Path, directory: Path, tokenizer_required: bool) -> Source:
    file = directory / "bert_config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{directory} has no bert_config.json: copy it there.")
    config = read_json(file)
    tokenizer = _open_tokenizer(directory, tokenizer_required)
    return Source("tf1", checkpoint, config, open_tf1(checkpoint), tokenizer)


def _is_fine_tuned(workdir: Path) -> bool:
    """Whether a workdir holds the exported model of a finished fine-tuning run."""
    has_task = "task" in read_run(workdir)["config"]
    return has_task and (workdir / "model" / "config.json").is_file()


def _open_run(workdir: Path, tokenizer_required: bool) -> Source:
    """Reads the parameters, but no optimizer state, from a run's newest undamaged checkpoint."""
    run: Any = read_run(workdir)["config"]
    if "task" in run:
        raise ValueError(
            f"The fine-tuning in {workdir} is not finished, so it has no model yet: repeat its "
            "command to finish it."
        )
    try:
        config = run["model"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{workdir / 'run.json'} has no config of a model: give the workdir of a pretraining "
            "run, or of a finished fine-tuning."
        ) from error
    head = run.get("head") or "pretraining"
    model = HEADS[head](BertConfig.from_dict(config))
    # The manager must not create or delete anything, because the run may be in progress.
    options = ocp.CheckpointManagerOptions(create=False)
    with ocp.CheckpointManager((workdir / "checkpoints").absolute(), options=options) as manager:
        damaged = damaged_steps(workdir / "checkpoints")
        step = max((step for step in manager.all_steps() if step not in damaged), default=None)
        if step is None:
            why = f" that is whole ({max(damaged.items())[1]})" if damaged else ""
            raise FileNotFoundError(
                f"The run in {workdir} has no checkpoint yet{why}: wait until the run saves one, "
                "or start the run again with its command."
            )
        if any(other > step for other in damaged):
            print(f"warning: newer checkpoints of {workdir} are damaged; step {step} is read")
        try:
            params = _restored_params(manager, step, model)
        except Exception as error:  # Orbax raises many types, with long messages.
            summary = str(error).partition("\n")[0]
            raise ValueError(
                f"Checkpoint {step} of the run in {workdir} cannot be read ({summary}). "
                "Check that run.json and the checkpoint belong to the same run. If the checkpoint "
                f"is damaged, remove {workdir / 'checkpoints' / str(step)} to use the previous one."
            ) from error
    flat: Any = flatten_dict(params, sep="/")
    tensors = dict(names.to_hf(flat, model.config))
    config = model_at(model.config, run.get("phases") or (), step).to_dict()
    config |= {"step": step, "architectures": [architecture(model.config, head)]}
    tokenizer = _open_tokenizer(workdir / "tokenizer", tokenizer_required)
    return Source("run", workdir, config, _split(tensors, config), tokenizer)


def _restored_params(manager: ocp.CheckpointManager, step: int, model: BertWithHead) -> Any:
    like = {"params": unflatten_dict(param_shapes(model), sep="/")}
    restore = ocp.args.PyTreeRestore(
        like,
        restore_args=ocp.checkpoint_utils.construct_restore_args(
            _map_leaves(like, lambda _: np.zeros(0, np.float32))
        ),
        partial_restore=True,
    )
    return manager.restore(step, args=ocp.args.Composite(state=restore))["state"]["params"]


def _map_leaves(tree: Any, function: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _map_leaves(value, function) for key, value in tree.items()}
    return function(tree)


def _fetch(name: str) -> Path:
    """Downloads a model from the hub, unless it is cached, and returns its local directory."""
    for weights in (["*.safetensors", "*.safetensors.index.json"], ["pytorch_model.bin"]):
        folder = fetch(name, _SMALL_FILES + weights)
        if has_weights(folder):
            break
    return folder


def load_model(
    path: str | Path,
    head: str | None = "pretraining",
    *,
    num_labels: int | None = None,
    new_labels: bool = False,
    vocab_size: int | None = None,
    dtype: DTypeLike = jnp.float32,
    seed: int = 0,
    tokenizer_required: bool = True,
    head_fields: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Loads a model with one of the heads in `bertjax.model.HEADS`.

    Args:
        path: a directory, checkpoint or name that `open_source` accepts.
        head: the name of the head, which is initialised at random if the source lacks it; None: the
            head of the source; "auto": the head of the source if it was fine-tuned for a task, and
            "encoder", without a head, if it was pretrained.
        num_labels: the number of classes; None: the number of classes in the source, or 2 if the
            source has no classes.
        new_labels: whether a stored classifier whose number of classes is not that of the model is
            replaced by a newly initialised classifier; if False, the difference raises ValueError.
        vocab_size: the vocabulary size to resize the model to; None: the model is not resized.
        dtype: the dtype of the activations.
        seed: the seed for the random initialisation of parameters that the source lacks.
        tokenizer_required: whether a model without a tokenizer raises FileNotFoundError.
        head_fields: settings of the head, {name of a field of its class: value}; None: those of the
            source, or the defaults.

    Raises:
        FileNotFoundError: there is no model, or the model lacks a tokenizer that is required.
        ValueError: a file is damaged, transformers lacks the head for the model family, the shapes
            of the weights do not fit the config or `num_labels`, or the tokenizer has more tokens
            than the model.
    """
    if head is not None and head not in (*HEADS, AUTO):
        raise ValueError(
            f"Unknown head {head!r}. {did_you_mean(head, HEADS)}Known: {', '.join(HEADS)}."
        )
    source = open_source(path, tokenizer_required=tokenizer_required)
    if head == AUTO:
        head = _task_head(source)
    head = find_head(source) if head is None else head
    config = _architecture(source)
    architecture(config, head)  # raises if the family does not have the head
    needed = source.tokenizer.vocab_size if source.tokenizer else 0
    if needed > (vocab_size or config.vocab_size):
        raise ValueError(
            f"The tokenizer in {source.where} has {needed} tokens, but the model has vocab_size="
            f"{vocab_size or config.vocab_size}. Use the tokenizer of this model, or give "
            f"vocab_size={needed} to resize the embedding."
        )
    labels = _labels(source.config, source.where)
    if num_labels is not None and labels is not None and len(labels) != num_labels:
        labels = None
    model = HEADS[head](
        config, jnp.dtype(dtype), num_labels=num_labels or len(labels or ()) or _classes(source)
    )
    model = with_head_fields(model, source.where, head_fields or {})
    bias = param_shapes(model).get(f"{model.class_part}/bias") if new_labels else None
    skip = model.class_part if bias is not None and bias.size != _classes(source) else None
    filled = fill(source.tensors, model, str(source.where), seed, skip=skip)
    params = filled.params
    if vocab_size is not None and vocab_size != config.vocab_size:
        old_config, config = config, dataclasses.replace(config, vocab_size=vocab_size)
        model = model.clone(config=config)
        params = resize_vocabulary(params, model, old_config, seed)
    return LoadedModel(
        model, head, params, config, source.tokenizer, labels, filled.absent, filled.unused, source
    )


def with_masked_lm(loaded: LoadedModel) -> LoadedModel:
    """Replaces the head of a loaded model by the masked LM head stored in the model's source.

    A model that has a masked LM head already is returned unchanged. If the source has no masked LM
    head, the new head is initialised at random and named in `absent`.
    """
    if "predictions" in loaded.model.parts:
        return loaded
    model = HEADS["masked_lm"](loaded.config, loaded.model.dtype)
    encoder: Any = flatten_dict({"bert": loaded.params["bert"]}, sep="/")
    source = loaded.source
    tensors = {name: source.tensors[name] for name in _head_tensors(source, loaded.config)}
    filled = fill(tensors, model, str(source.where), known=encoder)
    return loaded._replace(
        model=model,
        head="masked_lm",
        params=filled.params,
        absent=filled.absent,
        unused=filled.unused,
    )


def _task_head(source: Source) -> str:
    """Returns the name of the source's head if it is a head for a task, else "encoder".

    The result is "encoder" for a pretraining head, and if no head has exactly the stored layers.
    """
    with contextlib.suppress(ValueError):
        head = find_head(source)
        return "encoder" if head in PRETRAINING_HEADS else head
    return "encoder"


def find_head(source: Source) -> str:
    """Returns the name of the head whose layers are exactly the head layers stored in a source.

    If several heads have the stored layers, the head that the config names under "architectures" is
    preferred. A model without a head that has the files of sentence-transformers has the head of
    sentence embeddings.

    Raises:
        ValueError: no head has exactly the head layers that are stored in the source.
    """
    config = _architecture(source)
    parts = set(_head_tensors(source, config).values())
    fitting = [head for head in heads_of(config) if parts == HEADS[head](config).present_parts]
    named = source.config.get("architectures")
    named = named[0] if isinstance(named, list) and named else None
    if not fitting:
        raise ValueError(
            f"{source.where} holds weights of the heads {sorted(parts)}, which no single model "
            f"has: load it with one of the heads {', '.join(heads_of(config))}."
        )
    if "sentence_embedding" in fitting and usable_modules(source.where):
        return "sentence_embedding"
    return next((head for head in fitting if architecture(config, head) == named), fitting[0])


def _head_tensors(source: Source, config: BertConfig) -> dict[str, str]:
    """Returns {tensor name: head layer, such as "classifier"} of tensors outside the encoder."""
    parts = {}
    for stored, name in names.normalized(source.tensors, config).items():
        mapped = names.find(name, config)
        if mapped and not mapped.path.startswith("bert/"):
            parts[stored] = mapped.path.split("/")[0]
    return parts


def _architecture(source: Source) -> BertConfig:
    try:
        if source.kind == "run":  # run.json has the field names of BertConfig
            return BertConfig.from_dict(source.config)
        return config_from_hf(source.config)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"The config of {source.where} is invalid: {brief(error, 250)}") from error


def _classes(source: Source) -> int:
    """Returns the number of classes of a source: the length of the bias of its classifier.

    If the source has no classifier, the number of classes is 2, the default of transformers.
    """
    for name in ("classifier.bias", "classifier.out_proj.bias"):
        if name in source.tensors:
            return max(source.tensors[name].size, 1)
    return 2


def _labels(config: Mapping[str, Any], where: Path) -> list[str] | None:
    """Returns the labels in id2label of a config, sorted by id; None if id2label is missing."""
    stored = config.get("id2label")
    if stored is None:
        return None
    try:
        labels = [label for _, label in sorted((int(i), x) for i, x in stored.items())]
        if any(not isinstance(label, str) for label in labels):
            raise ValueError("a label is not a text")
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"id2label={brief(stored)} in {where / 'config.json'} is not a mapping of ids to "
            'labels: correct it to the form {"0": "no", "1": "yes"}.'
        ) from error
    return labels
