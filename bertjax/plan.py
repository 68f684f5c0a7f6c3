"""Plans a pretraining run for TPUs or GPUs that are not at hand: `python -m bertjax.plan`.

The train step is compiled for the devices, so that the compiler reports the memory and
communication of the step, and whether the step fits in the memory of a device. The command needs
the compiler for TPUs, which `pip install 'bertjax[tpu]'` installs, or for NVIDIA GPUs, which
`pip install 'bertjax[gpu-plan]'` installs.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bertjax.base import command_line, printable, signals
from bertjax.base.checked import Count
from bertjax.config import PretrainConfig, load_config_file

if TYPE_CHECKING:
    from rich.table import Table

    from bertjax.planning.compile import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanFlags(command_line.ConfigFlags):
    """Flags of `bertjax.plan` in addition to the fields of `PretrainConfig`.

    Raises:
        ValueError: no devices are set, or `num_nodes` is below 1.
    """

    GROUPS: ClassVar[dict[str, str]] = {
        "hardware": "topology num_nodes compare",
        "output": "json advice",
    }

    topology: str | None = None
    """Devices to plan for: a TPU slice or a node of GPUs. A TPU slice is VERSION:SHAPE, where
    VERSION is v2, v3, v4, v5e, v5p, v6e or tpu7x and SHAPE is the number of chips along each of two
    dimensions (v2, v3, v5e, v6e; such as v3:4x4) or three (such as v4:2x2x4). A node of GPUs is
    GPU:NUMBER, such as h200:8, where GPU is h200, h100, a100, a100-40 (with 40 GB), l40s, l4, a10
    or rtx4090; of a GPU's memory, the share counts that JAX reserves: 75 percent, or the variable
    XLA_PYTHON_CLIENT_MEM_FRACTION. None: only the devices in --compare. --topology, --compare or
    both are required."""
    num_nodes: Count = 1
    """Number of nodes, for GPUs; the name of a TPU slice gives all of its chips."""
    compare: str | None = None
    """Devices to plan for besides --topology, separated by commas, such as v5e:4x4,h200:8; a table
    compares all plans; None: only the devices in --topology."""
    json: str | None = None
    """File to write the plans to as JSON ("-": standard output); None: no JSON is written."""
    advice: bool = True
    """Whether to search for config changes that make the train step fit in device memory, if the
    train step of the config does not fit."""

    def __post_init__(self):
        super().__post_init__()
        if not self.topologies:
            raise ValueError(
                "No devices are set: give --topology, such as v3:4x4 or h200:8, or --compare, such "
                "as v5e:4x4,h200:8."
            )

    @property
    def topologies(self) -> list[str]:
        """The names of all TPU slices and GPU nodes to plan for."""
        return [name for name in (self.topology, *(self.compare or "").split(",")) if name]


def run(config: PretrainConfig, flags: PlanFlags) -> "list[Plan]":
    """Compiles the train step of every phase for all devices; prints and returns the plans.

    There is one plan per topology and phase; a phase is a part of the run with one row length.

    Args:
        config: the config of the run.
        flags: the topologies, the number of nodes, and whether to look for flags with which a train
            step fits.

    Raises:
        ValueError: the config has no phases or is incompatible with the number of devices, a
            topology is unknown, or there are several nodes, but no GPUs.
        ImportError: the compiler for the devices is not installed.
    """
    from bertjax.planning.compile import plan_phase
    from bertjax.planning.hardware import get_topology, is_gpu

    if not config.phases:
        raise ValueError("The config has no phases: give --config FILE.")
    if flags.num_nodes > 1 and not any(map(is_gpu, flags.topologies)):
        raise ValueError(
            f"num_nodes={flags.num_nodes} counts nodes of GPUs, but "
            f"{', '.join(flags.topologies)} has none: name a slice with more chips."
        )
    plans = []
    console = printable.console()
    for name in flags.topologies:
        topology = get_topology(name, flags.num_nodes)
        for index in range(len(config.phases)):
            plan = plan_phase(config, index, topology, advise=flags.advice)
            plans.append(plan)
            console.print(describe(plan), highlight=False, soft_wrap=True)
    if len(plans) > 1:
        console.print(comparison(plans))
    if flags.json is not None:
        command_line.write_json([as_json(plan) for plan in plans], flags.json)
    return plans


def describe(plan: "Plan") -> str:
    """Returns the lines of text that describe a plan, joined by newlines."""
    memory = {key: value / 1e9 for key, value in plan.memory.items()}
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    chips = "" if plan.chips == plan.devices else f" on {plan.chips} chips"
    lines = [
        f"{plan.topology}: {plan.devices} devices {plan.device}{chips} ({mesh}); "
        f"phase {plan.phase}: {plan.batch_size} x {plan.max_length} tokens, "
        f"{plan.accumulation_steps} microbatches, remat {plan.remat}, attention by "
        f"{plan.attention}"
    ]
    if not plan.fits:
        excess = memory["peak"] - memory["available"]
        lines.append(
            f"  does not fit: {memory['peak']:.2f} GB per device, {excess:.2f} GB more than the "
            f"memory of {memory['available']:.2f} GB"
        )
        lines += [f"  advice: {advice}" for advice in plan.advice]
        return "\n".join(lines)
    share = plan.memory["peak"] / plan.memory["available"]
    lines.append(
        f"  fits: {memory['peak']:.2f} of {memory['available']:.2f} GB per device ({share:.0%}): "
        f"arguments {memory['arguments']:.2f}, temporaries {memory['temporaries']:.2f}, outputs "
        f"{memory['outputs']:.2f}, of which {memory['aliased']:.2f} reuse donated arguments"
    )
    lines.append(f"  computation: {plan.flops / 1e12:.3f} TFLOP per device and step")
    if plan.traffic:
        kinds = ", ".join(f"{kind} {n / 1e9:.1f}" for kind, n in plan.traffic.items())
        lines.append(
            f"  memory traffic: {sum(plan.traffic.values()) / 1e9:.1f} GB per device and step, "
            f"counted from the kernels of the program: {kinds}"
        )
    for c in plan.collectives:
        lines.append(
            f"  {c.kind} over {c.group} devices: {c.times} per step, which process "
            f"{c.payload / 1e6:,.2f} MB"
        )
    low, high = (1e3 * seconds for seconds in plan.step_seconds)
    memory_time = (
        f"{1e3 * plan.memory_seconds:.1f} ms of memory traffic at its peak bandwidth, "
        if plan.traffic
        else ""
    )
    lines.append(
        f"  step: at least {low:.1f} ms if communication and computation overlap, {high:.1f} ms if "
        f"not ({1e3 * plan.compute_seconds:.1f} ms of computation at the device's peak FLOP/s, "
        f"{memory_time}"
        f"{1e3 * plan.communication_seconds:.1f} ms of communication at the links' peak bandwidth)"
    )
    lines.append(f"  compiled in {plan.compile_seconds:.0f} s")
    return "\n".join(lines)


def comparison(plans: "Sequence[Plan]") -> "Table":
    """Returns a table for the terminal that compares the plans, with one row per plan."""
    from rich.table import Table

    table = Table("devices", "phase", "GB/device", "of", "fits", "TFLOP", "MB sent", "step ms >=")
    for plan in plans:
        sent = sum(c.sent for c in plan.collectives) / 1e6
        step = f"{1e3 * plan.step_seconds[0]:.1f}" if plan.fits else ""
        table.add_row(
            plan.topology,
            str(plan.phase),
            f"{plan.memory['peak'] / 1e9:.2f}",
            f"{plan.memory['available'] / 1e9:.2f}",
            "yes" if plan.fits else "no",
            f"{plan.flops / 1e12:.3f}",
            f"{sent:,.1f}" if plan.fits else "",
            step,
        )
    return table


def as_json(plan: "Plan") -> dict[str, Any]:
    """Converts a plan to a dict of JSON values: its fields in their units, and step times in s."""
    values = dataclasses.asdict(plan)
    values["collectives"] = [c._asdict() | {"sent": c.sent} for c in plan.collectives]
    low, high = plan.step_seconds
    return values | {"step_seconds_hidden": low, "step_seconds_unhidden": high}


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, PlanFlags]:
    """Parses the command line; returns the config of the pretraining run, and the `PlanFlags`."""
    flags, config = command_line.parse_both(
        PlanFlags,
        load_config_file(command_line.value_of("config", argv), PretrainConfig),
        argv,
        command="plan",
        description="Compiles the train step of a pretraining for TPUs or GPUs that are not at "
        "hand, and reports its memory, its communication and a lower bound of its time for each "
        "phase. It "
        "takes the flags of bertjax.pretrain that concern the train step. With --config FILE, "
        "--help also shows the flags of its phases.",
        hidden=(
            *command_line.NO_STEP_FLAGS,
            *("data", "data_cache", "init", "reader_threads", "peak_tflops"),
        ),
    )
    return config, flags


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and runs the command; returns the exit status."""
    # The train step is compiled for other devices and not run, so JAX needs no local accelerator.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return signals.run_reporting_errors(lambda: run(*parse(argv)))


if __name__ == "__main__":
    signals.leave(main())
