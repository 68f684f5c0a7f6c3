"""The embedding layer of words, positions and token types (Devlin et al. 2018, 3)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.dropout import Dropout, rate_of
from bertjax.model.linear import Linear, initializer, project


def layer_norm(
    config: BertConfig, dtype: DTypeLike, name: str | None = None, use_bias: bool | None = None
) -> nn.LayerNorm | nn.RMSNorm:
    """Returns a LayerNorm or RMSNorm with the epsilon and the bias that the config says.

    `use_bias` is whether it has a bias; None: as `norm_bias` says.
    """
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(epsilon=config.layer_norm_eps, dtype=dtype, name=name)
    if use_bias is None:
        use_bias = config.norm_bias
    return nn.LayerNorm(epsilon=config.layer_norm_eps, dtype=dtype, use_bias=use_bias, name=name)


def sinusoids(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> Any:
    """Computes sinusoidal position embeddings (Vaswani et al. 2017, 3.5), as an initializer of jax.

    `shape` is (number of positions, embedding size). Even columns are sines, odd ones cosines.
    """
    del key, out_sharding
    rows, columns = shape
    column = jnp.arange(columns)
    rates = 10_000.0 ** (-2 * (column // 2) / columns)
    angles = jnp.arange(rows)[:, None] * rates[None]
    is_even = column[None] % 2 == 0
    values = jnp.where(is_even, jnp.sin(angles), jnp.cos(angles))
    return values.astype(dtype)


# The share of masked tokens in ESM's training: 80 % of 15 %, which are predicted.
_MASKED_IN_TRAINING = 0.15 * 0.8


def _scale_of_unmasked(is_masked: jax.Array, sequence_ids: jax.Array) -> jax.Array:
    """Returns the factor of the embeddings of each token, float32 [B, L], for `token_dropout`.

    It is the share of unmasked tokens in training over the share in the token's sequence.
    `is_masked` is bool [B, L], and `sequence_ids` int [B, L].
    """
    sequences = sequence_ids.shape[1] + 1
    sums = jax.vmap(lambda x, ids: jax.ops.segment_sum(x, ids, num_segments=sequences))
    masked = sums(is_masked.astype(jnp.float32), sequence_ids)
    lengths = sums(jnp.ones(sequence_ids.shape, jnp.float32), sequence_ids)
    shares = masked / jnp.maximum(lengths, 1.0)
    of_token = jnp.take_along_axis(shares, sequence_ids, axis=1)
    return (1.0 - _MASKED_IN_TRAINING) / (1.0 - of_token)


def take_positions(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Gathers the vectors [B, P, D] of x [B, L, D] at the token positions int [B, P]."""
    return jnp.take_along_axis(x, positions[:, :, None], axis=1)


class Embeddings(nn.Module):
    """Sum of word, position and token type embeddings, followed by LayerNorm and dropout.

    Without `embedding_norm`, there is no LayerNorm. Models with rotary positions
    (`global_rope_theta`) have no position embeddings here. If `embedding_size` is set, a dense
    layer maps to `hidden_size` (Lan et al. 2019, 3.1); with `embed_proj`, before the LayerNorm.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        config = self.config

        def table(rows: int, init: jax.nn.initializers.Initializer) -> nn.Embed:
            # The table is float32 even in bfloat16 runs: the gradient of an embedding is a sum over
            # all its tokens, and a large bfloat16 sum loses the small terms that are added to it.
            return nn.Embed(rows, config.embedding_width, embedding_init=init)

        init = initializer(config)
        self.word_embeddings = table(config.vocab_size, init)
        if self.has_positions:
            init_positions = init
            if config.sinusoidal_pos_embds:
                init_positions = sinusoids
            self.position_embeddings = table(config.max_position_embeddings, init_positions)
        if config.type_vocab_size:
            self.token_type_embeddings = table(config.type_vocab_size, init)
        if config.task_type_vocab_size:
            self.task_type_embeddings = table(config.task_type_vocab_size, init)
        if config.embedding_size:
            bias = not config.embed_proj
            self.projection = Linear(config, config.hidden_size, self.dtype, use_bias=bias)
        if config.is_static:
            return
        if config.embedding_norm:
            self.layer_norm = layer_norm(config, self.dtype)
        self.dropout = Dropout(rate_of(config.embedding_dropout, config.hidden_dropout_prob))

    @property
    def has_positions(self) -> bool:
        """Whether there is a table of positions, which perhaps the mask decoder alone adds."""
        config = self.config
        is_used = config.position_biased_input or config.enhanced_mask_decoder
        return config.global_rope_theta is None and is_used

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
    ) -> jax.Array:
        """Computes the embeddings [B, L, D] of tokens int [B, L], see `BertModel.__call__`."""
        config = self.config
        x = self.word_embeddings(input_ids)
        if config.is_static:
            return x
        if config.token_dropout:
            is_masked = input_ids == config.mask_token_id
            scale = _scale_of_unmasked(is_masked, sequence_ids)
            x *= jnp.where(is_masked, 0.0, scale)[:, :, None]
        if config.global_rope_theta is None and config.position_biased_input:
            x += self.positions(position_ids)
        if config.type_vocab_size:
            # A model with one token type uses it for every token, whatever the tokenizer returns.
            last = config.type_vocab_size - 1
            x += self.token_type_embeddings(jnp.minimum(token_type_ids, last))
        if config.task_type_vocab_size:
            x += self.task_type_embeddings(jnp.zeros_like(input_ids))
        if config.embedding_size and config.embed_proj:
            x = self.projection(x)
        if config.embedding_norm:
            x = self.layer_norm(x)
        else:
            x = x.astype(self.dtype)
        x = self.dropout(x, dropout_rows)
        if config.embedding_size and not config.embed_proj:
            x = self.projection(x)
        return x

    def positions(self, position_ids: jax.Array) -> jax.Array:
        """Returns the embeddings [B, L, embedding size] of positions int [B, L], counted from 0."""
        return self.position_embeddings(position_ids + self.config.position_offset)

    def attend(self, x: jax.Array) -> jax.Array:
        """Computes the dot products of x [..., embedding size] with all words, float32 [..., V].

        Apart from the bias, they are the logits of a masked LM head with a tied output matrix.
        """
        x = x.astype(self.dtype)
        return project(x, self.word_embeddings.embedding, transposed=True, float32=True)
