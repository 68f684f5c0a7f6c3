"""The commands that the harness of kills runs, their inputs, and what must be equal of a result."""

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What a clock decides.
TIMES = ("tokens_per_second", "mfu")


def config_text(num_steps: tuple[int, int], log_every: int, eval_every: int, save: str) -> str:
    """Returns the config of a tiny pretraining run of two phases.

    Args:
        num_steps: number of steps of each phase.
        log_every: steps between two lines of metrics.
        eval_every: steps between two evaluations.
        save: fields of the config about saving.
    """
    return f"""
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.config.model import BertConfig
config = PretrainConfig(
    model=BertConfig(vocab_size=120, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                     intermediate_size=64, max_position_embeddings=64),
    phases=(Phase(num_steps={num_steps[0]}, max_length=32, batch_size=8),
            Phase(num_steps={num_steps[1]}, max_length=32, batch_size=8,
                  learning_rate_curve="continue")),
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=5),
    log_every={log_every}, eval_every={eval_every}, eval_rows=32, {save}, unroll=1,
    peak_tflops=0.1,
)
"""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that is killed.

    Attributes:
        arguments: the module and its flags, with the output.
        output: the file or folder with its results.
        facts: a function output -> what must be equal.
        steps: a function output -> (last logged step, newest saved step); None if it has no steps.
        processes: number of processes of one run.
        devices: number of devices of each process.
        is_repeatable: whether the command may be run again after its end.
        resumes: whether the command continues after a kill where it was, and not from the start.
    """

    arguments: tuple[str, ...]
    output: Path
    facts: Callable[[Path], Any]
    steps: Callable[[Path], tuple[int, int]] | None = None
    processes: int = 1
    devices: int = 2
    is_repeatable: bool = True
    resumes: bool = False


def write_inputs(folder: Path) -> None:
    """Writes a corpus, labelled files, lines to predict, and the config of a run."""
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
    (folder / "lines.txt").write_text("\n".join(sentences * 3))
    pairs = zip(sentences[:3000], sentences[1:3001], strict=True)
    lines = "".join(json.dumps({"query": q, "positive": p}) + "\n" for q, p in pairs)
    (folder / "pairs.jsonl").write_text(lines)
    (folder / "config.py").write_text(config_text((300, 100), 7, 30, "save_every=20"))
    # Steps of two hosts on one machine take much longer, so that there are fewer of them.
    hosts = config_text((60, 20), log_every=3, eval_every=10, save="save_every=5")
    (folder / "hosts_config.py").write_text(hosts)


def commands(folder: Path, place: Path) -> dict[str, Command]:
    """Returns the commands by name, in an order in which each finds what it needs.

    Args:
        folder: where the inputs are, and the results of earlier commands.
        place: where the commands write.
    """
    text, model = f"--input {folder}/text.txt", f"{folder}/pretrain/model"
    pretrain = f"pretrain --config {folder}/config.py --data {folder}/prepare --workdir OUTPUT"
    fast = "--max_length 32 --batch_size 8 --unroll 1 --log_every 5 --num_epochs 3"
    lines = f"--model {folder}/finetune/model --input {folder}/lines.jsonl --output OUTPUT"
    flags = {
        "train_tokenizer": f"train_tokenizer {text} --vocab_size 120 --output OUTPUT",
        "prepare": f"prepare {text} --tokenizer {folder}/train_tokenizer --max_length 32 "
        "--eval_fraction 0.1 --num_processes 2 --chunk_mb 0.02 --output OUTPUT",
        "pretrain": pretrain,
        "pretrain_hosts": pretrain.replace("config.py", "hosts_config.py"),
        "finetune": f"finetune --task classify --init {model} --train {folder}/train.jsonl "
        f"--dev {folder}/dev.jsonl {fast} --workdir OUTPUT",
        "predict": f"predict {lines}",
        "embed": f"embed --input {folder}/lines.txt --model {folder}/finetune/model "
        "--output OUTPUT",
        "mine": f"mine --model {model} --queries {folder}/pairs.jsonl --corpus {folder}/lines.txt "
        "--output OUTPUT",
        "convert": f"convert {model} OUTPUT",
    }
    suffixes = {"predict": ".jsonl", "embed": ".npy", "mine": ".jsonl"}
    result = {}
    for name, words in flags.items():
        output = place / (name + suffixes.get(name, ""))
        module, *rest = words.split()
        is_run = module in ("pretrain", "finetune")
        result[name] = Command(
            (f"bertjax.{module}", *(str(output) if word == "OUTPUT" else word for word in rest)),
            output,
            run_facts if is_run else lambda out: list(files_in(out).values()),
            run_steps if is_run else None,
            processes=2 if name == "pretrain_hosts" else 1,
            is_repeatable=name not in ("train_tokenizer", "convert"),
            resumes=is_run or module in ("predict", "embed", "mine"),
        )
    return result


def files_in(folder: Path) -> dict[str, str]:
    """Returns {relative path: sha256} of all files in a folder, or of one file."""
    paths = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        path.relative_to(folder.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def run_facts(workdir: Path) -> dict[str, Any]:
    """Returns what must be equal of a run: model, checkpoints, predictions, metrics and events."""
    from bertjax.record.metrics import read_lines, shown_events

    facts: dict[str, Any] = {"model": list(files_in(workdir / "model").values())}
    if (workdir / "predictions").is_dir():
        facts["predictions"] = list(files_in(workdir / "predictions").values())
    facts["metrics"] = [
        {key: value for key, value in line.items() if not key.endswith(TIMES)}
        for line in read_lines(workdir / "metrics.jsonl").lines
    ]
    facts["events"] = sorted(
        (step, tag, value)
        for (step, tag), value in shown_events(workdir).items()
        if not tag.endswith(TIMES)
    )
    facts["checkpoints"] = {
        folder.name: _arrays_in(folder)
        for folder in sorted((workdir / "checkpoints").iterdir())
        if folder.name.isdigit()
    }
    return facts


def _arrays_in(folder: Path) -> dict[str, str]:
    """Returns hashes of the arrays of a checkpoint of any number of devices, and its progress."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    path = (folder / "state").absolute()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        as_numpy = jax.tree.map(
            lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
            checkpointer.metadata(path).item_metadata.tree,
        )
        state = checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    arrays = {
        jax.tree_util.keystr(path): hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    progress = json.loads((folder / "progress" / "metadata").read_text())
    progress.pop("run_id", None)  # it is random
    return arrays | {"progress": json.dumps(progress)}


def run_steps(workdir: Path) -> tuple[int, int]:
    """Returns the last step in metrics.jsonl and the newest saved step of a run."""
    from bertjax.base.checksums import steps_in

    lines = []
    if (workdir / "metrics.jsonl").is_file():
        lines = (workdir / "metrics.jsonl").read_text(errors="replace").splitlines()
    steps = [json.loads(line)["step"] for line in lines if line.endswith("}")]
    return max(steps, default=0), max(steps_in(workdir / "checkpoints"), default=0)
