"""ONNX Runtime as the backend of the server gives the answers of jax, or is refused in one line."""

import json
import shutil
import sys

import numpy as np
import pytest

from bertjax import serve
from bertjax.config.serve_config import ServeConfig
from bertjax.inference.indexes import encoder_of
from bertjax.inference.onnx_export import FILES, FOLDER, exported_encoder, write_onnx
from bertjax.inference.serving import models as served
from bertjax.inference.serving.models import Limits, Refused, load_served
from bertjax.weights import load_model
from tests.cases import others_weekly
from tests.served_models import write_models, write_tagger

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TOLERANCE = 1e-5
CUT = Limits(truncate=True)


@pytest.fixture(autouse=True)
def _no_warm_up(monkeypatch):
    """Models that jax computes compile what they are asked for, and not all shapes."""
    monkeypatch.setattr(served, "every_shape", lambda limit: ())


@pytest.fixture(scope="module")
def directories(tmp_path_factory, one_layer):
    folder = tmp_path_factory.mktemp("served")
    directories = write_models(folder, one_layer)
    unpooled = directories["unpooled"] = folder / "unpooled"
    shutil.copytree(directories["dense"], unpooled)
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    (unpooled / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    directories["tag"] = write_tagger(folder / "tag", one_layer)
    return directories


@pytest.fixture
def texts(sentences):
    return [*sentences[:9], "a", " ".join(sentences), sentences[3]]


def computed(asked):
    """The answer to a request, whose inputs are computed together."""
    return asked.answer(list(asked.inputs[0].compute([x.value for x in asked.inputs])))


# {kind of model: what a request asks of it, by name}
ASKED = {
    "dense": {
        "embed": lambda model, texts: model.embed(texts, CUT),
        "prompt": lambda model, texts: model.embed(texts, CUT, prompt_name="query"),
        "raw": lambda model, texts: model.embed(texts, CUT, normalize=False, dimensions=5),
    },
    "unpooled": {
        "embed": lambda model, texts: model.embed(texts, CUT),
        "query": lambda model, texts: model.embed(texts, CUT, prompt_name="query"),
        "other": lambda model, texts: model.embed(texts, CUT, prompt_name="other"),
    },
    "sparse": {
        "embed": lambda model, texts: model.embed_sparse(texts, CUT),
        "query": lambda model, texts: model.embed_sparse(texts, CUT, "query"),
    },
    "tokens": {
        "embed": lambda model, texts: model.embed_all(texts, CUT),
        "query": lambda model, texts: model.embed_all(texts, CUT, "query"),
    },
    "rank": {"predict": lambda model, texts: model.predict([(x, "a b") for x in texts], CUT)},
    "class": {"predict": lambda model, texts: model.predict([(x,) for x in texts], CUT)},
    "tag": {"predict": lambda model, texts: model.predict([(x,) for x in texts], CUT)},
}


def numbers(answer):
    """The numbers of the answer to one text, in an order that no small difference changes."""
    if not isinstance(answer, list):
        return np.asarray(answer)
    elements = []
    for element in answer:
        place = element.get("index", element.get("start", 0))
        elements.append((str(element.get("label", "")), place, *element.values()))
    numbers = []
    for element in sorted(elements, key=lambda element: element[:2]):
        numbers.extend(x for x in element if not isinstance(x, str))
    return np.array(numbers, float)


# Rankings, below, are those of the others.
@pytest.mark.parametrize("kind", others_weekly(ASKED, "sparse", slow=("unpooled", "tag")))
def test_answers_of_onnx_are_those_of_jax_alone_and_in_a_batch(directories, texts, kind):
    if kind not in ("rank", "class", "tag"):
        texts.append("")
    path = str(directories[kind])
    by_jax = load_served(kind, path)
    by_onnx = load_served(kind, path, backend="onnx")
    assert by_onnx.endpoints == by_jax.endpoints and by_onnx.details() == by_jax.details()
    for ask in ASKED[kind].values():
        expected = computed(ask(by_jax, texts))
        together = computed(ask(by_onnx, texts))
        for text, *answers in zip(texts, expected, together, strict=True):
            (alone,) = computed(ask(by_onnx, [text]))
            right, batched = map(numbers, answers)
            np.testing.assert_allclose(batched, right, atol=TOLERANCE)
            np.testing.assert_allclose(numbers(alone), right, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ("rank", "tokens"))
def test_rankings_of_onnx_are_those_of_jax(directories, texts, kind):
    scores = []
    for backend in ("jax", "onnx"):
        model = load_served(kind, str(directories[kind]), backend=backend)
        asked = model.rerank("a query", texts, CUT, False)
        results = [None] * len(asked.inputs)
        for place, item in enumerate(asked.inputs):
            (results[place],) = item.compute([item.value])
        scores.append(asked.answer(results))
    np.testing.assert_allclose(scores[1], scores[0], atol=TOLERANCE)


@pytest.fixture
def in_int8(directories, tmp_path):
    """An embedder whose vectors are of length 1, with a quantized file."""
    from bertjax.inference.onnx_quantization import quantize

    copy = tmp_path / "copy"
    shutil.copytree(directories["dense"], copy)
    modules = json.loads((copy / "modules.json").read_text())
    kind = "sentence_transformers.models.Normalize"
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": kind})
    (copy / "modules.json").write_text(json.dumps(modules))
    (copy / FOLDER).mkdir()
    original = tmp_path / "model.onnx"
    loaded = load_model(copy, "auto")
    write_onnx(exported_encoder(loaded, encoder_of(loaded)), original)
    quantize(original, copy / FOLDER / FILES["int8"])
    return copy


def test_a_quantized_file_is_served(in_int8, texts):
    exact = load_served("m", str(in_int8), backend="onnx")
    rounded = load_served("m", str(in_int8), backend="onnx", onnx_file=FILES["int8"])
    expected = computed(exact.embed(texts, CUT, prompt_name="query"))
    found = computed(rounded.embed(texts, CUT, prompt_name="query"))
    difference = np.abs(found - expected).max()
    assert 1e-5 < difference < 0.1
    with pytest.raises(Refused, match="whose vectors have the length 1"):
        rounded.embed(texts, CUT, normalize=False)
    lengths = np.linalg.norm(computed(exact.embed(texts, CUT, normalize=False)), axis=1)
    assert np.abs(lengths - 1).max() > 0.01


def test_files_that_cannot_be_served_are_named(directories, in_int8, tmp_path):
    def refused(kind, reason, file):
        with pytest.raises((ValueError, FileNotFoundError), match=reason) as caught:
            load_served("m", str(directories[kind]), backend="onnx", onnx_file=file)
        assert "\n" not in str(caught.value)

    file = str(in_int8 / FOLDER / FILES["int8"])
    refused("dense", "does not exist: write it with bertjax export", "none.onnx")
    refused("class", "and not logits of input_ids.*: write it with bertjax export", file)
    refused("unpooled", "leaves its prompts out of the pooling", file)
    (tmp_path / "damaged.onnx").write_bytes(b"damaged")
    refused("dense", "ONNX Runtime cannot read", str(tmp_path / "damaged.onnx"))


def test_a_backend_that_is_missing_or_idle_is_refused(directories, monkeypatch, capsys):
    with pytest.raises(ValueError, match="--onnx_file x.onnx needs --backend onnx"):
        ServeConfig(models=("m",), onnx_file="x.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert serve.main([str(directories["dense"]), "--backend=onnx", "--port=0"]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "pip install 'bertjax[onnx]'" in line
