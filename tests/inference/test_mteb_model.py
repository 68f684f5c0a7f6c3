"""Models for MTEB: on tasks of local files, the scores are those of sentence-transformers there."""

import json

import numpy as np
import pytest

import bertjax
from bertjax.base.checksums import CHECKSUMS
from tests.inference.test_pretrained import with_config
from tests.inference.test_retrieval import with_modules

PROMPTS = {
    "query": "ab ",
    "document": "hij: ",
    "STS": "cde: ",
    "Reranking-query": "fgh ",
    "Retrieval-document": "ia ",
    "LocalRetrieval-document": "of no task of MTEB: ",
}


@pytest.fixture(scope="module")
def mteb():
    return pytest.importorskip("mteb")


@pytest.fixture(scope="module")
def tasks(mteb, sentences):
    """A retrieval, a reranking and an STS task, whose data are in memory."""
    import datasets

    retrieval = local_task(
        mteb.abstasks.AbsTaskRetrieval, "LocalRetrieval", "Retrieval", "ndcg_at_10"
    )
    reranking = local_task(
        mteb.abstasks.AbsTaskRetrieval, "LocalReranking", "Reranking", "map_at_1000"
    )
    similarity = local_task(mteb.abstasks.AbsTaskSTS, "LocalSTS", "STS", "cosine_spearman")
    rng = np.random.default_rng(0)
    ids = [f"d{i}" for i in range(80)]
    corpus = [{"id": id, "title": "", "text": sentences[i]} for i, id in enumerate(ids)]
    queries = [{"id": f"q{i}", "text": sentences[100 + i]} for i in range(20)]
    judged, candidates = {}, {}
    for query in queries:
        chosen = rng.choice(ids, 12, replace=False).tolist()
        judged[query["id"]] = {id: int(rng.integers(1, 4)) for id in chosen[:4]}
        candidates[query["id"]] = chosen
    for task, top_ranked in ((retrieval, None), (reranking, candidates)):
        data = {
            "corpus": datasets.Dataset.from_list(corpus),
            "queries": datasets.Dataset.from_list(queries),
            "relevant_docs": judged,
            "top_ranked": top_ranked,
        }
        task.dataset = {"default": {"test": data}}
    pairs = {"sentence1": sentences[:60], "sentence2": sentences[60:120]}
    pairs["score"] = rng.random(60).tolist()
    similarity.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(pairs)})
    for task in (retrieval, reranking, similarity):
        task.data_loaded = True
    return {"retrieval": retrieval, "reranking": reranking, "sts": similarity}


def local_task(base, name, kind, score):
    import mteb

    metadata = mteb.TaskMetadata(
        name=name,
        description="A task of tests.",
        dataset={"path": "local/nothing", "revision": "1"},
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=score,
    )
    return type(name, (base,), {"metadata": metadata})()


def scores_of(mteb, model, task):
    results = mteb.evaluate(model, [task], cache=None, co2_tracker=False)
    (scores,) = results.task_results[0].scores["test"]
    return {name: x for name, x in scores.items() if isinstance(x, float)}


