"""`bertjax.export`: the directories that it writes, what it prints and what it refuses."""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest

import bertjax
from bertjax import export
from bertjax.export import ExportConfig
from bertjax.inference import onnx_export
from bertjax.weights.hf import check_files
from tests.cases import WEEKLY

TEXTS = ["Who left?", "Anna has gone to the station, and nobody knows when she will return.", "No."]
onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


@pytest.fixture
def trained(tmp_path):
    """task, options -> the directory of a model that was fine-tuned for one step."""

    def make(task: str, rows, **options):
        workdir = tmp_path / f"run-{task}"
        bertjax.finetune(
            task=task,
            train=rows,
            dev_fraction=0.0,
            init="bertjax:tiny",
            workdir=str(workdir),
            max_steps=1,
            max_length=32,
            batch_size=6,
            **options,
        )
        return workdir / "model"

    return make


def exported(source, output, **options):
    export.run(ExportConfig(src=str(source), output=str(output), **options))
    return onnxruntime.InferenceSession(
        output / "onnx" / "model.onnx", providers=["CPUExecutionProvider"]
    )


def encoded(bert, texts, session):
    arrays = dict(
        zip(("input_ids", "attention_mask", "token_type_ids"), bert.encode(texts), strict=True)
    )
    names = [x.name for x in session.get_inputs()]
    return {name: arrays[name].astype(np.int64) for name in names}


PAIRS = [{"anchor": a, "positive": b} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)] * 2


def test_an_embedder_is_exported_as_it_embeds(trained, tmp_path, capsys):
    source = trained("embed", PAIRS)
    session = exported(source, tmp_path / "out")
    assert "sentence_embedding: largest difference from bertjax" in capsys.readouterr().out
    bert = bertjax.load_pretrained(source)
    arrays = encoded(bert, TEXTS, session)
    tokens, vectors = session.run(None, arrays)
    np.testing.assert_allclose(vectors, bert.embed(TEXTS), atol=1e-5)
    is_token = arrays["attention_mask"] > 0
    states = bert(TEXTS)["last_hidden_state"]
    np.testing.assert_allclose(tokens[is_token], states[is_token], atol=1e-4)


def test_the_directory_is_the_models_with_the_file_where_others_look(trained, tmp_path):
    source = trained("embed", PAIRS)
    output = tmp_path / "out"
    exported(source, output)
    names = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    before = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert names == before | {"onnx/model.onnx"}
    check_files(output)
    vectors = bertjax.load_pretrained(output).embed(TEXTS)
    np.testing.assert_array_equal(vectors, bertjax.load_pretrained(source).embed(TEXTS))
    exported(source, output)  # replaces what it wrote


def test_sentence_transformers_finds_the_file(trained, tmp_path):
    """Its ONNX backend needs optimum, which reads the first output as the hidden states."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.backend.utils import backend_should_export

    session = exported(trained("embed", PAIRS), tmp_path / "out")
    found = backend_should_export(tmp_path / "out", True, {}, "model.onnx", "*.onnx", "ONNX")
    assert found == (False, {"subfolder": "onnx", "file_name": "model.onnx"})
    names = [x.name for x in session.get_outputs()]
    assert names == ["token_embeddings", "sentence_embedding"]


@pytest.mark.parametrize("task", ["sparse", pytest.param("colbert", marks=WEEKLY)])
def test_other_encoders_are_exported_as_they_embed(task, trained, tmp_path):
    source = trained(task, PAIRS)
    session = exported(source, tmp_path / "out")
    bert = bertjax.load_pretrained(source)
    outputs = [x.name for x in session.get_outputs()]
    if task == "sparse":
        assert outputs == ["sentence_embedding"]
        (weights,) = session.run(None, encoded(bert, TEXTS, session))
        np.testing.assert_allclose(weights, bert.embed(TEXTS).toarray(), atol=1e-4)
    else:
        assert outputs == ["token_vectors", "is_scored"]
        assert "token_type_ids" in [x.name for x in session.get_inputs()]


@pytest.mark.parametrize(
    ("head", "outputs"),
    [
        ("sequence_classification", ["logits"]),
        ("question_answering", ["start_logits", "end_logits"]),
        ("masked_lm", ["logits"]),
        (None, ["last_hidden_state"]),
    ],
)
def test_the_head_decides_what_the_outputs_are(head, outputs, tmp_path):
    session = exported("bertjax:tiny", tmp_path / "out", head=head)
    assert [x.name for x in session.get_outputs()] == outputs
    bert = bertjax.load_pretrained(tmp_path / "out", head or "encoder")
    expected = bert(TEXTS)
    found = session.run(None, encoded(bert, TEXTS, session))
    for name, values in zip(outputs, found, strict=True):
        np.testing.assert_allclose(values[0, :4], expected[name][0, :4], atol=1e-4)


def test_a_missing_package_is_one_line_with_the_remedy(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert export.main(["bertjax:tiny", "--output", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "pip install 'bertjax[onnx]'" in error
    assert not (tmp_path / "out").exists()


def test_what_has_no_effect_or_does_not_exist_is_refused(tmp_path, trained):
    with pytest.raises(ValueError, match="choose 18 to 23"):
        ExportConfig(src="a", output="b", opset=17)
    config = ExportConfig(src="bertjax:tiny", output=str(tmp_path / "out"), prompt="query: ")
    with pytest.raises(ValueError, match="has no effect on the graph"):
        export.run(config)
    assert not (tmp_path / "out").exists()


def test_modules_that_are_not_followed_are_refused_by_name(trained, tmp_path):
    source = trained("embed", PAIRS)
    (source / "checksums.json").unlink()
    modules = json.loads((source / "modules.json").read_text())
    modules.append({"idx": 9, "name": "9", "path": "9_CNN", "type": "sentence_transformers.CNN"})
    (source / "modules.json").write_text(json.dumps(modules))
    config = ExportConfig(src=str(source), output=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="CNN"):
        export.run(config)


def test_outputs_that_differ_are_refused_and_nothing_is_written(tmp_path, monkeypatch):
    write = onnx_export.write_onnx

    def write_another(export, *place):
        params = jax.tree.map(lambda leaf: leaf * np.float32(1.01), export.params)
        write(dataclasses.replace(export, params=params), *place)

    monkeypatch.setattr(onnx_export, "write_onnx", write_another)
    config = ExportConfig(src="bertjax:tiny", output=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="differ by more than 1e-04"):
        export.run(config)
    assert not (tmp_path / "out").exists()
