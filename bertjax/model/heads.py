"""The encoder with its heads: `BertForMaskedLM` and the others, under transformers' names.

A head is a class that states its own facts: the name of its class in transformers, its parameters,
its outputs, and the objectives that it can be trained with. Other modules read them here.
"""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model import losses
from bertjax.model.bert import BertModel
from bertjax.model.dropout import Dropout
from bertjax.model.embeddings import layer_norm, take_positions
from bertjax.model.encoder import activation
from bertjax.model.linear import Linear

Outputs = dict[str, jax.Array]


class Rows(NamedTuple):
    """The arrays of a batch that heads use besides the outputs of the encoder."""

    sequence_ids: jax.Array
    """int [B, L], 0 = padding, 1..K = the sequence of each token."""
    sequence_starts: jax.Array
    """int [B, K], the position of each sequence's [CLS]."""
    masked_positions: jax.Array | None
    """int [B, P], the only positions that a masked LM predicts; None: all of them."""
    dropout_rows: jax.Array | None
    """int [B], row numbers for dropout; None: no dropout."""


class BertWithHead(nn.Module):
    """Base class of the heads; by itself it is the encoder alone.

    The fields are those of `BertModel`, and the number of classes of a classifier. A subclass
    creates its layers in `setup` and computes its outputs in `answer`.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention_kernel: str = "xla"
    num_labels: int = 2

    class_suffix: ClassVar[str] = "Model"
    """The name of the class in transformers, without the name of the family in front of it."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Top-level names of the head's parameters, which are beside those of "bert"."""
    class_part: ClassVar[str | None] = None
    """The one of `parts` whose last axis is the classes of a task, if there is one."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """Names of the outputs that the head adds to those of `BertModel`."""
    sequence_outputs: ClassVar[tuple[str, ...]] = ()
    """The `outputs` that hold one entry per sequence, [B, K, ...]; the others have [B, L, ...]."""
    objectives: ClassVar[Mapping[str, losses.Objective]] = {}
    """The training objectives: "pretraining", or by the kind of a task's labels."""
    frozen: ClassVar[tuple[str, ...]] = ()
    """Top-level names of parameters that are not trained; if set, the encoder has no dropout."""
    reads_hidden_states: ClassVar[bool] = False
    """Whether `answer` needs the encoder's "hidden_states"."""

    @property
    def needs_pooler(self) -> bool:
        """Whether the encoder needs its pooler."""
        return True

    @property
    def present_parts(self) -> set[str]:
        """The `parts` that there are for this architecture."""
        return set(self.parts)

    def setup(self):
        self.bert = BertModel(
            self.config,
            self.dtype,
            self.unroll,
            self.remat,
            self.attention_kernel,
            add_pooling_layer=self.needs_pooler,
        )

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array,
        sequence_ids: jax.Array,
        sequence_starts: jax.Array,
        *,
        masked_positions: jax.Array | None = None,
        dropout_rows: jax.Array | None = None,
        output_hidden_states: bool = False,
    ) -> Outputs:
        """Encodes rows of one or several sequences and applies the head.

        Args:
            input_ids, token_type_ids, position_ids, sequence_ids: int [B, L].
            sequence_starts: int [B, K].
            masked_positions: int [B, P], the only positions that a masked LM predicts.
            dropout_rows: int [B], row numbers, which together with the rng "dropout" determine the
                dropout; None: no dropout.
            output_hidden_states: whether to return "hidden_states".

        Returns:
            The outputs of `BertModel`, and float32 arrays under the names in `outputs`.
        """
        encoded = self.bert(
            input_ids,
            token_type_ids,
            position_ids,
            sequence_ids,
            sequence_starts,
            dropout_rows=None if self.frozen else dropout_rows,
            output_hidden_states=output_hidden_states or self.reads_hidden_states,
        )
        rows = Rows(sequence_ids, sequence_starts, masked_positions, dropout_rows)
        outputs = encoded | self.answer(encoded, rows)
        if not output_hidden_states:
            outputs.pop("hidden_states", None)
        return outputs

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """The outputs of the head, from those of `BertModel`."""
        return {}

    def classifier_layer(
        self, features: int, own_rate: float | None = None
    ) -> tuple[Dropout, Linear]:
        """Dropout and the linear layer of a classifier, to be called in `setup`."""
        rates = (own_rate, self.config.classifier_dropout, self.config.hidden_dropout_prob)
        rate = next(rate for rate in rates if rate is not None)
        return Dropout(rate), Linear(self.config, features, self.dtype)


