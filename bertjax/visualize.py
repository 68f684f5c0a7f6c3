"""Shows the attention of a model on a text as one HTML file: `python -m bertjax.visualize`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from bertjax import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisualizeConfig:
    """Config of `bertjax.visualize`: the model, the text and the page."""

    GROUPS: ClassVar[dict[str, str]] = {
        "data": "text pair",
        "model": "model",
        "output": "output",
    }

    text: Annotated[str, tyro.conf.Positional]
    """Text to look at; a [MASK] in it is filled."""
    pair: Annotated[str | None, tyro.conf.Positional] = None
    """Second text of a pair; None: --text is a single text."""
    model: str = "bertjax:tiny"
    """Model: a directory, the workdir of a pretraining or of a finished fine-tuning, a TF1
    checkpoint or a hub name; bertjax:tiny is a small model that comes with bertjax."""
    output: str = "attention.html"
    """HTML file to write, which needs neither a network nor other files."""


def run(config: VisualizeConfig) -> None:
    """Writes a page with the attention of a model, words for its tokens, and its hidden states.

    Raises:
        FileNotFoundError: there is no model at `config.model`.
        OSError: the page cannot be written.
        ValueError: the text is empty or too long.
    """
    from bertjax.files import write_text
    from bertjax.inference.attention_data import attention_data
    from bertjax.inference.pretrained import load_pretrained
    from bertjax.pages.templates import fill

    data = attention_data(load_pretrained(config.model), config.text, config.pair)
    parts = Path(config.model).resolve().parts if Path(config.model).exists() else (config.model,)
    # The model of a run is in its folder `model`, whose name says nothing.
    name = "/".join(parts[-2:]) if parts[-1] == "model" else parts[-1]
    page = fill("attention.html", data | {"model": name})
    write_text(Path(config.output), page)
    print(
        f"{data['layers']} layers of {data['heads']} heads, {len(data['tokens'])} tokens: written "
        f"to {config.output} ({len(page.encode()) / 1e6:.1f} MB), which any browser opens"
    )


def parse(argv: Sequence[str] | None = None) -> VisualizeConfig:
    """Parses the command-line flags."""
    return command_line.parse(
        VisualizeConfig,
        argv,
        command="visualize",
        description="Writes the attention of a model on a text as one HTML file.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags, writes the page and returns the exit status."""
    return command_line.run_reporting_errors(lambda: run(parse(argv)), command_line.MEMORY_REMEDY)


if __name__ == "__main__":
    sys.exit(main())
