"""In-batch negatives: cached gradients, several devices and packing give the batch's gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from bertjax.config import MeshConfig
from bertjax.data.batches.batch import Feature
from bertjax.devices import sharding
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.sentence_embedding import BertForSentenceEmbedding
from bertjax.tasks.embedding import EmbedOptions
from bertjax.tasks.training_data import Labels, row_shape
from bertjax.train.step import DropoutKey, GlobalLoss, apply_model, device_axis, make_loss_fn
from tests.cases import WEEKLY
from tests.rows import make_batch
from tests.steps import gradients_of

EXAMPLES, TEXTS, ROWS = 20, 3, 16
OPTIONS = EmbedOptions(temperature=0.3, matryoshka=(8,))


@pytest.fixture(scope="module")
def model(one_layer_config):
    config = dataclasses.replace(
        one_layer_config, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2
    )
    return BertForSentenceEmbedding(config)


@pytest.fixture(scope="module")
def params(model, random_params):
    return random_params(model)


@pytest.fixture(scope="module")
def features():
    """Triplets: the second one repeats the first anchor, the third one has the first positive."""
    rng = np.random.default_rng(0)
    texts = [
        [rng.integers(5, 100, int(rng.integers(3, 10))) for _ in range(TEXTS)]
        for _ in range(EXAMPLES)
    ]
    texts[1][0], texts[2][1] = texts[0][0], texts[0][1]
    names = {text.tobytes(): i for i, text in enumerate(t for row in texts for t in row)}
    return [
        Feature(
            np.concatenate(row).astype(np.int32),
            tuple(map(len, row)),
            tuple(map(len, row)),
            np.array([names[text.tobytes()] for text in row], np.int32),
        )
        for row in texts
    ]


@pytest.fixture(scope="module")
def batch(features):
    """The examples in rows of different numbers of them, with padding and rows without any."""
    shape = row_shape(64, TEXTS, (ROWS,))
    return make_batch(features, shape, Labels("contrastive", num_choices=TEXTS), 0)[0]


def gradients(model, params, batch, steps=1, mesh: Mesh | None = None):
    """Loss, sums and gradients of a batch, computed as a train step computes them."""
    mesh = mesh or sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    axis = device_axis(mesh)
    objective = model.objective("contrastive", OPTIONS)
    if objective.compares_examples:
        devices = mesh.shape["data"] if axis else 1
        loss_fn, steps = GlobalLoss(model, objective, EXAMPLES, steps, axis, devices), 1
    else:
        loss_fn = make_loss_fn(model, objective)
    return gradients_of(loss_fn, objective, params, batch, mesh, steps)


@pytest.fixture(scope="module")
def expected(model, params, batch):
    return gradients(model, params, batch)


def compare(found, expected):
    largest = max(np.abs(x).max() for x in jax.tree.leaves(expected[2]))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6 * max(1, largest), rtol=1e-5)


@pytest.mark.slow
def test_cached_gradients_are_those_of_the_batch_in_one_piece(model, params, batch, expected):
    compare(gradients(model, params, batch, steps=4), expected)


@pytest.mark.parametrize(
    ("devices", "mesh", "steps"),
    [
        pytest.param(8, {}, 2, marks=pytest.mark.slow),
        pytest.param(4, {"data": 2, "fsdp": 2}, 2, marks=WEEKLY),
    ],
)
def test_eight_devices_have_the_negatives_of_the_whole_batch(
    model, params, batch, expected, devices, mesh, steps
):
    mesh = sharding.make_mesh(MeshConfig(**mesh), jax.devices()[:devices])
    compare(gradients(model, params, batch, steps, mesh), expected)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["symmetric", "cosent", "kl", "similarity", "margin"])
def test_every_loss_is_the_same_on_eight_devices_and_in_microbatches(model, params, features, loss):
    model = model.clone(loss=loss, false_negative_margin=0.1 if loss == "symmetric" else None)
    kind = {"symmetric": "contrastive", "margin": "distilled", "kl": "distilled"}
    kind = kind.get(loss, "similarity")
    texts = 2 if kind == "similarity" else TEXTS
    rng = np.random.default_rng(1)
    values = {"similarity": (1,), "distilled": (TEXTS - 1,)}
    labelled = [
        f._replace(
            input_ids=f.input_ids[: sum(f.lengths[:texts])],
            lengths=f.lengths[:texts],
            a_lengths=f.lengths[:texts],
            labels=rng.random(values[kind], np.float32) if kind in values else f.labels,
        )
        for f in features
    ]
    shape = row_shape(64, texts, (ROWS,))
    batch = make_batch(labelled, shape, Labels(kind, num_choices=texts), 0)[0]
    whole = gradients(model, params, batch)
    assert np.isfinite(whole[0]) and whole[0] > 0
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:8])
    compare(gradients(model, params, batch, 2, mesh), whole)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_texts_of_an_example_have_dropout_masks_of_their_own(model, params, features):
    same = [
        f._replace(
            input_ids=np.tile(f.input_ids[: f.lengths[0]], 2),
            lengths=(f.lengths[0],) * 2,
            a_lengths=(f.lengths[0],) * 2,
            labels=f.labels[[0, 0]],
        )
        for f in features[2:]
    ]
    shape = row_shape(64, 2, (ROWS,))
    batch, places = make_batch(same, shape, Labels("contrastive", num_choices=2), 0)
    inputs = {key: batch[key] for key in MODEL_INPUTS}
    encode = jax.jit(lambda *args: apply_model(model, params, *args)["sentence_embedding"])
    rows = jnp.arange(ROWS)
    plain = np.asarray(encode(inputs, None))
    drawn = [
        np.asarray(encode(inputs, DropoutKey(jax.random.key(seed), rows))) for seed in (0, 0, 1)
    ]
    for place in places:
        first, second = (place.row, place.slot), (place.row, place.slot + 1)
        np.testing.assert_allclose(plain[first], plain[second], atol=1e-5)
        assert np.abs(drawn[0][first] - drawn[0][second]).max() > 0.01
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.abs(drawn[0] - drawn[2]).max() > 0.01


def test_sizes_that_embeddings_do_not_have_are_refused(model):
    with pytest.raises(ValueError, match=r"matryoshka=\[8, 33\]"):
        model.objective("similarity", EmbedOptions(matryoshka=(8, 33)))


def test_the_loss_is_that_of_its_definition_text_by_text(model, params, batch, features):
    texts = [text for f in features for text in np.split(f.input_ids, np.cumsum(f.lengths)[:-1])]
    ids = np.zeros((len(texts), 16), np.int32)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    outputs = jax.jit(model.apply)({"params": params}, ids, attention_mask=ids > 0)
    vectors = np.asarray(outputs["sentence_embedding"], np.float64).reshape(EXAMPLES, TEXTS, -1)
    names = np.stack([f.labels for f in features])
    total = right = 0.0
    for size in (vectors.shape[-1], 8):
        units = vectors[..., :size]
        units = units / np.linalg.norm(units, axis=-1, keepdims=True)
        for i in range(EXAMPLES):
            cosines = {(i, 1): units[i, 0] @ units[i, 1]}
            for j in range(EXAMPLES):
                for c in range(1, TEXTS):
                    same = names[j, c] in names[i, :2] or (c == 1 and names[j, 0] == names[i, 0])
                    if not same:
                        cosines[j, c] = units[i, 0] @ units[j, c]
            values = np.array([*cosines.values()]) / 0.3
            total += np.log(np.exp(values - values[0]).sum()) / EXAMPLES
            if size == vectors.shape[-1]:
                right += float(values.argmax() == 0)
    objective = model.objective("contrastive", OPTIONS)
    loss_fn = jax.jit(GlobalLoss(model, objective, EXAMPLES))
    loss, sums = loss_fn(params, batch, objective.weights(batch), None)
    np.testing.assert_allclose(loss, total, rtol=1e-5)
    assert sums["accuracy"] == (right, EXAMPLES)
