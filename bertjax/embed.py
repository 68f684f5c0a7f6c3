"""Computes a vector for each text of a file: `python -m bertjax.embed --model DIR --input FILE`."""

import dataclasses
from pathlib import Path

from bertjax.base import command_line, signals
from bertjax.base.checked import part_of
from bertjax.config.model import VectorConfig

SUFFIXES = (".npy", ".jsonl", ".parquet", ".npz")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedConfig(VectorConfig):
    """Config of `bertjax.embed`: the model, the texts, and the file of vectors to write.

    Raises:
        ValueError: a value is not of the type of its field, or the suffix of `output` is unknown.
    """

    model: str
    """Model: a directory, the workdir of a run, a TF1 checkpoint, a hub name, or bertjax:tiny, a
    small model that comes with bertjax."""
    input: str
    """File with one text per line, or table (CSV, TSV, JSON, Parquet) with a column of texts; it
    may be in a bucket."""
    output: str
    """File to write: .npy, an array [texts, dimensions]; .jsonl, one list per line; .parquet, with
    the texts. Of a sparse model: .npz, a SciPy CSR array, or .jsonl, {token: weight} per line; of
    one with a vector per token: .npz, vectors and offsets. A killed command continues when it is
    run again."""
    text_column: str | None = None
    """Column of the texts in a table; None: guessed, and the guess is printed."""
    prompt: str | None = None
    """Name of a prompt in the files of sentence-transformers in --model, such as query, or a text
    to put before each text; None: their default prompt, if any."""

    def __post_init__(self):
        super().__post_init__()
        if Path(self.output).suffix not in SUFFIXES:
            raise ValueError(f"--output {self.output}: the name must end in {', '.join(SUFFIXES)}.")


def run(config: EmbedConfig) -> None:
    """Writes the vectors of the texts of `config.input` to `config.output`, in their order.

    Raises FileNotFoundError, and ValueError if the input or a flag does not fit the model.
    """
    from bertjax import weights
    from bertjax.devices.compilation import start_command
    from bertjax.inference.embedder import embed_file
    from bertjax.inference.indexes import encoder_of
    from bertjax.inference.pretrained import Pretrained

    config = start_command(config, "input")
    model = Pretrained(weights.load_model(config.model, "encoder"))
    options = vars(part_of(config, VectorConfig))
    embedder = encoder_of(model.loaded, prompt=config.prompt, **options)
    if Path(config.output).suffix not in embedder.suffixes:
        raise ValueError(
            f"--output {config.output}: the name must end in {', '.join(embedder.suffixes)} for "
            f"the embeddings of {config.model}."
        )
    count = embed_file(
        embedder,
        Path(config.input),
        Path(config.output),
        config.text_column,
        model=model.identity,
    )
    print(f"{count:,} {embedder.noun} of dimension {embedder.size} written to {config.output}")


parse, main = command_line.command_of(
    EmbedConfig,
    run,
    "embed",
    "Computes an embedding for each text of a file.",
    "Use a smaller --max_length or a smaller model.",
)


if __name__ == "__main__":
    signals.leave(main())
