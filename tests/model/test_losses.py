"""Losses are means over what is labelled, however it is cut."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_expit, log_softmax

from bertjax.model.heads import BertForSequenceClassification
from bertjax.model.losses import CHOICE, CLASSES, MULTI_LABEL, PRETRAINING, STEP
from bertjax.model.sparse_embedding import DOCUMENT_FLOPS, QUERY_FLOPS, with_warmup
from bertjax.tasks.reranking import RerankOptions


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
    sums = jax.jit(PRETRAINING.sums)(outputs, batch)
    found = PRETRAINING.loss(sums, PRETRAINING.weights(batch))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
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


def loss_and_gradient(objective, logits, batch, **options):
    """Of logits [B, K, C], or [B, L] of choices, and labels."""
    sums = functools.partial(objective.sums, **options)

    @jax.jit
    @jax.value_and_grad
    def loss_of(logits):
        return objective.loss(sums({"logits": logits}, batch), objective.weights(batch))

    return loss_of(logits)


WEIGHTS = (0.5, 0.0, 2.0, 1.5)


@pytest.mark.parity
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_smoothed_and_weighted_classes_are_those_of_cross_entropy_loss(smoothing, weights):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 5, 4)).astype(np.float32) * 3
    labels = rng.integers(-1, 4, (3, 5)).astype(np.int32)
    of_labels = np.asarray(weights or (1.0,) * 4, np.float32)[np.maximum(labels, 0)]
    batch = {"labels": labels, "label_weights": np.where(labels < 0, 0, of_labels)}
    options = {"label_smoothing": smoothing, "class_weights": weights}
    found = loss_and_gradient(CLASSES, logits, batch, **options)
    theirs = torch.tensor(logits.reshape(-1, 4), requires_grad=True)
    loss = torch.nn.CrossEntropyLoss(
        None if weights is None else torch.tensor(weights),
        ignore_index=-1,
        label_smoothing=smoothing,
    )(theirs, torch.tensor(labels.reshape(-1)).long())
    loss.backward()
    np.testing.assert_allclose(found[0], loss.item(), rtol=1e-5)
    np.testing.assert_allclose(found[1].reshape(-1, 4), theirs.grad, atol=1e-5)


@pytest.mark.parity
def test_smoothed_choices_are_those_of_cross_entropy_loss():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 8)).astype(np.float32)
    batch = {"labels": rng.integers(0, 4, (3, 2)), "label_weights": np.ones((3, 2), np.float32)}
    batch["labels"][1, 1], batch["label_weights"][1, 1] = -1, 0.0
    found = loss_and_gradient(CHOICE, logits, batch, label_smoothing=0.2)
    theirs = torch.tensor(logits, requires_grad=True)
    loss = torch.nn.CrossEntropyLoss(ignore_index=-1, label_smoothing=0.2)(
        theirs.reshape(6, 4), torch.tensor(batch["labels"].reshape(-1))
    )
    loss.backward()
    np.testing.assert_allclose(found[0], loss.item(), rtol=1e-5)
    np.testing.assert_allclose(found[1], theirs.grad, atol=1e-5)


@pytest.mark.parity
def test_weights_of_several_labels_are_pos_weight():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 2, 4)).astype(np.float32)
    batch = {"labels": rng.integers(0, 2, (3, 2, 4)).astype(np.float32)}
    batch["label_weights"] = np.ones((3, 2), np.float32)
    found = loss_and_gradient(MULTI_LABEL, logits, batch, class_weights=WEIGHTS)
    theirs = torch.tensor(logits, requires_grad=True)
    loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(WEIGHTS))(
        theirs, torch.tensor(batch["labels"])
    )
    loss.backward()
    np.testing.assert_allclose(found[0], loss.item(), rtol=1e-5)
    np.testing.assert_allclose(found[1], theirs.grad, atol=1e-5)


@pytest.mark.parametrize("loss", ["binary", "listwise", "margin", "kl"])
def test_losses_of_rankings_are_those_of_their_formulas(loss, tiny_config):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 3, 4)), rng.random((2, 3, 4))
    labels /= labels.sum(-1, keepdims=True)
    options = RerankOptions(loss=loss, temperature=0.5)
    objective = BertForSequenceClassification(tiny_config).objective("ranking", options)
    outputs = {"logits": logits.reshape(2, 12, 1)}
    batch = {"labels": labels, "label_weights": np.ones((2, 3))}
    arrays = jax.tree.map(np.float32, (outputs, batch))
    sums = jax.jit(objective.sums)(*arrays)
    found = objective.loss(sums, objective.weights(arrays[1]))
    if loss == "binary":
        values = -labels * log_expit(logits) - (1 - labels) * log_expit(-logits)
        expected = values.mean()
    elif loss == "listwise":
        expected = -(labels * log_softmax(logits, axis=-1)).sum(-1).mean()
    elif loss == "margin":
        errors = logits - labels
        expected = np.square(errors[..., :1] - errors[..., 1:]).mean()
    else:
        teacher, student = (log_softmax(x / 0.5, axis=-1) for x in (labels, logits))
        expected = 0.25 * (np.exp(teacher) * (teacher - student)).sum(-1).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_weights_of_sparsity_rise_quadratically():
    names = (QUERY_FLOPS, DOCUMENT_FLOPS)
    objective = with_warmup(PRETRAINING._replace(loss_weights=dict.fromkeys(names, 3.0)), 10)
    sums, totals = dict.fromkeys(names, (2.0, 1.0)), dict.fromkeys(names, 1.0)
    losses = [objective.loss(sums, totals | {STEP: jnp.asarray(n)}) for n in (0, 5, 10, 20)]
    np.testing.assert_allclose(losses, [0, 3, 12, 12])
    np.testing.assert_allclose(objective.loss(sums, totals), 12)  # an evaluation
