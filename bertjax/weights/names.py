"""Maps Hugging Face's PyTorch tensors to our parameter tree: a table of names and layouts.

The name of a parameter in our tree is its path, such as `bert/pooler/kernel`. Our tree stacks the
parameters of all encoder layers on axis 0, so `{layer}` in a PyTorch name becomes an index on
axis 0. PyTorch stores matrices as [out, in]; our tree stores matrices as [in, out], with separate
axes for attention heads. `bertjax.weights.families` converts the names of other families.

ModernBERT's files have one matrix for query, key and value (`Wqkv`), and one for both halves of the
gated linear unit (`Wi`); our parameter tree has each apart, so that meshes and rematerialisation
treat them as in BERT. Such a tensor is the concatenation, on axis 0, of the parts.
"""

import functools
import re
from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.base.files import listed
from bertjax.config.model import FAMILY_FIELDS, BertConfig
from bertjax.model import HEADS
from bertjax.weights.families import FAMILIES, family_name, part_order


class LazyTensors(UserDict):
    """Tensors by name, made of {name: function that reads the tensor}.

    `beside` is what a file has beside them, such as the settings of a trainer.
    """

    def __init__(
        self,
        readers: Mapping[str, Callable[[], np.ndarray]],
        beside: Mapping[Any, Any] | None = None,
    ):
        super().__init__(readers)
        self.beside = beside or {}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.data[name]()


class _Transform(NamedTuple):
    from_hf: Callable[[np.ndarray, BertConfig], np.ndarray]
    to_hf: Callable[[np.ndarray, BertConfig], np.ndarray]


_SAME = _Transform(
    from_hf=lambda x, c: x,
    to_hf=lambda x, c: x,
)
_MATRIX = _Transform(
    from_hf=lambda x, c: x.T,
    to_hf=lambda x, c: x.T,
)
_TO_HEADS = _Transform(
    from_hf=lambda x, c: x.T.reshape(c.hidden_size, -1, c.head_size),
    to_hf=lambda x, c: x.reshape(len(x), -1).T,
)
_HEADS_BIAS = _Transform(
    from_hf=lambda x, c: x.reshape(-1, c.head_size),
    to_hf=lambda x, c: x.reshape(-1),
)
_FROM_HEADS = _Transform(
    from_hf=lambda x, c: x.T.reshape(-1, c.head_size, c.hidden_size),
    to_hf=lambda x, c: x.reshape(-1, x.shape[-1]).T,
)
# PyTorch: [out, in of a group, taps]; here: [taps, groups, in of a group, out of a group].
_CONVOLUTION = _Transform(
    from_hf=lambda x, c: x.reshape(c.conv_groups, -1, *x.shape[1:]).transpose(3, 0, 2, 1),
    to_hf=lambda x, c: x.transpose(1, 3, 2, 0).reshape(c.hidden_size, -1, len(x)),
)


class Rule(NamedTuple):
    """The conversion of one parameter between PyTorch and our parameter tree.

    Attributes:
        hf_name: the name in PyTorch's BERT, with "{layer}" for the number of the layer.
        path: the path in our tree, such as "bert/embeddings/word_embeddings/embedding".
        transform: the conversion of the layout.
        first_layer: the first layer that has the parameter; earlier rows of axis 0 are not used.
            With `first_attention_norm`, all layers have all parameters.
    """

    hf_name: str
    path: str
    transform: _Transform
    first_layer: int = 0


# {kind of module: (end of the PyTorch name, end of our path, layout) of each of its parameters}.
_KINDS: dict[str, tuple[tuple[str, str, _Transform], ...]] = {
    "embedding": ((".weight", "/embedding", _SAME),),
    "norm": ((".weight", "/scale", _SAME), (".bias", "/bias", _SAME)),
    "dense": ((".weight", "/kernel", _MATRIX), (".bias", "/bias", _SAME)),
    "to_heads": ((".weight", "/kernel", _TO_HEADS), (".bias", "/bias", _HEADS_BIAS)),
    "from_heads": ((".weight", "/kernel", _FROM_HEADS), (".bias", "/bias", _SAME)),
    "convolution": ((".weight", "/kernel", _CONVOLUTION), (".bias", "/bias", _SAME)),
    "matrix": (("", "", _MATRIX),),
    "vector": (("", "", _SAME),),
}


