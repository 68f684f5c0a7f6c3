"""Exact search, and the evaluation over a corpus: equal to numpy's and sentence-transformers'."""

import json
import shutil

import numpy as np
import pytest

from bertjax import predict
from bertjax.base.checksums import CHECKSUMS
from bertjax.inference import retrieval
from bertjax.inference.retrieval import Collection, search, write_ranking


@pytest.mark.parametrize("cosine", [True, False])
def test_blocks_find_what_sorting_all_scores_finds(monkeypatch, cosine, tmp_path):
    monkeypatch.setattr(retrieval, "QUERIES", 4)
    monkeypatch.setattr(retrieval, "PASSAGES", 16)
    rng = np.random.default_rng(0)
    # Small whole numbers, so that many scores are equal and all sums are exact.
    queries, corpus = rng.integers(1, 3, (10, 3)), rng.integers(1, 3, (70, 3))
    np.save(tmp_path / "corpus.npy", corpus.astype(np.float32))
    mapped = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    scores, found = search(queries, mapped, 20, cosine=cosine)
    _, in_memory = search(queries, corpus, 20, cosine=cosine)
    np.testing.assert_array_equal(found, in_memory)
    x, y = queries.astype(float), corpus.astype(float)
    if cosine:
        x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    exact = x @ y.T
    np.testing.assert_allclose(scores, np.take_along_axis(exact, found, 1), rtol=1e-6)
    np.testing.assert_allclose(scores, -np.sort(-exact)[:, :20], rtol=1e-6)
    if not cosine:
        np.testing.assert_array_equal(found, np.argsort(-exact, kind="stable")[:, :20])
    for row, values in zip(found, scores, strict=True):
        for i in range(19):
            assert values[i] > values[i + 1] or row[i] < row[i + 1]


def test_a_small_corpus_is_returned_whole_and_bad_vectors_are_refused():
    scores, found = search(np.ones((1, 2)), np.eye(2), 5, cosine=False)
    assert scores.tolist() == [[1, 1]] and found.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match=r"scores of query 0 \(from 0\) are not finite"):
        search(np.ones((1, 2)), np.array([[1, 1], [np.nan, 1]]), 2)


WORDS = "ab bc cde def ef fgh gh hij ia jab".split()


def with_modules(model, folder, prompts):
    """Copies a model, and adds the files of sentence-transformers."""
    shutil.copytree(model, folder, ignore=lambda *_: [CHECKSUMS])
    kinds = {"models.Transformer": "", "models.Pooling": "1_Pooling"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode": "mean", "embedding_dimension": 32}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return folder


@pytest.fixture
def beir(tmp_path):
    """A collection with equal passages, grades, and a query without judgements."""
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, 4)) for _ in range(130)]
    texts[40:60] = [texts[0]] * 20
    ids = [f"d{i}" for i in rng.permutation(130)]
    corpus = [
        {"_id": id, "title": rng.choice(["", "a title"]), "text": text}
        for id, text in zip(ids, texts, strict=True)
    ]
    queries = [{"_id": f"q{i}", "text": " ".join(rng.choice(WORDS, 3))} for i in range(12)]
    queries[0]["text"] = texts[0]
    judged = [("q0", ids[41], 1), *((f"q{i}", ids[i], 2) for i in range(11))]
    judged += [(f"q{i}", ids[70 + i], i % 2) for i in range(11)]
    (tmp_path / "qrels").mkdir()
    for name, rows in (("corpus", corpus), ("queries", queries)):
        lines = "".join(json.dumps({k: str(v) for k, v in row.items()}) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judged)]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def bag_of_words(texts):
    return np.array([[text.split().count(word) for word in (*WORDS, "title")] for text in texts])


EMBED = {"query": bag_of_words, "document": bag_of_words}


