"""Eight simulated devices, a compilation cache for the session, and small things to test with."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
# Kept between runs, in the folder that pytest keeps for such things: compiling is most of the time.
_CACHE = Path(__file__).parent.parent / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_numpy_rank_promotion", "raise")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from bertjax import prepare  # noqa: E402
from bertjax.config import PrepareConfig  # noqa: E402
from bertjax.model import HEADS, BertConfig, BertForPreTraining  # noqa: E402
from bertjax.tokenization import WordPieceTokenizer, train_wordpiece  # noqa: E402
from bertjax.weights import init_params, save_hf  # noqa: E402
from bertjax.weights.load import ARCHITECTURES  # noqa: E402

SHARED = Path(__file__).parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The real corpora and vocabularies beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"the real data is not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def tiny_config() -> BertConfig:
    """An encoder that compiles in a second; large weights, so that attention is not uniform."""
    return BertConfig(
        vocab_size=120,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,
    )


@pytest.fixture(scope="session")
def tiny(tiny_config):
    """The encoder with its pretraining heads, and parameters as numpy arrays."""
    model = BertForPreTraining(tiny_config)
    return model, jax.device_get(init_params(model, seed=0))


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """A few hundred sentences of a made-up language with a grammar that a model can learn."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(2, 7))) for _ in range(60)]
    return [
        " ".join(words[(start + step * i) % 60] for i in range(rng.integers(4, 12))) + "."
        for start, step in rng.integers(1, 60, (400, 2))
    ]


@pytest.fixture(scope="session")
def tokenizer(sentences) -> WordPieceTokenizer:
    """A vocabulary of about 100 entries, learnt from `sentences`."""
    return train_wordpiece(sentences, vocab_size=100, model_max_length=64)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, sentences, tokenizer) -> Path:
    """A prepared directory of rows of 16 and of 32 tokens."""
    folder = tmp_path_factory.mktemp("prepared")
    documents = ["\n".join(sentences[i : i + 10]) for i in range(0, len(sentences), 10)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    tokenizer.save(folder / "tokenizer")
    prepare.run(
        PrepareConfig(
            input=(str(folder / "text.txt"),),
            tokenizer=str(folder / "tokenizer"),
            output=str(folder / "data"),
            max_length=(16, 32),
            eval_fraction=0.1,
            num_processes=1,
        )
    )
    return folder / "data"


LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


def write_model(folder, config: BertConfig, head: str, tokenizer, seed=0, spread=0.05):
    """A model directory with random weights: `spread` is added to what a matrix starts with.

    Biases and LayerNorms move, too, so that a test sees where each one goes.
    """
    model = HEADS[head](config, num_labels=3)
    rng = np.random.default_rng(seed)

    def moved(path, x):
        scale = 0.05 if path[-1].key in ("bias", "scale") else spread
        return np.asarray(x + scale * rng.normal(size=x.shape), np.float32)

    params = jax.tree_util.tree_map_with_path(moved, init_params(model, seed))
    with_labels = head in ("sequence_classification", "token_classification")
    save_hf(
        folder,
        params,
        config,
        tokenizer,
        architecture=ARCHITECTURES[head][0],
        extra=LABELS if with_labels else None,
    )
    return folder


@pytest.fixture(scope="session")
def written():
    """`write_model`, as a fixture, so that every test module finds it."""
    return write_model
