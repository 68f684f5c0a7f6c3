"""What describes one model family: the names of its tensors, fields and classes at Hugging Face."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.base.files import brief
from bertjax.config.model import BertConfig

# Pairs (prefix in the family, prefix in BERT) of tensor names; {layer} is the index of a layer.
Renames = tuple[tuple[str, str], ...]


def parse_fields(table: str) -> dict[str, str]:
    """Parses lines of a field of `config.json` and the field of BertConfig, if named otherwise."""
    fields = {}
    for line in table.strip().splitlines():
        hf_name, *name = line.split()
        fields[hf_name] = name[0] if name else hf_name
    return fields


def parse_renames(table: str) -> Renames:
    """Parses lines of a prefix in the family and the same prefix in BERT."""
    return tuple(_pair(line) for line in table.strip().splitlines())


def _pair(line: str) -> tuple[str, str]:
    name, bert_name = line.split()
    return name, bert_name


def in_layers(layer: str, table: str) -> Renames:
    """Parses lines of a module of a layer and the same module in BERT.

    A tensor of the family that holds several of BERT's has several lines.
    """
    return tuple(
        (f"{layer}.{name}.", f"bert.encoder.layer.{{layer}}.{bert_name}.")
        for name, bert_name in parse_renames(table)
    )


# {field of `config.json`: field of BertConfig}, in the order in which they are written.
COMMON = parse_fields("""
vocab_size
hidden_size
num_hidden_layers
num_attention_heads
intermediate_size
hidden_act
hidden_dropout_prob
max_position_embeddings
attention_probs_dropout_prob
type_vocab_size
initializer_range
pad_token_id
layer_norm_eps
tie_word_embeddings
model_type
""")
BERT_FIELDS = {
    **COMMON,
    "classifier_dropout": "classifier_dropout",
    "is_decoder": "is_decoder",
}
PAIRS = ("pretraining", "next_sentence")  # the heads with sentence pairs
PAIRS_AND_RTD = (*PAIRS, "rtd")  # which most families lack


def check_choice(name: str, value: Any, supported: Sequence[str]) -> None:
    """Raises ValueError if the value of the field `name` is not one of `supported`."""
    if value not in supported:
        raise ValueError(f"{name}={brief(value)} is not supported: use {', '.join(supported)}.")


def _no_tables(config: BertConfig) -> dict[str, np.ndarray]:
    return {}


class Family(NamedTuple):
    """The names that Hugging Face's files and classes use for one model family.

    Attributes:
        class_name: prefix of the family's classes in transformers: "Bert" in "BertForMaskedLM".
        prefix: prefix of the encoder's tensor names, which files of an encoder without a head omit.
        renames: pairs (prefix of tensor names in the family, prefix of the same tensors in BERT).
        fields: {field of the family's `config.json`: field of `BertConfig`}.
        aliases: pairs (other prefix of tensor names in the family, prefix of BERT's names).
        encoders: names of the heads of the family of which transformers has the encoder alone.
        encoder_suffix: suffix of the class of the encoder in transformers.
        absent: names of the heads in `bertjax.model.HEADS` that transformers lacks for the family.
        left_out: parts of names of tensors that published files have and transformers leaves out,
            which are left out here with a line; docs/weights.md has the reasons.
        classifier: name of a linear layer for classes without a dense layer before it.
        decoder_has_bias: whether the output matrix of an untied masked LM has a bias of its own.
        modules_in_files: whether the layers of the classes have the names of the tensors in files,
            without which files of PEFT's adapters have other names.
        positions_after_padding: whether position ids start at pad_token_id + 1, as in RoBERTa.
        outputs: {name of a model output in bertjax: its name in transformers}, if the names differ.
        read: converts a `config.json` to a mapping whose keys are the keys of `fields`.
        write: the inverse of `read`.
        tables: returns {name: tensor} of tensors that transformers stores and that are computed.
    """

    class_name: str
    prefix: str
    renames: Renames = ()
    fields: Mapping[str, str] = BERT_FIELDS
    aliases: Renames = ()
    absent: tuple[str, ...] = ("rtd",)
    left_out: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    encoder_suffix: str = "Model"
    classifier: str = "classifier"
    decoder_has_bias: bool = True
    modules_in_files: bool = True
    positions_after_padding: bool = False
    outputs: Mapping[str, str] = {}
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    write: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    tables: Callable[[BertConfig], dict[str, np.ndarray]] = _no_tables


ROBERTA_HEADS = parse_renames("""
lm_head.dense.        cls.predictions.transform.dense.
lm_head.layer_norm.   cls.predictions.transform.LayerNorm.
lm_head.              cls.predictions.
classifier.dense.     projection.
classifier.out_proj.  classifier.
""")
