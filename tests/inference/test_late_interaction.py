"""Search by MaxSim is exact, whatever the blocks, and interrupted files are continued."""

import math
from typing import Any

import numpy as np
import pytest

import bertjax
from bertjax import embed
from bertjax.inference import embedder, late_interaction
from bertjax.inference.indexes import encoder_of
from bertjax.inference.late_interaction import PartialTokens, TokenFile, TokenIndex, search
from bertjax.tasks.late_interaction import TokenPooling, maxsim, pool_tokens
from bertjax.weights.load import load_model

SIZE = 16


def vectors(rng, lengths):
    texts = []
    for length in lengths:
        x = rng.normal(size=(length, SIZE)).astype(np.float32)
        texts.append(x / np.linalg.norm(x, axis=1, keepdims=True))
    return texts


def file_of(folder, texts):
    file = TokenFile(folder, len(texts), SIZE)
    rows = np.random.default_rng(1).permutation(len(texts))
    for part in np.array_split(rows, 3):
        file.write(part, [texts[row] for row in part])
    return file


def brute(queries, texts, k, mean=False):
    scores = np.empty((len(queries), len(texts)))
    for row, query in enumerate(queries):
        for column, text in enumerate(texts):
            score = (query @ text.T).max(1).sum() if len(text) else -1e9
            scores[row, column] = score / max(len(query), 1) if mean else score
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), order


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.slow)])
def test_search_equals_brute_force(count, mean, tmp_path, monkeypatch):
    monkeypatch.setattr(late_interaction, "PASSAGE_TOKENS", 512 if count == 60 else 16384)
    monkeypatch.setattr(late_interaction, "QUERY_TOKENS", 64)
    rng = np.random.default_rng(0)
    texts = vectors(rng, rng.integers(0, 40, count))
    texts[7] = texts[3]  # equal scores: the lower place comes first
    queries = vectors(rng, [5, 20, 1, 32, 9])
    expected, places = brute(queries, texts, 20, mean)
    scores, indices = search(queries, file_of(tmp_path, texts), 20, mean=mean)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    np.testing.assert_array_equal(indices, places)
    np.testing.assert_allclose(
        maxsim(queries, texts, mean=mean)[0, places[0]], expected[0], atol=1e-5
    )


def test_texts_that_a_kill_left_unfinished_are_written_again(tmp_path):
    texts = vectors(np.random.default_rng(0), [3, 0, 5, 2])
    TokenFile(tmp_path, 4, SIZE).write(np.arange(2), texts[:2])
    with (tmp_path / "vectors.f32").open("ab") as file:
        file.write(b"half a vector")
    file = TokenFile(tmp_path, 4, SIZE)
    file.write(np.arange(2, 4), texts[2:])
    file.write(np.arange(2, 4), texts[2:])
    np.testing.assert_array_equal(file.vectors(), np.concatenate(texts))
    assert file.places()[:, 1].tolist() == [3, 3, 8, 10]


def test_an_index_scores_passages_as_its_search_does(tmp_path):
    rng = np.random.default_rng(0)
    texts = vectors(rng, rng.integers(1, 9, 12))

    class Embed:
        size = SIZE

        def __call__(self, places):
            return [texts[int(place)] for place in places]

    embed: Any = {"query": Embed(), "document": Embed()}
    index = TokenIndex(embed, tmp_path, 12, mean=False)
    index.add(np.arange(12), [*map(str, range(12))])
    scores, places = index.search(["4", "5"], 12)
    for row, of_query in enumerate(index.scores(["4", "5"], places.tolist())):
        np.testing.assert_allclose(of_query, scores[row], atol=1e-6)
    texts[3] = np.full_like(texts[3], np.nan)
    index.add(np.arange(3, 12), [*map(str, range(3, 12))])
    with pytest.raises(ValueError, match="query 0"):
        index.search(["4"], 12)


def test_pooling_averages_similar_vectors():
    (x,) = vectors(np.random.default_rng(0), [3])
    repeated = np.concatenate([x[:1], np.repeat(x[1:], 4, axis=0)])
    pooled = pool_tokens(repeated, TokenPooling(4.0))
    assert len(pooled) == 3
    np.testing.assert_allclose(np.sort(pooled, axis=0), np.sort(x, axis=0), atol=1e-6)
    np.testing.assert_array_equal(pool_tokens(x, TokenPooling(1.0, normalize=False)), x)


@pytest.mark.parametrize(
    ("prompt", "factor", "message"),
    [(None, 0.5, "pool_factor=0.5"), (None, math.nan, "pool_factor=nan"), ("query", 2, "queries")],
)
def test_factors_that_pool_nothing_are_refused(prompt, factor, message, one_layer, tmp_path):
    bertjax.load_pretrained(one_layer, head="late_interaction").save(tmp_path / "colbert")
    loaded = load_model(tmp_path / "colbert", None)
    with pytest.raises(ValueError, match=message):
        encoder_of(loaded, prompt=prompt, pool_factor=factor)


@pytest.mark.slow
def test_embed_writes_vectors_with_their_offsets_and_continues(
    one_layer, sentences, tmp_path, monkeypatch, capsys
):
    directory = tmp_path / "model"
    bertjax.load_pretrained(one_layer, head="late_interaction").save(directory)
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(sentences[:9]) + "\n")
    output = tmp_path / "vectors.npz"
    flags = ["--model", str(directory), "--input", str(source)]
    monkeypatch.setattr(embedder, "WINDOW", 4)
    write, calls = PartialTokens.write, []

    def stops(self, vectors):
        calls.append(len(vectors))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(self, vectors)

    with monkeypatch.context() as patch:
        patch.setattr(PartialTokens, "write", stops)
        assert embed.main([*flags, "--output", str(output)]) != 0
    assert not output.exists()
    assert embed.main([*flags, "--output", str(output)]) == 0
    assert "after 4 texts" in capsys.readouterr().out
    arrays = np.load(output)
    model = bertjax.load_pretrained(directory)
    expected = model.token_vectors(sentences[:9])
    ends = np.cumsum([len(x) for x in expected])
    assert arrays["offsets"].tolist() == [0, *ends] and arrays["vectors"].dtype == np.float32
    np.testing.assert_allclose(arrays["vectors"], np.concatenate(expected), atol=1e-6)
    assert embed.main([*flags, "--output", str(tmp_path / "a.npy")]) == 1
    assert ".npz" in capsys.readouterr().err
    assert embed.main([*flags, "--output", str(output), "--normalize"]) == 1
    assert "normalize=True" in capsys.readouterr().err
