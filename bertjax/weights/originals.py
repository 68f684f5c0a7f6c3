"""Checkpoints of the trainers of models, under the names and fields of transformers.

Megatron-LM (Shoeybi et al. 2019) trains BERTs whose LayerNorm stands before the layers; FlexBERT,
in MosaicML's Composer, trained ModernBERT (Warner et al. 2024); fairseq (Ott et al. 2019) trained
RoBERTa and XLM-R. Their tensors have other names, and query, key and value are one matrix in
Megatron-LM and in early versions of fairseq. The settings of a model stand beside its tensors,
under names of the trainer: they are followed, or refused by name if the family cannot compute what
they say, and `config.json`, if there is one, must not contradict them.
"""

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.files import brief, naming_read_errors
from bertjax.tokenization import Tokenizer, check_dictionary
from bertjax.weights.families import FAMILIES, config_from_hf
from bertjax.weights.family import Renames, parse_fields, parse_renames
from bertjax.weights.names import LazyTensors
from bertjax.weights.torch_files import MEGATRON, fields_of

# Those of the training that no tensor shows; a model of several ranks has a file of each.
_MEGATRON_FIXED = parse_fields("""
model_parallel_size                       1
tensor_model_parallel_size                1
pipeline_model_parallel_size              1
apply_residual_connection_post_layernorm  False
apply_layernorm_1p                        False
normalization                             LayerNorm
squared_relu                              False
swiglu                                    False
use_rotary_position_embeddings            False
""")
# {argument of the training: field of `config.json`}.
_MEGATRON_FIELDS = parse_fields("""
padded_vocab_size        vocab_size
hidden_size
num_layers               num_hidden_layers
num_attention_heads
ffn_hidden_size          intermediate_size
max_position_embeddings
hidden_dropout           hidden_dropout_prob
attention_dropout        attention_probs_dropout_prob
layernorm_epsilon        layer_norm_eps
norm_epsilon             layer_norm_eps
""")
# Parts of names, replaced in this order; the first three are those of earlier versions.
_MEGATRON_NAMES = parse_renames("""
layernorm                    norm
.attention.                  .self_attention.
language_model.transformer.  language_model.encoder.
language_model.encoder.      bert.encoder.
language_model.embedding.    bert.embeddings.
language_model.              bert.
.tokentype_embeddings.       .token_type_embeddings.
.final_norm.                 .ln.
.layers.                     .layer.
.input_norm.                 .attention.ln.
.post_attention_norm.        .ln.
.self_attention.dense.       .attention.output.dense.
.mlp.dense_h_to_4h.          .intermediate.dense.
.mlp.dense_4h_to_h.          .output.dense.
lm_head.dense.               cls.predictions.transform.dense.
lm_head.norm.                cls.predictions.transform.LayerNorm.
lm_head.                     cls.predictions.
binary_head.                 cls.seq_relationship.
classification_head.         classifier.
multichoice_head.            classifier.
""")
_FUSED = "self_attention.query_key_value"
_SPLIT = ("attention.self.query", "attention.self.key", "attention.self.value")


_FLEXBERT_FIXED = parse_fields("""
attention_layer            rope
bert_layer                 prenorm
initial_attention_layer    None
initial_bert_layer         None
local_attn_rotary_emb_dim  None
normalization              layernorm
rotary_emb_interleaved     False
rotary_emb_scale_base      None
""")
# `head` is that of the model: head_pred of a masked LM, head_class of a classifier.
_FLEXBERT_FIELDS = """
vocab_size
hidden_size
num_hidden_layers
num_attention_heads
intermediate_size
tie_word_embeddings
decoder_bias
id2label
hidden_act                    hidden_activation
{head}_act                    classifier_activation
{head}_bias                   classifier_bias
pooling_type                  classifier_pooling
attn_out_bias                 attention_bias
mlp_in_bias                   mlp_bias
attention_probs_dropout_prob  attention_dropout
embed_dropout_prob            embedding_dropout
mlp_dropout_prob              mlp_dropout
head_class_dropout            classifier_dropout
sliding_window                local_attention
global_attn_every_n_layers
"""


