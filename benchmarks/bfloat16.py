"""Compares training in bfloat16 with training in float32.

    python benchmarks/bfloat16.py --data DIR --workdir W [--model bert-mini] [--steps 500]

Runs one training in each precision, from the same weights and on the same batches. Prints a line of
JSON: the final losses, averaged over the last tenth of the steps, their ratio, the held-out losses,
and both loss curves. An interrupted run resumes.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from reporting import parser_of, report

from bertjax import pretrain
from bertjax.base.workdir_files import METRICS
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.model import named_config
from bertjax.record.metrics import read_lines
from bertjax.tokenization import load_tokenizer

LINES = 50  # points of each curve


def trained(args: argparse.Namespace, dtype: Any) -> list[dict[str, float]]:
    """Trains in one precision; returns the logged metrics."""
    workdir = args.workdir / dtype
    pretrain(
        PretrainConfig(
            data=str(args.data),
            workdir=str(workdir),
            model=named_config(args.model, vocab_size=load_tokenizer(args.data).vocab_size),
            phases=(
                Phase(num_steps=args.steps, max_length=args.max_length, batch_size=args.batch_size),
            ),
            optimizer=OptimizerConfig(
                recipe="adamw",
                learning_rate=args.learning_rate,
                warmup_steps=args.steps // 10,
                schedule="hf",
                b2=0.98,
            ),
            dtype=dtype,
            log_every=max(1, args.steps // LINES),
            eval_every=0,
            eval_rows=1_000,
            save_every=max(1, args.steps // 5),
        )
    )
    return read_lines(workdir / METRICS).lines


def main() -> None:
    """Trains in both precisions and prints one line."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--workdir", required=True, type=Path)
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    args = parser.parse_args()
    curves, last, held_out = {}, {}, {}
    for dtype in ("float32", "bfloat16"):
        lines = trained(args, dtype)
        curves[dtype] = [round(x["train/loss"], 4) for x in lines if "train/loss" in x]
        last[dtype] = statistics.mean(curves[dtype][-max(1, LINES // 10) :])
        held_out[dtype] = [x["eval/mlm_loss"] for x in lines if "eval/mlm_loss" in x][-1]
    results = {
        "model": args.model,
        "batch": [args.batch_size, args.max_length],
        "steps": args.steps,
        "smoothed_loss": {name: round(loss, 4) for name, loss in last.items()},
        "bfloat16_over_float32": round(last["bfloat16"] / last["float32"], 5),
        "held_out_mlm_loss": {name: round(loss, 4) for name, loss in held_out.items()},
        "curves": curves,
    }
    report(results, args.output)


if __name__ == "__main__":
    main()
