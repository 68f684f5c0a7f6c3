"""Vectors of texts: each text's own, in the order of the file, whatever is beside it."""

import json

import numpy as np
import pytest

from bertjax import predict
from bertjax.embed import Embedder, embed_file
from bertjax.weights import load_model, save_hf


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny, tiny_config, tokenizer):
    folder = tmp_path_factory.mktemp("model") / "m"
    save_hf(folder, tiny[1], tiny_config, tokenizer)
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(folder, "encoder")


@pytest.fixture(scope="module")
def texts(sentences):
    return [*sentences[:150], "", "x", " ".join(sentences)]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_text_gets_the_vector_that_it_gets_alone(loaded, texts, pooling):
    embedder = Embedder(loaded, pooling)
    together = embedder(texts)
    assert together.shape == (len(texts), 32) and np.isfinite(together).all()
    for i in (0, 17, 150, 151, 152):
        np.testing.assert_allclose(embedder([texts[i]])[0], together[i], atol=1e-5)


def test_poolings_are_what_their_names_say(loaded, texts):
    import bertjax.pretrained

    bert = bertjax.pretrained.Pretrained(loaded)
    outputs = bert(texts[:3], output_hidden_states=True)
    _, mask, _ = bert.encode(texts[:3])
    weights = mask[:, :, None] / mask.sum(1)[:, None, None]
    found = Embedder(loaded, "mean", (-1, 0))(texts[:3])
    for part, layer in ((found[:, :32], -1), (found[:, 32:], 0)):
        expected = (outputs["hidden_states"][layer] * weights).sum(1)
        np.testing.assert_allclose(part, expected, atol=1e-5)
    np.testing.assert_allclose(
        Embedder(loaded, "cls")(texts[:3]), outputs["last_hidden_state"][:, 0], atol=1e-5
    )


def test_files_are_embedded_in_order_over_several_windows(loaded, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.embed.WINDOW", 40)
    source = tmp_path / "texts.txt"
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts).encode())
    embedder = Embedder(loaded)
    expected = embedder(texts)
    for name in ("a.npy", "a.jsonl"):
        assert embed_file(embedder, source, tmp_path / name) == len(texts)
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), expected, atol=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(lines, expected, atol=1e-5)


def test_the_command_writes_a_vector_a_line(folder, tmp_path, sentences, capsys):
    (tmp_path / "t.txt").write_text("\n".join(sentences[:5]) + "\n")
    flags = ["--model", str(folder), "--embed", str(tmp_path / "t.txt")]
    assert predict.main([*flags, "--output", str(tmp_path / "v.npy")]) == 0
    assert np.load(tmp_path / "v.npy").shape == (5, 32)
    assert predict.main([*flags, "--output", str(tmp_path / "v.txt")]) == 1
    assert "name it .npy or .jsonl" in capsys.readouterr().err


def test_layers_that_the_model_lacks_are_refused(loaded):
    with pytest.raises(ValueError, match=r"layers=\[3\]: the model has -3\.\.2"):
        Embedder(loaded, layers=(3,))