def _rules(table: str, hf_parent: str = "", parent: str = "") -> list[Rule]:
    """Parses lines of a kind in `_KINDS`, a PyTorch name, our path and perhaps a first layer."""
    rules = []
    for line in table.strip().splitlines():
        kind, hf_name, path, *first_layer = line.split()
        first = int(first_layer[0]) if first_layer else 0
        for hf_end, end, transform in _KINDS[kind]:
            rule = Rule(hf_parent + hf_name + hf_end, parent + path + end, transform, first)
            rules.append(rule)
    return rules


_LAYERS = "bert/encoder/layers/"
# The names of query_norm, key_norm, attention_norm, mlp_norm and gate are ours, because BERT has no
# such modules.
_OF_LAYERS = """
to_heads    attention.self.query        attention/query
to_heads    attention.self.key          attention/key
to_heads    attention.self.value        attention/value
norm        attention.self.query_norm   attention/query_norm
norm        attention.self.key_norm     attention/key_norm
to_heads    attention.self.pos_key      attention/pos_key
to_heads    attention.self.pos_query    attention/pos_query
from_heads  attention.output.dense      attention/output
norm        attention.output.LayerNorm  attention_layer_norm
dense       intermediate.dense          intermediate
dense       output.dense                output
norm        output.LayerNorm            output_layer_norm
norm        attention_norm              attention_norm        1
norm        mlp_norm                    mlp_norm
dense       gate.dense                  gate
"""
# The last 16 have the names of torch.nn.LSTM.
_OF_OTHERS = """
embedding    bert.embeddings.word_embeddings             bert/embeddings/word_embeddings
embedding    bert.embeddings.position_embeddings         bert/embeddings/position_embeddings
embedding    bert.embeddings.token_type_embeddings       bert/embeddings/token_type_embeddings
embedding    bert.embeddings.task_type_embeddings        bert/embeddings/task_type_embeddings
norm         bert.embeddings.LayerNorm                   bert/embeddings/layer_norm
dense        bert.embeddings.projection                  bert/embeddings/projection
norm         bert.encoder.final_norm                     bert/encoder/final_norm
embedding    bert.encoder.rel_embeddings                 bert/encoder/relative
norm         bert.encoder.LayerNorm                      bert/encoder/relative/layer_norm
convolution  bert.encoder.conv.conv                      bert/encoder/convolution
norm         bert.encoder.conv.LayerNorm                 bert/encoder/convolution/layer_norm
dense        head.dense                                  head/dense
norm         head.norm                                   head/norm
dense        bert.pooler.dense                           bert/pooler
dense        bert.contact_head.regression                bert/contact_head
vector       bert.rotary_embeddings.inv_freq             bert/encoder/rope_rates
dense        cls.predictions.transform.dense             predictions/transform
norm         cls.predictions.transform.LayerNorm         predictions/layer_norm
dense        cls.predictions.inner                       predictions/inner
dense        cls.predictions.outer                       predictions/outer
vector       cls.predictions.bias                        predictions/bias
dense        cls.predictions.decoder                     predictions/decoder
dense        cls.seq_relationship                        seq_relationship
dense        discriminator_predictions.dense             discriminator_predictions/dense
norm         discriminator_predictions.LayerNorm         discriminator_predictions/layer_norm
dense        discriminator_predictions.dense_prediction  discriminator_predictions/dense_prediction
dense        sequence_summary.summary                    sequence_summary
matrix       lstm.weight_ih_l0                           lstm/l0/input/kernel
vector       lstm.bias_ih_l0                             lstm/l0/input/bias
matrix       lstm.weight_hh_l0                           lstm/l0/recurrent/kernel
vector       lstm.bias_hh_l0                             lstm/l0/recurrent/bias
matrix       lstm.weight_ih_l0_reverse                   lstm/l0_reverse/input/kernel
vector       lstm.bias_ih_l0_reverse                     lstm/l0_reverse/input/bias
matrix       lstm.weight_hh_l0_reverse                   lstm/l0_reverse/recurrent/kernel
vector       lstm.bias_hh_l0_reverse                     lstm/l0_reverse/recurrent/bias
matrix       lstm.weight_ih_l1                           lstm/l1/input/kernel
vector       lstm.bias_ih_l1                             lstm/l1/input/bias
matrix       lstm.weight_hh_l1                           lstm/l1/recurrent/kernel
vector       lstm.bias_hh_l1                             lstm/l1/recurrent/bias
matrix       lstm.weight_ih_l1_reverse                   lstm/l1_reverse/input/kernel
vector       lstm.bias_ih_l1_reverse                     lstm/l1_reverse/input/bias
matrix       lstm.weight_hh_l1_reverse                   lstm/l1_reverse/recurrent/kernel
vector       lstm.bias_hh_l1_reverse                     lstm/l1_reverse/recurrent/bias
"""
RULES = [*_rules(_OF_LAYERS, "bert.encoder.layer.{layer}.", _LAYERS), *_rules(_OF_OTHERS)]
# All other parts of heads are linear layers, whose names are the same in PyTorch and in our tree.
_NAMED = {rule.path.split("/")[0] for rule in RULES}
_LINEAR = {part for head in HEADS.values() for part in head.parts} - _NAMED
RULES += _rules("\n".join(f"dense {part} {part}" for part in sorted(_LINEAR)))

