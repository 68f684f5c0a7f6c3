"""The model of --init: loaded, and extended to the vocabulary of the data and to longer rows."""

import dataclasses
from typing import NamedTuple

from bertjax.config import PretrainConfig, differences
from bertjax.config.model import BertConfig
from bertjax.devices import hosts
from bertjax.tokenization import Tokenizer
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.load import with_new_words, with_positions

# The run's config sets these dropout rates even if --init determines the architecture. The other
# dropout rates distinguish model families, so --init determines them.
DROPOUT_OF_THE_RUN = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


class InitialModel(NamedTuple):
    """The model that a run starts from.

    Attributes:
        loaded: the model, with the head, the vocabulary and the positions of the run.
        copied_from: the first position whose embedding is a copy of that of an earlier position and
            has to be fitted before it is used; None if there is no such position.
    """

    loaded: LoadedModel
    copied_from: int | None


def initial_model(config: PretrainConfig, tokenizer: Tokenizer) -> InitialModel:
    """Loads the model `config.init` (not None) with the head of the run, and extends it.

    Words that the tokenizer of the data, `tokenizer`, has beyond that of the model get embeddings,
    and so do positions for rows that are longer than those the model can read. What is extended is
    printed.

    Raises:
        MissingHead: transformers lacks the head for the model's family.
        FileNotFoundError: there is no model.
        ValueError: the tokenizer is neither that of the model nor an extension of it, or the model
            is damaged.
    """
    loaded = load_model(str(config.init), config.head)
    old = loaded.tokenizer
    if old.fingerprint != tokenizer.fingerprint:
        if difference := tokenizer.difference_from(old):
            raise ValueError(
                f"The tokenizer of --init {config.init} is not the one that {config.data} was "
                f"prepared with, nor has that one only further entries ({difference}): prepare the "
                f"data with --tokenizer {config.init}, or with the --output of "
                f"bertjax.train_tokenizer --extend {config.init}."
            )
        loaded = with_new_words(loaded, tokenizer, config.seed)
        hosts.say(
            f"{tokenizer.vocab_size - old.vocab_size:,} new words start from the mean of the "
            f"embeddings of their old pieces; vocab_size is {loaded.config.vocab_size:,}"
        )
    before, rows = loaded.config.max_position_embeddings, _positions(config, loaded.config)
    copied_from = None
    if rows > before:
        loaded = with_positions(loaded, rows, config.new_positions)
        how = "interpolated" if config.new_positions == "interpolate" else "tiled"
        if loaded.config.global_rope_theta:  # there is no embedding
            hosts.say(f"max_position_embeddings: {before:,} -> {rows:,}")
        else:
            hosts.say(f"position embeddings: {before:,} -> {rows:,} ({how})")
            # The loss of a head with random weights says nothing about positions.
            if config.new_positions == "tile" and not loaded.absent:
                copied_from = before - loaded.config.position_offset
    return InitialModel(loaded, copied_from)


def _positions(config: PretrainConfig, model: BertConfig) -> int:
    """Returns max_position_embeddings of the run: that of `model`, or more if the config says so.

    The number in the config counts only above the default: below it, nobody may have chosen it.
    """
    asked = config.model.max_position_embeddings
    longest = max(phase.max_length for phase in config.phases) + model.position_offset
    return max(
        model.max_position_embeddings,
        longest,
        asked if asked > BertConfig.max_position_embeddings else 0,
    )


def architecture_of_run(config: PretrainConfig, model: BertConfig) -> BertConfig:
    """Returns the architecture `model` of the model of --init with the dropout rates of the run.

    The differences between the result and `config.model`, and dropout rates that differ from those
    of `model`, are printed.
    """
    dropout = {name: getattr(config.model, name) for name in DROPOUT_OF_THE_RUN}
    for name, rate in dropout.items():
        if rate != getattr(model, name):
            hosts.say(f"model.{name}={rate}; {config.init} was saved with {getattr(model, name)}")
    model = dataclasses.replace(model, **dropout)
    for change in differences(dataclasses.asdict(model), dataclasses.asdict(config.model)):
        hosts.say(f"--init {config.init} determines the architecture: {change}")
    return model
