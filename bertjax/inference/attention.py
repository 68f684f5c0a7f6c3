"""The data of the page of `bertjax.visualize`, and figures of attention, drawn with matplotlib."""

import base64
import bisect
import dataclasses
import gzip
import io
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertjax.base.checked import check
from bertjax.base.files import brief, write_bytes
from bertjax.inference.masks import encoded, readable_tokens, text_view
from bertjax.inference.pretrained import Pretrained
from bertjax.tasks import Example

# Integers that probabilities are stored as; 16 bits are used if the page stays small.
LEVELS_16 = 65535
LEVELS_8 = 255
# Up to this number of bytes, probabilities are compressed in 16 bits to see whether they fit.
TRIED_BYTES = 32_000_000
# A page must not exceed 5 MB, of which this number of bytes is for the attention.
MAX_ATTENTION_BYTES = 4_500_000
CLASSIFIER = "sequence_classification"
SHOWN_KEYS = ("label", "labels", "probabilities", "score", "words", "answer", "probability")


@dataclasses.dataclass(frozen=True)
class Attention:
    """The attention of a model on a text of L tokens, as people read them.

    `probabilities` are float32 [layers, heads, L, L]; row i holds the probabilities with which
    token i attends to each token. `hidden_states` are float32 [layers + 1, L, D], the embeddings
    first. `logits` are [classes] for a sequence classifier, else None.
    """

    ids: list[int]
    types: list[int]
    tokens: list[str]
    probabilities: np.ndarray
    hidden_states: np.ndarray
    logits: np.ndarray | None


def attention_of(model: Pretrained, text: str, pair: str | None = None) -> Attention:
    """Applies a model to a text, which may contain [MASK], or a text pair.

    Raises:
        ValueError: the text is empty, or longer than the model can read.
    """
    ids, types = encoded(model.loaded, text, pair)
    outputs = model(
        input_ids=[ids],
        token_type_ids=[types],
        output_attentions=True,
        output_hidden_states=True,
    )
    logits = None
    if model.head == CLASSIFIER:
        (logits,) = outputs["logits"]
    return Attention(
        ids=ids,
        types=types,
        tokens=readable_tokens(model.loaded, ids),
        probabilities=outputs["attentions"][:, 0],
        hidden_states=outputs["hidden_states"][:, 0],
        logits=logits,
    )


def contacts_of(model: Pretrained, text: str) -> np.ndarray:
    """Computes with which probability two residues of a protein touch, float32 [R, R].

    It is the head of ESM's files: a logistic regression on the attention of all heads between the R
    tokens of the text, without special tokens, made symmetric and with the average product
    correction (Rao et al. 2020, 3.3).

    Raises:
        ValueError: the model has no such head, or as `attention_of`.
    """
    head = model.params["bert"].get("contact_head")
    if head is None:
        raise ValueError("The model has no head for contacts (contact_head=False): use an ESM.")
    kernel = np.asarray(head["kernel"])[:, 0]  # [layers * heads]
    bias = np.asarray(head["bias"])
    probabilities = attention_of(model, text).probabilities[..., 1:-1, 1:-1]
    by_head = probabilities.reshape(-1, *probabilities.shape[2:])
    symmetric = by_head + by_head.swapaxes(1, 2)  # [layers * heads, R, R]
    rows = symmetric.sum(2, keepdims=True)
    columns = symmetric.sum(1, keepdims=True)
    total = symmetric.sum((1, 2), keepdims=True)
    corrected = symmetric - rows * columns / total
    logits = np.tensordot(kernel, corrected, axes=1)
    return 1.0 / (1.0 + np.exp(-logits - bias))


def attention_data(model: Pretrained, text: str, pair: str | None = None) -> dict[str, Any]:
    """Computes the JSON values of a page about a text, which may contain [MASK], or a text pair.

    They are the items of `text_view`; the numbers of "layers" and "heads"; "attention", the result
    of `packed`; "change" [layers, L], 1 - cosine of the hidden states before and after a layer;
    "shared_layers", whether layers share parameters; and "prediction", which is None without a
    fine-tuned head. Errors are as in `attention_of`.
    """
    shown = attention_of(model, text, pair)
    layers, heads = shown.probabilities.shape[:2]
    view = text_view(model.masked_lm, shown.ids, shown.types, is_pair=pair is not None)
    return view | {
        "layers": layers,
        "heads": heads,
        "attention": packed(shown.probabilities),
        "change": _changes(shown.hidden_states),
        "shared_layers": model.config.groups < layers,
        "prediction": _prediction(model, text, pair, shown),
    }


