"""Embeds the texts of a file: `bertjax.predict --embed`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from bertjax.files import writing
from bertjax.inference.embed import Embedder
from bertjax.inference.partial_output import (
    PartialVectors,
    check_output,
    continued,
    file_identity,
)
from bertjax.progress import progress
from bertjax.tasks.sources.columns import Columns, find_columns
from bertjax.tasks.sources.row_readers import open_text, place
from bertjax.tasks.sources.table_files import NAMED_COLUMNS, TSV_SUFFIXES, Table, suffix_of

# The texts of a file are sorted by length in windows of at most so many texts; a window ends when
# it has so many characters.
WINDOW = 8192
WINDOW_CHARACTERS = 1 << 22
# Number of characters after which a line is cut off; no model reads so many.
LINE_CHARACTERS = 1 << 16
OUTPUTS = (".npy", ".jsonl", ".parquet")


def embed_file(
    embedder: Embedder, source: Path, output: Path, text_column: str | None = None
) -> int:
    """Writes an embedding vector for each text of a file; returns the number of texts.

    The vectors are in the order of the texts. A `.npy` file holds them as an array [texts, size], a
    `.jsonl` file as one JSON list per line, and a `.parquet` file as the column "embedding" beside
    the column "text".

    Args:
        embedder: computes the vectors.
        source: a CSV, TSV, JSON or Parquet file with a column of texts, or else a file with one
            text per line, in which blank lines are texts as well.
        output: the file to write, whose suffix determines the format.
        text_column: the column of the texts in a table; None: the column is guessed, and its name
            is printed.

    Raises:
        ValueError: the suffix of `output` is unknown, `output` is `source`, `source` has no such
            column or holds a value that is not a text, or its text is not UTF-8.
        FileNotFoundError: `source` does not exist or is a folder.
        OSError: the disk is full. After a full disk or a kill, `output` has its old content, and a
            call with the same arguments continues from the vectors that the failed call wrote.
    """
    if output.suffix not in OUTPUTS:
        raise ValueError(f"--output {output}: the name must end in {', '.join(OUTPUTS)}.")
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "does not exist"
        raise FileNotFoundError(
            f"{source} {what}: --embed takes one file, a table or one text per line."
        )
    check_output(output, source)
    text_column = _text_column(source, text_column)
    identity = {**embedder.identity, "source": file_identity(source), "column": text_column}
    is_npy, done = output.suffix != ".jsonl", None
    count = empty = 0

    def finish(partial: Path, output: Path) -> None:
        if output.suffix == ".parquet":
            with writing(output) as temporary:
                _write_parquet(partial, temporary, _texts(source, text_column))
            partial.unlink()
        else:
            partial.replace(output)

    with (
        continued(
            output, identity, lambda path: PartialVectors(path, embedder.size, is_npy), finish
        ) as vectors,
        progress("embedding", unit="texts") as state,
    ):
        embedder.after_batch = state.advance
        for texts in _windows(_texts(source, text_column)):
            # Only whole windows are kept, because the texts of a window are batched together.
            if done is None and count + len(texts) > vectors.done:
                done = _start_at(vectors, count, output)
            if done is not None:
                vectors.write(embedder(texts))
            count += len(texts)
            empty += sum(not text.strip() for text in texts)
        if done is None:
            _start_at(vectors, count, output)
        vectors.finish(count)
    if embedder.truncated:
        print(
            f"{embedder.truncated:,} texts have {embedder.max_length} tokens or more, and longer "
            "ones are truncated."
        )
    if empty:
        print(f"{empty:,} of the {count:,} texts are empty; their vectors represent no words.")
    return count


def _start_at(vectors: PartialVectors, count: int, output: Path) -> int:
    vectors.keep(count)
    if count:
        print(f"continuing {output} after {count:,} texts", flush=True)
    return count


def _text_column(source: Path, text_column: str | None) -> str | None:
    """Returns the column of the texts in a table; None if the file has one text per line."""
    if suffix_of(source) not in (*NAMED_COLUMNS, *TSV_SUFFIXES):
        if text_column is not None:
            raise ValueError(f"{source} has one text per line: leave --text_column out.")
        return None
    columns, note = find_columns(
        Table(source), "classify", Columns(text=text_column), labelled=False, pairs=False
    )
    if text_column is None and columns.pair is not None:
        raise ValueError(
            f"{source} has two columns of texts, {columns.text!r} and {columns.pair!r}: name one "
            "with --text_column."
        )
    if text_column is None and note:
        print(f"{source.name}: texts from column {columns.text!r}; give --text_column for another")
    return columns.text


def _texts(source: Path, text_column: str | None) -> Iterator[str]:
    """Yields the texts of a file in order, each cut to its first LINE_CHARACTERS characters."""
    if text_column is None:
        yield from _lines(source)
        return
    for number, row in Table(source).rows():
        text = row.get(text_column)
        if not isinstance(text, str | None):
            raise ValueError(
                f"{place(source, number)}: {text_column!r} should be a text, but is a "
                f"{type(text).__name__}. Correct the row."
            )
        yield (text or "")[:LINE_CHARACTERS]


def _lines(source: Path) -> Iterator[str]:
    """Yields the first LINE_CHARACTERS characters of each line of the text file `source`."""
    with open_text(source, newline=None, errors="strict") as file:
        try:
            while line := file.readline(LINE_CHARACTERS):
                yield line.rstrip("\n")
                while line and not line.endswith("\n"):
                    line = file.readline(LINE_CHARACTERS)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{source} is not UTF-8 ({error.reason}): convert the file to UTF-8."
            ) from error


def _windows(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields the texts in lists that end after WINDOW texts or WINDOW_CHARACTERS characters."""
    window: list[str] = []
    characters = 0
    for text in texts:
        window.append(text)
        characters += len(text)
        if len(window) == WINDOW or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def _write_parquet(vectors: Path, output: Path, texts: Iterable[str]) -> None:
    """Writes a Parquet file of `texts` and of their vectors, the rows of a .npy file."""
    import pyarrow
    import pyarrow.parquet

    array = np.load(vectors, mmap_mode="r")
    size = array.shape[1]
    kind = pyarrow.list_(pyarrow.float32(), size)
    schema = pyarrow.schema([("text", pyarrow.string()), ("embedding", kind)])
    start = 0
    with pyarrow.parquet.ParquetWriter(output, schema) as writer:
        for window in _windows(texts):
            rows = np.asarray(array[start : start + len(window)]).ravel()
            embedding = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows), size)
            columns = [pyarrow.array(window, pyarrow.string()), embedding]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
            start += len(window)
