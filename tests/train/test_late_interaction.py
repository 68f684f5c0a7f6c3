"""Training of models with one vector per token: beside sentence-transformers, and end to end."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

import bertjax
from bertjax import search
from bertjax.config import MeshConfig
from bertjax.devices import sharding
from bertjax.inference.late_interaction import following, in_training
from bertjax.model.recipe import flattened
from bertjax.tasks import finetune_config
from bertjax.tasks.dataset import Example
from bertjax.tasks.embedding import RETRIEVAL_METRICS
from bertjax.tasks.late_interaction import (
    LateInteractionOptions,
    LateInteractionTask,
    TokenContrastiveTask,
    TokenDistilledTask,
)
from bertjax.tasks.training_data import Labels, row_shape
from bertjax.train import experiments
from bertjax.train.step import GlobalLoss, device_axis, make_loss_fn
from bertjax.weights import load_model, save_hf
from bertjax.weights.late_interaction import files_of_head
from bertjax.weights.names import to_hf
from tests.rows import make_batch, short_run
from tests.steps import gradients_of

EXAMPLES, TEXTS, ROWS = 12, 3, 16
LENGTH = 24
MEAN = {"similarity": "meanmaxsim", "temperature": 0.05}


def prepared(encoder, **options):
    """The task, and the model that is trained."""
    options = LateInteractionOptions(vector_size=12, query_length=16, **options)
    kind = TokenDistilledTask if options.loss in ("kl", "margin") else TokenContrastiveTask
    task = kind(name="colbert", options=options, num_texts=TEXTS)
    loaded = load_model(encoder, task.head, head_fields=task.head_fields)
    task, loaded = following(task, loaded)
    assert isinstance(task, LateInteractionTask)
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = dataclasses.replace(loaded.config, **rates)
    loaded = loaded._replace(model=loaded.model.clone(config=config))
    return task, in_training(task, loaded, LENGTH)


def examples(sentences):
    rng = np.random.default_rng(0)
    for i in range(EXAMPLES):
        a, b, c = (" ".join(s.split()[:5]) + "." for s in sentences[3 * i : 3 * i + 3])
        scores = tuple(rng.normal(0, 2, TEXTS - 1).tolist())
        yield Example(id=str(i), where=f"row {i}", text=a, pair=b, choices=(c,), scores=scores)


def our_gradients(task, loaded, sentences, devices, steps):
    features = []
    for example in examples(sentences):
        features += task.features(example, loaded.tokenizer, LENGTH)
    kind = task.label_kind
    shape = row_shape(128, TEXTS, (ROWS,))
    batch = make_batch(features, shape, Labels(kind, num_choices=TEXTS), 0)[0]
    assert (batch["sequence_ids"].max(axis=1) > TEXTS).any()  # rows hold several examples
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:devices])
    objective = task.objective(loaded.model)
    if objective.compares_examples:
        axis = device_axis(mesh)
        count = devices if axis else 1
        loss_fn = GlobalLoss(loaded.model, objective, EXAMPLES, steps, axis, count)
        steps = 1
    else:
        loss_fn = make_loss_fn(loaded.model, objective)
    return gradients_of(loss_fn, objective, loaded.params, batch, mesh, steps)


def their_gradients(directory, task, sentences):
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder import losses, scoring

    model: Any = MultiVectorEncoder(str(directory), device="cpu")
    mean = "mean_" if task.similarity == "meanmaxsim" else ""
    temperature = task.options.temperature or 1.0
    score = {"kl": "colbert_kd_scores", "margin": "colbert_scores_pairwise"}
    score = score.get(task.options.loss, "colbert_scores")
    options = {"similarity_fct": getattr(scoring, mean + score)}
    if task.options.loss == "kl":
        loss = losses.MultiVectorDistillKLDivLoss(model, temperature=temperature, **options)
    elif task.options.loss == "margin":
        loss = losses.MultiVectorMarginMSELoss(model, **options)
    else:
        loss = losses.MultiVectorMultipleNegativesRankingLoss(
            model, scale=1 / temperature, **options
        )
    rows = [[x.text, x.pair, *x.choices] for x in examples(sentences)]
    features = []
    for place, texts in enumerate(zip(*rows, strict=True)):
        role = "document" if place else "query"
        features.append(model.preprocess(list(texts), task=role) | {"task": role})
    labels = torch.tensor([x.scores for x in examples(sentences)])
    model.eval()
    value = loss(features, labels)
    value.backward()
    encoder = model[0].auto_model
    gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    return value.item(), gradients, model[1].linear.weight.grad.numpy().T


@pytest.mark.parity
@pytest.mark.parametrize(
    ("options", "devices", "steps"),
    [
        ({}, 1, 1),
        pytest.param(
            {"similarity": "meanmaxsim", "temperature": 0.05}, 8, 2, marks=pytest.mark.slow
        ),
        pytest.param({"attend_expansion": True}, 1, 4, marks=pytest.mark.slow),
        pytest.param({"loss": "kl", "temperature": 2.0}, 8, 2, marks=pytest.mark.slow),
        pytest.param({"loss": "kl", "similarity": "meanmaxsim"}, 1, 1, marks=pytest.mark.slow),
        pytest.param({"loss": "margin", "query_expansion": "none"}, 8, 2, marks=pytest.mark.slow),
        pytest.param({"loss": "margin", "similarity": "meanmaxsim"}, 1, 2, marks=pytest.mark.slow),
    ],
)
def test_losses_and_gradients_equal_sentence_transformers(
    options, devices, steps, encoder, sentences, tmp_path
):
    pytest.importorskip("torch", reason="the extra `parity` is not installed")
    pytest.importorskip("sentence_transformers", minversion="6")
    task, loaded = prepared(encoder, **options)
    model, modules = loaded.model, loaded.source.usage.modules
    files = files_of_head(model, loaded.params, LENGTH, modules)
    directory = tmp_path / "model"
    save_hf(
        directory, loaded.params, loaded.config, loaded.tokenizer, head=loaded.head, files=files
    )
    loss, _, gradients = our_gradients(task, loaded, sentences, devices, steps)
    value, theirs, of_projection = their_gradients(directory, task, sentences)
    assert loss == pytest.approx(value, rel=1e-6, abs=1e-6)
    ours = flattened(gradients[0] if isinstance(gradients, tuple) else gradients)
    projection = ours.pop("modules/0/kernel")
    np.testing.assert_allclose(projection, of_projection, atol=1e-5, rtol=1e-5)
    compared = 0
    for name, x in to_hf({k: v for k, v in ours.items() if k.startswith("bert/")}, loaded.config):
        name = name.removeprefix("bert.")
        if name in theirs:
            np.testing.assert_allclose(x, theirs[name].numpy(), atol=1e-5, rtol=1e-5)
            compared += 1
    assert compared == len(theirs)


@pytest.fixture(scope="module")
def config(one_layer, tmp_path_factory, sentences):
    """The positive has the words of the anchor in reverse order."""
    rows = [
        {"anchor": s, "positive": " ".join(s.split()[::-1]), "negative": other}
        for s, other in zip(sentences[:40], sentences[40:80], strict=True)
    ]
    folder = tmp_path_factory.mktemp("colbert")
    (folder / "qrels").mkdir()
    judged = [f"{i} {i} 1\n" for i in range(40)]
    (folder / "qrels" / "dev.tsv").write_text("query corpus score\n" + "".join(judged))
    for name, column in (("queries", "anchor"), ("corpus", "positive")):
        lines = [json.dumps({"_id": i, "text": row[column]}) + "\n" for i, row in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    settings = {"vector_size": 16, "query_length": 20, "temperature": 0.5}
    settings |= {"retrieval_dir": str(folder), "select_by": "ndcg_at_10", "keep_same_id": True}
    return short_run("colbert", one_layer, rows, folder, **settings)


@pytest.fixture(scope="module")
def result(config):
    return experiments.finetune(config)


def test_a_run_learns_is_searched_and_is_loaded_with_its_settings(result, config, capsys):
    names = ("mrr", "recall_at_1", "recall_at_10", "triplet_accuracy", *RETRIEVAL_METRICS)
    assert set(result.scores) == {f"dev/{x}" for x in names}
    losses = [x["train/loss"] for x in result.metrics if "train/loss" in x]
    assert losses[-1] < losses[0]
    flags = ["--model", str(result.directory), "--retrieval_dir", config.options.retrieval_dir]
    assert search.main([*flags, "--keep_same_id"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    expected = {name: result.scores[f"dev/{name}"] for name in RETRIEVAL_METRICS}
    assert scores == pytest.approx(expected, abs=1e-6)
    loaded = load_model(result.directory, None)
    assert loaded.head == "late_interaction" and loaded.model.size == 16 and not loaded.absent


def test_predictions_are_the_scores_of_the_vectors(result, sentences):
    model = result.model
    query, document = sentences[:2]
    (prediction,) = model.predict([(query, document)])
    a = model.token_vectors([query], role="query")[0]
    b = model.token_vectors([document])[0]
    assert len(a) == 20 and len(b) <= len(model.loaded.tokenizer.encode_prompt(document)[0])
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), 1, atol=1e-6)
    assert prediction == {"similarity": pytest.approx((a @ b.T).max(1).sum(), abs=1e-5)}
    pooled = model.token_vectors([document], pool_factor=2)[0]
    assert len(pooled) == 1 + (len(b) - 1) // 2
    np.testing.assert_allclose(pooled[0], b[0], atol=1e-6)
    with pytest.raises(ValueError, match="one vector per token"):
        model.embed([query])


@pytest.mark.slow
def test_a_resumed_run_leaves_the_model_of_an_uninterrupted_one(result, config, tmp_path):
    changes = {"max_steps": None} if hasattr(config, "max_steps") else {}
    again = bertjax.finetune(finetune_config(config, workdir=str(tmp_path / "again"), **changes))
    expected = flattened(result.model.params)
    for path, x in flattened(again.model.params).items():
        np.testing.assert_array_equal(np.asarray(x), np.asarray(expected[path]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_length": 100}, "100"),
        ({"query_expansion": "none", "attend_expansion": True}, "attend_expansion=True"),
        ({"loss": "kl"}, "--loss kl"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message, config, tmp_path):
    options = dataclasses.asdict(config.options) | changes
    with pytest.raises(ValueError, match=message):
        options = LateInteractionOptions(**options)
        bertjax.finetune(dataclasses.replace(config, options=options, workdir=str(tmp_path)))
