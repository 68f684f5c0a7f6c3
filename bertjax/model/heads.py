"""The heads of pretraining and of fine-tuning tasks, and `HEADS`, the table of all heads.

They are the heads of Devlin et al. 2018, 3.1 and 4, with the names of transformers.
"""

import functools
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config import PretrainConfig, RtdConfig
from bertjax.config.model import BertConfig
from bertjax.model import losses
from bertjax.model.base_head import BertWithHead, Outputs, Rows, TokenHead
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.dropout import row_uniforms
from bertjax.model.embeddings import layer_norm, take_positions
from bertjax.model.encoder import activation
from bertjax.model.late_interaction import BertForLateInteraction
from bertjax.model.linear import Linear, residual_stddev
from bertjax.model.recipe import SHARINGS, Recipe
from bertjax.model.sentence_embedding import BertForSentenceEmbedding, pooled
from bertjax.model.sparse_embedding import (
    QUERY_WEIGHT,
    pooled_words,
    sparse_objective,
    static_weights,
)


class MaskedLMHead(nn.Module):
    """Dense layer, activation, LayerNorm and logits over the vocabulary (Devlin et al. 2018, 3.1).

    If `tie_word_embeddings` is set, the output matrix is the word embedding matrix. In models with
    a prediction head (`PredictionHead`), that replaces the layers before the output matrix. With
    `prediction_head_size`, two linear layers with activations replace them.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        config = self.config
        if config.prediction_head_size is not None:
            linear = functools.partial(Linear, config, dtype=self.dtype, use_bias=False)
            self.inner = linear(config.prediction_head_size)
            self.outer = linear(config.output_size)
        elif config.mlm_transform and not config.prediction_head:
            self.transform = Linear(config, config.output_size, self.dtype)
            self.layer_norm = layer_norm(config, self.dtype, "layer_norm")
        if not config.tie_word_embeddings:
            self.decoder = Linear(
                config,
                config.vocab_size,
                self.dtype,
                use_bias=False,
                float32=True,
                stddev=residual_stddev(config),
            )
        self.bias = None
        if config.decoder_bias:
            self.bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,))

    def __call__(self, x: jax.Array, attend) -> jax.Array:
        """Computes float32 logits [..., V] from hidden states x [..., D].

        `attend` is a function from vectors [..., embedding size] to float32 [..., V], which
        multiplies by the word embedding matrix; it is unused if `tie_word_embeddings` is False.
        """
        if not self.config.tie_word_embeddings:
            attend = self.decoder
        logits = attend(self.transformed(x))
        if self.bias is not None:
            logits += jnp.expand_dims(self.bias, range(logits.ndim - 1))
        return logits

    def transformed(self, x: jax.Array) -> jax.Array:
        """Returns what the output matrix multiplies, [..., embedding size], of x [..., D]."""
        config = self.config
        if config.prediction_head or not config.mlm_transform:
            return x
        activate = functools.partial(activation, config.mlm_activation or config.hidden_act)
        if config.prediction_head_size is not None:
            return activate(self.outer(activate(self.inner(x))))
        return self.layer_norm(activate(self.transform(x)))

    def output_matrix(self, word_embeddings: jax.Array) -> jax.Array:
        """Returns the output matrix [V, embedding size]: the word embeddings, if it is tied."""
        if self.config.tie_word_embeddings:
            return word_embeddings
        return self.decoder.variables["params"]["kernel"].T


def _states_to_predict(encoded: Outputs, rows: Rows) -> jax.Array:
    """Returns the last hidden states [B, P, D] at `rows.masked_positions`; None: of all tokens."""
    x = encoded["last_hidden_state"]
    if rows.masked_positions is None:
        return x
    return take_positions(x, rows.masked_positions)


def _pooled(encoded: Outputs) -> jax.Array:
    """Returns what the head for sentence pairs reads."""
    if "pooler_output" not in encoded:
        raise ValueError(
            "The model has no pooler, which the head for sentence pairs reads: give --head "
            "masked_lm, which does not use sentence pairs."
        )
    return encoded["pooler_output"]


class BertForPreTraining(BertWithHead):
    """A model with the heads for masked language modelling and next sentence prediction.

    prediction_logits are [B, P, V], or [B, L, V] for all tokens if `masked_positions` is None;
    seq_relationship_logits are [B, K, 2]; class 0 means that the second segment follows the first.
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

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        x = _states_to_predict(encoded, rows)
        next_sentence = self.seq_relationship(_pooled(encoded))
        return {
            "prediction_logits": self.predictions(x, self.bert.attend),
            "seq_relationship_logits": next_sentence.astype(jnp.float32),
        }


