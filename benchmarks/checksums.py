"""Measures what the checksums of checkpoints cost.

    python benchmarks/checksums.py [--config C] [--rounds 3] [--output FILE]

Saves and restores a training state of random numbers (parameters and both moments of AdamW) with
and without checksums, in turns. A save takes until the checkpoint is complete on the disk; a run
continues to train during it. The files are in the page cache when they are read. Prints a line of
JSON: median seconds, and the medians of the ratios with / without.
"""

import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
from reporting import parser_of, report

from bertjax.config import PretrainConfig, load_config_file
from bertjax.model.heads import BertForPreTraining
from bertjax.train.checkpoint import Checkpointer
from bertjax.weights.fill import param_shapes


class WithoutChecksums(Checkpointer):
    """Writes no checksums, so that `restore` compares none."""

    def _seal(self) -> None:
        pass


def random_state(config: PretrainConfig) -> dict[str, object]:
    """Returns parameters and two moments; zeros would be compressed to nothing."""
    shapes = param_shapes(BertForPreTraining(config.model))
    rng = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.numpy.asarray(rng.standard_normal(leaf.shape, np.float32) * 0.02)

    return {part: jax.tree.map(draw, shapes) for part in ("params", "mu", "nu")}


def seconds(kind: type[Checkpointer], state: dict[str, object]) -> dict[str, float]:
    """Saves and restores the state in an empty folder; returns the times."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with closing(kind(folder)) as checkpointer:
            checkpointer.save(1, state, {})
        saved = time.perf_counter()
        with closing(kind(folder)) as checkpointer:
            jax.block_until_ready(checkpointer.restore(state)[0])
        restored = time.perf_counter()
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {"save": saved - began, "restore": restored - saved, "gigabytes": written / 1e9}


def main() -> None:
    """Measures in turns and prints one line."""
    parser = parser_of(__doc__)
    parser.add_argument("--config", default="configs/pretrain/bert_base.py")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    state = random_state(load_config_file(args.config, PretrainConfig) or PretrainConfig())
    kinds = {"with": Checkpointer, "without": WithoutChecksums}
    rounds = [
        {name: seconds(kind, state) for name, kind in kinds.items()} for _ in range(args.rounds)
    ]
    figures: dict[str, object] = {
        "config": args.config,
        "gigabytes": round(rounds[0]["with"]["gigabytes"], 2),
    }
    for part in ("save", "restore"):
        medians = {
            name: round(statistics.median(times[name][part] for times in rounds), 2)
            for name in kinds
        }
        ratio = statistics.median(r["with"][part] / r["without"][part] for r in rounds)
        figures |= {f"{part}_seconds": medians, f"{part}_ratio": round(ratio, 3)}
    report(figures, args.output, ("orbax-checkpoint",))


if __name__ == "__main__":
    main()