class MaskedLMHead(nn.Module):
    """Dense layer, activation, LayerNorm and logits of the vocabulary (Devlin et al. 2018, 3.1).

    The output matrix is the word embedding (`attend`) unless `tie_word_embeddings` is false.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, attend) -> jax.Array:
        """x [..., D] -> float32 logits [..., V]; `attend` maps [..., E] to [..., V]."""
        config = self.config
        width = config.embedding_size or config.hidden_size
        x = Linear(config, width, self.dtype, name="transform")(x)
        x = activation(config.mlm_activation or config.hidden_act, x)
        x = layer_norm(config, self.dtype, "layer_norm")(x)
        if not config.tie_word_embeddings:
            attend = Linear(config, config.vocab_size, self.dtype, use_bias=False, name="decoder")
        bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,))
        logits = attend(x).astype(jnp.float32)
        return logits + jnp.expand_dims(bias, tuple(range(logits.ndim - 1)))


def _states_to_predict(encoded: Outputs, rows: Rows) -> jax.Array:
    """The last hidden state at the masked positions [B, P, D], or everywhere [B, L, D]."""
    x = encoded["last_hidden_state"]
    return x if rows.masked_positions is None else take_positions(x, rows.masked_positions)


class _TokenHead(BertWithHead):
    """A head that reads the hidden states of the tokens only."""

    @property
    def needs_pooler(self) -> bool:
        """False."""
        return False


class _SequenceClassifier(BertWithHead):
    """Logits [B, K, features] from the pooler's output, or from a dense layer of the head."""

    parts = ("classifier", "projection")
    class_part = "classifier"
    outputs = sequence_outputs = ("logits",)

    prefers_pooler: ClassVar[bool] = False
    """Whether it uses the pooler even in families whose classifiers have a dense layer instead."""

    @property
    def needs_pooler(self) -> bool:
        """Whether the classifier reads the pooler's output."""
        has_projection = self.config.classifier_activation is not None
        return not has_projection or (self.prefers_pooler and self.config.add_pooling_layer)

    @property
    def present_parts(self) -> set[str]:
        """The classifier, and the projection that takes the place of the pooler."""
        return {"classifier"} if self.needs_pooler else {"classifier", "projection"}

    @property
    def features(self) -> int:
        """The number of logits per sequence."""
        return self.num_labels

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(self.features)
        if not self.needs_pooler:
            self.projection = Linear(self.config, self.config.hidden_size, self.dtype)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, K, features]."""
        if self.needs_pooler:
            x = encoded["pooler_output"]
        else:
            x = take_positions(encoded["last_hidden_state"], rows.sequence_starts)
            if self.config.classifier_input_dropout:
                x = self.dropout(x, rows.dropout_rows)
            x = activation(str(self.config.classifier_activation), self.projection(x))
        x = self.dropout(x, rows.dropout_rows)
        return {"logits": self.classifier(x).astype(jnp.float32)}


class BertForPreTraining(BertWithHead):
    """Masked language modelling and next sentence prediction."""

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
        """Returns prediction_logits [B, P, V] and seq_relationship_logits [B, K, 2] (0 = next).

        Without masked positions, prediction_logits are [B, L, V].
        """
        x = _states_to_predict(encoded, rows)
        next_sentence = self.seq_relationship(encoded["pooler_output"])
        return {
            "prediction_logits": self.predictions(x, self.bert.attend),
            "seq_relationship_logits": next_sentence.astype(jnp.float32),
        }


class BertForMaskedLM(_TokenHead):
    """Masked language modelling."""

    class_suffix = "ForMaskedLM"
    parts = ("predictions",)
    outputs = ("logits",)
    objectives = {"pretraining": losses.MASKED_LM}

    def setup(self):
        super().setup()
        self.predictions = MaskedLMHead(self.config, self.dtype)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, P, V] at the masked positions, or [B, L, V] without them."""
        return {"logits": self.predictions(_states_to_predict(encoded, rows), self.bert.attend)}


class BertForNextSentencePrediction(BertWithHead):
    """Whether the second segment follows the first in the text."""

    class_suffix = "ForNextSentencePrediction"
    parts = ("seq_relationship",)
    outputs = sequence_outputs = ("logits",)

    def setup(self):
        super().setup()
        self.seq_relationship = Linear(self.config, 2, self.dtype)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, K, 2] (0 = next, 1 = random)."""
        logits = self.seq_relationship(encoded["pooler_output"])
        return {"logits": logits.astype(jnp.float32)}


class BertForSequenceClassification(_SequenceClassifier):
    """A class, several classes or a number for each sequence: logits [B, K, num_labels]."""

    class_suffix = "ForSequenceClassification"
    objectives = {
        "classes": losses.CLASSES,
        "multi_label": losses.MULTI_LABEL,
        "regression": losses.REGRESSION,
    }


class BertForTokenClassification(_TokenHead):
    """A class for each token."""

    class_suffix = "ForTokenClassification"
    parts = ("classifier",)
    class_part = "classifier"
    outputs = ("logits",)
    objectives = {"tokens": losses.CLASSES}

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(
            self.num_labels, self.config.token_classifier_dropout
        )

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, L, num_labels]."""
        x = self.dropout(encoded["last_hidden_state"], rows.dropout_rows)
        return {"logits": self.classifier(x).astype(jnp.float32)}


class BertForQuestionAnswering(_TokenHead):
    """The first and the last token of an answer within a passage."""

    class_suffix = "ForQuestionAnswering"
    parts = ("qa_outputs",)
    outputs = ("start_logits", "end_logits")
    objectives = {"span": losses.SPAN}

    def setup(self):
        super().setup()
        self.dropout = Dropout(self.config.qa_dropout)
        self.qa_outputs = Linear(self.config, 2, self.dtype)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns start_logits and end_logits [B, L]."""
        x = self.dropout(encoded["last_hidden_state"], rows.dropout_rows)
        logits = self.qa_outputs(x).astype(jnp.float32)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(_SequenceClassifier):
    """A score for each choice; the C choices of an example are C consecutive sequences."""

    class_suffix = "ForMultipleChoice"
    objectives = {"choice": losses.CHOICE}

    prefers_pooler = True

    @property
    def features(self) -> int:
        """One score."""
        return 1

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns logits [B, K]; the loss takes the softmax over each C of them."""
        return {"logits": super().answer(encoded, rows)["logits"][..., 0]}


# The names by which tasks, configs and the Python API refer to heads.
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
