"""transformers makes of a fine-tuned directory what `bertjax.predict` does."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertjax import finetune, predict
from bertjax.predict import PredictConfig
from bertjax.tasks import finetune_config
from tests.lines import json_lines

# Five trainings: CI runs them beside the fast suite.
pytestmark = [pytest.mark.parity, pytest.mark.slow]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch", reason="the extra `parity` is not installed")
    return pytest.importorskip("transformers", reason="the extra `parity` is not installed")


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory, encoder, files):
    """kind -> a model directory after two updates on the files of that kind."""
    made = {}

    def of(kind):
        if kind not in made:
            workdir = tmp_path_factory.mktemp(kind) / "run"
            finetune.run(
                finetune_config(
                    task="classify" if kind == "multi" else kind,
                    init=str(encoder),
                    train=files[kind]["train"],
                    dev_fraction=0.0,
                    workdir=str(workdir),
                    max_length=60,
                    batch_size=8,
                    unroll=1,
                    max_steps=2,
                    log_every=2,
                )
            )
            made[kind] = workdir / "model"
        return made[kind]

    return of


def predicted(directory, tmp_path, **given):
    output = tmp_path / "out.jsonl"
    predict.run(PredictConfig(model=str(directory), output=str(output), **given))
    return json_lines(output)


@pytest.mark.parametrize("kind", ["classify", pytest.param("multi", marks=pytest.mark.exhaustive)])
def test_classes_and_probabilities_are_the_pipelines(
    kind, directory_of, transformers, files, tmp_path, sentences
):
    directory = directory_of(kind)
    (tmp_path / "in.txt").write_text("\n".join(sentences[:9]) + "\n")
    ours = predicted(directory, tmp_path, input=str(tmp_path / "in.txt"))
    pipeline = transformers.pipeline("text-classification", model=str(directory), top_k=None)
    for found, expected in zip(ours, pipeline(list(sentences[:9])), strict=True):
        scores = {entry["label"]: entry["score"] for entry in expected}
        assert found["probabilities"].keys() == scores.keys()
        for label, probability in found["probabilities"].items():
            assert abs(probability - scores[label]) < TOLERANCE
        if kind == "classify":
            assert found["label"] == max(scores, key=scores.__getitem__)


@pytest.mark.exhaustive
def test_numbers_are_the_pipelines(directory_of, transformers, tmp_path, sentences):
    directory = directory_of("regress")
    [ours] = predicted(directory, tmp_path, text=sentences[0], pair=sentences[1])
    pipeline = transformers.pipeline("text-classification", model=str(directory))
    theirs = pipeline({"text": sentences[0], "text_pair": sentences[1]})
    theirs = theirs[0] if isinstance(theirs, list) else theirs
    assert abs(ours["score"] - theirs["score"]) < TOLERANCE * max(1, abs(ours["score"]))


def test_tags_are_the_pipelines(directory_of, transformers, tmp_path, sentences):
    directory = directory_of("tag")
    pipeline = transformers.pipeline("token-classification", model=str(directory), ignore_labels=[])
    for text in sentences[:5]:
        [ours] = predicted(directory, tmp_path, text=text)
        firsts = [t for t in pipeline(text) if not t["word"].startswith("##")]
        assert [t["entity"] for t in firsts] == ours["labels"]
        scores = [t["score"] for t in firsts]
        np.testing.assert_allclose(scores, ours["probabilities"], atol=TOLERANCE)


def test_answers_have_the_logits_of_transformers(directory_of, transformers, tmp_path, files):
    """The pipeline for questions is gone from transformers; its model is still there."""
    import torch

    directory = directory_of("qa")
    ours = predicted(directory, tmp_path, input=files["qa"]["dev"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory).eval()
    paragraphs = json.loads(Path(files["qa"]["dev"]).read_text())["data"][0]["paragraphs"]
    checked = 0
    for found, paragraph in zip(ours, paragraphs, strict=True):
        question, context = paragraph["qas"][0]["question"], paragraph["context"]
        encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        if encoded["input_ids"].shape[1] > 60:
            continue  # several windows
        with torch.no_grad():
            out = model(**encoded)
        best = found["nbest"][0]
        second = encoded["token_type_ids"][0].tolist()
        starts = [o[0] if t else -1 for o, t in zip(offsets, second, strict=True)]
        first = starts.index(best["answer_start"])
        assert abs(out.start_logits[0, first].item() - best["start_logit"]) < TOLERANCE * 10
        checked += 1
    assert checked > 3


@pytest.mark.exhaustive
def test_choices_have_the_logits_of_transformers(directory_of, transformers, tmp_path, files):
    import csv

    import torch

    directory = directory_of("choice")
    ours = predicted(directory, tmp_path, input=files["choice"]["dev"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(directory).eval()
    with open(files["choice"]["dev"], newline="") as file:
        rows = list(csv.DictReader(file))
    for found, row in zip(ours, rows[:6], strict=False):
        endings = [row["choice1"], row["choice2"]]
        encoded = tokenizer([row["text"]] * 2, endings, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**{k: v[None] for k, v in encoded.items()}).logits[0]
        expected = torch.softmax(logits.double(), -1).tolist()
        np.testing.assert_allclose(found["probabilities"], expected, atol=TOLERANCE)
