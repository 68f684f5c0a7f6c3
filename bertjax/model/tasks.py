"""The encoder with each of its heads, under the names and outputs that transformers gives them.

All take rows of the batch contract. Heads of sequences answer for each sequence of a row [B, K],
heads of tokens for each token [B, L].
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.model.bert import BertModel
from bertjax.model.config import BertConfig
from bertjax.model.heads import MaskedLMHead, dense_head, take_positions

Outputs = dict[str, jax.Array]


class BertWithHead(nn.Module):
    """What the heads share: the fields of `BertModel`, and the number of classes, if any.

    By itself it is the encoder alone, with the parameter names that it has under a head.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: bool = False
    num_labels: int = 2

    needs_pooler: ClassVar[bool] = True
    frozen: ClassVar[tuple[str, ...]] = ()
    """Parts of the parameters that training leaves as they are."""

    def setup(self):
        self.bert = BertModel(
            self.config, self.dtype, self.unroll, self.remat, add_pooling_layer=self.needs_pooler
        )

    def __call__(self, *inputs: jax.Array, **options: Any) -> Outputs:
        """As `BertModel`."""
        return self.bert(*inputs, **options)

    def classifier_layer(self, features: int) -> tuple[nn.Dropout, nn.Dense]:
        """Dropout and the linear layer of a classifier, to be called in `setup`."""
        rate = self.config.classifier_dropout
        rate = self.config.hidden_dropout_prob if rate is None else rate
        return nn.Dropout(rate), dense_head(self.config, features, self.dtype)


class BertForPreTraining(BertWithHead):
    """Masked LM and next sentence prediction."""

    def setup(self):
        super().setup()
        self.predictions = MaskedLMHead(self.config, self.dtype)
        self.seq_relationship = dense_head(self.config, 2, self.dtype)

    def __call__(
        self, *inputs: jax.Array, masked_positions: jax.Array | None = None, **options: Any
    ) -> Outputs:
        """As `BertModel`; the MLM head sees `masked_positions` int [B, P] alone, if given.

        Returns:
            `BertModel`'s outputs, float32 prediction_logits [B, P, V] ([B, L, V] without masked
            positions), and float32 seq_relationship_logits [B, K, 2] (0 = next, 1 = random).
        """
        outputs = self.bert(*inputs, **options)
        x = outputs["last_hidden_state"]
        if masked_positions is not None:
            x = take_positions(x, masked_positions)
        next_sentence = self.seq_relationship(outputs["pooler_output"])
        return outputs | {
            "prediction_logits": self.predictions(x, self.bert.attend),
            "seq_relationship_logits": next_sentence.astype(jnp.float32),
        }


class BertForMaskedLM(BertWithHead):
    """Masked LM alone: logits [B, L, V], or [B, P, V] at `masked_positions`."""

    needs_pooler = False

    def setup(self):
        super().setup()
        self.predictions = MaskedLMHead(self.config, self.dtype)

    def __call__(self, *inputs: jax.Array, masked_positions=None, **options: Any) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, **options)
        x = outputs["last_hidden_state"]
        if masked_positions is not None:
            x = take_positions(x, masked_positions)
        return outputs | {"logits": self.predictions(x, self.bert.attend)}


class BertForNextSentencePrediction(BertWithHead):
    """Whether B follows A: logits [B, K, 2] (0 = next, 1 = random)."""

    def setup(self):
        super().setup()
        self.seq_relationship = dense_head(self.config, 2, self.dtype)

    def __call__(self, *inputs: jax.Array, **options: Any) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, **options)
        logits = self.seq_relationship(outputs["pooler_output"])
        return outputs | {"logits": logits.astype(jnp.float32)}


class BertForSequenceClassification(BertWithHead):
    """A class, or a number (num_labels = 1), for each sequence: logits [B, K, num_labels]."""

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(self.num_labels)

    def __call__(self, *inputs: jax.Array, deterministic: bool = True, **options: Any) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, deterministic=deterministic, **options)
        pooled = self.dropout(outputs["pooler_output"], deterministic=deterministic)
        return outputs | {"logits": self.classifier(pooled).astype(jnp.float32)}


class BertForTokenClassification(BertWithHead):
    """A class for each token: logits [B, L, num_labels]."""

    needs_pooler = False

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(self.num_labels)

    def __call__(self, *inputs: jax.Array, deterministic: bool = True, **options: Any) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, deterministic=deterministic, **options)
        x = self.dropout(outputs["last_hidden_state"], deterministic=deterministic)
        return outputs | {"logits": self.classifier(x).astype(jnp.float32)}


class BertForQuestionAnswering(BertWithHead):
    """Where the answer starts and ends: start_logits and end_logits [B, L]."""

    needs_pooler = False

    def setup(self):
        super().setup()
        self.qa_outputs = dense_head(self.config, 2, self.dtype)

    def __call__(self, *inputs: jax.Array, **options: Any) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, **options)
        logits = self.qa_outputs(outputs["last_hidden_state"]).astype(jnp.float32)
        return outputs | {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(BertWithHead):
    """A score for each choice, a sequence of its own: logits [B, K].

    The C choices of an example are C consecutive sequences; the softmax is over these.
    """

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(1)

    def __call__(self, *inputs: jax.Array, deterministic: bool = True, **options: Any) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, deterministic=deterministic, **options)
        pooled = self.dropout(outputs["pooler_output"], deterministic=deterministic)
        return outputs | {"logits": self.classifier(pooled)[..., 0].astype(jnp.float32)}


# The names of heads: all that tasks and model have to agree upon.
HEADS: dict[str, type[BertWithHead]] = {
    "encoder": BertWithHead,
    "pretraining": BertForPreTraining,
    "masked_lm": BertForMaskedLM,
    "next_sentence": BertForNextSentencePrediction,
    "sequence_classification": BertForSequenceClassification,
    "token_classification": BertForTokenClassification,
    "question_answering": BertForQuestionAnswering,
    "multiple_choice": BertForMultipleChoice,
}
