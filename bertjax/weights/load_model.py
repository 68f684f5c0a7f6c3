"""Loads models, with one of the heads, from what `bertjax.weights.source` opens."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jax.typing import DTypeLike

from bertjax.base.files import brief, did_you_mean
from bertjax.model import HEADS, BertConfig, BertWithHead
from bertjax.model.pretraining_heads import PRETRAINING_HEADS
from bertjax.tokenization import Tokenizer
from bertjax.weights import names
from bertjax.weights.families import architecture, config_from_hf, heads_of
from bertjax.weights.fill import fill, param_shapes, resize_vocabulary
from bertjax.weights.sentence_modules import with_head_fields
from bertjax.weights.source import Source, open_source

# The value of `head` that keeps the head of a fine-tuned model only.
AUTO = "auto"


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
    tensors = {name: source.tensors[name] for name in head_tensors(source, loaded.config)}
    filled = fill(tensors, model, str(source.where), known=encoder)
    return loaded._replace(model=model, head="masked_lm", **filled._asdict())


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
    parts = set(head_tensors(source, config).values())
    fitting = [head for head in heads_of(config) if parts == HEADS[head](config).present_parts]
    named = source.config.get("architectures")
    named = named[0] if isinstance(named, list) and named else None
    if not fitting:
        raise ValueError(
            f"{source.where} holds weights of the heads {sorted(parts)}, which no single model "
            f"has: load it with one of the heads {', '.join(heads_of(config))}."
        )
    modules = source.usage.modules
    if "sentence_embedding" in fitting and not modules.exception() and modules.result():
        return "sentence_embedding"
    return next((head for head in fitting if architecture(config, head) == named), fitting[0])


def head_tensors(source: Source, config: BertConfig) -> dict[str, str]:
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