def test_scores_and_rankings_are_those_of_trec_files_too(beir, tmp_path):
    found = Collection(beir, "dev")
    ranking = found.rank(EMBED)
    assert list(ranking) == [f"q{i}" for i in range(11)] and len(ranking["q0"]) == 100
    lines = (beir / "qrels" / "test.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    (beir / "qrels" / "trec.txt").write_text("".join(f"{q} 0 {d} {x}\n" for q, d, x in rows))
    assert found.score(ranking) == Collection(beir, "trec").score(ranking)
    with pytest.raises(ValueError, match=r"needs one file of judgements, such as qrels/dev.tsv"):
        Collection(beir, "dev")
    write_ranking(ranking, tmp_path / "run.trec")
    first = next(iter(ranking["q0"].items()))
    line = (tmp_path / "run.trec").read_text().splitlines()[0].split()
    assert line[:4] == ["q0", "Q0", first[0], "1"] and float(line[4]) == pytest.approx(first[1])
    equal = [id for id, score in ranking["q0"].items() if score == first[1]]
    assert len(equal) > 5 and equal == sorted(equal)


@pytest.mark.slow
@pytest.mark.parity
def test_metrics_are_those_of_sentence_transformers(beir):
    torch = pytest.importorskip("torch")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    ours = Collection(beir, "test")

    class Model:
        similarity_fn_name = "cosine"

        def encode_query(self, texts, **_):
            return torch.tensor(bag_of_words(texts)).float()

        encode_document = encode_query

        def similarity(self, a, b):
            return torch.nn.functional.normalize(a) @ torch.nn.functional.normalize(b).T

    corpus = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    evaluator = evaluation.InformationRetrievalEvaluator(
        ours._queries,
        {row["_id"]: f"{row['title']} {row['text']}".strip() for row in corpus},
        ours._positives,
        precision_recall_at_k=[100],
        write_csv=False,
    )
    evaluator.store_metrics_in_model_card_data = lambda *_: None
    theirs = evaluator(Model())
    found = ours.score(ours.rank(EMBED))
    assert found == pytest.approx(
        {
            "ndcg_at_10": theirs["cosine_ndcg@10"],
            "mrr_at_10": theirs["cosine_mrr@10"],
            "recall_at_100": theirs["cosine_recall@100"],
        },
        abs=1e-12,
    )
    assert all(0 < value < 1 for value in found.values())


@pytest.mark.slow
@pytest.mark.parity
def test_a_models_metrics_are_those_of_sentence_transformers(beir, one_layer, tmp_path, capsys):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    model = with_modules(one_layer, tmp_path / "model", {"query": "ab ", "document": "hij: "})
    flags = ["--model", str(model), "--retrieval_dir", str(beir), "--output"]
    assert predict.main([*flags, str(tmp_path / "run.trec")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    ours = Collection(beir, "test")
    corpus = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    evaluator = InformationRetrievalEvaluator(
        ours._queries,
        {row["_id"]: f"{row['title']} {row['text']}".strip() for row in corpus},
        ours._positives,
        precision_recall_at_k=[100],
        write_csv=False,
    )
    theirs = evaluator(library.SentenceTransformer(str(model), device="cpu"))
    names = {"ndcg_at_10": "ndcg@10", "mrr_at_10": "mrr@10", "recall_at_100": "recall@100"}
    expected = {ours: theirs[f"cosine_{name}"] for ours, name in names.items()}
    assert found == pytest.approx(expected, abs=1e-9)
    assert len((tmp_path / "run.trec").read_text().splitlines()) == 1100


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1\td999\t1", r"test.tsv: the id 'd999' is not in .*corpus.jsonl: add it"),
        ("q99\td1\t1", r"test.tsv: the id 'q99' is not in .*queries.jsonl: add it"),
        ("q11\td1\t0", r"test.tsv: the query 'q11' has no score above 0: add one"),
        ("q1\td1\tnan", r"test.tsv, row \d+ is no judgement: give ids and a number"),
    ],
)
def test_bad_judgements_are_refused(beir, line, message):
    with (beir / "qrels" / "test.tsv").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        Collection(beir, "test")


def test_ids_that_occur_twice_and_rows_without_a_text_are_refused(beir):
    path = beir / "corpus.jsonl"
    lines = path.read_text()
    path.write_text(lines + lines.splitlines()[0] + "\n")
    with pytest.raises(ValueError, match=r"corpus.jsonl: the id 'd\d+' occurs twice"):
        Collection(beir, "test")
    path.write_text(lines + '{"_id": "x", "text": null}\n')
    with pytest.raises(ValueError, match=r"corpus.jsonl, row 131 has no text"):
        Collection(beir, "test")
