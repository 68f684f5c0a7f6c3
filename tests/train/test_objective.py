"""Losses of tasks: packed rows give those of their sequences alone, and PyTorch's formulas."""

import jax
import numpy as np
import pytest

from bertjax.data.batches.batch import Feature
from bertjax.model import HEADS
from bertjax.model.bert import MODEL_INPUTS
from bertjax.tasks.training_data import Labels, row_shape
from bertjax.train.step import make_loss_fn
from tests.cases import WEEKLY, others_weekly
from tests.rows import make_batch

LENGTHS = [5, 9, 14, 4, 7, 11]
HEAD = {
    "classes": "sequence_classification",
    "multi_label": "sequence_classification",
    "distribution": "sequence_classification",
    "regression": "sequence_classification",
    "targets": "sequence_classification",
    "tokens": "token_classification",
    "span": "question_answering",
    "choice": "multiple_choice",
}


def features_of(kind, vocab_size):
    rng = np.random.default_rng(0)
    made = []
    for length in LENGTHS:
        sequences = 2 if kind == "choice" else 1
        ids = rng.integers(5, vocab_size, length * sequences).astype(np.int32)
        label = {
            "classes": rng.integers(0, 3, 1),
            "choice": rng.integers(0, 2, 1),
            "regression": rng.normal(size=1).astype(np.float32),
            "multi_label": rng.integers(0, 2, 3).astype(np.float32),
            "distribution": rng.dirichlet(np.ones(3)).astype(np.float32),
            "targets": np.where(rng.random(3) < 0.4, np.nan, rng.normal(size=3)).astype(np.float32),
            "tokens": rng.integers(-1, 3, length),
            "span": np.sort(rng.integers(1, length, 2)),
        }[kind]
        label = label if label.dtype == np.float32 else label.astype(np.int32)
        made.append(Feature(ids, (length,) * sequences, (length // 2,) * sequences, label))
    return made


@pytest.fixture(scope="module")
def heads(one_layer_config, random_params):
    made = {}

    def of(kind):
        classes = {"regression": 1}.get(kind, 3)
        key = (HEAD[kind], classes)
        if key not in made:
            model = HEADS[HEAD[kind]](one_layer_config, num_labels=classes)
            made[key] = (model, random_params(model))
        return made[key]

    return of


PACKED_AS_CLASSES = ("multi_label", "distribution", "regression")


@pytest.mark.parametrize(
    "kind",
    [
        *("classes", "span", "choice"),
        # Other labels of a sequence are packed as classes are.
        *(pytest.param(kind, marks=WEEKLY) for kind in (*PACKED_AS_CLASSES, "targets", "tokens")),
    ],
)
def test_packed_rows_give_loss_and_gradients_of_their_sequences_alone(kind, heads, tiny_config):
    model, params = heads(kind)
    choices = 2 if kind == "choice" else 1
    labels = Labels(kind, num_classes=3, num_choices=choices)
    features = features_of(kind, tiny_config.vocab_size)
    objective = model.objectives[kind]
    loss_fn = make_loss_fn(model, objective)

    @jax.jit
    def loss_and_grads(params, batch):
        return jax.value_and_grad(loss_fn, has_aux=True)(
            params, batch, objective.weights(batch), None
        )

    # All features in two of six rows, and a feature a row: one program computes both.
    packed, _ = make_batch(features, row_shape(64, choices, (len(features),)), labels, 0)
    assert (packed["sequence_ids"].max(axis=1) > 0).sum() <= 2
    alone = row_shape(64, choices, ())
    rows = [make_batch([f], alone, labels, 0)[0] for f in features]
    single = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
    (loss, sums), grads = loss_and_grads(params, packed)
    (loss_alone, sums_alone), grads_alone = loss_and_grads(params, single)
    assert np.isfinite(float(loss)) and float(loss) > 0
    np.testing.assert_allclose(loss, loss_alone, rtol=1e-5)
    for key in sums:
        np.testing.assert_allclose(sums[key], sums_alone[key], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(grads_alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def loss_and_outputs(model, objective, params, batch):
    """Both in one program."""
    loss_fn, weights = make_loss_fn(model, objective), objective.weights(batch)

    @jax.jit
    def both(params, batch):
        inputs = {key: batch[key] for key in MODEL_INPUTS}
        outputs = model.apply({"params": params}, **inputs)
        return loss_fn(params, batch, weights, None)[0], outputs

    return both(params, batch)


def test_class_weights_give_the_weighted_mean(heads, tiny_config):
    model, params = heads("classes")
    weights = (1.0, 3.0, 0.5)
    labels = Labels("classes", num_classes=3, class_weights=weights)
    features = features_of("classes", tiny_config.vocab_size)
    batch, places = make_batch(features, row_shape(64, 1, ()), labels, 0)
    objective = model.objectives["classes"]
    loss, outputs = loss_and_outputs(model, objective, params, batch)
    logits = np.asarray(outputs["logits"])
    of_feature = np.array([logits[row, slot] for row, slot, _ in places], np.float64)
    log_probs = of_feature - np.log(np.exp(of_feature).sum(-1, keepdims=True))
    golds = np.array([f.labels[0] for f in features])
    w = np.array(weights)[golds]
    expected = -(w * log_probs[np.arange(len(golds)), golds]).sum() / w.sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("kind", others_weekly(HEAD, "classes", "tokens", "span"))
def test_losses_are_those_of_transformers(kind, heads, tiny_config):
    torch = pytest.importorskip("torch")
    model, params = heads(kind)
    choices = 2 if kind == "choice" else 1
    features = features_of(kind, tiny_config.vocab_size)
    labels = Labels(kind, num_classes=3, num_choices=choices)
    shape = row_shape(32, choices, ())
    rows = [make_batch([f], shape, labels, 0)[0] for f in features]
    batch = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
    objective = model.objectives[kind]
    loss, out = loss_and_outputs(model, objective, params, batch)
    out = {key: torch.tensor(np.asarray(value)) for key, value in out.items()}
    f = torch.nn.functional
    if kind == "span":
        first, last = torch.tensor(np.array([x.labels for x in features])).long().T
        # transformers also lets padding take part; here each row is cut to its sequence.
        terms = [
            (
                f.cross_entropy(out["start_logits"][i, :n], first[i])
                + f.cross_entropy(out["end_logits"][i, :n], last[i])
            )
            / 2
            for i, n in enumerate(LENGTHS)
        ]
        expected = torch.stack(terms).mean()
    elif kind == "tokens":
        golds = torch.tensor(batch["labels"]).long()
        expected = f.cross_entropy(out["logits"].reshape(-1, 3), golds.reshape(-1), ignore_index=-1)
    elif kind == "choice":
        golds = torch.tensor(np.array([x.labels[0] for x in features])).long()
        expected = f.cross_entropy(out["logits"][:, :2], golds)
    else:
        golds = torch.tensor(np.array([x.labels for x in features]))
        logits = out["logits"][:, 0]
        expected = {
            "classes": lambda: f.cross_entropy(logits, golds[:, 0].long()),
            "regression": lambda: f.mse_loss(logits[:, 0], golds[:, 0]),
            "multi_label": lambda: f.binary_cross_entropy_with_logits(logits, golds),
            "distribution": lambda: f.cross_entropy(logits, golds),
            "targets": lambda: torch.nanmean((logits - golds) ** 2),
        }[kind]()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)


def test_a_pretraining_objective_has_the_settings_of_its_head(one_layer_config, random_params):
    class Weighted(HEADS["masked_lm"]):
        weight: float = 1.0

        def objective(self, kind):
            weights = {"mlm_loss": self.weight}
            return super().objective(kind)._replace(loss_weights=weights)

    batch = {name: np.ones((2, 8), np.int32) for name in MODEL_INPUTS}
    batch |= {f"masked_{name}": np.ones((2, 3), np.int32) for name in ("positions", "labels")}
    batch |= {"masked_weights": np.ones((2, 3), np.float32), "labels": np.full((2, 8), -1)}
    params, total = random_params(HEADS["masked_lm"](one_layer_config)), {"mlm_loss": 6.0}
    losses = [jax.jit(make_loss_fn(Weighted(one_layer_config, weight=w))) for w in (1.0, 2.0)]
    once, twice = (loss_fn(params, batch, total, None)[0] for loss_fn in losses)
    assert once > 0
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-6)
