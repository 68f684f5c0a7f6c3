"""Sparse embeddings: weights of the words of the vocabulary, and the losses that train them.

Array shapes: B rows, L tokens per row, K sequences packed into a row, V words of the vocabulary, n
examples of C texts each, N examples of the global batch.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.model.embedding_losses import GLOBAL, contrastive_sums, distilled_sums
from bertjax.model.linear import platform, project
from bertjax.model.losses import Arrays, Objective, Sums

# The number of words whose logits, [B, L, BLOCK], are in memory at a time.
BLOCK = 2048
# The usual weight of the FLOPS of queries that the model encodes.
QUERY_WEIGHT = 5e-5
QUERY_FLOPS = "query_flops"
DOCUMENT_FLOPS = "document_flops"


def pooled_words(
    x: jax.Array,
    words: jax.Array,
    bias: jax.Array | None,
    inside: jax.Array,
    *,
    pooling: str,
    activation: str,
) -> jax.Array:
    """Pools the weights of words over the tokens of each sequence (Formal et al. 2021, 3.2).

    The weight of a word at a token is log(1 + relu(logit)), and log(1 + log(1 + relu(logit))) with
    the activation "log1p_relu" (Geng et al. 2024). The logits of all tokens are never in memory at
    once: the words are computed in blocks and, for the pooling "sum", again in the backward pass.
    With "max", the gradient goes to the first of several tokens with the same weight.

    Args:
        x: the states from which words are predicted, float [B, L, E].
        words: the output matrix, float [V, E], and `bias`, float [V]; None: there is none.
        inside: bool [B, K, L], which tokens belong to a sequence.
        pooling: "max" (Formal et al. 2021b), or "sum".
        activation: "relu" or "log1p_relu".

    Returns:
        float32 [B, K, V].
    """
    count = len(words)
    if bias is None:
        bias = jnp.zeros(count, jnp.float32)
    blocks = -(-count // BLOCK)
    missing = blocks * BLOCK - count
    words = jnp.pad(words, ((0, missing), (0, 0))).reshape(blocks, BLOCK, -1)
    bias = jnp.pad(bias, (0, missing)).reshape(blocks, BLOCK)
    pool = functools.partial(_pooled_block, pooling=pooling, activation=activation)
    if pooling == "sum":
        pool = jax.checkpoint(pool, prevent_cse=False)

    def pooled_block(block: tuple[jax.Array, jax.Array]) -> jax.Array:
        return pool(x, *block, inside)

    pooled = jax.lax.map(pooled_block, (words, bias))  # [blocks, B, K, BLOCK]
    pooled = jnp.moveaxis(pooled, 0, 2)
    return pooled.reshape(*inside.shape[:2], -1)[..., :count]


def _pooled_block(
    x: jax.Array,
    words: jax.Array,
    bias: jax.Array,
    inside: jax.Array,
    pooling: str,
    activation: str,
) -> jax.Array:
    logits = project(x, words, transposed=True, float32=True).astype(jnp.float32)
    logits += bias.astype(jnp.float32)[None, None]
    if pooling == "max":
        # The weight grows with the logit, so the highest logit has the highest weight.
        return word_weights(_highest(logits, inside), activation)
    weights = word_weights(logits, activation)
    return jnp.einsum("bkl,blv->bkv", inside.astype(jnp.float32), weights, precision="highest")


def _highest(logits: jax.Array, inside: jax.Array) -> jax.Array:
    """Returns the highest logit of each sequence, or 0: [B, L, V], [B, K, L] -> [B, K, V].

    The backward pass scatters gradients to the highest logits, and does not need the logits again.
    """
    if platform() == "cpu":
        positions = jax.vmap(_highest_positions)(jax.lax.stop_gradient(logits), inside)
    else:
        # Accelerators, where many small steps are slow, read the logits once per sequence.
        positions = jnp.where(inside[..., None], logits[:, None], -jnp.inf).argmax(2)
    # Unused entries of a row have no tokens.
    return jnp.take_along_axis(logits, positions, axis=1) * inside.any(2, keepdims=True)


def _highest_positions(logits: jax.Array, inside: jax.Array) -> jax.Array:
    """Returns the positions of a row's highest logits in one pass: [L, V], [K, L] -> [K, V]."""
    sequences = inside.argmax(0)
    logits = jnp.where(inside.any(0)[:, None], logits, -jnp.inf)

    def step(place: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        highest, positions = state
        sequence = sequences[place]
        logit = logits[place]
        before = highest[sequence]
        # A logit that is not a number stays the highest, so that the loss tells of it.
        stays = (logit <= before) | jnp.isnan(before)
        position = jnp.where(stays, positions[sequence], place)
        # `at[].set` is in place; `at[].max` was twice as slow.
        return (
            highest.at[sequence].set(jnp.maximum(logit, before)),
            positions.at[sequence].set(position),
        )

    shape = (len(inside), logits.shape[1])
    state = (jnp.full(shape, -jnp.inf), jnp.zeros(shape, int))
    return jax.lax.fori_loop(0, len(logits), step, state)[1]


def word_weights(logits: jax.Array, activation: str) -> jax.Array:
    """Returns the weights of words by their logits, of any shape, as in `pooled_words`."""
    weight = jnp.log1p(jax.nn.relu(logits))
    if activation == "log1p_relu":
        weight = jnp.log1p(weight)
    return weight


def static_weights(input_ids: jax.Array, inside: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the static weights of those words that a sequence has, and 0 for others: [B, K, V].

    The words are those of the tokens int [B, L] that are `inside` the sequence, bool [B, K, L].
    """
    rows, sequences, length = inside.shape
    absent = len(weights)
    ids = jnp.where(inside, input_ids[:, None], absent).reshape(-1, length)
    present = jnp.zeros((len(ids), absent + 1)).at[jnp.arange(len(ids))[:, None], ids].set(1.0)
    present = present[:, :absent].reshape(rows, sequences, absent)
    return present * weights[None, None]


def sparse_sums(outputs: Arrays, batch: Arrays, *, loss: str, temperature: float) -> Sums:
    """Sums the loss of `sparse_objective`, and the FLOPS of the queries and of the documents.

    FLOPS is the sum over all words of the squared mean weight (Paria et al. 2020, 4) in the global
    batch, of which each device has its share. The arguments are those of `contrastive_sums`.
    """
    if loss == "contrastive":
        sums = contrastive_sums(outputs, batch, temperature=temperature, cosine=False)
    else:
        divisor = None if loss == "margin" else temperature
        sums = distilled_sums(outputs, batch, temperature=divisor)
    share = jnp.sum(batch["label_weights"])
    everything = outputs[GLOBAL]["sentence_embedding"]  # [N, C, V]
    exists = batch[GLOBAL]["label_weights"]
    exists = exists / jnp.maximum(jnp.sum(exists), 1e-12)
    means = jnp.einsum("n,ncv->cv", exists, everything, precision="highest")
    of_queries = jnp.sum(jnp.square(means[0]))
    of_documents = jnp.sum(jnp.square(means[1:].mean(0)))
    sums[QUERY_FLOPS] = (of_queries * share, share)
    sums[DOCUMENT_FLOPS] = (of_documents * share, share)
    return sums


def _weights(batch: Arrays) -> dict[str, jax.Array]:
    total = jnp.sum(batch["label_weights"])
    return dict.fromkeys(("loss", QUERY_FLOPS, DOCUMENT_FLOPS), total)


def sparse_objective(
    loss: str, *, temperature: float | None, query_weight: float, document_weight: float
) -> Objective:
    """Returns the objective of sparse embeddings: a loss, and FLOPS times its weights.

    The loss is "contrastive" (the dot products of a query with all documents of the batch), or
    "margin" or "kl" beside a teacher's scores (Formal et al. 2022, 2).
    """
    options: dict[str, Any] = {"loss": loss, "temperature": temperature or 1.0}
    return Objective(
        functools.partial(sparse_sums, **options),
        _weights,
        {"loss": 1.0, QUERY_FLOPS: query_weight, DOCUMENT_FLOPS: document_weight},
        min_weight=1e-12,
        compares_examples=True,
    )


def with_warmup(objective: Objective, steps: int) -> Objective:
    """Lets the weights of FLOPS rise quadratically in the first steps (Formal et al. 2021, 4)."""

    def rising(weight: float, step: jax.Array | None) -> Any:
        if step is None:
            return weight
        return weight * jnp.square(jnp.minimum(step / max(steps, 1), 1.0))

    weights: dict[str, Any] = dict(objective.loss_weights)
    for name in (QUERY_FLOPS, DOCUMENT_FLOPS):
        weights[name] = functools.partial(rising, weights[name])
    return objective._replace(loss_weights=weights)
