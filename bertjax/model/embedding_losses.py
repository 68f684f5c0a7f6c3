"""Training objectives of sentence embeddings: in-batch negatives, and cosines of scored pairs.

Array shapes: B rows, K sequences packed into a row, n examples of C texts each, N examples of the
global batch, D dimensions of an embedding. The texts of an example are the anchor, the positive
and C - 2 hard negatives.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import optax

from bertjax.model.losses import OUTSIDE, Arrays, Objective, Sums, label_weights

# The usual temperature of cosines, whose inverse is the scale 20 of sentence-transformers.
TEMPERATURE = 0.05


def unit(x: jax.Array) -> jax.Array:
    """Divides vectors [..., D] by their Euclidean length; the gradient is finite at zero."""
    squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x / jnp.sqrt(jnp.maximum(squares, 1e-24))


# The key, in `outputs` and in `batch`, of the arrays of the whole global batch.
GLOBAL = "global"


def _sizes(full: int, matryoshka: tuple[int, ...]) -> Iterator[int]:
    yield full
    yield from (size for size in matryoshka if size != full)


def contrastive_sums(
    outputs: Arrays, batch: Arrays, *, temperature: float, matryoshka: tuple[int, ...] = ()
) -> Sums:
    """Sums the cross entropies with which anchors find their positives in the global batch.

    The logits are the cosines of an anchor with the positives and the hard negatives of all
    examples, divided by the temperature (Henderson et al. 2017, 4.4; van den Oord et al. 2018).
    A candidate is no negative of an anchor if its text is the text of the anchor or its positive,
    or if it is the positive of another example with the same anchor. For each size in
    `matryoshka`, the same loss of the first `size` dimensions is added (Kusupati et al. 2022).
    Returns "loss", in nats, and "accuracy", of the full size.

    Args:
        outputs: sentence_embedding float [n, C, D]; under `GLOBAL`, of the global batch, [N, C, D].
        batch: example_ids int [n], the indices of the n examples among the N; labels int [n, C], a
            hash of each text; label_weights float [n], 0 for an example that does not exist; under
            `GLOBAL`, labels [N, C] and label_weights [N].
    """
    weights = batch["label_weights"]
    own = jax.nn.one_hot(batch["example_ids"], len(batch[GLOBAL]["labels"]), dtype=bool)  # [n, N]
    is_positive = jnp.arange(batch["labels"].shape[1] - 1) == 0  # [C - 1]
    target = (own[:, :, None] & is_positive[None, None]).reshape(len(own), -1)  # [n, N (C - 1)]
    excluded = _no_negatives(batch, is_positive) & ~target
    labels = jnp.argmax(target, axis=-1)
    total = jnp.zeros(())
    right = jnp.zeros(weights.shape, bool)
    full = outputs["sentence_embedding"].shape[-1]
    for size in _sizes(full, matryoshka):
        anchors = unit(outputs["sentence_embedding"][:, 0, :size])
        candidates = unit(outputs[GLOBAL]["sentence_embedding"][:, 1:, :size]).reshape(-1, size)
        logits = jnp.matmul(anchors, candidates.T, precision="highest") / temperature
        logits = jnp.where(excluded, OUTSIDE, logits)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        total += jnp.sum(losses * weights)
        if size == full:
            right = jnp.argmax(logits, axis=-1) == labels
    return {
        "loss": (total, jnp.sum(weights)),
        "accuracy": (jnp.sum(right * weights), jnp.sum(weights)),
    }


def _no_negatives(batch: Arrays, is_positive: jax.Array) -> jax.Array:
    """Returns a bool mask [n, N (C - 1)] of the candidates that are no negatives of an anchor."""
    everything = batch[GLOBAL]
    texts = everything["labels"][:, 1:]  # [N, C - 1]
    missing = jnp.broadcast_to((everything["label_weights"] == 0)[:, None], texts.shape)
    same_anchor = batch["labels"][:, :1] == everything["labels"][:, 0][None]  # [n, N]
    same_text = (batch["labels"][:, :2, None, None] == texts[None, None]).any(1)  # [n, N, C - 1]
    mask = missing[None] | same_text | (same_anchor[:, :, None] & is_positive[None, None])
    return mask.reshape(len(mask), -1)


def similarity_sums(outputs: Arrays, batch: Arrays, *, matryoshka: tuple[int, ...] = ()) -> Sums:
    """Sums the squared differences of cosines and scores (Reimers and Gurevych 2019, 3).

    For each size in `matryoshka`, the same loss of the first `size` dimensions is added.

    Args:
        outputs: sentence_embedding float [B, K, D], of which two consecutive ones are a pair.
        batch: labels float [B, K/2], the scores, between 0 and 1; label_weights float [B, K/2].
    """
    weights = batch["label_weights"]
    vectors = outputs["sentence_embedding"]
    pairs = vectors.reshape(*weights.shape, 2, -1)  # [B, K/2, 2, D]
    total = jnp.zeros(())
    for size in _sizes(pairs.shape[-1], matryoshka):
        texts = unit(pairs[..., :size])
        cosines = jnp.sum(texts[:, :, 0] * texts[:, :, 1], axis=-1)
        total += jnp.sum(jnp.square(cosines - batch["labels"]) * weights)
    return {"loss": (total, jnp.sum(weights))}


def contrastive(temperature: float, matryoshka: tuple[int, ...]) -> Objective:
    """Returns the objective of `contrastive_sums`: in-batch negatives."""
    sums = functools.partial(contrastive_sums, temperature=temperature, matryoshka=matryoshka)
    return Objective(sums, label_weights, {"loss": 1.0}, min_weight=1e-12, compares_examples=True)


def similarity(matryoshka: tuple[int, ...]) -> Objective:
    """Returns the objective of `similarity_sums`: cosines of scored pairs."""
    sums = functools.partial(similarity_sums, matryoshka=matryoshka)
    return Objective(sums, label_weights, {"loss": 1.0}, min_weight=1e-12)