_FAIRSEQ_FIXED = parse_fields("""
activation_fn                      gelu
pooler_activation_fn               tanh
model_parallel_size                1
no_token_positional_embeddings     False
encoder_learned_pos                True
no_scale_embedding                 True
adaptive_input                     False
quant_noise_pq                     0
quant_noise_scalar                 0
spectral_norm_classification_head  False
""")
_FAIRSEQ_FIELDS = parse_fields("""
encoder_layers           num_hidden_layers
encoder_embed_dim        hidden_size
encoder_ffn_embed_dim    intermediate_size
encoder_attention_heads  num_attention_heads
activation_fn            hidden_act
dropout                  hidden_dropout_prob
attention_dropout        attention_probs_dropout_prob
pooler_dropout           classifier_dropout
""")
# The encoder was a decoder in early versions, and its first LayerNorm `emb_layer_norm`.
_FAIRSEQ_NAMES = parse_renames("""
decoder.                   encoder.
encoder.sentence_encoder.  roberta.
encoder.lm_head.           lm_head.
lm_head.weight             lm_head.decoder.weight
.embed_tokens.             .embeddings.word_embeddings.
.embed_positions.          .embeddings.position_embeddings.
.embed_segments.           .embeddings.token_type_embeddings.
.emb_layer_norm.           .embeddings.LayerNorm.
.layernorm_embedding.      .embeddings.LayerNorm.
.layers.                   .encoder.layer.
.self_attn.in_proj_        .self_attn.in_proj.
.self_attn.q_proj.         .attention.self.query.
.self_attn.k_proj.         .attention.self.key.
.self_attn.v_proj.         .attention.self.value.
.self_attn.out_proj.       .attention.output.dense.
.fc1.                      .intermediate.dense.
.fc2.                      .output.dense.
""")
# {family: names of the LayerNorms in and behind the layers}.
_FAIRSEQ_NORMS = {
    "roberta": parse_renames("""
.self_attn_layer_norm.  .attention.output.LayerNorm.
.final_layer_norm.      .output.LayerNorm.
"""),
    "roberta-prelayernorm": parse_renames("""
.self_attn_layer_norm.  .attention.LayerNorm.
.final_layer_norm.      .intermediate.LayerNorm.
roberta.layer_norm.     roberta.LayerNorm.
roberta.                roberta_prelayernorm.
"""),
    "xlm-roberta-xl": parse_renames("""
.self_attn_layer_norm.  .attention.self_attn_layer_norm.
.final_layer_norm.      .LayerNorm.
roberta.layer_norm.     roberta.encoder.LayerNorm.
"""),
}
# {class of the tokenizer: family of the models with RoBERTa's architecture}.
_ROBERTAS = {
    "RobertaTokenizer": "roberta",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
}
# The name of fairseq's word embedding.
_WORDS = re.compile(r"\S*sentence_encoder\.embed_tokens\.weight")


def in_transformers(
    tensors: LazyTensors, config: dict[str, Any], where: Path, tokenizer: Tokenizer | None
) -> tuple[LazyTensors, dict[str, Any]]:
    """Returns the tensors of a checkpoint and its `config.json` as transformers has them.

    Those of another trainer than Megatron-LM, FlexBERT and fairseq are returned as they are.
    `config` is the content of `config.json`; {} if there is none, which is returned if the
    checkpoint has no settings either. Raises ValueError if a setting is not supported, or differs
    from `config`.
    """
    words = next(filter(_WORDS.fullmatch, tensors), None)
    is_megatron = any(MEGATRON in fields_of(value) for value in tensors.beside.values())
    if is_megatron:
        described = _of_megatron(fields_of(tensors.beside.get("args")), where)
    elif words:
        tensors, described = _of_fairseq(tensors, words, config, where, tokenizer)
    else:
        _settings_of_fairseq(tensors, where)  # refuses what has other names
        own = fields_of(tensors.beside.get("integrations"))
        for key in ("huggingface", "model", "config", "content"):
            own = fields_of(own.get(key))
        head = "head_pred"
        if any("classifier." in name for name in tensors):
            head = "head_class"
        described = {}
        if "bert_layer" in own or not config:
            described = _of_flexbert(own, head, where, tokenizer)
        config = _of_flexbert(config, head, where, tokenizer)
    for name, value in described.items():
        other = config.get(name, value)
        # A vocabulary may be padded.
        is_free = name in ("vocab_size", "architectures") or "dropout" in name
        if not words:  # fairseq numbers positions after it
            is_free |= name == "pad_token_id"
        if other != value and not is_free:
            raise ValueError(
                f"{where} was trained with {name}={brief(value)}, but config.json beside it says "
                f"{brief(other)}: correct it."
            )
    config = described | config
    if is_megatron:
        tensors = _under_names_of_bert(tensors, config, where)
    return tensors, config


