"""Bad rows (rows of a user's file that cannot be used): the error about them, and a file of them.

`BadRows` says what the reader of a file does with bad rows: it refuses, skips or reports them.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bertjax.files import brief, writing

# refuse: one error names the bad rows; skip: the other rows are used; report: a bad row becomes an
# example whose `problem` is the reason, without content unless only the label is bad.
BadRows = Literal["refuse", "skip", "report"]
# The maximum length of an error message in characters, of which a path counts as at most `_PATH`,
# and the length to which the description of a problem may be cut.
LONGEST = 380
_PATH = 30
_SHORTEST = 60
# Names of columns (in '...'), quoted values, and numbers that are not a part of a word.
_VALUES = r"""'[^']*'|"[^"]*"|(?<![\w.])-?\d+(\.\d+)?(?!\w)"""


def error_of(problems: Sequence[str], where: str, *, can_skip: bool = False) -> ValueError:
    """Returns one ValueError about several bad rows.

    Rows with the same problem are listed together. Problems that differ only in quoted values and
    numbers count as similar; the values of the first row are shown. The message describes as many
    problems as `LONGEST` characters hold, the most frequent first, and counts the others.

    Args:
        problems: one message per bad row that says what is wrong; it usually begins with `where`.
        where: the path of the file, or the name of the split.
        can_skip: whether the error recommends the flag --skip_bad_rows.
    """
    if len(problems) == 1:
        return ValueError(problems[0])
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
    left = LONGEST - len(message) + max(len(where) - _PATH, 0)
    left -= len("\n  and 1,000,000 rows with other problems")
    others = len(problems)
    for kind, numbers in sorted(rows.items(), key=lambda item: -len(item[1])):
        line = _rows_of([*filter(None, numbers)], similar=kind in differ)
        if others < len(problems) and left < min(len(line + first[kind]), _SHORTEST + len(line)):
            break
        line += brief(first[kind], max(left - len(line), _SHORTEST))
        message, left, others = message + line, left - len(line), others - len(numbers)
    if others:
        message += f"\n  and {others:,} rows with other problems"
    return ValueError(message)


def _rows_of(numbers: Sequence[str], *, similar: bool) -> str:
    """Returns the beginning of a line about the rows `numbers`, the first of which is described."""
    if not numbers:
        return "\n  "
    if similar and len(numbers) > 1:
        return f"\n  row {numbers[0]} (similar: {_listed(numbers[1:], 30)}): "
    return f"\n  row {_listed(numbers, 30)}: "


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
