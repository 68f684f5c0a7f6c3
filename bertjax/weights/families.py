"""The one place that knows the families by name: how Hugging Face writes BERT's relatives.

A family differs from BERT in the names of its tensors and of the fields of its `config.json`, and
in what its config takes for granted (`bertjax.config.model.FAMILY_FIELDS`). Names of tensors are
brought to BERT's, which `bertjax.weights.names` maps to ours.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from bertjax.config.model import DROPOUT_FIELDS, FAMILY_FIELDS
from bertjax.model import HEADS, BertConfig

# Beginnings of names, the family's and BERT's; {layer} is the number of a layer.
Renames = tuple[tuple[str, str], ...]

# Fields of `config.json` that all families but DistilBERT have in common; theirs = ours.
_COMMON = {
    name: name
    for name in (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        *("intermediate_size", "hidden_act", "hidden_dropout_prob", "max_position_embeddings"),
        *("attention_probs_dropout_prob", "type_vocab_size", "initializer_range", "pad_token_id"),
        *("layer_norm_eps", "tie_word_embeddings", "model_type"),
    )
}
_BERT_FIELDS = _COMMON | {"classifier_dropout": "classifier_dropout", "is_decoder": "is_decoder"}
# What no family has a name for in `config.json`, and an encoder does not need to be told.
_ONLY_AT_THE_START = ("sinusoidal_pos_embds",)


class Family(NamedTuple):
    """How Hugging Face writes one family.

    Attributes:
        class_name: of the classes of transformers, in front of "Model", "ForMaskedLM"...
        prefix: of the encoder's tensors; files of the encoder alone go without.
        renames: beginnings of tensor names.
        fields: of `config.json` -> of `BertConfig`.
        absent: heads that transformers does not have.
        projected_classifier: how a classifier is called that stands on a dense layer of its own.
        decoder_bias: whether the MLM head has its bias twice, as BERT's.
        positions_after_padding: positions begin behind the id of padding.
        outputs: names of outputs -> how transformers calls them.
    """

    class_name: str
    prefix: str
    renames: Renames = ()
    fields: Mapping[str, str] = _BERT_FIELDS
    absent: tuple[str, ...] = ()
    projected_classifier: str = "classifier."
    decoder_bias: bool = True
    positions_after_padding: bool = False
    outputs: Mapping[str, str] = {}


def _roberta(class_name: str) -> Family:
    return Family(
        class_name,
        "roberta",
        (
            ("roberta.", "bert."),
            ("lm_head.dense.", "cls.predictions.transform.dense."),
            ("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm."),
            ("lm_head.", "cls.predictions."),
            ("classifier.dense.", "projection."),
            ("classifier.out_proj.", "classifier."),
        ),
        absent=("pretraining", "next_sentence"),
        projected_classifier="classifier.out_proj.",
        positions_after_padding=True,
    )


_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{layer}.albert_layers.0"
_DISTILBERT_LAYER = "distilbert.transformer.layer.{layer}"
_BERT_LAYER = "bert.encoder.layer.{layer}"


def _layer(layer: str, **renames: str) -> Renames:
    """Names within a layer, with `__` for the dot."""
    return tuple(
        (f"{layer}.{theirs.replace('__', '.')}.", f"{_BERT_LAYER}.{bert}.")
        for theirs, bert in renames.items()
    )


FAMILIES: dict[str, Family] = {
    "bert": Family("Bert", "bert"),
    "roberta": _roberta("Roberta"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "camembert": _roberta("Camembert"),
    "albert": Family(
        "Albert",
        "albert",
        (
            ("albert.embeddings.", "bert.embeddings."),
            ("albert.encoder.embedding_hidden_mapping_in.", "bert.embeddings.projection."),
            ("albert.pooler.", "bert.pooler.dense."),
            *_layer(
                _ALBERT_LAYER,
                attention__query="attention.self.query",
                attention__key="attention.self.key",
                attention__value="attention.self.value",
                attention__dense="attention.output.dense",
                attention__LayerNorm="attention.output.LayerNorm",
                ffn="intermediate.dense",
                ffn_output="output.dense",
                full_layer_layer_norm="output.LayerNorm",
            ),
            ("predictions.dense.", "cls.predictions.transform.dense."),
            ("predictions.LayerNorm.", "cls.predictions.transform.LayerNorm."),
            ("predictions.", "cls.predictions."),
            ("sop_classifier.classifier.", "cls.seq_relationship."),
        ),
        _COMMON
        | {
            "classifier_dropout_prob": "classifier_dropout",
            "embedding_size": "embedding_size",
            "num_hidden_groups": "num_hidden_groups",
        },
        absent=("next_sentence",),
        outputs={"seq_relationship_logits": "sop_logits"},
    ),
    "distilbert": Family(
        "DistilBert",
        "distilbert",
        (
            ("distilbert.embeddings.", "bert.embeddings."),
            *_layer(
                _DISTILBERT_LAYER,
                attention__q_lin="attention.self.query",
                attention__k_lin="attention.self.key",
                attention__v_lin="attention.self.value",
                attention__out_lin="attention.output.dense",
                sa_layer_norm="attention.output.LayerNorm",
                ffn__lin1="intermediate.dense",
                ffn__lin2="output.dense",
                output_layer_norm="output.LayerNorm",
            ),
            ("vocab_transform.", "cls.predictions.transform.dense."),
            ("vocab_layer_norm.", "cls.predictions.transform.LayerNorm."),
            ("vocab_projector.weight", "cls.predictions.decoder.weight"),
            ("vocab_projector.bias", "cls.predictions.bias"),
            ("pre_classifier.", "projection."),
        ),
        {
            **{name: name for name in ("vocab_size", "max_position_embeddings", "model_type")},
            **{name: name for name in ("initializer_range", "pad_token_id", "qa_dropout")},
            "tie_word_embeddings": "tie_word_embeddings",
            "dim": "hidden_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_attention_heads",
            "hidden_dim": "intermediate_size",
            "dropout": "hidden_dropout_prob",
            "attention_dropout": "attention_probs_dropout_prob",
            "activation": "hidden_act",
            "seq_classif_dropout": "classifier_dropout",
        },
        absent=("pretraining", "next_sentence"),
        decoder_bias=False,
    ),
}

# What transformers means where a `config.json` says nothing, and BertConfig would mean another.
_SILENT: dict[str, dict[str, Any]] = {
    "albert": {
        "vocab_size": 30000,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.1,
    },
    "distilbert": {"num_hidden_layers": 6},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), {"vocab_size": 50265}),
}


def family_of(config: BertConfig) -> Family:
    """How Hugging Face writes an architecture.

    Raises:
        ValueError: its `model_type` is not known; the nearest is said.
    """
    return _family(config.model_type)


def _family(model_type: str) -> Family:
    if model_type not in FAMILIES:
        near = difflib.get_close_matches(str(model_type), FAMILIES, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"model_type={model_type!r} is not supported. {hint}Known: {', '.join(FAMILIES)}."
        )
    return FAMILIES[model_type]


def config_from_hf(values: Mapping[str, Any]) -> BertConfig:
    """The architecture that a `config.json` of any family, or Google's, describes.

    Raises:
        ValueError: the family is not known, or its fields are not what they should be.
    """
    model_type = values.get("model_type", "bert")
    family = _family(model_type)
    ours = FAMILY_FIELDS[model_type] | _SILENT.get(model_type, {}) | {"model_type": model_type}
    ours |= {family.fields[key]: value for key, value in values.items() if key in family.fields}
    if values.get("inner_group_num", 1) != 1:
        raise ValueError(f"inner_group_num={values['inner_group_num']} is not supported: only 1.")
    if "token_classifier_dropout" in ours:
        ours["token_classifier_dropout"] = ours.get("hidden_dropout_prob", 0.1)
    known = {field.name for field in dataclasses.fields(BertConfig)}
    refused = {key: value for key, value in values.items() if key not in known}
    config = BertConfig.from_dict(refused | ours)
    return with_pad_token(config, config.pad_token_id)


def with_pad_token(config: BertConfig, pad_token_id: int | None) -> BertConfig:
    """The same architecture with another padding token, which moves RoBERTa's positions."""
    config = dataclasses.replace(config, pad_token_id=pad_token_id)
    if not family_of(config).positions_after_padding:
        return config
    return dataclasses.replace(config, position_offset=(pad_token_id or 0) + 1)


