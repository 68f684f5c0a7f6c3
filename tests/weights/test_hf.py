"""Model directories: what is written comes back, and what does not fit is named in full."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.inference.pretrained import load_pretrained
from bertjax.model import HEADS, BertForPreTraining
from bertjax.model.heads import BertForMaskedLM
from bertjax.model.linear import Linear
from bertjax.weights import init_params, load_model, save_hf
from bertjax.weights.fill import with_training_parts
from bertjax.weights.hf import model_card
from tests.cases import others_weekly


@pytest.fixture
def saved(tmp_path, tiny, tiny_config, tokenizer):
    save_hf(tmp_path / "model", tiny[1], tiny_config, tokenizer)
    return tmp_path / "model"


def rewrite(directory, change):
    """Applies `change` to the tensors of a model directory."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "checksums.json").unlink()
    save_file(change(tensors), directory / "model.safetensors")


def assert_same_params(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_weights_config_and_tokenizer_come_back_bit_for_bit(saved, tiny, tiny_config, tokenizer):
    loaded = load_model(saved)
    assert loaded.config == tiny_config and loaded.absent == []
    assert loaded.tokenizer.fingerprint == tokenizer.fingerprint
    assert_same_params(loaded.params, tiny[1])


def test_an_untied_decoder_is_kept(tmp_path, tiny_config, tokenizer, random_params):
    config = dataclasses.replace(tiny_config, tie_word_embeddings=False)
    params = random_params(BertForPreTraining(config))
    save_hf(tmp_path / "model", params, config, tokenizer)
    assert_same_params(load_model(tmp_path / "model").params, params)
    # PyTorch uses the bias of the decoder; older versions of transformers wrote only the other one.
    biases = ("cls.predictions.bias", "cls.predictions.decoder.bias")
    rewrite(tmp_path / "model", lambda tensors: {**tensors, biases[0]: tensors[biases[0]] + 1})
    assert_same_params(load_model(tmp_path / "model").params, params)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors[biases[0]] = tensors.pop(biases[1])
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    assert_same_params(load_model(tmp_path / "model").params, params)


def test_tied_tensors_may_stand_under_either_name(saved, tiny):
    """`save_model` of safetensors writes RoBERTa's embedding under the name of the decoder only."""
    twins = {
        "bert.embeddings.word_embeddings.weight": "cls.predictions.decoder.weight",
        "cls.predictions.bias": "cls.predictions.decoder.bias",
    }
    rewrite(saved, lambda tensors: {twins.get(name, name): x for name, x in tensors.items()})
    assert_same_params(load_model(saved).params, tiny[1])


@pytest.mark.parity
@pytest.mark.parametrize("family", others_weekly(("roberta", "modernbert"), "modernbert"))
def test_what_save_model_of_safetensors_writes_is_read(
    family, tmp_path, tiny_family, tokenizer, random_params
):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_model

    config = tiny_family(family)
    params = random_params(HEADS["masked_lm"](config))
    save_hf(tmp_path, params, config, tokenizer, head="masked_lm")
    (tmp_path / "checksums.json").unlink()
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    save_model(theirs, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    written = load_file(tmp_path / "model.safetensors")
    assert not any("word_emb" in name or "tok_emb" in name for name in written)
    ids = np.array([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids)).logits.numpy()
    found = load_pretrained(tmp_path, "masked_lm")(input_ids=ids)["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_fine_tuned_choice_keeps_its_classifier(tmp_path, tiny_config, tokenizer, random_params):
    params = random_params(HEADS["multiple_choice"](tiny_config))
    save_hf(tmp_path / "model", params, tiny_config, tokenizer, head="multiple_choice")
    loaded = load_model(tmp_path / "model", "multiple_choice", new_labels=True, seed=1)
    assert loaded.absent == []
    assert_same_params(loaded.params, params)


def test_old_names_and_a_missing_prefix_are_understood(saved, tiny):
    def age(tensors):
        renamed = {}
        for name, value in tensors.items():
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            renamed[name.replace("LayerNorm.bias", "LayerNorm.beta").removeprefix("bert.")] = value
        renamed["embeddings.position_ids"] = np.arange(64)[None]
        renamed["cls.predictions.decoder.weight"] = renamed["embeddings.word_embeddings.weight"]
        return renamed

    rewrite(saved, age)
    assert_same_params(load_model(saved).params, tiny[1])


def test_heads_that_the_file_lacks_are_named_and_initialised(saved, tiny):
    rewrite(saved, lambda t: {k: v for k, v in t.items() if not k.startswith(("cls", "bert.pool"))})
    loaded = load_model(saved)
    assert loaded.absent == ["bert/pooler", "predictions", "seq_relationship"]
    assert_same_params(loaded.params["bert"]["encoder"], tiny[1]["bert"]["encoder"])
    assert np.isfinite(loaded.params["predictions"]["transform"]["kernel"]).all()


@pytest.mark.parametrize("name", ["self.key", "output.dense"])
def test_the_shape_that_a_tensor_should_have_is_that_of_transformers(saved, name):
    tensor = f"bert.encoder.layer.0.attention.{name}.weight"
    rewrite(saved, lambda tensors: tensors | {tensor: np.zeros((32, 5), np.float32)})
    match = rf"{tensor} has shape \(32, 5\), but the model has \(32, 32\)\."
    with pytest.raises(ValueError, match=match):
        load_model(saved)


def test_every_missing_unexpected_and_misshaped_tensor_is_named_at_once(saved, monkeypatch):
    def damage(tensors):
        del tensors["bert.encoder.layer.1.output.dense.bias"]
        del tensors["cls.predictions.bias"]
        tensors["adapter.weight"] = np.zeros((2, 2), np.float32)
        tensors["bert.encoder.layer.2.output.dense.bias"] = np.zeros(32, np.float32)
        tensors["bert.pooler.dense.bias"] = np.zeros(31, np.float32)
        return tensors

    rewrite(saved, damage)
    monkeypatch.chdir(saved.parent)  # a long path leaves less room for names
    with pytest.raises(ValueError) as error:
        load_model(saved.name)
    for part in (
        "bert.encoder.layer.1.output.dense.bias",
        "cls.predictions.bias",
        "adapter.weight",
        "belongs to layer 2, but the model has num_hidden_layers=2",
        "bert.pooler.dense.bias has shape (31,), but the model has (32,)",
    ):
        assert part in str(error.value)


def test_writing_replaces_a_directory_whole(saved, tiny, tiny_config, tokenizer):
    save_hf(saved, tiny[1], tiny_config, tokenizer, files={"stale.txt": "from before"})
    assert (saved / "stale.txt").exists()
    save_hf(saved, tiny[1], tiny_config, tokenizer)
    assert not (saved / "stale.txt").exists()
    assert [p.name for p in saved.parent.iterdir()] == ["model"]
    assert json.loads((saved / "config.json").read_text())["architectures"] == [
        "BertForPreTraining"
    ]


def test_a_tokenizer_larger_than_the_model_is_refused(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"vocab_size": 50}))
    (saved / "checksums.json").unlink()
    with pytest.raises(ValueError, match="vocab_size=50"):
        load_model(saved)


def test_a_place_without_a_model_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json and weights"):
        load_model(tmp_path)


class WithTrainingPart(BertForMaskedLM):
    """A head with a layer that model directories lack."""

    training_parts = ("generator",)

    def setup(self):
        super().setup()
        self.generator = Linear(self.config, 3, self.dtype)

    def head_outputs(self, encoded, rows):
        return super().head_outputs(encoded, rows) | {
            "generated": self.generator(encoded["last_hidden_state"])
        }


@pytest.mark.slow
def test_parts_that_only_a_training_has_are_not_written(
    tmp_path, tiny_config, tokenizer, monkeypatch
):
    monkeypatch.setitem(HEADS, "masked_lm", WithTrainingPart)
    config = dataclasses.replace(tiny_config, vocab_size=tokenizer.vocab_size)
    model = WithTrainingPart(config)
    params = jax.device_get(init_params(model, 0))
    save_hf(tmp_path / "m", params, config, tokenizer, head="masked_lm")
    monkeypatch.undo()
    loaded = load_model(tmp_path / "m", None)
    assert loaded.head == "masked_lm" and "generator" not in loaded.params
    again = with_training_parts(loaded.params, model, 0)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, params))


@pytest.mark.parametrize(
    "title", ["<script>x</script>", "[a](http://b)", "a\n# b", "`x`", "![i](u)"]
)
def test_the_title_of_a_model_card_is_text(title, tiny_config):
    line = model_card(title, "masked_lm", tiny_config, True).split("---\n")[2].splitlines()[0]
    assert not re.search(r"(?<!\\)[<>`\[\]!]", line)
    assert line.startswith("# ") and line.count("#") == line.count("\\#") + 1
