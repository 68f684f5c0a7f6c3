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
    """Config of `bertjax.fill_mask`: the model, the texts, and the page to write.

    Raises:
        ValueError: there is no text, `top_k` is below 1, or `html` does not end in .html or is
            given with several texts.
    """

    text: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Texts, each in quotes, with one or more [MASK] tokens (`<mask>` for RoBERTa)."""
    model: str
    """Model: a directory, the workdir of a pretraining, a TF1 checkpoint, a hub name, or
    bertjax:tiny, a small model that comes with bertjax."""
    top_k: Count = 5
    """Number of tokens to print per mask, the most probable first."""
    html: str | None = None
    """Page to write, which needs neither a network nor other files: the tokens of a single text,
    and the most probable tokens for each mask as bars; None: none is written."""

    def __post_init__(self):
        check("top_k", self.top_k, Count)
        if not self.text:
            raise ValueError('give a text with a mask, in quotes: "The cat [MASK] here."')
        if self.html is not None and len(self.text) > 1:
            raise ValueError(
                f"--html {self.html}: a page shows one text, but {len(self.text)} were given: put "
                "a text in quotes, or give --html with each of the texts."
            )
        if self.html is not None and not self.html.lower().endswith((".html", ".htm")):
            raise ValueError(f"--html {self.html}: the file must end in .html.")


def run(config: FillMaskConfig) -> None:
    """Prints the most probable tokens for each mask of the texts; writes the page, if any.

    Raises FileNotFoundError, and ValueError if a text has no mask or is too long, or the model
    has no masked LM head.
    """
    from bertjax import weights
    from bertjax.devices.compilation import start_command
    from bertjax.inference.masks import fill_mask

    config = start_command(config)
    loaded = weights.load_model(config.model, "masked_lm")
    for text in config.text:
        words_of_masks = fill_mask(loaded, text, config.top_k)
        if len(config.text) > 1:
            print(brief(text, 100))
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

    ids, types = encoded(loaded, config.text[0], None)
    view = text_view(loaded, ids, types, top_k=config.top_k)
    page = fill("fill_mask.html", view | {"model": model_name(config.model)})
    write_text(output, page)
    print(f"page written to {output}, which any browser opens")


parse, main = command_line.command_of(
    FillMaskConfig,
    run,
    "fill_mask",
    "Predicts the most probable tokens for each mask of texts.",
    "Use a shorter text or a smaller model.",
)


if __name__ == "__main__":
    signals.leave(main())
