"""Losses of sparse embeddings and their gradients are those of sentence-transformers.

Its own losses are the reference, on the same weights and batch without dropout, and its training
is, step by step.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import MeshConfig, Phase
from bertjax.config.finetune_config import FinetuneConfig
from bertjax.data.batches.batch import Feature
from bertjax.devices import sharding
from bertjax.model import sparse_embedding
from bertjax.model.losses import tokens_of_sequences
from bertjax.model.recipe import flattened
from bertjax.model.sparse_embedding import with_warmup
from bertjax.tasks.sparse import SparseOptions
from bertjax.tasks.training_data import Labels, row_shape
from bertjax.train.program import Program
from bertjax.train.step import GlobalLoss, device_axis
from bertjax.weights import load_model
from bertjax.weights.families import config_from_hf
from bertjax.weights.names import to_hf
from tests.cases import WEEKLY
from tests.rows import make_batch
from tests.steps import gradients_of

EXAMPLES, TEXTS, ROWS = 12, 3, 16
KINDS = {"contrastive": "contrastive", "margin": "distilled", "kl": "distilled"}


def options_of(loss, **changes):
    changes = {"temperature": None if loss == "margin" else 2.0} | changes
    return SparseOptions(
        loss=loss, query_regularizer_weight=0.02, document_regularizer_weight=0.03, **changes
    )


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(sparse_embedding, "BLOCK", 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_layer_config, tokenizer, written):
    """A masked LM without dropout."""
    config = dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size)
    config = config.with_dropout(0.0)
    folder = tmp_path_factory.mktemp("masked_lm") / "model"
    return written(folder, config, "masked_lm", tokenizer, spread=0.1)


@pytest.fixture(scope="module")
def library(folder):
    """A sparse encoder of sentence-transformers with the weights of `folder`."""
    pytest.importorskip("torch", reason="the extra `parity` is not installed")
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    transformer = Transformer(str(folder), transformer_task="fill-mask")
    return SparseEncoder(modules=[transformer, SpladePooling()], device="cpu")


def texts_of(count, seed):
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(5, 100, int(rng.integers(3, 10))) for _ in range(TEXTS)] for _ in range(count)
    ]


def features_of(texts, loss, scores):
    features = []
    for row, (texts_of_row, of_row) in enumerate(zip(texts, scores, strict=True)):
        labels = np.arange(TEXTS * row, TEXTS * (row + 1), dtype=np.int32)
        if loss != "contrastive":
            labels = of_row.astype(np.float32)
        lengths = tuple(map(len, texts_of_row))
        ids = np.concatenate(texts_of_row).astype(np.int32)
        features.append(Feature(ids, lengths, lengths, labels))
    return features


def batch_of(texts, loss, scores, length):
    shape = row_shape(length, TEXTS, (ROWS,))
    labels = Labels(KINDS[loss], num_choices=TEXTS)
    return make_batch(features_of(texts, loss, scores), shape, labels, 0)[0]


def their_loss(model, loss, texts, scores, weights=(0.02, 0.03)):
    """The sum of the losses of SpladeLoss, on which `backward` can be called."""
    import torch
    from sentence_transformers.sparse_encoder import losses

    base = {
        "contrastive": lambda: losses.SparseMultipleNegativesRankingLoss(model, scale=0.5),
        "margin": lambda: losses.SparseMarginMSELoss(model),
        "kl": lambda: losses.SparseDistillKLDivLoss(model, temperature=2.0),
    }[loss]()
    query, document = weights
    splade = losses.SpladeLoss(
        model, base, query_regularizer_weight=query, document_regularizer_weight=document
    )
    columns = []
    for column in zip(*texts, strict=True):
        ids = np.zeros((len(column), max(map(len, column))), int)
        for row, text in enumerate(column):
            ids[row, : len(text)] = text
        ids = torch.tensor(ids)
        columns.append({"input_ids": ids, "attention_mask": (ids > 0).long()})
    parts = splade(columns, torch.tensor(np.array(scores), dtype=torch.float32))
    return sum(parts.values())


def mesh_of(devices):
    return sharding.make_mesh(MeshConfig(), jax.devices()[:devices])


def ours(loaded, loss, batch, devices=1, steps=1):
    mesh = mesh_of(devices)
    axis = device_axis(mesh)
    objective = loaded.model.objective(KINDS[loss], options_of(loss))
    loss_fn = GlobalLoss(loaded.model, objective, EXAMPLES, steps, axis, devices if axis else 1)
    return gradients_of(loss_fn, objective, loaded.params, batch, mesh, 1)


@pytest.mark.parity
@pytest.mark.parametrize(
    "loss",
    [
        "contrastive",
        pytest.param("margin", marks=WEEKLY),  # fifty steps of it are in CI
        pytest.param("kl", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("length", "devices", "steps"),
    [
        (16 * TEXTS, 1, 1),
        pytest.param(128, 1, 2, marks=WEEKLY),
        pytest.param(128, 8, 2, marks=pytest.mark.slow),
        pytest.param(16 * TEXTS, 8, 1, marks=WEEKLY),
    ],
)
def test_losses_and_gradients_are_those_of_the_library(
    library, folder, loss, length, devices, steps
):
    texts = texts_of(EXAMPLES, 0)
    scores = np.random.default_rng(1).normal(size=(EXAMPLES, TEXTS - 1)) * 3
    loaded = load_model(folder, "sparse")
    found, _, gradients = ours(loaded, loss, batch_of(texts, loss, scores, length), devices, steps)
    library.train()  # its pooling in evaluation has no gradient; dropout rates are 0
    library.zero_grad()
    expected = their_loss(library, loss, texts, scores)
    expected.backward()
    np.testing.assert_allclose(found, expected.item(), rtol=1e-6)
    compare(gradients, library[0].model, lambda parameter: parameter.grad)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_words_have_the_highest_weight_of_each_sequence_and_its_gradient(platform, monkeypatch):
    monkeypatch.setattr(sparse_embedding, "platform", lambda: platform)
    rng = np.random.default_rng(0)
    # Three sequences or two, one of a single token, padding at the end or none.
    sequence_ids = np.array([[1] * 5 + [2] + [3] * 4 + [0] * 2, [1] * 4 + [2] * 8])
    x = rng.normal(size=(2, 12, 6)).astype(np.float32)
    words = rng.normal(size=(70, 6)).astype(np.float32)
    bias = rng.normal(size=70).astype(np.float32)
    wanted = rng.normal(size=(2, 4, 70)).astype(np.float32)
    inside = tokens_of_sequences(jnp.asarray(sequence_ids), 4)

    def ours(x, words, bias):
        pooled = sparse_embedding.pooled_words(
            x, words, bias, inside, pooling="max", activation="relu"
        )
        return jnp.sum(pooled * wanted), pooled

    def reference(x, words, bias):
        weights = jnp.log1p(jax.nn.relu(x @ words.T + bias[None, None]))
        pooled = jnp.max(jnp.where(inside[..., None], weights[:, None], 0.0), axis=2)
        return jnp.sum(pooled * wanted), pooled

    arguments = (x, words, bias)
    gradients, pooled = jax.jit(jax.grad(ours, (0, 1, 2), has_aux=True))(*arguments)
    expected, weights = jax.jit(jax.grad(reference, (0, 1, 2), has_aux=True))(*arguments)
    np.testing.assert_allclose(pooled, weights, atol=1e-6)
    assert not pooled[0, 3].any() and not pooled[1, 2:].any()
    for found, of_reference in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, of_reference, atol=1e-5)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_of_equal_highest_weights_the_first_has_the_gradient(platform, monkeypatch):
    monkeypatch.setattr(sparse_embedding, "platform", lambda: platform)
    inside = tokens_of_sequences(jnp.array([[1, 1, 1, 2, 2]]), 2)
    options = {"pooling": "max", "activation": "relu"}

    def total(x):
        words = np.ones((1, 1), np.float32)
        return jnp.sum(sparse_embedding.pooled_words(x, words, None, inside, **options))

    x = np.array([[[0.5], [1.0], [1.0], [3.0], [3.0]]], np.float32)
    gradient = jax.jit(jax.grad(total))(x)[0, :, 0]
    np.testing.assert_allclose(gradient, [0.0, 0.5, 0.0, 0.25, 0.0])


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_sequence_with_a_logit_that_is_not_a_number_has_such_a_weight(platform, monkeypatch):
    monkeypatch.setattr(sparse_embedding, "platform", lambda: platform)
    inside = tokens_of_sequences(jnp.array([[1, 1, 2, 2, 2]]), 2)
    x = jnp.array([[[1.0], [2.0], [0.5], [jnp.nan], [3.0]]])
    pooled = sparse_embedding.pooled_words(
        x, jnp.ones((1, 1)), None, inside, pooling="max", activation="relu"
    )
    np.testing.assert_array_equal(jnp.isnan(pooled).ravel(), [False, True])


def compare(tree, model, read, tolerance=1e-5):
    """Compares a tree of parameters or gradients with those of a model of transformers."""
    flat = flattened(jax.device_get(tree))
    theirs = dict(model.named_parameters())
    largest = max(np.abs(x).max() for x in flat.values())
    seen = set()
    for name, value in to_hf(flat, config_from_hf(model.config.to_dict())):
        if name in theirs:
            seen.add(name)
            expected = read(theirs[name]).detach().numpy()
            np.testing.assert_allclose(value, expected, atol=tolerance * max(1.0, largest))
    assert seen == theirs.keys()


STEPS, PEAK = 50, 2e-4


@pytest.mark.parity
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param("margin", marks=pytest.mark.slow),
        *(pytest.param(x, marks=WEEKLY) for x in ("contrastive", "kl")),
    ],
)
def test_fifty_steps_have_the_losses_of_the_library(library, folder, loss):
    import torch

    from bertjax.config import OptimizerConfig

    loaded = load_model(folder, "sparse")
    optimizer = OptimizerConfig(
        recipe="adamw", learning_rate=PEAK, warmup_steps=5, weight_decay=0.0
    )
    objective = loaded.model.objective(KINDS[loss], options_of(loss))
    warm = STEPS // 3
    program = Program(
        FinetuneConfig(task="sparse", optimizer=optimizer),
        loaded.model,
        with_warmup(objective, warm),
        (Phase(num_steps=STEPS, max_length=16 * TEXTS, batch_size=EXAMPLES),),
        mesh_of(1),
    )
    step = program.train_step(1)
    state = program.new_state(loaded.params)
    library[0].model.load_state_dict(
        type(library[0].model).from_pretrained(str(folder)).state_dict()
    )
    library.train()  # its pooling in evaluation has no gradient; dropout rates are 0
    torch_optimizer = torch.optim.AdamW(
        library.parameters(), betas=(optimizer.b1, optimizer.b2), eps=optimizer.eps, weight_decay=0
    )
    worst = 0.0
    for number in range(STEPS):
        texts = texts_of(EXAMPLES, number)
        scores = np.random.default_rng(number).normal(size=(EXAMPLES, TEXTS - 1)) * 3
        batch = batch_of(texts, loss, scores, 16 * TEXTS)
        state, metrics = step(state, batch, np.uint32(0), None)
        share = min(number / warm, 1.0) ** 2
        torch_optimizer.zero_grad()
        expected = their_loss(library, loss, texts, scores, (0.02 * share, 0.03 * share))
        expected.backward()
        torch.nn.utils.clip_grad_norm_(library.parameters(), optimizer.max_grad_norm)
        for group in torch_optimizer.param_groups:
            group["lr"] = float(metrics["learning_rate"])
        torch_optimizer.step()
        worst = max(worst, abs(float(metrics["loss"]) / expected.item() - 1))
    print(f"{loss}: the largest relative difference of {STEPS} losses is {worst:.1e}")
    assert worst < 1e-4
