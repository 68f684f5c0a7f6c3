"""Fills the masks of a text: `python -m bertjax.fill_mask --model DIR "The cat [MASK] here."`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bertjax.base import command_line, printable, signals
from bertjax.base.checked import Count, check
from bertjax.base.files import brief

if TYPE_CHECKING:
    from bertjax.weights import LoadedModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskConfig:
    """Config of `bertjax.fill_mask`: the model, the text, and the page to write.

    Raises:
        ValueError: `top_k` is below 1, or `html` does not end in .html.
    """

    text: Annotated[str, tyro.conf.Positional]
    """Text with one or more [MASK] tokens (`<mask>` for RoBERTa)."""
    model: str
    """Model: a directory, the workdir of a pretraining, a TF1 checkpoint, a hub name, or
    bertjax:tiny, a small model that comes with bertjax."""
    top_k: Count = 5
    """Number of tokens to print per mask, the most probable first."""
    html: str | None = None
    """Page to write, which needs neither a network nor other files: the tokens of the text, and the
    most probable tokens for each mask as bars; None: none is written."""

    def __post_init__(self):
        check("top_k", self.top_k, Count)
        if self.html is not None and not self.html.lower().endswith((".html", ".htm")):
            raise ValueError(f"--html {self.html}: the file must end in .html.")


def run(config: FillMaskConfig) -> None:
    """Prints the most probable tokens for each mask of `config.text`; writes the page, if any.

    Raises FileNotFoundError, and ValueError if the text has no mask or is too long, or the model
    has no masked LM head.
    """
    from bertjax import weights
    from bertjax.devices.compilation import start_command
    from bertjax.inference.masks import fill_mask

    config = start_command(config)
    loaded = weights.load_model(config.model, "masked_lm")
    words_of_masks = fill_mask(loaded, config.text, config.top_k)
    _print_words(words_of_masks, loaded.tokenizer.layout.special_tokens.mask)
    if config.html is not None:
        _write_page(Path(config.html), config, loaded)


def _print_words(words_of_masks: list[list[tuple[str, float]]], mask: str) -> None:
    from rich.table import Table
    from rich.text import Text

    console = printable.console()
    for number, words in enumerate(words_of_masks, start=1):
        table = Table("word", "probability", title=Text(f"{mask} {number}"))
        for word, probability in words:
            table.add_row(Text(brief(word)), f"{probability:.4f}")
        console.print(table)


def _write_page(output: Path, config: FillMaskConfig, loaded: "LoadedModel") -> None:
    from bertjax.base.files import write_text
    from bertjax.inference.masks import encoded, model_name, text_view
    from bertjax.pages import fill

    ids, types = encoded(loaded, config.text, None)
    view = text_view(loaded, ids, types, top_k=config.top_k)
    page = fill("fill_mask.html", view | {"model": model_name(config.model)})
    write_text(output, page)
    print(f"page written to {output}, which any browser opens")


parse, main = command_line.command_of(
    FillMaskConfig,
    run,
    "fill_mask",
    "Predicts the most probable tokens for each mask of a text.",
    "Use a shorter text or a smaller model.",
)


if __name__ == "__main__":
    signals.leave(main())