def packed(attention: np.ndarray) -> dict[str, Any]:
    """Compresses attention probabilities, float [layers, heads, L, L], for a page.

    Returns "levels" n, "power" k, "threshold" t, and "gzip", compressed integers in base64. A
    probability p is stored as round(p ** (1 / k) * n), in 16 bits (little endian) if n > 255, else
    in 8 bits; probabilities below t, which is 0 unless the page would be too large, as 0.
    """
    if 2 * attention.size <= TRIED_BYTES:
        levels = np.round(attention * LEVELS_16)
        text = _compressed(levels.astype("<u2"))
        if len(text) <= MAX_ATTENTION_BYTES:
            return {"levels": LEVELS_16, "power": 1, "threshold": 0.0, "gzip": text}
    # Most probabilities of a long text are small. Their square roots are not.
    levels = np.round(np.sqrt(attention) * LEVELS_8)
    values = levels.astype(np.uint8)
    heads = values.reshape(-1, *values.shape[2:])
    smallest = _smallest(heads)
    while True:
        values[values < smallest] = 0
        text = _compressed(values)
        if len(text) <= MAX_ATTENTION_BYTES:
            break
        smallest += 1
    threshold = 0.0
    if smallest > 1:
        threshold = ((smallest - 0.5) / LEVELS_8) ** 2
    return {"levels": LEVELS_8, "power": 2, "threshold": threshold, "gzip": text}


