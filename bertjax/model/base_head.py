"""`BertWithHead`, the base class of all heads: Flax modules that contain the encoder.

Class attributes describe the parameters, outputs and training objectives of a head.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config import PretrainConfig
from bertjax.config.model import DROPOUT_FIELDS, BertConfig
from bertjax.model import losses
from bertjax.model.bert import BertModel, default_inputs
from bertjax.model.dropout import Dropout, rate_of
from bertjax.model.embeddings import layer_norm
from bertjax.model.encoder import activation
from bertjax.model.linear import Linear, residual_stddev
from bertjax.model.recipe import Recipe


class PredictionHead(nn.Module):
    """Dense layer, the activation `classifier_activation` and LayerNorm, [..., D] -> [..., D].

    Fine-tuning begins with the prediction head of the masked LM, as in transformers.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        dense = Linear(
            config,
            config.hidden_size,
            self.dtype,
            use_bias=config.classifier_bias,
            stddev=residual_stddev(config),
            name="dense",
        )
        x = dense(x)
        x = activation(str(config.classifier_activation), x)
        return layer_norm(config, self.dtype, "norm")(x)


Outputs = dict[str, jax.Array]


class Rows(NamedTuple):
    """The arrays of a batch of B rows, with L tokens and up to K sequences each, that heads use."""

    sequence_ids: jax.Array
    """int [B, L]: which of the sequences 1..K of its row each token belongs to; 0 for padding."""
    sequence_starts: jax.Array
    """int [B, K]: the position in the row of each sequence's [CLS] token; 0 for unused entries if a
    row has fewer than K sequences."""
    masked_positions: jax.Array | None
    """int [B, P]: the positions of the tokens that an MLM head predicts; None: all L positions."""
    dropout_rows: jax.Array | None
    """int [B]: the index of each row in the global batch, which is folded into the PRNG key
    "dropout"; None: no dropout is applied."""
    token_type_ids: jax.Array
    """int [B, L]: the token types."""
    position_ids: jax.Array
    """int [B, L]: the position of each token in its sequence, counted from 0."""
    input_ids: jax.Array
    """int [B, L]: the token ids."""


