"""Maps Hugging Face's PyTorch tensors to our parameter tree: a table of names and layouts.

The name of a parameter in our tree is its path, such as `bert/pooler/kernel`. Our tree stacks the
parameters of all encoder layers on axis 0, so `{layer}` in a PyTorch name becomes an index on
axis 0. PyTorch stores matrices as [out, in]; our tree stores matrices as [in, out], with separate
axes for attention heads. `bertjax.weights.families` converts the names of other families.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bertjax.config.model import BertConfig
from bertjax.model import HEADS
from bertjax.weights.families import as_bert, as_family, family_of
from bertjax.weights.tensors import join_fused


class _Transform(NamedTuple):
    from_hf: Callable[[np.ndarray, BertConfig], np.ndarray]
    to_hf: Callable[[np.ndarray, BertConfig], np.ndarray]


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
    """The conversion of one parameter between PyTorch and our parameter tree.

    Attributes:
        hf_name: the name in PyTorch's BERT, with "{layer}" for the number of the layer.
        path: the path in our tree, such as "bert/embeddings/word_embeddings/embedding".
        transform: the conversion of the layout.
        first_layer: the first layer that has the parameter; earlier rows of axis 0 are not used.
    """

    hf_name: str
    path: str
    transform: _Transform
    first_layer: int = 0


def _dense(
    hf_name: str, path: str, matrix: _Transform = _MATRIX, bias: _Transform = _SAME
) -> list[Rule]:
    return [
        Rule(f"{hf_name}.weight", f"{path}/kernel", matrix),
        Rule(f"{hf_name}.bias", f"{path}/bias", bias),
    ]


def _layer_norm(hf_name: str, path: str, first_layer: int = 0) -> list[Rule]:
    return [
        Rule(f"{hf_name}.weight", f"{path}/scale", _SAME, first_layer),
        Rule(f"{hf_name}.bias", f"{path}/bias", _SAME, first_layer),
    ]


def _embedding(name: str) -> Rule:
    return Rule(f"bert.embeddings.{name}.weight", f"bert/embeddings/{name}/embedding", _SAME)


_LAYER, _LAYERS = "bert.encoder.layer.{layer}", "bert/encoder/layers"

_NAMED: tuple[Rule, ...] = (
    _embedding("word_embeddings"),
    _embedding("position_embeddings"),
    _embedding("token_type_embeddings"),
    *_layer_norm("bert.embeddings.LayerNorm", "bert/embeddings/layer_norm"),
    *_dense("bert.embeddings.projection", "bert/embeddings/projection"),
    *(
        rule
        for name in ("query", "key", "value")
        for rule in _dense(
            f"{_LAYER}.attention.self.{name}", f"{_LAYERS}/attention/{name}", _TO_HEADS, _HEADS_BIAS
        )
    ),
    *_dense(f"{_LAYER}.attention.output.dense", f"{_LAYERS}/attention/output", _FROM_HEADS),
    *_layer_norm(f"{_LAYER}.attention.output.LayerNorm", f"{_LAYERS}/attention_layer_norm"),
    *_dense(f"{_LAYER}.intermediate.dense", f"{_LAYERS}/intermediate"),
    *_dense(f"{_LAYER}.output.dense", f"{_LAYERS}/output"),
    *_layer_norm(f"{_LAYER}.output.LayerNorm", f"{_LAYERS}/output_layer_norm"),
    # The names of these modules are ours, because BERT has no such modules.
    *_layer_norm(f"{_LAYER}.attention_norm", f"{_LAYERS}/attention_norm", first_layer=1),
    *_layer_norm(f"{_LAYER}.mlp_norm", f"{_LAYERS}/mlp_norm"),
    *_dense(f"{_LAYER}.gate.dense", f"{_LAYERS}/gate"),
    *_layer_norm("bert.encoder.final_norm", "bert/encoder/final_norm"),
    *_dense("head.dense", "head/dense"),
    *_layer_norm("head.norm", "head/norm"),
    *_dense("bert.pooler.dense", "bert/pooler"),
    *_dense("cls.predictions.transform.dense", "predictions/transform"),
    *_layer_norm("cls.predictions.transform.LayerNorm", "predictions/layer_norm"),
    Rule("cls.predictions.bias", "predictions/bias", _SAME),
    Rule("cls.predictions.decoder.weight", "predictions/decoder/kernel", _MATRIX),
    *_dense("cls.seq_relationship", "seq_relationship"),
    *(  # The suffixes of torch.nn.LSTM's names, as in `weight_ih_l0_reverse`.
        Rule(f"lstm.{hf_kind}_{hf_name}_{cell}", f"lstm/{cell}/{path}/{kind}", transform)
        for cell in ("l0", "l0_reverse", "l1", "l1_reverse")
        for hf_name, path in (("ih", "input"), ("hh", "recurrent"))
        for hf_kind, kind, transform in (("weight", "kernel", _MATRIX), ("bias", "bias", _SAME))
    ),
)

# All other parts of heads are linear layers, whose names are the same in PyTorch and in our tree.
_LINEAR = {part for head in HEADS.values() for part in head.parts}
_LINEAR -= {rule.path.split("/")[0] for rule in _NAMED}
RULES = (*_NAMED, *(rule for part in sorted(_LINEAR) for rule in _dense(part, part)))

_PATTERNS = [
    (re.compile(re.escape(rule.hf_name).replace(r"\{layer\}", r"(\d+)")), rule) for rule in RULES
]
_BY_PATH = {rule.path: rule for rule in RULES}

_BIAS, _DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
# With tied embeddings, each of these tensors equals another one.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    _DECODER_BIAS: _BIAS,
}


def normalized(stored: Iterable[str], config: BertConfig) -> dict[str, str]:
    """Converts the tensor names `stored` of the config's family to {stored name: name in BERT}.

    Redundant tensors are left out. The tensor `position_ids` is always redundant. With tied
    embeddings, the weight and the bias of the decoder equal the word embedding and
    `cls.predictions.bias`; of each pair, a file may hold both, or only one, as `save_model` of
    safetensors writes it. Without tied embeddings, PyTorch uses the bias of the decoder, so
    `cls.predictions.bias` is redundant in files that hold both biases.
    """
    found = {name: as_bert(name, config) for name in stored}
    redundant: set[str] = set()
    renamed: dict[str, str] = {}
    if config.tie_word_embeddings:
        present, renamed = set(found.values()), _TIED
        redundant = {name for name, twin in _TIED.items() if twin in present}
    elif family_of(config).decoder_bias and _DECODER_BIAS in found.values():
        redundant, renamed = {_BIAS}, {_DECODER_BIAS: _BIAS}
    return {
        key: renamed.get(name, name)
        for key, name in found.items()
        if name not in redundant and not name.endswith(".position_ids")
    }


class Mapped(NamedTuple):
    """The parameter in our tree that a PyTorch tensor becomes, and the conversion of its layout.

    `layer` is the index of the tensor on axis 0 of the parameter, or None if it is not stacked;
    `from_hf` converts the array to our layout.
    """

    path: str
    layer: int | None
    from_hf: Callable[[np.ndarray], np.ndarray]


def find(name: str, config: BertConfig) -> Mapped | None:
    """Returns the `Mapped` of the tensor that BERT calls `name`; None if no rule has this name."""
    for pattern, rule in _PATTERNS:
        if match := pattern.fullmatch(name):
            layer = int(match[1]) if match.groups() else None
            if layer is not None and layer < rule.first_layer:
                return None
            return Mapped(rule.path, layer, lambda x, rule=rule: rule.transform.from_hf(x, config))
    return None


def to_hf(params: Mapping[str, np.ndarray], config: BertConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Converts parameters {path: array}; yields (PyTorch name, array), sorted by path and layer.

    Names and shapes are PyTorch's for the config's family; a stacked array, [layers, ...], becomes
    one array per layer.
    """
    yield from join_fused(_to_separate(params, config), family_of(config).fused)


