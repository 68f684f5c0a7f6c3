"""Taggers on a frozen encoder, from files to a model directory and back."""

import json
import random
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import bertjax
from bertjax import convert, finetune, predict
from bertjax.config import FinetuneConfig, OptimizerConfig, TaggerConfig
from bertjax.convert import ConvertConfig
from bertjax.predict import PredictConfig
from bertjax.tasks import finetune_config
from bertjax.weights import load_model
from tests.lines import json_lines
from tests.steps import run_until

# Many trainings: CI runs them beside the fast suite.
pytestmark = pytest.mark.slow


LINEAR = {"tagger": {"kind": "linear", "size": TaggerConfig.size}}


@pytest.fixture(scope="module")
def tags(tmp_path_factory):
    """Train and dev files in which the word before decides the tag, and nothing else does."""
    folder, draw = tmp_path_factory.mktemp("tags"), random.Random(0)
    made = {}
    for split, count in (("train", 160), ("dev", 30)):
        made[split] = folder / f"{split}.jsonl"
        with made[split].open("w") as file:
            for _ in range(count):
                words = draw.choices("abcd", k=draw.randint(4, 9))
                found = ["B-X" if before <= "b" else "O" for before in ["z", *words[:-1]]]
                file.write(json.dumps({"words": words, "tags": found}) + "\n")
    return {split: str(path) for split, path in made.items()}


@pytest.fixture(scope="module")
def config(encoder, tags) -> FinetuneConfig:
    """A BiLSTM on the embeddings, which know nothing of other words."""
    return finetune_config(
        task="tag",
        init=str(encoder),
        **tags,
        tagger={"layers": 0, "kind": "bilstm", "size": 32},
        max_length=32,
        batch_size=16,
        num_epochs=6,
        optimizer=OptimizerConfig(
            recipe="adamw",
            learning_rate=1e-2,
            schedule="hf",
            warmup_steps=0,
            warmup_proportion=0.1,
        ),
        unroll=1,
        log_every=5,
    )


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory) -> Path:
    """The workdir of an uninterrupted run of the BiLSTM."""
    workdir = tmp_path_factory.mktemp("tagger") / "run"
    finetune.run(finetune_config(config, workdir=str(workdir)))
    return workdir


@pytest.fixture
def copied(whole, tmp_path) -> Path:
    """A copy of its model, to be damaged."""
    return Path(shutil.copytree(whole / "model", tmp_path / "model"))


def answered(model, file, tmp_path):
    output = tmp_path / "out.jsonl"
    predict.run(PredictConfig(model=str(model), input=str(file), output=str(output)))
    return json_lines(output)


@pytest.mark.exhaustive
def test_a_bilstm_learns_what_a_linear_layer_cannot_see(config, whole, tmp_path):
    linear = finetune_config(config, **LINEAR, num_epochs=3, workdir=str(tmp_path / "run"))
    blind = finetune.run(linear)[""]["dev/f1"]
    assert json.loads((whole / "scores.json").read_text())["dev/f1"] > 0.98 > 0.8 > blind


def test_training_leaves_the_encoder_as_it_was_bit_for_bit(encoder, whole):
    before, after = (
        load_file(encoder / "model.safetensors"),
        load_file(whole / "model/model.safetensors"),
    )
    assert set(after) == {name for name in before if name.startswith("bert.")}
    for name, tensor in after.items():
        assert tensor.tobytes() == before[name].tobytes(), name


def test_predict_says_what_training_said(whole, config, tmp_path):
    found = answered(whole / "model", config.options.dev, tmp_path)
    for ours, written in zip(found, json_lines(whole / "predictions/dev.jsonl"), strict=True):
        assert ours["labels"] == written["labels"]
        np.testing.assert_allclose(ours["probabilities"], written["probabilities"], atol=1e-5)


def test_the_directory_is_an_encoder_that_tells_of_the_tagger(whole, encoder, tmp_path):
    model = whole / "model"
    config = json.loads((model / "config.json").read_text())
    assert config["architectures"] == ["BertModel"] and len(config["id2label"]) == 3
    described = json.loads((model / "task.json").read_text())
    assert described["tagger"] == {"layers": [0], "join": "concat", "kind": "bilstm", "size": 32}
    card = (model / "README.md").read_text()
    assert "tagger.safetensors" in card and "two-layer BiLSTM" in card
    bert, source = bertjax.load_pretrained(model), bertjax.load_pretrained(encoder, "encoder")
    assert bert.head == "encoder" and not bert.absent
    convert.run(ConvertConfig(src=str(model), dst=str(tmp_path / "converted")))
    taggers = [load_file(x / "tagger.safetensors") for x in (model, tmp_path / "converted")]
    assert jax.tree.all(jax.tree.map(np.array_equal, *taggers))
    copied = json.loads((tmp_path / "converted" / "task.json").read_text())
    assert copied["tagger"] == described["tagger"]
    again = bertjax.load_pretrained(tmp_path / "converted")
    for params in (bert.params, again.params):
        assert jax.tree.all(jax.tree.map(np.array_equal, params, source.params))


