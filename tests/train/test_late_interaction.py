"""Training of models with one vector per token: beside sentence-transformers, and end to end."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

import bertjax
from bertjax import search
from bertjax.config import MeshConfig, OptimizerConfig, Phase
from bertjax.config.finetune_config import FinetuneConfig
from bertjax.devices import sharding
from bertjax.inference.embedder import following
from bertjax.inference.late_interaction import in_training
from bertjax.model.recipe import flattened
from bertjax.tasks.dataset import Example
from bertjax.tasks.embedding import RETRIEVAL_METRICS
from bertjax.tasks.late_interaction import (
    LateInteractionOptions,
    LateInteractionTask,
    TokenContrastiveTask,
    TokenDistilledTask,
)
from bertjax.tasks.training_data import Labels, make_rows, row_shape
from bertjax.train import experiments
from bertjax.train.program import Program
from bertjax.train.step import GlobalLoss, device_axis, make_loss_fn
from bertjax.weights import load_model, save_hf
from bertjax.weights.late_interaction import files_of_head
from bertjax.weights.names import to_hf
from tests.cases import WEEKLY
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


def batch_of(task, loaded, rows, packed=True):
    """A batch of examples, in rows of their own if they are not `packed`."""
    features = []
    for example in rows:
        features += task.features(example, loaded.tokenizer, LENGTH)
    shape = row_shape(128, TEXTS, (ROWS,))
    labels = Labels(task.label_kind, num_choices=TEXTS)
    if packed:
        batch = make_batch(features, shape, labels, 0)[0]
    else:
        alone = [[row] if row < len(features) else [] for row in range(ROWS)]
        batch = make_rows(features, alone, shape, labels, 0)[0]
    assert (batch["sequence_ids"].max(axis=1) > TEXTS).any() == packed
    return batch


def our_gradients(task, loaded, sentences, devices, steps, packed):
    batch = batch_of(task, loaded, examples(sentences), packed)
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


def save(loaded, directory):
    files = files_of_head(loaded.model, loaded.params, LENGTH, loaded.source.usage.modules)
    save_hf(
        directory, loaded.params, loaded.config, loaded.tokenizer, head=loaded.head, files=files
    )
    return directory


def library_of(directory, task):
    """The model of sentence-transformers without dropout, and its loss of a task."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder import losses, scoring

    model: Any = MultiVectorEncoder(str(directory), device="cpu")
    model.eval()
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
    return model, loss


def their_value(model, loss, rows):
    """The loss of a batch, on which `backward` can be called."""
    import torch

    columns = zip(*([x.text, x.pair, *x.choices] for x in rows), strict=True)
    features = []
    for place, texts in enumerate(columns):
        role = "document" if place else "query"
        features.append(model.preprocess(list(texts), task=role) | {"task": role})
    return loss(features, torch.tensor([x.scores for x in rows], dtype=model.dtype))


def pairs_of(tree, model, config, read):
    """Yields (name, array of ours, array of theirs) of a tree of parameters or gradients."""
    ours = flattened(jax.device_get(tree))
    projection = ours.pop("modules/0/kernel")
    yield "projection", projection, read(model[1].linear.weight).T
    theirs = dict(model[0].auto_model.named_parameters())
    seen = set()
    for name, x in to_hf({k: v for k, v in ours.items() if k.startswith("bert/")}, config):
        name = name.removeprefix("bert.")
        if name in theirs and theirs[name].grad is not None:
            seen.add(name)
            yield name, x, read(theirs[name])
    trained = {name for name in theirs if theirs[name].grad is not None}
    assert seen == trained


def gradient(parameter):
    return parameter.grad.numpy()


def value_of(parameter):
    return parameter.detach().numpy()


@pytest.mark.parity
@pytest.mark.parametrize(
    ("options", "devices", "steps"),
    [
        ({}, 1, 1),
        pytest.param(
            {"similarity": "meanmaxsim", "temperature": 0.05}, 8, 2, marks=pytest.mark.slow
        ),
        pytest.param({"attend_expansion": True}, 1, 4, marks=WEEKLY),
        pytest.param({"loss": "kl", "temperature": 2.0}, 8, 2, marks=WEEKLY),
        pytest.param({"loss": "kl", "similarity": "meanmaxsim"}, 1, 1, marks=WEEKLY),
        pytest.param({"loss": "margin", "query_expansion": "none"}, 8, 2, marks=pytest.mark.slow),
        pytest.param({"loss": "margin", "similarity": "meanmaxsim"}, 1, 2, marks=WEEKLY),
    ],
)
@pytest.mark.parametrize("packed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_losses_and_gradients_equal_sentence_transformers(
    options, devices, steps, packed, encoder, sentences, tmp_path
):
    pytest.importorskip("torch", reason="the extra `parity` is not installed")
    pytest.importorskip("sentence_transformers", minversion="6")
    task, loaded = prepared(encoder, **options)
    loss, _, gradients = our_gradients(task, loaded, sentences, devices, steps, packed)
    model, their_loss = library_of(save(loaded, tmp_path / "model"), task)
    # In float64, since their gradients in float32 are up to 1.7e-5 from these: those of the margin
    # loss are as large as 8.
    model.double()
    value = their_value(model, their_loss, list(examples(sentences)))
    value.backward()
    assert loss == pytest.approx(value.item(), rel=1e-6)
    tree = gradients[0] if isinstance(gradients, tuple) else gradients
    for name, ours, theirs in pairs_of(tree, model, loaded.config, gradient):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0, err_msg=name)


