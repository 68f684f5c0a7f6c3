"""The model that a pretraining starts from (--init), made to fit the data and the config.

Words that the tokenizer of the data has beyond the model's get embeddings, and so do positions for
longer rows. A discriminator of ELECTRA gets its generator (--generator_init).
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bertjax.base.files import listed
from bertjax.config import PretrainConfig, RtdConfig, differences
from bertjax.config.model import DROPOUT_FIELDS, BertConfig
from bertjax.devices import hosts
from bertjax.model.recipe import SHARINGS
from bertjax.tokenization import Tokenizer
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.load import with_new_words, with_positions

Say = Callable[[str], None]


def initial_model(
    config: PretrainConfig, tokenizer: Tokenizer, say: Say = hosts.say
) -> LoadedModel:
    """Loads the model `config.init` (not None) with the head of the run, and extends it.

    `say` gets a sentence on each extension.

    Raises:
        MissingHead: transformers lacks the head for the model's family.
        FileNotFoundError: there is no model.
        ValueError: the tokenizer is neither the model's nor an extension of it, or the model is
            damaged.
    """
    loaded = load_model(str(config.init), config.head)
    if config.head == "rtd" and "predictions" in loaded.unused and loaded.absent:
        raise ValueError(
            f"--init {config.init} is a generator: it has a masked LM head and none that detects "
            "replaced tokens. Give the discriminator."
        )
    return extended(loaded, config, tokenizer, "--init", say)


def with_generator(
    loaded: LoadedModel, config: PretrainConfig, tokenizer: Tokenizer, say: Say
) -> tuple[LoadedModel, RtdConfig]:
    """Adds the parameters of the generator `config.generator_init` to a discriminator.

    Returns both, and `config.generator` with the sizes of the generator. Raises the errors of
    `initial_model`, and ValueError if the generator is not one of this discriminator.
    """
    name = str(config.generator_init)
    rtd = config.generator
    generator = load_model(name, "masked_lm")
    generator = extended(generator, config, tokenizer, "--generator_init", say)
    if generator.absent:
        raise ValueError(
            f"--generator_init {name} has no {listed(generator.absent)}, so it is no masked LM: "
            "give the generator that was trained with the discriminator."
        )
    rtd = dataclasses.replace(rtd, **{x: getattr(generator.config, x) for x in rtd.SIZES})
    actual = dataclasses.asdict(generator.config)
    expected = dataclasses.asdict(rtd.generator_of(loaded.config))
    if changes := differences(actual, expected, (*DROPOUT_FIELDS, "initializer_range")):
        raise ValueError(
            f"--generator_init {name} is no generator of --init {config.init}: they differ in "
            f"{listed(changes)}. Give the generator that was trained with the discriminator."
        )
    params = loaded.params | {"generator": generator.params}
    if rtd.sharing == "es":
        recipe = SHARINGS["es"]
        shared = recipe.join(*recipe.split(params))["generator"]
        if not jax.tree.all(jax.tree.map(np.array_equal, shared, generator.params)):
            raise ValueError(
                f"--generator_init {name} and --init {config.init} have other embeddings, which "
                "cannot be shared: add --rtd.sharing gdes."
            )
    return loaded._replace(params=params), rtd


def extended(
    loaded: LoadedModel, config: PretrainConfig, tokenizer: Tokenizer, flag: str, say: Say
) -> LoadedModel:
    """Extends the model that a flag names by the words of the tokenizer and the positions of rows.

    `say` gets a sentence on each extension.
    """
    old = loaded.tokenizer
    name = getattr(config, flag.removeprefix("--"))
    if old.fingerprint != tokenizer.fingerprint:
        if difference := tokenizer.difference_from(old):
            raise ValueError(
                f"The tokenizer of {flag} {name} is not the one that {config.data} was prepared "
                f"with, nor has that one only further entries ({difference}): prepare the data "
                f"with --tokenizer {name}, or with the --output of bertjax.train_tokenizer "
                f"--extend {name}."
            )
        loaded = with_new_words(loaded, tokenizer, config.seed)
        say(
            f"{tokenizer.vocab_size - old.vocab_size:,} new words start from the mean of the "
            "embeddings of their old pieces, or that of the unknown token if these were unknown; "
            f"vocab_size is {loaded.config.vocab_size:,}"
        )
    return _with_positions_of_rows(loaded, config, say)


def _with_positions_of_rows(loaded: LoadedModel, config: PretrainConfig, say: Say) -> LoadedModel:
    """Extends the trained positions to the rows of all phases, or to those of --model, if more."""
    model = loaded.config
    needed = max(phase.max_length for phase in config.phases) + model.position_offset
    asked = config.model.max_position_embeddings
    if asked > BertConfig.max_position_embeddings:
        needed = max(needed, asked)
    trained = model.max_position_embeddings
    if model.trained_positions is not None:
        trained = model.trained_positions + model.position_offset
    if needed <= trained:
        return loaded
    count = max(needed, model.max_position_embeddings)
    if model.global_rope_theta:  # there is no embedding
        say(f"max_position_embeddings: {trained:,} -> {count:,}")
    else:
        how = {"interpolate": "interpolated"}.get(config.new_positions, "tiled")
        say(f"position embeddings: {trained:,} -> {count:,} ({how})")
    return with_positions(loaded, count, config.new_positions)