def _to_separate(
    params: Mapping[str, np.ndarray], config: BertConfig
) -> Iterator[tuple[str, np.ndarray]]:
    two_biases = not config.tie_word_embeddings and family_of(config).decoder_bias
    projected = "projection/kernel" in params

    def named(name: str) -> str:
        return as_family(name, config, projected=projected)

    for path, value in sorted(params.items()):
        rule = _BY_PATH[path]
        if "{layer}" not in rule.hf_name:
            yield named(rule.hf_name), rule.transform.to_hf(value, config)
            if rule.hf_name == _BIAS and two_biases:
                yield named(_DECODER_BIAS), value
            continue
        for layer, layer_value in enumerate(value[rule.first_layer :], rule.first_layer):
            name = named(rule.hf_name.format(layer=layer))
            yield name, rule.transform.to_hf(layer_value, config)


def set_unused_layers(params: dict[str, np.ndarray]) -> None:
    """Sets rows of axis 0 that no layer uses to their initial values, in LayerNorms [layers, D]."""
    for path in params.keys() & {rule.path for rule in RULES if rule.first_layer}:
        params[path][: _BY_PATH[path].first_layer] = float(path.endswith("scale"))


def missing_names(paths: Iterable[str], seen: Collection[str], config: BertConfig) -> list[str]:
    """Returns the PyTorch names of the parameters at `paths` that are not in `seen`.

    `seen` contains names of tensors in BERT; the returned names are names in the config's family.
    """
    paths = set(paths)
    names = set()
    for path in paths:
        hf_name, first = _BY_PATH[path].hf_name, _BY_PATH[path].first_layer
        layers = range(first, config.groups if "{layer}" in hf_name else 1)
        names |= {hf_name.format(layer=layer) for layer in layers}
    projected = "projection/kernel" in paths
    return sorted(as_family(name, config, projected=projected) for name in names - set(seen))
