"""Eight simulated devices, a compilation cache for the session, and small things to test with."""

import csv
import dataclasses
import functools
import gc
import json
import math
import os
import signal
import tempfile
from pathlib import Path

# What is printed must not depend on the terminal in which the tests run, or on its absence.
for _name in ("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)
# Other packages need the folder of the user, who may have none, as in a container.
if os.path.expanduser("~") == "~":
    os.environ["HOME"] = tempfile.mkdtemp(prefix="home")
os.environ.setdefault("LOGNAME", "tester")  # a user may have no name

from tests import jax_settings  # noqa: E402, F401

# isort: split
import jax  # noqa: E402

# XLA would split each program into 32 parts, to compile them on as many cores: here each part costs
# more than what it compiles.
_flags = [os.environ.get("XLA_FLAGS", ""), "--xla_cpu_parallel_codegen_split_count=1"]
# Newer versions have no other emitters, and end the process at a flag that they do not know.
if jax.__version_info__ < (0, 11):
    _flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join(_flags)
# Processes that tests start choose their own number of devices.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from flax.traverse_util import unflatten_dict  # noqa: E402

from bertjax import prepare  # noqa: E402
from bertjax.base.checksums import CHECKSUMS  # noqa: E402
from bertjax.config import PrepareConfig  # noqa: E402
from bertjax.data import checksums  # noqa: E402
from bertjax.model import (  # noqa: E402
    HEADS,
    MODEL_SIZES,
    BertConfig,
    BertForPreTraining,
    named_config,
)
from bertjax.tokenization import WordPieceTokenizer, train_wordpiece  # noqa: E402
from bertjax.weights import init_params, save_hf  # noqa: E402
from bertjax.weights.fill import param_shapes  # noqa: E402
from tests.bucket_servers import bucket, bucket_server, unreliable  # noqa: E402, F401
from tests.hub_server import hub  # noqa: E402, F401

SHARED = Path(__file__).parent.parent.parent / "shared" / "data"

# In the background of a script, SIGINT is ignored, and under `nohup`, SIGHUP; they would remain
# ignored in all processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

# Tracing makes many objects and few cycles, and every full collection visits all modules again.
gc.freeze()
gc.set_threshold(50_000, 20, 100)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, as some tests wait for a process, a disk or a signal."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session")
def shared() -> Path:
    """The real corpora and vocabularies beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"the real data is not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory):
    """What is remembered of prepared data is kept in a folder of the tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "cache_folder", lambda: folder)
        yield


TINY = BertConfig(
    vocab_size=120,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    initializer_range=0.2,
)


@pytest.fixture(scope="session")
def tiny_config() -> BertConfig:
    """An encoder that compiles in a second; large weights, so that attention is not uniform."""
    return TINY


@pytest.fixture(scope="session")
def one_layer_config() -> BertConfig:
    """`tiny_config` with one layer, for what says nothing more with two: it compiles faster."""
    return dataclasses.replace(TINY, num_hidden_layers=1)


