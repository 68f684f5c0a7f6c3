"""Search by each kind of retrieval model, trained here and in sentence-transformers, three seeds.

The data are lines of benchmarks/results/search.jsonl, of 300 questions on 2,067 paragraphs.
"""

import json
from pathlib import Path

from figure import COLOURS, main

RESULTS = Path(__file__).parents[2] / "benchmarks/results/search.jsonl"
HEIGHT = 3.4  # inches
LABELS = {
    "as it is": "MiniLM, dense, as it is",
    "embed": "MiniLM, dense,\n32 updates",
    "late interaction": "MiniLM, late interaction,\n40 updates",
    "sparse": "bertjax:tiny, sparse,\n160 updates",
    "rerank": "MiniLM, reranker of the first\n20, 63 updates: too few",
}


def compute() -> dict:
    """Returns {stage: {side: nDCG@10 of each seed}}."""
    scores: dict[str, dict[str, list[float]]] = {stage: {} for stage in LABELS}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        repeated = row["stage"] in ("as it is", "embed", "rerank") and "questions" in row
        if row["stage"] in LABELS and not repeated:
            scores[row["stage"]].setdefault(row["side"], []).append(round(row["ndcg_at_10"], 3))
    return scores


def draw(figure, data) -> None:
    """Draws a line per stage, with a filled mark per seed of bertjax and an open one of theirs."""
    axis = figure.subplots()
    for y, stage in enumerate(LABELS):
        axis.axhline(y, color="#dddddd", linewidth=0.8, zorder=0)
        ours, theirs = data[stage]["bertjax"], data[stage]["sentence-transformers"]
        axis.plot(ours, [y - 0.12] * len(ours), "o", color=COLOURS[0], label="bertjax")
        axis.plot(theirs, [y + 0.12] * len(theirs), "o", color=COLOURS[1], fillstyle="none",
                  label="sentence-transformers")  # fmt: skip
    axis.set_yticks(range(len(LABELS)), LABELS.values())
    axis.invert_yaxis()
    axis.set_xlim(0, 1)
    axis.set_xlabel("nDCG@10\n300 questions of SQuAD, 2,067 paragraphs")
    handles, names = axis.get_legend_handles_labels()
    axis.legend(handles[:2], names[:2], loc="upper left", frameon=False)


if __name__ == "__main__":
    main("search_kinds", compute, draw, HEIGHT)
