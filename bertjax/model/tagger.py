"""A tagger on the hidden states of a frozen encoder: the feature-based approach to BERT.

A two-layer BiLSTM, which is optional, reads the hidden states of one or several layers, and a
linear classifier reads the outputs of the BiLSTM. Only the BiLSTM and the classifier are trained
(Devlin et al. 2018, 5.3 and table 7).
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import TaggerConfig
from bertjax.model import losses
from bertjax.model.base_head import BertWithHead, Outputs, Rows
from bertjax.model.recipe import FixedEncoder

LSTM_LAYERS = 2


class Lstm(nn.Module):
    """One direction of an LSTM layer with `size` units (Hochreiter & Schmidhuber 1997).

    The LSTM state is reset at the start of every sequence of a row. The gates, the order of the
    gates in the parameters and the initialisation are as in `torch.nn.LSTM`. With `reverse`, the
    tokens are read from the last to the first.
    """

    size: int
    reverse: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """Applies the LSTM to x [B, L, D] -> [B, L, size]; `sequence_ids` int [B, L]."""
        bound = self.size**-0.5

        def dense(name: str) -> nn.Dense:
            def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
                return jax.random.uniform(key, shape, dtype, -bound, bound)

            return nn.Dense(
                4 * self.size, dtype=self.dtype, kernel_init=init, bias_init=init, name=name
            )

        def step(recurrent: nn.Dense, carry: tuple[jax.Array, jax.Array], inputs: Any):
            gates, begins = inputs
            h, c = (jnp.where(begins[:, None], 0.0, state) for state in carry)
            # The cell state is a long sum, so it is float32 even in bfloat16 runs.
            gates = (gates + recurrent(h)).astype(jnp.float32)
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = (nn.sigmoid(o) * jnp.tanh(c)).astype(x.dtype)
            return (h, c), h

        scan = nn.scan(
            step,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
            reverse=self.reverse,
        )
        # The inputs' contribution to the gates needs no state, so one matrix multiplication outside
        # the loop computes it for all tokens.
        gates = dense("input")(x)  # [B, L, 4 size]
        # Where `roll` wraps around, at an end of the row, the state is zero in any case.
        begins = sequence_ids != jnp.roll(sequence_ids, -1 if self.reverse else 1, axis=1)
        h = jnp.zeros((x.shape[0], self.size), x.dtype)
        _, states = scan(dense("recurrent"), (h, h.astype(jnp.float32)), (gates, begins))
        return states


class BiLstm(nn.Module):
    """Two stacked bidirectional LSTM layers of `size` units (Devlin et al. 2018, 5.3).

    The outputs of the two directions are concatenated.
    """

    size: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """Applies the layers to x [B, L, D] -> [B, L, 2 size]; `sequence_ids` int [B, L]."""
        for layer in range(LSTM_LAYERS):
            forward = Lstm(self.size, False, self.dtype, name=f"l{layer}")
            backward = Lstm(self.size, True, self.dtype, name=f"l{layer}_reverse")
            outputs = [forward(x, sequence_ids), backward(x, sequence_ids)]
            x = jnp.concatenate(outputs, axis=-1)
        return x


class FeatureTagger(BertWithHead):
    """Predicts the class of each token from hidden states of the frozen encoder.

    The hidden states of `tagger.layers` (0: embeddings, -1: last layer) are concatenated or, if
    `tagger.join` is "sum", added up. The encoder keeps its pooler, whose output the tagger does not
    read, so that the pooler's parameters are saved with the encoder.
    """

    tagger: TaggerConfig = TaggerConfig(layers=(-1,))

    parts = ("lstm", "classifier")
    class_part = "classifier"
    outputs = ("logits",)
    objectives = {"tokens": losses.CLASSES}
    encoder_has_dropout = False

    @property
    def recipe(self) -> FixedEncoder:
        return FixedEncoder()

    @property
    def reads_hidden_states(self) -> bool:
        return True

    @property
    def present_parts(self) -> set[str]:
        if self.tagger.kind == "bilstm":
            return {"classifier", "lstm"}
        return {"classifier"}

    def setup(self):
        super().setup()
        if self.tagger.kind == "bilstm":
            self.lstm = BiLstm(self.tagger.size, self.dtype)
        self.dropout, self.classifier = self.classifier_layer(self.num_labels)

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        states = encoded["hidden_states"]  # [layers + 1, B, L, D]
        chosen = [states[layer] for layer in self.tagger.layers]
        x = sum(chosen[1:], chosen[0])
        if self.tagger.join == "concat":
            x = jnp.concatenate(chosen, axis=-1)
        if self.tagger.kind == "bilstm":
            x = self.lstm(x, rows.sequence_ids)
        x = self.dropout(x, rows.dropout_rows)
        return {"logits": self.classifier(x).astype(jnp.float32)}
