"""Exact search, and the evaluation over a corpus: equal to numpy's and sentence-transformers'."""

import functools
import itertools
import json
import shutil
import types
import zlib

import numpy as np
import pytest

from bertjax import search as search_command
from bertjax.base.checksums import CHECKSUMS
from bertjax.base.progress import Progress
from bertjax.inference import indexes, pretrained, retrieval
from bertjax.inference.retrieval import Collection, IndexKind, beir_collection, search
from bertjax.search import write_ranking
from tests.cases import WEEKLY
from tests.lines import json_lines


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


def test_an_index_that_was_killed_while_its_file_was_made_is_made_again(monkeypatch, tmp_path):
    vectors = np.eye(3, dtype=np.float32)
    embed = {"document": lambda texts: vectors[: len(texts)], "query": lambda texts: vectors[1:2]}
    make = np.lib.format.open_memmap

    def killed(file, *args, **kwargs):
        make(file, *args, **kwargs)
        with open(file, "r+b") as opened:
            opened.truncate(20)
        raise KeyboardInterrupt

    def added():
        index = retrieval.DenseIndex(embed, tmp_path, 3, cosine=False)
        index.add(np.arange(3), ["a", "b", "c"])
        return index

    monkeypatch.setattr(np.lib.format, "open_memmap", killed)
    with pytest.raises(KeyboardInterrupt):
        added()
    monkeypatch.undo()
    assert added().search(["b"], 1)[1].tolist() == [[1]]


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


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_judgements(folder, judged, name="test.tsv", header="query-id\tcorpus-id\tscore"):
    (folder / "qrels").mkdir(exist_ok=True)
    lines = [header, *("\t".join(map(str, row)) for row in judged)]
    (folder / "qrels" / name).write_text("\n".join(lines) + "\n")


def collection(folder, *, plain=False, seed=1):
    """Writes a collection with equal passages, grades, and a query without judgements.

    A `plain` one has neither, so that BEIR and sentence-transformers give the same metrics.
    """
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, 4)) + f" x{i}" * plain for i in range(130)]
    if not plain:
        texts[40:60] = [texts[0]] * 20
    ids = [f"d{i}" for i in rng.permutation(130)]
    titles = [str(title) for title in rng.choice(["", "a title"], 130)]
    rows = [
        {"_id": id, "title": title, "text": text}
        for id, title, text in zip(ids, titles, texts, strict=True)
    ]
    write_rows(folder / "corpus.jsonl", rows)
    queries = [{"_id": f"q{i}", "text": " ".join(rng.choice(WORDS, 3))} for i in range(12)]
    queries[0]["text"] = texts[0]
    write_rows(folder / "queries.jsonl", queries)
    judged = [("q0", ids[41], 1), *((f"q{i}", ids[i], 2 - plain) for i in range(11))]
    judged += [(f"q{i}", ids[70 + i], i % 2) for i in range(11)]
    write_judgements(folder, judged)
    return folder


@pytest.fixture
def beir(tmp_path):
    return collection(tmp_path)


def bag_of_words(texts):
    return np.array([[text.split().count(word) for word in (*WORDS, "title")] for text in texts])


def dense(embed):
    """Returns what opens an index of the vectors that `embed` computes of texts."""
    functions = {"query": embed, "document": embed}
    return kind_of(functools.partial(retrieval.DenseIndex, functions, cosine=True))


def kind_of(open_index):
    encoder = types.SimpleNamespace(after_batch=None)
    return IndexKind({"document": encoder}, open_index)


EMBED = dense(bag_of_words)


def test_scores_and_rankings_are_those_of_trec_files_too(beir, tmp_path):
    found = beir_collection(beir, "test")
    ranking = found.rank(EMBED)
    assert list(ranking) == [f"q{i}" for i in range(11)] and len(ranking["q0"]) == 100
    lines = (beir / "qrels" / "test.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    (beir / "qrels" / "trec.txt").write_text("".join(f"{q} 0 {d} {x}\n" for q, d, x in rows))
    assert found.score(ranking) == beir_collection(beir, "trec").score(ranking)
    with pytest.raises(ValueError, match=r"one file dev.tsv, but holds .'test.tsv', 'trec.txt'."):
        beir_collection(beir, "dev", or_only=True)
    write_ranking(ranking, found.queries, tmp_path / "run.trec", 100)
    first = next(iter(ranking["q0"].items()))
    line = (tmp_path / "run.trec").read_text().splitlines()[0].split()
    assert line[:4] == ["q0", "Q0", first[0], "1"] and float(line[4]) == pytest.approx(first[1])
    equal = [id for id, score in ranking["q0"].items() if score == first[1]]
    assert len(equal) > 5 and equal == sorted(equal, reverse=True)


def vectors_of_texts(texts):
    """Random vectors, of which those of different texts differ."""
    seeds = [zlib.crc32(text.encode()) for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=8) for seed in seeds])


