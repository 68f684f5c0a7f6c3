"""Recipes of fine-tuning: frozen layers, LoRA's adapters, layer-wise rates, averaged weights.

A `TrainState` has frozen parameters under the key `FROZEN`, apart from the trained ones, so that
they have neither gradients nor optimizer state. Of a stacked parameter whose lowest layers are
frozen, each side holds its layers. LoRA (Hu et al. 2021) freezes the encoder; matrices "lora_a"
[layers, in, rank] and "lora_b" [layers, rank, out] stand in place of the kernels of its linear
layers, and the loss is that of the model with the kernels W + lora_alpha / rank * A B. ModernBERT's
query, key and value share A, because they are one layer there.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.base.files import did_you_mean
from bertjax.config import FinetuneConfig
from bertjax.model import BertWithHead
from bertjax.train.optimizer import average_params, decay_by_layer
from bertjax.weights import names
from bertjax.weights.fill import param_shapes

# The key of frozen parameters in the parameters of a `TrainState`.
FROZEN = "frozen"
LAYERS = "bert/encoder/layers/"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Which parameters are trained, and what follows the optimizer; by default, all and nothing.

    Frozen are parameters whose paths begin with one of `frozen`, and the lowest `layers` layers.
    `adapters` are {PyTorch name of a linear layer: paths of the kernels that share its adapter}.
    If `average_decay` is not 0, the last of `transforms` is `average_params` with it.
    """

    frozen: tuple[str, ...] = ()
    layers: int = 0
    adapters: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
    rank: int = 0
    scale: float = 1.0
    seed: int = 0
    transforms: tuple[optax.GradientTransformation, ...] = ()
    average_decay: float = 0.0

    def split(self, params: Any) -> Any:
        """Converts parameters of the model to those of a `TrainState`, with new adapters."""
        if not (self.frozen or self.layers):
            return params
        trained, fixed = {}, {}
        for path, value in _flat(params).items():
            if path.startswith(self.frozen):
                fixed[path] = value
            elif self.layers and path.startswith(LAYERS):
                fixed[path], trained[path] = value[: self.layers], value[self.layers :]
            else:
                trained[path] = value
        # The default of torch.nn.Linear, as in PEFT: uniform, at most 1 / sqrt(in).
        draw = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", batch_axis=0)
        for index, paths in enumerate(self.adapters.values()):
            module, kernel = paths[0].removesuffix("kernel"), fixed[paths[0]]
            # The kernel of attention's output has an axis of heads.
            axes = 3 if module.endswith("attention/output/") else 2
            inputs = int(np.prod(kernel.shape[1:axes]))
            outputs = len(paths) * kernel.size // (len(kernel) * inputs)
            key = jax.random.fold_in(jax.random.key(self.seed), index)
            trained[f"{module}lora_a"] = draw(key, (len(kernel), inputs, self.rank), jnp.float32)
            trained[f"{module}lora_b"] = jnp.zeros((len(kernel), self.rank, outputs), jnp.float32)
        return {**unflatten_dict(trained, sep="/"), FROZEN: unflatten_dict(fixed, sep="/")}

    def join(self, params: Any) -> Any:
        """Converts parameters of a `TrainState` to those of the model, with merged adapters."""
        if FROZEN not in params:
            return params
        merged = _flat(params[FROZEN])
        for path, value in _flat({k: x for k, x in params.items() if k != FROZEN}).items():
            merged[path] = jnp.concatenate([merged[path], value]) if path in merged else value
        for paths in self.adapters.values():
            module = paths[0].removesuffix("kernel")
            a, b = (merged.pop(f"{module}lora_{side}") for side in "ab")
            delta = self.scale * jnp.matmul(a, b, precision="highest")
            for path, part in zip(paths, jnp.split(delta, len(paths), -1), strict=True):
                merged[path] += part.reshape(merged[path].shape)
        return unflatten_dict(merged, sep="/")

    def loss_fn(self, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `loss_fn`, a function of the model's parameters, for those of a `TrainState`."""
        return lambda params, *rest: loss_fn(self.join(params), *rest)

    def averaged(self, params: Any, opt_state: Any) -> Any:
        """Replaces the trained parameters of a `TrainState` by their average, if there is one."""
        if not self.average_decay:
            return params
        average: optax.EmaState = opt_state[-1]
        count = jnp.asarray(average.count)
        mean = optax.tree.bias_correction(average.ema, self.average_decay, jnp.maximum(count, 1))
        last = {name: params[name] for name in mean}
        return params | jax.tree.map(lambda x, y: jnp.where(count > 0, x, y), mean, last)

    def matrices(self, trained: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns {PyTorch name: A and B} of the adapters in the parameters `trained`."""
        flat = _flat(trained)
        modules = {name: paths[0].removesuffix("kernel") for name, paths in self.adapters.items()}
        return {name: (flat[f"{x}lora_a"], flat[f"{x}lora_b"]) for name, x in modules.items()}


def _flat(params: Any) -> dict[str, Any]:
    return flatten_dict(params, sep="/")  # type: ignore


def make_recipe(config: FinetuneConfig, model: BertWithHead) -> Recipe:
    """Returns the recipe of a run that fine-tunes `model`.

    Raises:
        ValueError: the model has other layers than `config` freezes or adapts, or layers with
            shared parameters, or nothing is left to train.
    """
    depth, lora = model.config.num_hidden_layers, config.lora_rank > 0
    by_depth = config.layer_decay != 1.0 or config.freeze_layers > 0
    if by_depth and model.config.groups != depth:
        raise ValueError(
            f"--layer_decay and --freeze_layers need different layers, but the {depth} layers of "
            f"{config.init} share parameters: leave them out."
        )
    if config.freeze_layers > depth:
        raise ValueError(
            f"freeze_layers={config.freeze_layers}: {config.init} has {depth} layers; give at most "
            "as many."
        )
    decay, average = config.layer_decay, config.average_decay
    transforms = [decay_by_layer(decay, depth)] if decay != 1.0 else []
    transforms += [average_params(average)] if average else []
    frozen = ["bert/embeddings/"] if lora or config.freeze_embeddings else []
    frozen += ["bert/encoder/"] if lora or config.freeze_layers == depth else []
    if frozen and not model.present_parts:  # without a head, nothing reads the pooler
        frozen.append("bert/pooler/")
    paths = param_shapes(model)
    if not lora and all(path.startswith(tuple(frozen)) for path in paths):
        raise ValueError(
            f"--freeze_embeddings and --freeze_layers {depth} freeze all parameters of "
            f"{config.init}: leave one of them out."
        )
    return Recipe(
        frozen=tuple(frozen),
        layers=0 if config.freeze_layers == depth else config.freeze_layers,
        adapters=_targeted(config, names.encoder_modules(paths, model.config)) if lora else {},
        rank=config.lora_rank,
        scale=(config.lora_alpha or config.lora_rank) / max(config.lora_rank, 1),
        seed=config.seed,
        transforms=tuple(transforms),
        average_decay=average,
    )


def _targeted(config: FinetuneConfig, modules: dict[str, list[str]]) -> dict[str, list[str]]:
    known = {name: f".{name.partition('{layer}.')[2]}" for name in modules}
    for target in config.lora_targets:
        if not any(name.endswith(f".{target}") for name in known.values()):
            ends = sorted({name.rpartition(".")[2] for name in known.values()})
            raise ValueError(
                f"lora_targets: {config.init} has no linear layer {target!r} in its layers. "
                f"{did_you_mean(target, ends)}Known: {', '.join(ends)}."
            )
    ends = tuple(f".{target}" for target in config.lora_targets) or ("",)
    return {name: paths for name, paths in modules.items() if known[name].endswith(ends)}
