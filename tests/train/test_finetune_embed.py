"""Training of sentence embeddings, from a file of pairs to a directory that others load."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import bertjax
from bertjax import search
from bertjax.base.checksums import CHECKSUMS
from bertjax.inference.embedder import Embedder
from bertjax.inference.saved_task import with_task
from bertjax.tasks import finetune_config
from bertjax.tasks.embedding import RETRIEVAL_METRICS, EmbedOptions
from bertjax.train import experiments as variants
from bertjax.weights import load_model
from tests.rows import RATE, short_run


@pytest.fixture(scope="module")
def config(one_layer, tmp_path_factory, sentences):
    """The positive has the words of the anchor in reverse order."""
    rows = [
        {"anchor": s, "positive": " ".join(s.split()[::-1]), "negative": other}
        for s, other in zip(sentences[:40], sentences[40:80], strict=True)
    ]
    folder = tmp_path_factory.mktemp("embed")
    (folder / "qrels").mkdir()
    judged = [f"{i} {i} 1\n" for i in range(40)]
    (folder / "qrels" / "dev.tsv").write_text("query corpus score\n" + "".join(judged))
    for name, column in (("queries", "anchor"), ("corpus", "positive")):
        lines = [json.dumps({"_id": i, "text": row[column]}) + "\n" for i, row in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    settings = {
        "pooling": "weightedmean",
        "normalize": True,
        "matryoshka": (8,),
        "temperature": 0.1,
    }
    settings |= {"retrieval_dir": str(folder), "select_by": "ndcg_at_10"}
    settings["keep_same_id"] = True  # queries and passages are numbered alike
    return short_run("embed", one_layer, rows, folder, **settings)


@pytest.fixture(scope="module")
def result(config):
    return variants.finetune(config)


@pytest.mark.slow
def test_the_directory_of_a_run_tells_how_texts_become_embeddings(result, one_layer, sentences):
    assert set(result.scores) == {f"dev/{x}" for x in (
        "mrr", "recall_at_1", "recall_at_10", "triplet_accuracy", *RETRIEVAL_METRICS
    )}  # fmt: skip
    losses = [x["train/loss"] for x in result.metrics if "train/loss" in x]
    assert losses[-1] < losses[0]
    modules = json.loads((result.directory / "modules.json").read_text())
    assert [x["type"].rpartition(".")[2] for x in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    card = (result.directory / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "embeddings of texts" in card
    loaded = load_model(result.directory, None)
    assert loaded.head == "sentence_embedding" and loaded.model.normalize
    texts = list(sentences[:3])
    vectors = result.model.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    # The head, the embedder and the predictions agree; matryoshka sizes are normalised again.
    outputs = result.model(texts)
    np.testing.assert_allclose(outputs["sentence_embedding"], vectors, atol=1e-6)
    (prediction,) = result.model.predict([(texts[0], texts[1])])
    assert prediction == {"similarity": pytest.approx(vectors[0] @ vectors[1], abs=1e-6)}
    with pytest.raises(ValueError, match="compares two texts, but there is only one"):
        result.model.predict(["a text"])
    small = vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(result.model.embed(texts, truncate_dim=8), small, atol=1e-6)
    with pytest.raises(ValueError, match="truncate_dim=33, but the vectors have 32 numbers"):
        result.model.embed(texts, truncate_dim=33)
    assert Embedder(loaded).max_length == 24
    # The pooler, which embeddings do not use, is that of the model before.
    before = load_model(one_layer, "encoder").params["bert"]["pooler"]
    np.testing.assert_array_equal(before["kernel"], loaded.params["bert"]["pooler"]["kernel"])


@pytest.mark.slow
def test_evaluations_search_a_collection_as_the_command_does(result, config, capsys):
    """The best model by it is chosen, and it keeps pooling and length."""
    found = [x["eval/ndcg_at_10"] for x in result.metrics if "eval/ndcg_at_10" in x]
    assert len(found) == 3 and result.scores["dev/ndcg_at_10"] == max(found)
    flags = ["--model", str(result.directory), "--retrieval_dir", config.options.retrieval_dir]
    assert search.main([*flags, "--keep_same_id"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    expected = {name: result.scores[f"dev/{name}"] for name in RETRIEVAL_METRICS}
    scores.pop("recall_at_10")  # in the evaluations, that of the pairs
    assert scores == pytest.approx(expected, abs=1e-6) and 0 < scores["mrr_at_10"] < 1
    for changes, message in (
        ({"dev_fraction": 0.0, "select_by": None}, "need a dev split: give --dev"),
        ({"retrieval_dir": None, "select_by": None}, "keep_same_id has no effect without --ret"),
    ):
        with pytest.raises(ValueError, match=message):
            bertjax.finetune(finetune_config(config, workdir="none", **changes))


@pytest.mark.slow
def test_similarities_take_the_length_of_sentence_transformers(result, tmp_path):
    shutil.copytree(result.directory, tmp_path / "theirs")
    for name in ("task.json", CHECKSUMS):
        (tmp_path / "theirs" / name).unlink()
    theirs = load_model(tmp_path / "theirs", None)
    assert with_task(theirs)[1].max_length == Embedder(theirs).max_length == 24


@pytest.mark.slow
def test_a_saved_model_is_as_before_and_can_be_trained_further(result, config, tmp_path):
    result.model.save(tmp_path / "saved")
    for name in ("modules.json", "1_Pooling/config.json", "task.json", "model.safetensors"):
        saved = (tmp_path / "saved" / name).read_bytes()
        assert saved == (result.directory / name).read_bytes()
    task = bertjax.tasks.make_task("embed", config.options)
    plain = dataclasses.replace(task, options=EmbedOptions())
    model = load_model(result.directory, task.head, head_fields=plain.head_fields).model
    assert (model.pooling, model.normalize) == ("weightedmean", True)
    model = load_model(result.directory, task.head, head_fields={"pooling": "mean"}).model
    assert (model.pooling, model.normalize) == ("mean", False)


@pytest.mark.slow
def test_pairs_with_scores_are_evaluated(result, sentences):
    rows = [
        {"sentence1": a, "sentence2": b, "score": i}
        for i, (a, b) in enumerate(zip(sentences[:9], sentences[1:10], strict=True))
    ]
    scores = bertjax.evaluate(result.model, data=rows)
    assert set(scores) == {"pearson", "spearman", "pearson_spearman"}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_resumed_run_leaves_the_model_of_an_uninterrupted_one(
    result, config, tmp_path, monkeypatch
):
    from bertjax.train import finetuning

    stopped = finetune_config(config, workdir=str(tmp_path / "run"))
    evaluate, count = finetuning.FinetuningJob.evaluate, 0

    def stops(self, params, phase=None, *check):
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return evaluate(self, params, phase, *check)

    with monkeypatch.context() as patch:
        patch.setattr(finetuning.FinetuningJob, "evaluate", stops)
        with pytest.raises(KeyboardInterrupt):
            variants.finetune(stopped)
    again = variants.finetune(stopped)
    assert again.scores == result.scores
    for name in ("model.safetensors", "modules.json"):
        assert (again.directory / name).read_bytes() == (result.directory / name).read_bytes()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("pooling", "normalize", "loss"), [("mean", True, None), ("cls", False, "cosent")]
)
def test_scored_pairs_are_learned(one_layer, sentences, tmp_path, pooling, normalize, loss):
    """A pair is similar if its sentences begin with the same word."""
    first = [("abc", "hij")[i % 2] for i in range(120)]
    rows = [
        {
            "sentence1": f"{first[i]} {sentences[i]}",
            "sentence2": f"{first[i // 2]} {sentences[i]}",
            "score": 5.0 * (first[i] == first[i // 2]),
        }
        for i in range(120)
    ]
    result = bertjax.finetune(
        task="embed",
        train=rows,
        init=str(one_layer),
        workdir=str(tmp_path / "run"),
        max_length=24,
        batch_size=8,
        num_epochs=6,
        pooling=pooling,
        normalize=normalize,
        loss=loss,
        optimizer=RATE,
    )
    assert result.scores["dev/spearman"] > 0.7
    model = load_model(result.directory, None).model
    assert (model.pooling, model.normalize) == (pooling, normalize)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_single_texts_are_learned_by_their_dropout_masks(one_layer, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in sentences[:60]))
    settings = {"task": "embed", "train": str(tmp_path / "texts.txt"), "init": str(one_layer)}
    settings |= {"loss": "simcse", "max_length": 24, "batch_size": 20, "optimizer": RATE}
    settings |= {"num_epochs": 8, "log_every": 1}
    with pytest.raises(ValueError, match=r"needs dropout: give a rate, such as --dropout 0.1"):
        bertjax.finetune(**settings, dropout=0.0, workdir=str(tmp_path / "none"))
    result = bertjax.finetune(**settings, dropout=0.2, workdir=str(tmp_path / "run"))
    losses = [x["train/loss"] for x in result.metrics if "train/loss" in x]
    assert len(losses) == 24 and 0 < losses[-1] < losses[0] and result.scores == {}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["margin", "kl"])
def test_a_teachers_scores_are_learned(one_layer, sentences, tmp_path, loss):
    """The teacher scores texts by whether they begin with the word of the query."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(120):
        words = rng.permutation(["abc", "hij"]).tolist()
        texts = [
            f"{word} {text}" for word, text in zip(words, rng.choice(sentences, 2), strict=True)
        ]
        scores = [float(word == ("abc", "hij")[i % 2]) for word in words]
        query = f"{('abc', 'hij')[i % 2]} {sentences[i]}"
        rows.append({"query": query, "positive": texts[0], "negatives": texts[1:]})
        rows[-1]["scores"] = scores
    settings = {"task": "embed", "init": str(one_layer), "loss": loss, "optimizer": RATE}
    settings |= {"max_length": 24, "batch_size": 8, "num_epochs": 6, "temperature": None}
    dev = [row for row in rows if row["scores"][0] == 1]
    result = bertjax.finetune(**settings, train=rows, dev=dev, workdir=str(tmp_path / "run"))
    assert result.scores["dev/triplet_accuracy"] > 0.8


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("pooling", "normalize"),
    [("mean", True), pytest.param("cls", False, marks=pytest.mark.exhaustive)],
)
def test_cosines_in_sentence_transformers_are_ours(config, sentences, tmp_path, pooling, normalize):
    library = pytest.importorskip("sentence_transformers")
    changes = {"pooling": pooling, "normalize": normalize, "workdir": str(tmp_path / "run")}
    result = variants.finetune(finetune_config(config, num_epochs=1, **changes))
    theirs = library.SentenceTransformer(str(result.directory), device="cpu")
    assert theirs.max_seq_length == 24 and theirs.similarity_fn_name == "cosine"
    texts = [*sentences[:30], " ".join(sentences[:10])]
    expected = theirs.encode(texts)
    vectors = result.model.embed(texts)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    cosines = theirs.similarity(expected, expected).numpy()
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(units @ units.T, cosines, atol=1e-5)
    # Both ways: what sentence-transformers saves is read with its pooling.
    theirs.save_pretrained(str(tmp_path / "theirs"))
    loaded = bertjax.load_pretrained(tmp_path / "theirs")
    assert (loaded.model.pooling, loaded.model.normalize) == (pooling, normalize)
    np.testing.assert_allclose(loaded.embed(texts), expected, atol=1e-5)