def config_to_hf(config: BertConfig) -> dict[str, Any]:
    """The fields of `config.json` as the family names them.

    Raises:
        ValueError: the family has no place for one; transformers would compute something else.
    """
    family = family_of(config)
    written = {theirs: getattr(config, ours) for theirs, ours in family.fields.items()}
    if not config.is_decoder:
        written.pop("is_decoder", None)
    again = config_from_hf(written)
    lost = [
        f"{field.name}={getattr(config, field.name)!r}"
        for field in dataclasses.fields(config)
        if field.name not in (*DROPOUT_FIELDS, *_ONLY_AT_THE_START)
        and getattr(again, field.name) != getattr(config, field.name)
    ]
    if lost:
        raise ValueError(
            f"{', '.join(lost)}: a model of model_type={config.model_type!r} has no such thing at "
            "Hugging Face, so it could not be saved. Choose the model_type that has, or leave it."
        )
    return written


def architecture(config: BertConfig, head: str) -> str:
    """The class of transformers for a model with one of the `HEADS`.

    Raises:
        ValueError: the family has no such head.
    """
    family = family_of(config)
    if head in family.absent:
        there = [name for name in HEADS if name not in family.absent]
        raise ValueError(
            f"{config.model_type} has no head {head!r} in transformers; it has {', '.join(there)}."
        )
    return family.class_name + HEADS[head].class_suffix


