"""Shows the attention of a model on a text, or which words its prediction is made of, as a page.

Attention is also drawn as a figure: `python -m bertjax.visualize`.
"""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bertjax.base import command_line, signals
from bertjax.base.checked import Count
from bertjax.base.progress import file_size

if TYPE_CHECKING:
    from bertjax.inference.attribution import Attribution
    from bertjax.inference.pretrained import Pretrained

# Suffixes of the files that can be written.
FORMATS = (".html", ".png", ".svg", ".pdf")
OF_ATTENTION = ("layer", "head", "plot")
OF_ATTRIBUTION = ("label", "word", "baseline", "steps")
PRINTED_WORDS = 10
# A completeness error of more than this share of the difference of the outputs is named.
LARGE_ERROR = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisualizeConfig:
    """Config of `bertjax.visualize`: the model, the text, and the page or figure to write.

    Raises:
        ValueError: the suffix of `output` is not supported, `layer` or `head` is below 1, or a
            field is set that has no effect on what is written.
    """

    text: Annotated[str, tyro.conf.Positional]
    """Text to look at; a [MASK] in it is filled."""
    pair: Annotated[str | None, tyro.conf.Positional] = None
    """Second text of a pair; None: TEXT is a single text."""
    model: str = "bertjax:tiny"
    """Model: a directory, the workdir of a pretraining or of a finished fine-tuning, a TF1
    checkpoint or a hub name; bertjax:tiny is a small model that comes with bertjax."""
    output: str | None = None
    """File to write: .html, a page that needs neither a network nor other files; or .png, .svg or
    .pdf, a figure of attention for papers, which needs matplotlib (pip install 'bertjax[viz]');
    None: attention.html, or attribution.html with --attribute."""
    layer: int | None = None
    """Layer, from 1: the one that the page shows first, or the one of the figure; None: the first
    layer in a page, all layers in a figure."""
    head: int | None = None
    """Attention head of the layer, from 1; None: the first head in a page, all heads in a
    figure."""
    plot: Literal["matrix", "lines"] | None = None
    """What a figure shows of a head: a matrix, or lines from token to token; None: a matrix; a page
    shows both."""
    attribute: bool = False
    """Instead of attention, show what each word adds to the prediction of a fine-tuned model, or
    takes from it: integrated gradients (Sundararajan et al. 2017)."""
    label: str | None = None
    """With --attribute: the class or tag to explain; None: the predicted one."""
    word: Count | None = None
    """With --attribute and a tagger: the word whose tag is explained, from 1; None: the first 20
    words with a tag other than O."""
    baseline: Literal["pad", "mask"] | None = None
    """With --attribute: the token of which a text without information consists, [PAD] or [MASK],
    beside the special tokens; None: pad."""
    steps: Count | None = None
    """With --attribute: the number of points on the path from that text to yours; more of them take
    longer and lower the completeness error; None: 32."""

    def __post_init__(self):
        suffix = self.path.suffix.lower()
        if suffix not in FORMATS:
            raise ValueError(
                f"--output {self.output}: the suffix {suffix!r} is not supported. Use one of "
                f"{', '.join(FORMATS)}."
            )
        if self.attribute and suffix != ".html":
            raise ValueError(f"--output {self.output}: --attribute writes a page: name it .html.")
        for name in OF_ATTENTION if self.attribute else OF_ATTRIBUTION:
            if getattr(self, name) is not None:
                which = "with" if self.attribute else "without"
                raise ValueError(f"--{name} has no effect {which} --attribute: leave it out.")
        for name in ("layer", "head"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ValueError(f"--{name} {number}: {name}s are numbered from 1.")
        if suffix == ".html" and self.plot is not None:
            raise ValueError(
                f"--plot {self.plot}: without effect with --output {self.output}, because a page "
                "shows a matrix and lines. Leave it out, or write a .png, .svg or .pdf file."
            )

    @property
    def path(self) -> Path:
        """The file to write."""
        return Path(self.output or ("attribution.html" if self.attribute else "attention.html"))


def run(config: VisualizeConfig) -> None:
    """Writes a page or a figure of the attention of a model on a text, or a page of attributions.

    A page of attention also shows words for the tokens of the text, and the hidden states.

    Raises:
        FileNotFoundError: there is no model at `config.model`.
        ImportError: a figure is to be written, but matplotlib is not installed.
        ValueError: the text is empty or too long, or the model has no such layer or head, or none
            that was fine-tuned.
    """
    from bertjax.devices.compilation import start_command
    from bertjax.inference.pretrained import Pretrained
    from bertjax.weights import load_model

    config = dataclasses.replace(config, output=str(config.path))
    start_command(config)
    # Unlike `load_pretrained`, says nothing about an untrained pooler, which is not shown.
    model = Pretrained(load_model(config.model, "auto"))
    if config.attribute:
        _write_attributions(config, model)
        return
    counts = {"layer": model.config.num_hidden_layers, "head": model.config.num_attention_heads}
    for name, count in counts.items():
        if (getattr(config, name) or 1) > count:
            number = getattr(config, name)
            raise ValueError(f"--{name} {number}: the model has {count} {name}s, 1 to {count}.")
    if config.path.suffix.lower() == ".html":
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
    write_text(config.path, page)
    print(
        f"{data['layers']} layers of {data['heads']} heads, {len(data['tokens'])} tokens: written "
        f"to {config.path} ({file_size(len(page.encode()))}), which any browser opens"
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
    if note := save_figure(figure, config.path):
        print(f"warning: {note}", file=sys.stderr)
    print(f"figure of the attention on {len(shown.tokens)} tokens written to {config.path}")


def _write_attributions(config: VisualizeConfig, model: "Pretrained") -> None:
    from bertjax.base.files import write_text
    from bertjax.inference.attribution import STEPS
    from bertjax.inference.masks import model_name
    from bertjax.pages import fill

    baseline = config.baseline or "pad"
    (shown,) = model.attribute(
        [config.text if config.pair is None else (config.text, config.pair)],
        label=config.label,
        word=config.word,
        baseline=baseline,
        steps=config.steps or STEPS,
    )
    if not shown:
        raise ValueError("All words of the text are tagged O: name one to explain with --word.")
    for attribution in shown:
        _print_attribution(attribution)
    page = fill(
        "attribution.html",
        {
            "model": model_name(config.model),
            "baseline": baseline,
            "attributions": [attribution.page_data() for attribution in shown],
        },
    )
    write_text(config.path, page)
    print(f"written to {config.path} ({file_size(len(page.encode()))}), which any browser opens")


def _print_attribution(attribution: "Attribution") -> None:
    import numpy as np

    change = attribution.output - attribution.baseline_output
    error = attribution.completeness_error
    print(
        f"{attribution.target}{attribution.remark}: output {attribution.output:.4g}, of the "
        f"baseline {attribution.baseline_output:.4g}; completeness error {error:+.2g}"
    )
    if abs(error) > LARGE_ERROR * abs(change):
        print("  The error is large: raise --steps.")
    values = np.nan_to_num(attribution.values)  # 0 for words that are not read
    order: list[int] = np.argsort(-abs(values), kind="stable").tolist()
    for index in order[:PRINTED_WORDS]:
        print(f"  {values[index]:+8.3f}  {attribution.words[index].strip()}")


parse, main = command_line.command_of(
    VisualizeConfig,
    run,
    "visualize",
    "Writes the attention of a model on a text, or why it predicts what it does, as a page.",
    "Use a shorter text or a smaller model.",
)


if __name__ == "__main__":
    signals.leave(main())
