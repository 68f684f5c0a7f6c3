"""The names of tensors and fields in the files of ModernBERT and Ettin.

transformers 4 wrote the bases of the rotary positions as `global_rope_theta` and
`local_rope_theta`, and the global layers as `global_attn_every_n_layers`; transformers 5 writes
`rope_parameters` and `layer_types`. Both are read, and both are written.
"""

from collections.abc import Mapping
from typing import Any

from bertjax.base.files import brief

# Pairs of prefixes of tensor names, see `Family.renames`.
_LAYER, _BERT_LAYER = "model.layers.{layer}", "bert.encoder.layer.{layer}"
RENAMES = (
    ("model.embeddings.tok_embeddings.", "bert.embeddings.word_embeddings."),
    ("model.embeddings.norm.", "bert.embeddings.LayerNorm."),
    (f"{_LAYER}.attn_norm.", f"{_BERT_LAYER}.attention_norm."),
    *(
        (f"{_LAYER}.attn.Wqkv.{name}.", f"{_BERT_LAYER}.attention.self.{name}.")
        for name in ("query", "key", "value")
    ),
    (f"{_LAYER}.attn.Wo.", f"{_BERT_LAYER}.attention.output.dense."),
    (f"{_LAYER}.mlp_norm.", f"{_BERT_LAYER}.mlp_norm."),
    (f"{_LAYER}.mlp.Wi.input.", f"{_BERT_LAYER}.intermediate.dense."),
    (f"{_LAYER}.mlp.Wi.gate.", f"{_BERT_LAYER}.gate.dense."),
    (f"{_LAYER}.mlp.Wo.", f"{_BERT_LAYER}.output.dense."),
    ("model.final_norm.", "bert.encoder.final_norm."),
    ("decoder.weight", "cls.predictions.decoder.weight"),
    ("decoder.bias", "cls.predictions.bias"),
)
FUSED = {"attn.Wqkv": ("query", "key", "value"), "mlp.Wi": ("input", "gate")}
_SAME_NAMES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "initializer_range", "pad_token_id"),
    *("tie_word_embeddings", "model_type", "classifier_dropout", "qa_dropout"),
    *("attention_output_dropout", "embedding_dropout", "mlp_dropout", "global_rope_theta"),
    *("local_rope_theta", "local_attention", "global_attn_every_n_layers", "attention_bias"),
    *("mlp_bias", "norm_bias", "decoder_bias", "classifier_bias", "classifier_activation"),
    *("classifier_pooling", "initializer_cutoff_factor"),
)
# {field of what `read_config` returns: field of `BertConfig`}
FIELDS = {name: name for name in _SAME_NAMES} | {
    "hidden_activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "attention_dropout": "attention_probs_dropout_prob",
}
_KINDS = {"global_rope_theta": "full_attention", "local_rope_theta": "sliding_attention"}
_DEFAULTS = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
_LAYERS, _PERIOD = 22, 3  # of transformers, for files without these fields
# Token ids that transformers takes from ModernBERT's vocabulary if `config.json` lacks them.
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def read_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a `config.json` of ModernBERT or Ettin to fields with one value each.

    Raises:
        ValueError: the rotary positions are scaled, or `layer_types` is not a global layer in every
            n layers; neither is supported.
    """
    fields = dict(values)
    for name in ("rope_parameters", "layer_types", "position_embedding_type", "rope_scaling"):
        fields.pop(name, None)  # the position_embedding_type of Ettin is "sans_pos"
    fields |= _thetas(values)
    fields["global_attn_every_n_layers"] = _period(values)
    # What transformers has one rate for: after attention's softmax and after its output; in all
    # heads.
    fields["attention_output_dropout"] = values.get("attention_dropout", 0.0)
    fields["qa_dropout"] = values.get("classifier_dropout") or 0.0
    if fields.get("initializer_cutoff_factor", 2.0) is None:
        fields["initializer_cutoff_factor"] = 3.0
    return fields


def write_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Converts fields with one value each to those of `config.json`.

    Raises:
        ValueError: no layer is local, which `config.json` says in another way.
    """
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
    layers, period = values["num_hidden_layers"], values["global_attn_every_n_layers"]
    values["layer_types"] = [
        "sliding_attention" if layer % period else "full_attention" for layer in range(layers)
    ]
    values["rope_parameters"] = {
        kind: {"rope_type": "default", "rope_theta": values[name]} for name, kind in _KINDS.items()
    }
    return values | dict.fromkeys(_TOKEN_IDS)


def _thetas(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns `global_rope_theta` and `local_rope_theta`; `rope_parameters` takes precedence."""
    rope = values.get("rope_parameters") or {}
    scaled = values.get("rope_scaling")
    thetas = {}
    for name, kind in _KINDS.items():
        own = rope.get(kind) if isinstance(rope, dict) else rope
        if not isinstance(own, dict | None) or not isinstance(rope, dict):
            raise ValueError(f"rope_parameters={brief(rope)}: it must map {kind} to its settings.")
        own = own or {}
        if scaled or own.get("rope_type", "default") != "default":
            raise ValueError(
                f"rope_parameters={brief(rope)}, rope_scaling={brief(scaled)}: scaled rotary "
                "positions are not supported, only rope_type='default' is."
            )
        thetas[name] = own.get("rope_theta", values.get(name, _DEFAULTS[name]))
    if thetas["local_rope_theta"] is None:  # transformers 4: that of the global layers
        thetas["local_rope_theta"] = thetas["global_rope_theta"]
    return thetas


def _period(values: Mapping[str, Any]) -> int:
    """Returns n, if layers 0, n, 2n, ... are the global ones."""
    period, types = values.get("global_attn_every_n_layers", _PERIOD), values.get("layer_types")
    if types is None:
        return period
    if not isinstance(types, list) or len(types) != values.get("num_hidden_layers", _LAYERS):
        raise ValueError(
            f"layer_types={brief(types)}: it must name the kind of attention of each of the "
            f"{brief(values.get('num_hidden_layers', _LAYERS))} layers."
        )
    first = [period] if isinstance(period, int) and period > 0 else []
    for n in (*first, *range(1, len(types) + 1)):
        expected = [
            "sliding_attention" if layer % n else "full_attention" for layer in range(len(types))
        ]
        if types == expected:
            return n
    raise ValueError(
        f"layer_types={brief(types)} is not supported: only full_attention in layers 0, n, 2n, ... "
        "and sliding_attention in all others is."
    )
