"""Reads passages and queries with their ids, and judgements: the files of BEIR, and others.

A table has the columns text and, perhaps, title and an id, by which judgements name a row. Rows of
a file with one text per line have no ids: they are numbered from 0.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.dataset import MISSING
from bertjax.tasks.sources.columns import plain
from bertjax.tasks.sources.data_files import read_lines, row_name
from bertjax.tasks.sources.own_files import data_files
from bertjax.tasks.sources.tables import SQL_MISSING, Table, is_blank, read_number

# Names of columns, as of `plain`.
_ROW_IDS = {"id", "idx", "index", "guid", "uid", "uuid", "key"}
_QUERY_IDS = {"qid", "queryid", "questionid", "topicid"}
_PASSAGE_IDS = {"docid", "pid", "did", "cid", "docno", "corpusid", "passageid", "documentid"}
QUERY_IDS = _ROW_IDS | _QUERY_IDS
PASSAGE_IDS = _ROW_IDS | _PASSAGE_IDS | {"paragraphid", "articleid", "chunkid"}
_JUDGED_QUERY = _QUERY_IDS | {"query", "question", "topic"}
_JUDGED_PASSAGE = _PASSAGE_IDS | {"passage", "document", "doc", "corpus"}
_SCORE = {"score", "relevance", "relevancy", "rel", "label", "grade", "rating", "judgment"}
_SCORE |= {"judgement"}
_TREC_SECOND = {"q0", "0", "iter", "iteration", "run"}
_MISSING = MISSING | {SQL_MISSING.lower()}

# {query id: {passage id: gain}}
Judgements = dict[str, dict[str, float]]


class Passage(NamedTuple):
    """A row of a table of passages or queries; `where` names it, `id` is "-" without ids."""

    where: str
    id: str
    title: str
    text: str

    @property
    def whole(self) -> str:
        """The title and the text, with a space between them."""
        return f"{self.title} {self.text}".strip()


def read_passages(
    path: Path,
    usual_ids: set[str] | None = None,
    *,
    id_column: str | None = None,
    warns: bool = False,
) -> Iterator[Passage]:
    """Yields the rows of a table, or of all tables in a folder.

    Args:
        usual_ids: usual names, as of `plain`, of the column of ids; None: no ids are read.
        id_column: the column of ids, if the table has it; else, and for None, it is _id, or the
            only one with a usual name.
        warns: whether warnings name the columns that are not read, and rows without a text.

    Raises:
        ValueError: a row has no text or no id, or the column of ids is not known.
    """
    count = 0
    for file in data_files(path):
        table = Table(file)
        title_column = _column(table, "title")
        text_column = _column(table, "text")
        ids = None
        if usual_ids is not None and not table.is_text:
            ids = _id_column(table, usual_ids, id_column)
        without_text = []
        for number, row in table.rows():
            where = row_name(file, number)
            title = row.get(title_column) or ""
            text = row.get(text_column)
            if not isinstance(title, str) or not isinstance(text, str):
                raise ValueError(f"{where} has no text: give _id, title and text.")
            id = "-"
            if ids is not None:
                id = _id_of(row, ids, where)
            elif usual_ids is not None:
                id = str(count)
            count += 1
            passage = Passage(where, id, title, text)
            yield passage
            if is_blank(passage.whole) or text.strip().lower() in _MISSING:
                without_text.append(str(number))
        if warns:
            warn(file, "rows whose text is empty, or NaN, None and the like", without_text)
            read = {ids, title_column, text_column, "metadata"}
            others = [name for name in table.columns if not _is_known(name, read)]
            warn(file, f"columns that are not read ({brief(', '.join(others))})", others)


def is_numbered(path: Path) -> bool:
    """Returns whether rows of a file, or of files in a folder, get their numbers as ids."""
    return any(Table(file).is_text for file in data_files(path))


def has_column(path: Path, name: str) -> bool:
    """Returns whether a table, or one in a folder, has a column."""
    return any(name in Table(file).columns for file in data_files(path))


def warn(path: Path, what: str, names: Sequence[str]) -> None:
    """Prints a warning about a file that counts `names`, unless there are none."""
    if names:
        message = f"{what}: {len(names):,}, such as {brief(names[0], 200)!r}"
        print(f"warning: {path}: {message}", file=sys.stderr)


def _column(table: Table, name: str) -> str:
    """Returns the column of a table with a name, or with this name in another spelling."""
    if name in table.columns:
        return name
    spelt = {plain(column): column for column in table.columns}
    return spelt.get(name, name)


def _id_column(table: Table, usual: set[str], id_column: str | None) -> str:
    for name in (id_column, "_id"):
        if name is not None and name in table.columns:
            return name
    known = [name for name in table.columns if plain(name) in usual]
    if len(known) == 1:
        return known[0]
    count = "several columns" if known else "no column"
    raise ValueError(
        f"{table.path} has {count} of ids (columns: {brief(', '.join(table.columns))}): name the "
        "one to which the judgements refer _id, or give it as --id_column."
    )


def _id_of(row: dict[str, Any], column: str, where: str) -> str:
    value = row.get(column)
    if type(value) not in (int, str) or _is_missing(str(value)):
        raise ValueError(f"{where} has no text or whole number as {column!r}: add its id.")
    return str(value)


def _is_missing(id: str) -> bool:
    return id.strip().lower() in {"", *_MISSING}


def _is_known(column: str, read: set[str | None]) -> bool:
    return column in read or plain(column) in QUERY_IDS | PASSAGE_IDS


def read_judgements(path: Path) -> Judgements:
    """Reads the judgements of BEIR or TREC; scores below 0 have the gain 0.

    Raises:
        ValueError: a row is no judgement, a passage is judged twice, or there is no judgement.
    """
    gains: Judgements = {}
    for number, line in read_lines(path):
        fields = line.split("\t") if "\t" in line else line.split()
        if not fields or (number == 1 and _is_header(fields)):
            continue
        judgement = _judgement(fields)
        if judgement is None:
            raise ValueError(
                f"{row_name(path, number)} is no judgement ({brief(line, 60)}): give a header with "
                "query-id, corpus-id and score in this order, or TREC's four columns, and a number "
                "as each score."
            )
        query, passage, gain = judgement
        if gains.setdefault(query, {}).setdefault(passage, gain) != gain:
            raise ValueError(f"{row_name(path, number)} judges {passage!r} again: keep one row.")
    if not gains:
        raise ValueError(f"{path} has no judgements: check the file.")
    return gains


def _judgement(fields: list[str]) -> tuple[str, str, float] | None:
    """Returns (query id, passage id, gain) of a row; None if it is no judgement."""
    if len(fields) not in (3, 4):
        return None
    query, *_, passage, text = fields
    score = read_number(text)
    if score is None or _is_missing(query) or _is_missing(passage):
        return None
    return query, passage, max(score, 0.0)


def _is_header(fields: list[str]) -> bool:
    names = [plain(name) for name in fields]
    if len(names) == 4 and names[1] in _TREC_SECOND:
        del names[1]
    if len(names) != 3:
        return False
    query, passage, score = names
    return query in _JUDGED_QUERY and passage in _JUDGED_PASSAGE and score in _SCORE
