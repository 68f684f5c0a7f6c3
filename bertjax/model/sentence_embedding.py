"""Sentence embeddings: pooling, and a head without parameters of its own.

Array shapes: B rows, K sequences packed into a row, L tokens per row, D dimensions of an embedding.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from bertjax.base.checked import check
from bertjax.model.base_head import BertWithHead, Outputs, Rows
from bertjax.model.embedding_losses import TEMPERATURE, embedding_objective, unit
from bertjax.model.losses import Objective

Poolings = Literal["mean", "cls"]
"""The mean over all tokens of a text, or the hidden state of its [CLS] token."""


def pooled(
    x: jax.Array, sequence_ids: jax.Array, sequence_starts: jax.Array, pooling: str
) -> jax.Array:
    """Pools the hidden states of each of the K sequences of a row (Reimers and Gurevych 2019, 3).

    The hidden states x are float [B, L, D]; `sequence_ids` and `sequence_starts` are as in
    `Rows`. `pooling` is "mean" for the mean over all tokens of a sequence, or "cls" for the hidden
    state of its [CLS] token. The result is float32 [B, K, D]; the vectors of unused entries of a
    row have no meaning, but are finite.
    """
    check("pooling", pooling, Poolings)
    x = x.astype(jnp.float32)
    if pooling == "cls":
        return jnp.take_along_axis(x, sequence_starts[:, :, None], axis=1)
    numbers = 1 + jnp.arange(sequence_starts.shape[1])
    inside = sequence_ids[:, None, :] == numbers[None, :, None]  # [B, K, L]
    counts = inside.sum(-1, keepdims=True)
    sums = jnp.einsum("bkl,bld->bkd", inside.astype(jnp.float32), x, precision="highest")
    return sums / jnp.maximum(counts, 1)


class BertForSentenceEmbedding(BertWithHead):
    """Computes the embedding of each sequence: sentence_embedding [B, K, D].

    The vectors are pooled from the last hidden states (Reimers and Gurevych 2019, 3). The pooler of
    the encoder, if there is one, is kept and not trained, so that transformers loads it unchanged.

    Attributes:
        pooling: "mean" for the mean over all tokens, or "cls" for the hidden state of [CLS].
        normalize: whether vectors are divided by their Euclidean length.
        temperature: by which the cosines are divided in the loss of in-batch negatives.
        matryoshka: sizes of embeddings that are trained besides the full size.
        loss: the name of the training objective; "": the first one of the kind of the labels.
        false_negative_margin: the `margin` of `contrastive_sums`.
    """

    pooling: str = "mean"
    normalize: bool = False
    temperature: float = TEMPERATURE
    matryoshka: tuple[int, ...] = ()
    loss: str = ""
    false_negative_margin: float | None = None

    outputs = sequence_outputs = ("sentence_embedding",)
    objectives = {
        kind: embedding_objective(kind, TEMPERATURE, ())
        for kind in ("contrastive", "similarity", "distilled")
    }

    def objective(self, kind: str) -> Objective:
        full = self.config.hidden_size
        if wrong := [size for size in self.matryoshka if not 1 <= size <= full]:
            raise ValueError(
                f"matryoshka={list(self.matryoshka)}: the embeddings have {full} numbers, so they "
                f"cannot be cut to {wrong[0]}. Choose sizes from 1 to {full}."
            )
        margin = self.false_negative_margin
        return embedding_objective(self.loss or kind, self.temperature, self.matryoshka, margin)

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        vectors = pooled(
            encoded["last_hidden_state"], rows.sequence_ids, rows.sequence_starts, self.pooling
        )
        return {"sentence_embedding": unit(vectors) if self.normalize else vectors}
