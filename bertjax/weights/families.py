"""Conventions of the model families (RoBERTa, ALBERT, DistilBERT, ...) in Hugging Face's formats.

A family differs from BERT in the names of its tensors and of the fields of `config.json`, and in
settings that `config.json` does not contain (`bertjax.config.model.FAMILY_FIELDS`). This module
converts BERT's tensor names to a family's; `bertjax.weights.names` maps BERT's to our paths.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax.base.files import brief, did_you_mean
from bertjax.config.model import DROPOUT_FIELDS, FAMILY_FIELDS
from bertjax.model import HEADS, BertConfig, BertWithHead
from bertjax.weights.attention_fields import (
    SCALED_ROPE,
    global_layers,
    layer_types,
    read_ropes,
    without_rope,
    write_ropes,
)
from bertjax.weights.family import (
    BERT_FIELDS,
    COMMON,
    PAIRS,
    PAIRS_AND_RTD,
    ROBERTA_HEADS,
    Family,
    in_layers,
    parse_fields,
    parse_renames,
)
from bertjax.weights.newer_families import NEWER_DEFAULTS, NEWER_FAMILIES

# Fields of BertConfig that affect only the initialisation; no `config.json` has them.
_INIT_FIELDS = ("sinusoidal_pos_embds",)
# A field of ours, which transformers ignores.
_TRAINED = "trained_positions"


def _roberta(class_name: str, prefix: str = "roberta", *others: tuple[str, str]) -> Family:
    """Returns a family like RoBERTa, with `others` as further renames."""
    return Family(
        class_name,
        prefix,
        (*others, (f"{prefix}.", "bert."), *ROBERTA_HEADS),
        absent=PAIRS_AND_RTD,
        positions_after_padding=True,
    )


def _read_ernie(values: Mapping[str, Any]) -> dict[str, Any]:
    rows = 0
    if values.get("use_task_id"):
        rows = values.get("task_type_vocab_size", 3)
    return dict(values) | {"task_type_vocab_size": rows}


def _write_ernie(fields: Mapping[str, Any]) -> dict[str, Any]:
    rows = fields["task_type_vocab_size"]
    return dict(fields) | {"use_task_id": rows > 0, "task_type_vocab_size": rows or 3}


# transformers 4 wrote ModernBERT's bases of the rotary positions as `global_rope_theta` and
# `local_rope_theta`, and the global layers as `global_attn_every_n_layers`; transformers 5 writes
# `rope_parameters` and `layer_types`. Both are read, and both are written.
_MODERNBERT_LAYERS, _MODERNBERT_PERIOD = 22, 3  # of transformers, for files without these fields
# Token ids that transformers takes from ModernBERT's vocabulary if `config.json` lacks them.
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def _read_modernbert(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a `config.json` of ModernBERT or Ettin to fields with one value each, or refuses."""
    fields = dict(values)
    if fields.get("local_attention", 0) is None:
        raise ValueError("local_attention=null: it must be a number of tokens.")
    for name in ("rope_parameters", "layer_types", "position_embedding_type", "rope_scaling"):
        fields.pop(name, None)  # the position_embedding_type of Ettin is "sans_pos"
    fields |= read_ropes({**FAMILY_FIELDS["modernbert"], **values})
    fields["global_attn_every_n_layers"] = _period(values)
    # What transformers has one rate for: after attention's softmax and after its output; in all
    # heads.
    fields["attention_output_dropout"] = values.get("attention_dropout", 0.0)
    fields["qa_dropout"] = values.get("classifier_dropout") or 0.0
    if fields.get("initializer_cutoff_factor", 2.0) is None:
        fields["initializer_cutoff_factor"] = 3.0
    return fields


