"""Families that combine the parts of others: rotary positions, RMSNorm, gates, LayerNorm before.

Each is an entry of `NEWER_FAMILIES`; what it computes are fields of `BertConfig`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bertjax.base.files import brief
from bertjax.config.model import FAMILY_FIELDS, BertConfig
from bertjax.model.attention import position_table
from bertjax.weights.attention_fields import (
    SCALED_ROPE,
    global_layers,
    layer_types,
    read_rope,
    read_ropes,
    without_rope,
    write_rope,
    write_ropes,
)
from bertjax.weights.family import (
    COMMON,
    PAIRS_AND_RTD,
    ROBERTA_HEADS,
    Family,
    check_choice,
    in_layers,
    parse_fields,
    parse_renames,
)

_CAUSAL = {"is_decoder": "is_decoder"}
_CLASSIFIER = {"classifier_dropout": "classifier_dropout"}
_THETA = {"rope_theta": "global_rope_theta"}
_ROPE = _THETA | SCALED_ROPE
# Heads of which transformers has the encoder alone for families with classifiers of texts and words
# only; what these heads write, transformers reads as the encoder.
_NO_CLASSES = ("question_answering", "multiple_choice")


def _reading_rope(default: float) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns a `Family.read` of files whose base of rotary positions is `default` if missing.

    transformers 4 wrote `rope_theta` and `rope_scaling`, and transformers 5 `rope_parameters`.
    """

    def read(values: Mapping[str, Any]) -> dict[str, Any]:
        rope = values.get("rope_scaling") or values.get("rope_parameters") or {}
        return dict(values) | read_rope(rope, values.get("rope_theta") or default)

    return read


def _write_rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    rope = write_rope(fields, fields["rope_theta"])
    return without_rope(fields) | {"rope_parameters": rope}


# {field of the config.json that nomic's own code reads: the field of transformers}.
_NOMIC_NAMES = parse_fields("""
n_embd              hidden_size
n_layer             num_hidden_layers
n_head              num_attention_heads
n_inner             intermediate_size
n_positions         max_position_embeddings
layer_norm_epsilon  layer_norm_eps
rotary_emb_base     rope_theta
resid_pdrop         hidden_dropout_prob
attn_pdrop          attention_probs_dropout_prob
""")
# What nomic's own code can do beside; transformers has it as it is here, or not at all.
_NOMIC_FIXED = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "use_rms_norm": False,
}
_GTE_FIXED = {
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
}
# Fields of the models' own code that say how it computes, not what, or what a tokenizer says too.
_HARMLESS = """
auto_map bos_token dense_seq_output embd_pdrop eos_token fused_bias_fc fused_dropout_add_ln
mask_token max_trained_positions pack_qkv pad_token pad_vocab_size_multiple
parallel_block_tied_norm reorder_and_upcast_attn summary_activation summary_proj_to_labels
unpad_inputs use_flash_attn use_memory_efficient_attention use_xentropy
""".split()