def _of_megatron(args: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Converts the arguments of Megatron-LM, which old checkpoints lack, to `config.json`."""
    if not args:
        return {}
    _refuse_others(args, _MEGATRON_FIXED, where)
    described = {"model_type": "megatron-bert"} | _converted(args, _MEGATRON_FIELDS)
    if args.get("openai_gelu"):
        described["hidden_act"] = "gelu_new"
    return described


def _converted(settings: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    return {field: settings[name] for name, field in fields.items() if name in settings}


def _refuse_others(settings: Mapping[str, Any], fixed: Mapping[str, str], where: Path) -> None:
    for name, value in fixed.items():
        other = brief(settings.get(name)).removesuffix(".0")
        if other not in ("None", value):
            raise ValueError(f"{where} was trained with {name}={other}: only {value} is supported.")


def _under_names_of_bert(
    tensors: LazyTensors, config: Mapping[str, Any], where: Path
) -> LazyTensors:
    """Renames the tensors of Megatron-LM to those of MegatronBert, and splits fused ones.

    Rows of the vocabulary beyond `vocab_size`, which pad it, are left out. Token types, which a
    model without pairs does not have, are zeros.
    """
    version = tensors.beside.get("checkpoint_version", 0)
    if version not in (0, 1, 2, 3):
        raise ValueError(
            f"{where} has checkpoint_version={brief(version)}, whose order of queries, keys and "
            "values is unknown: only 0, 1.0, 2.0 and 3.0 are supported."
        )
    with naming_read_errors(where):
        known = config_from_hf(config)
        absent = np.broadcast_to(np.float32(0), (known.type_vocab_size, known.hidden_size))
    split = functools.partial(_part, version=version, heads=known.num_attention_heads)
    readers = _renamed(tensors, _MEGATRON_NAMES, _FUSED, split, where)
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        if name in readers:
            read = readers[name]
            readers[name] = lambda read=read: np.atleast_1d(read())[: known.vocab_size]
    readers.setdefault("bert.embeddings.token_type_embeddings.weight", lambda: absent)
    return LazyTensors(readers)


def _renamed(
    tensors: LazyTensors, renames: Renames, fused: str, split: Callable[..., Any], where: Path
) -> dict[str, Callable[[], np.ndarray]]:
    """Returns {new name: function that reads the tensor}.

    Tensors of `fused` modules become three, by `split(function that reads one, index of the part)`.
    """
    readers: dict[str, Callable[[], np.ndarray]] = {}
    for stored in tensors:
        name = stored
        for own, theirs in renames:
            name = name.replace(own, theirs)
        if name in readers:
            raise ValueError(
                f"{where} has {brief(stored)} under two names: save the tensors of one model alone."
            )
        read = functools.partial(tensors.__getitem__, stored)
        if fused in name:
            for part, module in enumerate(_SPLIT):
                readers[name.replace(fused, module)] = functools.partial(split, read, part)
        else:
            readers[name] = read
    return readers


def _part(read: Callable[[], np.ndarray], part: int, version: int, heads: int) -> np.ndarray:
    """Returns the queries (`part` 0), keys (1) or values (2) of a matrix or bias of all three."""
    fused = np.atleast_1d(read())
    if len(fused) % (3 * heads):
        return fused  # refused by its shape
    axis = {0: 0, 1: 2}.get(version, 1)
    shape = [heads, -1]
    shape.insert(axis, 3)
    parts = fused.reshape(*shape, *fused.shape[1:])
    return parts.take(part, axis).reshape(-1, *fused.shape[1:])


def _of_flexbert(
    values: Mapping[str, Any], head: str, where: Path, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Converts the config of a FlexBERT to ModernBERT's; another one is returned as it is.

    What shows in names and shapes of tensors, such as biases and gates, is not compared here.
    """
    if "bert_layer" not in values:  # which no other config has
        return dict(values)
    _refuse_others(values, _FLEXBERT_FIXED, where)
    base = values.get("rotary_emb_base", 10_000.0)
    local_base = values.get("local_attn_rotary_emb_base", -1)
    if local_base == -1:
        local_base = base
    norm = fields_of(values.get("norm_kwargs"))
    described = {
        "model_type": "modernbert",
        "pad_token_id": getattr(tokenizer, "pad_token_id", None),
        "norm_eps": norm.get("eps", 1e-5),
        "norm_bias": norm.get("bias", True),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": base},
            "sliding_attention": {"rope_type": "default", "rope_theta": local_base},
        },
    }
    described |= _converted(values, parse_fields(_FLEXBERT_FIELDS.format(head=head)))
    if values.get("sliding_window") == -1:
        described |= {"local_attention": 128, "global_attn_every_n_layers": 1}
    with naming_read_errors(where):
        whole_head = {"rotary_emb_dim": str(config_from_hf(described).head_size)}
    _refuse_others(values, whole_head, where)
    return described


