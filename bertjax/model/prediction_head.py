"""The first layers that all heads of ModernBERT share."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.embeddings import layer_norm
from bertjax.model.encoder import activation
from bertjax.model.linear import Linear, residual_stddev


class PredictionHead(nn.Module):
    """Dense layer, the activation `classifier_activation` and LayerNorm, [..., D] -> [..., D].

    Fine-tuning begins with that of the masked LM, as in transformers.

    Attributes:
        config: the config of the model.
        dtype: the dtype of the activations; parameters are always float32.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps hidden states x [..., D] to [..., D]."""
        config = self.config
        options = {"use_bias": config.classifier_bias, "stddev": residual_stddev(config)}
        x = Linear(config, config.hidden_size, self.dtype, **options, name="dense")(x)
        x = activation(str(config.classifier_activation), x)
        return layer_norm(config, self.dtype, "norm")(x)