class BertWithHead(nn.Module):
    """Base class of the models with a head; the base class itself is an encoder without a head.

    A subclass creates its layers in `setup` and computes its outputs in `head_outputs`.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention_kernel: str = "xla"
    num_labels: int = 2

    class_suffix: ClassVar[str] = "Model"
    """The class name in transformers without the family's prefix: "Model" for "BertModel"."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Top-level keys of the head's parameters; the parameters of the encoder are under "bert"."""
    training_parts: ClassVar[tuple[str, ...]] = ()
    """Top-level keys of parameters that exist only during training and are never exported."""
    class_part: ClassVar[str | None] = None
    """The member of `parts` whose arrays have one entry per class on the last axis; None if no part
    has such arrays."""
    separate_parts: ClassVar[tuple[str, ...]] = ()
    """Top-level keys of parameters that are exported to files of their own."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """Names of the outputs that the head adds to the outputs of `BertModel`."""
    sequence_outputs: ClassVar[tuple[str, ...]] = ()
    """The members of `outputs` with one entry per sequence, [B, K, ...]; the other outputs have one
    entry per token, [B, L, ...], or per masked token, [B, P, ...]."""
    objectives: ClassVar[Mapping[str, losses.Objective]] = {}
    """Maps "pretraining", or the `label_kind` of a fine-tuning task, to the training objective."""
    encoder_has_dropout: ClassVar[bool] = True
    """Whether dropout is applied in the encoder in training."""

    @classmethod
    def for_pretraining(cls, config: PretrainConfig) -> Self:
        """Returns a model of the architecture `config.model`, with default values otherwise."""
        return cls(config.model)

    def objective(self, kind: str, options: Any = None) -> losses.Objective:
        """Returns the objective for labels of the kind `kind`.

        `options` are the options of the task, from which an objective takes its settings; None: the
        defaults.
        """
        return self.objectives[kind]

    @property
    def is_random(self) -> bool:
        """Whether a dropout rate is positive, so that training needs the PRNG key "dropout"."""
        return any(getattr(self.config, rate) for rate in DROPOUT_FIELDS)

    @property
    def clipped_apart(self) -> tuple[str, ...]:
        """Top-level keys of parameters whose gradients are clipped by norms of their own."""
        return ()

    @property
    def trained_encoders(self) -> tuple[tuple[BertConfig, bool], ...]:
        """(config of the encoder, whether it has an MLM head) for each encoder, to count FLOP."""
        return ((self.config, "predictions" in self.parts),)

    @property
    def recipe(self) -> Recipe:
        """Which parameters are trained, unless a run has a recipe of its own."""
        return Recipe()

    @property
    def fixed_parts(self) -> tuple[str, ...]:
        """Top-level keys of parameters that are not trained."""
        return ()

    @property
    def types_mark_prompts(self) -> bool:
        """Whether token types are not for the encoder, which gets the type 0 for all tokens."""
        return False

    @property
    def usable_kernel(self) -> str:
        """The attention kernel of the encoder: `attention_kernel`, if it can be used."""
        return self.attention_kernel

    @property
    def reads_hidden_states(self) -> bool:
        """Whether `head_outputs` reads "hidden_states": the embeddings and all layers."""
        return False

    @property
    def needs_pooler(self) -> bool:
        """Whether the encoder gets a pooler if `config.add_pooling_layer` is True."""
        return self.config.encoder_pooler

    @property
    def present_parts(self) -> set[str]:
        """The members of `parts` (keys of the head's parameters) that exist with this config."""
        parts = set(self.parts)
        if self.config.prediction_head:
            return parts
        return parts - {"head"}

    def setup(self):
        self.bert = BertModel(
            self.config,
            self.dtype,
            self.unroll,
            self.remat,
            self.usable_kernel,
            add_pooling_layer=self.needs_pooler,
        )
        if self.config.prediction_head and "head" in self.parts:
            self.head = PredictionHead(self.config, self.dtype)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        sequence_ids: jax.Array | None = None,
        sequence_starts: jax.Array | None = None,
        *,
        attention_mask: jax.Array | None = None,
        masked_positions: jax.Array | None = None,
        dropout_rows: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> Outputs:
        """Encodes a batch, and applies the head.

        A row holds one sequence, as in transformers, or several sequences if `sequence_ids` and
        `sequence_starts` are set.

        Args:
            input_ids: int [B, L], the token ids.
            token_type_ids: int [B, L]; None: all are 0.
            position_ids: int [B, L], the positions in the sequences, from 0; None: those in the
                row, which do not count padding if `config.position_offset` is set (RoBERTa).
            sequence_ids: as `sequence_starts` and `masked_positions`, in `Rows`.
            attention_mask: int [B, L], 1 for tokens and 0 for padding; unused if `sequence_ids` is
                set; None: there is no padding.
            dropout_rows: as in `Rows`; None: see `deterministic`.
            deterministic: if False, dropout is applied with the PRNG key "dropout"; `dropout_rows`
                None then means rows 0 to B - 1. If True, dropout is only applied if `dropout_rows`
                is set.
            output_hidden_states: whether to return "hidden_states": the embeddings and the outputs
                of all layers.

        Returns:
            A dict of the outputs of `BertModel`, and of the head's float32 `outputs`. If
            `sequence_starts` is None, outputs per sequence have no axis K: "pooler_output" is
            [B, D], and the logits of classes are [B, num_labels].
        """
        one_sequence = sequence_starts is None
        token_type_ids, position_ids, sequence_ids, sequence_starts = default_inputs(
            self.config,
            input_ids,
            attention_mask,
            (token_type_ids, position_ids, sequence_ids, sequence_starts),
        )
        if not deterministic and dropout_rows is None:
            dropout_rows = jnp.arange(input_ids.shape[0])
        encoded = self.bert(
            input_ids,
            jnp.zeros_like(token_type_ids) if self.types_mark_prompts else token_type_ids,
            position_ids,
            self.attended_ids(sequence_ids, token_type_ids, sequence_starts),
            sequence_starts,
            dropout_rows=dropout_rows if self.encoder_has_dropout else None,
            output_hidden_states=output_hidden_states or self.reads_hidden_states,
        )
        rows = Rows(
            sequence_ids=sequence_ids,
            sequence_starts=sequence_starts,
            masked_positions=masked_positions,
            dropout_rows=dropout_rows,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            input_ids=input_ids,
        )
        outputs = encoded | self.head_outputs(encoded, rows)
        if one_sequence:
            for key in ("pooler_output", *self.sequence_outputs):
                if key in outputs:
                    outputs[key] = outputs[key][:, 0]
        if not output_hidden_states:
            outputs.pop("hidden_states", None)
        return outputs

    def attended_ids(
        self, sequence_ids: jax.Array, token_type_ids: jax.Array, sequence_starts: jax.Array
    ) -> jax.Array:
        """Returns the `sequence_ids` for the encoder, negative for tokens that none attends to."""
        return sequence_ids

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns {name: array} of the head's own outputs.

        `encoded` holds the outputs of `BertModel`, and `rows` other arrays of the batch.
        """
        return {}

    def classifier_layer(
        self, features: int, own_rate: float | None = None
    ) -> tuple[Dropout, Linear]:
        """Creates the dropout and the linear layer of a classifier; must be called in `setup`.

        The dropout rate is the first value that is not None among `own_rate`,
        `config.classifier_dropout` and `config.hidden_dropout_prob`.
        """
        config = self.config
        rate = rate_of(own_rate, config.classifier_dropout, config.hidden_dropout_prob)
        stddev = None
        if config.prediction_head:
            stddev = config.hidden_size**-0.5
        return Dropout(rate), Linear(config, features, self.dtype, stddev=stddev)


class TokenHead(BertWithHead):
    """Base class of heads that read only the tokens' hidden states and need no pooler."""

    @property
    def needs_pooler(self) -> bool:
        return False

    def token_states(self, encoded: Outputs) -> jax.Array:
        """Returns the hidden states [B, L, D], behind the prediction head if the model has one."""
        x = encoded["last_hidden_state"]
        if self.config.prediction_head:
            return self.head(x)
        return x
