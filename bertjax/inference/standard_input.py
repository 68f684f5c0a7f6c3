"""Standard input as a file, because files of examples are read more than once."""

import contextlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bertjax.files import explaining
from bertjax.scratch import scratch_folder
from bertjax.tasks.sources.columns import is_usual_text
from bertjax.tasks.sources.row_readers import DELIMITERS


@contextlib.contextmanager
def standard_input_as_file() -> Iterator[Path]:
    """Yields the path of a temporary file with all that standard input holds.

    The file is stdin.jsonl (JSON lines) if the first character that is not a space is "{",
    stdin.json if it is an array of objects, and stdin.txt (one text per line) otherwise. If its
    first line seems to name the columns of a table, a warning says that it is read as a text. The
    file is removed at the end of the block.

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
        elif re.match(rb"\[\s*\{", start):
            path = path.rename(folder / "stdin.json")
        elif _is_header(start.partition(b"\n")[0].decode(errors="replace")):
            print(
                "warning: standard input seems to be a table, but is read as one text per line, "
                "its first line as well: give the table as a file (--input FILE), or JSON lines.",
                file=sys.stderr,
            )
        yield path


def _is_header(line: str) -> bool:
    """Returns whether a line has several fields, one of which is a usual name of a text column."""
    signs = re.escape("".join(DELIMITERS))
    fields = [field.strip('"\r') for field in re.split(f"[{signs}]", line)]
    return len(fields) > 1 and any(map(is_usual_text, fields))
