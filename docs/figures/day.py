"""Half an hour of a run on two hosts with a fault every minute: its steps, and what happened.

The data are lines of benchmarks/results/day.jsonl, written by `python -m tests.programs.day`.
"""

import json
from pathlib import Path

from figure import COLOURS, PADDING, main

RESULTS = Path(__file__).parents[2] / "benchmarks/results/day.jsonl"


def compute() -> dict:
    """Returns [minute, step] over time, [minute, fault], and [from, to] without training."""
    steps, faults, down, since = [], [], [], 0.0
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        minute = round(event["second"] / 60, 2)
        if "fault" in event:
            faults.append([minute, event["fault"]])
            if "ended" in event:
                since = round(event["ended"] / 60, 2)
        if "resumed_at" in event:
            down.append([since, minute])
            steps.append([minute, event["resumed_at"]])
        elif "fault" not in event:
            steps.append([minute, event["step"]])
    return {"steps": steps, "faults": faults, "down": down}


def draw(figure, data) -> None:
    """Draws the steps over the minutes, and below them a line for each kind of fault."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 4))
    names = sorted({name for _, name in data["faults"]}, reverse=True)
    for axis in (above, below):
        for start, end in data["down"]:
            axis.axvspan(start, end, color=PADDING, linewidth=0)
    above.plot(*zip(*data["steps"], strict=True), color=COLOURS[0])
    for minute, _ in data["faults"]:
        above.axvline(minute, color=COLOURS[1], linewidth=0.6)
    above.set_ylabel("training step")
    above.set_ylim(0)
    above.set_title("Grey: the processes start, or wait for each other's end. Lines: faults.")
    below.scatter(
        [minute for minute, _ in data["faults"]],
        [names.index(name) for _, name in data["faults"]],
        color=COLOURS[1],
        marker="x",
        zorder=3,
    )
    below.set_yticks(range(len(names)), names)
    below.set_xlabel("minutes since the start of the run")
    below.set_xlim(0, data["steps"][-1][0])
    below.grid(axis="y", linewidth=0.4)


if __name__ == "__main__":
    main("day", compute, draw, height=4.6)