@pytest.mark.slow
@pytest.mark.parity
def test_metrics_are_those_of_sentence_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    ours = beir_collection(beir := collection(tmp_path, plain=True), "test")

    class Model:
        similarity_fn_name = "cosine"

        def encode_query(self, texts, **_):
            return torch.tensor(vectors_of_texts(texts)).float()

        encode_document = encode_query

        def similarity(self, a, b):
            return torch.nn.functional.normalize(a) @ torch.nn.functional.normalize(b).T

    evaluator = evaluation.InformationRetrievalEvaluator(
        *judged_texts(beir, ours), precision_recall_at_k=[10, 100], write_csv=False
    )
    evaluator.store_metrics_in_model_card_data = lambda *_: None
    theirs = evaluator(Model())
    embed = dense(vectors_of_texts)
    found = ours.score(ours.rank(embed))
    assert found == pytest.approx(
        {
            "ndcg_at_10": theirs["cosine_ndcg@10"],
            "mrr_at_10": theirs["cosine_mrr@10"],
            "recall_at_10": theirs["cosine_recall@10"],
            "recall_at_100": theirs["cosine_recall@100"],
        },
        abs=1e-12,
    )
    assert all(0 < value < 1 for value in found.values())


def judged_texts(folder, ours):
    """Returns the arguments of InformationRetrievalEvaluator."""
    corpus = json_lines(folder / "corpus.jsonl")
    texts = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in corpus}
    gains = {query: {id for id, x in ids.items() if x} for query, ids in ours._gains.items()}
    return ours.queries, texts, gains