class BertForMaskedLM(TokenHead):
    """A model with the head for masked language modelling (Devlin et al. 2018, 3.1).

    The logits are [B, P, V] at `masked_positions` (None: at all tokens, [B, L, V]).
    """

    class_suffix = "ForMaskedLM"
    parts = ("predictions", "head")
    outputs = ("logits",)
    objectives = {"pretraining": losses.MASKED_LM}

    @property
    def present_parts(self) -> set[str]:
        parts = super().present_parts
        has_layers = self.config.mlm_transform and not self.config.prediction_head
        has_decoder = self.config.decoder_bias or not self.config.tie_word_embeddings
        if has_layers or has_decoder:
            return parts
        return parts - {"predictions"}

    def setup(self):
        super().setup()
        self.predictions = MaskedLMHead(self.config, self.dtype)

    @property
    def reads_hidden_states(self) -> bool:
        return self.config.enhanced_mask_decoder

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        return {"logits": self.predictions(self.states(encoded, rows), self.bert.attend)}

    def states(self, encoded: Outputs, rows: Rows) -> jax.Array:
        """Returns the states [B, P, D] from which words are predicted, without `predictions`."""
        if self.config.enhanced_mask_decoder:
            before_last = encoded["hidden_states"][-2]
            decoded = self.bert.decode_masked(
                before_last, rows.position_ids, rows.sequence_ids, rows.dropout_rows
            )
            encoded = encoded | {"last_hidden_state": decoded}
        x = _states_to_predict(encoded, rows)
        if self.config.prediction_head:
            x = self.head(x)
        return x


class BertForSparseEmbedding(BertForMaskedLM):
    """Computes a weight of each word for each sequence: sentence_embedding [B, K, V].

    The weights are pooled from the logits of the masked LM head (Formal et al. 2021, 3.2).

    Attributes:
        pooling: as `activation`, in `pooled_words`.
        static_queries: whether there is a static weight per word, "query_weights" [V], for the
            sequences whose tokens have the type 1: each word between their first and last token
            has its weight (Geng et al. 2024). The encoder gets the type 0 for all tokens.
        frozen_queries: whether these weights are not trained.
    """

    pooling: str = "max"
    activation: str = "relu"
    static_queries: bool = False
    frozen_queries: bool = False

    separate_parts = ("query_weights",)
    outputs = sequence_outputs = ("sentence_embedding",)
    objectives = {
        "contrastive": sparse_objective(
            "contrastive", temperature=None, query_weight=0.0, document_weight=0.0
        )
    }

    @property
    def types_mark_prompts(self) -> bool:
        return self.static_queries

    @property
    def fixed_parts(self) -> tuple[str, ...]:
        if self.static_queries and self.frozen_queries:
            return self.separate_parts
        return ()

    def setup(self):
        super().setup()
        if self.static_queries:
            ones = nn.initializers.ones
            self.query_weights = self.param("query_weights", ones, (self.config.vocab_size,))

    def objective(self, kind: str, options: Any = None) -> losses.Objective:
        if options is None:
            return super().objective(kind)
        query_weight = options.query_regularizer_weight
        if query_weight is None:
            query_weight = 0.0 if self.static_queries else QUERY_WEIGHT
        return sparse_objective(
            options.loss or "contrastive",
            temperature=options.temperature,
            query_weight=query_weight,
            document_weight=options.document_regularizer_weight,
        )

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        if self.is_initializing():
            super().head_outputs(encoded, rows)  # which creates the parameters
        x = self.states(encoded, rows._replace(masked_positions=None))
        inside = losses.tokens_of_sequences(rows.sequence_ids, rows.sequence_starts.shape[1])
        weights = pooled_words(
            self.predictions.transformed(x),
            self.predictions.output_matrix(self.bert.word_embeddings),
            self.predictions.bias,
            inside,
            pooling=self.pooling,
            activation=self.activation,
        )
        if self.static_queries:
            queries = inside & (rows.token_type_ids > 0)[:, None]
            firsts = rows.sequence_starts[..., None]
            lasts = firsts + inside.sum(-1, keepdims=True) - 1
            places = jnp.arange(inside.shape[-1])[None, None]
            words = queries & (places > firsts) & (places < lasts)
            static = static_weights(rows.input_ids, words, self.query_weights)
            weights = jnp.where(queries.any(-1, keepdims=True), static, weights)
        return {"sentence_embedding": weights}


