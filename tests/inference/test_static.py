"""Static embeddings: made, written, read, trained, and equal to those of sentence-transformers."""

import json
import shutil

import numpy as np
import pytest
import tokenizers

import bertjax
from bertjax.base.checksums import CHECKSUMS
from bertjax.convert import main as convert
from bertjax.inference.static import principal_components, static_table, zipf_weights
from bertjax.search import main as search
from bertjax.tokenization import ByteLevelBPETokenizer, UnigramTokenizer, WordPieceTokenizer
from bertjax.tokenization.base import numbered
from bertjax.tokenization.static import StaticTokenizer
from tests.inference.test_retrieval import collection
from tests.lines import json_lines

TEXTS = ["ab bc [MASK] cd", "", "ef gh " * 700, "hij"]


@pytest.fixture(scope="module")
def static(one_layer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("static") / "model"
    assert convert([str(one_layer), str(folder), "--to", "static"]) == 0
    return folder


def test_a_table_is_the_weighted_means_of_tokens_alone(one_layer):
    model = bertjax.load_pretrained(one_layer)
    table, tokenizer = static_table(model)
    own = model.tokenizer
    kept = [token for token in own.tokens if token not in ("[CLS]", "[SEP]", "[MASK]")]
    assert tokenizer.tokens == kept and kept[0] == "[PAD]"
    ids = [[own.cls_token_id, own.vocab[token], own.sep_token_id] for token in kept]
    means = model(input_ids=np.array(ids))["last_hidden_state"].mean(1)
    centred = means - means.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    weights = 1e-4 / (
        1e-4 + 1 / np.arange(2, len(kept) + 2) / np.sum(1 / np.arange(2, len(kept) + 2))
    )
    expected = np.abs(centred @ axes.T)[:, :8] * weights[:, None]
    np.testing.assert_allclose(np.abs(table[:, :8]), expected, atol=1e-4)


def test_components_have_signs_and_weights_grow_with_ranks():
    vectors = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    found = principal_components(vectors, 3)
    assert found.shape == (50, 3) and (found.max(0) >= -found.min(0)).all()
    assert np.array_equal(principal_components(vectors[:3], 3), vectors[:3])
    weights = zipf_weights(1000)
    assert (np.diff(weights) > 0).all() and 0 < weights[0] < weights[-1] < 1


@pytest.mark.slow
@pytest.mark.parity
def test_tables_are_those_of_model2vec(one_layer, tmp_path):
    distill = pytest.importorskip("model2vec.distill")
    expected = distill.distill(str(one_layer), device="cpu", quantize_to="float32", pca_dims=16)
    model = bertjax.load_pretrained(one_layer)
    table, tokenizer = static_table(model)
    assert expected.tokens == tokenizer.tokens
    np.testing.assert_allclose(table[:, :16], expected.embedding, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parity
def test_sentence_transformers_reads_the_same_embeddings_and_we_its_own(static, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    ours = bertjax.load_pretrained(static)
    theirs = library.SentenceTransformer(str(static), device="cpu")
    np.testing.assert_allclose(ours.embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    pair = ours.predict([(TEXTS[0], TEXTS[2])])[0]["similarity"]
    vectors = theirs.encode(TEXTS)
    assert pair == pytest.approx(float(theirs.similarity(vectors[:1], vectors[2:3])), abs=1e-5)
    from sentence_transformers.sentence_transformer.modules import Dense, StaticEmbedding

    table = np.random.default_rng(0).normal(size=(ours.config.vocab_size, 12))
    backend = tokenizers.Tokenizer.from_file(str(static / "tokenizer.json"))
    modules = [StaticEmbedding(backend, embedding_weights=table.astype(np.float32)), Dense(12, 5)]
    other = library.SentenceTransformer(
        modules=modules, device="cpu", prompts={"query": "ab "}, similarity_fn_name="dot"
    )
    other.save_pretrained(str(tmp_path / "other"))
    read = bertjax.load_pretrained(tmp_path / "other")
    for prompt in ("query", "document"):
        expected = getattr(other, f"encode_{prompt}")(TEXTS)
        np.testing.assert_allclose(read.embed(TEXTS, prompt=prompt), expected, atol=1e-5)
    read.save(tmp_path / "again")
    again = library.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), other.encode(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_model2vec_folds_weights_and_mapping_into_a_table(static, tmp_path):
    import safetensors.numpy

    shutil.copytree(static, tmp_path / "m")
    (tmp_path / "m" / CHECKSUMS).unlink()
    (tmp_path / "m" / "config.json").unlink()
    file = tmp_path / "m" / "model.safetensors"
    table = safetensors.numpy.load_file(file)["embedding.weight"]
    order = np.random.default_rng(0).permutation(len(table))
    weights = np.linspace(0.5, 2, len(table), dtype=np.float32)
    tensors = {
        "embeddings": (table / weights[:, None])[order].astype(np.float32),
        "mapping": np.argsort(order),
        "weights": weights,
    }
    safetensors.numpy.save_file(tensors, file)
    found = bertjax.load_pretrained(tmp_path / "m").embed(TEXTS)
    np.testing.assert_allclose(found, bertjax.load_pretrained(static).embed(TEXTS), atol=1e-6)


@pytest.mark.slow
def test_static_embeddings_search_and_are_trained_on(static, tmp_path, sentences, capsys):
    beir = collection(tmp_path, plain=True)
    assert search(["--model", str(static), "--retrieval_dir", str(beir)]) == 0
    before = json.loads(capsys.readouterr().out.splitlines()[-1])
    corpus = {row["_id"]: row["text"] for row in json_lines(beir / "corpus.jsonl")}
    assert len(corpus) == 130 and 0 < before["ndcg_at_10"] < 1
    pairs = [
        {"anchor": text, "positive": other}
        for text, other in zip(sentences[:40], sentences[40:80], strict=True)
    ]
    result = bertjax.finetune(
        task="embed",
        train=pairs,
        init=str(static),
        workdir=str(tmp_path / "run"),
        num_epochs=3,
        batch_size=20,
        optimizer={"learning_rate": 0.01},
    )
    losses = [row["train/loss"] for row in result.metrics if "train/loss" in row]
    trained = bertjax.load_pretrained(result.directory)
    assert not np.allclose(trained.embed(TEXTS), bertjax.load_pretrained(static).embed(TEXTS))
    assert losses and trained.config.is_static
    with pytest.raises(ValueError, match="cannot have the head 'sequence_classification'"):
        bertjax.load_pretrained(static, "sequence_classification")


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_special_tokens_leave_every_kind_of_tokenizer(kind, tmp_path):
    letters = [*"abcdef"]
    if kind == "wordpiece":
        first = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        own = WordPieceTokenizer(numbered([*first, *letters]), do_lower_case=True)
    elif kind == "unigram":
        pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        pieces += [(f"▁{x}", -1.0) for x in letters] + [("<mask>", 0.0)]
        own = UnigramTokenizer(
            pieces,
            tokenizer_class="XLMRobertaTokenizer",
            charsmap=b"",
            do_lower_case=False,
            keep_accents=True,
        )
    else:
        first = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
        vocab = {token: i for i, token in enumerate([*first, *letters, "Ġ", "Ġa"])}
        own = ByteLevelBPETokenizer(vocab, [("Ġ", "a")], add_prefix_space=False)
    static, ids = StaticTokenizer.of(own, 100)
    assert [own.tokens[i] for i in ids] == static.tokens
    assert len(static.tokens) == len(own.tokens) - 3 - (kind == "wordpiece")
    static.save(tmp_path)
    again = StaticTokenizer.load(tmp_path / "tokenizer.json", 100)
    text = "a b" if kind != "bpe" else "ab"
    expected = [own.tokens[i] for i in own.encode_after_space([text])[0]]
    for tokenizer in (static, again):
        found = tokenizer.encode_prompts([text, ""], 100)
        assert [tokenizer.tokens[i] for i in found[0]] == expected and found[1] == []


def test_what_static_embeddings_lack_is_refused(static, tmp_path, one_layer, capsys):
    flags = [str(one_layer), str(tmp_path / "m"), "--to", "static", "--verify"]
    assert convert(flags) == 1
    assert "--verify has no effect" in capsys.readouterr().err
    shutil.copytree(static, tmp_path / "s")
    (tmp_path / "s" / CHECKSUMS).unlink()
    (tmp_path / "s" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no model.safetensors"):
        bertjax.load_pretrained(tmp_path / "s")
