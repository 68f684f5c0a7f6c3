"""The configs of released models.

`FAMILY_FIELDS` holds the field values in which the other families differ from BERT, and
`MODEL_SIZES` holds the configs of released models.
"""

import dataclasses
from typing import Any

from bertjax.base.files import did_you_mean
from bertjax.config.model import BertConfig

# Values, other than sizes, in which RoBERTa (Liu et al. 2019), ALBERT (Lan et al. 2019) and
# DistilBERT (Sanh et al. 2019) differ from BERT in Hugging Face's implementation.
FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {
        "pad_token_id": 1,
        "position_offset": 2,
        "mlm_activation": "gelu",
        "classifier_activation": "tanh",
        "classifier_input_dropout": True,
    },
    "albert": {"num_hidden_groups": 1, "embedding_size": 128, "hidden_act": "gelu_new"},
    "distilbert": {
        "type_vocab_size": 0,
        "add_pooling_layer": False,
        "classifier_activation": "relu",
        "classifier_dropout": 0.2,
        "attention_output_dropout": 0.0,
        "token_classifier_dropout": 0.1,
        "qa_dropout": 0.1,
    },
}
# ModernBERT (Warner et al. 2024); Ettin's encoders (Weller et al. 2025) have the same architecture.
FAMILY_FIELDS["modernbert"] = {
    "pad_token_id": 50283,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attention_output_dropout": 0.0,
    "embedding_dropout": 0.0,
    "classifier_dropout": 0.0,
    "max_position_embeddings": 8192,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "add_pooling_layer": False,
    "pre_norm": True,
    "gated_linear_unit": True,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
    "prediction_head": True,
    "classifier_activation": "gelu",
}
# These families have the architecture of RoBERTa and were trained on other languages.
FAMILY_FIELDS |= dict.fromkeys(("xlm-roberta", "camembert"), FAMILY_FIELDS["roberta"])


def _size(
    layers: int, hidden: int, vocab_size: int = 30522, model_type: str = "bert", **fields: Any
) -> BertConfig:
    # In most released models, the head size is 64 and intermediate_size is 4 * hidden_size.
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
        "model_type": model_type,
    }
    return BertConfig(**(FAMILY_FIELDS[model_type] | sizes | fields))


def _roberta(layers: int, hidden: int, vocab_size: int, family: str = "roberta") -> BertConfig:
    return _size(
        *(layers, hidden, vocab_size, family),
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )


def _albert(layers: int, hidden: int, **fields: Any) -> BertConfig:
    # These are the dropout rates of version 2; in version 1, the three smaller models have 0.1.
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return _size(layers, hidden, 30000, "albert", classifier_dropout=0.1, **rates | fields)


def _modernbert(layers: int, hidden: int, intermediate: int, **fields: Any) -> BertConfig:
    sizes = {"intermediate_size": intermediate, **fields}
    return _size(layers, hidden, 50368, "modernbert", **sizes)


def _ettin(layers: int, hidden: int, intermediate: int) -> BertConfig:
    fields = {"local_rope_theta": 160_000.0, "max_position_embeddings": 7999}
    return _modernbert(layers, hidden, intermediate, **fields)


MODEL_SIZES: dict[str, BertConfig] = {
    "bert-tiny": _size(2, 128),
    "bert-mini": _size(4, 256),
    "bert-small": _size(4, 512),
    "bert-medium": _size(8, 512),
    "bert-base-uncased": _size(12, 768),
    "bert-base-cased": _size(12, 768, vocab_size=28996),
    "bert-base-chinese": _size(12, 768, vocab_size=21128),
    "bert-base-multilingual-cased": _size(12, 768, vocab_size=119547),
    "bert-large-uncased": _size(24, 1024),
    "bert-large-cased": _size(24, 1024, vocab_size=28996),
    "roberta-base": _roberta(12, 768, 50265),
    "roberta-large": _roberta(24, 1024, 50265),
    "xlm-roberta-base": _roberta(12, 768, 250002, "xlm-roberta"),
    "xlm-roberta-large": _roberta(24, 1024, 250002, "xlm-roberta"),
    "camembert-base": _roberta(12, 768, 32005, "camembert"),
    "albert-base-v2": _albert(12, 768),
    "albert-large-v2": _albert(24, 1024),
    "albert-xlarge-v2": _albert(24, 2048, num_attention_heads=16),
    "albert-xxlarge-v2": _albert(12, 4096),
    "distilbert-base-uncased": _size(6, 768, model_type="distilbert"),
    "distilbert-base-cased": _size(6, 768, 28996, "distilbert"),
    "modernbert-base": _modernbert(22, 768, 1152),
    "modernbert-large": _modernbert(28, 1024, 2624),
    "ettin-encoder-17m": _ettin(7, 256, 384),
    "ettin-encoder-32m": _ettin(10, 384, 576),
    "ettin-encoder-68m": _ettin(19, 512, 768),
    "ettin-encoder-150m": _ettin(22, 768, 1152),
    "ettin-encoder-400m": _ettin(28, 1024, 2624),
    "ettin-encoder-1b": _ettin(28, 1792, 3840),
}


def named_config(name: str, **changes: Any) -> BertConfig:
    """Returns the config of the released model `name`, with the fields in `changes` replaced.

    Raises:
        ValueError: no released model has this name; the message suggests the most similar name.
    """
    if name not in MODEL_SIZES:
        hint = did_you_mean(name, MODEL_SIZES)
        raise ValueError(f"Unknown model {name!r}. {hint}Known: {', '.join(MODEL_SIZES)}.")
    return dataclasses.replace(MODEL_SIZES[name], **changes)
