"""Training of rerankers: losses, devices, and a directory that CrossEncoder scores equally."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.config import MeshConfig
from bertjax.data.batches.batch import Feature
from bertjax.devices import sharding
from bertjax.model import HEADS
from bertjax.model.losses import ranking
from bertjax.tasks import finetune_config
from bertjax.tasks.reranking import RerankOptions
from bertjax.tasks.training_data import Labels, row_shape
from bertjax.train import experiments as variants
from bertjax.train.step import make_loss_fn
from tests.lines import json_lines
from tests.rows import RATE, make_batch, short_run
from tests.steps import gradients_of


@pytest.mark.parity
@pytest.mark.parametrize("loss", ["binary", "listwise", "margin", "kl"])
def test_losses_and_gradients_are_those_of_pytorch(loss):
    """Formulas of sentence-transformers' losses, with an unused list in each row."""
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 5, 3, 4)).astype(np.float32) * 3
    if loss in ("binary", "listwise"):
        labels = np.eye(4, dtype=np.float32)[np.zeros((5, 3), int)]
    weights = np.array([[1, 1, 0]] * 5, np.float32)
    objective = ranking(loss, 2.0)
    batch = {"labels": labels, "label_weights": weights}

    def mean(logits):
        sums = objective.sums({"logits": logits.reshape(5, 12, 1)}, batch)
        return objective.loss(sums, objective.weights(batch))

    value, gradient = jax.jit(jax.value_and_grad(mean))(jnp.array(logits))
    x = torch.tensor(logits[:, :2].reshape(10, 4), requires_grad=True)
    y = torch.tensor(labels[:, :2].reshape(10, 4))
    expected = {
        "binary": lambda: f.binary_cross_entropy_with_logits(x, y),
        "listwise": lambda: f.cross_entropy(x, torch.zeros(10, dtype=torch.long)),
        "margin": lambda: f.mse_loss(x[:, :1] - x[:, 1:], y[:, :1] - y[:, 1:]),
        "kl": lambda: 4 * f.kl_div(
            f.log_softmax(x / 2, -1), f.softmax(y / 2, -1), reduction="batchmean"
        ),
    }[loss]()  # fmt: skip
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    found = np.asarray(gradient)
    np.testing.assert_allclose(found[:, :2].reshape(10, 4), x.grad.numpy(), atol=1e-5)
    assert not found[:, 2].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        "kl",
        *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("binary", "margin", "listwise")),
    ],
)
def test_devices_and_microbatches_give_the_gradient_of_the_whole(
    loss, one_layer_config, random_params
):
    config = dataclasses.replace(
        one_layer_config, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2
    )
    model = HEADS["sequence_classification"](config, num_labels=1)
    params, rng = random_params(model), np.random.default_rng(0)
    features = []
    for lengths in rng.integers(4, 10, (20, 3)).tolist():
        ids = rng.integers(5, 100, sum(lengths)).astype(np.int32)
        labels = rng.random(3).astype(np.float32)
        features.append(Feature(ids, tuple(lengths), (3, 3, 3), labels))
    shape = row_shape(64, 3, (16,))
    batch, _ = make_batch(features, shape, Labels("ranking", num_choices=3), 0)
    objective = model.objective("ranking", RerankOptions(loss=loss))

    def computed(devices, steps):
        mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:devices])
        loss_fn = make_loss_fn(model, objective)
        return gradients_of(loss_fn, objective, params, batch, mesh, steps)

    expected = computed(1, 1)
    assert expected[1]["loss"][1] == 20 and expected[0] > 0
    found = computed(8, 2)
    for ours, whole in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, whole, atol=2e-6, rtol=1e-5)


@pytest.fixture(scope="module")
def config(one_layer, tmp_path_factory, sentences):
    """The positive begins with the first word of the query."""
    rows = [
        {
            "query": text,
            "positive": " ".join(text.split()[:1] + other.split()),
            "negatives": [other, sentences[99 - i]],
            "scores": [4, -1, -3.5],
        }
        for i, (text, other) in enumerate(zip(sentences[:40], sentences[40:80], strict=True))
    ]
    settings = {"loss": "kl", "temperature": 2.0, "dropout": 0.0}
    return short_run("rerank", one_layer, rows, tmp_path_factory.mktemp("rerank"), **settings)


@pytest.fixture(scope="module")
def result(config):
    return variants.finetune(config)


