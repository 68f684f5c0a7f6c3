"""Damage in an exported model is found before anything is computed from it."""

import dataclasses
import json
import shutil

import pytest

from bertjax.weights.load import load_model

DAMAGES = {
    "truncated": lambda content: content[:-3],
    "emptied": lambda content: b"",
    "bit flipped": lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
    "half copied": lambda content: content[: len(content) // 2] + bytes(len(content) // 2),
    "missing": None,
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tiny_config, tokenizer, written):
    """A model directory with checksums."""
    config = dataclasses.replace(tiny_config, vocab_size=tokenizer.vocab_size)
    folder = tmp_path_factory.mktemp("exported") / "model"
    return written(folder, config, "masked_lm", tokenizer, checksums=True)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_any_file_of_a_model_is_found_and_named(exported, tmp_path, damage):
    names = [*json.loads((exported / "checksums.json").read_text()), "checksums.json"]
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json"} <= set(names)
    change = DAMAGES[damage]
    for name in names:
        if name == "checksums.json" and change is None:
            continue
        copy = shutil.copytree(exported, tmp_path / name)
        if change is None:
            (copy / name).unlink()
        else:
            (copy / name).write_bytes(change((copy / name).read_bytes()))
        # Without config.json, or without weights, the directory holds no model.
        with pytest.raises((ValueError, FileNotFoundError), match=name):
            load_model(copy)


def test_the_card_may_be_edited_and_checksums_may_be_deleted(exported, tmp_path):
    copy = shutil.copytree(exported, tmp_path / "copy")
    (copy / "README.md").write_text("mine")
    load_model(copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    with pytest.raises(ValueError, match=r"config\.json has .* bytes instead of .* delete"):
        load_model(copy)
    (copy / "checksums.json").unlink()
    assert load_model(copy).config.layer_norm_eps == 1e-5
