"""The objective of pretraining as a function of parameters and batch."""

from typing import Any

import jax

from bertjax.model import BertForPreTraining
from bertjax.model.losses import pretraining_loss, pretraining_sums

MODEL_INPUTS = (
    "input_ids",
    "token_type_ids",
    "position_ids",
    "sequence_ids",
    "sequence_starts",
)


def make_loss_fn(model: BertForPreTraining):
    """The loss of pretraining as `train.step` wants it: each row with its own dropout key.

    The model runs on one row and is mapped over the rows, so that a row's dropout depends on its
    key alone and not on the rows beside it. The products compile to the same ones.
    """

    def one_row(params, inputs, masked_positions, dropout_key):
        outputs = model.apply(
            {"params": params},
            *(x[None] for x in inputs),
            masked_positions=masked_positions[None],
            deterministic=False,
            rngs={"dropout": dropout_key},
        )
        return jax.tree.map(lambda x: x[0], outputs)

    dropout = max(model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) > 0

    def loss_fn(params, batch, weights, dropout_keys):
        inputs = [batch[key] for key in MODEL_INPUTS]
        if dropout and dropout_keys is not None:
            over_rows = jax.vmap(one_row, in_axes=(None, 0, 0, 0))
            outputs: Any = over_rows(params, inputs, batch["masked_positions"], dropout_keys)
        else:
            outputs: Any = model.apply(
                {"params": params}, *inputs, masked_positions=batch["masked_positions"]
            )
        sums = pretraining_sums(outputs, batch)
        return pretraining_loss(sums, weights), sums

    return loss_fn
