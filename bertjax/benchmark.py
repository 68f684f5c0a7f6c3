"""python -m bertjax.benchmark: how fast a pretraining runs here, and how fast it could.

Tokens per second, MFU, and the share of the step that its own matrix products take when run alone.
"""

import argparse
import dataclasses
import importlib.metadata
import itertools
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from bertjax import command_line
from bertjax.config import Phase, PretrainConfig, load_config_file
from bertjax.devices import sharding
from bertjax.devices.compilation_cache import no_compilation_cache, use_compilation_cache
from bertjax.devices.flops import peak_flops
from bertjax.devices.roofline import Roofline, forward_products
from bertjax.training.loop import fit
from bertjax.training.pretraining import PretrainingRun
from bertjax.training.pretraining_program import (
    PretrainingProgram,
    max_predictions,
    random_rows,
    with_head,
)
from bertjax.training.step import with_seed

ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class BenchmarkFlags:
    """What is measured, besides the config of the run."""

    phase: int
    steps: int
    json: str | None
    profile: str | None


class Subject:
    """A phase of a run, with batches: those of its data, or random full rows without any.

    Raises:
        ValueError: config, data and devices do not fit together.
    """

    def __init__(self, config: PretrainConfig, index: int):
        phase = config.phases[index]
        if config.data:
            with tempfile.TemporaryDirectory() as nothing_there:
                run = PretrainingRun(dataclasses.replace(config, workdir=nothing_there))
            self.program, self.flops_per_row = run.program, run.flops_per_row(phase)
            self.state: Any = run.new_state()
            self.step = run.train_step(phase)
            self.batches = run.batches(index, 0)
            self.predictions = max_predictions(run.config, phase, run.metadata.max_sequences)
            return
        if config.distillation.teacher is not None:
            raise ValueError(
                f"distillation.teacher={config.distillation.teacher!r} without --data: a teacher "
                "belongs to the tokenizer of some data; give --data."
            )
        config = with_head(config, config.model.type_vocab_size > 1)
        program = self.program = PretrainingProgram(config, sharding.make_mesh(config.mesh))
        self.flops_per_row = program.flops_per_row(phase)
        self.state = program.new_state()
        self.step = with_seed(program.train_step(phase.accumulation_steps), config.seed)
        self.batches = self._random_batches(config, phase)
        self.predictions = max_predictions(config, phase)

    def _random_batches(self, config: PretrainConfig, phase: Phase) -> Iterator[Any]:
        rows = sharding.host_rows(self.program.rows, phase.batch_size)
        batch = random_rows(config, phase, len(rows))
        placed = sharding.to_devices(batch, rows, self.program.rows, phase.batch_size)
        return itertools.repeat(placed)

    def block(self, steps: int) -> dict[str, float]:
        """Runs so many steps as training does; seconds, real tokens, and waiting for input."""
        waited, tokens = 0.0, []

        def batches() -> Iterator[Any]:
            nonlocal waited
            while True:
                begin = time.perf_counter()
                batch = next(self.batches)
                waited += time.perf_counter() - begin
                yield batch

        def count(_: int, __: Any, metrics: dict[str, Any]) -> None:
            tokens.append(metrics["tokens"])

        begin = time.perf_counter()
        self.state, _ = fit(
            self.state, self.step, batches(), step=0, num_steps=steps, hooks=(count,)
        )
        jax.block_until_ready(self.state)
        seconds = time.perf_counter() - begin
        return {
            "seconds": seconds / steps,
            "tokens": sum(map(int, jax.device_get(tokens))) / steps,
            "waited": waited / seconds,
        }


def run(config: PretrainConfig, flags: BenchmarkFlags) -> dict[str, Any]:
    """Measures one phase, prints what it finds, returns it.

    Raises:
        ValueError: there is no such phase, or config, data and devices do not fit together.
    """
    if not 0 <= flags.phase < len(config.phases):
        raise ValueError(
            f"phase={flags.phase}, and the config has {len(config.phases)}: give --config FILE and "
            "one of its phases, from 0."
        )
    phase = config.phases[flags.phase]
    subject = Subject(config, flags.phase)
    with no_compilation_cache():
        first = subject.block(1)["seconds"]
    roofline = _roofline(config, phase, subject)
    rounds = []
    for _ in range(ROUNDS):
        alone = roofline and roofline.seconds()
        rounds.append(subject.block(flags.steps) | {"products": alone})
    if flags.profile is not None:
        with jax.profiler.trace(flags.profile):
            subject.block(flags.steps)
    found = _figures(config, phase, subject, rounds, first)
    _print(found)
    if flags.json is not None:
        command_line.write_json(found, flags.json)
    return found


