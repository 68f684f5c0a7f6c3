"""`BertWithHead`, the base class of all heads: the encoder and the facts that a head declares."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.config import PretrainConfig
from bertjax.config.model import DROPOUT_FIELDS, BertConfig
from bertjax.model import losses
from bertjax.model.bert import BertModel
from bertjax.model.dropout import Dropout
from bertjax.model.linear import Linear

Outputs = dict[str, jax.Array]


class Rows(NamedTuple):
    """The arrays of a batch that heads use in addition to the outputs of the encoder."""

    sequence_ids: jax.Array
    """int [B, L]: the number of each token's sequence, 1..K, or 0 for padding."""
    sequence_starts: jax.Array
    """int [B, K]: the position of each sequence's [CLS]."""
    masked_positions: jax.Array | None
    """int [B, P]: the positions that a masked LM predicts; None: it predicts all positions."""
    dropout_rows: jax.Array | None
    """int [B]: the row numbers that determine the dropout; None: no dropout."""


class BertWithHead(nn.Module):
    """Base class of the heads; an instance of it is an encoder without a head.

    It has the fields of `BertModel` and `num_labels`, the number of classes of a classifier. A
    subclass creates its layers in `setup` and computes its outputs in `answer`.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention_kernel: str = "xla"
    num_labels: int = 2

    class_suffix: ClassVar[str] = "Model"
    """The name of the class in transformers without the family's prefix, such as "Bert"."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Top-level names of the head's parameters; those of the encoder are under "bert"."""
    training_parts: ClassVar[tuple[str, ...]] = ()
    """Top-level names of parameters that exist only during training; they are never exported."""
    class_part: ClassVar[str | None] = None
    """The member of `parts` whose last axis has one entry per class, or None."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """Names of the outputs that the head adds to those of `BertModel`."""
    sequence_outputs: ClassVar[tuple[str, ...]] = ()
    """The `outputs` with one entry per sequence, [B, K, ...]; all others have shape [B, L, ...]."""
    objectives: ClassVar[Mapping[str, losses.Objective]] = {}
    """Training objectives; a key is "pretraining" or a kind of task labels, such as "classes"."""
    frozen: ClassVar[tuple[str, ...]] = ()
    """Top-level names of parameters that are not trained; if any, the encoder has no dropout."""
    reads_hidden_states: ClassVar[bool] = False
    """Whether `answer` needs the encoder's "hidden_states"."""

    @classmethod
    def for_pretraining(cls, config: PretrainConfig) -> Self:
        """Returns the model that a pretraining run trains; precision and kernels are set later."""
        return cls(config.model)

    @property
    def is_random(self) -> bool:
        """Whether the outputs depend on the rng "dropout" in training."""
        return any(getattr(self.config, rate) for rate in DROPOUT_FIELDS)

    @property
    def trained_encoders(self) -> tuple[tuple[BertConfig, bool], ...]:
        """The encoders that a step trains, as (config, has a masked LM) pairs, to count FLOP."""
        return ((self.config, "predictions" in self.parts),)

    @property
    def needs_pooler(self) -> bool:
        """Whether the encoder needs its pooler."""
        return True

    @property
    def present_parts(self) -> set[str]:
        """The subset of `parts` that the head has for this architecture."""
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
            masked_positions: int [B, P], the positions that a masked LM predicts; None: all.
            dropout_rows: int [B], the row numbers; they and the rng "dropout" determine the
                dropout. None: no dropout.
            output_hidden_states: whether to return "hidden_states".

        Returns:
            The outputs of `BertModel`, and the float32 arrays that `outputs` names.
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
        """Computes the outputs of the head from the outputs of `BertModel`."""
        return {}

    def classifier_layer(
        self, features: int, own_rate: float | None = None
    ) -> tuple[Dropout, Linear]:
        """Creates the dropout and the linear layer of a classifier; must be called in `setup`."""
        rates = (own_rate, self.config.classifier_dropout, self.config.hidden_dropout_prob)
        rate = next(rate for rate in rates if rate is not None)
        return Dropout(rate), Linear(self.config, features, self.dtype)


class TokenHead(BertWithHead):
    """Base class of heads that read only the hidden states of the tokens and need no pooler."""

    @property
    def needs_pooler(self) -> bool:
        """Always False: these heads do not use the pooler."""
        return False
