"""python -m bertjax.predict: what a model makes of a text."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertjax import command_line
from bertjax.data.batch import layout
from bertjax.embed import Embedder, embed_file
from bertjax.weights import LoadedModel, load_model


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """What to predict, by which model."""

    model: str
    """Model directory, or the workdir of a finished run."""
    fill_mask: str | None = None
    """A text with one or several [MASK]; prints the words that fit best."""
    top_k: int = 5
    """How many words."""
    embed: str | None = None
    """A file with a text a line; writes a vector for each."""
    output: str | None = None
    """Where to write: .npy or .jsonl."""
    pooling: Literal["mean", "cls"] = "mean"
    """Vector of a text: the mean over its tokens, or that of [CLS]."""
    layers: tuple[int, ...] = (-1,)
    """Hidden states to pool, 0 = embeddings, -1 = the last layer; several are joined."""

    def __post_init__(self):
        if self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: it must be at least 1.")


def fill_mask(loaded: LoadedModel, text: str, top_k: int = 5) -> list[list[tuple[str, float]]]:
    """For each [MASK] of `text`, the `top_k` best tokens with their probabilities.

    Raises:
        ValueError: no [MASK] in the text, a text longer than the model reads, or a model without
            the MLM head.
    """
    if "predictions" in loaded.absent:
        raise ValueError("This model has no masked LM head, so it cannot fill a mask.")
    ids, types = loaded.tokenizer.encode_prompt(text)
    masks = np.flatnonzero(np.array(ids) == loaded.tokenizer.mask_token_id)
    if not len(masks):
        raise ValueError(f"No [MASK] in {text!r}: write [MASK] where a word is to be found.")
    if len(ids) > loaded.config.max_position_embeddings:
        raise ValueError(
            f"The text has {len(ids)} tokens, the model reads at most "
            f"{loaded.config.max_position_embeddings}: shorten it."
        )
    row = layout([len(ids)], len(ids))
    outputs: Any = loaded.model.apply(
        {"params": loaded.params},
        np.array([ids]),
        np.array([types]),
        row["position_ids"][None],
        row["sequence_ids"][None],
        row["sequence_starts"][None],
        masked_positions=masks[None],
    )
    # A vocabulary padded for the device has scores for ids that are no token.
    logits = outputs["prediction_logits"][0, :, : loaded.tokenizer.vocab_size]
    probabilities = np.asarray(jax.nn.softmax(logits))
    best = np.argsort(-probabilities, axis=-1)[:, :top_k]
    return [
        [(loaded.tokenizer.tokens[i], float(of_mask[i])) for i in of_best]
        for of_mask, of_best in zip(probabilities, best, strict=True)
    ]


def run(config: PredictConfig) -> None:
    """Prints a table for each mask, or writes a vector for each line.

    Raises:
        ValueError: neither or both are asked for.
    """
    if (config.fill_mask is None) == (config.embed is None):
        raise ValueError("Give either --fill_mask TEXT or --embed FILE.")
    if config.fill_mask is not None:
        _print_words(fill_mask(load_model(config.model), config.fill_mask, config.top_k))
        return
    if config.output is None:
        raise ValueError("--embed needs --output FILE.npy or FILE.jsonl.")
    embedder = Embedder(load_model(config.model, "encoder"), config.pooling, config.layers)
    count = embed_file(embedder, Path(str(config.embed)), Path(config.output))
    print(f"{count:,} vectors of {embedder.size} written to {config.output}")


def _print_words(answers: list[list[tuple[str, float]]]) -> None:
    console = Console()
    for index, words in enumerate(answers):
        table = Table("word", "probability", title=f"[MASK] {index + 1}")
        for word, probability in words:
            table.add_row(Text(word), f"{probability:.4f}")
        console.print(table)


def parse(argv: Sequence[str] | None = None) -> PredictConfig:
    """Reads the flags."""
    return command_line.parse(
        PredictConfig,
        argv,
        prog="python -m bertjax.predict",
        description="Fills the masks of a text, or writes vectors of texts.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    return command_line.run_reporting_errors(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
