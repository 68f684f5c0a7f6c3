"""Documents of any length through a model: windows in packed rows, in bounded memory, resumed."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax import finetune, load_pretrained, predict
from bertjax.config import FinetuneConfig, MeshConfig
from bertjax.devices import sharding
from bertjax.inference.predictor import Predictor
from bertjax.predict import PredictConfig
from bertjax.tasks import Example, finetune_config
from bertjax.tasks.classification import softmax
from bertjax.tasks.tagging import TagTask

LENGTH = 16


@pytest.fixture(scope="module")
def model(one_layer_config, tokenizer, written, tmp_path_factory):
    """The directory of a tagger with random weights, and the classes no, maybe and yes."""
    config = dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size)
    folder = tmp_path_factory.mktemp("tagger") / "model"
    return written(folder, config, "token_classification", tokenizer)


@pytest.fixture(scope="module")
def documents(sentences):
    """Documents of 3 to 400 words."""
    words = " ".join(sentences).split()
    sizes = np.random.default_rng(0).integers(3, 400, 12)
    starts = np.random.default_rng(1).integers(0, len(words) - 400, 12)
    return [words[a : a + n] for a, n in zip(starts.tolist(), sizes.tolist(), strict=True)]


def alone(pretrained, ids):
    """The logits of one window by itself, without packing: [number of tokens, C]."""
    return pretrained(input_ids=np.array([ids], np.int32))["logits"][0]


def test_predictions_in_packed_rows_equal_those_of_windows_alone(model, documents, sentences):
    """They are what the rule says, restated: each word where it has the most context."""
    pretrained = load_pretrained(model)
    found = pretrained.predict(documents[:4], max_length=LENGTH, doc_stride=5)
    tokenizer, room = pretrained.tokenizer, LENGTH - 2
    for words, prediction in zip(documents[:4], found, strict=True):
        pieces = tokenizer.encode_after_space(words)
        stream = [i for ids in pieces for i in ids]
        starts = np.cumsum([0, *map(len, pieces)])[:-1].tolist()
        best = {word: (-1.0, np.zeros(3)) for word in range(len(words))}
        begin = 0
        while True:
            part = stream[begin : begin + room]
            ids = [tokenizer.cls_token_id, *part, tokenizer.sep_token_id]
            probabilities = softmax(alone(pretrained, ids))
            for word, start in enumerate(starts):
                at = start - begin
                if 0 <= at < len(part):
                    context = min(at, len(part) - 1 - at) + 0.01 * len(part)
                    if context > best[word][0]:
                        best[word] = (context, probabilities[at + 1])
            if begin + room >= len(stream):
                break
            later = [s for s in starts if s > begin]
            near = [s for s in later if s <= begin + 5]
            begin = near[-1] if near else later[0]
        expected = np.stack([row for _, row in best.values()])
        np.testing.assert_allclose(prediction["probabilities"], expected.max(-1), atol=2e-5)
        labels = [("no", "maybe", "yes")[k] for k in expected.argmax(-1)]
        assert prediction["labels"] == labels


def test_as_many_tokens_are_held_as_one_document_has_or_the_limit(model, documents, monkeypatch):
    """So the memory of a prediction does not grow with the number of long documents."""
    monkeypatch.setattr("bertjax.inference.predictor.WINDOW_CHARACTERS", 1000)
    monkeypatch.setattr("bertjax.inference.predictor.WINDOW", 5)
    loaded = load_pretrained(model).loaded
    task = TagTask.of_labels(("no", "maybe", "yes"), name="t")
    mesh = sharding.make_mesh(MeshConfig(data=1), jax.local_devices()[:1])
    predictor = Predictor(task, loaded.model, loaded.tokenizer, LENGTH, mesh)
    held, original = [], predictor.outputs

    def outputs(params, features):
        held.append(sum(len(feature.input_ids) for feature in features))
        return original(params, features)

    predictor.outputs = outputs
    examples = [Example(id=str(i), where="", words=tuple(x)) for i, x in enumerate(documents)]
    sizes = [
        sum(len(f.input_ids) for f in task.features(x, loaded.tokenizer, LENGTH)) for x in examples
    ]
    found = [x.id for x, _ in predictor(jax.device_put(loaded.params), iter(examples))]
    assert found == [x.id for x in examples]
    assert sum(held) == sum(sizes) and len(held) > 4
    assert max(held) < 2 * max(sizes)


def test_predictions_of_long_documents_go_on_after_a_kill_with_the_same_bytes(
    model, documents, tmp_path, monkeypatch
):
    monkeypatch.setattr("bertjax.inference.predictor.WINDOW", 4)
    monkeypatch.setattr("bertjax.inference.predictor.WINDOW_CHARACTERS", 3000)
    rows = [{"text": " ".join(words)} for words in documents]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = PredictConfig(
        model=str(model),
        input=str(tmp_path / "a.jsonl"),
        output=str(tmp_path / "out.jsonl"),
        max_length=LENGTH,
    )
    predict.run(config)
    output = tmp_path / "out.jsonl"
    expected = output.read_bytes()
    output.unlink()
    original, seen = TagTask.features, []

    def features(self, example, *rest):
        seen.append(example.id)
        if len(seen) == 10:
            raise KeyboardInterrupt
        return original(self, example, *rest)

    monkeypatch.setattr(TagTask, "features", features)
    with pytest.raises(KeyboardInterrupt):
        predict.run(config)
    seen.extend([""] * 10)
    predict.run(config)
    assert output.read_bytes() == expected
    # It goes on with a group that ended because its documents are long.
    assert seen[20:] == [str(i) for i in range(7, 12)]
    lines = [json.loads(line) for line in expected.splitlines()]
    assert max(len(line["words"]) for line in lines) > 20 * LENGTH
    assert all(None not in line["probabilities"] for line in lines)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_fine_tuning_on_documents_learns_their_last_words_and_keeps_the_stride(
    one_layer, sentences, tmp_path
):
    """A word is an entity if it has an "a"; most entities are behind the first window."""

    def write(name: str, part) -> str:
        words = " ".join(part).replace(".", "").split()
        rows = []
        for start in range(0, len(words) - 120, 120):
            chosen = words[start : start + 120]
            tags = ["B-X" if "a" in word else "O" for word in chosen]
            rows.append("\n".join(f"{w} {t}" for w, t in zip(chosen, tags, strict=True)))
        Path(tmp_path / name).write_text("\n\n".join(rows) + "\n")
        return str(tmp_path / name)

    result = finetune(
        finetune_config(
            task="tag",
            init=str(one_layer),
            train=write("train.conll", sentences[:300]),
            dev=write("dev.conll", sentences[300:]),
            workdir=str(tmp_path / "run"),
            max_length=32,
            doc_stride=12,
            batch_size=8,
            num_epochs=5,
            dropout=0.0,
            optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=3e-3),
        )
    )
    assert result.scores["dev/f1"] > 0.8
    description = json.loads((result.directory / "task.json").read_text())
    assert (description["max_length"], description["doc_stride"]) == (32, 12)
    scores = predict_scores(result.directory, tmp_path / "dev.conll", tmp_path)
    assert scores == pytest.approx(result.scores["dev/f1"])


def predict_scores(directory, file, folder) -> float:
    """The F1 of `bertjax.predict` on a file of the task, from its predictions."""
    output = folder / "predicted.jsonl"
    predict.run(PredictConfig(model=str(directory), input=str(file), output=str(output)))
    tags = [t for line in output.read_text().splitlines() for t in json.loads(line)["labels"]]
    golds = [line.split()[1] for line in file.read_text().splitlines() if line]
    right = sum(a == b == "B-X" for a, b in zip(tags, golds, strict=True))
    return 2 * right / (tags.count("B-X") + golds.count("B-X"))
