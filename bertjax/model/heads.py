"""The heads of fine-tuning tasks, named as in transformers, and `HEADS`, the table of all heads.

The class attributes of a head, which other modules read, are the name of the head's class in
transformers and descriptions of the head's parameters, outputs and training objectives.
"""

from typing import ClassVar

import jax.numpy as jnp

from bertjax.model import losses
from bertjax.model.base_head import BertWithHead, Outputs, Rows, TokenHead
from bertjax.model.embeddings import take_positions
from bertjax.model.encoder import activation
from bertjax.model.linear import Linear
from bertjax.model.pooling import pooled
from bertjax.model.pretraining_heads import PRETRAINING_HEADS
from bertjax.model.sentence_embedding import BertForSentenceEmbedding


class _SequenceClassifier(BertWithHead):
    """Base class of heads with logits [B, K, features], one vector of logits per sequence.

    The classifier reads the output of the pooler or, in families whose configs set
    `classifier_activation`, the output of a dense layer or a prediction head that replaces it.
    """

    parts = ("classifier", "projection", "head")
    class_part = "classifier"
    outputs = sequence_outputs = ("logits",)

    prefers_pooler: ClassVar[bool] = False
    """Whether the head uses the pooler even in families whose classifiers replace the pooler by a
    dense layer."""

    @property
    def needs_pooler(self) -> bool:
        """Whether the classifier reads the output of the pooler and not of its own dense layer."""
        has_projection = self.config.classifier_activation is not None
        return not has_projection or (self.prefers_pooler and self.config.add_pooling_layer)

    @property
    def present_parts(self) -> set[str]:
        """The head's parameter keys: "classifier", and those of the layers that replace the pooler.

        These are "head" with a prediction head, otherwise "projection" if there is no pooler.
        """
        if self.config.prediction_head:
            return {"classifier", "head"}
        return {"classifier"} if self.needs_pooler else {"classifier", "projection"}

    @property
    def features(self) -> int:
        """The number of logits per sequence."""
        return self.num_labels

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(self.features)
        if "projection" in self.present_parts:
            self.projection = Linear(self.config, self.config.hidden_size, self.dtype)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, K, features] for the K sequences of each row."""
        if self.needs_pooler:
            x = encoded["pooler_output"]
        elif self.config.prediction_head:
            x, starts = encoded["last_hidden_state"], rows.sequence_starts
            vectors = pooled(x, rows.sequence_ids, starts, self.config.classifier_pooling)
            x = self.head(vectors.astype(x.dtype))
        else:
            x = take_positions(encoded["last_hidden_state"], rows.sequence_starts)
            if self.config.classifier_input_dropout:
                x = self.dropout(x, rows.dropout_rows)
            x = activation(str(self.config.classifier_activation), self.projection(x))
        x = self.dropout(x, rows.dropout_rows)
        return {"logits": self.classifier(x).astype(jnp.float32)}


class BertForSequenceClassification(_SequenceClassifier):
    """Predicts one class, several classes or a number for each sequence (Devlin et al. 2018, 4.1).

    The logits are [B, K, num_labels] for the K sequences of each row.
    """

    class_suffix = "ForSequenceClassification"
    objectives = {
        "classes": losses.CLASSES,
        "multi_label": losses.MULTI_LABEL,
        "regression": losses.REGRESSION,
    }


class BertForTokenClassification(TokenHead):
    """Predicts a class for each token (Devlin et al. 2018, 5.3): logits [B, L, num_labels]."""

    class_suffix = "ForTokenClassification"
    parts = ("classifier", "head")
    class_part = "classifier"
    outputs = ("logits",)
    objectives = {"tokens": losses.CLASSES}

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(
            self.num_labels, self.config.token_classifier_dropout
        )

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, L, num_labels] for the L tokens of each row."""
        x = self.dropout(self.token_states(encoded), rows.dropout_rows)
        return {"logits": self.classifier(x).astype(jnp.float32)}


class BertForQuestionAnswering(TokenHead):
    """Predicts the first and the last token of the answer to a question in a passage.

    The start and the end logits are [B, L] each (Devlin et al. 2018, 4.2). As in transformers, the
    output layer is named "classifier" in models with a prediction head, otherwise "qa_outputs".
    """

    class_suffix = "ForQuestionAnswering"
    parts = ("qa_outputs", "classifier", "head")
    class_part = "classifier"
    outputs = ("start_logits", "end_logits")
    objectives = {"span": losses.SPAN}

    @property
    def present_parts(self) -> set[str]:
        return {"classifier", "head"} if self.config.prediction_head else {"qa_outputs"}

    def setup(self):
        super().setup()
        self.dropout, layer = self.classifier_layer(2, self.config.qa_dropout)
        if self.config.prediction_head:
            self.classifier = layer
        else:
            self.qa_outputs = layer

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns start_logits and end_logits [B, L] for the first and last token of the answer."""
        x = self.dropout(self.token_states(encoded), rows.dropout_rows)
        layer = self.classifier if self.config.prediction_head else self.qa_outputs
        logits = layer(x).astype(jnp.float32)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(_SequenceClassifier):
    """Predicts a score for each choice; an example's C choices are C consecutive sequences.

    The logits are [B, K] for the K sequences of each row (Devlin et al. 2018, 4.4).
    """

    class_suffix = "ForMultipleChoice"
    objectives = {"choice": losses.CHOICE}

    prefers_pooler = True

    @property
    def features(self) -> int:
        """The number of logits per sequence: a single score."""
        return 1

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, K] for the K sequences of each row.

        The softmax in the loss runs over the C consecutive sequences of an example.
        """
        return {"logits": super().answer(encoded, rows)["logits"][..., 0]}


# The names by which tasks, configs and the Python API refer to heads.
HEADS: dict[str, type[BertWithHead]] = {
    "encoder": BertWithHead,
    **PRETRAINING_HEADS,
    "sequence_classification": BertForSequenceClassification,
    "token_classification": BertForTokenClassification,
    "question_answering": BertForQuestionAnswering,
    "multiple_choice": BertForMultipleChoice,
    "sentence_embedding": BertForSentenceEmbedding,
}