def heads_of(config: BertConfig) -> list[str]:
    """The heads that the family has."""
    absent = family_of(config).absent
    return [head for head in HEADS if head not in absent]


@functools.cache
def _patterns(model_type: str) -> list[tuple[re.Pattern[str], str, str]]:
    """(pattern of a name of theirs, theirs, BERT's), in the order of the table."""
    return [
        (re.compile(re.escape(theirs).replace(r"\{layer\}", r"(\d+)")), theirs, bert)
        for theirs, bert in FAMILIES[model_type].renames
    ]


@functools.cache
def _patterns_back(model_type: str) -> list[tuple[re.Pattern[str], str]]:
    """(pattern of a name of BERT's, theirs), longer ones first."""
    return [
        (re.compile(re.escape(bert).replace(r"\{layer\}", r"(\d+)")), theirs)
        for _, theirs, bert in sorted(_patterns(model_type), key=lambda p: -len(p[2]))
    ]


def as_bert(name: str, config: BertConfig) -> str:
    """The name of a tensor as BERT has it; `gamma` and `beta` of old files are renamed."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    if name.startswith(("embeddings.", "encoder.", "transformer.", "pooler.")):
        name = f"{family_of(config).prefix}.{name}"
    for pattern, _, bert in _patterns(config.model_type):
        if match := pattern.match(name):
            layer = match[1] if match.groups() else ""
            return bert.format(layer=layer) + name[match.end() :]
    return name


def as_family(name: str, config: BertConfig, *, projected: bool) -> str:
    """The name of a tensor of BERT's as the family has it.

    Args:
        name: as BERT has it.
        config: says the family.
        projected: whether the model's classifier stands on a dense layer of its own.
    """
    if name.startswith("classifier."):
        own = family_of(config).projected_classifier
        return own + name.removeprefix("classifier.") if projected else name
    for pattern, theirs in _patterns_back(config.model_type):
        if match := pattern.match(name):
            layer = match[1] if match.groups() else ""
            return theirs.format(layer=layer) + name[match.end() :]
    return name
