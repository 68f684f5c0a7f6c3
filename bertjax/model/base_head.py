"""`BertWithHead`, the base class of the heads: the encoder, and what a head states about itself."""

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
    training_parts: ClassVar[tuple[str, ...]] = ()
    """Top-level names of parameters that only a training has; model directories lack them."""
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

    @classmethod
    def for_pretraining(cls, config: PretrainConfig) -> Self:
        """The model that a pretraining run trains; precision and kernels are set later."""
        return cls(config.model)

    @property
    def is_random(self) -> bool:
        """Whether the outputs depend on the rng "dropout" in training."""
        return any(getattr(self.config, rate) for rate in DROPOUT_FIELDS)

    @property
    def trained_encoders(self) -> tuple[tuple[BertConfig, bool], ...]:
        """The encoders of a training step, each with whether it predicts words; for its FLOP."""
        return ((self.config, "predictions" in self.parts),)

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


class TokenHead(BertWithHead):
    """A head that reads the hidden states of the tokens only."""

    @property
    def needs_pooler(self) -> bool:
        """False."""
        return False
