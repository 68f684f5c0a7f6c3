"""Compares a pretraining step or a forward pass with PyTorch on the same device and batch.

    python benchmarks/pretraining.py [--model bert-base-uncased] [--batch_size 8] [--max_length 128]
        [--mode step|forward] [--ours float32 bfloat16] [--theirs sdpa-float32 sdpa-autocast]
        [--allocators malloc huge_pages tcmalloc]

Rows are random and full. Steps have dropout (`float32-undropped`: none), the MLM head at the masked
positions only, AdamW and clipping. Parameters are in float32; for forward passes `bfloat16-stored`
stores them in bfloat16, like PyTorch's `bfloat16`. Each contender runs in its own process with one
memory allocator. After compilation the contenders take turns, one block of steps at a time. Prints
one line of JSON per contender: median seconds, the ratio to each of our contenders with the same
allocator, and for ours the ratio to the roofline of its matrix multiplications. Needs the extra
`parity`, and for tcmalloc its library (Debian's libtcmalloc-minimal4).
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from pretraining_pytorch import PyTorchSubject
from processes import Worker
from reporting import parser_of, report

from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.config.model import DROPOUT_FIELDS
from bertjax.devices.compilation import use_compilation_cache
from bertjax.devices.flops import Roofline, forward_products
from bertjax.inference.predictor import for_inference, inference_params, stacked
from bertjax.model import named_config
from bertjax.model.bert import MODEL_INPUTS
from bertjax.train.program import random_rows
from bertjax.train.throughput import Subject
from bertjax.weights.families import config_to_hf

# Environment variables that choose a memory allocator.
ALLOCATORS = {
    "malloc": {},
    "huge_pages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},  # glibc 2.35 and later
    "tcmalloc": {"LD_PRELOAD": "libtcmalloc_minimal.so.4"},
}

# Number of steps -> seconds per step, and those of its matrix multiplications alone, or None.
Block = Callable[[int], tuple[float, float | None]]


def config_of(args: argparse.Namespace, kind: str) -> PretrainConfig:
    """Returns the config of our run; `kind` is a dtype, with the suffix "-undropped" no dropout."""
    dtype, _, how = kind.partition("-")
    changes = dict.fromkeys(DROPOUT_FIELDS, 0.0) if how == "undropped" else {}
    return PretrainConfig(
        model=dataclasses.replace(named_config(args.model), **args.changes, **changes),
        phases=(Phase(num_steps=1, max_length=args.max_length, batch_size=args.batch_size),),
        optimizer=OptimizerConfig(recipe="adamw", warmup_steps=0),
        dtype=dtype,  # pyright: ignore[reportArgumentType]
        unroll=args.unroll,
    )


def our_block(args: argparse.Namespace, kind: str) -> Block:
    """Returns a function that runs our steps or forward passes."""
    use_compilation_cache()
    config = config_of(args, kind)
    subject = Subject(config, 0)
    products = forward_products(config.model, args.batch_size, args.max_length, subject.predictions)
    if args.mode == "step":
        roofline = Roofline(products, jnp.dtype(config.dtype))

        def step(steps: int) -> tuple[float, float]:
            return subject.block(steps)["seconds"], roofline.seconds()

        return step
    model = for_inference(subject.program.model)
    params = inference_params(subject.state.params, model)
    if kind.endswith("-stored"):
        params = jax.tree.map(lambda p: p.astype(config.dtype), params)

    @jax.jit
    def outputs(params, batch):
        inputs = [batch[key] for key in MODEL_INPUTS]
        return model.apply(
            {"params": stacked(params)}, *inputs, masked_positions=batch["masked_positions"]
        )

    batch = next(subject.batches)

    def forward(steps: int) -> None:
        for _ in range(steps):
            jax.block_until_ready(outputs(params, batch))

    return timed(forward)


def pytorch_block(args: argparse.Namespace, kind: str) -> Block:
    """Returns a function that runs the steps or forward passes of PyTorch."""
    config = config_of(args, "float32")
    batch = random_rows(config, config.phases[0], args.batch_size)
    subject = PyTorchSubject(config_to_hf(config.model), batch, kind, args.device)
    return timed(getattr(subject, args.mode))


def timed(block: Callable[[int], Any]) -> Block:
    """Returns a function that measures the seconds per step."""

    def seconds(steps: int) -> tuple[float, None]:
        begin = time.perf_counter()
        block(steps)
        return (time.perf_counter() - begin) / steps, None

    return seconds


def parse() -> argparse.Namespace:
    """Reads the flags."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="bert-base-uncased")
    parser.add_argument("--changes", type=json.loads, default={}, help="fields of the model, JSON")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--mode", choices=("step", "forward"), default="step")
    parser.add_argument("--ours", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--theirs", nargs="*", default=["sdpa-float32", "sdpa-autocast"])
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=["malloc"])
    parser.add_argument("--unroll", type=int, help="unroll factor of the layers")
    parser.add_argument("--steps", type=int, default=2, help="steps per block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Runs all contenders in turns and prints one line for each."""
    args = parse()
    kinds = [(our_block, f"bertjax-{kind}", kind) for kind in args.ours]
    kinds += [(pytorch_block, kind, kind) for kind in args.theirs]
    # One allocator at a time, because all its contenders are in memory together.
    for allocator in args.allocators:
        workers = {
            name: Worker(make, args, kind, **ALLOCATORS[allocator]) for make, name, kind in kinds
        }
        for worker in workers.values():
            worker(1)
        times: dict[str, list[tuple[float, float | None]]] = {name: [] for name in workers}
        for _ in range(args.rounds):
            for name, worker in workers.items():
                times[name].append(worker(args.steps))
        for worker in workers.values():
            worker.close()
        for name in times:
            report(_line(args, allocator, name, times), args.output, ["torch", "transformers"])


def _line(
    args: argparse.Namespace,
    allocator: str,
    name: str,
    times: dict[str, list[tuple[float, float | None]]],
) -> dict[str, Any]:
    """Returns the result of a contender: medians over rounds, and of ratios within rounds."""

    def ratio(other: str) -> float:
        rounds = zip(times[name], times[other], strict=True)
        return round(statistics.median(a[0] / b[0] for a, b in rounds), 2)

    line: dict[str, Any] = {
        "contender": name,
        "allocator": allocator,
        "seconds": round(statistics.median(seconds for seconds, _ in times[name]), 4),
    }
    ours = [other for other in times if other.startswith("bertjax-") and other != name]
    line |= {f"over_{other}": ratio(other) for other in ours}
    alone = [products / seconds for seconds, products in times[name] if products is not None]
    if alone:
        line["roofline_ratio"] = round(statistics.median(alone), 2)
    return line | {
        "mode": args.mode,
        "model": args.model,
        "changes": args.changes,
        "unroll": args.unroll,
        "batch": [args.batch_size, args.max_length],
    }


if __name__ == "__main__":
    main()
