"""`bertjax.export`: the directories that it writes, what it prints and what it refuses."""

import dataclasses
import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bertjax
from bertjax import export
from bertjax.config.model import TaggerConfig
from bertjax.export import ExportConfig
from bertjax.inference import onnx_export
from bertjax.inference.evaluation import from_file
from bertjax.inference.onnx_check import (
    CALIBRATING,
    Scorer,
    Variant,
    calibration_batches,
    loss_in_percent,
    run_session,
    runtimes,
    sample_arrays,
)
from bertjax.inference.onnx_quantization import quantize_within, sensitivities
from bertjax.inference.onnx_session import open_session
from bertjax.inference.pretrained import Pretrained
from bertjax.inference.saved_task import with_task
from bertjax.tasks.measures import ScoredRows
from bertjax.tasks.sources.columns import Columns
from bertjax.weights import load_model
from bertjax.weights.hf import check_files
from tests.cases import WEEKLY, others_weekly
from tests.conftest import write_lines
from tests.served_models import write_models

TEXTS = ["Who left?", "Anna has gone to the station, and nobody knows when she will return.", "No."]
onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


PAIRS = [{"anchor": a, "positive": b} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)] * 2
SCORED = [{"text": x, "pair": TEXTS[i - 1], "score": i} for i, x in enumerate(TEXTS)]
CLASSES = [{"text": x, "label": "ab"[i % 2]} for i, x in enumerate(TEXTS * 2)]
TAGGED = [{"words": x.split(), "tags": ["O"] * len(x.split())} for x in TEXTS * 2]
TAGGED[0]["tags"][0] = "B-X"
RANKED = [
    {"query": a, "passage": b, "label": int(a == b)} for a in TEXTS for b in TEXTS if a != TEXTS[2]
]
NUMBERS = [{"text": x, "label": float(i)} for i, x in enumerate(TEXTS * 2)]
CHOICES = [
    {"text": x, "choice0": "yes", "choice1": "it is not so", "choice2": x, "label": i % 3}
    for i, x in enumerate(TEXTS * 2)
]
# {task: (rows of the training, labelled rows)}
ROWS = {
    "embed": (PAIRS, SCORED),
    "sparse": (PAIRS, SCORED),
    "colbert": (PAIRS, SCORED),
    "classify": (CLASSES, CLASSES),
    "tag": (TAGGED, TAGGED),
    "rerank": (RANKED, RANKED),
    "regress": (NUMBERS, NUMBERS),
    "choice": (CHOICES, CHOICES),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """task -> the directory of a model that was fine-tuned for one step."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def make(task: str):
        bertjax.finetune(
            task=task,
            train=ROWS[task][0],
            dev_fraction=0.0,
            init="bertjax:tiny",
            workdir=str(folder / task),
            max_steps=1,
            max_length=32,
            batch_size=6,
            unroll=1,
        )
        return folder / task / "model"

    return make


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """{kind: the directory of a model with the encoder `bertjax:tiny`}"""
    return write_models(tmp_path_factory.mktemp("untrained"), "bertjax:tiny")


@pytest.fixture
def labelled(tmp_path):
    """task -> a file of labelled examples."""

    def write(task: str) -> str:
        return write_lines(tmp_path / "dev.jsonl", ROWS[task][1])

    return write


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


def test_an_embedder_is_exported_as_it_embeds(trained, tmp_path, capsys):
    source = trained("embed")
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
    source = trained("embed")
    output = tmp_path / "out"
    exported(source, output)
    names = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    before = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert names == before | {"onnx/model.onnx"}
    check_files(output)
    vectors = bertjax.load_pretrained(output).embed(TEXTS)
    np.testing.assert_array_equal(vectors, bertjax.load_pretrained(source).embed(TEXTS))
    exported(source, output)  # replaces what it wrote


@pytest.mark.slow
def test_sentence_transformers_finds_the_file(trained, tmp_path):
    """Its ONNX backend needs optimum, which reads the first output as the hidden states."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.backend.utils import backend_should_export

    session = exported(trained("embed"), tmp_path / "out")
    found = backend_should_export(tmp_path / "out", True, {}, "model.onnx", "*.onnx", "ONNX")
    assert found == (False, {"subfolder": "onnx", "file_name": "model.onnx"})
    names = [x.name for x in session.get_outputs()]
    assert names == ["token_embeddings", "sentence_embedding"]


@pytest.mark.slow
def test_a_process_of_its_own_exports_a_model(tmp_path):
    words = [sys.executable, "-m", "bertjax", "export", "bertjax:tiny", "--to", "onnx"]
    done = subprocess.run([*words, "--output", tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "largest difference from bertjax" in done.stdout
    assert (tmp_path / "out" / "onnx" / "model.onnx").is_file()


@pytest.mark.slow
def test_what_is_not_in_the_file_of_a_sparse_encoder_is_said(untrained, tmp_path, capsys):
    exported(untrained["sparse"], tmp_path / "out")
    said = capsys.readouterr().out
    assert "keep the 30 highest (max_active_dims)" in said
    assert "The file encodes documents." in said


@pytest.mark.parametrize("kind", others_weekly(["sparse", "tokens"], slow=("sparse",)))
def test_other_encoders_are_exported_as_they_embed(kind, untrained, tmp_path):
    source = untrained[kind]
    session = exported(source, tmp_path / "out")
    bert = bertjax.load_pretrained(source)
    outputs = [x.name for x in session.get_outputs()]
    if kind == "sparse":
        assert outputs == ["sentence_embedding"]
        (weights,) = session.run(None, encoded(bert, TEXTS, session))
        expected = bert.embed(TEXTS).toarray()
        is_kept = expected > 0  # the highest, which the file does not choose
        assert is_kept.any(axis=1).all()
        np.testing.assert_allclose(weights[is_kept], expected[is_kept], atol=1e-4)
    else:
        assert outputs == ["token_vectors", "is_scored"]
        assert "token_type_ids" in [x.name for x in session.get_inputs()]


@pytest.mark.slow
def test_a_tagger_on_a_frozen_encoder_is_exported_with_its_files(tmp_path):
    bertjax.finetune(
        task="tag",
        train=TAGGED,
        dev_fraction=0.0,
        init="bertjax:tiny",
        workdir=str(tmp_path / "run"),
        max_steps=1,
        max_length=32,
        unroll=1,
        tagger=TaggerConfig(layers=(0, -1), join="sum", kind="linear"),
    )
    source = tmp_path / "run" / "model"
    session = exported(source, tmp_path / "out")
    assert [x.name for x in session.get_outputs()] == ["logits"]
    bert = bertjax.load_pretrained(source)
    (logits,) = session.run(None, encoded(bert, TEXTS, session))
    assert logits.shape[-1] == len(bert.labels or ())
    tagger, _, _ = with_task(load_model(str(source), "auto"))
    names = ("input_ids", "attention_mask", "token_type_ids")
    arrays = dict(zip(names, bert.encode(TEXTS), strict=True))
    expected: Any = tagger.model.apply({"params": tagger.params}, **arrays)
    is_token = arrays["attention_mask"] > 0
    np.testing.assert_allclose(logits[is_token], expected["logits"][is_token], atol=1e-4)
    words: Any = [text.split() for text in TEXTS]
    again = bertjax.load_pretrained(tmp_path / "out")
    assert again.predict(words) == bert.predict(words)


@pytest.mark.parametrize(
    ("head", "outputs"),
    [
        ("question_answering", ["start_logits", "end_logits"]),
        pytest.param("sequence_classification", ["logits"], marks=WEEKLY),
        pytest.param("masked_lm", ["logits"], marks=WEEKLY),
        pytest.param(None, ["last_hidden_state"], marks=WEEKLY),
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


def test_what_has_no_effect_is_refused(tmp_path):
    with pytest.raises(ValueError, match="choose 18 to 23"):
        ExportConfig(src="a", output="b", opset=17)
    config = ExportConfig(src="bertjax:tiny", output=str(tmp_path / "out"), prompt="query: ")
    with pytest.raises(ValueError, match="has no effect on the graph"):
        export.run(config)
    assert not (tmp_path / "out").exists()


def test_modules_that_are_not_followed_are_refused_by_name(trained, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(trained("embed"), source)
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


@pytest.mark.slow
def test_float16_and_int8_are_smaller_and_near_float32(trained, tmp_path, capsys):
    source = trained("embed")
    output = tmp_path / "out"
    export.run(ExportConfig(src=str(source), output=str(output), dtype=("float16", "int8")))
    files = sorted(path.name for path in (output / "onnx").iterdir())
    assert files == ["model_fp16.onnx", "model_quantized.onnx"]
    printed = capsys.readouterr().out
    assert printed.count("sentence_embedding: largest difference from bertjax") == 3
    bert = bertjax.load_pretrained(source)
    expected = bert.embed(TEXTS)
    weights = (output / "model.safetensors").stat().st_size
    for name, nearness, size in zip(files, (0.99999, 0.99), (0.5, 0.25), strict=True):
        file = output / "onnx" / name
        assert file.stat().st_size < size * weights + 200_000
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        assert {x.type for x in session.get_outputs()} == {"tensor(float)"}
        *_, vectors = session.run(None, encoded(bert, TEXTS, session))
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
        cosines = (vectors * expected).sum(1) / lengths
        assert nearness < cosines.min() and np.abs(vectors - expected).max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("file", others_weekly(["texts.txt", "rows.jsonl"], "texts.txt"))
def test_the_users_texts_calibrate_static_quantization(file, trained, tmp_path, capsys):
    source = trained("sparse" if file == "texts.txt" else "choice")
    path = tmp_path / file
    if file == "texts.txt":
        path.write_text("\n".join(TEXTS))
    else:
        write_lines(path, CHOICES)
    options: Any = {"src": str(source), "dtype": ("float32", "int8")}
    export.run(ExportConfig(**options, output=str(tmp_path / "dynamic")))
    export.run(ExportConfig(**options, output=str(tmp_path / "static"), calibrate=str(path)))
    printed = capsys.readouterr().out
    assert "\nint8: " in printed and "\nint8, static: " in printed
    loaded = load_model(str(source), "auto")
    whole = onnx_export.exported(loaded)
    (batch, *_) = calibration_batches(whole, loaded, str(path))
    assert len(batch["input_ids"]) > 1
    outputs = {}
    for name in (
        "dynamic/onnx/model",
        "dynamic/onnx/model_quantized",
        "static/onnx/model_quantized",
    ):
        file = tmp_path / f"{name}.onnx"
        outputs[name] = next(iter(run_session(open_session(file), whole, batch).values()))
        kinds = {node.op_type for node in onnx.load(file).graph.node}
        assert ("DynamicQuantizeLinear" in kinds) == (name == "dynamic/onnx/model_quantized")
        assert ("QuantizeLinear" in kinds) == (name == "static/onnx/model_quantized")
        if name == "static/onnx/model_quantized":  # other texts of a batch change nothing
            first = {key: array[:1] for key, array in batch.items()}
            (alone,) = run_session(open_session(file), whole, first).values()
            np.testing.assert_allclose(alone, outputs[name][:1], atol=1e-4)
    exact, dynamic, static = outputs.values()
    assert np.abs(static - dynamic).max() > 1e-6
    assert np.linalg.norm(static - exact) < 0.1 * np.linalg.norm(exact)


def test_calibration_reads_the_first_examples_and_needs_some(tmp_path):
    loaded = load_model("bertjax:tiny", "masked_lm")
    whole = onnx_export.exported(loaded)
    path = tmp_path / "texts.txt"
    path.write_text("a text\n" * (CALIBRATING + 1))
    batches = calibration_batches(whole, loaded, str(path))
    assert sum(len(batch["input_ids"]) for batch in batches) == CALIBRATING
    path.write_text("")
    with pytest.raises(ValueError, match="has no texts"):
        calibration_batches(whole, loaded, str(path))
    missing = str(tmp_path / "missing.txt")
    output = tmp_path / "out"
    with pytest.raises(FileNotFoundError, match="missing.txt"):
        exported("bertjax:tiny", output, dtype=("int8",), calibrate=missing)
    assert not output.exists()
    with pytest.raises(ValueError, match="--calibrate needs --dtype int8"):
        ExportConfig(src="a", output="b", calibrate=str(path))


@pytest.mark.parametrize("is_static", others_weekly([False, True], slow=(False,)))
def test_as_many_matrices_stay_in_float32_as_the_loss_asks_for(is_static, one_layer, tmp_path):
    exported(one_layer, tmp_path / "out")
    source = tmp_path / "out" / "onnx" / "model.onnx"
    target = tmp_path / "model_quantized.onnx"
    loaded = load_model(one_layer, "encoder")
    whole = onnx_export.exported(loaded)
    arrays = sample_arrays(loaded, whole)

    calibration = [arrays] * is_static
    is_token = arrays["attention_mask"] > 0

    def states(file):
        return run_session(open_session(file), whole, arrays)["last_hidden_state"][is_token]

    exact = states(source)

    def loss(file):
        return float(np.abs(states(file) - exact).max())

    errors = sensitivities(source, arrays)
    matrices = loaded.config.num_hidden_layers * 6
    embeddings = 3
    assert len(errors) == matrices + embeddings
    assert [*errors.values()] == sorted(errors.values(), reverse=True)
    assert 1e-4 < min(errors.values()) < max(errors.values()) < 0.5

    assert quantize_within(source, target, calibration, arrays, loss, 100.0) == []
    most = loss(target)
    kept = quantize_within(source, target, calibration, arrays, loss, 0.8 * most)
    assert 0 < len(kept) < len(errors) and loss(target) <= 0.8 * most
    assert kept == [*errors][: len(kept)]
    assert quantize_within(source, target, calibration, arrays, loss, 0.0) == [*errors]
    assert loss(target) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("runtime", others_weekly([None, "openvino"], "openvino"))
def test_a_check_scores_each_file_and_writes_a_table(
    runtime, trained, labelled, tmp_path, capsys, monkeypatch
):
    if runtime is None:
        monkeypatch.setitem(sys.modules, "openvino", None)
    else:
        if "OpenVINO" not in runtimes():  # importing it would send a report
            pytest.skip("openvino is not installed")
    config = ExportConfig(
        src=str(trained("classify")),
        output=str(tmp_path / "out"),
        dtype=("float32", "float16", "int8"),
        check=labelled("classify"),
        calibrate=labelled("classify"),
        max_loss=0.0,
    )
    export.run(config)
    table = capsys.readouterr().out
    table = table[table.index("| | ") : table.rindex("|") + 1]
    head, _, *lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert head[0] == "accuracy"
    assert ("OpenVINO: accuracy" in head) == (runtime == "openvino")
    assert [line[0] for line in lines] == ["float32", "float16", "int8, static"]
    predictions = bertjax.load_pretrained(config.src).predict([x["text"] for x in CLASSES])
    right = [row["label"] == x["label"] for row, x in zip(CLASSES, predictions, strict=True)]
    for line in lines:
        assert float(line[1].split()[0]) == pytest.approx(100 * np.mean(right), abs=0.01)
        assert all(float(speed.replace(",", "")) > 0 for speed in line[4::2])
        assert all(score == line[1].split()[0] for score in line[5::2])
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.rstrip().endswith(table) and "## ONNX" in card
    check_files(tmp_path / "out")


@pytest.mark.parametrize("task", [pytest.param("classify", marks=WEEKLY)])
def test_openvino_reports_nothing_to_its_makers(task, trained, labelled, tmp_path):
    if "OpenVINO" not in runtimes():  # importing it would send a report
        pytest.skip("openvino is not installed")
    code = (
        "import sys, bertjax.export; assert bertjax.export.main(sys.argv[1:]) == 0; "
        "assert 'openvino' in sys.modules and sys.modules['openvino_telemetry'] is None"
    )
    flags = [trained(task), "--check", labelled(task), "--output", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True)
    assert done.returncode == 0 and "fork" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "task",
    [
        "embed",
        pytest.param("tag", marks=pytest.mark.slow),
        *others_weekly([x for x in ROWS if x not in ("embed", "tag")]),
    ],
)
def test_scores_of_float32_are_those_of_bertjax(task, trained, labelled, tmp_path):
    check = labelled(task)
    loaded = load_model(str(trained(task)), "auto")
    whole = onnx_export.exported(loaded)
    file = tmp_path / "model.onnx"
    onnx_export.write_onnx(whole, file)
    score = Scorer(whole, loaded, check)
    scores = [score(file, runtime).scores for runtime in score.runtimes]

    model = Pretrained(loaded)
    own, examples, _ = from_file(model.task_with(), check, Columns(), None, model.description)
    expected = own.score(model.predictions(own, examples, shows_progress=False))
    assert expected
    for found in scores:
        assert found == pytest.approx(expected, abs=1e-3)


def test_a_loss_on_a_single_example_counts():
    classes = Pretrained(load_model("bertjax:tiny", "sequence_classification")).task_with()
    numbers = dataclasses.replace(classes, best_metric="mae")
    for task, name, before, after, loss in (
        (classes, "accuracy", 1.0, 0.0, 100.0),
        (classes, "accuracy", 0.0, 1.0, -100.0),
        (numbers, "mae", 0.5, 2.0, 1.5),
    ):
        reference = Variant(ScoredRows(task), {name: before})
        file = Path("model.onnx")
        variants = {file: Variant(ScoredRows(task), {name: after})}
        assert loss_in_percent(variants.__getitem__, reference, file) == loss


def test_a_check_without_labels_is_refused(tmp_path):
    check = write_lines(tmp_path / "texts.jsonl", [{"text": "a"}])
    head = "sequence_classification"
    config = ExportConfig(src="bertjax:tiny", output=str(tmp_path / "out"), head=head, check=check)
    with pytest.raises(ValueError, match="no labels"):
        export.run(config)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="--max_loss needs --check"):
        ExportConfig(src="a", output="b", dtype=("int8",), max_loss=0.5)


SCRIPT = """
const { pipeline, env } = require("@huggingface/transformers");
const [folder, name, dtype, texts] = process.argv.slice(1);
env.allowRemoteModels = false;
env.localModelPath = folder;
pipeline("feature-extraction", name, { dtype }).then(async (pipe) => {
  const outputs = await pipe.model(await pipe.tokenizer(JSON.parse(texts), { padding: true }));
  console.log(JSON.stringify(outputs.sentence_embedding.tolist()));
});
"""


def test_transformers_js_gives_the_same_vectors(trained, tmp_path):
    """NODE_PATH is a folder with @huggingface/transformers."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    words = ["node", "-e", "require('@huggingface/transformers')"]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("@huggingface/transformers is not in NODE_PATH")
    source = trained("embed")
    export.run(
        ExportConfig(src=str(source), output=str(tmp_path / "out"), dtype=("float32", "int8"))
    )
    expected = bertjax.load_pretrained(source).embed(TEXTS)
    for dtype, tolerance in (("fp32", 1e-4), ("q8", 0.5)):
        words = ["node", "-e", SCRIPT, str(tmp_path), "out", dtype, json.dumps(TEXTS)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert not done.returncode, done.stderr[-2000:]
        np.testing.assert_allclose(json.loads(done.stdout), expected, atol=tolerance)
