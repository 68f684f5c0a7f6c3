"""Finds out what a place that holds a model is, and reads it."""

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike

from bertjax.model import HEADS, BertConfig, BertWithHead
from bertjax.tokenization import TOKENIZER_FILES, Tokenizer, load_tokenizer
from bertjax.tokenization.hub import fetch, may_be_hub_name
from bertjax.weights import names
from bertjax.weights.families import architecture, config_from_hf, heads_of
from bertjax.weights.fill import fill, param_shapes, resize_vocabulary
from bertjax.weights.hf import has_weights, open_hf, read_json
from bertjax.weights.tf1 import open_tf1

_SMALL_FILES = ["config.json", "task.json", *TOKENIZER_FILES]


class Source(NamedTuple):
    """Where a model was found: `kind`, what its config says, its tensors, its tokenizer."""

    kind: str
    """hf, run or tf1."""
    where: Path
    config: dict[str, Any]
    tensors: Mapping[str, np.ndarray]
    tokenizer: Tokenizer


class LoadedModel(NamedTuple):
    """A model with its parameters (numpy), tokenizer and labels.

    `absent` parts of it were not in the source and are freshly initialised; `unused` parts were
    there, but this head has no use for them.
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


def open_source(path: str | Path) -> Source:
    """Opens a model directory, a run's workdir, a TF1 checkpoint or a model of the hub.

    Raises:
        FileNotFoundError: there is no model at `path`, and none of that name on the hub.
        ValueError: what is there is damaged.
    """
    place = Path(path)
    if place.is_dir():
        if (place / "run.json").is_file() and not _is_fine_tuned(place):
            return _open_run(place)
        if (place / "config.json").is_file() and has_weights(place):
            config = read_json(place / "config.json")
            return Source("hf", place, config, open_hf(place), load_tokenizer(place))
        if (place / "bert_config.json").is_file():
            return _open_tf1(place, place)
        if (place / "model" / "config.json").is_file():
            return open_source(place / "model")
    elif Path(f"{path}.index").is_file():
        return _open_tf1(place, place.parent)
    elif may_be_hub_name(path):
        return open_source(_fetch(str(path)))
    raise FileNotFoundError(
        f"No model at {path}: expected a directory with config.json and weights "
        "(model.safetensors, its shards and index, or pytorch_model.bin), the workdir of a run, a "
        "TF1 checkpoint beside its bert_config.json, or a name on the hub."
    )


def _open_tf1(checkpoint: Path, directory: Path) -> Source:
    file = directory / "bert_config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{checkpoint} has no bert_config.json beside it: put it there.")
    config = read_json(file)
    return Source("tf1", checkpoint, config, open_tf1(checkpoint), load_tokenizer(directory))


def _is_fine_tuned(workdir: Path) -> bool:
    """Whether a workdir is that of a fine-tuning with its model, which is the best checkpoint's."""
    config = read_json(workdir / "run.json").get("config")
    named = isinstance(config, dict) and "task" in config
    return named and (workdir / "model" / "config.json").is_file()


