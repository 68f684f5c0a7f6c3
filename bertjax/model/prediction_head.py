"""The first layers that all heads of ModernBERT share, and the mean of hidden states."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.embeddings import layer_norm, take_positions
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


def pooled(
    pooling: str, x: jax.Array, sequence_ids: jax.Array, sequence_starts: jax.Array
) -> jax.Array:
    """Returns one vector per sequence, [B, K, D], of hidden states x [B, L, D].

    Args:
        pooling: "cls", the hidden state at the start of the sequence, or "mean", the mean of those
            of its tokens.
        x: the hidden states.
        sequence_ids: int [B, L], which of the sequences 1..K of its row each token belongs to.
        sequence_starts: int [B, K], the positions of the starts.
    """
    if pooling == "cls":
        return take_positions(x, sequence_starts)
    numbers = jnp.arange(1, sequence_starts.shape[1] + 1)
    members = (sequence_ids[:, None, :] == numbers[None, :, None]).astype(jnp.float32)  # [B, K, L]
    total = jnp.einsum("bkl,bld->bkd", members, x.astype(jnp.float32), precision="highest")
    count = jnp.maximum(members.sum(-1, keepdims=True), 1.0)  # 0 for unused entries
    return (total / count).astype(x.dtype)
