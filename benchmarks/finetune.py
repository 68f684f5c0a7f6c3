"""Compares the time per epoch of fine-tuning with PyTorch on the same device.

    python benchmarks/finetune.py --model DIR --data_dir glue --tasks rte sst2 [--rounds 5]

Alternates blocks of steps of both sides, in float32 with dropout, each with its own shuffle of the
train split. bertjax packs sequences into rows, PyTorch pads each batch to its longest sequence. The
time per epoch is the mean step time times the steps per epoch. The first block of each side, which
compiles, is not counted. Needs the extra `parity`.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import finetune_pytorch
import jax
import transformers
from reporting import parser_of, report

from bertjax.devices.compilation import use_compilation_cache
from bertjax.tasks import finetune_config
from bertjax.train.facts import gather_finetuning
from bertjax.train.finetuning import FinetuningJob
from bertjax.train.run_plan import plan_finetuning
from bertjax.train.workdir import Workdir

FOLDERS = {"cola": "CoLA", "sst2": "SST-2", "stsb": "STS-B", "rte": "RTE", "conll": ""}


class BertjaxSteps:
    """Training steps of bertjax."""

    def __init__(self, name: str, model: str, data_dir: Path, folder: Path):
        config = finetune_config(
            task=name, init=model, workdir=str(folder / name), data_dir=str(data_dir)
        )
        encoded = folder / f"{name}.data"
        encoded.mkdir()
        facts = gather_finetuning(config, encoded, [])
        run = FinetuningJob(plan_finetuning(config, facts), facts, Workdir(folder / name))
        self.steps_per_epoch = run.plan.batches_per_epoch
        self.shapes: set[tuple[int, ...]] = set()
        self._batches, self._state, self._step = (
            run.batches(0, 0),
            run.new_state(),
            run.program.seeded_step(run.phases[0]),
        )

    def __call__(self, steps: int) -> None:
        metrics: Any = None
        for _ in range(steps):
            batch = next(self._batches)
            self.shapes.add(batch["input_ids"].shape)
            self._state, metrics = self._step(self._state, batch)
        jax.block_until_ready(metrics)


class PyTorchSteps:
    """Training steps of PyTorch."""

    def __init__(self, name: str, model: str, data_dir: Path):
        task = finetune_pytorch.TASKS[name]
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        file = data_dir / FOLDERS[name] / task.train_file
        rows = finetune_pytorch.encode(task.read(file), tokenizer, task)
        self._running: Iterator[Any] = finetune_pytorch.steps(
            finetune_pytorch.load_model(model, task), rows, finetune_pytorch.Settings()
        )

    def __call__(self, steps: int) -> None:
        losses = [next(self._running)[1] for _ in range(steps)]
        losses[-1].item()


def timed(side: Callable[[int], None], steps: int) -> tuple[float, float]:
    """Measures wall time and CPU time of a block of steps, in seconds."""
    start, start_cpu = time.perf_counter(), time.process_time()
    side(steps)
    return time.perf_counter() - start, time.process_time() - start_cpu


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs alternating blocks; returns seconds per epoch of both sides and the median ratio."""
    with tempfile.TemporaryDirectory() as folder:
        ours = BertjaxSteps(name, args.model, args.data_dir, Path(folder))
        pytorch = PyTorchSteps(name, args.model, args.data_dir)
        timed(ours, args.steps)
        timed(pytorch, 2)
        blocks = [(timed(ours, args.steps), timed(pytorch, args.steps)) for _ in range(args.rounds)]
    wall = [(a[0], b[0]) for a, b in blocks]
    epoch = ours.steps_per_epoch / args.steps
    return {
        "task": name,
        "bertjax_seconds_per_epoch": round(epoch * statistics.mean(a for a, _ in wall), 1),
        "pytorch_seconds_per_epoch": round(epoch * statistics.mean(b for _, b in wall), 1),
        "pytorch_over_bertjax": round(statistics.median(b / a for a, b in wall), 2),
        "of_processor_time": round(statistics.median(b[1] / a[1] for a, b in blocks), 2),
        "blocks": [round(b / a, 2) for a, b in wall],
        "train_shapes": sorted(ours.shapes),
    }


def main() -> None:
    """Prints one line of JSON per task, and appends it to --output."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data_dir", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", default=["rte"], choices=FOLDERS)
    parser.add_argument("--steps", type=int, default=20, help="steps per block")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    use_compilation_cache()
    for name in args.tasks:
        report(compare(name, args), args.output, ["torch", "transformers"])


if __name__ == "__main__":
    main()
