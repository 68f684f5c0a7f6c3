"""The stack of transformer layers, as one scan over parameters stacked on axis 0."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.model.attention import SelfAttention
from bertjax.model.config import BertConfig
from bertjax.model.embeddings import initializer, layer_norm

_ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activation(config: BertConfig, x: jax.Array) -> jax.Array:
    """Applies `config.hidden_act`."""
    return _ACTIVATIONS[config.hidden_act](x)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each followed by dropout, residual and LayerNorm (post-LN)."""

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, sequence_ids: jax.Array, *, deterministic: bool) -> jax.Array:
        """x [B, L, D], sequence_ids int [B, L] -> [B, L, D]."""
        config = self.config

        def dense(features: int, name: str) -> nn.Dense:
            return nn.Dense(features, dtype=self.dtype, kernel_init=initializer(config), name=name)

        dropout = nn.Dropout(config.hidden_dropout_prob, deterministic=deterministic)
        attended = SelfAttention(config, self.dtype, name="attention")(
            x, sequence_ids, deterministic=deterministic
        )
        x = layer_norm(config, self.dtype, "attention_layer_norm")(x + dropout(attended))
        inner = activation(config, dense(config.intermediate_size, "intermediate")(x))
        outer = dense(config.hidden_size, "output")(inner)
        return layer_norm(config, self.dtype, "output_layer_norm")(x + dropout(outer))


class Encoder(nn.Module):
    """`num_hidden_layers` layers with parameters [layers, ...].

    `unroll` layers are written out in each step of the scan: more to compile, less to loop over.
    `remat` recomputes each layer in the backward pass instead of keeping its activations. Neither
    changes the parameters or the results.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        *,
        deterministic: bool,
        output_hidden_states: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """x [B, L, D] -> the last layer's output [B, L, D], and all layers' [layers, B, L, D]."""

        def body(layer: EncoderLayer, x: jax.Array, _):
            x = layer(x, sequence_ids, deterministic=deterministic)
            return x, x if output_hidden_states else None

        if self.remat:
            body = nn.remat(body, prevent_cse=False)
        scan = nn.scan(
            body,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            length=self.config.num_hidden_layers,
            unroll=min(self.unroll, self.config.num_hidden_layers),
        )
        return scan(EncoderLayer(self.config, self.dtype, name="layers"), x, None)
