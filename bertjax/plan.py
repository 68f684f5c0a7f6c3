"""python -m bertjax.plan: what a pretraining needs of TPUs that one does not have.

The train step itself is compiled for the slice, as on its hosts: memory, communication and whether
it fits are the compiler's own answers. Needs `pip install 'bertjax[tpu]'`, and no TPU.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bertjax import command_line
from bertjax.config import PretrainConfig, load_config_file
from bertjax.planning.chips import get_topology
from bertjax.planning.compile import GB, Plan, plan_phase


@dataclasses.dataclass(frozen=True)
class PlanFlags:
    """What is asked, besides the config of the run."""

    topologies: tuple[str, ...]
    json: str | None
    advise: bool


def run(config: PretrainConfig, flags: PlanFlags) -> list[Plan]:
    """Compiles every phase of a config for every slice, prints what it finds, returns it.

    Raises:
        ValueError: the config has no phases, does not fit a slice, or a slice does not exist.
        ImportError: the compiler for TPUs is not installed.
    """
    if not config.phases:
        raise ValueError("The config has no phases: give --config FILE.")
    plans = []
    console = Console()
    for name in flags.topologies:
        topology = get_topology(name)
        for index in range(len(config.phases)):
            plan = plan_phase(config, index, topology, advise=flags.advise)
            plans.append(plan)
            console.print(describe(plan), highlight=False, soft_wrap=True)
    if len(plans) > 1:
        console.print(comparison(plans))
    if flags.json is not None:
        command_line.write_json([as_json(plan) for plan in plans], flags.json)
    return plans


def describe(plan: Plan) -> str:
    """A plan as lines of text."""
    memory = {key: value / GB for key, value in plan.memory.items()}
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    lines = [
        f"{plan.topology}: {plan.chips} chips, {plan.devices} devices {plan.device} ({mesh}); "
        f"phase {plan.phase}: {plan.batch_size} x {plan.max_length} tokens, "
        f"{plan.accumulation_steps} microbatches, remat {plan.remat}, attention by "
        f"{plan.attention}",
    ]
    if not plan.fits:
        excess = memory["peak"] - memory["available"]
        lines.append(
            f"  does not fit: {memory['peak']:.2f} GB a device, {excess:.2f} GB more than the "
            f"{memory['available']:.2f} GB there are"
        )
        lines += [f"  would fit: {advice}" for advice in plan.advice]
        return "\n".join(lines)
    share = plan.memory["peak"] / plan.memory["available"]
    lines.append(
        f"  fits: {memory['peak']:.2f} GB of {memory['available']:.2f} GB a device ({share:.0%}): "
        f"arguments {memory['arguments']:.2f}, temporaries {memory['temporaries']:.2f}, donated "
        f"{memory['aliased']:.2f} of {memory['outputs']:.2f} GB of outputs"
    )
    lines.append(f"  work: {plan.flops / 1e12:.3f} TFLOP a device and step")
    for c in plan.collectives:
        lines.append(
            f"  {c.kind} over {c.group} devices: {c.times} a step, {c.payload / 1e6:,.2f} MB"
        )
    low, high = (1e3 * seconds for seconds in plan.step_seconds)
    lines.append(
        f"  step: at least {low:.1f} ms with communication hidden, {high:.1f} ms without "
        f"({1e3 * plan.compute_seconds:.1f} ms of products at the chip's peak, "
        f"{1e3 * plan.communication_seconds:.1f} ms of sending at its links' bandwidth)"
    )
    lines.append(f"  compiled in {plan.compile_seconds:.0f} s")
    return "\n".join(lines)


def comparison(plans: Sequence[Plan]) -> Table:
    """A line for each plan."""
    table = Table("slice", "phase", "GB a device", "of", "fits", "TFLOP", "MB sent", "step ms >=")
    for plan in plans:
        sent = sum(c.sent for c in plan.collectives) / 1e6
        step = f"{1e3 * plan.step_seconds[0]:.1f}" if plan.fits else ""
        table.add_row(
            plan.topology,
            str(plan.phase),
            f"{plan.memory['peak'] / GB:.2f}",
            f"{plan.memory['available'] / GB:.2f}",
            "yes" if plan.fits else "no",
            f"{plan.flops / 1e12:.3f}",
            f"{sent:,.1f}" if plan.fits else "",
            step,
        )
    return table


def as_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON can hold it; bytes, seconds and FLOP of one device."""
    found = dataclasses.asdict(plan)
    found["collectives"] = [c._asdict() | {"sent": c.sent} for c in plan.collectives]
    low, high = plan.step_seconds
    return found | {"step_seconds_hidden": low, "step_seconds_unhidden": high}


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, PlanFlags]:
    """Reads the flags of the plan, and those of a pretraining."""
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    before.add_argument("--config")
    before.add_argument("--topology")
    before.add_argument("--compare")
    before.add_argument("--json")
    before.add_argument("--no_advice", action="store_true")
    first, rest = before.parse_known_args(sys.argv[1:] if argv is None else argv)
    config = command_line.parse(
        PretrainConfig,
        rest,
        prog="python -m bertjax.plan",
        description="Compiles a pretraining for TPUs that one does not have. Its own flags: "
        "--config FILE, as for bertjax.pretrain; --topology v3:4x4, a slice; --compare A,B, more "
        "slices; --json FILE ('-': to the terminal); --no_advice, do not look for what fits where "
        "the config does not. All others are those of the run.",
        default=load_config_file(first.config, PretrainConfig),
    )
    named = [first.topology] if first.topology else []
    named += first.compare.split(",") if first.compare else []
    if not named:
        raise ValueError("Which slice? Give --topology v3:4x4, or --compare v4:2x2x4,v5e:4x4.")
    return config, PlanFlags(tuple(named), first.json, not first.no_advice)


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    # The devices are those of the slice alone: nothing is to run on what may be here.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return command_line.run_reporting_errors(lambda: run(*parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