def _roofline(config: PretrainConfig, phase: Phase, subject: Subject) -> Roofline | None:
    """The products of one device; None where a device has only a part of each product."""
    shape = subject.program.mesh.shape
    if shape["tensor"] > 1 or config.distillation.teacher is not None:
        return None
    rows = phase.batch_size // (shape["data"] * shape["fsdp"])
    products = forward_products(config.model, rows, phase.max_length, subject.predictions)
    return Roofline(products, jnp.dtype(config.dtype))


def _figures(
    config: PretrainConfig,
    phase: Phase,
    subject: Subject,
    rounds: list[dict[str, Any]],
    first: float,
) -> dict[str, Any]:
    def median(key: str) -> float:
        return statistics.median(found[key] for found in rounds)

    seconds = median("seconds")
    flops = subject.flops_per_row * phase.batch_size
    ratios = [found["products"] and found["products"] / found["seconds"] for found in rounds]
    return {
        "batch": [phase.batch_size, phase.max_length],
        "dtype": config.dtype,
        "input": config.data or "random full rows",
        "step_seconds": seconds,
        "tokens_per_second": median("tokens") / seconds,
        "mfu": flops / seconds / peak_flops(config.peak_tflops),
        "roofline_ratio": statistics.median(ratios) if None not in ratios else None,
        "input_stall": median("waited") if config.data else None,
        "compile_seconds": first - seconds,
        "peak_memory_bytes": _peak_memory(),
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "cores": os.cpu_count(),
        "date": date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax")},
    }


def _peak_memory() -> int:
    """Of the first device; of this process, where devices have no memory of their own."""
    stats = jax.local_devices()[0].memory_stats() or {}
    in_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(stats.get("peak_bytes_in_use", in_kib * 1024))


def _print(found: dict[str, Any]) -> None:
    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.1%}"

    rows, length = found["batch"]
    table = Table(f"{found['device']}, {found['dtype']}", f"{rows} x {length} tokens")
    for name, value in {
        "step": f"{1e3 * found['step_seconds']:,.1f} ms",
        "real tokens/s": f"{found['tokens_per_second']:,.0f}",
        "MFU": percent(found["mfu"]),
        "its products alone / step": percent(found["roofline_ratio"]),
        "waiting for input": percent(found["input_stall"]),
        "compiling": f"{found['compile_seconds']:,.1f} s",
        "peak memory": f"{found['peak_memory_bytes'] / 1e9:,.2f} GB",
    }.items():
        table.add_row(name, value)
    Console().print(table)


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, BenchmarkFlags]:
    """Reads the flags of the benchmark, and those of a pretraining."""
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    before.add_argument("--config")
    before.add_argument("--phase", type=int, default=0)
    before.add_argument("--steps", type=int, default=20)
    before.add_argument("--json")
    before.add_argument("--profile")
    first, rest = before.parse_known_args(sys.argv[1:] if argv is None else argv)
    if first.steps < 1:
        raise ValueError(f"steps={first.steps}: it must be at least 1.")
    config = command_line.parse(
        PretrainConfig,
        rest,
        prog="python -m bertjax.benchmark",
        description="Measures the training step of a pretraining on this machine. Its own flags: "
        "--config FILE, as for bertjax.pretrain; --phase 0, the phase of it; --steps 20, of each "
        f"of {ROUNDS} rounds; --json FILE ('-': to the terminal); --profile DIR, writes a trace. "
        "All others are those of the run; without --data rows are random.",
        default=load_config_file(first.config, PretrainConfig),
    )
    return config, BenchmarkFlags(first.phase, first.steps, first.json, first.profile)


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    use_compilation_cache()
    return command_line.run_reporting_errors(lambda: run(*parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
