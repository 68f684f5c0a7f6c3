"""The one table of parameter names: PyTorch's (Hugging Face) and ours, with the change of layout.

Ours are paths in the parameter tree; layers are stacked there on axis 0, so `{layer}` of a PyTorch
name becomes an index. PyTorch stores matrices as [out, in], we as [in, out], heads apart. The table
has BERT's names; `bertjax.weights.families` says how its relatives differ.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bertjax.config.model import BertConfig
from bertjax.weights.families import as_bert, as_family, family_of


class _Transform(NamedTuple):
    to_ours: Callable[[np.ndarray, BertConfig], np.ndarray]
    to_theirs: Callable[[np.ndarray, BertConfig], np.ndarray]


def _heads(config: BertConfig) -> tuple[int, int]:
    return config.num_attention_heads, config.hidden_size // config.num_attention_heads


_SAME = _Transform(lambda x, c: x, lambda x, c: x)
_MATRIX = _Transform(lambda x, c: x.T, lambda x, c: x.T)
_TO_HEADS = _Transform(
    lambda x, c: x.T.reshape(-1, *_heads(c)), lambda x, c: x.reshape(x.shape[0], -1).T
)
_HEADS_BIAS = _Transform(lambda x, c: x.reshape(_heads(c)), lambda x, c: x.reshape(-1))
_FROM_HEADS = _Transform(
    lambda x, c: x.T.reshape(*_heads(c), -1), lambda x, c: x.reshape(-1, x.shape[-1]).T
)


class Rule(NamedTuple):
    """One parameter: its PyTorch name, its path here, and how the arrays differ."""

    theirs: str
    ours: str
    transform: _Transform


def _dense(theirs: str, ours: str) -> list[Rule]:
    return [
        Rule(f"{theirs}.weight", f"{ours}/kernel", _MATRIX),
        Rule(f"{theirs}.bias", f"{ours}/bias", _SAME),
    ]


def _layer_norm(theirs: str, ours: str) -> list[Rule]:
    return [
        Rule(f"{theirs}.weight", f"{ours}/scale", _SAME),
        Rule(f"{theirs}.bias", f"{ours}/bias", _SAME),
    ]


def _lstm(cell: str) -> list[Rule]:
    """One direction of one layer of `torch.nn.LSTM`, as the tagger of `model.tagger` has it."""
    return [
        rule
        for theirs, ours in (("ih", "input"), ("hh", "recurrent"))
        for rule in (
            Rule(f"lstm.weight_{theirs}_{cell}", f"lstm/{cell}/{ours}/kernel", _MATRIX),
            Rule(f"lstm.bias_{theirs}_{cell}", f"lstm/{cell}/{ours}/bias", _SAME),
        )
    ]


def _embedding(name: str) -> Rule:
    return Rule(f"bert.embeddings.{name}.weight", f"bert/embeddings/{name}/embedding", _SAME)


_LAYER, _LAYERS = "bert.encoder.layer.{layer}", "bert/encoder/layers"

RULES: tuple[Rule, ...] = (
    _embedding("word_embeddings"),
    _embedding("position_embeddings"),
    _embedding("token_type_embeddings"),
    *_layer_norm("bert.embeddings.LayerNorm", "bert/embeddings/layer_norm"),
    *_dense("bert.embeddings.projection", "bert/embeddings/projection"),
    *(
        rule
        for name in ("query", "key", "value")
        for rule in (
            Rule(
                f"{_LAYER}.attention.self.{name}.weight",
                f"{_LAYERS}/attention/{name}/kernel",
                _TO_HEADS,
            ),
            Rule(
                f"{_LAYER}.attention.self.{name}.bias",
                f"{_LAYERS}/attention/{name}/bias",
                _HEADS_BIAS,
            ),
        )
    ),
    Rule(
        f"{_LAYER}.attention.output.dense.weight",
        f"{_LAYERS}/attention/output/kernel",
        _FROM_HEADS,
    ),
    Rule(f"{_LAYER}.attention.output.dense.bias", f"{_LAYERS}/attention/output/bias", _SAME),
    *_layer_norm(f"{_LAYER}.attention.output.LayerNorm", f"{_LAYERS}/attention_layer_norm"),
    *_dense(f"{_LAYER}.intermediate.dense", f"{_LAYERS}/intermediate"),
    *_dense(f"{_LAYER}.output.dense", f"{_LAYERS}/output"),
    *_layer_norm(f"{_LAYER}.output.LayerNorm", f"{_LAYERS}/output_layer_norm"),
    *_dense("bert.pooler.dense", "bert/pooler"),
    *_dense("cls.predictions.transform.dense", "predictions/transform"),
    *_layer_norm("cls.predictions.transform.LayerNorm", "predictions/layer_norm"),
    Rule("cls.predictions.bias", "predictions/bias", _SAME),
    Rule("cls.predictions.decoder.weight", "predictions/decoder/kernel", _MATRIX),
    *_dense("cls.seq_relationship", "seq_relationship"),
    *_dense("projection", "projection"),
    *_dense("classifier", "classifier"),
    *_dense("qa_outputs", "qa_outputs"),
    *(rule for cell in ("l0", "l0_reverse", "l1", "l1_reverse") for rule in _lstm(cell)),
)

_PATTERNS = [
    (re.compile(re.escape(rule.theirs).replace(r"\{layer\}", r"(\d+)")), rule) for rule in RULES
]
_BY_PATH = {rule.ours: rule for rule in RULES}


_BIAS, _DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"


def normalized(name: str, config: BertConfig) -> str | None:
    """A PyTorch name as the table has it; None if it repeats what is said elsewhere.

    `position_ids` count from 0. With tied embeddings the decoder's weight is the word embedding and
    its bias `cls.predictions.bias`; otherwise PyTorch uses the decoder's own, and
    `cls.predictions.bias` is without effect.
    """
    name = as_bert(name, config)
    if name.endswith(".position_ids"):
        return None
    if config.tie_word_embeddings:
        return None if name in ("cls.predictions.decoder.weight", _DECODER_BIAS) else name
    if not family_of(config).decoder_bias:
        return name
    return {_BIAS: None, _DECODER_BIAS: _BIAS}.get(name, name)


class Mapped(NamedTuple):
    """Where a PyTorch tensor belongs: a path, the layer on axis 0 (None: not stacked), an array."""

    path: str
    layer: int | None
    to_ours: Callable[[np.ndarray], np.ndarray]


def find(name: str, config: BertConfig) -> Mapped | None:
    """Looks up a normalized PyTorch name; None if the table does not have it."""
    for pattern, rule in _PATTERNS:
        if match := pattern.fullmatch(name):
            layer = int(match[1]) if match.groups() else None
            return Mapped(rule.ours, layer, lambda x, rule=rule: rule.transform.to_ours(x, config))
    return None


def to_theirs(
    params: Mapping[str, np.ndarray], config: BertConfig
) -> Iterator[tuple[str, np.ndarray]]:
    """Flat parameters, path -> array, as PyTorch names and arrays, in the order of their paths."""
    twice = not config.tie_word_embeddings and family_of(config).decoder_bias
    projected = "projection/kernel" in params

    def named(name: str) -> str:
        return as_family(name, config, projected=projected)

    for path, value in sorted(params.items()):
        rule = _BY_PATH[path]
        if "{layer}" not in rule.theirs:
            yield named(rule.theirs), rule.transform.to_theirs(value, config)
            if rule.theirs == _BIAS and twice:
                yield named(_DECODER_BIAS), value
            continue
        for layer, of_layer in enumerate(value):
            name = named(rule.theirs.format(layer=layer))
            yield name, rule.transform.to_theirs(of_layer, config)


def missing_names(paths: Iterable[str], seen: Collection[str], config: BertConfig) -> list[str]:
    """The PyTorch names that these paths need, besides the normalized ones that were `seen`."""
    paths = set(paths)
    names = set()
    for path in paths:
        theirs = _BY_PATH[path].theirs
        layers = range(config.groups if "{layer}" in theirs else 1)
        names |= {theirs.format(layer=layer) for layer in layers}
    projected = "projection/kernel" in paths
    return sorted(as_family(name, config, projected=projected) for name in names - set(seen))