@pytest.mark.exhaustive
def test_resume_equals_an_uninterrupted_run(config, whole, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    config = finetune_config(config, workdir=str(workdir))
    run_until(13, lambda: finetune.run(config), monkeypatch)  # between two evaluations
    finetune.run(config)
    for file in ("tagger.safetensors", "model.safetensors"):
        assert (workdir / "model" / file).read_bytes() == (whole / "model" / file).read_bytes()


def test_seeds_draw_taggers_of_their_own_and_the_best_model_is_whole(config, tmp_path):
    linear = finetune_config(config, **LINEAR, seeds=2, max_steps=2)
    finetune.run(finetune_config(linear, workdir=str(tmp_path / "run")))
    first, second = (
        load_file(tmp_path / f"run/seed{i}/model/tagger.safetensors") for i in range(2)
    )
    assert (first["classifier.weight"] != second["classifier.weight"]).any()
    answered(tmp_path / "run/model", config.options.dev, tmp_path)


def cut_short(model):
    content = (model / "tagger.safetensors").read_bytes()
    (model / "tagger.safetensors").write_bytes(content[: len(content) // 2])


def undescribed(model):
    (model / "task.json").unlink()


def described_as(**changes):
    def damage(model):
        task = json.loads((model / "task.json").read_text())
        task["tagger"] |= changes
        (model / "task.json").write_text(json.dumps(task))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda model: (model / "tagger.safetensors").unlink(), "lacks tagger.safetensors"),
        (cut_short, "not a whole safetensors file"),
        (undescribed, "task.json has tagger=None"),
        (described_as(kind="crf"), "kind='crf'"),
        (described_as(kind="linear", size=768), "classifier.weight"),
        (described_as(size=8), "does not fit the model.*Wrong: 17 .*lstm.bias_hh_l0"),
        (described_as(layers=[0, 9]), r"no layers \[9\]"),
        (lambda model: shutil.copy(model / "model.safetensors", model / "tagger.safetensors"),
         "does not fit the model"),
    ],
)  # fmt: skip
def test_a_damaged_tagger_is_refused(copied, damage, message, config, tmp_path):
    (copied / "checksums.json").unlink()
    damage(copied)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        answered(copied, config.options.dev, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ()}, r"layers=\[\]"),
        ({"kind": "linear"}, "size=32 has no effect on a linear tagger"),
        ({"size": 0}, "size=0"),
        ({"layers": (-4, -1)}, r"no layers \[-4\]; choose among -3..2"),
    ],
)
def test_what_does_not_fit_is_refused(config, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        finetune.run(finetune_config(config, workdir=str(tmp_path / "run"), tagger=changes))


@pytest.mark.parametrize("task", ["classify", "regress", "qa", "choice", "embed", "rte", "squad"])
def test_other_tasks_have_no_tagger(task):
    with pytest.raises(ValueError, match=f"--tagger: --task={task}"):
        finetune_config(task=task, tagger={"layers": -1})


def test_the_flags_are_read():
    flags = "--tagger.layers -4 -3 -2 -1 --tagger.join sum --tagger.kind bilstm".split()
    tagger = finetune.parse(["--task=conll", *flags]).tagger
    assert (tagger.layers, tagger.join, tagger.kind) == ((-4, -3, -2, -1), "sum", "bilstm")
    assert finetune.parse(["--task=conll"]).tagger is None


@pytest.mark.parity
@pytest.mark.exhaustive
def test_torch_reads_encoder_and_tagger_and_finds_the_same(config, tags, tmp_path):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    layers = (-1, 0)
    config = finetune_config(
        config, tagger={"layers": layers}, max_steps=3, workdir=str(tmp_path / "run")
    )
    finetune.run(config)
    model = tmp_path / "run/model"
    encoder, info = transformers.BertModel.from_pretrained(model, output_loading_info=True)
    assert not any(info.values())
    tensors = {k: torch.tensor(v) for k, v in load_file(model / "tagger.safetensors").items()}
    lstm = torch.nn.LSTM(64, 32, num_layers=2, bidirectional=True, batch_first=True)
    lstm.load_state_dict({k[5:]: v for k, v in tensors.items() if k.startswith("lstm.")})
    tokenizer = load_model(model, None).tokenizer
    for line, ours in zip(json_lines(Path(tags["dev"])), answered(model, tags["dev"], tmp_path),
                          strict=True):  # fmt: skip
        pieces = [piece for (piece,) in tokenizer.encode(line["words"])]
        ids = torch.tensor([[tokenizer.cls_token_id, *pieces, tokenizer.sep_token_id]])
        with torch.no_grad():
            states = encoder.eval()(ids, output_hidden_states=True).hidden_states
            x = lstm(torch.cat([states[layer] for layer in layers], -1))[0]
            logits = x @ tensors["classifier.weight"].T + tensors["classifier.bias"]
        expected = torch.softmax(logits.double(), -1)[0, 1:-1].max(-1).values
        np.testing.assert_allclose(ours["probabilities"], expected, atol=1e-5)
