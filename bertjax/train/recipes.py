"""Recipes of fine-tuning: frozen layers and LoRA's adapters.

Of a stacked parameter whose lowest layers are frozen, trained and fixed parameters hold their
layers each. LoRA (Hu et al. 2021) freezes the encoder; matrices "lora_a" [layers, in, rank] and
"lora_b" [layers, rank, out] stand in place of the kernels of its linear layers, and the loss is
that of the model with the kernels W + lora_alpha / rank * A B. ModernBERT's query, key and value
share A, because they are one layer there.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base.files import did_you_mean
from bertjax.config import FinetuneConfig, LoraConfig
from bertjax.model import BertWithHead
from bertjax.model.recipe import Params, Recipe, flattened, nested
from bertjax.weights import names
from bertjax.weights.families import family_of
from bertjax.weights.fill import param_shapes

# The only top-level key of the fixed parameters, under which checkpoints hold them.
FROZEN = "frozen"
LAYERS = "bert/encoder/layers/"


@dataclasses.dataclass(frozen=True)
class Freezing(Recipe):
    """Fixes parameters whose paths begin with one of `prefixes`, and the lowest `layers` layers."""

    prefixes: tuple[str, ...]
    layers: int = 0

    def split(self, params: Params, *, is_new: bool = False) -> tuple[Params, Params]:
        trained, fixed = self._split(params)
        return nested(trained), {FROZEN: nested(fixed)}

    def _split(self, params: Params) -> tuple[dict[str, Any], dict[str, Any]]:
        trained = {}
        fixed = {}
        for path, value in flattened(params).items():
            if path.startswith(self.prefixes):
                fixed[path] = value
            elif self.layers and path.startswith(LAYERS):
                fixed[path], trained[path] = value[: self.layers], value[self.layers :]
            else:
                trained[path] = value
        return trained, fixed

    def join(self, params: Params, fixed: Params) -> Params:
        return nested(self._join(params, fixed))

    def _join(self, params: Params, fixed: Params) -> dict[str, Any]:
        joined = flattened(fixed[FROZEN])
        for path, value in flattened(params).items():
            if path in joined:
                value = jnp.concatenate([joined[path], value])
            joined[path] = value
        return joined


@dataclasses.dataclass(frozen=True)
class Lora(Freezing):
    """Fixes the encoder, and trains adapters of the given rank, scaled by `scale`, in its layers.

    `adapters` are {PyTorch name of a linear layer: paths of the kernels that share its adapter};
    new ones are drawn from `seed`.
    """

    adapters: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
    rank: int = 0
    scale: float = 1.0
    seed: int = 0

    def split(self, params: Params, *, is_new: bool = False) -> tuple[Params, Params]:
        """Converts parameters of the model, with new adapters, which change nothing at first."""
        trained, fixed = self._split(params)
        # The default of torch.nn.Linear, as in PEFT: uniform, at most 1 / sqrt(in).
        draw = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", batch_axis=0)
        for index, paths in enumerate(self.adapters.values()):
            a, b = _sides(paths)
            kernel = fixed[paths[0]]
            layers, inputs = kernel.shape[:2]
            # The kernel of attention's output has an axis of heads.
            if "attention/output/" in a:
                inputs *= kernel.shape[2]
            outputs = len(paths) * kernel.size // (layers * inputs)
            key = jax.random.fold_in(jax.random.key(self.seed), index)
            trained[a] = draw(key, (layers, inputs, self.rank), jnp.float32)
            trained[b] = jnp.zeros((layers, self.rank, outputs), jnp.float32)
        return nested(trained), {FROZEN: nested(fixed)}

    def join(self, params: Params, fixed: Params) -> Params:
        joined = self._join(params, fixed)
        for paths in self.adapters.values():
            a, b = _sides(paths)
            delta = self.scale * jnp.matmul(joined.pop(a), joined.pop(b), precision="highest")
            for path, part in zip(paths, jnp.split(delta, len(paths), -1), strict=True):
                joined[path] += part.reshape(joined[path].shape)
        return nested(joined)

    def matrices(self, trained: Params) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns {PyTorch name: A and B} of the adapters in trained parameters."""
        flat = flattened(trained)
        matrices = {}
        for name, paths in self.adapters.items():
            a, b = _sides(paths)
            matrices[name] = flat[a], flat[b]
        return matrices


def _sides(paths: list[str]) -> tuple[str, str]:
    """Returns the paths of the matrices A and B of the adapter of kernels."""
    module = paths[0].removesuffix("kernel")
    return f"{module}lora_a", f"{module}lora_b"


def make_recipe(config: FinetuneConfig, model: BertWithHead) -> Recipe:
    """Returns the recipe of a run that fine-tunes `model`."""
    depth = model.config.num_hidden_layers
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
    if config.lora is not None:
        return _lora(config.lora, config, model)
    prefixes = [*model.fixed_parts]
    layers = config.freeze_layers
    if config.freeze_embeddings:
        prefixes.append("bert/embeddings/")
    if layers == depth:
        prefixes.append("bert/encoder/")
        layers = 0
    if not prefixes and not layers:
        return model.recipe
    prefixes = _with_idle_pooler(prefixes, model)
    if all(path.startswith(prefixes) for path in param_shapes(model)):
        raise ValueError(
            f"--freeze_embeddings and --freeze_layers {depth} freeze all parameters of "
            f"{config.init}: leave one of them out."
        )
    return Freezing(prefixes, layers)


def _lora(lora: LoraConfig, config: FinetuneConfig, model: BertWithHead) -> Lora:
    modules = names.encoder_modules(param_shapes(model), model.config)
    family = family_of(model.config)
    if lora.export == "adapter" and not family.modules_in_files:
        raise ValueError(
            f"--lora.export=adapter: the layers of transformers' {family.class_name} have other "
            "names than the tensors in its files, so that PEFT would not find them: use "
            "--lora.export merged."
        )
    return Lora(
        _with_idle_pooler(["bert/embeddings/", "bert/encoder/", *model.fixed_parts], model),
        adapters=_targeted(lora.targets, config.init, modules),
        rank=lora.rank,
        scale=(lora.alpha or lora.rank) / lora.rank,
        seed=config.seed,
    )


def _with_idle_pooler(prefixes: list[str], model: BertWithHead) -> tuple[str, ...]:
    """Adds the pooler if parameters are frozen and nothing reads it, as there is no head."""
    if prefixes and not model.present_parts:
        prefixes = [*prefixes, "bert/pooler/"]
    return tuple(prefixes)


def _targeted(
    targets: Sequence[str], init: str, modules: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Returns those of `modules` whose names in a layer end with a target; without targets, all."""
    endings = tuple(f".{target}" for target in targets)
    for target in targets:
        if not any(name.endswith(f".{target}") for name in modules):
            last = sorted({name.rpartition(".")[2] for name in modules})
            raise ValueError(
                f"--lora.targets: {init} has no linear layer {target!r} in its layers. "
                f"{did_you_mean(target, last)}Known: {', '.join(last)}."
            )
    return {n: paths for n, paths in modules.items() if not targets or n.endswith(endings)}
