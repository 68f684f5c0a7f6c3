"""Finds out what a place that holds a model is, and reads it."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.model import BertConfig, BertForPreTraining
from bertjax.tokenization import WordPieceTokenizer, load_tokenizer
from bertjax.weights.hf import load_hf


class LoadedModel(NamedTuple):
    """A model with its parameters (numpy) and tokenizer; `absent` parts are freshly initialised."""

    model: BertForPreTraining
    params: dict
    config: BertConfig
    tokenizer: WordPieceTokenizer
    absent: list[str]


def find_model_directory(path: str | Path) -> Path:
    """The model directory at `path`, or in the workdir of a run at `path`.

    Raises:
        FileNotFoundError: neither is there.
    """
    path = Path(path)
    for directory in (path, path / "model"):
        if (directory / "config.json").is_file() and (directory / "model.safetensors").is_file():
            return directory
    raise FileNotFoundError(
        f"No model at {path}: expected a directory with config.json and model.safetensors, or the "
        "workdir of a finished bertjax run."
    )


def load_model(path: str | Path) -> LoadedModel:
    """Loads a model directory, or the model that a run left in its workdir.

    Raises:
        FileNotFoundError: there is none.
        ValueError: its weights, config and tokenizer do not fit together.
    """
    directory = find_model_directory(path)
    config = BertConfig.from_json_file(directory / "config.json")
    tokenizer = load_tokenizer(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"The tokenizer in {directory} has {tokenizer.vocab_size} tokens, the model only "
            f"vocab_size={config.vocab_size}: they do not belong together."
        )
    model = BertForPreTraining(config)
    params, absent = load_hf(directory, config, init_params(model, seed=0))
    return LoadedModel(model, params, config, tokenizer, absent)


def init_params(model: BertForPreTraining, seed: int) -> dict:
    """Fresh parameters; the same for a seed, however many devices there are."""
    ids = jnp.zeros((1, 8), jnp.int32)
    starts = jnp.zeros((1, 1), jnp.int32)

    @jax.jit
    def init(key: jax.Array):
        return model.init(key, ids, ids, ids, ids, starts, starts)["params"]

    return init(jax.random.key(seed))