@pytest.fixture(scope="module")
def cross_encoder(one_layer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cross") / "model"
    model = bertjax.load_pretrained(one_layer, "sequence_classification", num_labels=1)
    kernel = model.params["classifier"]["kernel"]
    model.params["classifier"]["kernel"] = np.random.default_rng(0).normal(size=kernel.shape)
    model.save(folder)
    (folder / CHECKSUMS).unlink()
    with_config(folder, sentence_transformers={"activation_fn": "torch.nn.Sigmoid"})
    return folder


# MTEB warns of prompts and of methods of sentence-transformers.
@pytest.mark.filterwarnings("default")
@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_dense_scores_are_those_of_sentence_transformers(
    mteb, tasks, one_layer, tmp_path, similarity
):
    library = pytest.importorskip("sentence_transformers")
    folder = with_modules(one_layer, tmp_path / "model", PROMPTS)
    file = folder / "config_sentence_transformers.json"
    described = {**json.loads(file.read_text()), "similarity_fn_name": similarity}
    file.write_text(json.dumps(described))
    ours = bertjax.mteb_model(folder)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    for kind, task in tasks.items():
        found = scores_of(mteb, ours, task)
        if kind == "sts" and similarity in ("euclidean", "manhattan"):
            continue  # in which MTEB fails with models of sentence-transformers
        expected = scores_of(mteb, theirs, task)
        assert found == pytest.approx(expected, abs=1e-4, nan_ok=True)
        assert 0 < abs(found["main_score"]) < 1
    meta = ours.mteb_model_meta
    assert meta.name == "local/" + tmp_path.name and meta.similarity_fn_name.value == similarity


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
@pytest.mark.parity
def test_scores_of_late_interaction_are_those_of_sentence_transformers(
    mteb, tasks, one_layer, tmp_path
):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.MultiVectorEncoder(
        str(one_layer), device="cpu", prompts={**PROMPTS, "Retrieval-query": "gh "}
    )
    theirs.save_pretrained(str(tmp_path / "model"))
    ours = bertjax.mteb_model(tmp_path / "model")
    theirs = library.MultiVectorEncoder(str(tmp_path / "model"), device="cpu")
    for kind in ("retrieval", "reranking"):
        found = scores_of(mteb, ours, tasks[kind])
        expected = scores_of(mteb, theirs, tasks[kind])
        assert found == pytest.approx(expected, abs=1e-4, nan_ok=True)
        assert 0 < found["main_score"] < 1
    assert ours.mteb_model_meta.model_type == ["late-interaction"]


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
@pytest.mark.parity
def test_sparse_scores_are_those_of_sentence_transformers(mteb, tasks, one_layer, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    masked_lm = tmp_path / "masked_lm"
    bertjax.load_pretrained(one_layer, "masked_lm").save(masked_lm)
    transformer = Transformer(str(masked_lm), transformer_task="fill-mask")
    prompts = {**PROMPTS, "Retrieval-query": "gh "}
    theirs = library.SparseEncoder(
        modules=[transformer, SpladePooling()], device="cpu", prompts=prompts
    )
    folder = tmp_path / "model"
    theirs.save_pretrained(str(folder))
    ours = bertjax.mteb_model(folder)
    theirs = library.SparseEncoder(str(folder), device="cpu")
    for task in tasks.values():
        found = scores_of(mteb, ours, task)
        expected = scores_of(mteb, theirs, task)
        assert found == pytest.approx(expected, abs=1e-4, nan_ok=True)
        assert 0 < abs(found["main_score"]) < 1
    assert ours.mteb_model_meta.model_type == ["sparse"]


@pytest.mark.slow
@pytest.mark.parity
def test_scores_of_cross_encoders_are_those_of_sentence_transformers(mteb, tasks, cross_encoder):
    library = pytest.importorskip("sentence_transformers")
    ours = bertjax.mteb_model(cross_encoder, name="me/mine", batch_size=7)
    theirs = library.CrossEncoder(str(cross_encoder), device="cpu")
    found = scores_of(mteb, ours, tasks["reranking"])
    assert found == pytest.approx(
        scores_of(mteb, theirs, tasks["reranking"]), abs=1e-4, nan_ok=True
    )
    assert 0 < found["main_score"] < 1
    assert ours.mteb_model_meta.name == "me/mine"


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
@pytest.mark.parity
def test_results_are_kept_until_the_model_changes(mteb, tasks, one_layer, tmp_path):
    folder = with_modules(one_layer, tmp_path / "a", PROMPTS)
    other = with_modules(one_layer, tmp_path / "b", {})
    names = set()
    for path in (folder, folder, other):
        meta = bertjax.mteb_model(path, name="me/mine").mteb_model_meta
        names.add((meta.name, meta.revision))
    assert len(names) == 2
    cache = mteb.ResultCache(tmp_path / "cache")
    model = bertjax.mteb_model(folder, name="me/mine", revision="abc")
    mteb.evaluate(model, [tasks["sts"]], cache=cache, co2_tracker=False)
    (file,) = tmp_path.glob("cache/**/LocalSTS.json")
    assert file.parts[-3:-1] == ("me__mine", "abc")


@pytest.mark.slow
def test_what_mteb_cannot_evaluate_is_refused(mteb, tasks, one_layer, tmp_path):
    bertjax.load_pretrained(one_layer, "sequence_classification", num_labels=3).save(tmp_path / "m")
    with pytest.raises(ValueError, match="predicts the classes LABEL_0, LABEL_1, LABEL_2"):
        bertjax.mteb_model(tmp_path / "m")
    with pytest.raises(ValueError, match="name='mine'"):
        bertjax.mteb_model(one_layer, name="mine")
    with pytest.raises(ValueError, match="precision='int8' in encode_kwargs"):
        mteb.evaluate(
            bertjax.mteb_model(one_layer),
            [tasks["sts"]],
            cache=None,
            co2_tracker=False,
            encode_kwargs={"precision": "int8"},
        )


def test_without_mteb_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mteb", None)
    with pytest.raises(ImportError, match="pip install mteb"):
        bertjax.mteb_model("m")
