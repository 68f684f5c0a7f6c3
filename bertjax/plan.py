"""Plans a pretraining run for TPUs or GPUs that are not at hand: `python -m bertjax.plan`.

The train step is compiled for the devices, so that the compiler reports the memory and
communication of the step, and whether the step fits in the memory of a device. From a lower bound
of its time follow the hours, the energy and the price of all phases. The command needs the compiler
for TPUs, which `pip install 'bertjax[tpu]'` installs, or for NVIDIA GPUs, which
`pip install 'bertjax[gpu-plan]'` installs.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertjax.base import command_line, printable, signals
from bertjax.base.checked import Count
from bertjax.config import PretrainConfig
from bertjax.config.pretrain_config import NO_STEP_FIELDS
from bertjax.config.pretrain_flags import parse_run

if TYPE_CHECKING:
    from rich.table import Table

    from bertjax.planning.compile import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanFlags(command_line.ConfigFlags):
    """Flags of `bertjax.plan` in addition to the fields of `PretrainConfig`.

    Raises:
        ValueError: no devices are set, `num_nodes` is below 1, or `price_per_hour` is no number
            and does not give a number for each kind of device.
    """

    topology: str | None = None
    """Devices to plan for: a TPU slice, VERSION:SHAPE, such as v3:4x4 or v4:2x2x4, or a node of
    GPUs, GPU:NUMBER, such as h200:8; None: only the devices in --compare."""
    num_nodes: Count = 1
    """Number of nodes, for GPUs; the name of a TPU slice gives all of its chips."""
    compare: str | None = None
    """Devices to plan for besides --topology, separated by commas; a table compares all plans;
    None: only the devices in --topology."""
    price_per_hour: str | None = None
    """Price of an hour of one chip or GPU: a number, or one per kind, such as v5e=1.2,h200=3.5;
    None: no prices are printed."""
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
        _ = self.prices

    @property
    def topologies(self) -> list[str]:
        """The names of all TPU slices and GPU nodes to plan for."""
        return [name for name in (self.topology, *(self.compare or "").split(",")) if name]

    @property
    def prices(self) -> dict[str, float]:
        """{kind of device, such as v5e: price of an hour of a chip or GPU}; empty if not set."""
        if self.price_per_hour is None:
            return {}
        text = self.price_per_hour
        kinds = sorted({_kind_of(name) for name in self.topologies})
        entries = text.split(",")
        if "=" not in text:
            entries = [f"{kind}={text}" for kind in kinds]
        prices = {}
        for entry in entries:
            kind, _, number = entry.partition("=")
            try:
                prices[kind.strip()] = float(number)
            except ValueError:
                prices[kind.strip()] = math.nan
        if sorted(prices) == kinds and all(0 < price < math.inf for price in prices.values()):
            return prices
        example = ",".join(f"{kind}=1.2" for kind in kinds)
        raise ValueError(
            f"price_per_hour={text!r} does not give one price above 0 to each of "
            f"{', '.join(kinds)}: give a number for all, such as 1.2, or one for each, such as "
            f"{example}."
        )


def _kind_of(topology: str) -> str:
    return topology.partition(":")[0]


def run(config: PretrainConfig, flags: PlanFlags) -> "list[Plan]":
    """Compiles the train step of every phase for all devices; prints and returns the plans.

    There is one plan per topology and phase; a phase is a part of the run with one row length.

    Raises:
        ValueError: the config has no phases or is incompatible with the number of devices, a
            topology is unknown, or there are several nodes, but no GPUs.
        ImportError: the compiler for the devices is not installed.
    """
    from bertjax.base.outputs import check_paths
    from bertjax.planning.compile import describe, plan_phase
    from bertjax.planning.hardware import get_topology, is_gpu

    check_paths(config, flags)
    if not config.phases:
        raise ValueError("The config has no phases: give --config FILE.")
    if flags.num_nodes > 1 and not any(map(is_gpu, flags.topologies)):
        raise ValueError(
            f"num_nodes={flags.num_nodes} counts nodes of GPUs, but "
            f"{', '.join(flags.topologies)} has none: name a slice with more chips."
        )
    plans = []
    wholes = []
    json = []
    console = printable.console()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    for name in flags.topologies:
        topology = get_topology(name, flags.num_nodes)
        phases = []
        for index in range(len(config.phases)):
            plan = plan_phase(config, index, topology, advise=flags.advice)
            phases.append(plan)
            say(describe(plan))
        whole = whole_config(phases, flags.prices.get(_kind_of(name)))
        say(describe_whole_config(whole))
        wholes.append(whole)
        plans += phases
        json += [as_json(plan) | {"whole_config": whole} for plan in phases]
    if len(plans) > 1:
        console.print(comparison(plans))
    if len(wholes) > 1:
        console.print(whole_config_table(wholes))
    if flags.json is not None:
        command_line.write_json(json, flags.json)
    return plans


def whole_config(plans: "Sequence[Plan]", price: float | None) -> dict[str, Any]:
    """Returns what all phases take on one topology, whose `plans` these are, as JSON values.

    `price` is the price of an hour of a chip or GPU. Bounds are None if they are not known, and if
    a phase does not fit.
    """
    first = plans[0]
    chips = first.chips
    watts = first.watts_per_chip
    bounds: dict[str, float | None] = dict.fromkeys(("hours", "chip_hours", "kwh", "price"))
    unfit = [plan.phase for plan in plans if not plan.fits]
    if not unfit:
        hours = sum(plan.hours for plan in plans)
        bounds["hours"] = hours
        bounds["chip_hours"] = hours * chips
        if watts is not None:
            bounds["kwh"] = hours * (chips * watts / 1000)
        if price is not None:
            bounds["price"] = hours * (chips * price)
    whole = {
        "topology": first.topology,
        "chips": chips,
        "unit": "GPU" if first.device.startswith("NVIDIA") else "chip",
        "steps": sum(plan.num_steps for plan in plans),
        "tokens": sum(plan.num_rows * plan.max_length for plan in plans),
        "phases_that_do_not_fit": unfit,
        "watts_per_chip": watts,
        "price_per_chip_hour": price,
    }
    for name, bound in bounds.items():
        whole[f"{name}_at_bound"] = bound
        whole[f"{name}_at_half_of_bound"] = bound and 2 * bound
    return whole


def describe_whole_config(whole: dict[str, Any]) -> str:
    """Returns the lines of text that describe a value of `whole_config`, joined by newlines."""
    tokens = _rounded(whole["tokens"] / 1e9)
    unit = whole["unit"]
    line = f"{whole['topology']}, whole config: {whole['steps']:,} steps, {tokens} billion tokens; "
    if unfit := whole["phases_that_do_not_fit"]:
        return f"{line}no hours, because phase {', '.join(map(str, unfit))} does not fit"
    words = {
        "hours": f"hours on {whole['chips']} {unit}s",
        "chip_hours": f"{unit}-hours",
        "kwh": f"kWh at the maximum power of {whole['watts_per_chip']} W per {unit}",
        "price": f"to pay at {whole['price_per_chip_hour']} per {unit}-hour",
    }
    known = []
    for name, text in words.items():
        bound = whole[f"{name}_at_bound"]
        if bound is not None:
            known.append(f"{_rounded(bound)} and {_rounded(2 * bound)} {text}")
    if whole["kwh_at_bound"] is None:
        known[-1] += "; energy unknown, because no maximum power is published"
    return (
        f"{line}at the lower bound of the step time and at half of that speed, without "
        f"evaluations, checkpoints and start-up:\n  {'; '.join(known)}"
    )


def _rounded(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def comparison(plans: "Sequence[Plan]") -> "Table":
    """Returns a table for the terminal that compares the plans, with one row per plan."""
    from rich.table import Table

    table = Table("devices", "phase", "GB/device", "of", "fits", "TFLOP", "MB sent", "step ms >=")
    for plan in plans:
        fits = "no"
        sent = ""
        step = ""
        if plan.fits:
            fits = "yes"
            sent = f"{sum(moved.sent for moved in plan.collectives) / 1e6:,.1f}"
            step = f"{1e3 * plan.step_seconds[0]:.1f}"
        table.add_row(
            plan.topology,
            str(plan.phase),
            f"{plan.memory['peak'] / 1e9:.2f}",
            f"{plan.memory['available'] / 1e9:.2f}",
            fits,
            f"{plan.flops / 1e12:.3f}",
            sent,
            step,
        )
    return table


def whole_config_table(wholes: Sequence[dict[str, Any]]) -> "Table":
    """Returns a table for the terminal of values of `whole_config`, which names the best ones."""
    from rich.table import Table

    table = Table("whole config", "chips", "hours >=", "kWh", "price >=", "")

    def least(key: str) -> float | None:
        return min((whole[key] for whole in wholes if whole[key] is not None), default=None)

    fastest = least("hours_at_bound")
    cheapest = least("price_at_bound")
    for whole in wholes:
        hours = whole["hours_at_bound"]
        price = whole["price_at_bound"]
        best = []
        if hours is not None and hours == fastest:
            best.append("fastest")
        if price is not None and price == cheapest:
            best.append("cheapest")
        table.add_row(
            whole["topology"],
            str(whole["chips"]),
            _rounded(hours),
            _rounded(whole["kwh_at_bound"]),
            _rounded(price),
            ", ".join(best),
        )
    return table


def as_json(plan: "Plan") -> dict[str, Any]:
    """Converts a plan to a dict of JSON values: its fields in their units, and step times in s."""
    values = dataclasses.asdict(plan)
    values["collectives"] = [c._asdict() | {"sent": c.sent} for c in plan.collectives]
    low, high = plan.step_seconds
    return values | {
        "step_seconds_hidden": low,
        "step_seconds_unhidden": high,
        "hours_at_bound": plan.hours if plan.fits else None,
    }


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, PlanFlags]:
    """Parses the command line; returns the config of the pretraining run, and the `PlanFlags`."""
    return parse_run(
        "plan",
        PlanFlags,
        argv,
        "Compiles the train step of a pretraining for TPUs or GPUs that are not at hand, and "
        "reports its memory, its communication and a lower bound of its time for each phase, and "
        "the hours and the price of the whole config. It takes the flags of bertjax.pretrain that "
        "concern the train step.",
        hidden=(*NO_STEP_FIELDS, "data", "data_cache", "reader_threads", "peak_tflops"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and runs the command; returns the exit status."""
    # The train step is compiled for other devices and not run, so JAX needs no local accelerator.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return signals.run_reporting_errors(lambda: run(*parse(argv)))


if __name__ == "__main__":
    signals.leave(main())
