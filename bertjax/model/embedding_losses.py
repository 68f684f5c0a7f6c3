"""Training objectives of sentence embeddings: in-batch negatives, scored pairs, a teacher's scores.

Array shapes: B rows, K sequences packed into a row, n examples of C texts each, N examples of the
global batch, D dimensions of an embedding. The texts of an example are the anchor, the positive
and C - 2 hard negatives.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.model import losses
from bertjax.model.losses import OUTSIDE, Arrays, Objective, Sums, label_weights

Sizes = tuple[int, ...]
# The usual temperature of cosines, whose inverse is the scale 20 of sentence-transformers.
TEMPERATURE = 0.05


def unit(x: jax.Array) -> jax.Array:
    """Divides vectors [..., D] by their Euclidean length; the gradient is finite at zero."""
    squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    length = jnp.sqrt(jnp.maximum(squares, 1e-24))
    return x / length


# The key, in `outputs` and in `batch`, of the arrays of the whole global batch.
GLOBAL = "global"


def _sizes(full: int, matryoshka: Sizes) -> list[int]:
    return [full, *(size for size in matryoshka if size != full)]


def contrastive_sums(
    outputs: Arrays,
    batch: Arrays,
    *,
    temperature: float,
    matryoshka: Sizes = (),
    symmetric: bool = False,
    margin: float | None = None,
    cosine: bool = True,
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
            hash of each text; label_weights float [n], 0 for an example that does not exist; both
            also under `GLOBAL`.
        symmetric: whether the loss is the mean of this one and of that with which positives find
            their anchors among all anchors (Li et al. 2023, without the pairs of one side).
        margin: a candidate whose cosine is above that of the positive minus `margin` is no negative
            either (Solatorio 2024, with the model as its own guide); None: it is.
        cosine: whether cosines are compared, or else dot products.
    """
    weights = batch["label_weights"]
    options = temperature, matryoshka, margin, cosine
    entropies, is_nearest = _entropies(outputs, batch, *options)
    if symmetric:
        outputs = _turned(outputs)
        batch = _turned(batch)
        of_positives, _ = _entropies(outputs, batch, *options)
        entropies = [entropy / 2 for entropy in entropies + of_positives]
    total = jnp.zeros(())
    for entropy in entropies:
        total += jnp.sum(entropy * weights)
    examples = jnp.sum(weights)
    return {
        "loss": (total, examples),
        "accuracy": (jnp.sum(is_nearest * weights), examples),
    }


def _turned(arrays: Arrays) -> Arrays:
    """Exchanges anchors and positives, and leaves out the hard negatives."""
    turned = dict(arrays)
    for key in ("sentence_embedding", "labels"):
        if key in arrays:
            turned[key] = arrays[key][:, 1::-1]
    if GLOBAL in arrays:
        turned[GLOBAL] = _turned(arrays[GLOBAL])
    return turned