class DiscriminatorHead(nn.Module):
    """Dense layer, activation and a logit for each token: [B, L, D] -> float32 [B, L].

    If `rtd_context` is set, the hidden state of the first token of a sequence is added to those of
    its tokens before, with a LayerNorm, as in Microsoft's code of DeBERTa-v3.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, rows: Rows) -> jax.Array:
        config = self.config
        if config.rtd_context:
            firsts = take_positions(x, rows.sequence_starts)  # [B, K, D]
            sequences = jnp.maximum(rows.sequence_ids - 1, 0)  # [B, L]
            x += take_positions(firsts, sequences)
            x = layer_norm(config, self.dtype, "layer_norm")(x)
        x = Linear(config, config.hidden_size, self.dtype, name="dense")(x)
        x = activation(config.hidden_act, x)
        logits = Linear(config, 1, self.dtype, name="dense_prediction")(x)
        return logits[..., 0].astype(jnp.float32)


class BertForReplacedTokenDetection(TokenHead):
    """Tells of each token whether it was replaced (Clark et al. 2020, 2): logits [B, L].

    In pretraining, a generator, a smaller masked LM with the config `generator_config`, replaces
    the masked tokens by samples of its predictions, and both are trained; `sharing` and the weight
    of the discriminator's loss are as in `RtdConfig`. The outputs then also have the
    "prediction_logits" [B, P, V] of the generator, and "replaced", float [B, L], 1 for each token
    that differs from the original one.
    """

    generator_config: BertConfig | None = None
    sharing: str = "none"
    loss_weight: float = 50.0

    class_suffix = "ForPreTraining"
    parts = ("discriminator_predictions",)
    training_parts = ("generator",)
    outputs = ("logits",)
    objectives = {"pretraining": losses.replaced_token_detection(50.0)}

    @classmethod
    def for_pretraining(cls, config: PretrainConfig) -> Self:
        return cls(config.model).with_generator(config.generator)

    def with_generator(self, rtd: RtdConfig) -> Self:
        """Returns the model with the generator that a config describes."""
        generator = rtd.generator_of(self.config)
        return self.clone(generator_config=generator, sharing=rtd.sharing, loss_weight=rtd.weight)

    def objective(self, kind: str, options: Any = None) -> losses.Objective:
        return losses.replaced_token_detection(self.loss_weight)

    @property
    def is_random(self) -> bool:
        return self.generator_config is not None or super().is_random

    @property
    def recipe(self) -> Recipe:
        if self.generator_config is None:
            return Recipe()
        return SHARINGS[self.sharing]

    @property
    def clipped_apart(self) -> tuple[str, ...]:
        if self.generator_config is None or self.sharing == "es":
            return ()
        return ("generator",)

    @property
    def trained_encoders(self) -> tuple[tuple[BertConfig, bool], ...]:
        discriminator = (self.config, False)
        if self.generator_config is None:
            return (discriminator,)
        return (discriminator, (self.generator_config, True))

    def setup(self):
        super().setup()
        self.discriminator_predictions = DiscriminatorHead(self.config, self.dtype)
        if self.generator_config is not None:
            self.generator = BertForMaskedLM(
                self.generator_config, self.dtype, self.unroll, self.remat, self.attention_kernel
            )

    def __call__(
        self,
        input_ids: jax.Array,
        *inputs: jax.Array | None,
        masked_positions: jax.Array | None = None,
        masked_labels: jax.Array | None = None,
        masked_weights: jax.Array | None = None,
        dropout_rows: jax.Array | None = None,
        **options: Any,
    ) -> Outputs:
        """Classifies the tokens of a batch, masked ones after the generator has replaced them.

        The arguments are those of `BertWithHead`, besides `masked_labels` int [B, P], the ids of
        the tokens at `masked_positions`, and `masked_weights` float [B, P], 0 for unused entries;
        None: tokens are not replaced. Without `dropout_rows`, samples are the same in each call.
        """
        known = (*MODEL_INPUTS, "attention_mask")
        named = {name: options[name] for name in known if name in options}
        if self.is_initializing() and self.generator_config is not None:
            self.generator(input_ids, *inputs, **named)
        generated: Outputs = {}
        if masked_labels is not None and masked_positions is not None:
            named |= {"masked_positions": masked_positions, "dropout_rows": dropout_rows}
            logits = self.generator(input_ids, *inputs, **named)["logits"]
            samples = self._samples(logits, dropout_rows)
            # Unused entries get a place behind the row.
            is_used = jnp.asarray(masked_weights) > 0
            places = jnp.where(is_used, masked_positions, input_ids.shape[1])
            input_ids = _put(input_ids, places, samples.astype(input_ids.dtype))
            changed = (samples != masked_labels).astype(jnp.float32)
            replaced = _put(jnp.zeros(input_ids.shape, jnp.float32), places, changed)
            generated = {"prediction_logits": logits, "replaced": replaced}
        outputs = super().__call__(input_ids, *inputs, dropout_rows=dropout_rows, **options)
        return outputs | generated

    def _samples(self, logits: jax.Array, dropout_rows: jax.Array | None) -> jax.Array:
        """Draws words, int [B, P], from the predictions [B, P, V] of the generator."""
        if dropout_rows is None:
            key = jax.random.key(0)
            rows = jnp.arange(len(logits))
        else:
            key = self.make_rng("dropout")
            rows = dropout_rows
        logits = jax.lax.stop_gradient(logits)
        uniforms = row_uniforms(key, rows, logits.shape[1:2])
        return sample(logits, uniforms)

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        return {"logits": self.discriminator_predictions(encoded["last_hidden_state"], rows)}


@jax.vmap
def _put(row: jax.Array, places: jax.Array, values: jax.Array) -> jax.Array:
    """Puts values [B, P] at the places [B, P] of rows [B, L]; those behind the row are dropped."""
    return row.at[places].set(values, mode="drop")


# The number of words whose probabilities `sample` adds up at a time.
BLOCK = 128


def sample(logits: jax.Array, uniforms: jax.Array) -> jax.Array:
    """Draws a word for each vector of logits [..., V] from their softmax, in float32: int [...].

    `uniforms` [...] are random numbers, uniform in [0, 1): a word is drawn if the sum of the
    probabilities up to its own is the first to exceed the number. The sums are taken over blocks of
    words, and then within a block.
    """
    size = logits.shape[-1]
    weights = jax.nn.softmax(logits.astype(jnp.float32))
    padding = [(0, 0)] * uniforms.ndim + [(0, -size % BLOCK)]
    blocks = jnp.pad(weights, padding).reshape(*uniforms.shape, -1, BLOCK)
    ends = jnp.cumsum(blocks.sum(-1), axis=-1)  # [..., blocks]
    aim = (uniforms * ends[..., -1])[..., None]
    block = jnp.sum(ends <= aim, axis=-1)
    block = jnp.minimum(block, ends.shape[-1] - 1)[..., None]
    chosen = jnp.take_along_axis(blocks, block[..., None], axis=-2)[..., 0, :]  # [..., BLOCK]
    before = jnp.take_along_axis(ends, block, axis=-1) - chosen.sum(-1, keepdims=True)
    sums = before + jnp.cumsum(chosen, axis=-1)
    inside = jnp.sum(sums <= aim, axis=-1)
    return jnp.minimum(block[..., 0] * BLOCK + inside, size - 1)


class BertForNextSentencePrediction(BertWithHead):
    """Predicts whether the second segment follows the first (Devlin et al. 2018, 3.1).

    The logits are [B, K, 2]; class 0 means that the second segment follows the first.
    """

    class_suffix = "ForNextSentencePrediction"
    parts = ("seq_relationship",)
    outputs = sequence_outputs = ("logits",)

    def setup(self):
        super().setup()
        self.seq_relationship = Linear(self.config, 2, self.dtype)

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        logits = self.seq_relationship(_pooled(encoded))
        return {"logits": logits.astype(jnp.float32)}


PRETRAINING_HEADS: dict[str, type[BertWithHead]] = {
    "pretraining": BertForPreTraining,
    "masked_lm": BertForMaskedLM,
    "next_sentence": BertForNextSentencePrediction,
    "rtd": BertForReplacedTokenDetection,
}


class _SequenceClassifier(BertWithHead):
    """Base class of heads with logits [B, K, features], one vector of logits per sequence.

    The classifier reads the output of the pooler or, in families whose configs set
    `classifier_activation`, the output of a dense layer or a prediction head that replaces it; in
    families with neither, it reads the hidden states.
    """

    parts = ("classifier", "projection", "head")
    class_part = "classifier"
    outputs = sequence_outputs = ("logits",)

    prefers_pooler: ClassVar[bool] = False
    """Whether the head uses the pooler even in families whose classifiers replace the pooler by a
    dense layer."""

    @property
    def needs_pooler(self) -> bool:
        has_projection = self.config.classifier_activation is not None
        return self.config.add_pooling_layer and (self.prefers_pooler or not has_projection)

    @property
    def present_parts(self) -> set[str]:
        if self.config.prediction_head:
            return {"classifier", "head"}
        if self.needs_pooler or self.config.classifier_activation is None:
            return {"classifier"}
        return {"classifier", "projection"}

    @property
    def features(self) -> int:
        """The number of logits per sequence."""
        return self.num_labels

    def setup(self):
        super().setup()
        self.dropout, self.classifier = self.classifier_layer(self.features)
        if "projection" in self.present_parts:
            self.projection = Linear(self.config, self.config.hidden_size, self.dtype)

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        if self.needs_pooler:
            x = encoded["pooler_output"]
        elif self.config.prediction_head:
            x = encoded["last_hidden_state"]
            pooling = self.config.classifier_pooling
            vectors = pooled(x, rows.sequence_ids, rows.sequence_starts, pooling)
            x = self.head(vectors.astype(x.dtype))
        else:
            return {"logits": self._logits_of_states(encoded["last_hidden_state"], rows)}
        x = self.dropout(x, rows.dropout_rows)
        return {"logits": self.classifier(x).astype(jnp.float32)}

    def _logits_of_states(self, x: jax.Array, rows: Rows) -> jax.Array:
        """Computes the logits [B, K, features] of hidden states x [B, L, D], without a pooler.

        There is a dense layer before the classifier if `classifier_activation` is set.
        """
        pooling = self.config.classifier_pooling
        is_late = pooling == "late"
        if pooling == "cls":
            x = take_positions(x, rows.sequence_starts)
        elif pooling == "mean":
            x = pooled(x, rows.sequence_ids, rows.sequence_starts, pooling).astype(x.dtype)
        if self.config.classifier_input_dropout:
            x = self.dropout(x, rows.dropout_rows)
        if self.config.classifier_activation is not None:
            x = activation(self.config.classifier_activation, self.projection(x))
        x = self.dropout(x, rows.dropout_rows)
        logits = self.classifier(x).astype(jnp.float32)
        if is_late:
            logits = pooled(logits, rows.sequence_ids, rows.sequence_starts, "mean")
        return logits


class BertForSequenceClassification(_SequenceClassifier):
    """Predicts one class, several classes or a number for each sequence (Devlin et al. 2018, 4.1).

    The logits are [B, K, num_labels].
    """

    class_suffix = "ForSequenceClassification"
    objectives = {
        "classes": losses.CLASSES,
        "multi_label": losses.MULTI_LABEL,
        "distribution": losses.DISTRIBUTION,
        "regression": losses.REGRESSION,
        "targets": losses.TARGETS,
        "ranking": losses.ranking("binary", 1.0),
    }

    def objective(self, kind: str, options: Any = None) -> losses.Objective:
        if kind == "ranking" and options is not None:
            return losses.ranking(options.loss, options.temperature or 1.0)
        return super().objective(kind)


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

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
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
        if self.config.prediction_head:
            return {"classifier", "head"}
        return {"qa_outputs"}

    def setup(self):
        super().setup()
        self.dropout, layer = self.classifier_layer(2, self.config.qa_dropout)
        if self.config.prediction_head:
            self.classifier = layer
        else:
            self.qa_outputs = layer

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        x = self.dropout(self.token_states(encoded), rows.dropout_rows)
        layer = self.classifier if self.config.prediction_head else self.qa_outputs
        logits = layer(x).astype(jnp.float32)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(_SequenceClassifier):
    """Predicts a score for each choice; an example's C choices are C consecutive sequences.

    The logits are [B, K] for the K sequences of each row (Devlin et al. 2018, 4.4). The softmax in
    the loss runs over the C sequences of an example.
    """

    class_suffix = "ForMultipleChoice"
    parts = (*_SequenceClassifier.parts, "sequence_summary")
    objectives = {"choice": losses.CHOICE}

    prefers_pooler = True

    @property
    def present_parts(self) -> set[str]:
        has_summary = self.config.summary_activation is not None
        if has_summary:
            return {"classifier", "sequence_summary"}
        return super().present_parts

    @property
    def features(self) -> int:
        return 1

    def setup(self):
        super().setup()
        if self.config.summary_activation is not None:
            self.sequence_summary = Linear(self.config, self.config.hidden_size, self.dtype)

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        if self.config.summary_activation is None:
            return {"logits": super().head_outputs(encoded, rows)["logits"][..., 0]}
        x = take_positions(encoded["last_hidden_state"], rows.sequence_starts)
        x = activation(self.config.summary_activation, self.sequence_summary(x))
        x = self.classifier(self.dropout(x, rows.dropout_rows))
        return {"logits": x[..., 0].astype(jnp.float32)}


HEADS: dict[str, type[BertWithHead]] = {
    "encoder": BertWithHead,
    **PRETRAINING_HEADS,
    "sequence_classification": BertForSequenceClassification,
    "token_classification": BertForTokenClassification,
    "question_answering": BertForQuestionAnswering,
    "multiple_choice": BertForMultipleChoice,
    "sentence_embedding": BertForSentenceEmbedding,
    "late_interaction": BertForLateInteraction,
    "sparse": BertForSparseEmbedding,
}
