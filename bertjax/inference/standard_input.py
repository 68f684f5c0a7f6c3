"""Standard input as a file, because files of examples are read more than once."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bertjax.files import explaining
from bertjax.scratch import scratch_folder


@contextlib.contextmanager
def standard_input_as_file() -> Iterator[Path]:
    """Yields the path of a temporary file with all that standard input holds.

    The file is stdin.jsonl (JSON lines) if the first character that is not a space is "{", and
    stdin.txt (one text per line) otherwise. It is removed at the end of the block.

    Raises:
        OSError: the file cannot be written.
    """
    with scratch_folder() as folder:
        path = folder / "stdin.txt"
        with explaining(folder), path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        with path.open("rb") as file:
            start = file.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
        if start.startswith(b"{"):
            path = path.rename(folder / "stdin.jsonl")
        yield path
