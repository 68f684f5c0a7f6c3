"""Finds the columns of a user's file of pairs for embeddings: texts, hard negatives and scores."""

import dataclasses
import re
from typing import Any

from bertjax.files import brief
from bertjax.tasks.sources.columns import (
    IDS,
    PAIRS,
    Columns,
    check_columns,
    describe,
    first_rows,
    flag_of,
    holds_numbers,
    holds_texts,
    plain,
    refuse_headerless,
)
from bertjax.tasks.sources.row_readers import place
from bertjax.tasks.sources.table_files import Table

# Usual names, in lower case and without "_", "-" and spaces, in order of preference.
TEXT_PAIRS = (
    *(
        ("anchor", "positive"),
        ("query", "positive"),
        ("question", "positive"),
        ("text", "positive"),
    ),
    *(("anchor", "pos"), ("query", "pos"), ("query", "answer"), ("title", "body")),
    *(("title", "abstract"), ("title", "text"), ("anchor", "candidate"), *PAIRS),
)
SCORES = (
    *("score", "similarity", "similarityscore", "sim", "relatedness", "relatednessscore"),
    *("rating", "label", "y"),
)
_NEGATIVE = re.compile(r"(?:hard)?neg(?:ative)?s?(\d*)")
_WORDS = {
    "text": "first text (anchor)",
    "pair": "second text (positive)",
    "label": "score",
    "negatives": "hard negatives",
}


def find_pair_columns(table: Table, named: Columns) -> tuple[Columns, str]:
    """Returns the columns of a file of pairs, and a message that lists the guessed ones, or "".

    Columns that the user does not name are guessed by usual names, such as "anchor" and "positive",
    or else, the two texts, by being the only two columns that hold texts. A column of scores must
    hold numbers, and is only guessed if there are no hard negatives.

    Args:
        table: the file.
        named: the column names that the user sets.

    Raises:
        ValueError: a column is missing or cannot be guessed, both scores and hard negatives are
            named, or the first row is not a header.
    """
    if table.is_text:
        raise ValueError(
            f"{table.path} has one text per line, but the examples are pairs of texts: give a file "
            "with two columns, such as CSV or JSON lines (predict --embed takes single texts)."
        )
    if named.label is not None and named.negatives:
        raise ValueError(
            f"--label_column {named.label} and --negative_columns {' '.join(named.negatives)}: a "
            "pair has either a score or hard negatives; leave one of them out."
        )
    check_columns(table, named.named())
    free = {plain(name): name for name in reversed(table.columns) if name not in named.named()}
    rows = first_rows(table)
    columns = dataclasses.replace(
        named, id=named.id or next((free[name] for name in IDS if name in free), None)
    )
    if named.label is None and not named.negatives:
        columns = dataclasses.replace(columns, negatives=_negatives(free))
    columns = _with_texts(table, columns, free, rows)
    if columns.label is None and not columns.negatives:
        left = [free[name] for name in SCORES if name in free]
        numbers = (name for name in left if name not in columns.named() and _numbers(rows, name))
        columns = dataclasses.replace(columns, label=next(numbers, None))
    return columns, describe(table, named, columns, _WORDS)


def _numbers(rows: list[dict[str, Any]], name: str) -> bool:
    return holds_numbers([row.get(name) for row in rows])


def _negatives(free: dict[str, str]) -> tuple[str, ...]:
    """Returns the columns that are named like hard negatives, in the order of their numbers."""
    matches = [
        (match[1], name) for key, name in free.items() if (match := _NEGATIVE.fullmatch(key))
    ]
    return tuple(name for _, name in sorted(matches, key=lambda x: (len(x[0]), x[0])))


def _with_texts(
    table: Table, columns: Columns, free: dict[str, str], rows: list[dict[str, Any]]
) -> Columns:
    """Returns `columns` with the columns of the two texts; raises ValueError if they are unknown.

    `free` maps plain names of columns that the user does not name to those in the file.
    """
    if columns.text is not None and columns.pair is not None:
        return columns
    if columns.text is None and columns.pair is None:
        both = next(((a, b) for a, b in TEXT_PAIRS if a in free and b in free), None)
        if both is not None:
            return dataclasses.replace(columns, text=free[both[0]], pair=free[both[1]])
    left = [name for name in table.columns if name and name not in columns.named()]
    texts = [name for name in left if holds_texts([row.get(name) for row in rows])]
    if len(texts) < 2:  # short texts, such as the words of queries
        texts = [name for name in left if not _numbers(rows, name)]
    wanted = [field for field in ("text", "pair") if getattr(columns, field) is None]
    if len(texts) != len(wanted):
        raise ValueError(
            f"{place(table.path, 1)}: which column is the "
            f"{' and the '.join(_WORDS[field] for field in wanted)}? There are: "
            f"{brief(', '.join(table.columns), 60)}. Give {' and '.join(map(flag_of, wanted))}; if "
            "the first row does not name the columns, insert a row that does."
        )
    columns = dataclasses.replace(columns, **dict(zip(wanted, texts, strict=True)))
    if not table.is_typed and len(wanted) == 2:
        refuse_headerless(table, columns)
    return columns
