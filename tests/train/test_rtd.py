"""Replaced-token detection: its losses, samples, shared embeddings, and whole runs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import bertjax
from bertjax import pretrain
from bertjax.config import MeshConfig, OptimizerConfig, Phase, PretrainConfig, RtdConfig
from bertjax.devices import sharding
from bertjax.model import HEADS, heads, named_config
from bertjax.model.dropout import row_uniforms
from bertjax.train.step import make_loss_fn
from bertjax.weights import load_model, names, save_hf
from tests.cases import WEEKLY
from tests.lines import json_lines
from tests.steps import run_until

ROWS, LENGTH, PREDICTIONS = 4, 24, 6
SHARINGS = ("es", "gdes", "none")


@pytest.fixture(scope="module")
def tiny(tiny_family):
    """A discriminator whose generator has half of its size."""
    return tiny_family(
        "electra", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_hidden_layers=1
    )


def model_of(config, sharing):
    rtd = RtdConfig(hidden_size=16, num_attention_heads=2, sharing=sharing, weight=20.0)
    return HEADS["rtd"](config).with_generator(rtd)


def random_batch(vocab_size):
    rng = np.random.default_rng(0)
    lengths = rng.integers(PREDICTIONS + 2, LENGTH + 1, ROWS)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    positions = np.sort([rng.permutation(PREDICTIONS + 2)[:PREDICTIONS] for _ in range(ROWS)])
    weights = np.ones((ROWS, PREDICTIONS), np.float32)
    weights[0, -2:] = 0  # unused entries
    positions[0, -2:] = 0
    return {
        "input_ids": np.where(mask, rng.integers(5, vocab_size, mask.shape), 0).astype(np.int32),
        "token_type_ids": ((np.arange(LENGTH) > 4) * mask).astype(np.int32),
        "position_ids": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), mask.shape),
        "sequence_ids": mask,
        "sequence_starts": np.zeros((ROWS, 1), np.int32),
        "masked_positions": positions.astype(np.int32),
        "masked_labels": rng.integers(5, vocab_size, (ROWS, PREDICTIONS)).astype(np.int32),
        "masked_weights": weights,
        "labels": np.full((ROWS, 1), -1, np.int32),
    }


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("sharing", SHARINGS)
def test_losses_and_gradients_equal_a_restatement_in_pytorch(
    sharing, tiny, tmp_path, tokenizer, monkeypatch, random_params
):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    model, batch = model_of(tiny, sharing), random_batch(tiny.vocab_size)
    samples = np.random.default_rng(1).integers(5, tiny.vocab_size, (ROWS, PREDICTIONS))
    samples[:, ::2] = batch["masked_labels"][:, ::2]  # equal ones are not replaced
    monkeypatch.setattr(heads, "sample", lambda logits, uniforms: jnp.asarray(samples))
    recipe = model.recipe
    trained, fixed = recipe.split(random_params(model))
    params = jax.device_get(recipe.join(trained, fixed))
    generator = params.pop("generator")
    save_hf(tmp_path / "d", params, tiny, tokenizer, head="rtd")
    save_hf(tmp_path / "g", generator, model.generator_config, tokenizer, head="masked_lm")
    discriminator = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "d")
    theirs = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "g")

    objective = model.objective("pretraining")
    weights = objective.weights(batch)
    loss_fn = make_loss_fn(model, objective)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss_of(trained):
        return loss_fn(recipe.join(trained, fixed), batch, weights, None)

    (loss, sums), grads = loss_of(trained)

    used = batch["masked_weights"] > 0
    ids, replaced = torch.tensor(batch["input_ids"]).long(), torch.zeros(ROWS, LENGTH)
    labels = torch.full(ids.shape, -100)
    changed = ids.clone()
    for row, entry in np.argwhere(used):
        position = batch["masked_positions"][row, entry]
        labels[row, position] = int(batch["masked_labels"][row, entry])
        changed[row, position] = int(samples[row, entry])
        replaced[row, position] = float(changed[row, position] != labels[row, position])
    others = {
        "attention_mask": torch.tensor(batch["sequence_ids"]).long(),
        "token_type_ids": torch.tensor(batch["token_type_ids"]).long(),
    }
    mlm_loss = theirs(input_ids=ids, labels=labels, **others).loss
    logits = discriminator(input_ids=changed, **others).logits
    real = others["attention_mask"].bool()
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    rtd_loss = bce(logits[real], replaced[real])
    np.testing.assert_allclose(loss, (mlm_loss + 20 * rtd_loss).item(), atol=1e-5)
    right = ((logits[real] > 0) == (replaced[real] > 0)).float().mean()
    assert float(sums["rtd_accuracy"][0] / sums["rtd_accuracy"][1]) == pytest.approx(right.item())
    (mlm_loss + 20 * rtd_loss).backward()

    # The gradients of what is shared are added up; the difference has those of the discriminator.
    own = {name: p.grad.numpy() for name, p in discriminator.named_parameters()}
    of_generator = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    found = jax.device_get(grads)
    left = found.pop("generator")
    if sharing == "es":
        common = [name for name in own if ".embeddings." in name and name in of_generator]
        assert len(common) == 5
        for name in common:
            own[name] = own[name] + of_generator.pop(name)
    found = dict(names.to_hf(flatten_dict(found, sep="/"), tiny))
    left = dict(names.to_hf(flatten_dict(left, sep="/"), model.generator_config))
    for ours, wanted in ((found, own), (left, of_generator)):
        assert ours.keys() == wanted.keys()
        norm = np.sqrt(sum((g**2).sum() for g in wanted.values()))
        for name, gradient in wanted.items():
            limit = 1e-6 * norm if name.endswith("key.bias") else 1e-4 * np.abs(gradient).max()
            assert np.abs(ours[name] - gradient).max() <= limit, name


@pytest.mark.parametrize(
    "size",
    [
        50,
        pytest.param(300, marks=pytest.mark.slow),
        pytest.param(128, marks=WEEKLY),
    ],
)
def test_words_are_sampled_with_the_frequencies_of_the_softmax(size):
    logits = jnp.asarray(np.random.default_rng(0).normal(0, 2, size), jnp.float32)
    draws, rows = 100_000, jnp.arange(100)
    uniforms = row_uniforms(jax.random.key(0), rows, (draws // 100,)).reshape(-1)
    words = jax.jit(lambda u: heads.sample(jnp.broadcast_to(logits, (draws, size)), u))(uniforms)
    counts = np.bincount(words, minlength=size)
    expected = draws * np.asarray(jax.nn.softmax(logits), float)
    chi_square = np.sum((counts - expected) ** 2 / expected)
    assert abs(chi_square - (size - 1)) < 3 * np.sqrt(2 * (size - 1))
    # The samples of a row do not depend on the other rows.
    alone = row_uniforms(jax.random.key(0), rows[7:8], (draws // 100,))
    np.testing.assert_array_equal(alone[0], uniforms.reshape(100, -1)[7])


@pytest.mark.parametrize("sharing", SHARINGS)
def test_parameters_that_are_stored_come_back(sharing, tiny, random_params):
    model = model_of(tiny, sharing)
    params = random_params(model)
    if sharing == "es":
        own = params["bert"]["embeddings"]
        shared = {name: own[name] for name in own if name != "projection"}
        params["generator"]["bert"]["embeddings"] |= shared
    recipe = model.recipe
    trained, fixed = recipe.split(params)
    left_out = len(jax.tree.leaves(params)) - len(jax.tree.leaves((trained, fixed)))
    assert left_out == (5 if sharing == "es" else 0)
    again = recipe.join(trained, fixed)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    new = recipe.join(*recipe.split(params, is_new=True))
    own, theirs = (x["bert"]["embeddings"] for x in (new, new["generator"]))
    name = "word_embeddings"
    equal = np.array_equal(own[name]["embedding"], theirs[name]["embedding"])
    assert equal == (sharing != "none")


@pytest.fixture(scope="module")
def config(prepared, tiny, tokenizer) -> PretrainConfig:
    words = -(-tokenizer.vocab_size // 8) * 8  # which divides over meshes
    model = dataclasses.replace(tiny, vocab_size=words, hidden_dropout_prob=0.1)
    return PretrainConfig(
        data=str(prepared),
        head="rtd",
        model=model,
        rtd=RtdConfig(hidden_size=16, num_attention_heads=2, sharing="gdes"),
        phases=(Phase(num_steps=10, max_length=16, batch_size=16),),
        optimizer=OptimizerConfig(recipe="adamw", learning_rate=1e-2, warmup_steps=2),
        unroll=1,
        log_every=3,
        eval_every=5,
        eval_rows=32,
        save_every=20,
        peak_tflops=0.1,
    )


def in_folder(config, folder, **changes):
    return dataclasses.replace(config, workdir=str(folder / "run"), **changes)


def parameters(folder):
    loaded = load_model(folder / "run" / "model", "rtd")
    generator = load_model(folder / "run" / "model" / "generator", "masked_lm")
    return {"d": loaded.params, "g": generator.params}


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    pretrain.run(in_folder(config, folder))
    return folder


@pytest.mark.slow
def test_both_models_are_exported_and_measured(whole, config, sentences):
    lines = json_lines(whole / "run" / "metrics.jsonl")
    evaluated = [x for x in lines if "eval/rtd_loss" in x]
    assert len(evaluated) == 2
    assert {"eval/mlm_loss", "eval/mlm_accuracy", "eval/rtd_accuracy"} <= evaluated[-1].keys()
    trained = [x for x in lines if "train/loss" in x]
    assert trained[-1]["train/loss"] < trained[0]["train/loss"]
    total = trained[-1]["train/mlm_loss"] + 50 * trained[-1]["train/rtd_loss"]
    assert trained[-1]["train/loss"] == pytest.approx(total, rel=1e-5)
    of_run = load_model(whole / "run", "rtd").params
    jax.tree.map(np.testing.assert_array_equal, of_run, parameters(whole)["d"])
    encoder = load_model(whole / "run" / "model", "auto")
    assert encoder.head == "encoder"
    mask = encoder.tokenizer.layout.special_tokens.mask
    words = bertjax.load_pretrained(whole / "run" / "model" / "generator", "masked_lm")
    assert len(words.fill_mask(f"{sentences[0]} {mask}", top_k=3)[0]) == 3


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_resumed_run_equals_an_uninterrupted_one(whole, config, tmp_path, monkeypatch):
    stopped = in_folder(config, tmp_path)
    run_until(4, lambda: pretrain.run(stopped), monkeypatch)
    pretrain.run(stopped)
    jax.tree.map(np.testing.assert_array_equal, parameters(tmp_path), parameters(whole))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_generator_learns_the_same_whatever_the_discriminator_does(whole, config, tmp_path):
    """The embeddings of gdes have no gradient of the discriminator, nor has its norm an effect."""
    pretrain.run(in_folder(config, tmp_path, rtd=dataclasses.replace(config.rtd, weight=1e-3)))
    found, expected = parameters(tmp_path), parameters(whole)
    for a, b in zip(jax.tree.leaves(found["g"]), jax.tree.leaves(expected["g"]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert np.abs(jax.tree.leaves(found["d"])[-1] - jax.tree.leaves(expected["d"])[-1]).max() > 1e-4


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "mesh", "microbatches"),
    [
        (1, MeshConfig(), 1),
        (1, MeshConfig(), 4),
        (8, MeshConfig(fsdp=2, tensor=2), 2),
    ],
)
def test_devices_and_microbatches_change_nothing(
    whole, config, devices, mesh, microbatches, tmp_path, monkeypatch
):
    make, chosen = sharding.make_mesh, jax.devices()[:devices]
    monkeypatch.setattr(sharding, "make_mesh", lambda sizes, _: make(sizes, chosen))
    phases = (dataclasses.replace(config.phases[0], accumulation_steps=microbatches),)
    pretrain.run(in_folder(config, tmp_path, mesh=mesh, phases=phases))
    expected, found = parameters(whole), parameters(tmp_path)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_sequences_of_a_packed_row_are_as_alone(tiny, random_params, monkeypatch):
    best = lambda logits, uniforms: jnp.argmax(logits, axis=-1)  # noqa: E731
    monkeypatch.setattr(heads, "sample", best)
    model = model_of(tiny, "es")
    trained, fixed = model.recipe.split(random_params(model))
    params, rng = model.recipe.join(trained, fixed), np.random.default_rng(0)
    ids, labels = rng.integers(5, tiny.vocab_size, (2, 2, 8)), np.full((1, 4), 7)
    places = np.arange(8)
    packed = {
        "input_ids": ids[:1].reshape(1, 16),
        "position_ids": np.concatenate([places, places])[None],
        "sequence_ids": np.repeat([1, 2], 8)[None],
        "sequence_starts": np.array([[0, 8]]),
        "masked_positions": np.array([[1, 2, 9, 12]]),
        "masked_labels": labels,
        "masked_weights": np.ones((1, 4)),
    }
    alone = {
        "input_ids": ids[0],
        "masked_positions": np.array([[1, 2], [1, 4]]),
        "masked_labels": labels.reshape(2, 2),
        "masked_weights": np.ones((2, 2)),
    }
    found, expected = (jax.jit(model.apply)({"params": params}, **x) for x in (packed, alone))
    for name in ("logits", "replaced"):
        np.testing.assert_allclose(found[name].reshape(2, 8), expected[name], atol=1e-5)
    assert found["replaced"].sum() > 0


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_deberta_has_a_generator_with_a_mask_decoder(config, tiny_family, tmp_path):
    words = config.model.vocab_size
    model = tiny_family("deberta-v2", vocab_size=words, conv_kernel_size=0, num_hidden_layers=2)
    rtd = RtdConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, sharing="gdes")
    pretrain.run(in_folder(config, tmp_path, model=model, rtd=rtd))
    detector = load_model(tmp_path / "run" / "model", "rtd")
    generator = load_model(tmp_path / "run" / "model" / "generator", "masked_lm")
    assert generator.config.enhanced_mask_decoder and not detector.config.enhanced_mask_decoder
    tables = generator.params["bert"]["embeddings"]
    assert tables["position_embeddings"]["embedding"].any() and not detector.absent
    assert "position_embeddings" not in detector.params["bert"]["embeddings"]
    of_run = load_model(tmp_path / "run", "rtd").params
    jax.tree.map(np.testing.assert_array_equal, of_run, detector.params)


def test_settings_that_do_not_fit_are_refused(config, tmp_path, tiny, tokenizer, written):
    with pytest.raises(ValueError, match="rtd=.*has no effect without --head rtd"):
        dataclasses.replace(config, head="masked_lm")
    with pytest.raises(ValueError, match="hidden_size=16 is not a multiple of num_attention_heads"):
        dataclasses.replace(config, rtd=RtdConfig(hidden_size=16, num_attention_heads=3))
    with pytest.raises(ValueError, match="bert cannot have the head 'rtd'.*masked_lm"):
        pretrain.run(in_folder(config, tmp_path, model=named_config("bert-tiny")))
    small = dataclasses.replace(tiny, vocab_size=tokenizer.vocab_size)
    generator = written(tmp_path / "g", small, "masked_lm", tokenizer)
    with pytest.raises(ValueError, match="is a generator: .* Give the discriminator"):
        pretrain.run(in_folder(config, tmp_path, init=str(generator)))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kept", [True, False])
def test_a_discriminator_is_trained_further(whole, config, tmp_path, capsys, kept, monkeypatch):
    model = whole / "run" / "model"
    phases = (dataclasses.replace(config.phases[0], num_steps=2),)
    still = dataclasses.replace(config.optimizer, learning_rate=1e-9, warmup_steps=0)
    changes = {"init": str(model), "phases": phases, "optimizer": still}
    if kept:  # which determines the sizes
        changes |= {"generator_init": str(model / "generator"), "rtd": RtdConfig(sharing="gdes")}
    run_until(1, lambda: pretrain.run(in_folder(config, tmp_path, **changes)), monkeypatch)
    pretrain.run(in_folder(config, tmp_path, **changes))
    new = "has no generator: it is initialised at random" in capsys.readouterr().out
    assert new == (not kept)
    found, expected = (parameters(folder) for folder in (tmp_path, whole))
    for part in ("d", "g") if kept else ("d",):
        trees = (jax.tree.leaves(tree[part]) for tree in (found, expected))
        for a, b in zip(*trees, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_generator_that_is_not_that_of_the_discriminator_is_refused(
    config, tmp_path, tiny, tokenizer, written
):
    with pytest.raises(ValueError, match="generator_init='g' has no effect without --init"):
        dataclasses.replace(config, generator_init="g")
    with pytest.raises(ValueError, match="generator_init='g' has no effect without --head rtd"):
        dataclasses.replace(config, generator_init="g", init="d", head="masked_lm", rtd=RtdConfig())
    small = dataclasses.replace(tiny, vocab_size=tokenizer.vocab_size)
    init = str(written(tmp_path / "d", small, "rtd", tokenizer))

    def refused(name, match):
        changes = {"init": init, "generator_init": str(name), "rtd": RtdConfig()}
        with pytest.raises(ValueError, match=match):
            pretrain.run(in_folder(config, tmp_path, **changes))

    refused(init, "has no .*, so it is no masked LM: give the generator")
    relu = dataclasses.replace(small, hidden_act="relu")
    other = written(tmp_path / "relu", relu, "masked_lm", tokenizer)
    refused(other, "is no generator of --init .*: they differ in hidden_act: 'gelu' -> 'relu'")
    generator = written(tmp_path / "g", small, "masked_lm", tokenizer, seed=1)
    refused(generator, "have other embeddings, .*--rtd.sharing gdes")