def _write_modernbert(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Converts fields with one value each to fields of `config.json`."""
    values = dict(fields)
    if values["local_attention"] is None:
        raise ValueError(
            "local_attention=None cannot be written to config.json. For global attention in every "
            "layer, set global_attn_every_n_layers=1 and leave local_attention at its default."
        )
    if values["classifier_dropout"] is None:  # transformers has no other rate to fall back on
        values["classifier_dropout"] = 0.0
    for name in ("attention_output_dropout", "qa_dropout"):
        values.pop(name)
    period = values["global_attn_every_n_layers"]
    values["layer_types"] = layer_types(values["num_hidden_layers"], period)
    values["rope_parameters"] = write_ropes(values)
    return without_rope(values) | dict.fromkeys(_TOKEN_IDS)


def _period(values: Mapping[str, Any]) -> int:
    """Returns n, if layers 0, n, 2n, ... are the global ones."""
    period = values.get("global_attn_every_n_layers", _MODERNBERT_PERIOD)
    types = values.get("layer_types")
    if types is None:
        return period
    layers = values.get("num_hidden_layers", _MODERNBERT_LAYERS)
    period, first = global_layers(types, layers, (period, 0))
    if first:
        raise ValueError(
            f"layer_types={brief(types)} is not supported: only full_attention in layers 0, n, 2n, "
            "... and sliding_attention in all others is."
        )
    return period


_ELECTRA_SIZES = {
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}


def _read_electra(values: Mapping[str, Any]) -> dict[str, Any]:
    """Embeddings of the size of the hidden states are not projected."""
    width, size = ({**_ELECTRA_SIZES, **values}[x] for x in ("embedding_size", "hidden_size"))
    if values.get("summary_activation", "gelu") is None:
        raise ValueError("summary_activation=null is not supported: give an activation.")
    return dict(values) | {"embedding_size": None if width == size else width}


def _write_electra(fields: Mapping[str, Any]) -> dict[str, Any]:
    return dict(fields) | {"embedding_size": fields["embedding_size"] or fields["hidden_size"]}


def _read_mpnet(values: Mapping[str, Any]) -> dict[str, Any]:
    if values.get("pad_token_id", 1) != 1:
        raise ValueError(
            f"pad_token_id={brief(values['pad_token_id'])}: the positions of MPNet count from the "
            "token 1 in transformers, whatever it is: only 1 is supported."
        )
    return dict(values)


def _read_deberta(values: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"hidden_size": 1536, "num_attention_heads": 24, **values}
    size = fields["hidden_size"]
    kinds = values.get("pos_att_type") or ()
    if isinstance(kinds, str):
        kinds = kinds.lower().split("|")
    fields["pos_att_type"] = tuple(kind.strip() for kind in kinds if kind.strip())
    fields["norm_rel_ebd"] = "none"
    norms = str(values.get("norm_rel_ebd")).lower().split("|")
    # Without relative positions, transformers has the LayerNorm, but nothing to normalise.
    if "layer_norm" in norms and values.get("relative_attention"):
        fields["norm_rel_ebd"] = "layer_norm"
    if values.get("legacy") is False:  # this masked LM has no output matrix of its own
        fields["tie_word_embeddings"] = True
    if fields.get("embedding_size") == size:
        fields["embedding_size"] = None
    heads = max(fields["num_attention_heads"], 1)
    usual = {"pooler_hidden_size": size, "attention_head_size": size // heads}
    for name, value in usual.items():
        if fields.pop(name, value) != value:
            raise ValueError(f"{name}={brief(values[name])} is not supported: only {value} is.")
    return fields


def _write_deberta(fields: Mapping[str, Any]) -> dict[str, Any]:
    size = fields["hidden_size"]
    written = {name: x for name, x in fields.items() if name != "enhanced_mask_decoder" or x}
    return written | {
        "embedding_size": fields["embedding_size"] or size,
        "pooler_hidden_size": size,
        "pos_att_type": list(fields["pos_att_type"]),
        "legacy": True,
    }


_MPNET = _roberta(
    "MPNet",
    "mpnet",
    ("mpnet.encoder.relative_attention_bias.", "bert.encoder.rel_embeddings."),
    *in_layers(
        "mpnet.encoder.layer.{layer}",
        """
attention.attn.q     attention.self.query
attention.attn.k     attention.self.key
attention.attn.v     attention.self.value
attention.attn.o     attention.output.dense
attention.LayerNorm  attention.output.LayerNorm
""",
    ),
)._replace(
    fields={
        **{name: name for name in COMMON if name != "type_vocab_size"},
        "relative_attention_num_buckets": "relative_attention_num_buckets",
    },
    positions_after_padding=False,
    read=_read_mpnet,
)

FAMILIES: dict[str, Family] = {
    "bert": Family("Bert", "bert"),
    "roberta": _roberta("Roberta"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "camembert": _roberta("Camembert"),
    "data2vec-text": _roberta("Data2VecText", "data2vec_text"),
    "ernie": Family(
        "Ernie",
        "ernie",
        (("ernie.", "bert."),),
        {**BERT_FIELDS, "task_type_vocab_size": "task_type_vocab_size"},
        read=_read_ernie,
        write=_write_ernie,
    ),
    "mpnet": _MPNET,
    "albert": Family(
        "Albert",
        "albert",
        (
            *parse_renames("""
albert.embeddings.                           bert.embeddings.
albert.encoder.embedding_hidden_mapping_in.  bert.embeddings.projection.
albert.pooler.                               bert.pooler.dense.
predictions.dense.                           cls.predictions.transform.dense.
predictions.LayerNorm.                       cls.predictions.transform.LayerNorm.
predictions.                                 cls.predictions.
sop_classifier.classifier.                   cls.seq_relationship.
"""),
            *in_layers(
                "albert.encoder.albert_layer_groups.{layer}.albert_layers.0",
                """
attention.query        attention.self.query
attention.key          attention.self.key
attention.value        attention.self.value
attention.dense        attention.output.dense
attention.LayerNorm    attention.output.LayerNorm
ffn                    intermediate.dense
ffn_output             output.dense
full_layer_layer_norm  output.LayerNorm
""",
            ),
        ),
        {
            **COMMON,
            "classifier_dropout_prob": "classifier_dropout",
            "embedding_size": "embedding_size",
            "num_hidden_groups": "num_hidden_groups",
        },
        absent=("next_sentence", "rtd"),
        outputs={"seq_relationship_logits": "sop_logits"},
    ),
    "distilbert": Family(
        "DistilBert",
        "distilbert",
        (
            *parse_renames("""
distilbert.embeddings.  bert.embeddings.
vocab_transform.        cls.predictions.transform.dense.
vocab_layer_norm.       cls.predictions.transform.LayerNorm.
vocab_projector.weight  cls.predictions.decoder.weight
vocab_projector.bias    cls.predictions.bias
pre_classifier.         projection.
"""),
            *in_layers(
                "distilbert.transformer.layer.{layer}",
                """
attention.q_lin    attention.self.query
attention.k_lin    attention.self.key
attention.v_lin    attention.self.value
attention.out_lin  attention.output.dense
sa_layer_norm      attention.output.LayerNorm
ffn.lin1           intermediate.dense
ffn.lin2           output.dense
output_layer_norm  output.LayerNorm
""",
            ),
        ),
        parse_fields("""
vocab_size
max_position_embeddings
model_type
initializer_range
pad_token_id
qa_dropout
tie_word_embeddings
dim                  hidden_size
n_layers             num_hidden_layers
n_heads              num_attention_heads
hidden_dim           intermediate_size
dropout              hidden_dropout_prob
attention_dropout    attention_probs_dropout_prob
activation           hidden_act
seq_classif_dropout  classifier_dropout
"""),
        absent=PAIRS_AND_RTD,
    ),
    "electra": Family(
        "Electra",
        "electra",
        parse_renames("""
electra.embeddings_project.       bert.embeddings.projection.
electra.                          bert.
generator_predictions.dense.      cls.predictions.transform.dense.
generator_predictions.LayerNorm.  cls.predictions.transform.LayerNorm.
generator_lm_head.weight          cls.predictions.decoder.weight
generator_lm_head.bias            cls.predictions.bias
classifier.dense.                 projection.
classifier.out_proj.              classifier.
"""),
        {
            **BERT_FIELDS,
            "embedding_size": "embedding_size",
            "summary_activation": "summary_activation",
        },
        absent=PAIRS,
        read=_read_electra,
        write=_write_electra,
    ),
    "deberta-v2": Family(
        "DebertaV2",
        "deberta",
        (
            *parse_renames("""
deberta.embeddings.embed_proj.  bert.embeddings.projection.
deberta.                        bert.
pooler.dense.                   projection.
mask_predictions.classifier.    discriminator_predictions.dense_prediction.
mask_predictions.               discriminator_predictions.
"""),
            *in_layers(
                "deberta.encoder.layer.{layer}",
                """
attention.self.query_proj      attention.self.query
attention.self.key_proj        attention.self.key
attention.self.value_proj      attention.self.value
attention.self.pos_key_proj    attention.self.pos_key
attention.self.pos_query_proj  attention.self.pos_query
""",
            ),
        ),
        COMMON
        | parse_fields("""
relative_attention
pos_att_type
position_buckets
max_relative_positions
share_att_key
norm_rel_ebd
position_biased_input
enhanced_mask_decoder
conv_kernel_size
conv_groups
conv_act
embedding_size
pooler_hidden_act  classifier_activation
cls_dropout        classifier_dropout
"""),
        aliases=parse_renames("""
lm_predictions.lm_head.dense.      cls.predictions.transform.dense.
lm_predictions.lm_head.LayerNorm.  cls.predictions.transform.LayerNorm.
lm_predictions.lm_head.            cls.predictions.
"""),
        absent=PAIRS,
        left_out=("position_embeddings", "word_embeddings._weight", "encoder.LayerNorm."),
        encoders=("rtd",),
        read=_read_deberta,
        write=_write_deberta,
    ),
    "modernbert": Family(
        "ModernBert",
        "model",
        (
            *parse_renames("""
model.embeddings.tok_embeddings.  bert.embeddings.word_embeddings.
model.embeddings.norm.            bert.embeddings.LayerNorm.
model.final_norm.                 bert.encoder.final_norm.
decoder.weight                    cls.predictions.decoder.weight
decoder.bias                      cls.predictions.bias
"""),
            *in_layers(
                "model.layers.{layer}",
                """
attn_norm  attention_norm
attn.Wqkv  attention.self.query
attn.Wqkv  attention.self.key
attn.Wqkv  attention.self.value
attn.Wo    attention.output.dense
mlp_norm   mlp_norm
mlp.Wi     intermediate.dense
mlp.Wi     gate.dense
mlp.Wo     output.dense
""",
            ),
        ),
        SCALED_ROPE
        | parse_fields("""
vocab_size
hidden_size
num_hidden_layers
num_attention_heads
intermediate_size
max_position_embeddings
initializer_range
pad_token_id
tie_word_embeddings
model_type
classifier_dropout
qa_dropout
attention_output_dropout
embedding_dropout
mlp_dropout
global_rope_theta
local_rope_theta
local_attention
global_attn_every_n_layers
attention_bias
mlp_bias
norm_bias
decoder_bias
classifier_bias
classifier_activation
classifier_pooling
initializer_cutoff_factor
hidden_activation  hidden_act
norm_eps           layer_norm_eps
attention_dropout  attention_probs_dropout_prob
"""),
        # The names of FlexBERT, with which ModernBERT was trained.
        aliases=parse_renames("""
bert.encoder.layers.  model.layers.
bert.                 model.
"""),
        absent=PAIRS_AND_RTD,
        read=_read_modernbert,
        write=_write_modernbert,
    ),
    **NEWER_FAMILIES,
}

# The defaults of transformers that differ from BertConfig's, for fields that `config.json` lacks.
_HF_DEFAULTS: dict[str, dict[str, Any]] = {
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
    "electra": _ELECTRA_SIZES,
    "deberta-v2": {
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
    },
    "modernbert": {"vocab_size": 50368, "intermediate_size": 1152, "num_hidden_layers": 22},
    "mpnet": {"vocab_size": 30527},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), {"vocab_size": 50265}),
    **NEWER_DEFAULTS,
}


# Fields of `config.json` that change no output of a model; docs/weights.md gives the reasons.
_HARMLESS = set(
    """
    architectures transformers_version name_or_path _name_or_path dtype torch_dtype finetuning_task
    task_specific_params _commit_hash model_name language license use_cache output_attentions
    output_hidden_states output_past return_dict use_return_dict torchscript use_bfloat16
    gradient_checkpointing attn_implementation _attn_implementation _attn_implementation_internal
    _attn_implementation_autoset chunk_size_feed_forward tf_legacy_loss reference_compile
    repad_logits_with_grad deterministic_flash_attn sparse_prediction sparse_pred_ignore_index
    initializer_range layer_norm_eps sinusoidal_pos_embds tie_weights_ tie_encoder_decoder
    cross_attention_hidden_size is_encoder_decoder summary_last_dropout summary_first_dropout
    pooler_dropout bos_token_id eos_token_id cls_token_id sep_token_id decoder_start_token_id
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens prefix directionality
    pretraining_tp mask_token_id pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type
    net_structure_type gap_size num_memory_blocks down_scale_factor layers_to_keep pruned_heads
    label2id _num_labels
    """.split()
)
_FOLLOWED_ELSEWHERE = {
    _TRAINED,
    "id2label",
    "num_labels",
    "problem_type",
    "inner_group_num",
    "position_embedding_type",
    "add_cross_attention",
    "use_task_id",
    "summary_type",
    "summary_use_proj",
    "pooler_hidden_size",
    "attention_head_size",
    "legacy",
    "quantization_config",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "rope_parameters",
    "rope_scaling",
    "layer_types",
    "is_folding_model",
}


class MissingHead(ValueError):
    """Raised if transformers has no class for the head `head` of the family `family`."""

    def __init__(self, config: BertConfig, head: str):
        super().__init__(
            f"A model of the family {config.model_type} cannot have the head {head!r}: use one of "
            f"{', '.join(heads_of(config))}."
        )
        self.family = config.model_type
        self.head = head


def family_of(config: BertConfig) -> Family:
    """Returns the family that `config.model_type` names; raises ValueError if it is unknown."""
    return _family(config.model_type)


def _family(model_type: str) -> Family:
    if model_type == "deberta":
        raise ValueError(
            "model_type='deberta', DeBERTa's first version, is not supported: use a model of "
            "version 2 or 3 (deberta-v2)."
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        hint = did_you_mean(model_type, FAMILIES)
        raise ValueError(
            f"model_type={brief(model_type, 60)!r} is not supported. {hint}Known: "
            f"{', '.join(FAMILIES)}."
        )
    return FAMILIES[model_type]


def config_from_hf(values: Mapping[str, Any]) -> BertConfig:
    """Converts a family's `config.json`, or Google's `bert_config.json`, to a `BertConfig`.

    Raises ValueError if the family is unknown, or a field has an invalid or unsupported value.
    """
    model_type = values.get("model_type", "bert")
    family = _family(model_type)
    values = family.read(values)
    fields = (
        FAMILY_FIELDS[model_type] | _HF_DEFAULTS.get(model_type, {}) | {"model_type": model_type}
    )
    fields |= {family.fields[key]: value for key, value in values.items() if key in family.fields}
    if "token_classifier_dropout" in fields:
        fields["token_classifier_dropout"] = fields.get("hidden_dropout_prob", 0.1)
    known = {field.name for field in dataclasses.fields(BertConfig)}
    unknown = {key: value for key, value in values.items() if key not in known}
    config = BertConfig.from_dict(unknown | fields | {_TRAINED: values.get(_TRAINED)})
    return with_pad_token(config, config.pad_token_id)


def unknown_fields(values: Mapping[str, Any]) -> list[str]:
    """Returns the fields of a valid `config.json` that are not followed, and not known to change
    nothing, if they have a value."""
    family = _family(values.get("model_type", "bert"))
    known = family.fields.keys() | _HARMLESS | _FOLLOWED_ELSEWHERE
    unknown = []
    for name, value in family.read(values).items():
        if name not in known and value not in (None, {}):
            unknown.append(name)
    return unknown


def with_pad_token(config: BertConfig, pad_token_id: int | None) -> BertConfig:
    """Returns `config` with `pad_token_id` and the `position_offset` that follows from it.

    `position_offset` is the position id of the first token: for the family of RoBERTa, pad_token_id
    + 1 (1 if `pad_token_id` is None); for other families, it stays the same.
    """
    config = dataclasses.replace(config, pad_token_id=pad_token_id)
    has_table = config.global_rope_theta is None
    if not family_of(config).positions_after_padding or not has_table:
        return config
    return dataclasses.replace(config, position_offset=(pad_token_id or 0) + 1)


def config_to_hf(config: BertConfig) -> dict[str, Any]:
    """Converts a `BertConfig` to the fields of `config.json` in the config's model family.

    Raises ValueError if `config.json` cannot express a value of `config`, so transformers would
    compute different outputs.
    """
    if config.is_static:
        return {**config.to_dict(), "model_type": "static-embedding"}
    family = family_of(config)
    written = {hf_name: getattr(config, name) for hf_name, name in family.fields.items()}
    if not config.is_decoder:
        written.pop("is_decoder", None)
    written = family.write(written)
    if config.trained_positions is not None:
        written[_TRAINED] = config.trained_positions
    again = config_from_hf(written)
    lost = [
        f"{field.name}={getattr(config, field.name)!r}"
        for field in dataclasses.fields(config)
        if field.name not in (*DROPOUT_FIELDS, *_INIT_FIELDS)
        and getattr(again, field.name) != getattr(config, field.name)
    ]
    if lost:
        raise ValueError(
            f"{', '.join(lost)}: Hugging Face's models of model_type={config.model_type!r} do not "
            "support these values, so the model could not be saved. Choose another model_type, "
            "or leave the unsupported values out of the config."
        )
    return written


# The heads that need no layers.
_STATIC_HEADS = ("encoder", "sentence_embedding")


def architecture(config: BertConfig, head: str) -> str:
    """Returns the transformers class, such as "BertForMaskedLM", of a model with a head.

    Raises MissingHead if transformers lacks the head for the family of `config`.
    """
    family = family_of(config)
    if head not in heads_of(config):
        raise MissingHead(config, head)
    if config.is_static:
        return "StaticEmbedding"
    suffix = HEADS[head].class_suffix
    if head in family.encoders or suffix == BertWithHead.class_suffix:
        suffix = family.encoder_suffix
    return family.class_name + suffix


def heads_of(config: BertConfig) -> list[str]:
    """Returns the names of the heads that transformers has for the family of `config`."""
    if config.is_static:
        return [*_STATIC_HEADS]
    absent = family_of(config).absent
    return [head for head in HEADS if head not in absent]


def part_order(name: str, model_type: str) -> int:
    """Returns the place of a tensor among those that a family has in one tensor, by BERT's name.

    It is the place of its line in the renames of the family.
    """
    renames = FAMILIES[model_type].renames
    matching = [pair for pair in renames if name.startswith(pair[1])]
    if not matching:
        return -1
    return renames.index(max(matching, key=lambda pair: len(pair[1])))


def family_name(name: str, model_type: str, *, projected: bool) -> str:
    """Converts BERT's name of a tensor to the tensor's name in a family.

    `projected` says whether the model's head has a dense layer before the classifier: only such a
    classifier has another name than in BERT.
    """
    family = FAMILIES[model_type]
    if name.startswith("classifier.") and not projected:
        return name.replace("classifier", family.classifier, 1)
    for prefix, bert in sorted(family.renames, key=lambda names: -len(names[1])):
        if name.startswith(bert):
            return prefix + name.removeprefix(bert)
    return name