def _entropies(
    outputs: Arrays,
    batch: Arrays,
    temperature: float,
    matryoshka: Sizes,
    margin: float | None,
    cosine: bool,
) -> tuple[list[jax.Array], jax.Array]:
    """Returns the losses [n] of each size, and whether each positive is the nearest, bool [n]."""
    examples = len(batch[GLOBAL]["labels"])
    own = jax.nn.one_hot(batch["example_ids"], examples, dtype=bool)  # [n, N]
    is_positive = jnp.arange(batch["labels"].shape[1] - 1) == 0  # [C - 1]
    target = own[:, :, None] & is_positive[None, None]
    target = target.reshape(len(own), -1)  # [n, N (C - 1)]
    excluded = no_negatives(batch, is_positive) & ~target
    labels = jnp.argmax(target, axis=-1)
    entropies: list[jax.Array] = []
    is_nearest = jnp.zeros(labels.shape, bool)
    texts = outputs["sentence_embedding"]
    everything = outputs[GLOBAL]["sentence_embedding"]
    full = texts.shape[-1]
    for size in _sizes(full, matryoshka):
        anchors = texts[:, 0, :size]  # [n, size]
        candidates = everything[:, 1:, :size]
        if cosine:
            anchors = unit(anchors)
            candidates = unit(candidates)
        candidates = candidates.reshape(-1, size)  # [N (C - 1), size]
        logits = jnp.matmul(anchors, candidates.T, precision="highest") / temperature
        if margin is not None and size == full:
            of_positive = jnp.take_along_axis(logits, labels[:, None], axis=1)
            is_too_near = logits > of_positive - margin / temperature
            excluded |= is_too_near & ~target
        logits = jnp.where(excluded, OUTSIDE, logits)
        entropies.append(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        if size == full:
            is_nearest = jnp.argmax(logits, axis=-1) == labels
    return entropies, is_nearest


def no_negatives(batch: Arrays, is_positive: jax.Array) -> jax.Array:
    """Returns a bool mask [n, N (C - 1)] of the candidates that are no negatives of an anchor."""
    own = batch["labels"]
    everything = batch[GLOBAL]["labels"]
    texts = everything[:, 1:]  # [N, C - 1]
    is_missing = batch[GLOBAL]["label_weights"] == 0
    missing = jnp.broadcast_to(is_missing[:, None], texts.shape)
    same_anchor = own[:, :1] == everything[:, 0][None]  # [n, N]
    is_same = own[:, :2, None, None] == texts[None, None]  # [n, 2, N, C - 1]
    same_text = is_same.any(1)
    mask = missing[None] | same_text
    mask |= same_anchor[:, :, None] & is_positive[None, None]
    return mask.reshape(len(mask), -1)


def similarity_sums(outputs: Arrays, batch: Arrays, *, matryoshka: Sizes = ()) -> Sums:
    """Sums the squared differences of cosines and scores (Reimers and Gurevych 2019, 3).

    The outputs are sentence_embedding float [B, K, D], of which two consecutive ones are a pair,
    and the batch has labels float [B, K/2], the scores, between 0 and 1, and label_weights alike.
    """
    weights = batch["label_weights"]
    vectors = outputs["sentence_embedding"]
    pairs = vectors.reshape(*weights.shape, 2, -1)  # [B, K/2, 2, D]
    total = jnp.zeros(())
    for size in _sizes(pairs.shape[-1], matryoshka):
        texts = unit(pairs[..., :size])
        first = texts[:, :, 0]
        second = texts[:, :, 1]
        cosines = jnp.sum(first * second, axis=-1)
        errors = jnp.square(cosines - batch["labels"])
        total += jnp.sum(errors * weights)
    return {"loss": (total, jnp.sum(weights))}


def cosent_sums(
    outputs: Arrays, batch: Arrays, *, temperature: float, matryoshka: Sizes = ()
) -> Sums:
    """Computes the ranking loss of scored pairs, CoSENT (Huang et al. 2024), of the global batch.

    It is log(1 + the sum of exp((cosine - higher cosine) / temperature)) over all two pairs of
    texts of which the first has the lower score and "higher" is that of the second; the arguments
    are those of `contrastive_sums`, with C = 2, and labels float [n], the scores. Each device adds
    its share of this one loss.
    """
    everything = batch[GLOBAL]
    scores = everything["labels"]
    exists = everything["label_weights"] > 0
    lower = scores[:, None] < scores[None]  # [N, N]
    lower = lower & exists[:, None] & exists[None]
    total = jnp.zeros(())
    vectors = outputs[GLOBAL]["sentence_embedding"]
    for size in _sizes(vectors.shape[-1], matryoshka):
        texts = unit(vectors[..., :size])
        first = texts[:, 0]
        second = texts[:, 1]
        cosines = jnp.sum(first * second, axis=-1) / temperature
        differences = cosines[:, None] - cosines[None]
        terms = jnp.where(lower, differences, OUTSIDE)
        total += jnp.logaddexp(jax.nn.logsumexp(terms), 0.0)
    share = jnp.sum(batch["label_weights"])
    return {"loss": (total * share, share)}


def distilled_sums(
    outputs: Arrays, batch: Arrays, *, temperature: float | None, matryoshka: Sizes = ()
) -> Sums:
    """Sums the losses of dot products beside a teacher's scores of the same texts.

    The loss is `soft_targets_loss` over the positive and the hard negatives of an anchor (Lin et
    al. 2020), or `margin_loss` if the temperature is None. With `matryoshka`, the vectors of all
    sizes are divided by their lengths first. The outputs are sentence_embedding float [B, K, D], of
    which C consecutive ones are an example, and the batch has labels float [B, K/C, C - 1], the
    scores, and label_weights float [B, K/C].
    """
    weights = batch["label_weights"]
    teacher = batch["labels"]
    vectors = outputs["sentence_embedding"]
    texts = vectors.reshape(*weights.shape, -1, vectors.shape[-1])  # [B, K/C, C, D]
    total = jnp.zeros(())
    for size in _sizes(texts.shape[-1], matryoshka):
        x = unit(texts[..., :size]) if matryoshka else texts
        anchors = x[..., :1, :]
        others = x[..., 1:, :]
        student = jnp.sum(anchors * others, axis=-1)  # [B, K/C, C - 1]
        values = losses.scores_loss(student, teacher, temperature)
        total += jnp.sum(values * weights)
    return {"loss": (total, jnp.sum(weights))}


def embedding_objective(
    loss: str,
    *,
    temperature: float | None = None,
    matryoshka: Sizes = (),
    margin: float | None = None,
) -> Objective:
    """Returns the objective that `--loss` names, or the first one of a kind of labels.

    `margin` is that of `contrastive_sums`; without a temperature, the losses have their usual one.
    """
    options: dict[str, Any] = {"matryoshka": matryoshka}
    in_batch = loss in ("contrastive", "symmetric", "simcse")
    if in_batch:
        sums = contrastive_sums
        options["temperature"] = temperature or TEMPERATURE
        options["margin"] = margin
        options["symmetric"] = loss == "symmetric"
    elif loss == "cosent":
        sums = cosent_sums
        options["temperature"] = temperature or TEMPERATURE
    elif loss == "similarity":
        sums = similarity_sums
    else:
        sums = distilled_sums
        options["temperature"] = None if loss == "margin" else temperature or 1.0
    return Objective(
        functools.partial(sums, **options),
        label_weights,
        {"loss": 1.0},
        min_weight=1e-12,
        compares_examples=in_batch or loss == "cosent",
    )
