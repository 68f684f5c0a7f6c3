"""The heads of pretraining: masked language modelling and next sentence prediction.

They are those of Devlin et al. 2018, 3.1, with the names of transformers.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model import losses
from bertjax.model.base_head import BertWithHead, Outputs, Rows, TokenHead
from bertjax.model.embeddings import layer_norm, take_positions
from bertjax.model.encoder import activation
from bertjax.model.linear import Linear, residual_stddev


class MaskedLMHead(nn.Module):
    """Dense layer, activation, LayerNorm and logits over the vocabulary (Devlin et al. 2018, 3.1).

    If `tie_word_embeddings` is set, the output matrix is the word embedding matrix. In models with
    a prediction head (`PredictionHead`), that replaces the layers before the output matrix.

    Attributes:
        config: the config of the model.
        dtype: the dtype of the activations; parameters are always float32.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, attend) -> jax.Array:
        """Computes float32 logits [..., V] from hidden states x [..., D].

        `attend` is a function from vectors [..., embedding size] to float32 [..., V], which
        multiplies by the word embedding matrix; it is unused if `tie_word_embeddings` is False.
        """
        config = self.config
        if not config.prediction_head:
            width = config.embedding_size or config.hidden_size
            x = Linear(config, width, self.dtype, name="transform")(x)
            x = activation(config.mlm_activation or config.hidden_act, x)
            x = layer_norm(config, self.dtype, "layer_norm")(x)
        if not config.tie_word_embeddings:
            options = {"use_bias": False, "float32": True, "stddev": residual_stddev(config)}
            options["name"] = "decoder"
            attend = Linear(config, config.vocab_size, self.dtype, **options)
        if not config.decoder_bias:
            return attend(x)
        bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,))
        logits = attend(x)
        return logits + jnp.expand_dims(bias, tuple(range(logits.ndim - 1)))


def _states_to_predict(encoded: Outputs, rows: Rows) -> jax.Array:
    """Returns the last hidden states at the P `rows.masked_positions` of each row, [B, P, D].

    If `rows.masked_positions` is None, those of all tokens, [B, L, D], are returned.
    """
    x = encoded["last_hidden_state"]
    return x if rows.masked_positions is None else take_positions(x, rows.masked_positions)


class BertForPreTraining(BertWithHead):
    """A model with the heads for masked language modelling and next sentence prediction.

    The heads are those of Devlin et al. 2018, 3.1, and the outputs are named as in transformers.
    """

    class_suffix = "ForPreTraining"
    parts = ("predictions", "seq_relationship")
    outputs = ("prediction_logits", "seq_relationship_logits")
    sequence_outputs = ("seq_relationship_logits",)
    objectives = {"pretraining": losses.PRETRAINING}

    def setup(self):
        super().setup()
        self.predictions = MaskedLMHead(self.config, self.dtype)
        self.seq_relationship = Linear(self.config, 2, self.dtype)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns prediction_logits [B, P, V] and seq_relationship_logits [B, K, 2].

        These are the logits of the P masked positions and of the K sequences of each row, computed
        from the hidden states in `encoded`. If `rows.masked_positions` is None, prediction_logits
        are [B, L, V], for all tokens. Class 0 of seq_relationship_logits means that the second
        segment follows the first.
        """
        x = _states_to_predict(encoded, rows)
        next_sentence = self.seq_relationship(encoded["pooler_output"])
        return {
            "prediction_logits": self.predictions(x, self.bert.attend),
            "seq_relationship_logits": next_sentence.astype(jnp.float32),
        }


class BertForMaskedLM(TokenHead):
    """A model with the head for masked language modelling (Devlin et al. 2018, 3.1)."""

    class_suffix = "ForMaskedLM"
    parts = ("predictions", "head")
    outputs = ("logits",)
    objectives = {"pretraining": losses.MASKED_LM}

    @property
    def present_parts(self) -> set[str]:
        """The head's parameter keys; "predictions" may have no parameters."""
        empty = self.config.prediction_head and not self.config.decoder_bias
        return super().present_parts - (
            {"predictions"} if empty and self.config.tie_word_embeddings else set()
        )

    def setup(self):
        super().setup()
        self.predictions = MaskedLMHead(self.config, self.dtype)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, P, V] at `rows.masked_positions` (None: at all tokens, [B, L, V]).

        The logits are computed from the hidden states in `encoded`.
        """
        x = _states_to_predict(encoded, rows)
        x = self.head(x) if self.config.prediction_head else x
        return {"logits": self.predictions(x, self.bert.attend)}


class BertForNextSentencePrediction(BertWithHead):
    """Predicts whether the second segment follows the first (Devlin et al. 2018, 3.1)."""

    class_suffix = "ForNextSentencePrediction"
    parts = ("seq_relationship",)
    outputs = sequence_outputs = ("logits",)

    def setup(self):
        super().setup()
        self.seq_relationship = Linear(self.config, 2, self.dtype)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, K, 2] for the K sequences of each row.

        Class 0: the second segment follows the first in the text; class 1: it is a random segment.
        """
        logits = self.seq_relationship(encoded["pooler_output"])
        return {"logits": logits.astype(jnp.float32)}


PRETRAINING_HEADS: dict[str, type[BertWithHead]] = {
    "pretraining": BertForPreTraining,
    "masked_lm": BertForMaskedLM,
    "next_sentence": BertForNextSentencePrediction,
}