def _settings_of_fairseq(tensors: LazyTensors, where: Path) -> Mapping[str, Any]:
    """Returns `args` of old versions, or `cfg` of newer ones, unless of another model."""
    config = fields_of(tensors.beside.get("cfg"))
    # `regression_target` is of the criterion.
    newer = {**fields_of(config.get("criterion")), **fields_of(config.get("model"))}
    settings = fields_of(tensors.beside.get("args")) or newer
    kind = brief(settings.get("_name") or settings.get("arch"))
    if kind.startswith(("data2vec", "wav2vec")):
        raise ValueError(f"{where} is a {kind} of fairseq: only RoBERTa and XLM-R are supported.")
    if any("flat_param" in name for name in tensors):
        raise ValueError(f"{where} is one of the shards of a model (FSDP): save it in one file.")
    return settings


def _family_of_fairseq(settings: Mapping[str, Any], names: str) -> str:
    """Returns the family that has the LayerNorms of a model, of which `names` are the tensors.

    In early versions, they stood behind the embeddings and behind attention and feed-forward
    layers, whatever the settings say.
    """
    if ".emb_layer_norm." in names:
        return "roberta"
    is_normed = settings.get("layernorm_embedding", ".layernorm_embedding." in names)
    is_pre_norm = settings.get("encoder_normalize_before", "sentence_encoder.layer_norm." in names)
    if not is_pre_norm:
        return "roberta"
    if is_normed:
        return "roberta-prelayernorm"
    return "xlm-roberta-xl"


def _of_fairseq(
    tensors: LazyTensors,
    words: str,
    config: Mapping[str, Any],
    where: Path,
    tokenizer: Tokenizer | None,
) -> tuple[LazyTensors, dict[str, Any]]:
    """Returns the tensors of fairseq under the names of transformers, and their `config.json`.

    `words` is the name of the word embedding. Token types, which RoBERTa does not have, are zeros.
    """
    settings = _settings_of_fairseq(tensors, where)
    _refuse_others(settings, _FAIRSEQ_FIXED, where)
    names = " ".join(tensors)
    family = _family_of_fairseq(settings, names)
    model_type = family
    if family == "roberta":
        model_type = _ROBERTAS.get(getattr(tokenizer, "tokenizer_class", ""), family)
        if config.get("model_type") in _ROBERTAS.values():
            model_type = config["model_type"]
    described = {
        "model_type": model_type,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": not settings.get("untie_weights_roberta"),
    }
    described |= _converted(settings, _FAIRSEQ_FIELDS)
    if settings.get("regression_target"):
        described["problem_type"] = "regression"
    with naming_read_errors(where):
        rows, size = tensors[words].shape
        described["vocab_size"] = rows
        if "max_positions" in settings:
            described["max_position_embeddings"] = settings["max_positions"] + 2
    if tokenizer is not None:
        ids = check_dictionary(tokenizer, where if where.is_dir() else where.parent)
        if ids != rows:
            raise ValueError(
                f"{where} has embeddings of {rows} tokens, but the tokenizer beside it has "
                f"{ids}: use the tokenizer and dict.txt of this model."
            )
    renames = _FAIRSEQ_NAMES + _FAIRSEQ_NORMS[family]
    heads = {*re.findall(r"classification_heads\.[^. ]+\.", names)}
    if len(heads) == 1:  # of several, none is read
        renames += ((heads.pop(), "classifier."),)
        suffix = "ForSequenceClassification"
        described["architectures"] = [FAMILIES[model_type].class_name + suffix]
    absent = np.broadcast_to(np.float32(0), (1, size))
    segments = words.replace("embed_tokens", "embed_segments")
    tensors = LazyTensors({segments: lambda: absent, **tensors.data})
    split = functools.partial(_part, version=0, heads=1)
    readers = _renamed(tensors, renames, "self_attn.in_proj", split, where)
    if not config and "num_attention_heads" not in described:  # which no tensor shows
        described = {}
    return LazyTensors(readers), described
