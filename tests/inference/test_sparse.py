"""Sparse embeddings in files and in exact search: equal to NumPy's and SciPy's, and resumable."""

import json

import numpy as np
import pytest
from scipy import sparse

import bertjax
from bertjax import embed, mine, search
from bertjax.base.outputs import check_replaceable
from bertjax.inference import embedder, indexes
from bertjax.inference import sparse as module
from bertjax.inference.sparse import PartialWeights, SparseIndex, search_blocks
from bertjax.tasks.sparse import Activity, most_active, normalized
from bertjax.weights import load_model, save_hf
from bertjax.weights.sentence_transformers import Read
from bertjax.weights.sparse_modules import NO_FILES, SparseModules, sparse_files
from tests.inference.test_retrieval import collection
from tests.lines import json_lines


def random_weights(rng, texts, words, share=0.05):
    weights = sparse.random_array((texts, words), density=share, rng=rng, dtype=np.float32)
    return weights.tocsr()


def blocks_of(passages, places, size):
    for start in range(0, passages.shape[0], size):
        rows = slice(start, start + size)
        yield passages[rows].T.tocsr(), places[rows]


@pytest.mark.parametrize("signed", [False, True])
def test_blocks_find_what_sorting_all_products_finds(signed):
    rng = np.random.default_rng(0)
    passages = random_weights(rng, 5000, 300, 0.02)
    passages.data = np.ceil(passages.data * 3)  # whole numbers, so that many scores are equal
    queries = random_weights(rng, 40, 300, 0.03)
    queries.data = np.ceil(queries.data * 3)
    if signed:
        queries.data[::3] *= -1
    queries = sparse.vstack([queries, sparse.csr_array((1, 300), dtype=np.float32)]).tocsr()
    places = rng.permutation(5000)
    scores, found = search_blocks(queries, blocks_of(passages, places, 512), 100)
    exact = np.zeros((41, 5000), np.float32)
    exact[:, places] = (queries @ passages.T).toarray()
    expected = np.argsort(-exact, axis=1, kind="stable")[:, :100]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(exact, expected, 1))


class _Words:
    """Gives the texts "3" the row 3 of some weights, in place of a model."""

    def __init__(self, weights):
        self._weights = weights

    def __call__(self, texts):
        return self._weights[[int(text) for text in texts]]


@pytest.mark.parametrize("cosine", [False, True])
def test_an_index_finds_what_a_dense_product_finds(tmp_path, monkeypatch, cosine):
    monkeypatch.setattr(module, "QUERIES", 4)
    monkeypatch.setattr(module, "PASSAGES", 32)
    rng = np.random.default_rng(0)
    passages, queries = random_weights(rng, 150, 80, 0.2), random_weights(rng, 10, 80, 0.2)
    embed = {"query": _Words(queries), "document": _Words(passages)}
    index = SparseIndex(embed, tmp_path, 150, cosine=cosine)
    places = rng.permutation(150)
    for start in (0, 100, 100):  # one block is written again
        index.add(places[start : start + 100], [*map(str, range(150))][start : start + 100])
    x, y = queries.toarray(), np.zeros((150, 80), np.float32)
    y[places] = passages.toarray()
    if cosine:
        x, y = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (x, y))
    exact = x @ y.T
    scores, found = index.search([*map(str, range(10))], 20)
    np.testing.assert_allclose(scores, -np.sort(-exact)[:, :20], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(exact, found, 1), scores, atol=1e-6)
    wanted = [[3, 140, 3], [], [7]]
    values = index.scores(["0", "1", "2"], wanted)
    for row, (of_query, expected) in enumerate(zip(values, wanted, strict=True)):
        np.testing.assert_allclose(of_query, exact[row, expected], atol=1e-6)
    passages.data[0] = np.nan
    index.add(places[:100], [*map(str, range(100))])
    with pytest.raises(ValueError, match=r"scores of query \d+ \(from 0\) are not finite"):
        index.search([*map(str, range(10))], 20)


def test_the_most_active_words_are_those_of_the_largest_weights():
    rows = np.array([[3, -4, 0, 1], [0, 0, 2, 0], [0, 0, 0, 0]], np.float32)
    kept = most_active(sparse.csr_array(rows), 2).toarray()
    np.testing.assert_array_equal(kept, [[3, -4, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(most_active(sparse.csr_array(rows), None).toarray(), rows)
    lengths = np.linalg.norm(normalized(sparse.csr_array(rows)).toarray(), axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 0], rtol=1e-6)


def test_flops_are_the_mean_number_of_words_in_common():
    rng = np.random.default_rng(0)
    queries, documents = random_weights(rng, 7, 30, 0.3), random_weights(rng, 9, 30, 0.3)
    activity = Activity()
    assert activity.metrics() == {}
    activity.add("query", queries)
    for row in range(9):
        activity.add("document", documents[[row]])
    x, y = queries.toarray() != 0, documents.toarray() != 0
    common = (x[:, None] & y[None]).sum(-1).mean()
    values = {"query_active_dims": x.sum(1).mean(), "document_active_dims": y.sum(1).mean()}
    assert activity.metrics() == pytest.approx(values | {"flops": common})


@pytest.fixture(scope="module")
def splade(tmp_path_factory, one_layer):
    """A sparse encoder with static weights of queries."""
    loaded = load_model(one_layer, "sparse", head_fields={"static_queries": True})
    read = Read(NO_FILES._replace(sparse=SparseModules(max_active_dims=30)))
    files = sparse_files(loaded.model, loaded.params, 30, read, loaded.tokenizer)
    folder = tmp_path_factory.mktemp("splade") / "model"
    save_hf(folder, loaded.params, loaded.config, loaded.tokenizer, head="sparse", files=files)
    return folder


@pytest.fixture
def texts(tmp_path, sentences):
    lines = [*sentences[:30], "", sentences[3]]
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in lines))
    return lines