@pytest.mark.slow
@pytest.mark.parity
def test_a_models_metrics_are_those_of_sentence_transformers(one_layer, tmp_path, capsys):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    beir = collection(tmp_path, plain=True)
    model = with_modules(one_layer, tmp_path / "model", {"query": "ab ", "document": "hij: "})
    flags = ["--model", str(model), "--retrieval_dir", str(beir), "--output"]
    assert search_command.main([*flags, str(tmp_path / "run.trec")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    evaluator = InformationRetrievalEvaluator(
        *judged_texts(beir, beir_collection(beir, "test")),
        precision_recall_at_k=[10, 100],
        write_csv=False,
    )
    theirs = evaluator(library.SentenceTransformer(str(model), device="cpu"))
    names = {"ndcg_at_10": "ndcg@10", "mrr_at_10": "mrr@10"}
    names |= {"recall_at_10": "recall@10", "recall_at_100": "recall@100"}
    expected = {ours: theirs[f"cosine_{name}"] for ours, name in names.items()}
    assert found == pytest.approx(expected, abs=1e-9)
    assert len((tmp_path / "run.trec").read_text().splitlines()) == 1100


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(20))
def test_metrics_are_those_of_pytrec_eval_by_the_rules_of_beir(seed, tmp_path, capsys):
    """Ties, grades, ids of queries in the corpus, missing passages, queries without a positive."""
    library = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(seed)
    names = [f"{i}" for i in rng.permutation(140)]
    corpus = [{"_id": id, "text": " ".join(rng.choice(WORDS, 2))} for id in names[:120]]
    queries = [{"_id": id, "text": " ".join(rng.choice(WORDS, 2))} for id in names[100:135]]
    write_rows(tmp_path / "corpus.jsonl", corpus)
    write_rows(tmp_path / "queries.jsonl", queries)
    judged, graded = {}, rng.integers(-1, 4) > 0
    for query in names[100:140]:
        for id in rng.choice(names[:125], rng.integers(1, 9), replace=False):
            grade = int(rng.integers(-1, 4 if graded else 2))
            judged.setdefault(query, {})[str(id)] = 0 if id == query else grade
    write_judgements(
        tmp_path, [(query, id, x) for query, ids in judged.items() for id, x in ids.items()]
    )
    keeps = bool(seed % 2)
    ours = beir_collection(tmp_path, "test", keep_same_id=keeps)
    found = ours.score(ours.rank(EMBED))

    x, y = (bag_of_words([row["text"] for row in rows]) for rows in (queries, corpus))
    x, y = (np.asarray(v / np.linalg.norm(v, axis=1, keepdims=True), np.float64) for v in (x, y))
    run = {
        query["_id"]: {
            passage["_id"]: round(float(score), 5)
            for passage, score in zip(corpus, scores, strict=True)
            if keeps or passage["_id"] != query["_id"]
        }
        for query, scores in zip(queries, x @ y.T, strict=True)
    }
    measures = {"ndcg_cut.10", "recip_rank", "recall.10,100"}
    theirs = library.RelevanceEvaluator(judged, measures).evaluate(run)
    assert theirs.keys() == set(names[100:135])
    measured = ("ndcg_cut_10", "recall_10", "recall_100")
    mean = {x: np.mean([row[x] for row in theirs.values()]) for x in measured}
    ranks = [row["recip_rank"] for row in theirs.values()]
    mean["mrr"] = np.mean([x if x >= 0.1 - 1e-9 else 0 for x in ranks])  # of the first ten
    values = (mean["ndcg_cut_10"], mean["mrr"], mean["recall_10"], mean["recall_100"])
    expected = dict(zip(found, values, strict=True))
    assert found == pytest.approx(expected, abs=1e-9)
    warnings = capsys.readouterr().err
    for count, what in (
        (5, "queries.jsonl (its _id, or --id_column), whose queries are left out"),
        (len({*names[120:125]} & {id for ids in judged.values() for id in ids}), "never found"),
        (sum(max(judged[id].values()) <= 0 for id in names[100:135]), "which count as 0"),
        (0 if keeps else 20, "with these ids are left out (see --keep_same_id)"),
    ):
        assert (f"{what}: {count}, such as" in warnings) == bool(count), (warnings, what)
    write_ranking(
        ours.rank(EMBED), ours.queries, tmp_path / "run.trec", 100
    )  # is sorted as trec_eval sorts it
    lines = [line.split() for line in (tmp_path / "run.trec").read_text().splitlines()]
    pairs = [(query, -float(score), id) for query, _, id, _, score, _ in lines]
    for before, after in itertools.pairwise(pairs):
        same = before[0] == after[0]
        assert not same or before[1] < after[1] or (before[1] == after[1] and before[2] > after[2])


@pytest.mark.parity
@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=WEEKLY)])
def test_graded_scores_of_random_collections_are_exactly_those_of_pytrec_eval(count, tmp_path):
    """Grades from 0 to 3, ties of scores, and passages that are in no file, bit for bit."""
    library = pytest.importorskip("pytrec_eval")
    measures = {"ndcg_cut.10", "recip_rank", "recall.10,100"}
    embed = {"query": bag_of_words, "document": bag_of_words}
    open_index = functools.partial(retrieval.DenseIndex, embed, cosine=False)
    ties = 0
    for seed in range(count):
        folder = tmp_path / str(seed)
        folder.mkdir()
        judged = graded_collection(folder, np.random.default_rng(seed))
        ours = beir_collection(folder, "test")
        ranking = ours.rank(kind_of(open_index))
        found = dict(zip(judged, ours.scores_of_queries(ranking), strict=True))
        theirs = library.RelevanceEvaluator(judged, measures).evaluate(ranking)
        for query, (ndcg, mrr, first, recall) in found.items():
            ties += len({*ranking[query].values()}) < len(ranking[query])
            expected = theirs[query]
            assert ndcg == expected["ndcg_cut_10"], (seed, query)
            assert first == expected["recall_10"], (seed, query)
            assert recall == expected["recall_100"], (seed, query)
            reciprocal = expected["recip_rank"]
            assert mrr == (reciprocal if reciprocal >= 0.1 else 0), (seed, query)
        means = np.mean([*found.values()], axis=0)
        assert [*ours.score(ranking).values()] == means.tolist()
        shutil.rmtree(folder)
    assert ties > 4 * count


