"""Models in other runtimes: what docs/serving.md shows, and the files that servers read."""

import json
import re

import numpy as np
import pytest

import bertjax
from bertjax import export
from bertjax.inference.onnx_check import openvino_core, runtimes
from tests.test_readme import ROOT

TEXTS = ["Who left?", "Anna has gone to the station, and nobody knows when she will return.", "No."]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
(RUN,) = re.findall(r"^```python\n(import numpy.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{kind: directory} of an embedder, a reranker and a classifier, with random heads."""
    folder = tmp_path_factory.mktemp("models")
    rows = [{"anchor": a, "positive": b} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)] * 2
    bertjax.finetune(
        task="embed",
        train=rows,
        dev_fraction=0.0,
        init="bertjax:tiny",
        workdir=str(folder / "run"),
        max_steps=1,
        max_length=64,
        batch_size=6,
    )
    heads = {"reranker": 1, "classifier": 3}
    for name, count in heads.items():
        head = "sequence_classification"
        bert = bertjax.load_pretrained("bertjax:tiny", head=head, num_labels=count)
        bert.save(str(folder / name))
    return {"embedder": folder / "run" / "model", **{name: folder / name for name in heads}}


def test_the_directories_have_what_text_embeddings_inference_reads(models):
    def read(kind, name):
        return json.loads((models[kind] / name).read_text(encoding="utf-8"))

    for kind, count in (("embedder", None), ("reranker", 1), ("classifier", 3)):
        config = read(kind, "config.json")
        for field in ("model_type", "architectures", "max_position_embeddings", "pad_token_id"):
            assert field in config
        is_classifier = config["architectures"][0].endswith("Classification")
        assert is_classifier == (kind != "embedder")
        if count is not None:
            labels = config["id2label"]
            assert len(labels) == count
            assert config["label2id"] == {label: int(i) for i, label in labels.items()}
        for name in ("tokenizer.json", "model.safetensors"):
            assert (models[kind] / name).is_file()
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    pooling = read("embedder", "1_Pooling/config.json")
    assert [pooling[f"pooling_mode_{mode}"] for mode in modes] == [False, True, False, False]
    assert read("embedder", "sentence_bert_config.json")["max_seq_length"] == 64
    assert "prompts" in read("embedder", "config_sentence_transformers.json")


@pytest.mark.parametrize("kind", ["embedder", "reranker", "classifier"])
def test_onnx_runtime_and_openvino_give_the_outputs_of_bertjax(kind, models, tmp_path, monkeypatch):
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    if "OpenVINO" not in runtimes():  # importing it would send a report
        pytest.skip("openvino is not installed")
    monkeypatch.chdir(tmp_path)
    assert export.main([str(models[kind]), "--to", "onnx", "--output", "EXPORTED"]) == 0
    page = {}
    exec(compile(RUN, "serving.md", "exec"), page)
    precise = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino_core().compile_model("EXPORTED/onnx/model.onnx", "CPU", precise)
    sessions = page["session"], OpenVino(compiled)
    bert = bertjax.load_pretrained(str(models[kind]))
    for texts in (TEXTS, TEXTS[:1]):
        expected = bert.embed(texts) if kind == "embedder" else bert(texts)["logits"]
        for page["session"] in sessions:
            np.testing.assert_allclose(page["run"](texts), expected, atol=1e-5)


class OpenVino:
    """A compiled model of OpenVINO with the interface of a session of ONNX Runtime."""

    def __init__(self, compiled):
        self._compiled = compiled

    def run(self, _, inputs):
        return [*self._compiled(inputs).values()]