def _of_own_code(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out what only the model's own code reads, which files have that are older than its
    class in transformers; raises ValueError if a field in `fixed` has another value."""
    fields = dict(values)
    for name, value in fixed.items():
        if fields.pop(name, value) != value:
            raise ValueError(f"{name}={brief(values[name])} is not supported: use {value}.")
    for name in _HARMLESS:
        fields.pop(name, None)
    return fields


def _read_nomic(values: Mapping[str, Any]) -> dict[str, Any]:
    fields = _of_own_code(values, _NOMIC_FIXED)
    for own_name, name in _NOMIC_NAMES.items():
        if own_name in values:
            fields[name] = fields.pop(own_name)
    if "n_embd" in values and fields.get("intermediate_size") is None:
        fields["intermediate_size"] = 4 * fields["hidden_size"]
    return _reading_rope(1000.0)(fields)


def _read_gte(values: Mapping[str, Any]) -> dict[str, Any]:
    """GTE has one rate for the inner activations and the outputs of feed-forward layers."""
    fields = _reading_rope(160_000.0)(_of_own_code(values, _GTE_FIXED))
    return fields | {"mlp_dropout": values.get("hidden_dropout_prob", 0.1)}


def _write_gte(fields: Mapping[str, Any]) -> dict[str, Any]:
    written = _write_rope(fields)
    written.pop("mlp_dropout")
    return written


# What pooling is called in EuroBERT's files, and here.
_POOLINGS = {"bos": "cls", "mean": "mean", "late": "late"}


def _read_eurobert(values: Mapping[str, Any]) -> dict[str, Any]:
    fields = _reading_rope(10_000.0)(_of_own_code(values, {}))
    own_pooling = fields.pop("clf_pooling", "late")  # the name in EuroBERT's own code
    pooling = fields.get("classifier_pooling", own_pooling)
    check_choice("classifier_pooling", pooling, [*_POOLINGS])
    # The output matrix of the masked LM has a bias if the feed-forward layers have.
    has_bias = values.get("mlp_bias", False)
    return fields | {"classifier_pooling": _POOLINGS[pooling], "decoder_bias": has_bias}


def _write_eurobert(fields: Mapping[str, Any]) -> dict[str, Any]:
    written = _write_rope(fields)
    written.pop("decoder_bias")
    names = {ours: name for name, ours in _POOLINGS.items()}
    return written | {"classifier_pooling": names[fields["classifier_pooling"]]}


def _read_ultrabert(values: Mapping[str, Any]) -> dict[str, Any]:
    """A token attends to as many tokens on each side as `sliding_window` says.

    The model's own code wrote `attention_windows`, a window for each layer or 0 for global
    attention, and a base `rope_theta` for each layer. The fields `global_attn_every_n_layers` and
    `first_global_layer` are ours: they are followed where they agree with `layer_types`; without
    that, transformers has the usual layers, whatever they say.
    """
    fields = _of_own_code(values, {})
    known = FAMILY_FIELDS["ultrabert"] | NEWER_DEFAULTS["ultrabert"] | fields
    types = values.get("layer_types")
    window = fields.pop("sliding_window", 128)
    windows = fields.pop("attention_windows", None)
    if windows is not None:
        types = types or _types_of_windows(windows)
        window = _by_type("attention_windows", windows, types).get("sliding_attention", window)
    if types is None:
        fields.pop("global_attn_every_n_layers", None)
        fields.pop("first_global_layer", None)
    else:
        likely = (known["global_attn_every_n_layers"], known["first_global_layer"])
        pattern = global_layers(types, known["num_hidden_layers"], likely)
        fields["global_attn_every_n_layers"], fields["first_global_layer"] = pattern
    thetas = fields.pop("rope_theta", None)
    if thetas is not None and values.get("rope_parameters") is None:
        bases = _by_type("rope_theta", thetas, types)
        known["rope_parameters"] = {kind: {"rope_theta": base} for kind, base in bases.items()}
    sizes = {"sliding_window": window, "prediction_head_size": known["prediction_head_size"]}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={brief(size)}: it must be an integer of at least 1.")
    check_choice("classifier_pooling", known["classifier_pooling"], ("cls", "mean"))
    return fields | read_ropes(known) | {"local_attention": 2 * window}


def _types_of_windows(windows: Any) -> list[str]:
    types = []
    for window in windows if isinstance(windows, list) else ():
        types.append("sliding_attention" if window else "full_attention")
    return types


def _by_type(name: str, listed: Any, types: Any) -> dict[str, Any]:
    """Returns {layer type: its value} of a field with a value for each layer."""
    found = {}
    if isinstance(listed, list) and isinstance(types, list):
        found = dict(zip(types, listed, strict=False))
    if listed != [found.get(kind) for kind in types or ()]:
        raise ValueError(
            f"{name}={brief(listed)} is not supported: it must have a value for each layer, the "
            "same for all with global attention, and the same for all with local attention."
        )
    return found


def _write_ultrabert(fields: Mapping[str, Any]) -> dict[str, Any]:
    written = without_rope(fields)
    window = written.pop("local_attention")
    if window is None or window % 2:
        raise ValueError(
            f"local_attention={window} cannot be written to config.json, which has half of it: use "
            "an even number, and global_attn_every_n_layers=1 for global attention in every layer."
        )
    return written | {
        "classifier_dropout": fields["classifier_dropout"] or 0.0,
        "sliding_window": window // 2,
        "layer_types": layer_types(
            fields["num_hidden_layers"],
            fields["global_attn_every_n_layers"],
            fields["first_global_layer"],
        ),
        "rope_parameters": write_ropes(fields),
    }


def _read_esm(values: Mapping[str, Any]) -> dict[str, Any]:
    """ESM-2 has rotary positions, and ESM-1b a table of positions and another LayerNorm."""
    fields = dict(values)
    kind = fields.pop("position_embedding_type", "absolute")
    check_choice("position_embedding_type", kind, ("absolute", "rotary"))
    is_rotary = kind == "rotary"
    fields["rope_theta"] = values.get("rope_theta", 10_000.0) if is_rotary else None
    fields["stored_rope"] = is_rotary
    fields["emb_layer_norm_before"] = bool(values.get("emb_layer_norm_before"))
    return fields


def _write_esm(fields: Mapping[str, Any]) -> dict[str, Any]:
    written = dict(fields)
    is_rotary = written.pop("stored_rope")
    kind = "rotary" if is_rotary else "absolute"
    theta = fields["rope_theta"] or 10_000.0
    return written | {"position_embedding_type": kind, "rope_theta": theta}


def _read_esmc(values: Mapping[str, Any]) -> dict[str, Any]:
    """ESM C has as many key heads as heads, of the usual size, and never ties its output matrix."""
    fields = _reading_rope(10_000.0)(values)
    known = NEWER_DEFAULTS["esmc"] | fields
    heads = known["num_attention_heads"]
    fixed = {
        "num_key_value_heads": heads,
        "head_dim": known["hidden_size"] // max(heads, 1),
        "tie_word_embeddings": False,
    }
    for name, value in fixed.items():
        if fields.pop(name, None) not in (None, value):
            raise ValueError(f"{name}={brief(values[name])} is not supported: only {value} is.")
    return fields


def _read_roformer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Embeddings of the size of the hidden states are not projected."""
    width = values.get("embedding_size")
    if width == values.get("hidden_size", 768):
        width = None
    activation = values.get("hidden_act", "gelu")
    return dict(values) | {"embedding_size": width, "classifier_activation": activation}


def _write_roformer(fields: Mapping[str, Any]) -> dict[str, Any]:
    written = dict(fields)
    written.pop("classifier_activation")
    return written | {"embedding_size": fields["embedding_size"] or fields["hidden_size"]}


def _tables_of_roformer(config: BertConfig) -> dict[str, np.ndarray]:
    theta = float(config.global_rope_theta or 0)
    table = position_table(config.max_position_embeddings, config.head_size, theta)
    return {"roformer.encoder.embed_positions.weight": table}


_MEGATRON = (
    ("bert.encoder.ln.", "bert.encoder.final_norm."),
    *in_layers("bert.encoder.layer.{layer}", "attention.ln attention_norm\nln mlp_norm"),
)
_PRE_LAYER_NORM = (
    ("roberta_prelayernorm.LayerNorm.", "bert.encoder.final_norm."),
    *in_layers(
        "roberta_prelayernorm.encoder.layer.{layer}",
        """
attention.LayerNorm     attention_norm
intermediate.LayerNorm  mlp_norm
""",
    ),
)
_XLM_ROBERTA_XL = (
    # BERT's name for a LayerNorm that this family has not.
    ("roberta.encoder.relative_LayerNorm.", "bert.encoder.LayerNorm."),
    ("roberta.encoder.LayerNorm.", "bert.encoder.final_norm."),
    *in_layers(
        "roberta.encoder.layer.{layer}",
        """
attention.self_attn_layer_norm  attention_norm
LayerNorm                       mlp_norm
""",
    ),
)
# Models whose names come from FlashAttention's code.
_FLASH_LAYERS = """
norm1    attention.output.LayerNorm
norm2    output.LayerNorm
mlp.fc2  output.dense
"""


# Models whose names come from Llama's code.
_LLAMA_FIELDS = parse_fields("""
vocab_size
hidden_size
num_hidden_layers
num_attention_heads
num_key_value_heads
head_dim
intermediate_size
hidden_act
max_position_embeddings
initializer_range
pad_token_id
tie_word_embeddings
model_type
attention_bias
mlp_bias
classifier_pooling
rms_norm_eps       layer_norm_eps
attention_dropout  attention_probs_dropout_prob
""")
_LLAMA_LAYERS = """
input_layernorm           attention_norm
self_attn.q_proj          attention.self.query
self_attn.k_proj          attention.self.key
self_attn.v_proj          attention.self.value
self_attn.q_norm          attention.self.query_norm
self_attn.k_norm          attention.self.key_norm
self_attn.o_proj          attention.output.dense
post_attention_layernorm  mlp_norm
mlp.gate_proj             intermediate.dense
mlp.up_proj               gate.dense
mlp.down_proj             output.dense
"""


def _joint_attention(module: str, projection: str, output: str) -> str:
    """Returns lines of `in_layers` for one tensor of queries, keys and values."""
    lines = [f"{module}.{projection} attention.self.{x}" for x in ("query", "key", "value")]
    lines.append(f"{module}.{output} attention.output.dense")
    return "\n".join(lines)


NEWER_FAMILIES: dict[str, Family] = {
    "megatron-bert": Family("MegatronBert", "bert", _MEGATRON, COMMON | _CAUSAL),
    "roberta-prelayernorm": Family(
        "RobertaPreLayerNorm",
        "roberta_prelayernorm",
        (*_PRE_LAYER_NORM, ("roberta_prelayernorm.", "bert."), *ROBERTA_HEADS),
        absent=PAIRS_AND_RTD,
        positions_after_padding=True,
    ),
    "xlm-roberta-xl": Family(
        "XLMRobertaXL",
        "roberta",
        (*_XLM_ROBERTA_XL, ("roberta.", "bert."), *ROBERTA_HEADS),
        absent=PAIRS_AND_RTD,
        positions_after_padding=True,
    ),
    "bert-generation": Family(
        "BertGeneration",
        "bert",
        fields={name: name for name in COMMON if name != "type_vocab_size"} | _CAUSAL,
        absent=PAIRS_AND_RTD,
        encoders=(
            *("masked_lm", "sparse", "sequence_classification", "token_classification"),
            *_NO_CLASSES,
        ),
        encoder_suffix="Encoder",
    ),
    "rembert": Family(
        "RemBert",
        "rembert",
        parse_renames("""
rembert.encoder.embedding_hidden_mapping_in.  bert.embeddings.projection.
rembert.                                      bert.
cls.predictions.dense.                        cls.predictions.transform.dense.
cls.predictions.LayerNorm.                    cls.predictions.transform.LayerNorm.
cls.predictions.decoder.bias                  cls.predictions.bias
"""),
        COMMON
        | _CAUSAL
        | parse_fields("""
input_embedding_size     embedding_size
output_embedding_size    output_embedding_size
classifier_dropout_prob  classifier_dropout
"""),
        absent=PAIRS_AND_RTD,
    ),
    "nomic_bert": Family(
        "NomicBert",
        "nomic_bert",
        (
            ("nomic_bert.", "bert."),
            ("cls.predictions.transform.layer_norm.", "cls.predictions.transform.LayerNorm."),
            ("nomic_bert.emb_ln.", "bert.embeddings.LayerNorm."),
            *in_layers("nomic_bert.encoder.layers.{layer}", _FLASH_LAYERS),
            *in_layers(
                "nomic_bert.encoder.layers.{layer}",
                _joint_attention("attn", "Wqkv", "out_proj"),
            ),
            *in_layers(
                "nomic_bert.encoder.layers.{layer}",
                "mlp.fc12 intermediate.dense\nmlp.fc11 gate.dense",
            ),
        ),
        COMMON | _CLASSIFIER | _ROPE | {"head_dim": "head_dim"},
        aliases=(("bert.", "nomic_bert."),),  # in files of the model's own code
        modules_in_files=False,
        absent=PAIRS_AND_RTD,
        encoders=_NO_CLASSES,
        read=_read_nomic,
        write=_write_rope,
    ),
    "gte": Family(
        "Gte",
        "gte",
        (
            ("gte.", "bert."),
            ("lm_head.decoder.bias", "cls.predictions.bias"),
            ("lm_head.norm.", "cls.predictions.transform.LayerNorm."),
            ("lm_head.dense.", "cls.predictions.transform.dense."),
            ("lm_head.", "cls.predictions."),
            *in_layers(
                "gte.encoder.layer.{layer}",
                _joint_attention("attention", "qkv_proj", "o_proj"),
            ),
            *in_layers(
                "gte.encoder.layer.{layer}",
                """
attn_ln           attention.output.LayerNorm
mlp_ln            output.LayerNorm
mlp.up_gate_proj  gate.dense
mlp.up_gate_proj  intermediate.dense
mlp.down_proj     output.dense
""",
            ),
        ),
        COMMON | _CLASSIFIER | _ROPE | {"mlp_dropout": "mlp_dropout"},
        modules_in_files=False,
        absent=PAIRS_AND_RTD,
        encoders=_NO_CLASSES,
        read=_read_gte,
        write=_write_gte,
    ),
    "jina_embeddings_v3": Family(
        "JinaEmbeddingsV3",
        "roberta",
        (
            ("roberta.", "bert."),
            *ROBERTA_HEADS,
            ("roberta.emb_ln.", "bert.embeddings.LayerNorm."),
            *in_layers("roberta.encoder.layers.{layer}", _FLASH_LAYERS),
            *in_layers(
                "roberta.encoder.layers.{layer}",
                _joint_attention("mixer", "Wqkv", "out_proj"),
            ),
            *in_layers("roberta.encoder.layers.{layer}", "mlp.fc1 intermediate.dense"),
        ),
        COMMON | _CLASSIFIER | _ROPE,
        modules_in_files=False,
        absent=PAIRS_AND_RTD,
        encoders=("multiple_choice",),
        read=_reading_rope(20_000.0),
        write=_write_rope,
    ),
    "eurobert": Family(
        "EuroBert",
        "model",
        (
            *parse_renames("""
model.embed_tokens.  bert.embeddings.word_embeddings.
model.norm.          bert.encoder.final_norm.
lm_head.weight       cls.predictions.decoder.weight
lm_head.bias         cls.predictions.bias
dense.               projection.
"""),
            *in_layers("model.layers.{layer}", _LLAMA_LAYERS),
        ),
        _ROPE | _LLAMA_FIELDS | {"decoder_bias": "decoder_bias"},
        absent=PAIRS_AND_RTD,
        encoders=_NO_CLASSES,
        read=_read_eurobert,
        write=_write_eurobert,
    ),
    "ultrabert": Family(
        "Ultrabert",
        "ultrabert",
        (
            *parse_renames("""
ultrabert.embed_tokens.  bert.embeddings.word_embeddings.
ultrabert.norm.          bert.encoder.final_norm.
head.linear1.            cls.predictions.inner.
head.linear2.            cls.predictions.outer.
cls.                     cls.predictions.decoder.
"""),
            *in_layers("ultrabert.layers.{layer}", _LLAMA_LAYERS),
        ),
        _CLASSIFIER
        | SCALED_ROPE
        | _LLAMA_FIELDS
        | parse_fields("""
global_rope_theta
local_rope_theta
local_attention
global_attn_every_n_layers
first_global_layer
prediction_head_size
"""),
        # The names of the layers in transformers.
        aliases=parse_renames("""
model.         ultrabert.
head.decoder.  cls.
"""),
        modules_in_files=False,
        absent=PAIRS_AND_RTD,
        encoders=("multiple_choice",),
        read=_read_ultrabert,
        write=_write_ultrabert,
    ),
    "esm": Family(
        "Esm",
        "esm",
        (
            ("esm.encoder.emb_layer_norm_after.", "bert.encoder.final_norm."),
            ("esm.embeddings.layer_norm.", "bert.embeddings.LayerNorm."),
            *in_layers(
                "esm.encoder.layer.{layer}",
                "attention.LayerNorm attention_norm\nLayerNorm mlp_norm",
            ),
            ("esm.", "bert."),
            *ROBERTA_HEADS,
        ),
        _CAUSAL
        | _THETA
        | parse_fields("""
vocab_size
hidden_size
num_hidden_layers
num_attention_heads
intermediate_size
hidden_dropout_prob
attention_probs_dropout_prob
max_position_embeddings
initializer_range
layer_norm_eps
pad_token_id
mask_token_id
tie_word_embeddings
model_type
token_dropout
stored_rope
emb_layer_norm_before  embedding_norm
"""),
        # Of a copy in each layer, the first is read; transformers 5.24 writes one, named "*".
        aliases=parse_renames("""
esm.encoder.layer.0.attention.self.rotary_embeddings.  esm.rotary_embeddings.
encoder.layer.0.attention.self.rotary_embeddings.      esm.rotary_embeddings.
esm.encoder.layer.*.attention.self.rotary_embeddings.  esm.rotary_embeddings.
encoder.layer.*.attention.self.rotary_embeddings.      esm.rotary_embeddings.
"""),
        absent=PAIRS_AND_RTD,
        left_out=("position_embeddings.weight",),
        encoders=_NO_CLASSES,
        decoder_has_bias=False,
        positions_after_padding=True,
        read=_read_esm,
        write=_write_esm,
    ),
    "esmc": Family(
        "Esmc",
        "esmc",
        (
            ("esmc.embed_tokens.", "bert.embeddings.word_embeddings."),
            ("esmc.norm.", "bert.encoder.final_norm."),
            ("lm_head.decoder.bias", "cls.predictions.bias"),
            *ROBERTA_HEADS,
            *in_layers("esmc.layers.{layer}", _LLAMA_LAYERS),
        ),
        _CLASSIFIER
        | _ROPE
        | parse_fields("""
vocab_size
hidden_size
num_hidden_layers
num_attention_heads
intermediate_size
hidden_act
max_position_embeddings
initializer_range
pad_token_id
model_type
attention_bias
mlp_bias
attention_dropout  attention_probs_dropout_prob
"""),
        absent=PAIRS_AND_RTD,
        encoders=_NO_CLASSES,
        classifier="score",
        read=_read_esmc,
        write=_write_rope,
    ),
    "roformer": Family(
        "RoFormer",
        "roformer",
        parse_renames("""
roformer.embeddings_project.  bert.embeddings.projection.
roformer.                     bert.
classifier.dense.             projection.
classifier.out_proj.          classifier.
"""),
        COMMON
        | _CAUSAL
        | parse_fields("""
embedding_size
rotary_value
classifier_activation
"""),
        absent=(*PAIRS_AND_RTD, "multiple_choice"),
        read=_read_roformer,
        write=_write_roformer,
        tables=_tables_of_roformer,
    ),
}

# The defaults of transformers that differ from BertConfig's, for fields that `config.json` lacks.
NEWER_DEFAULTS: dict[str, dict[str, Any]] = {
    "megatron-bert": {
        "vocab_size": 29056,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "roberta-prelayernorm": {"vocab_size": 50265},
    "xlm-roberta-xl": {
        "vocab_size": 250880,
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 10240,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "bert-generation": {
        "vocab_size": 50358,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "rembert": {
        "vocab_size": 250300,
        "hidden_size": 1152,
        "num_hidden_layers": 32,
        "num_attention_heads": 18,
        "intermediate_size": 4608,
    },
    "nomic_bert": {"vocab_size": 30528},
    "gte": {"vocab_size": 250048},
    "jina_embeddings_v3": {
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "esm": {
        "vocab_size": 33,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
    },
    "esmc": {
        "vocab_size": 64,
        "hidden_size": 2560,
        "num_hidden_layers": 80,
        "num_attention_heads": 40,
        "intermediate_size": 6912,
    },
    "eurobert": {"vocab_size": 128256},
    "ultrabert": {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11_008,
    },
    "roformer": {"vocab_size": 50000},
}