def graded_collection(folder, rng):
    """Writes 40 passages and 5 queries; returns {query id: {passage id: grade}}."""
    ids = [f"{i}" for i in rng.permutation(100)]
    texts = [" ".join(rng.choice(WORDS, 3)) for _ in range(45)]
    rows = [{"_id": id, "text": text} for id, text in zip(ids, texts, strict=False)]
    write_rows(folder / "corpus.jsonl", rows[:40])
    write_rows(folder / "queries.jsonl", rows[40:])
    judged = {}
    for query in ids[40:45]:
        passages = rng.choice([*ids[:40], *ids[45:50]], rng.integers(1, 30), replace=False)
        grades = rng.integers(0, 4, len(passages)).tolist()
        judged[query] = dict(zip(map(str, passages), grades, strict=True))
    triples = [(query, id, x) for query, grades in judged.items() for id, x in grades.items()]
    write_judgements(folder, triples)
    return judged


@pytest.mark.parametrize("header", ["query-id\tcorpus-id\tscore", "qid\tQ0\tdocid\trel", None])
@pytest.mark.parametrize(
    ("query", "passage"),
    [
        ("_id", "_id"),
        ("id", "id"),
        ("qid", "pid"),
        ("query_id", "docid"),
        ("query-id", "corpus-id"),
        ("Question ID", "document_id"),
        ("topic_id", "docno"),
    ],
)
def test_usual_columns_of_ids_are_known(beir, query, passage, header, capsys):
    embed = dense(vectors_of_texts)
    expected = beir_collection(beir, "test").rank(embed)
    for name, column, other in (("queries", query, "doc_id"), ("corpus", passage, "query_id")):
        path = beir / f"{name}.jsonl"
        rows = json_lines(path)
        # The column of ids of the other kind is not meant, nor do numbers differ from texts.
        rows = [{other: 3, "metadata": {}, column: row.pop("_id"), **row} for row in rows]
        write_rows(path, rows)
    lines = (beir / "qrels" / "test.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    if header != "query-id\tcorpus-id\tscore":
        rows = [[query, "0", id, score] for query, id, score in rows]
    write_judgements(beir, rows, header=header or "")
    assert beir_collection(beir, "test").rank(embed) == expected
    assert capsys.readouterr().err == ""


def test_ids_are_numbers_or_texts_but_never_the_number_of_the_row(beir, tmp_path):
    rows = json_lines(beir / "corpus.jsonl")
    numbered = [{**row, "_id": int(row["_id"][1:])} for row in rows]
    write_rows(beir / "corpus.jsonl", numbered)
    lines = (beir / "qrels" / "test.tsv").read_text().replace("\td", "\t")
    (beir / "qrels" / "test.tsv").write_text(lines)
    assert beir_collection(beir, "test")._ids[0] == "99"
    for id, message in (
        (None, "has no text or whole number as '_id': add its id"),
        (" ", "has no text or whole number as '_id'"),
        ("NaN", "has no text or whole number as '_id'"),
        ("", "has no text or whole number as '_id'"),
        (1.5, "has no text or whole number as '_id'"),
        (True, "has no text or whole number as '_id'"),
        (["d1"], "has no text or whole number as '_id'"),
    ):
        write_rows(beir / "corpus.jsonl", [*numbered, {"_id": id, "text": "a"}])
        with pytest.raises(ValueError, match=rf"corpus.jsonl, row 131 {message}"):
            beir_collection(beir, "test")
    for columns, message in (
        ({}, r"has no column of ids \(columns: title, text\): name the one .* --id_column"),
        ({"mine": "a"}, r"has no column of ids \(columns: mine, title, text\)"),
        ({"query_id": "a"}, r"has no column of ids"),
        ({"id": "a", "docid": "b"}, r"has several columns of ids \(columns: id, docid, title"),
    ):
        write_rows(beir / "corpus.jsonl", [{**columns, "title": "", "text": "a"}])
        with pytest.raises(ValueError, match=message):
            beir_collection(beir, "test")


def test_other_columns_of_ids_are_named_by_a_flag(beir, capsys, monkeypatch):
    expected = beir_collection(beir, "test").rank(EMBED)
    for name in ("corpus", "queries"):
        rows = json_lines(beir / f"{name}.jsonl")
        write_rows(beir / f"{name}.jsonl", [{"mine": x.pop("_id"), "id": 1} | x for x in rows])
        with pytest.raises(ValueError, match=r"row 2: the id '1' occurs twice: make ids unique"):
            beir_collection(beir, "test")
        found = beir_collection(beir, "test", id_column="mine").rank(EMBED)  # of one or both files
        assert found == expected
    with pytest.raises(ValueError, match="no file has the column 'mind' of --id_column"):
        beir_collection(beir, "test", id_column="mind")
    kind = types.SimpleNamespace(open=None, metrics=dict, encoders={"document": None})
    monkeypatch.setattr("bertjax.weights.load_model", lambda *_: None)
    monkeypatch.setattr(pretrained, "Pretrained", lambda _: types.SimpleNamespace(loaded=None))
    monkeypatch.setattr(indexes, "index_of", lambda *_, **options: kind)
    monkeypatch.setattr(Collection, "rank", lambda *_, **options: expected)
    flags = ["--model", "m", "--retrieval_dir", str(beir), "--id_column", "mine", "--keep_same_id"]
    assert search_command.main(flags) == 0
    scores = beir_collection(beir, "test", id_column="mine").score(expected)
    assert json.loads(capsys.readouterr().out) == scores


def test_a_positive_with_the_id_of_its_query_is_refused_unless_such_ids_are_kept(tmp_path):
    write_rows(tmp_path / "corpus.jsonl", [{"id": i, "text": WORDS[i]} for i in range(3)])
    write_rows(tmp_path / "queries.jsonl", [{"id": i, "text": WORDS[i]} for i in range(3)])
    write_judgements(tmp_path, [(0, 0, 1), (1, 2, 1)])
    with pytest.raises(ValueError, match=r"'0' is that of a query and of its positive.*--keep_sam"):
        beir_collection(tmp_path, "test")
    ours = beir_collection(tmp_path, "test", keep_same_id=True)
    assert ours.score({"0": ["0"], "1": ["1", "2"]})["mrr_at_10"] == 0.75


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1\td1\tnan", r"test.tsv, row 25 is no judgement .*: give a header with query-id"),
        ("q1\td1", r"test.tsv, row \d+ is no judgement"),
        ("q1 d1 1 0 0", r"test.tsv, row \d+ is no judgement"),
        ("q1,d1,1", r"test.tsv, row \d+ is no judgement"),
        (" \td1\t1", r"test.tsv, row \d+ is no judgement"),
        ("q1\tnan\t1", r"test.tsv, row \d+ is no judgement"),
        ("query-id\tcorpus-id\tscore", r"test.tsv, row 25 is no judgement \(query-id"),
    ],
)
def test_bad_judgements_are_refused(beir, line, message):
    with (beir / "qrels" / "test.tsv").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        beir_collection(beir, "test")


