"""Measures the speed of a pretraining step on this machine: `python -m bertjax.benchmark`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bertjax.base import command_line, printable, signals
from bertjax.base.checked import Count
from bertjax.config import PretrainConfig
from bertjax.config.pretrain_config import NO_STEP_FIELDS
from bertjax.config.pretrain_flags import parse_run


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkFlags(command_line.ConfigFlags):
    """Flags that `bertjax.benchmark` has in addition to the fields of `PretrainConfig`.

    Raises:
        ValueError: `steps` is below 1.
    """

    phase: int = 0
    """Index of the pretraining phase to measure, counted from 0."""
    steps: Count = 20
    """Number of training steps in each of five rounds; times are medians over the five rounds."""
    json: str | None = None
    """JSON file to write the results to; "-": standard output; None: no JSON is written."""
    profile: str | None = None
    """Directory to write a profiler trace to, for TensorBoard or Perfetto; None: no trace."""


def run(config: PretrainConfig, flags: BenchmarkFlags) -> dict[str, Any]:
    """Measures the training step of one phase; prints and returns speed, memory and other values.

    The keys are names such as "step_seconds" and "tokens_per_second". If `flags.json` is set, the
    values are also written to this file as JSON. Raises ValueError if there is no such phase, or
    the config, the data and the devices are incompatible.
    """
    from bertjax.base.outputs import check_paths
    from bertjax.train.throughput import measure

    check_paths(config, flags)
    results = measure(config, flags.phase, flags.steps, flags.profile)
    _print(results)
    if flags.json is not None:
        command_line.write_json(results, flags.json)
    return results


def _print(results: dict[str, Any]) -> None:
    from rich.table import Table

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.1%}"

    rows, length = results["batch"]
    table = Table(f"{results['device']}, {results['dtype']}", f"{rows} x {length} tokens")
    for name, value in {
        "step": f"{1e3 * results['step_seconds']:,.1f} ms",
        "tokens/s without padding": f"{results['tokens_per_second']:,.0f}",
        "MFU": percent(results["mfu"]),
        "time of matrix multiplications alone / step": percent(results["roofline_ratio"]),
        "time waiting for input": percent(results["input_stall"]),
        "compiling": f"{results['compile_seconds']:,.1f} s",
        "peak memory": f"{results['peak_memory_bytes'] / 1e9:,.2f} GB",
    }.items():
        table.add_row(name, value)
    printable.console().print(table)


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, BenchmarkFlags]:
    """Parses `argv` into the pretraining config and the benchmark's own flags."""
    return parse_run(
        "benchmark",
        BenchmarkFlags,
        argv,
        "Measures the speed of a pretraining step on this machine; without --data, the rows are "
        "random. It takes the flags of bertjax.pretrain that concern the train step.",
        hidden=NO_STEP_FIELDS,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags in `argv`, runs the benchmark and returns the exit status."""

    def start() -> None:
        config, flags = parse(argv)
        from bertjax.devices.compilation import start_jax

        start_jax()
        run(config, flags)

    return signals.run_reporting_errors(start, signals.MEMORY_REMEDY)


if __name__ == "__main__":
    signals.leave(main())
