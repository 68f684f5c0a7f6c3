"""Loads the model that a fine-tuning starts from, with the head of the task."""

import dataclasses
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.config import FinetuneConfig
from bertjax.config.model import DROPOUT_FIELDS
from bertjax.devices import hosts
from bertjax.tasks import Task
from bertjax.train.target_scale import to_standardized
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.families import config_to_hf
from bertjax.weights.fill import fresh
from bertjax.weights.load import with_new_tagger


def load_for_task(config: FinetuneConfig, task: Task) -> LoadedModel:
    """Loads the model that --init names, with the head of the task.

    If `config.feature_layers` is set, the model is an encoder, which stays frozen, and a new tagger
    on its hidden states. If `config.dropout` is not None, the dropout rates of the model are set to
    this value.

    Raises:
        ValueError: the model cannot be loaded for the task or accepts fewer tokens than the maximum
            length, or `config` trains a tagger on a frozen encoder, but the task is not tagging.
    """
    tagger = config.feature_tagger
    if tagger is not None and task.label_kind != "tokens":
        raise ValueError(
            f"feature_layers={list(config.feature_layers)} trains a tagger on a frozen encoder, "
            f"which needs a tagging task (conll or tag), but {task.name} is not one: leave "
            "feature_layers out."
        )
    loaded = load_model(
        config.init,
        "encoder" if tagger else task.head,
        num_labels=task.num_labels,
        new_labels=True,
        seed=config.seed,
        head_fields=task.head_fields,
    )
    if tagger is not None:
        loaded = with_new_tagger(loaded, tagger, len(task.labels), config.seed)
    if task.labels and loaded.labels and not loaded.absent and loaded.labels != [*task.labels]:
        hosts.say(
            f"The classifier of {config.init} is kept, since it has as many classes as the task; "
            f"its classes {', '.join(loaded.labels)} are now called {', '.join(task.labels)}"
        )
    if loaded.model.class_part not in loaded.absent:
        loaded = loaded._replace(params=to_standardized(loaded.params, task))
    longest = loaded.config.max_length
    if (config.max_length or task.max_length) > longest:
        raise ValueError(
            f"max_length={config.max_length or task.max_length}, but {config.init} reads at most "
            f"{longest} tokens: give --max_length={longest}."
        )
    if config.dropout is not None:
        loaded = _with_dropout(loaded, config.dropout)
    config_to_hf(loaded.config)  # what could not be saved is refused before the training
    return loaded


def _with_dropout(loaded: LoadedModel, rate: float) -> LoadedModel:
    # Where a model family has no dropout, such as after DistilBERT's attention, none is added.
    rates: dict[str, Any] = {name: rate for name in DROPOUT_FIELDS if getattr(loaded.config, name)}
    rates |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), rate)
    rates["classifier_dropout"] = None
    return loaded._replace(config=dataclasses.replace(loaded.config, **rates))


def reinitialized(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Initialises again, with `seed`, those parameters of `loaded` that are initialised at random.

    The returned model equals the model that is loaded from the same checkpoint with `seed`.
    """
    flat: Any = flatten_dict(loaded.params, sep="/")
    paths = frozenset(path for path in flat if path.startswith(tuple(loaded.absent)))
    params = unflatten_dict({**flat, **fresh(loaded.model, paths, seed)}, sep="/")
    return loaded._replace(params=params)
