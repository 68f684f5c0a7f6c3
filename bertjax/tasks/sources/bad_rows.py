"""What a source does with rows that it cannot use: it refuses, skips or reports them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from bertjax.files import writing

# refuse: one error names the bad rows; skip: the other rows are used; report: a bad row becomes an
# example without content, whose `problem` is the reason.
BadRows = Literal["refuse", "skip", "report"]
# Number of bad rows that an error message describes; the others are only counted.
DESCRIBED = 10


class BadRow(NamedTuple):
    """A row of `path` that cannot be used, and the reason."""

    path: Path
    row: int
    problem: str


def error_of(problems: Sequence[str], where: str) -> ValueError:
    """Returns one error for several problems of rows, each a message that begins with `where`."""
    if len(problems) == 1:
        return ValueError(problems[0])
    lines = [f"  {problem.removeprefix(where).lstrip(', ')}" for problem in problems[:DESCRIBED]]
    if len(problems) > DESCRIBED:
        lines.append(f"  and {len(problems) - DESCRIBED:,} more")
    listed = "\n".join(lines)
    return ValueError(
        f"{where}: {len(problems):,} rows cannot be used. Correct them, or leave them out with "
        f"--skip_bad_rows:\n{listed}"
    )


def write_bad_rows(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Writes one JSON object for each (split, problem) to the file `path`."""
    with writing(path) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for split, problem in rows:
            line = {"split": split, "problem": problem}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
