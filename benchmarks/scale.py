"""Estimates weak scaling from a step compiled for TPU slices of 16, 64 and 256 chips.

    python benchmarks/scale.py --configs configs/pretrain/bert_base.py --rows_a_chip 16

All sizes have the same number of rows per chip, and use the last phase of the config. Prints a
Markdown table and appends JSON lines. Nothing is run: the times follow from the peak FLOP/s and the
bandwidth of data sheets. Needs libtpu.
"""

import dataclasses
import datetime
import importlib.metadata
import json
from pathlib import Path

import jax
from reporting import parser_of

from bertjax.config import PretrainConfig, load_config_file
from bertjax.plan import as_json
from bertjax.planning.compile import GB, plan_phase
from bertjax.planning.hardware import get_topology

SLICES = {
    "v3": ("v3:4x4", "v3:8x8", "v3:16x16"),
    "v4": ("v4:2x2x4", "v4:4x4x4", "v4:4x8x8"),
    "v5e": ("v5e:4x4", "v5e:8x8", "v5e:16x16"),
    "v6e": ("v6e:4x4", "v6e:8x8", "v6e:16x16"),
}


def main() -> None:
    jax.config.update("jax_platforms", "cpu")  # the devices of this machine are not used
    parser = parser_of(__doc__)
    parser.add_argument("--configs", nargs="+", required=True)
    parser.add_argument("--chips", nargs="+", default=["v5e"], choices=SLICES)
    parser.add_argument("--rows_a_chip", type=int, default=16)
    args = parser.parse_args()
    print("| config | slice | chips | rows | GB per device | MB sent | matmuls, ms | sending, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for file in args.configs:
        config = load_config_file(file, PretrainConfig)
        for name in (name for chip in args.chips for name in SLICES[chip]):
            topology = get_topology(name)
            last = dataclasses.replace(
                config.phases[-1],
                batch_size=args.rows_a_chip * topology.num_chips,
                accumulation_steps=1,
            )
            phases = (*config.phases[:-1], last)
            planned = dataclasses.replace(config, phases=phases)
            plan = plan_phase(planned, len(phases) - 1, topology, advise=False)
            sent = sum(c.sent for c in plan.collectives)
            print(
                f"| {Path(file).stem} | {name} | {plan.chips} | {last.batch_size} x "
                f"{last.max_length} | {plan.memory['peak'] / GB:.2f} | {sent / 1e6:,.1f} | "
                f"{1e3 * plan.compute_seconds:.1f} | {1e3 * plan.communication_seconds:.2f} |",
                flush=True,
            )
            if args.output is not None:
                line = as_json(plan) | {
                    "config": Path(file).stem,
                    "date": datetime.date.today().isoformat(),
                    "versions": {n: importlib.metadata.version(n) for n in ("jax", "libtpu")},
                }
                with args.output.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