_BY_PATH = {rule.path: rule for rule in RULES}

_EMBEDDING = "bert/embeddings/word_embeddings/embedding"
_DECODER = "predictions/decoder/kernel"
_BIAS = "predictions/bias"
_DECODER_BIAS = "predictions/decoder/bias"
# Older files of ESM have a copy in each layer; that of layer 0 is read.
_COPY = re.compile(r"(.*\.layer\.)[1-9][0-9]*(\.attention\.self\.rotary_embeddings\.inv_freq)")
# Buffers of transformers, which are computed, and of fairseq.
_BUFFER = re.compile(
    r"(.*\.)?(position_ids|token_type_ids|version|_float_tensor|rotary_emb\.(original_)?inv_freq"
    r"|encoder\.embed_positions\.weight)|" + _COPY.pattern
)
# The step of bfloat16, in which files may be stored, below 1.
_ROUNDING = 2.0**-8


@functools.cache
def _hf_names(model_type: str, projected: bool) -> dict[str, str]:
    """Returns {path: name in the family}; `projected`: with a dense layer before the classifier."""
    return {rule.path: family_name(rule.hf_name, model_type, projected=projected) for rule in RULES}


class Target(NamedTuple):
    """A parameter in our tree, or a layer of one, that a PyTorch tensor or a part of it becomes.

    `layer` is the index on axis 0 of the parameter, or None if it is not stacked. The tensor
    consists of `parts` parts of equal size, of which this one has the index `part`.
    """

    rule: Rule
    layer: int | None
    part: int
    parts: int

    @property
    def path(self) -> str:
        """The path of the parameter in our tree."""
        return self.rule.path

    def part_of(self, tensor: np.ndarray) -> np.ndarray:
        """Returns the part of the PyTorch tensor that becomes the parameter."""
        # A tensor that does not split is returned whole, and refused by its shape.
        if self.parts == 1 or not tensor.ndim or len(tensor) % self.parts:
            return tensor
        return np.split(tensor, self.parts)[self.part]


@functools.cache
def _by_hf_name(model_type: str) -> dict[str, list[Rule]]:
    rules: dict[str, list[Rule]] = {}
    for projected in (False, True):
        known = _hf_names(model_type, projected)
        for path, name in known.items():
            if path == _DECODER_BIAS and name == known[_BIAS]:
                continue  # the output bias has this name only
            if _BY_PATH[path] not in rules.setdefault(name, []):
                rules[name].append(_BY_PATH[path])
    for of_tensor in rules.values():
        of_tensor.sort(key=lambda rule: part_order(rule.hf_name, model_type))
    return rules


def find(name: str, model_type: str) -> list[Target]:
    """Returns the targets of the tensor that the family calls `name`; [] if no rule has this name.

    The name may be in an old form, with `gamma` and `beta` instead of LayerNorm's `weight` and
    `bias`, and may lack the family's prefix, as in files of an encoder without a head.
    """
    family = FAMILIES[model_type]
    for old, new in family.aliases:
        if name.startswith(old):
            name = new + name.removeprefix(old)
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    index = None
    if layer := re.search(r"\.([0-9]{1,9})\.", name):
        index = int(layer[1])
        name = f"{name[: layer.start()]}.{{layer}}.{name[layer.end() :]}"
    known = _by_hf_name(model_type)
    rules = known.get(name)
    if rules is None:
        rules = known.get(f"{family.prefix}.{name}", [])
    if index is None and "{" in name:
        return []
    if index is not None and any(index < _first_layer(rule, model_type) for rule in rules):
        return []
    return [Target(rule, index, part, len(rules)) for part, rule in enumerate(rules)]


def is_left_out(name: str, model_type: str) -> bool:
    """Whether transformers leaves out a tensor for which the model has no parameter."""
    return any(part in name for part in FAMILIES[model_type].left_out)