def _smallest(values: np.ndarray) -> int:
    """Returns the smallest integer to keep in uint8 [heads, L, L], estimated from some heads."""
    sample = values[:: max(1, len(values) // 12)].copy()
    limit = 0.98 * MAX_ATTENTION_BYTES * len(sample) / len(values)

    def fits(smallest: int) -> bool:
        kept = np.where(sample < smallest, 0, sample).astype(np.uint8)
        return len(_compressed(kept)) <= limit

    return 1 + bisect.bisect_left(range(1, 255), True, key=fits)


def _compressed(values: np.ndarray) -> str:
    # Higher levels of gzip take several times as long and save few percent.
    content = gzip.compress(values.tobytes(), 4, mtime=0)
    return base64.b64encode(content).decode()


def _changes(hidden_states: np.ndarray) -> list[list[float]]:
    """Returns 1 - cosine of hidden states [layers + 1, L, D] before and after each layer."""
    states = hidden_states.astype(np.float64)
    norms = np.linalg.norm(states, axis=-1)
    products = (states[:-1] * states[1:]).sum(-1)
    lengths = norms[:-1] * norms[1:]
    cosines = products / np.maximum(lengths, 1e-12)
    return np.round(1 - cosines, 4).tolist()


def _prediction(
    model: Pretrained, text: str, pair: str | None, shown: Attention
) -> dict[str, Any] | None:
    """Returns the prediction of a fine-tuned head; None without one, or for text it cannot read."""
    if not set(model.absent).isdisjoint(model.model.parts):
        return None
    texts: Any = text
    head = "token_classification"
    if pair is not None:
        texts = (text, pair)
        head = "question_answering"
    if shown.logits is not None:
        example = Example(id="", where="")
        prediction = model.task.predict(example, (), [{"logits": shown.logits}])
    elif model.head != head or model.loaded.tokenizer.mask_token_id in shown.ids:
        return None
    else:
        (prediction,) = model.predict([texts], max_length=model.config.max_length)
    return {key: prediction[key] for key in SHOWN_KEYS if key in prediction}


# Up to this number of tokens, each has a label; else every second, third...
LABELLED = 64
# Height of a token in inches: a line of the labels, which have 8 points.
INCHES_PER_TOKEN = 0.16
# A figure of one head is at most this large in inches.
MAX_INCHES = 10.0
# Side of a small plot of a grid, in inches.
SMALL = 0.8
LONGEST_LABEL = 16
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

    `probabilities` are [layers, heads, L, L]; layers and heads are numbered from 1. If `plot` is
    "matrix", row i and column j of an image show the probability with which token i attends to
    token j; if "lines", lines from token i to token j show probabilities of at least `LEAST_LINE`.
    Colours and opacities of the `matplotlib.figure.Figure` show the square root of a probability.

    Raises ImportError without matplotlib, and ValueError for an unknown layer, head or plot.
    """
    check("plot", plot, Literal["matrix", "lines"])
    num_layers, num_heads, *_ = probabilities.shape
    layers = _chosen("layer", layer, num_layers)
    heads = _chosen("head", head, num_heads)
    draw: Callable[..., None] = _draw_matrix
    if plot == "lines":
        draw = _draw_lines
    figure_class = _matplotlib().figure.Figure
    with _matplotlib().rc_context(STYLE):
        if len(layers) == len(heads) == 1:
            (layer_index,) = layers
            (head_index,) = heads
            figure = figure_class(figsize=_size(len(tokens), plot), layout="constrained")
            axes = figure.add_subplot()
            axes.set_title(f"layer {layer_index + 1}, head {head_index + 1}")
            draw(axes, probabilities[layer_index, head_index], tokens)
            return figure
        width = 0.4 + SMALL * len(heads)
        height = 0.4 + SMALL * len(layers)
        figure = figure_class(figsize=(width, height), layout="constrained")
        grid = figure.subplots(len(layers), len(heads), squeeze=False)
        for row, layer_index in enumerate(layers):
            grid[row, 0].set_ylabel(f"layer {layer_index + 1}", fontsize=7)
            for column, head_index in enumerate(heads):
                draw(grid[row, column], probabilities[layer_index, head_index], None)
        for column, head_index in enumerate(heads):
            grid[0, column].set_title(f"head {head_index + 1}", fontsize=7)
        return figure


def _chosen(name: str, number: int | None, count: int) -> Sequence[int]:
    """Returns the index of a layer or head, numbered from 1, or all indices for None."""
    if number is None:
        return range(count)
    if not 1 <= number <= count:
        raise ValueError(f"{name}={number}: it must be from 1 to {count}.")
    return [number - 1]


def save_figure(figure: Any, path: Path) -> str:
    """Writes a figure to a file, with 300 dots per inch where it has pixels.

    The suffix of `path`, .png, .svg or .pdf, is the format. Returns an empty string, or a sentence
    that names the characters of a .png or .pdf file which the fonts of matplotlib do not have.
    """
    buffer = io.BytesIO()
    suffix = path.suffix.lower()[1:]
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with _matplotlib().rc_context(STYLE), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(buffer, format=suffix, dpi=300, metadata=dates.get(suffix))
    write_bytes(path, buffer.getvalue())
    missing = set()
    for warning in caught:
        message = str(warning.message)
        if "missing" in message:
            missing.add(message.partition("(")[0].strip())
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
    tokens = min(MAX_INCHES - 2.2, INCHES_PER_TOKEN * max(count, 8))
    if plot == "lines":
        return 3.6, tokens + 0.5
    return tokens + 2.2, tokens + 1.4


def _labels(tokens: Sequence[str]) -> tuple[list[int], list[str]]:
    step = math.ceil(len(tokens) / LABELLED)
    # Matplotlib reads text between dollar signs as a formula.
    texts = [brief(token, LONGEST_LABEL).replace("$", r"\$") for token in tokens[::step]]
    return [*range(0, len(tokens), step)], texts


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
    axes.figure.colorbar(
        image,
        ax=axes,
        fraction=0.05,
        pad=0.03,
        ticks=[0, 0.01, 0.1, 0.5, 1],
        format="%g",
        label="attention probability",
    )


def _draw_lines(axes: Any, attention: np.ndarray, tokens: Sequence[str] | None) -> None:
    count = len(attention)
    sources, targets = np.nonzero(attention >= LEAST_LINE)
    p = attention[sources, targets]
    lines = np.empty((len(p), 2, 2))  # [lines, 2 ends, x and y]
    lines[:, :, 0] = (0, 1)
    lines[:, 0, 1] = sources
    lines[:, 1, 1] = targets
    widths = 0.4 + 1.6 * p
    if tokens is None:
        widths *= 0.4
    collection = _matplotlib().collections.LineCollection(
        lines, colors="#1d4ed8", alpha=np.sqrt(p), linewidths=widths
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
