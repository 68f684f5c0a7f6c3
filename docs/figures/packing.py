"""Rows of a small text with and without packing: what the two forms of `bertjax.prepare` write.

The text is the licence of this repository, with one document per paragraph. Its vocabulary is
trained on the same text.
"""

import contextlib
import io
import tempfile
from pathlib import Path

from figure import COLOURS, PADDING, main

import bertjax
from bertjax.data.metadata import read_metadata
from bertjax.data.records import decode_row, read_shard
from bertjax.tokenization import train_wordpiece

LICENSE = Path(__file__).parents[2] / "LICENSE"
LENGTH = 128
SHOWN = 24  # rows that are drawn


def rows_of(folder: Path, pack: bool) -> list[list[int]]:
    """Prepares the text; returns the lengths of the sequences of each row."""
    output = folder / f"pack-{pack}"
    bertjax.prepare(
        input=(str(folder / "text.txt"),),
        tokenizer=str(folder / "tokenizer"),
        output=str(output),
        max_length=(LENGTH,),
        objective="mlm",
        text_format="lines",
        eval_fraction=0.0,
        num_processes=1,
        pack=pack,
    )
    files = [output / shard.file for shard in read_metadata(output).shards()]
    return [list(decode_row(record).lengths) for file in files for record in read_shard(file)]


def compute() -> dict:
    """Returns the lengths of the sequences of all rows, unpacked and packed."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(temporary)
        (folder / "text.txt").write_bytes(LICENSE.read_bytes())
        lines = LICENSE.read_text(encoding="utf-8").splitlines()
        train_wordpiece(lines, vocab_size=1000).save(folder / "tokenizer")
        rows = {"unpacked": rows_of(folder, False), "packed": rows_of(folder, True)}
    return {"length": LENGTH, **rows}


def draw(figure, data) -> None:
    """Draws rows as bars: one colour per sequence of a row, grey for padding."""
    length = data["length"]
    for axis, kind in zip(figure.subplots(1, 2, sharey=True), ("unpacked", "packed"), strict=True):
        rows = data[kind]
        tokens = sum(map(sum, rows))
        for y, lengths in enumerate(rows[:SHOWN]):
            axis.barh(y, length, color=PADDING, height=0.8)
            start = 0
            for i, size in enumerate(lengths):
                colour = COLOURS[i % len(COLOURS)]
                axis.barh(y, size, left=start, color=colour, height=0.8)
                start += size
        share = tokens / (len(rows) * length)
        axis.set_title(f"{kind}: {len(rows)} rows, {share:.0%} of the positions are tokens")
        axis.set_xlabel("position in the row (grey: padding)")
        axis.set_xlim(0, length)
    axes = figure.axes
    axes[0].set_ylabel("row")
    axes[0].set_ylim(SHOWN - 0.4, -0.6)


if __name__ == "__main__":
    main("packing", compute, draw, height=3.6)
