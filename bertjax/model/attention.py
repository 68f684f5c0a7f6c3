"""Multi-head self-attention within the sequences of a row."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.model.config import BertConfig
from bertjax.model.embeddings import initializer


class SelfAttention(nn.Module):
    """Every token attends to the tokens of its own sequence (Vaswani et al. 2017, 3.2).

    With `is_decoder` to itself and those before it alone.

    Sows `attention_probs` [B, N, L, L] into "intermediates" when that collection is mutable.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, sequence_ids: jax.Array, *, deterministic: bool) -> jax.Array:
        """x [B, L, D], sequence_ids int [B, L] (0 = padding) -> [B, L, D]."""
        config = self.config
        head_size = config.hidden_size // config.num_attention_heads

        def project(name: str) -> jax.Array:
            return nn.DenseGeneral(
                (config.num_attention_heads, head_size),
                dtype=self.dtype,
                kernel_init=initializer(config),
                name=name,
            )(x)  # [B, L, N, H]

        query, key, value = project("query"), project("key"), project("value")
        scores = jnp.einsum("bqnh,bknh->bnqk", query, key) * head_size**-0.5
        # Padding has id 0 and so attends to padding alone: no row of scores is without a key.
        seen = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
        if config.is_decoder:
            seen &= jnp.tri(x.shape[1], dtype=bool)[None, None]
        scores = jnp.where(seen, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min)
        probs = jax.nn.softmax(scores).astype(self.dtype)  # [B, N, L, L]
        self.sow("intermediates", "attention_probs", probs)
        probs = nn.Dropout(config.attention_probs_dropout_prob)(probs, deterministic=deterministic)
        context = jnp.einsum("bnqk,bknh->bqnh", probs, value)  # [B, L, N, H]
        return nn.DenseGeneral(
            config.hidden_size,
            axis=(-2, -1),
            dtype=self.dtype,
            kernel_init=initializer(config),
            name="output",
        )(context)
