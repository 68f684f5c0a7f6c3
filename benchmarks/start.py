"""Measures the time from process start to the first step, with a cold and a warm cache.

    python benchmarks/start.py --data D [--config C] [--unroll 1] [--rounds 3]

The process starts a pretraining on prepared data D: imports, data, state, and the first update. The
cache is JAX's compilation cache. Prints a line of JSON: median seconds, and the ratio warm / cold.
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
    """Runs a step; the returned function returns the time of its end."""
    from bertjax.config import PretrainConfig, load_config_file
    from bertjax.devices.compilation import use_compilation_cache
    from bertjax.train.throughput import Subject

    use_compilation_cache()
    config = load_config_file(config_file, PretrainConfig) or PretrainConfig()
    # Only the first phase, with a length that the data has and a batch for a small machine.
    phase = dataclasses.replace(config.phases[0], batch_size=8, max_length=length)
    phase = dataclasses.replace(phase, num_steps=100_000, accumulation_steps=1)
    config = dataclasses.replace(config, data=data, unroll=unroll, phases=(phase,))
    Subject(config, 0).block(1)
    end = time.time()
    return lambda: end


def main() -> None:
    """Starts processes one after the other and prints one line."""
    parser = argparse.ArgumentParser(description="Start to first step, cold and warm.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--config", default="configs/pretrain/bert_base.py")
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--unroll", type=int, help="unroll factor of the layers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for times in seconds.values():
                begin = time.time()
                worker = Worker(
                    first_step,
                    *(args.config, args.data, args.unroll, args.max_length),
                    JAX_COMPILATION_CACHE_DIR=cache,
                )
                times.append(worker() - begin)
                worker.close()
    from reporting import report  # imports jax, which must not happen in the measured processes

    medians = {name: round(statistics.median(times), 2) for name, times in seconds.items()}
    ratios = [w / c for c, w in zip(seconds["cold"], seconds["warm"], strict=True)]
    figures = {"warm_over_cold": round(statistics.median(ratios), 3), "seconds": medians}
    settings = {"config": args.config, "unroll": args.unroll, "batch": [8, args.max_length]}
    report(figures | settings, args.output)


if __name__ == "__main__":
    main()
