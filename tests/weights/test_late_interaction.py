"""Directories of models with one vector per token mean what they mean in sentence-transformers.

Each case is a directory with random settings of its modules that sentence-transformers has saved,
or that we have saved, in which its own vectors and scores are the reference.
"""

import json
import re
import shutil
import string
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import bertjax
from bertjax.inference.embedder import following
from bertjax.model.sentence_embedding import ACTIVATIONS
from bertjax.tasks.embedding import ContrastiveTask
from bertjax.tasks.late_interaction import maxsim
from bertjax.tokenization import load_tokenizer
from bertjax.weights.families import with_pad_token
from bertjax.weights.hf import open_weights
from bertjax.weights.load import load_model
from tests.cases import WEEKLY

pytestmark = pytest.mark.parity
FAMILIES = ("bert", "roberta", "deberta-v2", "modernbert")
TOKENS = "token_embeddings"
EXPANDED = {"query_expansion": {"strategy": "fixed", "length": 12}}


@pytest.fixture(scope="module")
def library():
    pytest.importorskip("torch", reason="the extra `parity` is not installed")
    return pytest.importorskip("sentence_transformers", minversion="6")


@pytest.fixture(scope="module")
def texts(sentences):
    marked = sentences[6].replace(" ", ", ", 1) + " !"
    return [*sentences[:5], "", "A Bc " + marked, " ".join(sentences[:9])]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory, tiny_family, tokenizer, written):
    folder = tmp_path_factory.mktemp("encoders")
    made = {}
    for family in FAMILIES:
        config = tiny_family(family, vocab_size=tokenizer.vocab_size)
        config = with_pad_token(config, tokenizer.pad_token_id)
        made[family] = written(folder / family, config, "encoder", tokenizer)
    return made


def choose(rng, *values):
    return values[rng.integers(len(values))]


def settings_of(rng, family):
    """Random settings of a Transformer module."""
    settings = {}
    for name in ("max_seq_length", "document_length"):
        if rng.random() < 0.4:
            settings[name] = int(rng.integers(8, 40))
    if rng.random() < 0.7:
        settings["query_expansion"] = {
            "strategy": choose(rng, "fixed", "min"),
            "length": int(rng.integers(6, 33)),
            "attend": family == "deberta-v2" or bool(rng.integers(2)),
            "token": choose(rng, None, "a", "b" if family == "roberta" else "[PAD]"),
        }
    if rng.random() < 0.4:
        settings["query_length"] = int(rng.integers(33, 50))
    if rng.random() < 0.2:
        settings["do_lower_case"] = True
    return settings


def saved(library, encoder, folder, seed, family):
    """Has sentence-transformers save a model with random modules; returns its directory."""
    import torch
    from sentence_transformers.base import modules as base
    from sentence_transformers.multi_vector_encoder import modules as kinds

    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    transformer = base.Transformer(str(encoder), **settings_of(rng, family))
    modules: list[Any] = [transformer]
    size = transformer.get_embedding_dimension()
    for _ in range(rng.integers(0, 3)):
        width = int(choose(rng, 8, 24, size))
        modules.append(
            base.Dense(
                size,
                width,
                bias=bool(rng.integers(2)),
                activation_function=getattr(torch.nn, choose(rng, "Identity", *ACTIVATIONS))(),
                module_input_name=TOKENS,
                use_residual=bool(rng.integers(2)),
            )
        )
        size = width
        if rng.random() < 0.2:
            modules.append(
                base.Normalize(module_input_name=choose(rng, TOKENS, "sentence_embedding"))
            )
    if rng.random() < 0.85:
        modules.append(
            kinds.MultiVectorMask(
                choose(rng, None, list(string.punctuation), ["a", ".", "zzz", "[SEP]"]),
                skiplist_tasks=choose(rng, None, "query", ["query", "document"], []),
                keep_only_token_ids=choose(rng, None, None, [*range(40)]),
            )
        )
    if rng.random() < 0.85:
        modules.append(base.Normalize(module_input_name=TOKENS))
        if rng.random() < 0.4:
            modules.append(
                kinds.HierarchicalTokenPooling(
                    float(choose(rng, 1, 1.5, 2, 3)),
                    num_protected_tokens=int(rng.integers(0, 3)),
                    normalize_embeddings=bool(rng.integers(2)),
                    tasks=choose(rng, None, ["query", "document"], []),
                )
            )
    prompts = choose(rng, None, {"query": "abc: ", "document": "de "}, {"query": "fg. "})
    name = choose(rng, None, "maxsim", "meanmaxsim")
    model = library.MultiVectorEncoder(
        modules=modules, device="cpu", prompts=prompts, similarity_fn_name=name
    )
    model.save_pretrained(str(folder))
    return folder


def compare(library, directory, model, texts, atol=1e-5):
    """Checks vectors and scores of `model` beside those of sentence-transformers at `directory`."""
    reference = library.MultiVectorEncoder(str(directory), device="cpu")
    vectors = {}
    for role in ("query", "document"):
        expected = getattr(reference, f"encode_{role}")(texts, convert_to_numpy=True)
        vectors[role] = model.token_vectors(texts, role=role)
        for ours, theirs in zip(vectors[role], expected, strict=True):
            assert ours.shape == theirs.shape
            scale = max(1, abs(theirs).max(initial=0))
            np.testing.assert_allclose(ours, theirs, atol=atol * scale)
    mean = reference.similarity_fn_name == "meanmaxsim"
    scores = maxsim(vectors["query"], vectors["document"], mean=mean)
    expected = reference.similarity(
        reference.encode_query(texts), reference.encode_document(texts)
    ).numpy()
    np.testing.assert_allclose(
        scores, expected, atol=atol * max(1, abs(expected[expected > -1e7]).max())
    )
    if not mean:
        return
    assert model.loaded.model.mean