@pytest.mark.slow
def test_a_run_leaves_a_reranker(result, config, sentences):
    assert set(result.scores) == {"dev/ndcg_at_10", "dev/mrr_at_10", "dev/map"}
    assert all(0 < score <= 1 for score in result.scores.values())
    losses = [x["train/loss"] for x in result.metrics if "train/loss" in x]
    assert losses[-1] < losses[0]
    saved = json.loads((result.directory / "config.json").read_text())
    activation = "torch.nn.modules.linear.Identity"
    assert saved["sentence_transformers"] == {"activation_fn": activation}
    assert saved["sbert_ce_default_activation_function"] == activation
    query, texts = sentences[0], list(sentences[50:54])
    scores = [x["score"] for x in result.model.predict([(query, text) for text in texts])]
    found = result.model.rerank(query, texts)
    assert [row["text"] for row in found] == [texts[row["index"]] for row in found]
    assert [row["score"] for row in found] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    with pytest.raises(ValueError, match="scores passages for a query, but there is only one"):
        result.model.predict(["a text"])
    # The rows that were trained on are ranked by their positives and negatives, as pairs are.
    rows = json_lines(config.options.train)
    whole = bertjax.evaluate(result.model, data=rows)
    texts = [(row["query"], p, int(p == row["positive"])) for row in rows
             for p in (row["positive"], *row["negatives"])]  # fmt: skip
    pairs = [dict(zip(("query", "passage", "label"), row, strict=True)) for row in texts]
    assert bertjax.evaluate(result.model, data=pairs) == pytest.approx(whole)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    "loss",
    [
        "kl",
        "binary",
        *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("margin", "listwise")),
    ],
)
def test_scores_in_cross_encoder_are_ours(loss, config, result, sentences, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    if loss != "kl":
        changes = {"loss": loss, "temperature": None, "workdir": str(tmp_path / "run")}
        result = variants.finetune(finetune_config(config, num_epochs=1, **changes))
    theirs = library.CrossEncoder(str(result.directory), device="cpu")
    pairs = [*zip(sentences[:30], sentences[30:60], strict=True)]
    pairs.append((" ".join(sentences[:9]), " ".join(sentences[9:20])))  # which is cut
    found = [x["score"] for x in result.model.predict(pairs)]
    np.testing.assert_allclose(found, theirs.predict(pairs), atol=1e-5)
    ranked = theirs.rank(sentences[0], list(sentences[:9]))
    expected = [(row["corpus_id"], row["score"]) for row in ranked]
    for ours, (index, score) in zip(
        result.model.rerank(sentences[0], sentences[:9]), expected, strict=True
    ):
        assert ours["index"] == index and ours["score"] == pytest.approx(score, abs=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_grades_of_passages_are_learned(one_layer, sentences, tmp_path):
    """The first word of a passage is its grade, from 0 to 3."""
    words = ("hij", "abc", "cde", "fgh")
    rows = [
        {"query": query, "passage": f"{word} {query}", "grade": grade}
        for query in sentences[:60]
        for grade, word in enumerate(words)
    ]
    trained = bertjax.finetune(
        task="rerank",
        train=rows,
        init=str(one_layer),
        workdir=str(tmp_path / "run"),
        max_length=64,
        num_epochs=12,
        optimizer=RATE,
    )
    assert trained.scores["dev/ndcg_at_10"] > 0.95
    query = sentences[70]
    ranked = trained.model.rerank(query, [f"{word} {query}" for word in words])
    assert [row["index"] for row in ranked] == [3, 2, 1, 0]
    assert bertjax.evaluate(trained.model, data=rows)["ndcg_at_10"] > 0.95


@pytest.mark.slow
@pytest.mark.exhaustive
def test_labels_of_passages_are_learned_from_a_reranker(result, sentences, tmp_path):
    """A further training keeps the activation of the reranker that it starts from."""
    pairs = [
        {"query": query, "passage": f"{word} {query}", "label": float(word == "abc")}
        for query in sentences[:60]
        for word in ("hij", "abc")
    ]
    trained = bertjax.finetune(
        task="rerank",
        train=pairs,
        init=str(result.directory),
        workdir=str(tmp_path / "run"),
        max_length=64,
        num_epochs=6,
        optimizer=RATE,
    )
    assert trained.scores["dev/ndcg_at_10"] > 0.95
    assert trained.model.task.activation == "Identity"
