"""Shows the attention of a model on a text, as a page or figure: `python -m bertjax.visualize`."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bertjax.base import command_line, signals
from bertjax.base.progress import file_size

if TYPE_CHECKING:
    from bertjax.inference.pretrained import Pretrained

# Suffixes of the files that can be written.
FORMATS = (".html", ".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisualizeConfig:
    """Config of `bertjax.visualize`: the model, the text, and the page or figure to write.

    Raises:
        ValueError: the suffix of `output` is not supported, `layer` or `head` is below 1, or `plot`
            is set although `output` is a page.
    """

    text: Annotated[str, tyro.conf.Positional]
    """Text to look at; a [MASK] in it is filled."""
    pair: Annotated[str | None, tyro.conf.Positional] = None
    """Second text of a pair; None: TEXT is a single text."""
    model: str = "bertjax:tiny"
    """Model: a directory, the workdir of a pretraining or of a finished fine-tuning, a TF1
    checkpoint or a hub name; bertjax:tiny is a small model that comes with bertjax."""
    output: str = "attention.html"
    """File to write: .html, a page that needs neither a network nor other files; or .png, .svg or
    .pdf, a figure for papers, which needs matplotlib (pip install 'bertjax[viz]')."""
    layer: int | None = None
    """Layer, from 1: the one that the page shows first, or the one of the figure; None: the first
    layer in a page, all layers in a figure."""
    head: int | None = None
    """Attention head of the layer, from 1; None: the first head in a page, all heads in a
    figure."""
    plot: Literal["matrix", "lines"] | None = None
    """What a figure shows of a head: a matrix, or lines from token to token; None: a matrix; a page
    shows both."""

    def __post_init__(self):
        suffix = Path(self.output).suffix.lower()
        if suffix not in FORMATS:
            raise ValueError(
                f"--output {self.output}: the suffix {suffix!r} is not supported. Use one of "
                f"{', '.join(FORMATS)}."
            )
        for name in ("layer", "head"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ValueError(f"--{name} {number}: {name}s are numbered from 1.")
        if suffix == ".html" and self.plot is not None:
            raise ValueError(
                f"--plot {self.plot}: without effect with --output {self.output}, because a page "
                "shows a matrix and lines. Leave it out, or write a .png, .svg or .pdf file."
            )


def run(config: VisualizeConfig) -> None:
    """Writes a page or a figure of the attention of a model on a text.

    A page also shows words for the tokens of the text, and the hidden states.

    Raises:
        FileNotFoundError: there is no model at `config.model`.
        ImportError: a figure is to be written, but matplotlib is not installed.
        ValueError: the text is empty or too long, or the model has no such layer or head.
    """
    from bertjax.devices.compilation import start_command
    from bertjax.inference.pretrained import Pretrained
    from bertjax.weights import load_model

    start_command(config)
    # Unlike `load_pretrained`, says nothing about an untrained pooler, which is not shown.
    model = Pretrained(load_model(config.model, "auto"))
    counts = {"layer": model.config.num_hidden_layers, "head": model.config.num_attention_heads}
    for name, count in counts.items():
        if (getattr(config, name) or 1) > count:
            number = getattr(config, name)
            raise ValueError(f"--{name} {number}: the model has {count} {name}s, 1 to {count}.")
    if Path(config.output).suffix.lower() == ".html":
        _write_page(config, model)
    else:
        _write_figure(config, model)


def _write_page(config: VisualizeConfig, model: "Pretrained") -> None:
    from bertjax.base.files import write_text
    from bertjax.inference.attention import attention_data
    from bertjax.inference.masks import model_name
    from bertjax.pages import fill

    data = attention_data(model, config.text, config.pair)
    data["first"] = {"layer": (config.layer or 1) - 1, "head": (config.head or 1) - 1}
    page = fill("attention.html", data | {"model": model_name(config.model)})
    write_text(Path(config.output), page)
    print(
        f"{data['layers']} layers of {data['heads']} heads, {len(data['tokens'])} tokens: written "
        f"to {config.output} ({file_size(len(page.encode()))}), which any browser opens"
    )


def _write_figure(config: VisualizeConfig, model: "Pretrained") -> None:
    from bertjax.inference.attention import attention_figure, attention_of, save_figure

    shown = attention_of(model, config.text, config.pair)
    figure = attention_figure(
        shown.tokens,
        shown.probabilities,
        layer=config.layer,
        head=config.head,
        plot=config.plot or "matrix",
    )
    if note := save_figure(figure, Path(config.output)):
        print(f"warning: {note}", file=sys.stderr)
    print(f"figure of the attention on {len(shown.tokens)} tokens written to {config.output}")


parse, main = command_line.command_of(
    VisualizeConfig,
    run,
    "visualize",
    "Writes the attention of a model on a text as one HTML file, or as a figure.",
    "Use a shorter text or a smaller model.",
)


if __name__ == "__main__":
    signals.leave(main())