def _open_run(workdir: Path) -> Source:
    """The newest checkpoint of a run; its parameters alone are read, not the optimizer's."""
    try:
        run = read_json(workdir / "run.json")["config"]
        config = run["model"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{workdir / 'run.json'} has no config of a model: is {workdir} the folder of a run? A "
            "fine-tuning has its model in the end."
        ) from error
    head = run.get("head") or "pretraining"
    model = HEADS[head](BertConfig.from_dict(config))
    # Nothing is cleaned up or made: the run may be going on.
    options = ocp.CheckpointManagerOptions(create=False)
    with ocp.CheckpointManager((workdir / "checkpoints").absolute(), options=options) as manager:
        step = manager.latest_step()
        if step is None:
            raise FileNotFoundError(f"The run in {workdir} has no checkpoint yet: wait for one.")
        try:
            params = _restored_params(manager, step, model)
        except Exception as error:  # Orbax raises what it likes, pages of it.
            gist = str(error).partition("\n")[0]
            raise ValueError(
                f"Checkpoint {step} of the run in {workdir} cannot be read ({gist}). Does "
                "run.json belong to it? Where it is damaged, remove "
                f"{workdir / 'checkpoints' / str(step)}, and the one before is taken."
            ) from error
    flat: Any = flatten_dict(params, sep="/")
    tensors = dict(names.to_theirs(flat, model.config))
    found = {**config, "step": step, "architectures": [architecture(model.config, head)]}
    return Source("run", workdir, found, tensors, load_tokenizer(workdir / "tokenizer"))


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
    """The folder of a hub model in the local cache, downloaded if need be and allowed."""
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
) -> LoadedModel:
    """Loads a model from wherever it is, with one of the `HEADS`.

    Args:
        path: whatever `open_source` takes.
        head: what the model is to answer; a head that the source lacks is initialised. None:
            the head that the source has.
        num_labels: classes of a new classifier; None: as the config of the source says.
        new_labels: the classes are a new task's: a classifier of another number of them is
            initialised instead of refused.
        vocab_size: rows of the word embedding, for a grown vocabulary; None: as it is.
        dtype: what activations are computed in.
        seed: of what has to be initialised.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: weights, config, tokenizer and arguments do not fit together.
    """
    if head is not None and head not in HEADS:
        nearest = difflib.get_close_matches(head, HEADS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown head {head!r}. Did you mean {nearest!r}? Known: {', '.join(HEADS)}."
        )
    source = open_source(path)
    head = find_head(source) if head is None else head
    config = _architecture(source)
    architecture(config, head)  # refuses what the family does not have
    needed = source.tokenizer.vocab_size
    if needed > (vocab_size or config.vocab_size):
        raise ValueError(
            f"The tokenizer in {source.where} has {needed} tokens, the model only vocab_size="
            f"{vocab_size or config.vocab_size}: they do not belong together, or give vocab_size="
            f"{needed} to resize the embedding."
        )
    labels = _labels(source.config)
    if num_labels is not None and labels is not None and len(labels) != num_labels:
        labels = None
    model = HEADS[head](
        config, jnp.dtype(dtype), num_labels=num_labels or len(labels or ()) or _classes(source)
    )
    skip = model.class_part if new_labels and _classes(source) != num_labels else None
    filled = fill(source.tensors, model, str(source.where), seed, skip=skip)
    params = filled.params
    if vocab_size is not None and vocab_size != config.vocab_size:
        old, config = config, dataclasses.replace(config, vocab_size=vocab_size)
        model = model.clone(config=config)
        params = resize_vocabulary(params, model, old, seed)
    return LoadedModel(
        model, head, params, config, source.tokenizer, labels, filled.absent, filled.unused, source
    )


def find_head(source: Source) -> str:
    """The head that uses all tensors of the source; if several do, the config's architecture.

    Raises:
        ValueError: no single head uses all of them.
    """
    config = _architecture(source)
    parts = set()
    for stored in source.tensors:
        name = names.normalized(stored, config)
        mapped = names.find(name, config) if name else None
        if mapped and not mapped.path.startswith("bert/"):
            parts.add(mapped.path.split("/")[0])
    fitting = [head for head in heads_of(config) if parts == HEADS[head](config).present_parts]
    named = (source.config.get("architectures") or [None])[0]
    if not fitting:
        raise ValueError(
            f"{source.where} holds weights of the heads {sorted(parts)}, which no single model "
            f"has: load it with one of the heads {', '.join(heads_of(config))}."
        )
    return next((head for head in fitting if architecture(config, head) == named), fitting[0])


def _architecture(source: Source) -> BertConfig:
    try:
        if source.kind == "run":  # our own names
            return BertConfig.from_dict(source.config)
        return config_from_hf(source.config)
    except ValueError as error:
        raise ValueError(f"The config of {source.where}: {error}") from error


def _classes(source: Source) -> int:
    """How many classes there are where the config does not say: as many as there are biases.

    `bert_config.json` never says; transformers means 2 if it does not.
    """
    for name in ("classifier.bias", "classifier.out_proj.bias"):
        if name in source.tensors:
            return len(source.tensors[name])
    return 2


def _labels(config: Mapping[str, Any]) -> list[str] | None:
    """The labels of a classifier in the order of their ids, from `config.json`."""
    stored = config.get("id2label")
    if stored is None:
        return None
    try:
        return [label for _, label in sorted((int(i), x) for i, x in stored.items())]
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"id2label={stored!r:.200}: config.json gives each id its label there, as in "
            '{"0": "no", "1": "yes"}.'
        ) from error