def located(stored: Iterable[str], config: BertConfig) -> dict[str, list[Target]]:
    """Finds the targets of the tensors `stored` of the config's family; [] for unknown tensors.

    Redundant tensors are left out: buffers such as `position_ids`, and `cls.predictions.bias` if
    there is a bias of the decoder, which is the one that PyTorch uses. With tied embeddings, the
    weight of the decoder equals the word embedding; a file may hold both, or only one, as
    `save_model` of safetensors writes it.
    """
    targets_of: dict[str, list[Target]] = {}
    paths: set[str] = set()
    for name in stored:
        if not _BUFFER.fullmatch(name):
            targets_of[name] = find(name, config.model_type)
            paths.update(target.path for target in targets_of[name])
    redundant = set()
    renamed = {_DECODER_BIAS: _BIAS}
    if _DECODER_BIAS in paths:
        redundant.add(_BIAS)
    if config.tie_word_embeddings:
        renamed[_DECODER] = _EMBEDDING
        if _EMBEDDING in paths:
            redundant.add(_DECODER)
    needed = {}
    for name, targets in targets_of.items():
        if redundant.isdisjoint(target.path for target in targets):
            needed[name] = [_moved(target, renamed) for target in targets]
    return needed


def check_unread(tensors: Mapping[str, np.ndarray], config: BertConfig, where: Path) -> None:
    """Raises ValueError if a tensor that is computed, or read from a copy, has other values."""
    family = FAMILIES[config.model_type]
    for full_name, computed in family.tables(config).items():
        for name in (full_name, full_name.removeprefix(f"{family.prefix}.")):
            if name in tensors:
                _check_alike(name, tensors[name], computed, where)
    for name in tensors:
        copy = _COPY.fullmatch(name)
        if copy is None:
            continue
        first = f"{copy[1]}0{copy[2]}"
        if first in tensors:
            _check_alike(name, tensors[name], tensors[first], where)


def _check_alike(name: str, stored: np.ndarray, used: np.ndarray, where: Path) -> None:
    difference = f"of the shape {stored.shape}, not {used.shape}"
    if stored.shape == used.shape:
        largest = np.abs(stored.astype(np.float32) - used.astype(np.float32)).max()
        if largest <= _ROUNDING:
            return
        difference = f"up to {largest:.3g} away"
    raise ValueError(
        f"{name} in {where} is {difference} from what its config or its first layer says, and "
        "is no parameter here: correct the config, or use transformers with this model."
    )


def paths(stored: Iterable[str], config: BertConfig) -> set[str]:
    """Returns the paths of the parameters that the tensors `stored` become."""
    known: set[str] = set()
    for targets in located(stored, config).values():
        known.update(target.path for target in targets)
    return known


def _moved(target: Target, renamed: Mapping[str, str]) -> Target:
    return target._replace(rule=_BY_PATH[renamed.get(target.path, target.path)])


def without_wrapper(
    tensors: Mapping[str, np.ndarray], model_type: str, where: Path
) -> Mapping[str, np.ndarray]:
    """Removes the prefix, such as `module.`, that wrappers have put before most names, and says so.

    Raises ValueError if tensors of an encoder are there under two prefixes, or some of the head
    lack the prefix of the others.
    """
    paths: dict[str, list[str]] = {}
    for name in tensors:
        if _BUFFER.fullmatch(name):
            continue
        rest = name
        targets = find(rest, model_type)
        while rest and not targets:
            _, _, rest = rest.partition(".")
            targets = find(rest, model_type)
        before = name.removesuffix(rest)
        if rest and re.fullmatch(r"[\w.]*", before):
            paths.setdefault(before, []).append(targets[0].path)
    prefix = max(paths, key=lambda prefix: len(paths[prefix]), default="")
    encoders = 0
    for own_paths in paths.values():
        encoders += any(path.startswith("bert/") for path in own_paths)
    if encoders > 1 or prefix and "" in paths:
        raise ValueError(
            f"{where} holds tensors of a model under the prefixes {listed([*map(repr, paths)])}: "
            "save those of one model alone, under the names of transformers."
        )
    if not prefix:
        return tensors
    without = [name for name in tensors if not name.startswith(prefix)]
    which = "all tensors"
    if without:
        which += f" but {listed(without)}"
    print(f"note: the prefix {prefix} of {which} in {where} is removed")
    readers = {}
    for name in tensors:
        readers[name.removeprefix(prefix)] = functools.partial(tensors.__getitem__, name)
    return LazyTensors(readers)


