"""From the start of a process to its first step, with an empty cache of programs and a full one.

    python benchmarks/start.py --data D [--config C] [--unroll 1] [--rounds 3]

The program that a pretraining runs, on prepared data D: imports, data, state, the first update.
Prints a line of JSON: medians of seconds, and warm over cold.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from processes import Worker


def first_step(config_file: str, data: str, unroll: int | None, length: int) -> Callable[[], float]:
    """Takes a step; the function then says when that was."""
    from bertjax.benchmark import Subject
    from bertjax.config import PretrainConfig, load_config_file
    from bertjax.devices.compilation_cache import use_compilation_cache

    use_compilation_cache()
    config = load_config_file(config_file, PretrainConfig) or PretrainConfig()
    # The first phase alone, of rows that the data have, and few enough for a small machine.
    phase = dataclasses.replace(config.phases[0], batch_size=8, max_length=length)
    phase = dataclasses.replace(phase, num_steps=100_000, accumulation_steps=1)
    config = dataclasses.replace(config, data=data, unroll=unroll, phases=(phase,))
    Subject(config, 0).block(1)
    end = time.time()
    return lambda: end


def main() -> None:
    """Reads the flags, starts processes one after the other, prints a line."""
    parser = argparse.ArgumentParser(description="Start to first step, cold and warm.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--config", default="configs/pretrain/bert_base.py")
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--unroll", type=int, help="as of bertjax.pretrain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for found in seconds.values():
                begin = time.time()
                worker = Worker(
                    first_step,
                    *(args.config, args.data, args.unroll, args.max_length),
                    JAX_COMPILATION_CACHE_DIR=cache,
                )
                found.append(worker() - begin)
                worker.close()
    from reporting import report  # it loads jax, and processes import this module when they start

    medians = {name: round(statistics.median(found), 2) for name, found in seconds.items()}
    ratios = [w / c for c, w in zip(seconds["cold"], seconds["warm"], strict=True)]
    figures = {"warm_over_cold": round(statistics.median(ratios), 3), "seconds": medians}
    settings = {"config": args.config, "unroll": args.unroll, "batch": [8, args.max_length]}
    report(figures | settings, args.output)


if __name__ == "__main__":
    main()
