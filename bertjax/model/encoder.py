"""The stack of transformer layers, as one scan over parameters stacked on axis 0."""

from typing import Any

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


# What the backward pass keeps of a layer besides its input: all, the products of matrices, nothing.
REMAT_POLICIES: dict[str, Any] = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def activation(name: str, x: jax.Array) -> jax.Array:
    """Applies an activation of Hugging Face's name."""
    return _ACTIVATIONS[name](x)


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

        rate = config.attention_output_dropout
        rate = config.hidden_dropout_prob if rate is None else rate
        attended = SelfAttention(config, self.dtype, name="attention")(
            x, sequence_ids, deterministic=deterministic
        )
        attended = nn.Dropout(rate, deterministic=deterministic)(attended)
        x = layer_norm(config, self.dtype, "attention_layer_norm")(x + attended)
        inner = activation(config.hidden_act, dense(config.intermediate_size, "intermediate")(x))
        outer = dense(config.hidden_size, "output")(inner)
        outer = nn.Dropout(config.hidden_dropout_prob, deterministic=deterministic)(outer)
        return layer_norm(config, self.dtype, "output_layer_norm")(x + outer)


class Encoder(nn.Module):
    """`num_hidden_layers` layers with parameters [groups, ...].

    A scan over the groups; in it, where layers share parameters, one over the layers of a group
    (Lan et al. 2019, 3.1).

    `unroll` layers are written out in each step of the scan: more to compile, less to loop over.
    `remat`, a key of `REMAT_POLICIES`, recomputes in the backward pass what it does not keep: with
    "dots" the products with parameters are kept, with "full" nothing is. Neither changes the
    parameters or the results.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"

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

        if self.remat != "none":
            body = nn.remat(body, prevent_cse=False, policy=REMAT_POLICIES[self.remat])
        groups = self.config.groups
        repeats = self.config.num_hidden_layers // groups
        if repeats > 1:
            body = nn.scan(
                body,
                variable_axes={"intermediates": 0},
                variable_broadcast="params",
                split_rngs={"params": False, "dropout": True},
                length=repeats,
                unroll=min(self.unroll, repeats),
            )
        scan = nn.scan(
            body,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            length=groups,
            unroll=min(self.unroll, groups) if repeats == 1 else 1,
        )
        x, layers = scan(EncoderLayer(self.config, self.dtype, name="layers"), x, None)
        # [groups, repeats, ...] -> [layers, ...]
        return x, None if layers is None else layers.reshape(-1, *x.shape)
