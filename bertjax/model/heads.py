"""What stands on the encoder: the pooler and the two heads of pretraining."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.embeddings import layer_norm
from bertjax.model.encoder import activation
from bertjax.model.linear import Linear


class MaskedLMHead(nn.Module):
    """Dense, activation, LayerNorm, then a score for every word (Devlin et al. 2018, 3.1).

    The output matrix is the word embedding (`attend`) unless `tie_word_embeddings` is false.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, attend) -> jax.Array:
        """x [..., D] -> float32 logits [..., V]; `attend` maps [..., E] to [..., V]."""
        config = self.config
        width = config.embedding_size or config.hidden_size
        x = Linear(config, width, self.dtype, name="transform")(x)
        x = activation(config.mlm_activation or config.hidden_act, x)
        x = layer_norm(config, self.dtype, "layer_norm")(x)
        if not config.tie_word_embeddings:
            attend = Linear(config, config.vocab_size, self.dtype, use_bias=False, name="decoder")
        bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,))
        logits = attend(x).astype(jnp.float32)
        return logits + jnp.expand_dims(bias, tuple(range(logits.ndim - 1)))


def take_positions(x: jax.Array, positions: jax.Array) -> jax.Array:
    """x [B, L, D], positions int [B, P] -> x at these positions [B, P, D]."""
    return jnp.take_along_axis(x, positions[:, :, None], axis=1)
