"""Recipes of fine-tuning: rates by layer, averages, frozen parts, LoRA, adapters for PEFT."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import load_file

import bertjax
from bertjax import finetune
from bertjax.config import OptimizerConfig, Phase
from bertjax.data.batches.batch import Feature
from bertjax.devices import sharding
from bertjax.model import HEADS
from bertjax.tasks import finetune_config
from bertjax.tasks.training_data import Labels, row_shape
from bertjax.train import run_plan
from bertjax.train.optimizer import decay_by_layer, make_optimizer
from bertjax.train.program import Program
from bertjax.train.recipes import make_recipe
from bertjax.weights import load_model, save_hf
from bertjax.weights.adapters import adapter_files
from tests.cases import WEEKLY
from tests.lines import json_lines
from tests.rows import make_batch
from tests.steps import run_until

RATE = OptimizerConfig(recipe="adamw", learning_rate=3e-3, schedule="hf", warmup_steps=1, eps=1e-3)


def flat(tree):
    return flatten_dict(tree, sep="/")


def assert_equal(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    assert jax.tree.all(jax.tree.map(np.array_equal, tree, other))


@pytest.fixture(scope="module")
def classifier(tiny_config, random_params):
    model = HEADS["sequence_classification"](tiny_config, num_labels=3)
    return model, random_params(model)


def test_the_rate_of_a_layer_is_a_power_of_the_decay(classifier):
    """Of 2 layers: 0.5 of the rate in the upper, 0.25 in the lower, 0.125 in the embeddings."""
    _, params = classifier
    config = OptimizerConfig(recipe="adamw", weight_decay=0.1, warmup_steps=0)

    @jax.jit
    def updates_of(params):
        found = []
        for more in ((), (decay_by_layer(0.5, 2),)):
            tx = make_optimizer(config, lambda step: jnp.asarray(0.01), None, *more)
            found.append(flat(tx.update(jax.tree.map(jnp.cos, params), tx.init(params), params)[0]))
        return found

    plain, decayed = updates_of(params)
    for path, update in plain.items():
        factor = 0.125 if "/embeddings/" in path else 1.0
        if "/layers/" in path:
            factor = np.array([0.25, 0.5]).reshape(-1, *[1] * (update.ndim - 1))
        np.testing.assert_allclose(decayed[path], factor * update, rtol=1e-6)
    upper = {"bert": {"encoder": {"layers": {"x": jnp.ones((1, 3))}}}}  # the lower one is frozen
    scaled = decay_by_layer(0.5, 2).update(upper, optax.EmptyState())[0]
    np.testing.assert_array_equal(scaled["bert"]["encoder"]["layers"]["x"], np.full((1, 3), 0.5))


@pytest.mark.parity
def test_rates_by_layer_are_those_of_parameter_groups_in_pytorch(random_params, tiny_config):
    torch = pytest.importorskip("torch")
    params = random_params(HEADS["sequence_classification"](tiny_config))
    config = OptimizerConfig(recipe="adamw", weight_decay=0.1, eps=1e-6, max_grad_norm=0.0)
    tx = make_optimizer(config, lambda step: jnp.asarray(0.01), None, decay_by_layer(0.9, 2))
    state, groups, theirs = tx.init(params), [], {}
    update = jax.jit(tx.update)
    for path, value in flat(params).items():
        layers = range(2) if "/layers/" in path else (None,)
        theirs[path] = [
            torch.nn.Parameter(torch.tensor(value if i is None else value[i])) for i in layers
        ]
        decay = 0.0 if path.endswith(("bias", "scale")) else 0.1
        for layer, tensor in zip(layers, theirs[path], strict=True):
            power = (3 if "/embeddings/" in path else 0) if layer is None else 2 - layer
            groups.append({"params": [tensor], "lr": 0.01 * 0.9**power, "weight_decay": decay})
    adam = torch.optim.AdamW(groups, eps=1e-6)
    for _ in range(3):
        updates, state = update(jax.tree.map(np.cos, params), state, params)
        params = jax.tree.map(np.add, params, updates)
        for tensors in theirs.values():
            for tensor in tensors:
                tensor.grad = torch.cos(tensor.detach())
        adam.step()
    for path, value in flat(params).items():
        expected = np.stack([x.detach().numpy() for x in theirs[path]])
        np.testing.assert_allclose(value, expected.reshape(value.shape), atol=1e-5)


class Setup:
    """A program of two layers that classifies; `run` updates it with one batch a few times."""

    def __init__(self, classifier, devices=1, **settings):
        self.model, self.params = classifier
        self.config = finetune_config(
            task="classify", init="m", optimizer=RATE, dropout=0.0, unroll=1, **settings
        )
        self.phase = Phase(
            num_steps=9, max_length=32, batch_size=16,
            accumulation_steps=self.config.accumulation_steps,
        )  # fmt: skip
        mesh = sharding.make_mesh(self.config.mesh, jax.devices()[:devices])
        objective = self.model.objectives["classes"]
        self.program = Program(
            self.config, self.model, objective, (self.phase,), mesh,
            recipe=make_recipe(self.config, self.model),
            layer_decay=self.config.layer_decay, average_decay=self.config.average_decay,
        )  # fmt: skip
        self.step = self.program.seeded_step(self.phase)

    def batch(self):
        rng = np.random.default_rng(0)
        features = [
            Feature(
                rng.integers(5, 100, n, np.int32), (n,), (n // 2,), rng.integers(0, 3, 1, np.int32)
            )
            for n in rng.integers(20, 32, 16)
        ]
        batch, _ = make_batch(features, row_shape(32, 1, (16,)), Labels("classes", 3), 0)
        rows = sharding.host_rows(self.program.rows, 16)
        return sharding.to_devices(batch, rows, self.program.rows, 16)

    def run(self, steps=3, change=lambda step, state: state):
        state, states = self.program.new_state(self.params), []
        for number in range(steps):
            state, _ = self.step(change(number, state), self.batch())
            states.append(jax.device_get(state))
        return state, states


TAGGER = {"tagger": {"layers": -1}}
FREEZE = {"freeze_embeddings": True, "freeze_layers": 1}
LORA = {"lora": {"rank": 4, "alpha": 8.0}}
EXPORTED = {"lora": {"rank": 4, "alpha": 8.0, "export": "adapter"}}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_frozen_parts_stay_bit_for_bit_and_have_no_state(classifier):
    setup = Setup(classifier, **FREEZE, layer_decay=0.9)
    state, _ = setup.run()
    before, after = flat(setup.params), flat(jax.device_get(setup.program.final_params(state)))
    assert before.keys() == after.keys()
    for path, value in before.items():
        lower = value if "/embeddings/" in path else value[:1]
        same = np.array_equal(after[path], value)
        assert same == ("/embeddings/" in path)
        if "/layers/" in path or same:
            np.testing.assert_array_equal(after[path][: len(lower)], lower)
            assert same or not np.array_equal(after[path][1:], value[1:])
    frozen = sum(x.size for path, x in before.items() if "/embeddings/" in path)
    frozen += sum(x.size // 2 for path, x in before.items() if "/layers/" in path)
    trained = sum(x.size for x in before.values()) - frozen
    moments = sum(x.size for x in jax.tree.leaves(state.opt_state))
    assert 2 * trained <= moments < 2 * trained + 10


@pytest.mark.parametrize(
    "settings", [FREEZE, {"freeze_embeddings": True}, {"freeze_layers": 2}, LORA]
)
def test_a_state_holds_the_parameters_of_the_model(classifier, settings):
    """B of new adapters is zero, and A is at most 1 / sqrt(in), as in PEFT."""
    setup = Setup(classifier, **settings)
    split = setup.program.recipe.split(setup.params)
    joined = setup.program.recipe.join(*split)
    jax.tree.map(np.testing.assert_array_equal, joined, setup.params)
    drawn = [x for path, x in flat(split[0]).items() if path.endswith("lora_a")]
    assert len(drawn) == (6 if "lora" in settings else 0)
    for a in drawn:
        bound = a.shape[1] ** -0.5
        assert 0.9 * bound < np.abs(a).max() <= bound
        assert float(np.std(a)) == pytest.approx(bound / 3**0.5, rel=0.15)


@pytest.mark.slow
def test_lora_trains_adapters_and_head_with_little_state(classifier):
    setup = Setup(classifier, **LORA, average_decay=0.5)
    state, _ = setup.run()
    assert_equal(jax.device_get(state.fixed), setup.program.recipe.split(setup.params)[1])
    before, after = flat(setup.params), flat(jax.device_get(setup.program.final_params(state)))
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {
        path
        for path in before
        if ("/layers/" in path and path.endswith("kernel"))
        or path.startswith(("classifier/", "bert/pooler/"))
    }
    adapters = 2 * 4 * (4 * (32 + 32) + (32 + 64) + (64 + 32))  # layers, rank, in + out
    trained = adapters + 32 * 32 + 32 + 3 * 32 + 3
    moments = sum(x.nbytes for x in jax.tree.leaves(state.opt_state))
    assert 3 * 4 * trained <= moments < 3 * 4 * trained + 40  # two moments and the average


@pytest.mark.slow
def test_the_average_has_the_weights_of_its_formula_and_skips_what_is_skipped(classifier):
    """After n updates, it is sum(d^(n - i) p_i) / sum(d^(n - i)) of the parameters p_i."""
    setup = Setup(classifier, average_decay=0.8, max_bad_steps=5)

    def change(number, state):
        if number != 2:
            return state
        broken = {
            **state.params["classifier"],
            "bias": state.params["classifier"]["bias"] * jnp.nan,
        }
        return state._replace(params={**state.params, "classifier": broken})

    state, states = setup.run(2)
    weights = np.array([0.8, 1.0]) / 1.8
    expected = jax.tree.map(lambda *p: sum(w * x for w, x in zip(weights, p, strict=True)),
                            *[s.params for s in states])  # fmt: skip
    found = jax.device_get(setup.program.final_params(state))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)
    _, after = setup.run(3, change)
    assert_equal(after[2].opt_state[-1], states[1].opt_state[-1])
    start = setup.program.new_state(setup.params)
    assert_equal(jax.device_get(setup.program.final_params(start)), setup.params)


@pytest.mark.parametrize(
    "settings",
    [{**LORA, "average_decay": 0.9}, FREEZE],
)
@pytest.mark.slow
@pytest.mark.exhaustive
def test_eight_devices_and_two_microbatches_equal_one(classifier, settings):
    found = []
    for devices, steps in ((1, 1), (8, 2)):
        setup = Setup(classifier, devices, accumulation_steps=steps, **settings)
        found.append(jax.device_get(setup.program.final_params(setup.run()[0])))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *found)


HEAD = {
    "sequence_classification": "ForSequenceClassification",
    "question_answering": "ForQuestionAnswering",
    "sentence_embedding": "",
}


def with_adapters(model, params, targets=()):
    """(recipe, trained parameters whose B are random, parameters of the merged model)."""
    lora = {"rank": 3, "alpha": 5.0, "targets": targets}
    config = finetune_config(task="classify", init="m", lora=lora)
    recipe, rng = make_recipe(config, model), np.random.default_rng(1)
    trained, fixed = recipe.split(params)
    trained = jax.tree.map_with_path(
        lambda path, x: (
            rng.normal(size=x.shape).astype(np.float32) * 0.1
            if path[-1].key == "lora_b"
            else np.asarray(x)
        ),
        trained,
    )
    return recipe, trained, jax.device_get(recipe.join(trained, fixed))


def test_a_merged_kernel_gives_the_outputs_of_kernel_and_adapter(classifier):
    model, params = classifier
    _, trained, merged = with_adapters(model, params)
    x = np.random.default_rng(2).normal(size=(5, 32)).astype(np.float32)
    for name in ("query", "key", "value"):
        kernel = params["bert"]["encoder"]["layers"]["attention"][name]["kernel"][1]
        adapter = trained["bert"]["encoder"]["layers"]["attention"][name]
        apart = x @ kernel.reshape(32, 32) + 5 / 3 * (
            (x @ adapter["lora_a"][1]) @ adapter["lora_b"][1]
        )
        whole = merged["bert"]["encoder"]["layers"]["attention"][name]["kernel"][1]
        np.testing.assert_allclose(x @ whole.reshape(32, 32), apart, atol=1e-5)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("family", "head", "targets"),
    [
        ("bert", "sequence_classification", ()),
        *(
            pytest.param(*case, marks=WEEKLY)
            for case in (
                ("modernbert", "question_answering", ("Wqkv", "mlp.Wo")),
                ("bert", "question_answering", ("query", "value", "output.dense")),
                ("bert", "sentence_embedding", ()),
                ("modernbert", "sequence_classification", ()),
                ("roberta", "sequence_classification", ()),
                ("distilbert", "sequence_classification", ()),
                ("albert", "sequence_classification", ()),
                ("esmc", "sequence_classification", ("q_proj", "mlp.up_proj")),
            )
        ),
    ],
)  # fmt: skip
def test_peft_loads_an_adapter_with_equal_outputs(
    family, head, targets, tiny_family, tokenizer, random_params, tmp_path
):
    transformers, peft = (pytest.importorskip(x) for x in ("transformers", "peft"))
    torch = pytest.importorskip("torch")
    config = tiny_family(family)
    model = HEADS[head](config, num_labels=3)
    params = random_params(model)
    recipe, trained, merged = with_adapters(model, params, targets)
    whole = {
        path: x + 0.1 for path, x in flat(merged).items() if not path.startswith(recipe.prefixes)
    }
    base, classes = tmp_path / "base", {"id2label": dict.fromkeys(range(3), "x")}
    save_hf(base, params, config, tokenizer, head=head, extra=classes if "seq" in head else None)
    for name, content in adapter_files(
        recipe.matrices(trained),
        whole,
        config,
        {"r": 3, "lora_alpha": 5.0, "base_model_name_or_path": str(base)},
    ).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    theirs = getattr(transformers, f"AutoModel{HEAD[head]}").from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    ids = np.random.default_rng(0).integers(5, 100, (2, 12))
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids), attention_mask=torch.ones(2, 12))
    merged = unflatten_dict({**flat(merged), **whole}, sep="/")
    found = jax.jit(model.apply)({"params": merged}, ids)
    again = load_model(tmp_path / "adapter", head, num_labels=3)
    own = jax.jit(model.apply)({"params": again.params}, ids)
    for key in set(model.outputs) & set(expected) or ["last_hidden_state"]:
        np.testing.assert_allclose(found[key], expected[key].numpy(), atol=1e-5)
        np.testing.assert_allclose(own[key], found[key], atol=1e-5)


def weights_of(kind, counts, weights):
    config = finetune_config(task="classify", class_weights=weights)
    task: Any = SimpleNamespace(label_kind=kind)
    data: Any = SimpleNamespace(class_counts=np.array(counts), sizes=np.ones(100))
    return run_plan.class_weights(config.options, task, data)


def test_balanced_weights_of_several_labels_are_examples_without_per_example_with():
    assert weights_of("multi_label", [25, 50, 100, 0], "balanced") == (3.0, 1.0, 0.01, 100.0)
    assert weights_of("multi_label", [25, 50], (2.0, 4.0)) == (2.0, 4.0)
    assert weights_of("classes", [25, 75], "balanced") == (2.0, 2 / 3)
    assert weights_of("tokens", [30, 0, 60], "balanced") == (1.0, 0.0, 0.5)  # none has the label


def config_of(encoder, files, workdir, **settings):
    return finetune_config(
        task="classify", init=str(encoder), **files["classify"], max_length=32, batch_size=8,
        num_epochs=1, optimizer=RATE, unroll=1, log_every=4, workdir=str(workdir), **settings,
    )  # fmt: skip


RECIPES = {
    "lora": {**EXPORTED, "average_decay": 0.9, "accumulation_steps": 2},
    "frozen": {**FREEZE, "layer_decay": 0.8, "label_smoothing": 0.1, "average_decay": 0.9},
}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("recipe", ["lora", "frozen"])
def test_a_resumed_run_leaves_the_files_of_an_uninterrupted_one(
    recipe, one_layer, encoder, files, tmp_path, monkeypatch, capsys
):
    init = one_layer if recipe == "lora" else encoder
    runs = [config_of(init, files, tmp_path / name, **RECIPES[recipe]) for name in ("whole", "cut")]
    finetune.run(runs[0])
    assert "are trained with" in capsys.readouterr().out
    run_until(5, lambda: finetune.run(runs[1]), monkeypatch)
    finetune.run(runs[1])
    names = ["model/model.safetensors", "scores.json", "predictions/dev.jsonl"]
    names += [f"model/adapter/adapter_{x}" for x in ("model.safetensors", "config.json")] * (
        recipe == "lora"
    )
    for name in names:
        whole, cut = (tmp_path / x / name for x in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes()
    before, after = (
        load_file(Path(x) / "model.safetensors") for x in (init, tmp_path / "cut/model")
    )
    name = "bert.embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.exhaustive
def test_the_adapter_of_an_embedder_has_only_its_encoder(encoder, tmp_path, sentences):
    """The Dense behind the pooling is trained, too, and in the directory of the model."""
    models = pytest.importorskip("sentence_transformers.models")
    modules = [models.Transformer(str(encoder)), models.Pooling(32), models.Dense(32, 16)]
    start, library = tmp_path / "start", pytest.importorskip("sentence_transformers")
    library.SentenceTransformer(modules=modules).save(str(start))
    rows = [{"text1": a, "text2": b} for a, b in zip(sentences[:24], sentences[24:48], strict=True)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"classify": {"train": str(tmp_path / "train.jsonl")}}
    config = config_of(start, files, tmp_path / "run", **RECIPES["lora"])
    finetune.run(finetune_config(config, task="embed"))
    model = tmp_path / "run/model"
    adapter = load_file(model / "adapter/adapter_model.safetensors")
    assert all(name.startswith("base_model.model.encoder.layer.") for name in adapter)
    assert all(".lora_" in name for name in adapter) and len(adapter) == 2 * 2 * 6
    dense = [load_file(x / "2_Dense/model.safetensors") for x in (start, model)]
    assert not np.array_equal(*(x["linear.weight"] for x in dense))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_thresholds_of_the_dev_split_are_stored_and_predict_the_test_split(
    encoder, files, tmp_path, capsys
):
    test = files["multi"]["dev"]
    several = {**files, "classify": {**files["multi"], "test": test}}
    more = {"tune_thresholds": True, "class_weights": (0.1, 0.1, 0.1), "seeds": 2}
    config = config_of(encoder, several, tmp_path / "run", **more)
    finetune.run(config)
    assert "thresholds: chosen on 30 held-out examples; macro F1" in capsys.readouterr().out
    run = tmp_path / "run"
    thresholds = json.loads((run / "model/task.json").read_text())["thresholds"]
    assert thresholds.keys() == {"a", "b", "c"}
    assert json.loads((run / "calibration.json").read_text())["thresholds"] == thresholds
    lines = json_lines(run / "predictions/test.jsonl")
    again = bertjax.load_pretrained(run / "model").predict([x["input"]["text"] for x in lines])
    for line, prediction in zip(lines, again, strict=True):
        chosen = [x for x in "abc" if line["probabilities"][x] >= thresholds[x]]
        assert line["labels"] == prediction["labels"] == chosen
    before = json_lines(run / "predictions/dev.jsonl")
    assert any(x["labels"] != y["labels"] for x, y in zip(before, lines, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**LORA, "freeze_layers": 1}, "freeze_layers=.* --lora.rank 4"),
        ({**LORA, "freeze_embeddings": True}, "freeze_embeddings=.* --lora.rank 4"),
        ({**LORA, "layer_decay": 0.9}, "layer_decay=.* --lora.rank 4"),
        ({**TAGGER, **LORA}, "lora=.* --tagger.layers"),
        ({**TAGGER, "layer_decay": 0.9}, "layer_decay=.* --tagger.layers"),
        ({**TAGGER, "freeze_layers": 1}, "freeze_layers=.* --tagger.layers"),
        ({**TAGGER, "freeze_embeddings": True}, "freeze_embeddings=.* --tagger.layers"),
        ({"lora": {"alpha": 4.0}}, "rank"),
        ({"lora": {"export": "adapter"}}, "rank"),
        ({"layer_decay": 1.5}, "layer_decay=1.5: choose it in"),
    ],
)  # fmt: skip
def test_recipes_that_exclude_each_other_are_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        finetune_config(task="tag", **settings)


def test_thresholds_of_one_label_are_refused(one_layer, files, tmp_path):
    config = config_of(one_layer, files, tmp_path / "run", tune_thresholds=True)
    with pytest.raises(ValueError, match="classify does not have several labels per example"):
        finetune.run(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze_layers": 3}, "freeze_layers=3: m has 2 layers"),
        ({"lora": {"rank": 4, "targets": "quer"}}, "no linear layer 'quer'.*mean 'query'"),
    ],
)
def test_layers_that_a_model_lacks_are_refused(classifier, settings, message):
    with pytest.raises(ValueError, match=message):
        make_recipe(finetune_config(task="classify", init="m", **settings), classifier[0])


def test_shared_layers_and_nothing_to_train_are_refused(tiny_family, tiny_config):
    model = HEADS["sequence_classification"](tiny_family("albert"))
    with pytest.raises(ValueError, match=r"layers of m share parameters"):
        make_recipe(finetune_config(task="classify", init="m", layer_decay=0.9), model)
    config = finetune_config(task="embed", init="m", freeze_embeddings=True, freeze_layers=2)
    with pytest.raises(ValueError, match="freeze all parameters of m"):
        make_recipe(config, HEADS["sentence_embedding"](tiny_config))
