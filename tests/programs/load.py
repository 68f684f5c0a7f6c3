"""Predicts and embeds a file of a million lines in flat memory, killed and continued on the way.

    python -m tests.programs.load [--lines 1000000] [--kills 2] [--output FILE]

Trains a tiny classifier, writes a file with `--lines` texts, and runs `predict` and
`embed` on it. Each is killed (SIGKILL) `--kills` times at random instants and run again.
Then every line must be there once, in order, with the result that the text has in a file of its
own. Memory is the resident set, sampled twice a second: it must not grow with the file, so the peak
of the second half of the longest start may exceed that of its first half by 10 % at most.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.lines import json_lines
from tests.programs.damage import run

GROWTH = 1.1
# Lines whose results are compared with those of a short file.
COMPARED = 500


class Part(NamedTuple):
    """A start of the command: its seconds, and the resident set in MB over time."""

    seconds: float
    memory: list[float]
    is_killed: bool


def write_model(folder: Path) -> Path:
    """Trains a tiny classifier; returns its directory."""
    from tests.programs.commands import config_text, write_inputs

    write_inputs(folder)
    (folder / "config.py").write_text(config_text((20, 2), 7, 30, "save_every=20"))
    text, train, dev = (folder / name for name in ("text.txt", "train.jsonl", "dev.jsonl"))
    run("train_tokenizer", "--input", text, "--vocab_size", 120, "--output", folder / "tokenizer")
    sizes = ("--max_length", 32, "--eval_fraction", 0.1, "--num_processes", 1)
    tokenizer = ("--tokenizer", folder / "tokenizer")
    run("prepare", "--input", text, *tokenizer, "--output", folder / "data", *sizes)
    paths = ("--config", folder / "config.py", "--data", folder / "data")
    run("pretrain", *paths, "--workdir", folder / "run")
    flags = ("--task", "classify", "--train", train, "--dev", dev, "--max_length", 32)
    start = ("--init", folder / "run" / "model", "--workdir", folder / "tuned")
    run("finetune", *flags, *start, "--batch_size", 8, "--max_steps", 20)
    return folder / "tuned" / "model"


def texts(count: int) -> list[str]:
    """Returns different short texts."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(60)]
    return [f"{i} {' '.join(rng.choices(words, k=rng.randint(2, 9)))}" for i in range(count)]


def memory_of(process: subprocess.Popen) -> float:
    """Returns the resident set of a process in MB; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(s.split()[1]) / 1024 for s in status.splitlines() if "VmRSS" in s), 0.0)


def start(command: list[str], kill_after: float | None) -> Part:
    """Runs the command, at most `kill_after` seconds."""
    since, memory = time.monotonic(), []
    process = subprocess.Popen([sys.executable, "-m", "bertjax", *command])
    while process.poll() is None:
        time.sleep(0.5)
        memory.append(memory_of(process))
        if kill_after is not None and time.monotonic() - since > kill_after:
            process.send_signal(signal.SIGKILL)
            process.wait()
    killed = process.returncode == -signal.SIGKILL
    assert killed or process.returncode == 0, f"{command}: status {process.returncode}"
    return Part(time.monotonic() - since, memory, killed)


def growth(memory: list[float]) -> float:
    """Returns the peak of the second half of the samples over that of the first half."""
    half = len(memory) // 2
    return max(memory[half:]) / max(memory[:half])


def measure(command: list[str], kills: int, rng: random.Random) -> dict[str, Any]:
    """Runs the command with kills until it ends; returns times and memory."""
    parts = [start(command, rng.uniform(20, 60)) for _ in range(kills)]
    if all(part.is_killed for part in parts):
        parts.append(start(command, None))
    # The last start may have been short, and then its samples are those of importing libraries.
    longest = max(parts, key=lambda part: len(part.memory))
    return {
        "kills": sum(part.is_killed for part in parts),
        "seconds": round(sum(part.seconds for part in parts), 1),
        "peak_mb": round(max(max(part.memory) for part in parts)),
        "growth": round(growth(longest.memory), 3),
    }


def check_predictions(output: Path, reference: Path, count: int) -> int:
    """Returns the number of wrong lines: missing, doubled, out of order or with other labels."""
    lines = json_lines(output)
    few = json_lines(reference)
    wrong = abs(len(lines) - count) + sum(line["id"] != str(i) for i, line in enumerate(lines))
    keys = [key for key in few[0] if key != "id"]
    for line, expected in zip(lines, few, strict=False):
        wrong += not all(_is_close(line[key], expected[key]) for key in keys)
    return wrong


def _is_close(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_close(a[key], b[key]) for key in a)
    return abs(a - b) < 1e-5 if isinstance(a, float) else a == b


def main() -> int:
    """Reads the flags, runs both commands, prints a line of JSON for each."""
    parser = argparse.ArgumentParser(description="Predicts and embeds a million lines.")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    rng, results = random.Random(options.seed), {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        model, written = write_model(folder), texts(options.lines)
        for name, part in (("all", written), ("few", written[:COMPARED])):
            (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
            rows = "".join(json.dumps({"text": text}) + "\n" for text in part)
            (folder / f"{name}.jsonl").write_text(rows)
        common = ["--model", str(model)]
        for name, kind, suffix in (("predict", "jsonl", "jsonl"), ("embed", "txt", "npy")):
            outputs = {part: folder / f"{name}-{part}.{suffix}" for part in ("all", "few")}
            flags = {
                part: [name, *common, "--input", f"{folder}/{part}.{kind}", "--output", str(output)]
                for part, output in outputs.items()
            }
            result = measure(flags["all"], options.kills, rng)
            start(flags["few"], None)
            if name == "predict":
                result["wrong"] = check_predictions(outputs["all"], outputs["few"], options.lines)
            else:
                vectors, few = (np.load(path, mmap_mode="r") for path in outputs.values())
                far = np.abs(vectors[: len(few)] - few).max(axis=1) > 1e-5
                result["wrong"] = abs(len(vectors) - options.lines) + int(far.sum())
            results[name] = {"lines": options.lines, **result}
            print(json.dumps({name: results[name]}), flush=True)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(r["wrong"] or r["growth"] > GROWTH for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
