"""The transformer layers of the encoder: a scan over layers with parameters stacked on axis 0.

The layers are those of Vaswani et al. 2017, 3.1; ALBERT repeats one layer (Lan et al. 2019, 3.1).
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.attention import CONTEXT, SelfAttention
from bertjax.model.dropout import Dropout
from bertjax.model.embeddings import layer_norm
from bertjax.model.fused_attention import NORMALIZER, OUTPUT
from bertjax.model.linear import PROJECTION, Linear


def _gelu(x: jax.Array) -> jax.Array:
    """Computes the exact GELU: x times the cumulative distribution function of N(0, 1) at x.

    The formula uses erf like PyTorch; jax.nn.gelu uses erfc, which is slower. The computation is in
    float32, because in bfloat16, 1 + erf(x) loses most of the 8 bits of precision for negative x.
    """
    y = x.astype(jnp.float32)
    return (0.5 * y * (1.0 + jax.lax.erf(y * 0.5**0.5))).astype(x.dtype)


_ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


# Rematerialisation policies. For the backward pass, a layer stores all its intermediate results
# ("none"), only the results of its linear layers and of attention ("selective", Korthikanti et al.
# 2022, 4), only the results of matrix multiplications with parameters ("dots"), or none ("full").
REMAT_POLICIES: dict[str, Any] = {
    "none": None,
    "selective": jax.checkpoint_policies.save_only_these_names(
        PROJECTION, CONTEXT, OUTPUT, NORMALIZER
    ),
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def activation(name: str, x: jax.Array) -> jax.Array:
    """Applies to x the activation function that transformers calls `name`; x has any shape."""
    return _ACTIVATIONS[name](x)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each followed by dropout, residual and LayerNorm.

    This is the encoder layer of Vaswani et al. 2017, 3.1, with the activation function and the
    dropout of BERT (Devlin et al. 2018, 3 and A.2).

    Attributes:
        config: the config of the model.
        dtype: the dtype of the activations; parameters are always float32.
        attention_kernel: the `kernel` of `SelfAttention`.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    attention_kernel: str = "xla"

    @nn.compact
    def __call__(
        self, x: jax.Array, sequence_ids: jax.Array, dropout_rows: jax.Array | None
    ) -> jax.Array:
        """Maps x [B, L, D] to [B, L, D].

        `sequence_ids` int [B, L] numbers the sequences of a row from 1; padding is 0.
        `dropout_rows` int [B] are the rows' indices in the global batch; None: no dropout.
        """
        config = self.config

        rate = config.attention_output_dropout
        rate = config.hidden_dropout_prob if rate is None else rate
        attended = SelfAttention(config, self.dtype, self.attention_kernel, name="attention")(
            x, sequence_ids, dropout_rows
        )
        attended = Dropout(rate)(attended, dropout_rows)
        x = layer_norm(config, self.dtype, "attention_layer_norm")(x + attended)
        inner = Linear(config, config.intermediate_size, self.dtype, name="intermediate")(x)
        inner = activation(config.hidden_act, inner)
        outer = Linear(config, config.hidden_size, self.dtype, name="output")(inner)
        outer = Dropout(config.hidden_dropout_prob)(outer, dropout_rows)
        return layer_norm(config, self.dtype, "output_layer_norm")(x + outer)


class Encoder(nn.Module):
    """A stack of `num_hidden_layers` transformer layers, whose parameters have shape [groups, ...].

    The module scans over groups of layers. In BERT, each layer is a group of its own. In ALBERT,
    the layers of a group share their parameters (Lan et al. 2019, 3.1), and an inner scan runs over
    the layers of a group.

    `unroll`, `remat` and `attention_kernel` do not affect the parameters, and change outputs by
    rounding errors only.

    Attributes:
        config: the config of the model.
        dtype: the dtype of the activations; parameters are always float32.
        unroll: the unroll factor of the scan: a larger factor takes longer to compile and has less
            loop overhead.
        remat: what the backward pass recomputes: nothing ("none"), element-wise operations and
            attention probabilities ("selective"), all but the results of matrix multiplications
            with parameters ("dots"), or everything ("full").
        attention_kernel: the `kernel` of `SelfAttention`.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention_kernel: str = "xla"

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
        *,
        output_hidden_states: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Applies the layers to x [B, L, D].

        `sequence_ids` int [B, L] numbers the sequences of a row from 1; padding is 0.
        `dropout_rows` int [B] are the rows' indices in the global batch; None: no dropout.

        Returns:
            The output of the last layer [B, L, D], and the outputs of all layers [layers, B, L, D]
            (None unless `output_hidden_states` is set).
        """

        def body(layer: EncoderLayer, x: jax.Array, _):
            x = layer(x, sequence_ids, dropout_rows)
            return x, x if output_hidden_states else None

        if self.remat != "none":
            # Without a loop, common subexpression elimination would undo the recomputation.
            body = nn.remat(body, prevent_cse=self.unroll > 1, policy=REMAT_POLICIES[self.remat])
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
        layer = EncoderLayer(self.config, self.dtype, self.attention_kernel, name="layers")
        x, layers = scan(layer, x, None)
        # [groups, repeats, ...] -> [layers, ...]
        return x, None if layers is None else layers.reshape(-1, *x.shape)
