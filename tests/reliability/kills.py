"""Kills commands at random instants, runs them again until they end, and compares the results.

    python -m tests.reliability.kills --kills 300 --seed 0 [--command pretrain]

Every command is run once without a kill. Then it is killed (SIGKILL, all its processes), run again,
and so on, until it ends by itself; the kills stop when `--kills` of them are spent. Half of them
wait for a temporary file of a save, an export or an output to appear, and hit while it is written.
What the command leaves must be the same bytes as without a kill: prepared data, models, checkpoints
(parameters, moments and the position in the data), and metrics except for times. Prints a table of
kills, of those during a save, restarts, steps and seconds lost; exits with 1 if anything differs.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Names of what is written and then renamed: checkpoints, files, folders, outputs.
TEMPORARY = ("*orbax-checkpoint-tmp*", "*.tmp", "*.writing*", "*.partial*")
CONFIG = """
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.config.model import BertConfig
config = PretrainConfig(
    model=BertConfig(vocab_size=120, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                     intermediate_size=64, max_position_embeddings=64),
    phases=(Phase(num_steps=300, max_length=32, batch_size=8),
            Phase(num_steps=100, max_length=32, batch_size=8, learning_rate_curve="continue")),
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=5),
    log_every=7, eval_every=30, eval_rows=32, save_every=20, unroll=1, peak_tflops=0.1,
)
"""


@dataclasses.dataclass
class Command:
    """A command that is killed.

    Attributes:
        arguments: the module and its flags, with the output folder.
        output: the file or folder with its results.
        facts: a function output -> what must be equal.
        steps: a function output -> (last logged step, newest saved step); None if it has no steps.
    """

    arguments: list[str]
    output: Path
    facts: Callable[[Path], Any]
    steps: Callable[[Path], tuple[int, int]] | None = None


@dataclasses.dataclass
class Result:
    """What the kills of one command did."""

    kills: int = 0
    during_a_write: int = 0
    starts: int = 0
    steps_lost: int = 0
    seconds: float = 0.0
    seconds_without_kills: float = 0.0
    equal: bool = False


def files_in(folder: Path) -> dict[str, str]:
    """Returns {relative path: sha256} of all files in a folder, or of one file."""
    paths = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        path.relative_to(folder.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def run_facts(workdir: Path) -> dict[str, Any]:
    """Returns what must be equal of a run: model, checkpoints, predictions and metrics."""
    from bertjax.training.metric_files import read_lines

    facts = {"model": list(files_in(workdir / "model").values())}
    if (workdir / "predictions").is_dir():
        facts["predictions"] = list(files_in(workdir / "predictions").values())
    clocks = ("tokens_per_second", "mfu")
    facts["metrics"] = [
        {key: value for key, value in line.items() if not key.endswith(clocks)}
        for line in read_lines(workdir / "metrics.jsonl").lines
    ]
    facts["checkpoints"] = {
        folder.name: _arrays(folder)
        for folder in sorted((workdir / "checkpoints").iterdir())
        if folder.name.isdigit()
    }
    return facts


def _arrays(folder: Path) -> dict[str, str]:
    """Returns hashes of the arrays of a checkpoint, and its position in the data."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        state = checkpointer.restore((folder / "state").absolute())
    arrays = {
        jax.tree_util.keystr(path): hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    return arrays | {"progress": (folder / "progress" / "metadata").read_text()}


def run_steps(workdir: Path) -> tuple[int, int]:
    """Returns the last step in metrics.jsonl and the newest saved step of a run."""
    from bertjax.checkpoint_files import steps_in

    lines = []
    if (workdir / "metrics.jsonl").is_file():
        lines = (workdir / "metrics.jsonl").read_text(errors="replace").splitlines()
    steps = [json.loads(line)["step"] for line in lines if line.endswith("}")]
    return max(steps, default=0), max(steps_in(workdir / "checkpoints"), default=0)


def write_inputs(folder: Path) -> None:
    """Writes a corpus, a labelled file, lines to predict, and the config of a run."""
    rng = random.Random(0)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 6))) for _ in range(60)]
    sentences = [" ".join(rng.choices(words, k=rng.randint(4, 11))) + "." for _ in range(4000)]
    documents = ["\n".join(sentences[i : i + 10]) for i in range(0, 4000, 10)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    for name, part in (("train", sentences[:256]), ("dev", sentences[300:360])):
        rows = ({"text": s, "label": "ab"[len(s) % 2]} for s in part)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = "".join(json.dumps({"text": s}) + "\n" for s in sentences * 3)
    (folder / "lines.jsonl").write_text(lines)
    (folder / "config.py").write_text(CONFIG)


def commands(folder: Path, place: Path) -> dict[str, Command]:
    """Returns the commands, whose inputs are in `folder` and whose outputs are in `place`."""
    text, model = f"--input {folder}/text.txt", f"{folder}/pretrain/model"
    fast = "--max_length 32 --batch_size 8 --unroll 1 --log_every 5 --num_epochs 3"
    flags = {
        "train_tokenizer": f"{text} --vocab_size 120",
        "prepare": f"{text} --tokenizer {folder}/train_tokenizer --max_length 32 "
        "--eval_fraction 0.1 --num_processes 2 --chunk_mb 0.02",
        "pretrain": f"--config {folder}/config.py --data {folder}/prepare",
        "finetune": f"--task classify --init {model} --train {folder}/train.jsonl "
        f"--dev {folder}/dev.jsonl {fast}",
        "predict": f"--model {folder}/finetune/model --input {folder}/lines.jsonl",
        "convert": f"--input {model}",
    }
    is_run = ("pretrain", "finetune")
    made = {}
    for name, words in flags.items():
        output = place / (name + (".jsonl" if name == "predict" else ""))
        where = "--workdir" if name in is_run else "--output"
        made[name] = Command(
            [f"bertjax.{name}", *words.split(), where, str(output)],
            output,
            run_facts if name in is_run else lambda out: list(files_in(out).values()),
            run_steps if name in is_run else None,
        )
    return made


class Killer:
    """Runs commands and kills them."""

    def __init__(self, folder: Path, seed: int):
        self._rng, self._log = random.Random(seed), folder / "log.txt"
        self._environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def start(self, command: Command) -> subprocess.Popen:
        """Starts a command in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", *command.arguments],
            env=self._environment,
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, command: Command) -> float:
        """Runs a command to its end without a kill; returns the seconds it took."""
        since = time.monotonic()
        status = self.start(command).wait()
        assert status == 0, f"{command.arguments}: status {status}\n{self._log.read_text()[-3000:]}"
        return time.monotonic() - since

    def run_with_kills(self, command: Command, kills: int, usual: float) -> Result:
        """Runs a command until it ends by itself, with at most `kills` kills on the way."""
        result = Result(seconds_without_kills=usual)
        since = time.monotonic()
        while True:
            process = self.start(command)
            result.starts += 1
            killed = result.kills < kills and self._kill(process, command, result, usual)
            status = process.wait()
            if not killed:
                break
        text = self._log.read_text()[-3000:]
        assert status == 0, f"{command.arguments}: status {status}\n{text}"
        result.seconds = time.monotonic() - since
        return result

    def _kill(
        self, process: subprocess.Popen, command: Command, result: Result, usual: float
    ) -> bool:
        """Kills a process at a random instant; returns False if it has ended before."""
        wait_for_write = self._rng.random() < 0.5
        deadline = time.monotonic() + self._rng.uniform(0.2, 1.0) * usual
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        limit = time.monotonic() + usual
        writing = False
        while wait_for_write and process.poll() is None and time.monotonic() < limit:
            if self._is_writing(command.output):
                writing = True
                time.sleep(self._rng.uniform(0, 0.05))
                break
        if process.poll() is not None:
            return False
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        result.kills += 1
        result.during_a_write += writing
        if command.steps is not None:
            last, saved = command.steps(command.output)
            result.steps_lost += max(0, last - saved)
        return True

    @staticmethod
    def _is_writing(output: Path) -> bool:
        places = [output.parent, output, output / "checkpoints"]
        return any(
            next(place.glob(pattern), None) is not None
            for place in places
            if place.is_dir()
            for pattern in TEMPORARY
        )


def harness(
    folder: Path, kills: int, seed: int, names: list[str] | None = None
) -> dict[str, Result]:
    """Kills each command its share of `kills` times; returns the results by command."""
    write_inputs(folder)
    killer, results = Killer(folder, seed), {}
    (folder / "killed").mkdir()
    whole, killed = commands(folder, folder), commands(folder, folder / "killed")
    wanted = names or list(whole)
    for name, command in whole.items():
        usual = killer.run(command)
        if name not in wanted:
            continue
        # Trainings have most of what can go wrong.
        weights = {n: 4 if n in ("pretrain", "finetune") else 1 for n in wanted}
        share = max(1, kills * weights[name] // sum(weights.values()))
        total = Result()
        while total.kills < share:
            _remove(killed[name].output)
            result = killer.run_with_kills(killed[name], share - total.kills, usual)
            equal = killed[name].facts(killed[name].output) == command.facts(command.output)
            for field in ("kills", "during_a_write", "starts", "steps_lost"):
                setattr(total, field, getattr(total, field) + getattr(result, field))
            total.seconds += result.seconds
            total.seconds_without_kills += usual
            total.equal = equal and (total.equal or result.starts == total.starts)
            if not equal:
                break
        results[name] = total
    return results


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> int:
    """Reads the flags, runs the harness, prints the table."""
    parser = argparse.ArgumentParser(description="Kills commands and compares what they leave.")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = harness(Path(folder), options.kills, options.seed, options.command)
    head = ("kills", "during a write", "starts", "steps lost", "seconds", "without kills", "equal")
    print(f"{'command':16}" + "".join(f"{title:>16}" for title in head))
    for name, result in results.items():
        values = (f"{v:.1f}" if isinstance(v, float) else str(v) for v in vars(result).values())
        print(f"{name:16}" + "".join(f"{value:>16}" for value in values))
    return 0 if all(result.equal for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