@pytest.fixture(scope="session")
def tiny_family(tiny_config):
    """family -> an encoder of it as small as `tiny_config`."""

    def make(family: str, **changes) -> BertConfig:
        name = next(name for name, size in MODEL_SIZES.items() if size.model_type == family)
        sizes = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
        fields = {field: getattr(tiny_config, field) for field in sizes}
        fields |= {"num_hidden_layers": 2, "max_position_embeddings": 66, "initializer_range": 0.2}
        if MODEL_SIZES[name].embedding_size:
            fields["embedding_size"] = 16
        if MODEL_SIZES[name].output_embedding_size:
            fields["output_embedding_size"] = 24
        if MODEL_SIZES[name].prediction_head_size:
            fields["prediction_head_size"] = 24
        if MODEL_SIZES[name].mask_token_id:
            fields["mask_token_id"] = 4
        if MODEL_SIZES[name].residual_scale_layers:  # two layers multiply by 4.2 what they add
            fields["initializer_range"] = 0.05
        if MODEL_SIZES[name].relative_attention:
            fields["position_buckets"] = 8
        if (MODEL_SIZES[name].pad_token_id or 0) >= fields["vocab_size"]:
            fields["pad_token_id"] = 0
        return named_config(name, **fields | changes)

    return make


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
def corpus(tmp_path_factory, sentences, tokenizer) -> Path:
    """A folder with `text.txt`, documents of ten sentences, and `tokenizer`."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = ["\n".join(sentences[i : i + 10]) for i in range(0, len(sentences), 10)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    tokenizer.save(folder / "tokenizer")
    return folder


def prepare_config(corpus: Path, output: Path, **fields) -> PrepareConfig:
    """How to prepare `corpus`, a tenth of it held out."""
    return PrepareConfig(
        input=(str(corpus / "text.txt"),),
        tokenizer=str(corpus / "tokenizer"),
        output=str(output),
        eval_fraction=0.1,
        **fields,
    )


@pytest.fixture
def small_chunks(corpus, tmp_path) -> PrepareConfig:
    """Prepares `corpus` in many chunks, to a folder `local`."""
    return prepare_config(corpus, tmp_path / "local", max_length=(16,), chunk_mb=0.002)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, corpus) -> Path:
    """A prepared directory of rows of 16 and of 32 tokens."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    prepare.run(prepare_config(corpus, folder, max_length=(16, 32), num_processes=1))
    return folder


LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


SMALL_RUN = """
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.model import BertConfig

config = PretrainConfig(
    model=BertConfig(
        vocab_size={vocab}, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    ),
    phases=(Phase(num_steps={steps}, max_length=16, batch_size=8),),
    optimizer=OptimizerConfig(warmup_steps=5),
    log_every=1, eval_every=0, eval_rows=8, save_every={save_every}, reader_threads=1,
)
"""


@pytest.fixture
def small_run(tokenizer, tmp_path):
    """Writes the config of a small run, and returns the path of the file."""

    def write(steps: int, save_every: int) -> Path:
        text = SMALL_RUN.format(vocab=tokenizer.vocab_size, steps=steps, save_every=save_every)
        (tmp_path / "config.py").write_text(text)
        return tmp_path / "config.py"

    return write


def random_params(model, seed=0, spread=0.05):
    """Random parameters, drawn without compiling: matrices as a model starts with, plus noise.

    The noise has a standard deviation of `spread`, and of 0.05 on biases and LayerNorms.
    """
    rng = np.random.default_rng(seed)
    flat = {}
    for path, leaf in param_shapes(model).items():
        shape = leaf.shape
        noise = rng.normal(size=shape)
        if path.endswith(("bias", "scale")):
            value = path.endswith("scale") + 0.05 * noise
        else:
            width = model.config.initializer_range
            value = width * np.clip(rng.normal(size=shape), -2, 2) + spread * noise
        flat[path] = np.asarray(value, np.float32)
    return unflatten_dict(flat, sep="/")


def write_model(
    folder, config: BertConfig, head: str, tokenizer, seed=0, spread=0.05, checksums=False
):
    """A model directory with random weights: `spread` is the noise that matrices start with.

    Biases and LayerNorms have noise, too, so that a test sees where each one goes. Like the
    directories of other programs, it has no checksums, so that a test may change its files.
    """
    shapes = param_shapes(HEADS[head](config, num_labels=3)).values()
    size = sum(math.prod(leaf.shape) for leaf in shapes)
    # A save with a mask decoder prints a warning, which names the directory.
    if size > 10**6 or folder.exists() or config.enhanced_mask_decoder:
        _save_model(folder, config, head, tokenizer, seed, spread)
    else:
        folder.mkdir(parents=True)
        for name, content in _model_files(config, head, tokenizer, seed, spread).items():
            (folder / name).write_bytes(content)
    if not checksums:
        (folder / CHECKSUMS).unlink()
    return folder