@pytest.mark.parametrize(
    ("seed", "family"),
    [
        pytest.param(0, "bert", marks=pytest.mark.slow),
        *(pytest.param(0, family, marks=WEEKLY) for family in FAMILIES if family != "bert"),
        *(pytest.param(1, family, marks=pytest.mark.slow) for family in FAMILIES),
        *(pytest.param(i, family, marks=WEEKLY) for i in range(2, 10) for family in FAMILIES),
    ],
)
def test_random_modules_are_followed_and_written_again(
    seed, family, library, encoders, texts, tmp_path, capsys
):
    number = 10 * FAMILIES.index(family) + seed
    theirs = saved(library, encoders[family], tmp_path / "theirs", number, family)
    model = bertjax.load_pretrained(theirs)
    compare(library, theirs, model, texts)
    model.save(tmp_path / "ours")
    compare(library, tmp_path / "ours", bertjax.load_pretrained(tmp_path / "ours"), texts)


def test_embeddings_of_texts_take_nothing_from_modules_of_tokens(one_layer, tmp_path):
    bertjax.load_pretrained(one_layer, head="late_interaction").save(tmp_path / "colbert")
    loaded = load_model(tmp_path / "colbert", "sentence_embedding")
    task, loaded = following(ContrastiveTask(name="embed"), loaded)
    assert task.similarity == "cosine" and task.truncate_dim is None
    assert not loaded.model.after_pooling and "modules" not in loaded.params


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(None, marks=WEEKLY),
        pytest.param({"query_maxlen": 12, "doc_maxlen": 20, "dim": 8}, marks=pytest.mark.slow),
    ],
)
def test_the_files_of_stanford_are_read_and_written_as_those_of_others(
    metadata, library, encoders, texts, tmp_path
):
    """The linear layer is among the weights of the encoder, and markers are unused tokens."""
    source = shutil.copytree(encoders["bert"], tmp_path / "stanford")
    tokenizer = load_tokenizer(source)
    tensors = dict(open_weights([source / "model.safetensors"]))
    tensors["linear.weight"] = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
    safetensors.numpy.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["architectures"] = ["HF_ColBERT"]
    (source / "config.json").write_text(json.dumps(config))
    if metadata is not None:
        marker = next(token for token in reversed(tokenizer.tokens) if token.startswith("##"))
        metadata |= {"query_token_id": marker, "mask_punctuation": False}
        metadata |= {"attend_to_mask_tokens": True}
        (source / "artifact.metadata").write_text(json.dumps(metadata))
    model = bertjax.load_pretrained(source)
    assert model.head == "late_interaction" and not model.absent
    compare(library, source, model, texts)
    model.save(tmp_path / "ours")
    compare(library, tmp_path / "ours", bertjax.load_pretrained(tmp_path / "ours"), texts)


def described(folder, file, **fields):
    path = folder / file
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | fields))


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        (
            "sentence_bert_config.json",
            {"query_expansion": {"strategy": "other"}},
            "query_expansion",
        ),
        ("sentence_bert_config.json", {"query_expansion": {"x": 1}}, "query_expansion"),
        ("sentence_bert_config.json", {"query_length": 2, **EXPANDED}, "query_length=2"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "processing_kwargs"),
        ("1_Dense/config.json", {"module_input_name": "other"}, "module_input_name='other'"),
        ("2_MultiVectorMask/config.json", {"new": 1}, "new=1"),
        ("3_Normalize/config.json", {"module_input_name": "other"}, "module_input_name='other'"),
        ("4_HierarchicalTokenPooling/config.json", {"pool_factor": 0.5}, "pool_factor=0.5"),
    ],
)
def test_settings_that_are_not_followed_are_refused_by_name(
    file, fields, message, library, encoders, tmp_path
):
    from sentence_transformers.base import modules as base
    from sentence_transformers.multi_vector_encoder import modules as kinds

    modules = [
        base.Transformer(str(encoders["bert"])),
        base.Dense(32, 8, module_input_name=TOKENS),
        kinds.MultiVectorMask(),
        base.Normalize(module_input_name=TOKENS),
        kinds.HierarchicalTokenPooling(2.0),
    ]
    library.MultiVectorEncoder(modules=modules, device="cpu").save_pretrained(str(tmp_path))
    described(tmp_path, file, **fields)
    with pytest.raises(ValueError, match=re.escape(message)):
        bertjax.load_pretrained(tmp_path).token_vectors(["a"])


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert"])
def test_tokens_that_attend_to_nothing_in_transformers_are_refused(
    family, library, encoders, texts, tmp_path
):
    from sentence_transformers.base import modules as base
    from sentence_transformers.multi_vector_encoder import modules as kinds

    expansion = {"strategy": "fixed", "length": 62}
    transformer = base.Transformer(str(encoders[family]), query_expansion=expansion)
    modules = [transformer, kinds.MultiVectorMask()]
    library.MultiVectorEncoder(modules=modules, device="cpu").save_pretrained(str(tmp_path))
    described(tmp_path, "config.json", **{"local_attention": 16} if family == "modernbert" else {})
    with pytest.raises(ValueError, match="attend=False"):
        bertjax.load_pretrained(tmp_path).token_vectors(texts, role="query")
