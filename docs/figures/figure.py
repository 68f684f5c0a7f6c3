"""What the scripts of the figures share: drawing, writing and checking an SVG.

    python docs/figures/NAME.py [--check]

Each script computes the data of its figure and draws it to an SVG beside it. The SVG also holds its
data, so that `--check` computes the data anew and compares it without drawing (matplotlib is not
needed then). Drawings are deterministic: the same version of matplotlib writes the same bytes.
"""

import argparse
import html
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
# Distinguishable with all common forms of colour blindness (Okabe and Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
PADDING = "#dddddd"


def stored(name: str) -> Any:
    """Reads the data of the figure `name` from its SVG."""
    text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    (data,) = re.findall(r"<dc:description>(.*?)</dc:description>", text, re.DOTALL)
    return json.loads(html.unescape(data))


def write(path: Path, data: Any, draw: Callable[[Any, Any], None], height: float) -> None:
    """Draws `data` by `draw(figure, data)` and writes the SVG, 8 inches wide, to `path`."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    settings = {
        "svg.hashsalt": "bertjax",
        "svg.fonttype": "none",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        figure = pyplot.figure(figsize=(8, height), layout="constrained")
        draw(figure, data)
        metadata = {"Date": None, "Description": json.dumps(data, separators=(",", ":"))}
        figure.savefig(path, format="svg", metadata=metadata)
        pyplot.close(figure)


def main(name: str, compute: Callable[[], Any], draw: Callable[[Any, Any], None], height: float):
    """Runs the command line of the script `name`: writes its figure, or checks it."""
    parser = argparse.ArgumentParser(description=f"Writes or checks {name}.svg.")
    parser.add_argument("--check", action="store_true", help="only compare the figure's data")
    if not parser.parse_args().check:
        write(FOLDER / f"{name}.svg", compute(), draw, height)
    elif stored(name) != compute():
        sys.exit(f"{name}.svg shows other data: run python docs/figures/{name}.py")
