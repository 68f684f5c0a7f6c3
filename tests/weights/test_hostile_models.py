"""Model directories with hostile or damaged files are refused in one line, in little memory."""

import json
import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from bertjax.base.files import read_json
from bertjax.config import BertConfig
from bertjax.weights.fill import fill
from bertjax.weights.hf import INDEX, open_hf
from bertjax.weights.load import load_model

TINY_BERT = Path(__file__).parents[1] / "golden" / "tiny_bert"


@pytest.fixture
def model(tmp_path):
    shutil.copytree(TINY_BERT, tmp_path / "model")
    return tmp_path / "model"


def change_config(model, **fields):
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def refusal(read):
    with pytest.raises((ValueError, OSError)) as error:
        read()
    assert len(str(error.value)) <= 400
    return str(error.value)


def test_a_million_layers_are_compared_with_the_weights_before_anything_is_allocated(model):
    change_config(model, num_hidden_layers=1_000_000)
    tracemalloc.start()
    started = time.process_time()
    message = refusal(lambda: load_model(model))
    assert time.process_time() - started < 5
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    assert f"{model} does not fit the model: its config has num_hidden_layers=1000000" in message
    assert "3 layers" in message


def test_nothing_is_allocated_for_a_source_that_lacks_tensors(monkeypatch, model):
    change_config(model, num_hidden_layers=2)  # one layer of the weights is too many
    monkeypatch.setattr("numpy.empty", lambda *_: pytest.fail("allocated"))
    assert "does not fit the model" in refusal(lambda: load_model(model))


def test_sizes_of_which_no_array_is_are_refused(model):
    change_config(model, hidden_size=3 << 29, num_attention_heads=3)
    assert f"{model} does not fit the model" in refusal(lambda: load_model(model))


def test_thousands_of_wrong_tensors_make_a_short_message(tiny):
    tensors = {f"adapter.{i}.weight": np.zeros(1, np.float32) for i in range(5000)}
    message = refusal(lambda: fill(tensors, tiny[0], "somewhere"))
    assert "somewhere" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_norm_eps": float("nan")},
        {"layer_norm_eps": -1.0},
        {"pad_token_id": -5},
        {"pad_token_id": 2**40},
        {"initializer_range": float("nan")},
        {"model_type": {"a": 1}},
        {"model_type": "x" * 5000},
        {"hidden_act": "x" * 5000},
        {"id2label": {"0.0": 7}},
        {"id2label": ["x" * 5000]},
        {"architectures": 7},
        {"position_embedding_type": ["x"] * 900},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_configs_with_impossible_values_are_refused_in_one_line(model, fields):
    change_config(model, **fields)
    if fields == {"architectures": 7}:  # it only helps to choose among heads
        load_model(model, None)
    else:
        assert str(model) in refusal(lambda: load_model(model, None))


def test_epsilon_and_padding_are_checked_in_every_config():
    wrong: tuple[dict[str, Any], ...]
    wrong = ({"layer_norm_eps": float("nan")}, {"layer_norm_eps": -1}, {"pad_token_id": -5})
    for fields in wrong:
        with pytest.raises(ValueError, match=next(iter(fields))):
            BertConfig(**fields)
    assert BertConfig(pad_token_id=None).pad_token_id is None


def test_a_damaged_config_names_its_file(tmp_path):
    file = tmp_path / "config.json"
    for content in ("{", "[]", "\udcff", '{"hidden_size": ' + "[" * 100_000):
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
        assert str(file) in refusal(lambda: BertConfig.from_dict(read_json(file)))


def test_half_a_character_in_an_index_is_refused(tmp_path):
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "\\ud83d"}}')
    assert str(tmp_path) in refusal(lambda: open_hf(tmp_path))


@pytest.mark.parametrize("name", ["/etc/passwd", "../other.safetensors", "..", "a" * 4000, ""])
def test_an_index_may_only_name_files_of_its_directory(tmp_path, name):
    safetensors.numpy.save_file({"a": np.zeros(2, np.float32)}, tmp_path / "other.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    assert "not a file of this directory" in refusal(lambda: open_hf(folder))


def test_tensors_of_types_that_numpy_lacks_name_their_file(tmp_path):
    header = b'{"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}'
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert str(file) in refusal(lambda: open_hf(tmp_path)["a"])