def test_embed_writes_scipy_files_and_lines_and_continues(
    splade, texts, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(embedder, "WINDOW", 8)
    flags = ["--model", str(splade), "--input", str(tmp_path / "texts.txt"), "--output"]
    output = tmp_path / "weights.npz"
    write, calls = PartialWeights.write, 0

    def stops(self, weights):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return write(self, weights)

    with monkeypatch.context() as patch:
        patch.setattr(PartialWeights, "write", stops)
        embed.main([*flags, str(output)])
    assert not output.exists()
    capsys.readouterr()
    assert embed.main([*flags, str(output)]) == 0
    out = capsys.readouterr().out
    assert "after 16 texts" in out and "32 vectors of dimension" in out
    expected = bertjax.load_pretrained(splade).embed(texts)
    found = sparse.load_npz(output)
    assert found.format == "csr" and found.dtype == np.float32
    assert np.diff(found.indptr).max() == 30
    np.testing.assert_allclose(found.toarray(), expected.toarray(), atol=1e-5)
    lines = tmp_path / "weights.jsonl"
    assert embed.main([*flags, str(lines), "--max_active_dims", "3"]) == 0
    tokens = bertjax.load_pretrained(splade).tokenizer.tokens
    for row, line in zip(expected.toarray(), json_lines(lines), strict=True):
        best = np.argsort(-row, kind="stable")[:3]
        assert list(line) == [tokens[place] for place in best]
        np.testing.assert_allclose([*line.values()], row[best], atol=1e-5)
    for path in (output, lines):  # the same command may write them again
        check_replaceable("output", path)
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt", output.name, lines.name}


def test_formats_and_options_of_other_embeddings_are_refused(splade, texts, tmp_path, capsys):
    flags = ["--model", str(splade), "--input", str(tmp_path / "texts.txt"), "--output"]
    assert embed.main([*flags, str(tmp_path / "x.npy")]) != 0
    assert "must end in .npz, .jsonl" in capsys.readouterr().err
    assert embed.main([*flags, str(tmp_path / "x.npz"), "--truncate_dim", "3"]) != 0
    assert "truncate_dim=3" in capsys.readouterr().err


def test_search_and_mine_rank_by_products(splade, tmp_path, capsys):
    folder = tmp_path / "beir"
    folder.mkdir()
    collection(folder)
    run = tmp_path / "run.jsonl"
    flags = ["--model", str(splade), "--retrieval_dir", str(folder), "--output", str(run)]
    assert search.main([*flags, "--top_k", "5", "--max_active_dims", "20"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {"ndcg_at_10", "query_active_dims", "document_active_dims", "flops"} <= scores.keys()
    model = bertjax.load_pretrained(splade)
    corpus = json_lines(folder / "corpus.jsonl")
    passages = [f"{row['title']} {row['text']}".strip() for row in corpus]
    documents = model.embed(passages, prompt="document", max_active_dims=20).toarray()
    for line in json_lines(run):
        (query,) = model.embed([line["query"]], prompt="query", max_active_dims=20).toarray()
        best = np.sort(documents @ query)[::-1][:5]
        np.testing.assert_allclose([hit["score"] for hit in line["ranking"]], best, atol=1e-4)
    rows = [{"query": f"abc {i}", "positive": passages[i]} for i in range(5)]
    queries = tmp_path / "pairs.jsonl"
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mined = tmp_path / "mined.jsonl"
    flags = ["--queries", str(queries), "--corpus", str(folder / "corpus.jsonl")]
    assert mine.main(["--model", str(splade), *flags, "--output", str(mined)]) == 0
    line = json_lines(mined)[0]
    documents = model.embed([line["positive"], *line["negatives"]], prompt="document").toarray()
    (query,) = model.embed([line["query"]], prompt="query").toarray()
    np.testing.assert_allclose(line["scores"], documents @ query, atol=1e-4)


def test_a_similarity_that_is_no_product_is_not_searched(splade):
    loaded = load_model(splade, "encoder")
    usage = loaded.source.usage
    modules = usage.modules.result()._replace(similarity="euclidean")
    source = loaded.source._replace(usage=usage._replace(modules=Read(modules)))
    with pytest.raises(ValueError, match="similarity_fn_name=euclidean"):
        indexes.index_of(loaded._replace(source=source))