def test_contradicting_judgements_and_ids_of_no_file_are_refused(beir):
    write_judgements(beir, [("q1", "d1", 1), ("q1", "d1", 1), ("q1", "d1", 0)])
    with pytest.raises(ValueError, match=r"test.tsv, row 4 judges 'd1' again: keep one row"):
        beir_collection(beir, "test")
    for header in (
        *("corpus-id\tquery-id\tscore", "a\tb\tc", "query-id\tcorpus-id"),
        *("query-id\tlang\tcorpus-id\tscore", "query-id\tcorpus-id\tscore\tlang"),
    ):
        write_judgements(beir, [("d1", "q1", 1)], header=header)
        with pytest.raises(ValueError, match="test.tsv, row 1 is no judgement .* in this order"):
            beir_collection(beir, "test")
    for row, what, path in ((("d1", "q1", 1), "query", "queries"), (("q1", "x", 1), "corpus", "")):
        write_judgements(beir, [row])
        with pytest.raises(
            ValueError, match=rf"test.tsv: no {what}-id, .*{path or what}.jsonl: ch"
        ):
            beir_collection(beir, "test")
    write_judgements(beir, [])
    with pytest.raises(ValueError, match="test.tsv has no judgements: check the file"):
        beir_collection(beir, "test")


def test_ids_that_occur_twice_and_rows_without_a_text_are_refused(beir):
    path = beir / "corpus.jsonl"
    lines = path.read_text()
    path.write_text(lines + lines.splitlines()[0] + "\n")
    with pytest.raises(ValueError, match=r"corpus.jsonl, row 131: the id 'd\d+' occurs twi"):
        beir_collection(beir, "test")
    path.write_text(lines + '{"_id": "x", "text": null}\n')
    with pytest.raises(ValueError, match=r"row 131 has no text as 'text' .columns: _id, .*text"):
        beir_collection(beir, "test")
    path.write_text('{"_id": "d1", "body": "ab"}\n')
    with pytest.raises(
        ValueError, match=r"row 1 has no text as 'text' .columns: _id, body.: add it, or"
    ):
        beir_collection(beir, "test")


