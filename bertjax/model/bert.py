"""The encoder as a whole: embeddings, layers, pooler (Devlin et al. 2018)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.embeddings import Embeddings
from bertjax.model.encoder import Encoder
from bertjax.model.heads import take_positions
from bertjax.model.linear import Linear

# Keys of a batch, in the order in which `BertModel` takes them.
MODEL_INPUTS = (
    "input_ids",
    "token_type_ids",
    "position_ids",
    "sequence_ids",
    "sequence_starts",
)


class BertModel(nn.Module):
    """Embeddings, encoder and pooler.

    `dtype` is what activations are computed in; parameters are float32 in any case. `unroll`,
    `remat` and `attention_kernel` are those of `Encoder`. Heads that look at tokens alone go
    without the pooler.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention_kernel: str = "xla"
    add_pooling_layer: bool = True

    @property
    def has_pooler(self) -> bool:
        """Whether there is one: the head wants it, and the family has it."""
        return self.add_pooling_layer and self.config.add_pooling_layer

    def setup(self):
        self.embeddings = Embeddings(self.config, self.dtype)
        self.encoder = Encoder(
            self.config, self.dtype, self.unroll, self.remat, self.attention_kernel
        )
        if self.has_pooler:
            self.pooler = Linear(self.config, self.config.hidden_size, self.dtype)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array,
        sequence_ids: jax.Array,
        sequence_starts: jax.Array,
        *,
        dropout_rows: jax.Array | None = None,
        output_hidden_states: bool = False,
    ) -> dict[str, jax.Array]:
        """Encodes rows of one or several sequences.

        Args:
            input_ids, token_type_ids, position_ids: int [B, L].
            sequence_ids: int [B, L], 0 = padding, 1..K = which sequence of the row.
            sequence_starts: int [B, K], where each sequence's [CLS] stands.
            dropout_rows: int [B], numbers of the rows, which with an rng named "dropout" say what
                is dropped; None: without dropout.
            output_hidden_states: also return all layers.

        Returns:
            last_hidden_state [B, L, D], pooler_output [B, K, D] if there is a pooler, and on
            demand hidden_states [layers + 1, B, L, D], the embeddings first.
        """
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, dropout_rows)
        x, layers = self.encoder(
            embedded,
            sequence_ids,
            dropout_rows,
            output_hidden_states=output_hidden_states,
        )
        outputs = {"last_hidden_state": x}
        if self.has_pooler:
            outputs["pooler_output"] = jnp.tanh(self.pooler(take_positions(x, sequence_starts)))
        if layers is not None:
            outputs["hidden_states"] = jnp.concatenate([embedded[None], layers])
        return outputs

    def attend(self, x: jax.Array) -> jax.Array:
        """x [..., E] -> its product with every word embedding [..., V]."""
        return self.embeddings.attend(x)