def is_untied(tensors: Mapping[str, np.ndarray], config: BertConfig) -> bool:
    """Whether the tensors hold an output matrix that differs from the word embedding."""
    stored = _names_by_path(tensors, config)
    if not config.tie_word_embeddings or not {_DECODER, _EMBEDDING} <= stored.keys():
        return False
    return not np.array_equal(tensors[stored[_DECODER]], tensors[stored[_EMBEDDING]])


def _names_by_path(stored: Iterable[str], config: BertConfig) -> dict[str, str]:
    return {target.path: name for name in stored for target in find(name, config.model_type)}


def to_hf(params: Mapping[str, np.ndarray], config: BertConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Converts parameters {path: array}; yields (PyTorch name, array), sorted by path and layer.

    Names and shapes are PyTorch's for the config's family; a stacked array, [layers, ...], becomes
    one array per layer. A tensor of several parameters comes in the place of the last.
    """
    model_type = config.model_type
    family = FAMILIES[model_type]
    stored = _hf_names(model_type, "projection/kernel" in params)
    # Most families have a second name for the output bias, that of the output matrix, if untied.
    decoder_bias = stored[_DECODER].removesuffix("weight") + "bias"
    two_biases = family.decoder_has_bias and not config.tie_word_embeddings
    two_biases &= stored[_BIAS] != decoder_bias
    paths_of: dict[str, list[str]] = {}  # of the parameters that a tensor has
    for path, name in stored.items():
        if path in params:
            paths_of.setdefault(name, []).append(path)
    for path, value in sorted(params.items()):
        name = stored[path]
        paths = paths_of[name]
        if path != max(paths):
            continue
        paths.sort(key=lambda part: part_order(_BY_PATH[part].hf_name, model_type))
        for layer in _layers(path, name, len(value), model_type):
            parts = []
            for part in paths:
                own = params[part]
                if layer is not None:
                    own = own[layer]
                parts.append(_BY_PATH[part].transform.to_hf(own, config))
            tensor = parts[0]
            if len(parts) > 1:
                tensor = np.concatenate(parts)
            yield name.format(layer=layer), tensor
        if path == _BIAS and two_biases:
            yield decoder_bias, value
    if _EMBEDDING in params:
        yield from family.tables(config).items()


def two_biases(stored: Iterable[str], config: BertConfig) -> list[str]:
    """Returns the names of both output biases of an untied model: PyTorch uses only the second."""
    names = _names_by_path(stored, config)
    if config.tie_word_embeddings or not {_BIAS, _DECODER_BIAS} <= names.keys():
        return []
    return [names[_BIAS], names[_DECODER_BIAS]]


def encoder_modules(paths: Collection[str], config: BertConfig) -> dict[str, list[str]]:
    """Returns {PyTorch name of a linear layer, with "{layer}": paths of its kernels in `paths`}."""
    modules: dict[str, list[str]] = {}
    for path, name in _hf_names(config.model_type, False).items():
        if path in paths and path.startswith(_LAYERS) and path.endswith("/kernel"):
            modules.setdefault(name.removesuffix(".weight"), []).append(path)
    return modules


def set_unused_layers(
    params: dict[str, np.ndarray], shapes: Mapping[str, Any], model_type: str
) -> None:
    """Sets rows of axis 0 that no layer uses to their initial values, in LayerNorms [layers, D]."""
    for rule in RULES:
        first = _first_layer(rule, model_type)
        if first and rule.path in shapes:
            # A model of one layer has no others.
            value = params.setdefault(rule.path, np.empty(shapes[rule.path].shape, np.float32))
            value[:first] = float(rule.path.endswith("scale"))


def _first_layer(rule: Rule, model_type: str) -> int:
    if FAMILY_FIELDS[model_type].get("first_attention_norm"):
        return 0
    return rule.first_layer


def missing_names(
    paths: Iterable[str], seen: Collection[tuple[str, int | None]], config: BertConfig
) -> list[str]:
    """Returns the PyTorch names of parameters at `paths` whose (path, layer) is not in `seen`."""
    paths = set(paths)
    stored = _hf_names(config.model_type, "projection/kernel" in paths)
    missing = set()
    for path in paths:
        for layer in _layers(path, stored[path], config.groups, config.model_type):
            if (path, layer) not in seen:
                missing.add(stored[path].format(layer=layer))
    return sorted(missing)


def _layers(path: str, name: str, count: int, model_type: str) -> Iterable[int | None]:
    if "{" in name:
        return range(_first_layer(_BY_PATH[path], model_type), count)
    return (None,)
