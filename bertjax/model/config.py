"""What a BERT is made of, named as in Hugging Face's `config.json`, and the known sizes."""

import dataclasses
import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Architecture of an encoder; the fields of Hugging Face's `config.json`.

    Raises:
        ValueError: a size is not positive, the heads do not divide the hidden size, a rate is
            outside [0, 1), or the activation is unknown.
    """

    vocab_size: int = 30522
    """Rows of the word embedding; at least the number of tokens of the tokenizer."""
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    """Width of the feed-forward layer."""
    hidden_act: str = "gelu"
    """gelu is the erf form of the original release, gelu_new the tanh form."""
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    """The longest sequence that the position table allows."""
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    """Scale of the normal, cut at 2 sigma, that kernels and embeddings start from."""
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True
    """Whether the MLM head reuses the word embedding as its output matrix."""
    classifier_dropout: float | None = None
    """Dropout before a classifier; None: hidden_dropout_prob."""
    model_type: str = "bert"

    def __post_init__(self):
        for field in (
            "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size "
            "max_position_embeddings type_vocab_size"
        ).split():
            if not 1 <= getattr(self, field) < 2**31:
                raise ValueError(
                    f"{field}={getattr(self, field)}: it must be at least 1, and below 2^31."
                )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} does not split over "
                f"num_attention_heads={self.num_attention_heads}: use a multiple of it."
            )
        for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            if not 0.0 <= (getattr(self, field) or 0.0) < 1.0:
                raise ValueError(f"{field}={getattr(self, field)}: choose it in [0, 1).")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"hidden_act={self.hidden_act!r} is not known. {_nearest(self.hidden_act)}"
                f"Known: {', '.join(ACTIVATIONS)}."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "BertConfig":
        """Takes the architecture out of the content of a `config.json`; other keys are left.

        Raises:
            ValueError: the file describes a network that this one cannot compute, or a value is
                of another type than it should be.
        """
        family = values.get("model_type", "bert")
        if family != "bert":
            raise ValueError(f"model_type={family!r} is not supported: only 'bert' is.")
        for key, only in _ONLY_SUPPORTED.items():
            if values.get(key, only) != only:
                raise ValueError(f"{key}={values[key]!r} is not supported: only {only!r} is.")
        fields = [field for field in dataclasses.fields(cls) if field.name in values]
        for field in fields:
            value, kinds = values[field.name], get_args(field.type) or (field.type,)
            if type(value) not in kinds and not (type(value) is int and float in kinds):
                known = " or ".join(_JSON_NAMES[kind] for kind in kinds)
                raise ValueError(f"{field.name}={value!r}: it must be {known}.")
        return cls(**{field.name: values[field.name] for field in fields})

    @classmethod
    def from_json_file(cls, path: str | Path) -> "BertConfig":
        """Reads a `config.json` of Hugging Face or a `bert_config.json` of Google."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))

    def to_dict(self) -> dict[str, Any]:
        """The fields as `config.json` holds them."""
        return dataclasses.asdict(self)


_JSON_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    type(None): "null",
}
_ONLY_SUPPORTED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


def _nearest(name: str) -> str:
    matches = difflib.get_close_matches(name, [*ACTIVATIONS, *MODEL_SIZES], n=1)
    return f"Did you mean {matches[0]!r}? " if matches else ""


def _size(layers: int, hidden: int, vocab_size: int = 30522) -> BertConfig:
    # All released BERTs have heads of 64 and a feed-forward layer of four times the width.
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )


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
}


def named_config(name: str, **changes: Any) -> BertConfig:
    """The architecture of a released model, with some fields changed.

    Raises:
        ValueError: no such name; the nearest one is said.
    """
    if name not in MODEL_SIZES:
        raise ValueError(
            f"Unknown model {name!r}. {_nearest(name)}Known: {', '.join(MODEL_SIZES)}."
        )
    return dataclasses.replace(MODEL_SIZES[name], **changes)
