"""The BERT encoder: embeddings, transformer layers and pooler (Devlin et al. 2018)."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.embeddings import Embeddings, take_positions
from bertjax.model.encoder import Encoder, PreNormEncoder
from bertjax.model.linear import Linear

# Keys of the batch arrays that `BertModel` takes, in the order of its arguments.
MODEL_INPUTS = (
    "input_ids",
    "token_type_ids",
    "position_ids",
    "sequence_ids",
    "sequence_starts",
)


def default_inputs(
    config: BertConfig,
    input_ids: jax.Array,
    attention_mask: jax.Array | None,
    inputs: Sequence[jax.Array | None],
) -> list[jax.Array]:
    """Replaces inputs of `BertModel` that are None by defaults for rows of one sequence each.

    `inputs` are token_type_ids, position_ids, sequence_ids and sequence_starts. `attention_mask` is
    int [B, L], 1 for tokens and 0 for padding; None: there is no padding. With a `position_offset`
    (RoBERTa), positions count only tokens other than the padding token, wherever that stands, and
    the padding token has the position before the first, as in transformers.
    """
    rows, length = input_ids.shape
    token_types, positions, sequences, starts = inputs
    if token_types is None:
        token_types = jnp.zeros_like(input_ids)
    if positions is None and config.position_offset:
        others = input_ids != config.pad_token_id
        positions = jnp.where(others, jnp.cumsum(others, axis=1), 0) - 1
    elif positions is None:
        positions = jnp.broadcast_to(jnp.arange(length), (rows, length))
    if sequences is None:
        mask = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        sequences = (mask > 0).astype(jnp.int32)
    if starts is None:
        starts = jnp.zeros((rows, 1), jnp.int32)
    return [token_types, positions, sequences, starts]


class BertModel(nn.Module):
    """The BERT encoder: embeddings, transformer layers and pooler (Devlin et al. 2018, 3).

    `unroll`, `remat` and `attention_kernel` are described at `Encoder` and `SelfAttention`. There
    is a pooler if `add_pooling_layer` is True here and in the config. `dtype` is the dtype of the
    activations; parameters are always float32.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention_kernel: str = "xla"
    add_pooling_layer: bool = True

    @property
    def has_pooler(self) -> bool:
        """Whether the model has a pooler."""
        return self.add_pooling_layer and self.config.add_pooling_layer

    def setup(self):
        self.embeddings = Embeddings(self.config, self.dtype)
        encoder = Encoder
        if self.config.pre_norm:
            encoder = PreNormEncoder
        if not self.config.is_static:
            self.encoder = encoder(
                self.config, self.dtype, self.unroll, self.remat, self.attention_kernel
            )
        if self.has_pooler:
            self.pooler = Linear(self.config, self.config.hidden_size, self.dtype)
        if self.config.contact_head:
            self.contact_head = Linear(self.config, 1, self.dtype)

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
        """Encodes a batch whose rows hold one or several sequences.

        `input_ids` are the token ids, int [B, L]; the other arrays are as in `base_head.Rows`.

        Returns a dict of "last_hidden_state" [B, L, D]; "pooler_output" [B, K, D] if there is a
        pooler; and, if `output_hidden_states` is set, "hidden_states" [layers + 1, B, L, D], the
        embeddings and the outputs of the layers.
        """
        embedded = self.embeddings(
            input_ids, token_type_ids, position_ids, sequence_ids, dropout_rows
        )
        if self.config.is_static:
            return {"last_hidden_state": embedded, "hidden_states": embedded[None]}
        x, layers = self.encoder(
            embedded,
            sequence_ids,
            dropout_rows,
            position_ids,
            output_hidden_states=output_hidden_states,
        )
        outputs = {"last_hidden_state": x}
        if self.config.contact_head and self.is_initializing():
            heads = self.config.num_hidden_layers * self.config.num_attention_heads
            self.contact_head(jnp.zeros((1, heads)))  # which `contacts_of` applies
        if self.has_pooler:
            firsts = take_positions(x, sequence_starts)
            outputs["pooler_output"] = jnp.tanh(self.pooler(firsts))
        if layers is not None:
            outputs["hidden_states"] = jnp.concatenate([embedded[None], layers])
        return outputs

    def decode_masked(
        self,
        x: jax.Array,
        position_ids: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
    ) -> jax.Array:
        """Applies the enhanced mask decoder (He et al. 2020, 3.2) to x [B, L, D].

        x are the inputs of the last layer, to which positions are added in the queries.
        """
        queries = x + self.embeddings.positions(position_ids).astype(x.dtype)
        return self.encoder.decode(x, queries, sequence_ids, dropout_rows)

    @property
    def word_embeddings(self) -> jax.Array:
        """The word embedding matrix, [V, embedding size]."""
        return self.embeddings.word_embeddings.embedding

    def attend(self, x: jax.Array) -> jax.Array:
        """Computes dot products of x [..., size] with all words, as `Embeddings.attend`."""
        return self.embeddings.attend(x)
