"""Hashes of what a checkout computes, to compare two checkouts of the project.

    python benchmarks/program_hashes.py --tree OLD_CHECKOUT --output old.txt
    python benchmarks/program_hashes.py --tree . --output new.txt && diff old.txt new.txt

Runs the commands of a checkout on tiny models: a tokenizer of each kind, preparation of each
objective, three updates of each family, of distillation, packing, accumulation and two phases, a
run that is interrupted and resumed, one in a bucket (on a server of this machine), and fine-tuning
of each kind of task. Writes the sha256 of the StableHLO of each update (without source locations
and names of functions), of each tokenizer and prepared shard, and of each exported model,
prediction and score. Takes about four minutes on two cores, and needs the extra `dev`.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
    "initializer_range": 0.2,
}
CONFIG = """
from bertjax.config import Phase, PretrainConfig
config = PretrainConfig(phases=(Phase(num_steps=3, max_length=32, batch_size=8),))
"""
PHASES = """
from bertjax.config import Phase, PretrainConfig
config = PretrainConfig(
    phases=(
        Phase(num_steps=3, max_length=16, batch_size=8),
        Phase(num_steps=3, max_length=32, batch_size=8),
    )
)
"""
PRETRAIN = "--optimizer.warmup_steps 1 --log_every 1 --eval_every 0 --eval_rows 16"
FINETUNE = (
    "--max_length 48 --batch_size 8 --max_steps 3 --log_every 1 --unroll 1 "
    "--optimizer.learning_rate 1e-3"
)
ROBERTA = (
    "--model.model_type roberta --model.pad_token_id 1 --model.position_offset 2 "
    "--model.mlm_activation gelu --model.classifier_activation tanh "
    "--model.classifier_input_dropout --model.type_vocab_size 1"
)
ALBERT = (
    "--model.model_type albert --model.num_hidden_groups 1 --model.embedding_size 16 "
    "--model.hidden_act gelu_new"
)
DISTILBERT = (
    "--head masked_lm --model.model_type distilbert --model.type_vocab_size 0 "
    "--model.no_add_pooling_layer --model.classifier_activation relu "
    "--model.attention_output_dropout 0.0"
)
# The exit status of a run that a signal has stopped.
STOPPED = 75
# Files of a workdir that are compared, besides the shards.
COMPARED = ("model.safetensors", "tagger.safetensors", "config.json", "task.json", "scores.json")


def write_inputs(folder: Path) -> None:
    """Writes a corpus of a made-up language, and train and dev files of each kind of task."""
    rng = random.Random(0)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 6))) for _ in range(60)]
    sentences = []
    for _ in range(400):
        start, step = rng.randint(1, 59), rng.randint(1, 59)
        chosen = [words[(start + step * i) % 60] for i in range(rng.randint(4, 11))]
        sentences.append(" ".join(chosen) + ".")
    documents = ["\n".join(sentences[i : i + 10]) for i in range(0, 400, 10)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    for split, part in (("train", sentences[:64]), ("dev", sentences[100:130])):
        tags = [[("B-X" if w[0] <= "e" else "O") for w in s.rstrip(".").split()] for s in part]
        rows = {
            "classify": [{"text": s, "label": ("a", "b")[i % 2]} for i, s in enumerate(part)],
            "regress": [{"text": s, "label": len(s) / 10} for s in part],
            "multi": [{"text": s, "labels": [x for x in "abc" if x in s]} for s in part],
            "tag": [
                {"words": s.rstrip(".").split(), "tags": t} for s, t in zip(part, tags, strict=True)
            ],
            "choice": [
                {"text": s, "choices": [s[:6], s[-6:]], "label": i % 2} for i, s in enumerate(part)
            ],
        }
        for kind, lines in rows.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"{kind}_{split}.jsonl").write_text(text)
        questions = [
            {
                "context": f"{a} {b}",
                "qas": [
                    {
                        "id": f"q{i}",
                        "question": a[:8],
                        "answers": [{"text": b.split()[0], "answer_start": 0}],
                    }
                ],
            }
            for i, (a, b) in enumerate(zip(part, part[1:], strict=False))
        ]
        squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": questions}]}
        (folder / f"qa_{split}.json").write_text(json.dumps(squad))


class Commands:
    """Runs commands of a checkout and collects hashes."""

    def __init__(self, tree: Path, folder: Path):
        self._tree, self._folder = tree.resolve(), folder
        self._environment = os.environ | {
            "PYTHONPATH": str(self._tree),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "JAX_DUMP_IR_MODES": "stablehlo",
        }
        self.hashes: list[str] = []

    def __call__(self, command: str, flags: str, name: str = "") -> None:
        dump = self._folder / "ir" / (name or "unused")
        dump.mkdir(parents=True, exist_ok=True)
        environment = self._environment | ({"JAX_DUMP_IR_TO": str(dump)} if name else {})
        words = [sys.executable, "-m", f"bertjax.{command}", *flags.split()]
        done = subprocess.run(
            words, cwd=self._tree, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"bertjax.{command} {flags}\n{done.stderr[-2000:]}")
        updates = set()
        for file in dump.glob("*") if name else ():
            lines = [re.sub(r" loc\(.*\)", "", line) for line in file.read_text().splitlines()]
            text = "\n".join(line for line in lines if not line.startswith("#loc"))
            # An update replaces its state, and has the backward pass of a model.
            if re.search("jax.buffer_donor|tf.aliasing_output", text) and len(lines) > 500:
                text = re.sub(r"@\w+", "@", text)
                updates.add(hashlib.sha256(text.encode()).hexdigest()[:16])
        self.hashes += [f"update {name} {digest}" for digest in sorted(updates)]

    def interrupted(self, command: str, flags: str, workdir: Path) -> None:
        """Runs a command, stops it by SIGTERM after its first checkpoint, and runs it again."""
        words = [sys.executable, "-m", f"bertjax.{command}", *flags.split()]
        with subprocess.Popen(words, cwd=self._tree, env=self._environment) as process:
            while process.poll() is None and not [*workdir.glob("checkpoints/[0-9]*")]:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
        if process.returncode != STOPPED:
            raise RuntimeError(f"bertjax.{command} {flags}\nended with {process.returncode}")
        self(command, flags)

    @contextlib.contextmanager
    def bucket(self) -> Iterator[str]:
        """Yields the address of a bucket on a server of this machine, which commands find."""
        import fsspec

        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = str(found.getsockname()[1])
        names = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        names |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
        os.environ.update(names)
        self._environment |= names
        server = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
        with subprocess.Popen(
            server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                for _ in range(300):
                    with contextlib.suppress(OSError):
                        socket.create_connection(("127.0.0.1", int(port)), 1).close()
                        break
                    time.sleep(0.1)
                system = fsspec.filesystem("s3")
                system.mkdir("hashes")
                yield "s3://hashes"
                system.get("hashes/run/model", str(self._folder / "run_bucket"), recursive=True)
            finally:
                process.kill()

    def collect(self, pattern: str) -> None:
        """Adds the hashes of files."""
        for file in sorted(self._folder.glob(pattern)):
            digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
            self.hashes.append(f"file {file.relative_to(self._folder)} {digest}")


def recipe_flags(tree: Path) -> dict[str, str]:
    """Returns the flags of two recipes, which older checkouts have under other names."""
    if "lora_rank" in (tree / "bertjax/config/finetune_config.py").read_text():
        return {
            "tagger": "--feature_layers -1 -2 --tagger bilstm --tagger_size 8",
            "teacher": "--teacher",
        }
    return {
        "tagger": "--tagger.layers -1 -2 --tagger.kind bilstm --tagger.size 8",
        "teacher": "--teacher.model",
    }


def run(tree: Path, folder: Path) -> list[str]:
    """Runs all commands and returns the hashes."""
    write_inputs(folder)
    (folder / "config.py").write_text(CONFIG)
    (folder / "phases.py").write_text(PHASES)
    call = Commands(tree, folder)
    vocabulary = {"wordpiece": 120, "bpe": 300, "unigram": 120}
    for kind, size in vocabulary.items():
        flags = f"--kind {kind} --vocab_size {size} --output {folder}/tokenizer_{kind}"
        call("train_tokenizer", f"--input {folder}/text.txt {flags}")
    call.collect("tokenizer_*/*")
    text = f"--input {folder}/text.txt --eval_fraction 0.1 --num_processes 1 --max_length"
    for name, kind, more in (
        ("nsp", "wordpiece", ""),
        ("phases", "unigram", ""),
        ("sop", "unigram", "--objective sop"),
        ("full_sentences", "bpe", "--objective full_sentences"),
        ("packed", "wordpiece", "--pack"),
    ):
        out = f"--tokenizer {folder}/tokenizer_{kind} --output {folder}/data_{name} {more}"
        call("prepare", f"{text} {'16 32' if name == 'phases' else '32'} {out}")
    call.collect("data_*/*.array_record")
    sizes = " ".join(f"--model.{key} {value}" for key, value in SIZES.items())
    for name, data, vocab, more in (
        ("bert", "nsp", 120, ""),
        ("roberta", "full_sentences", 300, ROBERTA),
        ("albert", "sop", 120, ALBERT),
        ("distilbert", "nsp", 120, DISTILBERT),
        (
            *("distilled", "nsp", 120),
            f"--model.num_hidden_layers 1 --distillation.layers 1 "
            f"--distillation.teacher {folder}/run_bert",
        ),
        ("packed", "packed", 120, ""),
        ("accumulation", "nsp", 120, "--phases.0.accumulation_steps 2"),
        ("phases", "phases", 120, ""),
    ):
        places = f"--data {folder}/data_{data} --workdir {folder}/run_{name}"
        config = f"{folder}/{'phases' if name == 'phases' else 'config'}.py"
        model = f"{sizes} --model.vocab_size {vocab}"
        call("pretrain", f"--config {config} {model} {PRETRAIN} {places} {more}", name)
    run = f"--config {folder}/config.py {sizes} --model.vocab_size 120 {PRETRAIN}"
    run += f" --data {folder}/data_nsp --workdir"
    workdir = folder / "run_resumed"
    more = "--phases.0.num_steps 60 --save_every 5"
    call.interrupted("pretrain", f"{run} {workdir} {more}", workdir)
    with call.bucket() as bucket:
        call("pretrain", f"{run} {bucket}/run")
    flags = recipe_flags(tree)
    for name, task, more in (
        *((kind, kind, "") for kind in ("classify", "regress", "tag", "choice", "qa")),
        ("multi", "classify", ""),
        ("tagger", "tag", flags["tagger"]),
        ("taught", "classify", f"{flags['teacher']} {folder}/tuned_classify/model"),
    ):
        kind = {"tagger": "tag", "taught": "classify"}.get(name, name)
        suffix = "json" if kind == "qa" else "jsonl"
        files = " ".join(f"--{s} {folder}/{kind}_{s}.{suffix}" for s in ("train", "dev"))
        places = f"--init {folder}/run_bert --workdir {folder}/tuned_{name}"
        call("finetune", f"--task {task} {files} {places} {FINETUNE} {more}", f"tuned_{name}")
    for file in COMPARED:
        call.collect(f"*/model/{file}")
        call.collect(f"*/{file}")
    call.collect("*/predictions/*")
    return call.hashes


def main() -> None:
    """Reads the flags and writes the hashes."""
    parser = argparse.ArgumentParser(description="Hashes of what a checkout computes.")
    parser.add_argument("--tree", type=Path, default=Path("."))
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    # The same name in every run, since model cards and run.json contain paths.
    folder = Path(tempfile.gettempdir()) / "bertjax_program_hashes"
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    folder.mkdir()
    args.output.write_text("\n".join(run(args.tree, folder)) + "\n")


if __name__ == "__main__":
    main()
