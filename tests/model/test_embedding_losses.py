"""Losses of embeddings: values are those of their formulas, and with gradients, of the library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from bertjax.model.embedding_losses import GLOBAL, embedding_objective

EXAMPLES, TEXTS, SIZE = 9, 4, 12


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).normal(size=(EXAMPLES, TEXTS, SIZE)).astype(np.float32)


def loss_of(objective, x, labels, weights=np.ones(EXAMPLES)):  # noqa: B008
    """Of examples in one row, or as an objective that compares examples takes them."""
    labels, weights = jnp.asarray(labels), jnp.asarray(weights, jnp.float32)
    if not objective.compares_examples:
        outputs = {"sentence_embedding": x.reshape(1, -1, x.shape[-1])}
        batch = {"labels": labels[None], "label_weights": weights[None]}
    else:
        outputs = {"sentence_embedding": x, GLOBAL: {"sentence_embedding": x}}
        batch = {"labels": labels, "label_weights": weights}
        batch |= {"example_ids": jnp.arange(len(x)), GLOBAL: dict(batch)}
    return objective.loss(objective.sums(outputs, batch), objective.weights(batch))


def loss_and_gradient(objective, vectors, labels):
    compiled = jax.jit(jax.value_and_grad(lambda x: loss_of(objective, x, labels)))
    return compiled(jnp.asarray(vectors))


def formula(loss, x, scores, temperature):
    """The values [N] for texts [N, C, D] that are no text twice, or that of CoSENT, in float64."""
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = (unit[:, 0] * unit[:, 1]).sum(-1)
    own = np.arange(len(x))
    if loss in ("contrastive", "symmetric"):
        others = unit[:, 1:].reshape(-1, x.shape[-1])
        found = log_softmax(unit[:, 0] @ others.T / temperature, axis=1)
        values = -found[own, own * (x.shape[1] - 1)]
        if loss == "contrastive":
            return values
        turned = log_softmax(unit[:, 1] @ unit[:, 0].T / temperature, axis=1)
        return (values - turned[own, own]) / 2
    if loss == "similarity":
        return np.square(cosines - scores)
    if loss == "cosent":
        order = scores[:, None] < scores[None]
        differences = (cosines[:, None] - cosines[None])[order]
        return logsumexp([0, *differences / temperature])
    ours = (x[:, :1] * x[:, 1:]).sum(-1)
    if loss == "margin":
        errors = (ours[:, :1] - ours[:, 1:]) - (scores[:, :1] - scores[:, 1:])
        return np.square(errors).mean(1)
    teacher, student = (log_softmax(s / temperature, axis=-1) for s in (scores, ours))
    return temperature**2 * (np.exp(teacher) * (teacher - student)).sum(-1)


@pytest.mark.parametrize("matryoshka", [(), (5,)])
@pytest.mark.parametrize(
    "loss", ["contrastive", "symmetric", "similarity", "cosent", "margin", "kl"]
)
def test_values_are_those_of_the_formulas(vectors, loss, matryoshka):
    rng = np.random.default_rng(1)
    shape = {"similarity": (EXAMPLES,), "cosent": (EXAMPLES,)}.get(loss, (EXAMPLES, TEXTS - 1))
    scores = np.round(rng.random(shape), 1)  # some are equal
    texts = 2 if len(shape) == 1 else TEXTS
    x = vectors[:, :texts].astype(np.float64)
    sizes = [x, *(x[..., :size] for size in matryoshka)]
    if matryoshka:
        sizes = [y / np.linalg.norm(y, axis=-1, keepdims=True) for y in sizes]
    is_in_batch = loss in ("contrastive", "symmetric")
    weights = np.append(rng.uniform(0.5, 2, EXAMPLES - 1), 0)  # the last example does not exist
    expected = 0
    for y in sizes:
        values = formula(loss, y[:-1], scores[:-1], 0.3)
        expected += np.average(np.broadcast_to(values, EXAMPLES - 1), weights=weights[:-1])
    labels = np.arange(x[..., 0].size, dtype=np.int32).reshape(EXAMPLES, texts)
    labels = labels if is_in_batch else scores.astype(np.float32)
    objective = embedding_objective(loss, temperature=0.3, matryoshka=matryoshka)
    found = jax.jit(lambda x: loss_of(objective, x, labels, weights))(x.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def check(ours, vectors, theirs):
    """`theirs` maps the texts, torch tensors [n, D], to a loss."""
    torch = pytest.importorskip("torch")
    x = torch.tensor(vectors, requires_grad=True)
    loss = theirs([x[:, i] for i in range(x.shape[1])])
    loss.backward()
    np.testing.assert_allclose(ours[0], loss.item(), rtol=1e-5)
    np.testing.assert_allclose(ours[1], x.grad, atol=1e-5 * float(abs(x.grad).max()))


def of_sentence_transformers(name, **options):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    return getattr(losses, name)(model=None, **options).compute_loss_from_embeddings


SIZES = pytest.mark.parametrize("matryoshka", [(), (5,)])


def at_sizes(function, matryoshka):
    """What MatryoshkaLoss computes: the sum over the sizes, of vectors of length 1."""
    if not matryoshka:
        return function
    torch = pytest.importorskip("torch")
    unit = torch.nn.functional.normalize

    def loss(texts):
        return sum(function([unit(x[:, :size]) for x in texts]) for size in (SIZE, *matryoshka))

    return loss


@pytest.mark.slow  # imports sentence-transformers
@pytest.mark.parity
@SIZES
@pytest.mark.parametrize("loss", ["contrastive", "symmetric"])
def test_in_batch_negatives(vectors, loss, matryoshka):
    directions = ("query_to_doc", "doc_to_query") if loss == "symmetric" else ("query_to_doc",)
    theirs = of_sentence_transformers(
        "MultipleNegativesRankingLoss",
        scale=10.0,
        directions=directions,
        partition_mode="per_direction",
    )
    labels = np.arange(EXAMPLES * TEXTS, dtype=np.int32).reshape(EXAMPLES, TEXTS)
    objective = embedding_objective(loss, temperature=0.1, matryoshka=matryoshka)
    found = loss_and_gradient(objective, vectors, labels)
    check(found, vectors, at_sizes(lambda texts: theirs(texts, None), matryoshka))


@pytest.mark.slow  # imports sentence-transformers
@pytest.mark.parity
@pytest.mark.parametrize("margin", [0.0, pytest.param(0.3, marks=pytest.mark.exhaustive), -0.4])
def test_candidates_that_are_nearer_than_the_positive_are_no_negatives(
    vectors, margin, monkeypatch
):
    torch = pytest.importorskip("torch")
    gist = pytest.importorskip("sentence_transformers.sentence_transformer.losses.gist_embed")
    monkeypatch.setattr(gist, "embed_columns", lambda _, texts: [text["vectors"] for text in texts])
    theirs = gist.GISTEmbedLoss.__new__(gist.GISTEmbedLoss)
    torch.nn.Module.__init__(theirs)
    settings = {"temperature": 0.1, "margin_strategy": "absolute", "margin": margin}
    settings |= dict.fromkeys(
        ("model", "guide", "must_retokenize", "contrast_anchors", "contrast_positives")
    )
    settings |= {"gather_across_devices": False, "cross_entropy_loss": torch.nn.CrossEntropyLoss()}
    settings["similarity_fct"] = torch.nn.CosineSimilarity(dim=-1)
    for name, value in settings.items():
        setattr(theirs, name, value)
    triplets = vectors[:, :3]
    labels = np.arange(EXAMPLES * 3, dtype=np.int32).reshape(EXAMPLES, 3)
    objective = embedding_objective("contrastive", temperature=0.1, margin=margin)
    found = loss_and_gradient(objective, triplets, labels)
    check(found, triplets, lambda texts: theirs([{"vectors": x} for x in texts], None))
    without_margin = embedding_objective("contrastive", temperature=0.1)
    plain = loss_and_gradient(without_margin, triplets, labels)
    assert found[0] < plain[0]


@pytest.mark.slow  # imports sentence-transformers
@pytest.mark.parity
@SIZES
def test_cosent_ranks_pairs_by_their_scores(vectors, matryoshka):
    torch = pytest.importorskip("torch")
    theirs = of_sentence_transformers("CoSENTLoss", scale=20.0)
    scores = np.array([0, 1, 0.5, 0.5, 0.25, 1, 0, 0.75, 0.5], np.float32)
    pairs = vectors[:, :2]
    objective = embedding_objective("cosent", matryoshka=matryoshka)
    found = loss_and_gradient(objective, pairs, scores)
    check(found, pairs, at_sizes(lambda texts: theirs(texts, torch.tensor(scores)), matryoshka))


@pytest.mark.slow  # imports sentence-transformers
@pytest.mark.parity
@SIZES
@pytest.mark.parametrize("texts", [3, TEXTS])
@pytest.mark.parametrize(
    ("loss", "name", "options"),
    [("margin", "MarginMSELoss", {}), ("kl", "DistillKLDivLoss", {"temperature": 2.0})],
)
def test_a_teachers_scores_are_distilled(vectors, loss, name, options, texts, matryoshka):
    torch = pytest.importorskip("torch")
    theirs = of_sentence_transformers(name, **options)
    scores = np.random.default_rng(1).normal(size=(EXAMPLES, texts - 1)).astype(np.float32)
    vectors = vectors[:, :texts]
    objective = embedding_objective(loss, temperature=2.0, matryoshka=matryoshka)
    found = loss_and_gradient(objective, vectors, scores)
    check(found, vectors, at_sizes(lambda x: theirs(x, torch.tensor(scores)), matryoshka))
