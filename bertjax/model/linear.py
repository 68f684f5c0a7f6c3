"""Linear layers with the parameter initialisation of BERT."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.matmul import project

# The name by which rematerialisation policies know the result of a linear layer, bias included.
PROJECTION = "projection"


def initializer(config: BertConfig, stddev: float | None = None) -> jax.nn.initializers.Initializer:
    """Returns a truncated normal initializer, as in google-research/bert.

    The standard deviation of the normal distribution is `stddev` (None: `initializer_range` of the
    config), and it is truncated at `config.initializer_cutoff_factor` standard deviations.
    """
    stddev = config.initializer_range if stddev is None else stddev
    cutoff = config.initializer_cutoff_factor
    return jax.nn.initializers.truncated_normal(stddev, lower=-cutoff, upper=cutoff)


def residual_stddev(config: BertConfig) -> float | None:
    """Returns the `stddev` of linear layers whose results are added to the residual stream.

    With `pre_norm`, it is `initializer_range` / sqrt(2 * layers), so that the variance of the sum
    does not grow with the number of layers (Radford et al. 2019, 2.3); None: `initializer_range`.
    """
    if not config.pre_norm:
        return None
    return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)


class Linear(nn.Module):
    """A linear layer that contracts the last `axes` axes of its input.

    The parameters are those of Flax's `nn.DenseGeneral`: kernel `[*inputs, *features]`, bias
    `[*features]`, where `inputs` are the sizes of the contracted axes.

    Attributes:
        config: the config of the model, which has the standard deviation of the initial weights.
        features: the sizes of the axes that replace the contracted axes.
        dtype: the dtype in which the layer multiplies.
        axes: the number of contracted axes.
        use_bias: whether the layer has a bias.
        float32: whether the result is float32 and not rounded to `dtype`.
        stddev: the standard deviation of the initial weights; None: that of the config.
    """

    config: BertConfig
    features: int | tuple[int, ...]
    dtype: DTypeLike
    axes: int = 1
    use_bias: bool = True
    float32: bool = False
    stddev: float | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layer to x, `[..., *inputs] -> [..., *features]`."""
        inputs = x.shape[x.ndim - self.axes :]
        features = (self.features,) if isinstance(self.features, int) else self.features
        flat = (math.prod(inputs), math.prod(features))

        def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            return jnp.asarray(initializer(self.config, self.stddev)(key, flat, dtype)).reshape(
                shape
            )

        kernel = self.param("kernel", init, (*inputs, *features), jnp.float32)
        y = project(x.astype(self.dtype), kernel, self.axes, float32=self.float32)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, features, jnp.float32)
            y += jnp.expand_dims(bias.astype(y.dtype), range(y.ndim - bias.ndim))
        return checkpoint_name(y if self.float32 else y.astype(self.dtype), PROJECTION)
