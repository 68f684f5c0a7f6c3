"""Memory of a train step by remat policy, as the compiler for an H200 reports it.

The data are lines of benchmarks/results/compiled_memory.jsonl.
"""

import json
from pathlib import Path

from figure import COLOURS, main

from bertjax.planning.hardware import GPUS, MEMORY_FRACTION

RESULTS = Path(__file__).parents[2] / "benchmarks/results/compiled_memory.jsonl"
HEIGHT = 3.4  # inches
LABELS = {
    ("none", "xla"): "none",
    ("selective", "xla"): "selective,\nXLA's attention",
    ("selective", "flash"): "selective,\nflash attention\n(default)",
    ("dots", "xla"): "dots,\nXLA's attention",
}


def compute() -> dict:
    """Returns the bars for 64 rows of 512 tokens, and the GB that JAX reserves on an H200.

    A bar is [model, remat policy, attention kernel, GB of temporaries].
    """
    bars = []
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        one_h200 = row.get("target") == "NVIDIA H200" or row.get("topology") == "h200:1"
        if one_h200 and row["model"].startswith("bert-"):
            model = row["model"].removesuffix("-uncased")
            bars.append([model, row["remat"], row.get("attention", "xla"), row["temporaries_gb"]])
    reserved = GPUS["h200"].memory_gib * 2**30 / 1e9 * MEMORY_FRACTION
    return {"bars": bars, "reserved_gb": round(reserved, 1)}


def draw(figure, data) -> None:
    """Draws one group of bars per model."""
    models = ("bert-base", "bert-large")
    axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 4))
    for axis, model, colour in zip(axes, models, COLOURS, strict=False):
        bars = {(remat, kernel): gb for name, remat, kernel, gb in data["bars"] if name == model}
        kinds = [kind for kind in LABELS if kind in bars]
        drawn = axis.bar([LABELS[kind] for kind in kinds], [bars[kind] for kind in kinds],
                         color=colour, width=0.6)  # fmt: skip
        axis.bar_label(drawn, fmt="%.1f")
        axis.set_title(f"{model}, 64 rows of 512 tokens, bfloat16")
        axis.axhline(data["reserved_gb"], color="black", linewidth=0.8, linestyle="--")
    axes[0].set_ylabel("GB of temporaries")
    axes[0].text(-0.4, data["reserved_gb"] - 3, "what JAX reserves of an H200 (75 %)", va="top")


if __name__ == "__main__":
    main("memory", compute, draw, HEIGHT)
