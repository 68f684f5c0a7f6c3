"""Compares scores of fine-tuning from pretrained weights and from random weights.

    python benchmarks/pretrained_scores.py --workdir W --data_dir glue --tasks sst2 stsb \\
        [--num_epochs 3] [--learning_rate 2e-4] [--seeds 3] [--curve FILE.csv]

`W` is the workdir of a finished `bertjax.pretrain`. Both sides have the same architecture,
tokenizer and settings, with seeds 0, 1, ...; each seed has other random weights. Prints one line of
JSON per task: means and standard deviations. `--curve` writes the held-out metrics of the
pretraining.
"""

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

from reporting import parser_of, report

from bertjax import finetune
from bertjax.base.workdir_files import METRICS
from bertjax.config import FinetuneConfig, OptimizerConfig
from bertjax.record.metrics import read_lines
from bertjax.weights import init_params, load_model, save_hf

HEAD = "masked_lm"
SETTINGS = ("num_epochs", "learning_rate", "seeds")
CURVE = ("eval/mlm_loss", "eval/mlm_accuracy", "eval/nsp_accuracy", "eval/unigram_entropy")


def write_random_weights(model: str, folder: Path, seed: int) -> None:
    """Writes a model with the same architecture and tokenizer, and random weights."""
    loaded = load_model(model, HEAD)
    params = init_params(loaded.model, seed)
    save_hf(folder, params, loaded.config, loaded.tokenizer, head=HEAD)


def write_curve(workdir: Path, file: Path) -> None:
    """Writes step and held-out metrics of every evaluation as CSV."""
    rows = [line for line in read_lines(workdir / METRICS).lines if CURVE[0] in line]
    with file.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out)
        table.writerow(["step", *(name.removeprefix("eval/") for name in CURVE)])
        for row in rows:
            values = (f"{row[name]:.4f}" if name in row else "" for name in CURVE)
            table.writerow([row["step"], *values])


def score(
    task: str, init: str, folder: Path, seed: int, args: argparse.Namespace
) -> dict[str, float]:
    """Fine-tunes on a task; returns the scores of the best model."""
    config = FinetuneConfig(
        task=task,
        init=init,
        workdir=str(folder),
        data_dir=args.data_dir,
        num_epochs=args.num_epochs,
        optimizer=OptimizerConfig(
            recipe="adamw",
            learning_rate=args.learning_rate,
            schedule="hf",
            warmup_steps=0,
            warmup_proportion=0.1,
        ),
        seed=seed,
    )
    (scores,) = finetune(config).runs.values()
    return scores


def summary(scores: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Returns the mean of each score, and its standard deviation if there are several seeds."""
    result = {}
    for name in scores[0]:
        values = [one[name] for one in scores]
        result[name] = {"mean": round(statistics.mean(values), 4)}
        if len(values) > 1:
            result[name]["sd"] = round(statistics.stdev(values), 4)
    return result


def main() -> None:
    """Fine-tunes from both kinds of weights for every task."""
    parser = parser_of(__doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="of a finished pretraining")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--tasks", nargs="+", default=["sst2", "stsb"])
    parser.add_argument("--num_epochs", type=float, default=3.0)
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--curve", type=Path)
    args = parser.parse_args()
    if args.curve:
        write_curve(args.workdir, args.curve)
    with tempfile.TemporaryDirectory() as folder:
        inits = {"pretrained": [str(args.workdir)] * args.seeds, "random": []}
        for seed in range(args.seeds):
            random = Path(folder) / f"random_weights_{seed}"
            write_random_weights(str(args.workdir), random, seed)
            inits["random"].append(str(random))
        for task in args.tasks:
            result = {}
            for name, models in inits.items():
                places = [Path(folder) / f"{task}_{name}_{seed}" for seed in range(args.seeds)]
                runs = enumerate(zip(models, places, strict=True))
                result[name] = summary([score(task, *run, seed, args) for seed, run in runs])
            settings = {name: getattr(args, name) for name in SETTINGS}
            report({"task": task, **result, **settings}, args.output)


if __name__ == "__main__":
    main()
