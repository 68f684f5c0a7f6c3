"""Bad rows (rows of a user's file that cannot be used): the error about them, and a file of them.

`BadRows` says what the reader of a file does with bad rows: it refuses, skips or reports them.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bertjax.base.files import brief, writing

# refuse: one error names the bad rows; skip: the other rows are used; report: a bad row becomes an
# example whose `problem` is the reason, without content unless only the label is bad.
BadRows = Literal["refuse", "skip", "report"]
# An error describes at most so many problems, each in one line, with so many characters for the
# numbers of the rows and for the description.
PROBLEMS = 20
ROWS_LENGTH = 100
LINE_LENGTH = 200
# Names of columns (in '...'), quoted values, and numbers that are not a part of a word.
_VALUES = r"""'[^']*'|"[^"]*"|(?<![\w.])-?\d+(\.\d+)?(?!\w)"""


def error_of(problems: Sequence[str], where: str, *, can_skip: bool = False) -> ValueError:
    """Returns one ValueError about several bad rows.

    Rows with the same problem are listed together. Problems that differ only in quoted values and
    numbers count as similar; the values of the first row are shown. The message describes
    `PROBLEMS` problems, the most frequent first, and counts the rows with other ones.

    Args:
        problems: one message per bad row that says what is wrong; it usually begins with `where`.
        where: the path of the file, or the name of the split.
        can_skip: whether the error recommends the flag --skip_bad_rows.
    """
    if len(problems) == 1:
        return ValueError(problems[0] + " Or give --skip_bad_rows to leave it out." * can_skip)
    rows: dict[str, list[str]] = {}  # problem without its values -> rows
    first: dict[str, str] = {}  # problem without its values -> problem of the first row
    differ: set[str] = set()  # problems without their values whose values differ between the rows
    for problem in problems:
        text = problem.removeprefix(where).lstrip(", ")
        found = re.match(r"row (\d+):? ?", text)
        if found:  # which names the question, too
            text = re.sub(r"^,? ?question \S+:? ", "", text[found.end() :])
        # Without a row number, the numbers in the text may tell the place.
        kind = re.sub(_VALUES if found else r'"[^"]*"', _without_value, text)
        if first.setdefault(kind, text) != text:
            differ.add(kind)
        rows.setdefault(kind, []).append(found[1] if found else "")
    skip = ", or leave them out with --skip_bad_rows" if can_skip else ""
    message = f"{where}: {len(problems):,} rows cannot be used. Correct them{skip}:"
    by_frequency = sorted(rows.items(), key=lambda item: -len(item[1]))
    for kind, numbers in by_frequency[:PROBLEMS]:
        line = _rows_of([*filter(None, numbers)], similar=kind in differ)
        message += line + brief(first[kind], LINE_LENGTH)
    others = sum(len(numbers) for _, numbers in by_frequency[PROBLEMS:])
    if others:
        message += f"\n  and {others:,} rows with other problems"
    return ValueError(message)


def _rows_of(numbers: Sequence[str], *, similar: bool) -> str:
    """Returns the beginning of a line about the rows `numbers`, the first of which is described."""
    if not numbers:
        return "\n  "
    if similar and len(numbers) > 1:
        return f"\n  row {numbers[0]} (similar: {_listed(numbers[1:], ROWS_LENGTH)}): "
    return f"\n  row {_listed(numbers, ROWS_LENGTH)}: "


def _listed(numbers: Sequence[str], length: int) -> str:
    """Joins the first of `numbers`, in about `length` characters, and counts the others."""
    for shown in range(len(numbers), 0, -1):
        rest = f" and {len(numbers) - shown:,} more" if shown < len(numbers) else ""
        text = ", ".join(numbers[:shown]) + rest
        if len(text) <= length:
            return text
    return brief(", ".join(numbers), length)


def _without_value(found: re.Match[str]) -> str:
    """Replaces a match of `_VALUES` by quotes, unless it is the name of a column."""
    return found[0] if found[0].startswith("'") else '""'


def write_bad_rows(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Writes `rows`, (split, problem) of each bad row, to the file `path` as JSON lines."""
    with writing(path) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for split, problem in rows:
            line = {"split": split, "problem": problem}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
