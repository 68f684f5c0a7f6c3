"""The model that comes with bertjax is small, whole, pretrained, and accepted by its name."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import bertjax
from bertjax.shipped import shipped_model, shipped_names
from bertjax.tokenization import load_tokenizer
from bertjax.weights import load_model

FOLDER = shipped_model("bertjax:tiny")


def test_its_name_is_listed_and_its_files_are_small_and_readable():
    assert shipped_names() == ["bertjax:tiny"]
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3e6
    assert all(file.stat().st_mode & 0o044 for file in FOLDER.iterdir())


@pytest.mark.parametrize("read", [load_model, load_tokenizer, shipped_model])
def test_other_names_are_refused_with_the_known_ones(read):
    with pytest.raises(FileNotFoundError, match="'bertjax:tinny' comes.*Known: bertjax:tiny"):
        read("bertjax:tinny")


@pytest.mark.parametrize("source", ["bert-base-uncased", "runs/tiny", "./bertjax:tiny", FOLDER, ""])
def test_other_sources_are_left_to_the_loader(source):
    assert shipped_model(source) is None


def test_model_and_tokenizer_belong_together():
    model = load_model("bertjax:tiny")
    assert not model.absent and not model.unused
    assert model.head == "pretraining"
    assert model.tokenizer.vocab_size == model.config.vocab_size
    assert load_tokenizer("bertjax:tiny").fingerprint == model.tokenizer.fingerprint
    assert model.tokenizer.model_max_length >= model.config.max_position_embeddings


def test_weights_are_stored_in_half_precision_without_overflow():
    for value in load_file(FOLDER / "model.safetensors").values():
        assert value.dtype == np.float16 and np.isfinite(value).all()


@pytest.mark.parity
def test_transformers_computes_the_same(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from bertjax.convert import output_differences

    model = bertjax.load_pretrained("bertjax:tiny", head="pretraining")
    differences = output_differences(model, FOLDER)
    assert {"prediction_logits", "seq_relationship_logits"} <= set(differences)
    assert max(differences.values()) < 1e-4
