"""The same commands twice, in processes of their own, give the same bytes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lines import json_lines

REPOSITORY = Path(__file__).parents[2]
# What a clock decides.
TIMES = ("train/tokens_per_second", "train/mfu")
COMMANDS = """
import json, sys
from bertjax import finetune, prepare, pretrain
programs = {"prepare": prepare, "pretrain": pretrain, "finetune": finetune}
for command, flags in json.loads(sys.argv[1]):
    assert programs[command].main(flags) == 0
"""
CONFIG = """
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.config.model import BertConfig
config = PretrainConfig(
    model=BertConfig(vocab_size=120, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                     intermediate_size=64, max_position_embeddings=64),
    phases=(Phase(num_steps=6, max_length=16, batch_size=8),),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
    unroll=1, log_every=2, eval_every=3, eval_rows=16, save_every=3, peak_tflops=0.1,
)
"""


def commands(corpus: Path) -> list[tuple[str, list[str]]]:
    data = f"--input {corpus / 'text.txt'} --tokenizer {corpus / 'tokenizer'} --output data"
    sizes = "--max_length 16 --eval_fraction 0.1 --chunk_mb 0.002 --num_processes 1"
    tuned = "--task classify --init run/model --train t.csv --dev t.csv --workdir tuned"
    tuning = "--max_length 32 --batch_size 8 --max_steps 4 --log_every 1 --unroll 1"
    return [
        ("prepare", f"{data} {sizes}".split()),
        ("pretrain", "--config tiny.py --data data --workdir run".split()),
        ("finetune", f"{tuned} {tuning}".split()),
    ]


def run_in(
    folder: Path, steps: list[tuple[str, list[str]]], sentences: list[str], hash_seed: int
) -> dict[str, object]:
    """Runs commands in a folder; returns the content of each file, times aside."""
    folder.mkdir()
    (folder / "tiny.py").write_text(CONFIG)
    rows = [f"{sentence},{'ab'[i % 2]}\n" for i, sentence in enumerate(sentences[:16])]
    (folder / "t.csv").write_text("text,label\n" + "".join(rows))
    (folder / "main.py").write_text(COMMANDS)
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(REPOSITORY / ".pytest_cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    arguments = [sys.executable, "main.py", json.dumps(steps)]
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): _without_times(path)
        for path in files
        if "checkpoints" not in path.parts
        and "tfevents" not in path.name
        # These say when and where the run took place.
        and path.name not in ("goodput.jsonl", "processes.jsonl", "report.html")
    }


def _without_times(path: Path) -> object:
    if path.name != "metrics.jsonl":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    lines = json_lines(path)
    return [{key: value for key, value in x.items() if key not in TIMES} for x in lines]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_same_commands_give_the_same_data_metrics_and_models(tmp_path, corpus, sentences):
    steps = commands(corpus)
    first = run_in(tmp_path / "first", steps, sentences, hash_seed=1)
    second = run_in(tmp_path / "second", steps, sentences, hash_seed=2)
    expected = {
        *("data/metadata.json", "data/train-16-00000.array_record", "data/vocab.txt"),
        *("run/metrics.jsonl", "run/model/model.safetensors", "run/model/README.md"),
        *("tuned/metrics.jsonl", "tuned/model/model.safetensors", "tuned/scores.json"),
        "tuned/predictions/dev.jsonl",
    }
    assert first.keys() == second.keys() and first.keys() >= expected
    assert [name for name in first if first[name] != second[name]] == []
