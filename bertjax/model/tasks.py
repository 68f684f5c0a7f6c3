"""The encoder with each of its heads, under the names and outputs that transformers gives them.

All take rows of the batch contract. Heads of sequences answer for each sequence of a row [B, K],
heads of tokens for each token [B, L].
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.bert import BertModel
from bertjax.model.dropout import Dropout
from bertjax.model.encoder import activation
from bertjax.model.heads import MaskedLMHead, take_positions
from bertjax.model.linear import Linear

Outputs = dict[str, jax.Array]


class BertWithHead(nn.Module):
    """What the heads share: the fields of `BertModel`, and the number of classes, if any.

    By itself it is the encoder alone, with the parameter names that it has under a head.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention_kernel: str = "xla"
    num_labels: int = 2

    frozen: ClassVar[tuple[str, ...]] = ()
    """Parts of the parameters that training leaves as they are."""

    @property
    def needs_pooler(self) -> bool:
        """Whether the head looks at the pooler's output."""
        return True

    def setup(self):
        self.bert = BertModel(
            self.config,
            self.dtype,
            self.unroll,
            self.remat,
            self.attention_kernel,
            add_pooling_layer=self.needs_pooler,
        )

    def __call__(self, *inputs: jax.Array, **options: Any) -> Outputs:
        """As `BertModel`."""
        return self.bert(*inputs, **options)

    def classifier_layer(
        self, features: int, own_rate: float | None = None
    ) -> tuple[Dropout, Linear]:
        """Dropout and the linear layer of a classifier, to be called in `setup`."""
        rates = (own_rate, self.config.classifier_dropout, self.config.hidden_dropout_prob)
        rate = next(rate for rate in rates if rate is not None)
        return Dropout(rate), Linear(self.config, features, self.dtype)


class _TokenHead(BertWithHead):
    """A head that looks at tokens alone."""

    @property
    def needs_pooler(self) -> bool:
        """No."""
        return False


class _SequenceClassifier(BertWithHead):
    """Logits [B, K, features] on the pooler's output, or on a dense layer of the head's own."""

    prefers_pooler: ClassVar[bool] = False
    """Whether it takes the pooler also where the family's classifiers have that dense layer."""

    @property
    def needs_pooler(self) -> bool:
        """Whether the pooler is what is classified."""
        own = self.config.classifier_activation is not None
        return not own or (self.prefers_pooler and self.config.add_pooling_layer)

    @property
    def features(self) -> int:
        """Scores of a sequence."""
        return self.num_labels

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(self.features)
        if not self.needs_pooler:
            self.projection = Linear(self.config, self.config.hidden_size, self.dtype)

    def __call__(
        self, *inputs: jax.Array, dropout_rows: jax.Array | None = None, **options: Any
    ) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, dropout_rows=dropout_rows, **options)
        if self.needs_pooler:
            x = outputs["pooler_output"]
        else:
            sequence_starts = inputs[4]
            x = take_positions(outputs["last_hidden_state"], sequence_starts)
            if self.config.classifier_input_dropout:
                x = self.dropout(x, dropout_rows)
            x = activation(str(self.config.classifier_activation), self.projection(x))
        x = self.dropout(x, dropout_rows)
        return outputs | {"logits": self.classifier(x).astype(jnp.float32)}


class BertForPreTraining(BertWithHead):
    """Masked LM and next sentence prediction."""

    def setup(self):
        super().setup()
        self.predictions = MaskedLMHead(self.config, self.dtype)
        self.seq_relationship = Linear(self.config, 2, self.dtype)

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


class BertForMaskedLM(_TokenHead):
    """Masked LM alone: logits [B, L, V], or [B, P, V] at `masked_positions`."""

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
        self.seq_relationship = Linear(self.config, 2, self.dtype)

    def __call__(self, *inputs: jax.Array, **options: Any) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, **options)
        logits = self.seq_relationship(outputs["pooler_output"])
        return outputs | {"logits": logits.astype(jnp.float32)}


class BertForSequenceClassification(_SequenceClassifier):
    """A class, or a number (num_labels = 1), for each sequence: logits [B, K, num_labels]."""


class BertForTokenClassification(_TokenHead):
    """A class for each token: logits [B, L, num_labels]."""

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(
            self.num_labels, self.config.token_classifier_dropout
        )

    def __call__(
        self, *inputs: jax.Array, dropout_rows: jax.Array | None = None, **options: Any
    ) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, dropout_rows=dropout_rows, **options)
        x = self.dropout(outputs["last_hidden_state"], dropout_rows)
        return outputs | {"logits": self.classifier(x).astype(jnp.float32)}


class BertForQuestionAnswering(_TokenHead):
    """Where the answer starts and ends: start_logits and end_logits [B, L]."""

    def setup(self):
        super().setup()
        self.dropout = Dropout(self.config.qa_dropout)
        self.qa_outputs = Linear(self.config, 2, self.dtype)

    def __call__(
        self, *inputs: jax.Array, dropout_rows: jax.Array | None = None, **options: Any
    ) -> Outputs:
        """As `BertModel`."""
        outputs = self.bert(*inputs, dropout_rows=dropout_rows, **options)
        x = self.dropout(outputs["last_hidden_state"], dropout_rows)
        logits = self.qa_outputs(x).astype(jnp.float32)
        return outputs | {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(_SequenceClassifier):
    """A score for each choice, a sequence of its own: logits [B, K].

    The C choices of an example are C consecutive sequences; the softmax is over these.
    """

    prefers_pooler = True

    @property
    def features(self) -> int:
        """One score."""
        return 1

    def __call__(self, *inputs: jax.Array, **options: Any) -> Outputs:
        """As `BertModel`."""
        outputs = super().__call__(*inputs, **options)
        return outputs | {"logits": outputs["logits"][..., 0]}


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
