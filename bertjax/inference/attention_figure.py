"""Draws attention as a figure for papers, with matplotlib: PNG, SVG or PDF."""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.files import brief, write_bytes

# Up to this number of tokens, each has a label; else every second, third...
LABELLED = 64
# Height of a token in inches: a line of the labels, which have 8 points.
INCHES_PER_TOKEN = 0.16
# A figure of one head is at most this large in inches.
MAX_INCHES = 10.0
# Side of a small plot of a grid, in inches.
SMALL = 0.8
LONGEST_LABEL = 16
# Lines of lower probability are not drawn.
LEAST_LINE = 0.02
# Settings of matplotlib: text in SVG remains text, and files do not depend on the time.
STYLE = {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "bertjax", "pdf.fonttype": 42}


def attention_figure(
    tokens: Sequence[str],
    probabilities: np.ndarray,
    *,
    layer: int | None = None,
    head: int | None = None,
    plot: str = "matrix",
) -> Any:
    """Draws the attention of one head or, if `layer` or `head` is None, a grid of heads.

    Args:
        tokens: the L tokens.
        probabilities: attention probabilities [layers, heads, L, L].
        layer: number of the layer, from 1; None: all layers.
        head: number of the head in each layer, from 1; None: all heads.
        plot: "matrix": row i and column j of an image show the probability with which token i
            attends to token j; "lines": lines from token i on the left to token j on the right,
            of probabilities of at least `LEAST_LINE`.

    Returns:
        A `matplotlib.figure.Figure`. Colours show the square root of a probability, and so do the
        opacities of lines, so that small values are seen.

    Raises:
        ImportError: matplotlib is not installed.
        KeyError: `plot` is neither "matrix" nor "lines".
        ValueError: the model has no such layer or head.
    """
    for name, number, count in zip(
        ("layer", "head"), (layer, head), probabilities.shape[:2], strict=True
    ):
        if number is not None and not 1 <= number <= count:
            raise ValueError(f"{name}={number}: it must be from 1 to {count}.")
    figure_class = _matplotlib().figure.Figure
    layers = range(len(probabilities)) if layer is None else [layer - 1]
    heads = range(probabilities.shape[1]) if head is None else [head - 1]
    draw: Callable[..., None] = {"matrix": _draw_matrix, "lines": _draw_lines}[plot]
    with _matplotlib().rc_context(STYLE):
        if len(layers) * len(heads) == 1:
            figure = figure_class(figsize=_size(len(tokens), plot), layout="constrained")
            axes = figure.add_subplot()
            axes.set_title(f"layer {layers[0] + 1}, head {heads[0] + 1}")
            draw(axes, probabilities[layers[0], heads[0]], tokens)
            return figure
        size = (0.4 + SMALL * len(heads), 0.4 + SMALL * len(layers))
        figure = figure_class(figsize=size, layout="constrained")
        grid = figure.subplots(len(layers), len(heads), squeeze=False)
        for row, layer_index in enumerate(layers):
            for column, head_index in enumerate(heads):
                axes = grid[row, column]
                draw(axes, probabilities[layer_index, head_index], None)
                if row == 0:
                    axes.set_title(f"head {head_index + 1}", fontsize=7)
                if column == 0:
                    axes.set_ylabel(f"layer {layer_index + 1}", fontsize=7)
        return figure


def save_figure(figure: Any, path: Path) -> str:
    """Writes a figure to a file, with 300 dots per inch where it has pixels.

    Args:
        figure: a `matplotlib.figure.Figure`, such as that of `attention_figure`.
        path: the file; its suffix, .png, .svg or .pdf, is the format.

    Returns:
        An empty string, or a sentence that names the characters of a .png or .pdf file which the
        fonts of matplotlib do not have.

    Raises:
        OSError: the file cannot be written.
        ValueError: matplotlib does not know the format.
    """
    buffer, suffix = io.BytesIO(), path.suffix.lower()[1:]
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with _matplotlib().rc_context(STYLE), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(buffer, format=suffix, dpi=300, metadata=dates.get(suffix))
    write_bytes(path, buffer.getvalue())
    missing = {str(w.message).split("(")[0].strip() for w in caught if "missing" in str(w.message)}
    if not missing or suffix == "svg":  # programs that show an SVG have fonts of their own
        return ""
    return (
        f"{brief(', '.join(sorted(missing)))}: the fonts of matplotlib lack these characters. "
        "Write an .svg or .html file, whose viewer chooses the fonts."
    )


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise ImportError(
            "Figures (.png, .svg, .pdf) need matplotlib: pip install 'bertjax[viz]'. An .html page "
            "needs nothing more."
        ) from error
    return matplotlib


def _size(count: int, plot: str) -> tuple[float, float]:
    """Returns width and height in inches of the figure of one head, with room for labels."""
    tokens = min(MAX_INCHES - 2.2, INCHES_PER_TOKEN * max(count, 8))
    return (tokens + 2.2, tokens + 1.4) if plot == "matrix" else (3.6, tokens + 0.5)


def _labels(tokens: Sequence[str]) -> tuple[list[int], list[str]]:
    """Returns positions and texts of the labels of a text; a long one has fewer labels."""
    positions = list(range(0, len(tokens), math.ceil(len(tokens) / LABELLED)))
    texts = [brief(tokens[n], LONGEST_LABEL) for n in positions]
    # Matplotlib reads text between dollar signs as a formula.
    return positions, [text.replace("$", r"\$") for text in texts]


def _draw_matrix(axes: Any, attention: np.ndarray, tokens: Sequence[str] | None) -> None:
    norm = _matplotlib().colors.PowerNorm(0.5, vmin=0, vmax=1)
    image = axes.imshow(attention, cmap="Blues", norm=norm, interpolation="nearest")
    if tokens is None:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    positions, texts = _labels(tokens)
    axes.set_xticks(positions, texts, rotation=90)
    axes.set_yticks(positions, texts)
    axes.tick_params(length=0)
    axes.set_xlabel("attended token")
    axes.set_ylabel("attending token")
    bar = axes.figure.colorbar(
        image, ax=axes, fraction=0.05, pad=0.03, ticks=[0, 0.01, 0.1, 0.5, 1]
    )
    bar.ax.set_yticklabels(["0", "0.01", "0.1", "0.5", "1"])
    bar.set_label("attention probability")


def _draw_lines(axes: Any, attention: np.ndarray, tokens: Sequence[str] | None) -> None:
    count = len(attention)
    sources, targets = np.nonzero(attention >= LEAST_LINE)
    p = attention[sources, targets]
    lines = np.stack(
        [np.stack([np.zeros_like(p), sources], -1), np.stack([np.ones_like(p), targets], -1)], 1
    )
    colour = _matplotlib().colors.to_rgb("#1d4ed8")
    collection = _matplotlib().collections.LineCollection(
        lines,
        colors=np.column_stack([np.tile(colour, (len(p), 1)), np.sqrt(p)]),
        linewidths=(0.4 + 1.6 * p) * (1 if tokens else 0.4),
    )
    # Hundreds of thousands of lines are too many for programs that show vectors.
    collection.set_rasterized(tokens is None and count > LABELLED)
    axes.add_collection(collection)
    axes.set_xlim(0, 1)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    if tokens is None:
        return
    positions, texts = _labels(tokens)
    axes.set_frame_on(False)
    axes.set_yticks(positions, texts)
    axes.set_ylabel("attending token")
    axes.tick_params(length=0)
    right = axes.secondary_yaxis("right")
    right.set_yticks(positions, texts)
    right.set_ylabel("attended token")
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
