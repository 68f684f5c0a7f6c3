"""Directories of sparse encoders mean here what they mean in sentence-transformers, both ways.

Each case is a directory with random settings that sentence-transformers has saved, or that bertjax
has written. Its own embeddings are the reference.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import bertjax
from bertjax import convert
from bertjax.inference.sparse import SparseEmbedder
from bertjax.model import sparse_embedding
from bertjax.weights import load_model
from bertjax.weights.sentence_transformers import Read
from bertjax.weights.sparse_modules import SparseModules, following_sparse, sparse_files
from tests.cases import WEEKLY

FAMILIES = ("bert", "roberta", "deberta-v2", "modernbert")
ROLES = ("query", "document", None)
MANY = [
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8)),
    *(pytest.param(seed, marks=WEEKLY) for seed in (1, 2, 3, *range(8, 40))),
]


@pytest.fixture(scope="module")
def library():
    pytest.importorskip("torch", reason="the extra `parity` is not installed")
    return pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory, tiny_family, tokenizer, written):
    """family -> a directory of a masked LM with random weights."""
    folders = {}

    def make(family):
        if family not in folders:
            ids = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_token_id}
            if family == "roberta":
                ids["position_offset"] = tokenizer.pad_token_id + 1
            config = tiny_family(family, **ids)
            folder = tmp_path_factory.mktemp("family") / "model"
            folders[family] = written(folder, config, "masked_lm", tokenizer, spread=0.4)
        return folders[family]

    return make


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(sparse_embedding, "BLOCK", 32)


@pytest.fixture(scope="module")
def texts(sentences):
    long = " ".join(sentences[:12])
    return [*sentences[:5], "", "A Bc [MASK] " + sentences[6], long, "hij"]


def saved_by_the_library(library, source, folder, seed):
    """Saves a sparse encoder with random settings; returns its folder."""
    import torch
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder import SparseEncoder
    from sentence_transformers.sparse_encoder import modules as kinds

    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    settings = {}
    if rng.random() < 0.4:
        settings["query_length"] = int(rng.integers(4, 9))
    if rng.random() < 0.4:
        settings["document_length"] = int(rng.integers(4, 20))
    if rng.random() < 0.3:
        settings["processor_kwargs"] = {"model_max_length": int(rng.integers(8, 40))}
    transformer = Transformer(str(source), transformer_task="fill-mask", **settings)
    pooling = kinds.SpladePooling(
        str(rng.choice(["max", "sum"])), str(rng.choice(["relu", "log1p_relu"]))
    )
    modules = [transformer, pooling]
    if rng.random() < 0.4:
        size = len(transformer.tokenizer.get_vocab())
        weights = torch.randn(size) * (torch.rand(size) < 0.8)
        static = kinds.SparseStaticEmbedding(
            transformer.tokenizer, weights, frozen=bool(rng.integers(2))
        )
        route = [None, "document", "query"][rng.integers(3)]
        modules = [Router.for_query_document([static], modules, default_route=route)]
    options = {}
    if rng.random() < 0.4:
        options["max_active_dims"] = int(rng.integers(1, 60))
    if rng.random() < 0.5:
        options["prompts"] = {"query": "abc de: ", "document": "hij: ", "other": "fg "}
        options["default_prompt_name"] = [None, "other", "query"][rng.integers(3)]
    model = SparseEncoder(
        modules=modules,
        similarity_fn_name=str(rng.choice(["dot", "cosine", "euclidean"])),
        **options,
    )
    model.save_pretrained(str(folder))
    if len(modules) == 2 and rng.random() < 0.3:  # as version 5 wrote it
        rows = json.loads((folder / "modules.json").read_text())
        rows[0]["type"] = "sentence_transformers.sparse_encoder.models.MLMTransformer"
        (folder / "modules.json").write_text(json.dumps(rows))
        old = {"max_seq_length": 20, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(old))
    return folder


def compare(library, folder, texts):
    from sentence_transformers.sparse_encoder import SparseEncoder

    theirs = SparseEncoder(str(folder), device="cpu")
    ours = bertjax.load_pretrained(folder)
    encode = {"query": theirs.encode_query, "document": theirs.encode_document}
    for role in ROLES:
        expected = encode.get(role, theirs.encode)(texts).to_dense().numpy()
        found = ours.embed(texts, prompt=role).toarray()
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, atol=1e-5 * scale)
        differs = (found != 0) != (expected != 0)
        # A word may be active in one of both if its weight is nothing but rounding.
        assert not differs.any() or np.abs(found - expected)[differs].max() < 1e-6 * scale


@pytest.mark.parity
@pytest.mark.parametrize("seed", [0, *MANY])
def test_directories_of_the_library_have_its_embeddings_here(
    library, masked_lm, tmp_path, texts, seed
):
    source = masked_lm(FAMILIES[seed % 4])
    folder = saved_by_the_library(library, source, tmp_path / "model", seed)
    compare(library, folder, texts)
    if seed % 5 == 0:  # what is copied stays the same
        bertjax.load_pretrained(folder).save(tmp_path / "saved")
        convert.main([str(folder), str(tmp_path / "converted")])
        for copy in ("saved", "converted"):
            compare(library, tmp_path / copy, texts)


def written_here(source, folder, seed):
    """Writes a sparse encoder with random settings, as a fine-tuning does; returns its folder."""
    from bertjax.weights import save_hf

    rng = np.random.default_rng(seed)
    is_static = rng.random() < 0.5
    fields = {
        "pooling": str(rng.choice(["max", "sum"])),
        "activation": str(rng.choice(["relu", "log1p_relu"])),
        "static_queries": bool(is_static),
        "frozen_queries": bool(is_static and rng.integers(2)),
    }
    loaded = load_model(source, "sparse", head_fields=fields)
    params = dict(loaded.params)
    if is_static:
        params["query_weights"] = rng.normal(size=len(params["query_weights"])).astype(np.float32)
    modules = sparse_embedding_modules(rng)
    read = Read(modules)
    length = int(rng.integers(8, 40))
    files = sparse_files(loaded.model, params, length, read, loaded.tokenizer)
    save_hf(folder, params, loaded.config, loaded.tokenizer, head="sparse", files=files)
    return folder


def sparse_embedding_modules(rng):
    from bertjax.weights.sparse_modules import NO_FILES

    prompts = {"query": "", "document": ""}
    if rng.random() < 0.5:
        prompts = {"query": "abc de: ", "document": "hij: "}
    dims = int(rng.integers(1, 60)) if rng.random() < 0.4 else None
    return NO_FILES._replace(
        prompts=prompts,
        query_length=int(rng.integers(4, 9)) if rng.random() < 0.3 else None,
        similarity=str(rng.choice(["dot", "cosine"])),
        sparse=SparseModules(max_active_dims=dims),
    )


@pytest.mark.parity
@pytest.mark.parametrize("seed", [0, *MANY])
def test_directories_that_are_written_here_have_their_embeddings_there(
    library, masked_lm, tmp_path, texts, seed
):
    folder = written_here(masked_lm(FAMILIES[seed % 4]), tmp_path / "model", seed)
    compare(library, folder, texts)


@pytest.fixture(scope="module")
def written_splade(masked_lm, tmp_path_factory):
    """A sparse encoder with static weights of queries."""
    fields = {"static_queries": True, "pooling": "sum"}
    loaded = load_model(masked_lm("bert"), "sparse", head_fields=fields)
    return write(loaded, tmp_path_factory.mktemp("splade") / "model")


@pytest.fixture
def splade(written_splade, tmp_path):
    """A copy of a sparse encoder, which a test may change."""
    return shutil.copytree(written_splade, tmp_path / "splade")


def write(loaded, folder):
    from bertjax.weights import save_hf
    from bertjax.weights.sparse_modules import NO_FILES

    files = sparse_files(loaded.model, loaded.params, 30, Read(NO_FILES), loaded.tokenizer)
    save_hf(folder, loaded.params, loaded.config, loaded.tokenizer, head="sparse", files=files)
    (folder / "checksums.json").unlink()
    return folder


def change(file, **values):
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | values))


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        ("document_1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "pooling_strategy"),
        ("document_1_SpladePooling/config.json", {"threshold": 2}, "threshold"),
        ("query_0_SparseStaticEmbedding/config.json", {"path": "idf.json"}, "path"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "transformer_t"),
        ("sentence_bert_config.json", {"modality_config": {"text": {}}}, "modality_config"),
        ("sentence_bert_config.json", {"query_expansion": {"length": 3}}, "query_expansion"),
        ("config_sentence_transformers.json", {"max_active_dims": 0}, "max_active_dims=0"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "model_type"),
        ("router_config.json", {"structure": {"query": ["document_1_SpladePooling"]}}, "routes"),
        ("router_config.json", {"parameters": {"route_mappings": {"a": "b"}}}, "route_mappings"),
        ("router_config.json", {"parameters": {"allow_empty_key": False}}, "default_route"),
    ],
)
def test_settings_that_are_not_followed_are_refused_by_name(splade, file, values, named):
    change(splade / file, **values)
    with pytest.raises(ValueError, match=named):
        bertjax.load_pretrained(splade, "encoder").embed(["abc"])


def test_modules_that_are_not_followed_are_refused_by_name(splade, masked_lm, tmp_path):
    rows = [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        ("SparseAutoEncoder", "2_SparseAutoEncoder"),
    ]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(rows)
    ]
    folder = tmp_path / "csr"
    shutil.copytree(masked_lm("bert"), folder, ignore=lambda *_: ["checksums.json"])
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="SparseAutoEncoder"):
        bertjax.load_pretrained(folder, "encoder").embed(["abc"])
    vectors = bertjax.load_pretrained(folder, "encoder").embed(["abc"], pooling="mean")
    assert vectors.shape == (1, 32)


def test_weights_of_another_vocabulary_or_tokenizer_are_refused(splade, tmp_path):
    folder = splade / "query_0_SparseStaticEmbedding"
    vocab = (folder / "vocab.txt").read_text().splitlines()
    other = shutil.copytree(splade, tmp_path / "other")
    name = "query_0_SparseStaticEmbedding/tokenizer.json"
    content = (other / name).read_text()
    (other / name).write_text(content.replace(json.dumps(vocab[-1]), '"other"'))
    with pytest.raises(ValueError, match=r"query_0_SparseStaticEmbedding has another tokenizer"):
        bertjax.load_pretrained(other, "encoder").embed(["abc"])


def test_options_of_vectors_are_refused_and_those_of_sparse_embeddings_followed(splade, masked_lm):
    model = bertjax.load_pretrained(splade)
    assert model.head == "sparse"
    for option in ({"normalize": True}, {"layers": (1,)}, {"truncate_dim": 5}):
        with pytest.raises(ValueError, match=next(iter(option))):
            model.embed(["abc"], **option)
    assert np.diff(model.embed(["abc de", "hij"], max_active_dims=3).indptr).tolist() == [3, 3]
    dense = bertjax.load_pretrained(masked_lm("bert"), "encoder")
    with pytest.raises(ValueError, match="max_active_dims=3"):
        dense.embed(["abc"], max_active_dims=3)


def test_static_weights_that_were_changed_are_saved(splade, tmp_path):
    model = bertjax.load_pretrained(splade)
    model.params = {**model.params, "query_weights": model.params["query_weights"] * 3}
    model.save(tmp_path / "saved")
    before, after = (
        bertjax.load_pretrained(folder).embed(["abc de"], prompt="query").toarray()
        for folder in (splade, tmp_path / "saved")
    )
    assert before.max() == 1
    np.testing.assert_array_equal(after, 3 * before)


def test_a_similarity_that_is_no_product_is_refused_in_training(splade):
    from bertjax.tasks.sparse import SparseTask

    change(splade / "config_sentence_transformers.json", similarity_fn_name="manhattan")
    loaded = load_model(splade, None)
    modules = loaded.source.usage.modules.result()
    task = SparseTask(name="sparse")
    with pytest.raises(ValueError, match="similarity_fn_name=manhattan"):
        following_sparse(task, modules, loaded.model, loaded.params)
    task, _ = following_sparse(
        task, modules._replace(similarity="dot"), loaded.model, loaded.params
    )
    assert task.static_queries and task.query_length == 30
    assert SparseEmbedder(loaded, prompt="query").max_length == 30
    assert dataclasses.replace(task, max_active_dims=3).max_active_dims == 3
