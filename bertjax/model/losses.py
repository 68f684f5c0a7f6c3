"""Losses as mergeable sums: each is (sum of weighted losses, sum of weights).

Sums can be added over microbatches, devices and evaluation batches; only their ratio is a mean.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

Sums = dict[str, tuple[jax.Array, jax.Array]]


def pretraining_weights(batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """How many masked tokens and labelled sequences a batch holds: what its losses divide by.

    Of the batch: masked_weights float [B, P], labels int [B, K] (-1 = none).
    """
    return {
        "mlm": jnp.sum(batch["masked_weights"]),
        "nsp": jnp.sum(batch["labels"] >= 0).astype(jnp.float32),
    }


def pretraining_sums(outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Sums:
    """Sums of losses and of right answers of masked LM and next sentence prediction.

    Args:
        outputs: prediction_logits [B, P, V] and seq_relationship_logits [B, K, 2]; of masked LM
            alone logits [B, P, V], and then there is no sum of pairs.
        batch: masked_labels int [B, P], masked_weights float [B, P], labels int [B, K].
    """
    logits = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"]
    mlm_loss, mlm_right = _cross_entropy(logits, batch["masked_labels"])
    mlm_weights = batch["masked_weights"]
    weights = pretraining_weights(batch)
    sums = {
        "mlm_loss": (jnp.sum(mlm_loss * mlm_weights), weights["mlm"]),
        "mlm_accuracy": (jnp.sum(mlm_right * mlm_weights), weights["mlm"]),
    }
    if "seq_relationship_logits" not in outputs:
        return sums
    nsp_labels = batch["labels"]
    nsp_weights = (nsp_labels >= 0).astype(jnp.float32)
    nsp_loss, nsp_right = _cross_entropy(
        outputs["seq_relationship_logits"], jnp.maximum(nsp_labels, 0)
    )
    return sums | {
        "nsp_loss": (jnp.sum(nsp_loss * nsp_weights), weights["nsp"]),
        "nsp_accuracy": (jnp.sum(nsp_right * nsp_weights), weights["nsp"]),
    }


def pretraining_loss(sums: Sums, weights: Mapping[str, jax.Array]) -> jax.Array:
    """MLM mean plus NSP mean, each over the whole batch's `weights` (google: per replica)."""
    mlm = sums["mlm_loss"][0] / jnp.maximum(weights["mlm"], 1.0)
    if "nsp_loss" not in sums:
        return mlm
    nsp = sums["nsp_loss"][0] / jnp.maximum(weights["nsp"], 1.0)
    return mlm + nsp


def label_weights(batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The weight of all labels of a batch: what the loss of a task divides by."""
    return {"loss": jnp.sum(batch["label_weights"])}


def task_loss(sums: Sums, weights: Mapping[str, jax.Array]) -> jax.Array:
    """The weighted mean over the whole batch."""
    return sums["loss"][0] / jnp.maximum(weights["loss"], 1e-12)


def class_sums(outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Sums:
    """Cross entropy of classes: logits [..., C], labels int and label_weights float [...]."""
    losses, right = _cross_entropy(outputs["logits"], jnp.maximum(batch["labels"], 0))
    return _weighted(losses, batch["label_weights"]) | _weighted(
        right, (batch["label_weights"] > 0).astype(jnp.float32), "accuracy"
    )


def multi_label_sums(outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Sums:
    """Binary cross entropy, mean over C classes: logits and labels [B, K, C], weights [B, K]."""
    losses = optax.sigmoid_binary_cross_entropy(outputs["logits"], batch["labels"])
    return _weighted(losses.mean(-1), batch["label_weights"])


def regression_sums(outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Sums:
    """Squared error: logits [B, K, 1], labels and weights float [B, K]."""
    errors = jnp.square(outputs["logits"][..., 0] - batch["labels"])
    return _weighted(errors, batch["label_weights"])


def choice_sums(outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Sums:
    """Cross entropy over the C choices of an example: logits [B, K], labels [B, K/C]."""
    logits = outputs["logits"]
    rows, examples = batch["labels"].shape
    return class_sums({"logits": logits.reshape(rows, examples, -1)}, batch)


def span_sums(outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Sums:
    """Cross entropy of first and last token, halved, each over the tokens of its own sequence.

    Args:
        outputs: start_logits and end_logits [B, L].
        batch: sequence_ids int [B, L], labels int [B, K, 2], label_weights float [B, K].
    """
    sequences = jnp.arange(1, batch["labels"].shape[1] + 1)
    inside = batch["sequence_ids"][:, None, :] == sequences[None, :, None]  # [B, K, L]
    losses = jnp.zeros(())
    for end, key in enumerate(("start_logits", "end_logits")):
        logits = jnp.where(inside, outputs[key][:, None, :], jnp.finfo(jnp.float32).min)
        found, _ = _cross_entropy(logits, batch["labels"][..., end])
        losses += found / 2
    # An empty slot has no token inside: its loss is finite, but means nothing.
    return _weighted(jnp.where(batch["label_weights"] > 0, losses, 0.0), batch["label_weights"])


def _weighted(values: jax.Array, weights: jax.Array, name: str = "loss") -> Sums:
    return {name: (jnp.sum(values * weights), jnp.sum(weights))}


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """logits [..., C], labels int [...] -> losses [...], and 1.0 where the best guess is right."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses, (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
