"""A pretraining step, or a forward pass, beside PyTorch's on the same device and batch, in one run.

    python benchmarks/pretraining.py [--model bert-base-uncased] [--batch_size 8] [--max_length 128]
        [--mode step|forward] [--ours float32 bfloat16] [--theirs sdpa-float32 sdpa-autocast]

Full random rows, dropout on in steps, masked positions alone through the vocabulary, AdamW and
clipping. Blocks of all contenders take turns; what compiles does so before. A line of JSON a
contender: median seconds, its ratio to the first contender of the same precision on our side, and
ours beside the roofline of its own matrix products. Needs the extra `parity`.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from pretraining_pytorch import Theirs
from reporting import report

from bertjax.benchmark import Subject
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.model import named_config
from bertjax.pretraining.program import random_rows
from bertjax.train.compilation_cache import use_compilation_cache
from bertjax.train.objective import MODEL_INPUTS
from bertjax.train.roofline import Roofline, forward_products
from bertjax.weights.families import config_to_hf

Block = Callable[[int], Any]


def config_of(args: argparse.Namespace, dtype: Any) -> PretrainConfig:
    """Our run."""
    return PretrainConfig(
        model=dataclasses.replace(named_config(args.model), **args.changes),
        phases=(Phase(num_steps=1, max_length=args.max_length, batch_size=args.batch_size),),
        optimizer=OptimizerConfig(recipe="adamw", warmup_steps=0),
        dtype=dtype,
        unroll=args.unroll,
    )


def our_block(config: PretrainConfig, mode: str) -> Block:
    """Our steps or forward passes."""
    subject = Subject(config, 0)
    if mode == "step":
        return subject.block
    model, params = subject.program.model, subject.state.params

    @jax.jit
    def outputs(params, batch):
        inputs = [batch[key] for key in MODEL_INPUTS]
        return model.apply({"params": params}, *inputs, masked_positions=batch["masked_positions"])

    batch = next(subject.batches)

    def forward(steps: int) -> None:
        found: Any = None
        for _ in range(steps):
            found = outputs(params, batch)
        jax.block_until_ready(found)

    return forward


def timed(block: Block, steps: int) -> float:
    """Seconds a step."""
    begin = time.perf_counter()
    block(steps)
    return (time.perf_counter() - begin) / steps


def main() -> None:
    """Reads the flags, lets all take turns, prints a line each."""
    parser = argparse.ArgumentParser(description="A pretraining step beside PyTorch's.")
    parser.add_argument("--model", default="bert-base-uncased")
    parser.add_argument("--changes", type=json.loads, default={}, help="fields of the model, JSON")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--mode", choices=("step", "forward"), default="step")
    parser.add_argument("--ours", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--theirs", nargs="*", default=["sdpa-float32", "sdpa-autocast"])
    parser.add_argument("--unroll", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="of a block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    use_compilation_cache()
    contenders: dict[str, Block] = {}
    rooflines: dict[str, Roofline] = {}
    first = config_of(args, "float32")
    phase = first.phases[0]
    batch = random_rows(first, phase, args.batch_size)
    for dtype in args.ours:
        contenders[f"bertjax-{dtype}"] = our_block(config_of(args, dtype), args.mode)
        predictions = batch["masked_positions"].shape[1]
        products = forward_products(first.model, args.batch_size, args.max_length, predictions)
        rooflines[f"bertjax-{dtype}"] = Roofline(products, jnp.dtype(dtype))
    for kind in args.theirs:
        fields = config_to_hf(first.model)
        contenders[kind] = getattr(Theirs(fields, batch, kind, args.device), args.mode)
    for block in contenders.values():
        timed(block, 1)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    alone: dict[str, list[float]] = {name: [] for name in rooflines}
    for _ in range(args.rounds):
        for name, block in contenders.items():
            seconds[name].append(timed(block, args.steps))
            if name in rooflines and args.mode == "step":
                alone[name].append(rooflines[name].seconds() / seconds[name][-1])
    settings = {
        "mode": args.mode,
        "model": args.model,
        "changes": args.changes,
        "unroll": args.unroll,
        "batch": [args.batch_size, args.max_length],
    }
    for name, found in seconds.items():
        ratios = {
            f"over_{other}": round(
                statistics.median(a / b for a, b in zip(found, seconds[other], strict=True)), 2
            )
            for other in rooflines
            if other != name
        }
        line = {"contender": name, "seconds": round(statistics.median(found), 4), **ratios}
        if alone.get(name):
            line["roofline_ratio"] = round(statistics.median(alone[name]), 2)
        report(line | settings, args.output, ["torch", "transformers"])


if __name__ == "__main__":
    main()
