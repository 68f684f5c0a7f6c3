"""The first layer: words, positions and token types, added and normalised (Devlin et al. 2018)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.model.config import BertConfig


def initializer(config: BertConfig) -> jax.nn.initializers.Initializer:
    """Normal of scale `initializer_range`, cut at 2 sigma, as google-research/bert draws it."""
    return jax.nn.initializers.truncated_normal(config.initializer_range)


def layer_norm(config: BertConfig, dtype: DTypeLike, name: str | None = None) -> nn.LayerNorm:
    """LayerNorm with the eps of the config; flax's default of 1e-6 is not BERT's."""
    return nn.LayerNorm(epsilon=config.layer_norm_eps, dtype=dtype, name=name)


class Embeddings(nn.Module):
    """Sum of word, position and token type embeddings, then LayerNorm and dropout."""

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        config = self.config

        def table(rows: int) -> nn.Embed:
            return nn.Embed(
                rows, config.hidden_size, dtype=self.dtype, embedding_init=initializer(config)
            )

        self.word_embeddings = table(config.vocab_size)
        self.position_embeddings = table(config.max_position_embeddings)
        self.token_type_embeddings = table(config.type_vocab_size)
        self.layer_norm = layer_norm(config, self.dtype)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Three int arrays [B, L] -> [B, L, D]."""
        x = (
            self.word_embeddings(input_ids)
            + self.position_embeddings(position_ids)
            + self.token_type_embeddings(token_type_ids)
        )
        return self.dropout(self.layer_norm(x), deterministic=deterministic)

    def attend(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> its product with every word embedding [..., V]: the tied output layer."""
        return self.word_embeddings.attend(x)
