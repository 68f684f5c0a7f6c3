"""Losses are means over what is labelled, however it is cut."""

import jax
import numpy as np

from bertjax.model.losses import PRETRAINING


def random_outputs_and_batch(rows=6):
    rng = np.random.default_rng(0)
    outputs = {
        "prediction_logits": rng.normal(size=(rows, 4, 11)).astype(np.float32),
        "seq_relationship_logits": rng.normal(size=(rows, 2, 2)).astype(np.float32),
    }
    batch = {
        "masked_labels": rng.integers(0, 11, (rows, 4)),
        "masked_weights": rng.integers(0, 2, (rows, 4)).astype(np.float32),
        "labels": rng.integers(-1, 2, (rows, 2)),
    }
    return outputs, batch


def test_the_loss_is_the_sum_of_two_means():
    outputs, batch = random_outputs_and_batch()

    def negative_log_likelihood(logits, labels):
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]

    mlm = negative_log_likelihood(outputs["prediction_logits"], batch["masked_labels"])
    nsp = negative_log_likelihood(
        outputs["seq_relationship_logits"], np.maximum(batch["labels"], 0)
    )
    expected = mlm[batch["masked_weights"] > 0].mean() + nsp[batch["labels"] >= 0].mean()
    sums = PRETRAINING.sums(outputs, batch)
    found = PRETRAINING.loss(sums, PRETRAINING.weights(batch))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sums_of_parts_add_up_to_the_sums_of_the_whole():
    outputs, batch = random_outputs_and_batch()
    whole = PRETRAINING.sums(outputs, batch)
    parts = [
        PRETRAINING.sums(*jax.tree.map(lambda x, s=s: x[s], (outputs, batch)))
        for s in (slice(0, 1), slice(1, 6))
    ]
    jax.tree.map(lambda w, a, b: np.testing.assert_allclose(w, a + b, rtol=1e-6), whole, *parts)


def test_a_batch_without_labels_has_a_finite_loss():
    outputs, batch = random_outputs_and_batch()
    batch["masked_weights"][:] = 0
    batch["labels"][:] = -1
    sums = PRETRAINING.sums(outputs, batch)
    assert float(PRETRAINING.loss(sums, PRETRAINING.weights(batch))) == 0.0
