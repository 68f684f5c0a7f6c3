"""Draws search.png for README.md: docs/figures/search_kinds.svg as a bitmap, which PyPI shows.

python docs/images/search.py
"""

import sys
from pathlib import Path

from matplotlib import pyplot

IMAGES = Path(__file__).parent
sys.path.insert(0, str(IMAGES.parent / "figures"))


def main() -> None:
    """Writes the picture, 1,280 pixels wide and 900 high as those of screenshots.py."""
    import search_kinds

    settings = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context(settings):
        figure = pyplot.figure(figsize=(6.4, 4.5), dpi=200, layout="constrained")
        search_kinds.draw(figure, search_kinds.compute())
        figure.savefig(IMAGES / "search.png")


if __name__ == "__main__":
    main()