STEPS, PEAK = 50, 2e-4


def drawn(sentences, number):
    """Examples of a step; no text occurs twice, since equal texts are no negatives here."""
    rng = np.random.default_rng(number)
    words = sorted({word.strip(".") for sentence in sentences for word in sentence.split()})
    texts: list[str] = []
    while len(texts) < EXAMPLES * TEXTS:
        text = " ".join(rng.choice(words, int(rng.integers(2, 5))))
        if text not in texts:
            texts.append(text)
    rows = []
    for i in range(EXAMPLES):
        a, b, c = texts[TEXTS * i : TEXTS * (i + 1)]
        scores = tuple(rng.normal(0, 2, TEXTS - 1).tolist())
        rows.append(
            Example(id=str(i), where=f"row {i}", text=a, pair=b, choices=(c,), scores=scores)
        )
    return rows


@pytest.mark.parity
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param("contrastive", marks=pytest.mark.slow),
        *(pytest.param(x, marks=WEEKLY) for x in ("kl", "margin")),
    ],
)
def test_fifty_steps_have_the_losses_and_weights_of_sentence_transformers(
    loss, encoder, sentences, tmp_path
):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    pytest.importorskip("sentence_transformers", minversion="6")
    task, loaded = prepared(encoder, loss=loss)
    model, their_loss = library_of(save(loaded, tmp_path / "model"), task)
    optimizer = OptimizerConfig(
        recipe="adamw", learning_rate=PEAK, warmup_steps=5, weight_decay=0.0
    )
    program = Program(
        FinetuneConfig(task="colbert", optimizer=optimizer),
        loaded.model,
        task.objective(loaded.model),
        (Phase(num_steps=STEPS, max_length=128, batch_size=EXAMPLES),),
        sharding.make_mesh(MeshConfig(), jax.devices()[:1]),
    )
    step = program.train_step(1)
    state = program.new_state(jax.tree.map(np.array, loaded.params))
    torch_optimizer = torch.optim.AdamW(
        model.parameters(), betas=(optimizer.b1, optimizer.b2), eps=optimizer.eps, weight_decay=0
    )
    worst = 0.0
    for number in range(STEPS):
        rows = drawn(sentences, number)
        state, metrics = step(state, batch_of(task, loaded, rows), np.uint32(0), None)
        torch_optimizer.zero_grad()
        value = their_value(model, their_loss, rows)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.max_grad_norm)
        for group in torch_optimizer.param_groups:
            group["lr"] = float(metrics["learning_rate"])
        torch_optimizer.step()
        worst = max(worst, abs(float(metrics["loss"]) / value.item() - 1))
    differences, of_keys = [0.0], [0.0]
    for name, ours, theirs in pairs_of(state.params, model, loaded.config, value_of):
        # The gradient of a bias of keys is 0, and Adam divides what rounding makes of it by itself.
        kind = of_keys if name.endswith("key.bias") else differences
        kind.append(np.abs(ours - theirs).max() / np.abs(theirs).max())
    largest = {"losses": worst, "weights": max(differences), "biases of keys": max(of_keys)}
    print(loss, *(f"{name}: {value:.1e}" for name, value in largest.items()))
    assert max(largest.values()) < 1e-4


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


@pytest.mark.slow
def test_a_run_learns_is_searched_and_is_loaded_with_its_settings(result, config, capsys):
    names = ("mrr", "recall_at_1", "recall_at_10", "triplet_accuracy", *RETRIEVAL_METRICS)
    assert set(result.scores) == {f"dev/{x}" for x in names}
    losses = [x["train/loss"] for x in result.metrics if "train/loss" in x]
    assert losses[-1] < losses[0]
    flags = ["--model", str(result.directory), "--retrieval_dir", config.options.retrieval_dir]
    assert search.main([*flags, "--keep_same_id"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    expected = {name: result.scores[f"dev/{name}"] for name in RETRIEVAL_METRICS}
    scores.pop("recall_at_10")  # in the evaluations, that of the pairs
    assert scores == pytest.approx(expected, abs=1e-6)
    loaded = load_model(result.directory, None)
    assert loaded.head == "late_interaction" and loaded.model.size == 16 and not loaded.absent


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_length": 100}, "100"),
        ({"query_expansion": "none", "query_length": 100}, "100"),
        ({"document_length": 100}, "100"),
        ({"query_expansion": "none", "attend_expansion": True}, "attend_expansion=True"),
        ({"loss": "kl"}, "--loss kl"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message, config, tmp_path):
    options = dataclasses.asdict(config.options) | changes
    with pytest.raises(ValueError, match=message):
        options = LateInteractionOptions(**options)
        bertjax.finetune(dataclasses.replace(config, options=options, workdir=str(tmp_path)))