def test_texts_that_are_empty_or_missing_and_columns_that_are_not_read_are_named(beir, capsys):
    rows = json_lines(beir / "corpus.jsonl")
    names = {"headline": "Ann", "url": "a.org", "metadata": {}, "Title": "x"}
    rows = [row | names for row in rows]
    for index, text in ((3, ""), (7, "NaN"), (9, "\\N")):
        rows[index] |= {"title": "", "text": text}
    rows[11] |= {"title": "a title", "text": ""}
    write_rows(beir / "corpus.jsonl", rows)
    beir_collection(beir, "test").rank(EMBED)
    lines = [line for line in capsys.readouterr().err.splitlines() if "corpus.jsonl" in line]
    assert len(lines) == 2
    assert lines[0].endswith(
        "rows whose text is empty, or NaN, None and the like: 3, such as 'row 4, id d119'"
    )
    assert "columns that are not read (headline, url, Title): 3, such as " in lines[1]


def test_the_only_judgements_serve_for_another_split_with_a_line_that_says_so(beir, capsys):
    asked = beir_collection(beir, "test")
    assert "judgements of" not in capsys.readouterr().err
    found = beir_collection(beir, "dev", or_only=True)
    assert found.queries == asked.queries
    assert "qrels/test.tsv, the only file there" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"qrels needs one file dev.tsv, but holds .'test.tsv'.: "):
        beir_collection(beir, "dev")


class Counting:
    """An encoder that tells the progress after each text."""

    def __init__(self):
        self.counts = []
        self.after_batch = self.counts.append

    def __call__(self, texts):
        for _ in texts:
            self.after_batch(1)
        return bag_of_words(texts)


def test_progress_counts_the_passages_batch_by_batch_and_others_are_still_called(beir, monkeypatch):
    shown = []
    monkeypatch.setattr(Progress, "advance", lambda state, count=1: shown.append(state.total))
    encoder = Counting()
    before = encoder.after_batch
    embed = {"query": bag_of_words, "document": encoder}
    open_index = functools.partial(retrieval.DenseIndex, embed, cosine=True)
    ours = beir_collection(beir, "test")
    assert ours.rank(IndexKind({"document": encoder}, open_index)) == ours.rank(EMBED)
    assert shown == [130] * 130 and encoder.counts == [1] * 130
    assert encoder.after_batch == before


def test_a_title_of_a_query_is_not_read_as_in_beir(beir):
    expected = beir_collection(beir, "test").rank(EMBED)
    rows = json_lines(beir / "queries.jsonl")
    write_rows(beir / "queries.jsonl", [row | {"title": WORDS[0]} for row in rows])
    assert beir_collection(beir, "test").rank(EMBED) == expected


@pytest.mark.parametrize("id", ["", " ", None, 1.5, True, ["d1"]])
@pytest.mark.parametrize("name", ["corpus", "queries"])
def test_an_id_that_is_none_is_refused_with_its_row(beir, id, name):
    rows = json_lines(beir / f"{name}.jsonl")
    rows[4]["_id"] = id
    write_rows(beir / f"{name}.jsonl", rows)
    with pytest.raises(ValueError, match=f"{name}.jsonl, row 5 has no text or whole number"):
        beir_collection(beir, "test")


def test_queries_must_have_texts(beir):
    rows = json_lines(beir / "queries.jsonl")
    for text in ("", " ", "\u200b"):
        write_rows(beir / "queries.jsonl", [*rows, {"_id": "x", "text": text}])
        with pytest.raises(ValueError, match=r"queries.jsonl, row 13 has an empty text: fill it"):
            beir_collection(beir, "test")


def test_names_of_columns_are_read_in_any_case(beir):
    expected = [x.whole for x in retrieval.read_passages(beir / "corpus.jsonl")]
    rows = json_lines(beir / "corpus.jsonl")
    rows = [{"_id": row["_id"], "Title": row["title"], "TEXT": row["text"]} for row in rows]
    write_rows(beir / "corpus.jsonl", rows)
    assert [x.whole for x in retrieval.read_passages(beir / "corpus.jsonl")] == expected
