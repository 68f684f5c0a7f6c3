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
        outputs: prediction_logits [B, P, V], seq_relationship_logits [B, K, 2].
        batch: masked_labels int [B, P], masked_weights float [B, P], labels int [B, K].
    """
    mlm_loss, mlm_right = _cross_entropy(outputs["prediction_logits"], batch["masked_labels"])
    nsp_labels = batch["labels"]
    nsp_loss, nsp_right = _cross_entropy(
        outputs["seq_relationship_logits"], jnp.maximum(nsp_labels, 0)
    )
    mlm_weights = batch["masked_weights"]
    nsp_weights = (nsp_labels >= 0).astype(jnp.float32)
    weights = pretraining_weights(batch)
    return {
        "mlm_loss": (jnp.sum(mlm_loss * mlm_weights), weights["mlm"]),
        "mlm_accuracy": (jnp.sum(mlm_right * mlm_weights), weights["mlm"]),
        "nsp_loss": (jnp.sum(nsp_loss * nsp_weights), weights["nsp"]),
        "nsp_accuracy": (jnp.sum(nsp_right * nsp_weights), weights["nsp"]),
    }


def pretraining_loss(sums: Sums, weights: Mapping[str, jax.Array]) -> jax.Array:
    """MLM mean plus NSP mean, each over the whole batch's `weights` (google: per replica)."""
    mlm = sums["mlm_loss"][0] / jnp.maximum(weights["mlm"], 1.0)
    nsp = sums["nsp_loss"][0] / jnp.maximum(weights["nsp"], 1.0)
    return mlm + nsp


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """logits [..., C], labels int [...] -> losses [...], and 1.0 where the best guess is right."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses, (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