def _save_model(folder, config, head, tokenizer, seed, spread):
    params = random_params(HEADS[head](config, num_labels=3), seed, spread)
    with_labels = head in ("sequence_classification", "token_classification")
    extra = LABELS if with_labels else None
    save_hf(folder, params, config, tokenizer, head=head, extra=extra)


@functools.lru_cache(maxsize=64)
def _model_files(*model) -> dict[str, bytes]:
    """Many tests change a copy of the same small model, and a save waits for the disk."""
    with tempfile.TemporaryDirectory() as folder:
        _save_model(Path(folder) / "model", *model)
        return {file.name: file.read_bytes() for file in (Path(folder) / "model").iterdir()}


@pytest.fixture(scope="session", name="random_params")
def random_params_fixture():
    """`random_params`, as a fixture, so that every test module finds it."""
    return random_params


@pytest.fixture(scope="session")
def written():
    """`write_model`, as a fixture, so that every test module finds it."""
    return write_model


@pytest.fixture(scope="session")
def encoder(tmp_path_factory, tiny_config, tokenizer, written):
    """A model directory to start from."""
    config = dataclasses.replace(tiny_config, vocab_size=tokenizer.vocab_size)
    return written(tmp_path_factory.mktemp("encoder") / "model", config, "pretraining", tokenizer)


@pytest.fixture(scope="session")
def one_layer(tmp_path_factory, one_layer_config, tokenizer, written):
    """`encoder` with one layer."""
    config = dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size)
    return written(tmp_path_factory.mktemp("one_layer") / "model", config, "pretraining", tokenizer)


def write_csv(path: Path, rows) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def write_lines(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def classify_rows(sentences):
    """The class is told by the first word."""
    return [["text", "label"]] + [
        [f"{'abc' if i % 3 else 'hij'} {s}", "low" if i % 3 else "high"]
        for i, s in enumerate(sentences)
    ]


def squad_of(sentences, count):
    """The answer is the one word of a passage that is in no other sentence, "abc"."""
    paragraphs = [
        {
            "context": f"{sentences[i]} abc {sentences[i + 1]}",
            "qas": [
                {
                    "id": f"q{i}",
                    "question": sentences[i][:8],
                    "answers": [{"text": "abc", "answer_start": 0}],
                }
            ],
        }
        for i in range(count)
    ]
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


@pytest.fixture(scope="session")
def files(tmp_path_factory, sentences):
    """Train and dev files for each kind of task."""
    folder = tmp_path_factory.mktemp("files")
    made = {}
    for split, part in (("train", sentences[:64]), ("dev", sentences[100:130])):
        words = [s.rstrip(".").split() for s in part]
        rows = {
            "classify": write_csv(folder / f"c_{split}.csv", classify_rows(part)),
            "regress": write_lines(
                folder / f"r_{split}.jsonl",
                # The first sentence tells the number.
                [
                    {
                        "sentence1": ("abc" if i % 2 else "hij") * 4,
                        "sentence2": sentence,
                        "score": (1.0 if i % 2 else -1.0) + len(sentence) / 100,
                    }
                    for i, sentence in enumerate(part)
                ],
            ),
            "multi": write_lines(
                folder / f"m_{split}.jsonl",
                [{"text": s, "labels": [x for x in "abc" if x in s]} for s in part],
            ),
            "tag": write_lines(
                folder / f"t_{split}.jsonl",
                [{"words": w, "tags": ["B-X" if x[0] <= "e" else "O" for x in w]} for w in words],
            ),
            "choice": write_csv(
                folder / f"h_{split}.csv",
                [["text", "choice1", "choice2", "label"]]
                # The right ending begins with "abc".
                + [
                    [s, *(f"{'abc' if n == i % 2 else 'hij'} {s[:6]}" for n in (0, 1)), str(i % 2)]
                    for i, s in enumerate(part)
                ],
            ),
            "qa": str(folder / f"q_{split}.json"),
        }
        Path(rows["qa"]).write_text(json.dumps(squad_of(list(part), len(part) - 4)))
        for kind, file in rows.items():
            made.setdefault(kind, {})[split] = file
    return made
