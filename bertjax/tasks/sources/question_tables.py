"""Reads tables with a question, its passage and its answers in each row.

Hugging Face's `datasets` writes SQuAD as such a table, with the columns id, question, context (the
passage) and answers. The answers are {"text": [...], "answer_start": [...]}, or a list as in
SQuAD's JSON. Instead of answers, a row may have one answer, in the columns answer (or answer_text)
and answer_start, as in CSV and TSV; for prediction, it needs none.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.files import brief
from bertjax.tasks.sources.row_readers import open_text, place
from bertjax.tasks.sources.table_files import (
    CSV_SUFFIXES,
    PARQUET_SUFFIXES,
    TSV_SUFFIXES,
    Table,
    suffix_of,
)

_TEXT_COLUMNS = ("answer", "answer_text")


def is_question_table(path: Path) -> bool:
    """Returns whether a file is a table of questions, and not SQuAD's official JSON.

    Raises:
        ValueError: the file is CSV or TSV with a column of lists of answers, or the columns of its
            header cannot be read.
    """
    suffix = suffix_of(path)
    if suffix in (*CSV_SUFFIXES, *TSV_SUFFIXES):
        if "answers" not in Table(path).columns:
            return True
        raise ValueError(
            f"{path}: a {suffix} file cannot hold lists of answers. Write one answer per row in "
            "the columns answer and answer_start, or JSON lines, such as "
            '{"id": "1", "question": "Who left?", "context": "Anna left.", "answers": {"text": '
            '["Anna"], "answer_start": [0]}}.'
        )
    if suffix in (*PARQUET_SUFFIXES, ".jsonl", ".ndjson"):
        return True
    with open_text(path, newline=None) as file:
        start = file.read(1 << 16).lstrip()
    if start.startswith("["):
        return True
    try:  # In JSON lines, the first line is an object of its own.
        first = json.loads(start.partition("\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and "question" in first


class QuestionRow(NamedTuple):
    """A row of a table of questions.

    Attributes:
        id: the id of the question: that in the row or, if there is none, the index of the row,
            counted from 0.
        where: the file and row, for error messages.
        values: {column: value} of the row; empty if the row cannot be read.
        question: a dict as in SQuAD's JSON with the additional key "context", the passage; if the
            row is malformed, a ValueError that says why.
    """

    id: str
    where: str
    values: dict[str, Any]
    question: dict[str, Any] | ValueError


def question_rows(path: Path, *, to_train: bool) -> Iterator[QuestionRow]:
    """Yields the rows of the file `path`, a table of questions.

    With `to_train`, a row is malformed if the place of its answer is not known. To score
    predictions, the text of the answer is enough.

    A question with an empty list of answers gets `is_impossible=True`, unless the row has a value
    in the column is_impossible.

    Raises:
        ValueError: a CSV, TSV or Parquet file lacks the column of the questions or of the passages.
    """
    table = Table(path)
    missing = [name for name in ("question", "context") if name not in table.columns]
    if missing and suffix_of(path) in (*CSV_SUFFIXES, *TSV_SUFFIXES, *PARQUET_SUFFIXES):
        raise ValueError(
            f"{path} has no column {missing[0]!r}, but {brief(', '.join(table.columns), 120)}: "
            "question answering reads the columns question, context (the passage) and, if there "
            "are ids, id: rename the columns."
        )
    for index, (number, row) in enumerate(table.rows_and_errors()):
        where = place(path, number)
        if not isinstance(row, dict):
            yield QuestionRow(str(index), where, {}, row)
            continue
        name = row.get("id")
        name = str(name) if isinstance(name, str | int) and name != "" else str(index)
        try:
            question: dict[str, Any] | ValueError = _question({"id": name, **row}, where, to_train)
        except ValueError as error:
            question = error
        yield QuestionRow(name, where, row, question)


def _question(row: dict[str, Any], where: str, to_train: bool) -> dict[str, Any]:
    answers = row.pop("answers", None)
    if answers is None:
        answers = _one_answer(row, where, to_train)
    if answers is None:
        return row
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError(
                f"{where}: 'answers' is {brief(repr(answers), 60)}, but should have lists 'text' "
                "and 'answer_start' of equal lengths."
            )
        pairs = zip(texts, starts, strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
    if row.get("is_impossible") in (None, ""):
        row["is_impossible"] = not answers
    return {**row, "answers": answers}


def _one_answer(row: dict[str, Any], where: str, to_train: bool) -> list[dict[str, Any]] | None:
    """Returns the answer in the columns of `row`: a list of one answer or, if it is empty, of none.

    Returns None if the row has no column of an answer. With `to_train`, an answer without a start
    must occur exactly once in the passage.
    """
    column = next((name for name in _TEXT_COLUMNS if name in row), None)
    if column is None:
        return None
    text, start, context = row.pop(column), row.pop("answer_start", None), row.get("context")
    if text in (None, ""):
        return []
    if isinstance(start, str) and re.fullmatch(r"\s*\d+(\.0)?\s*", start):
        start = int(float(start))
    if not isinstance(text, str) or not isinstance(context, str):
        start = start if isinstance(start, int) else 0  # the caller names the other problem
    elif not to_train and not isinstance(start, int):
        start = context.find(text)
    elif start in (None, ""):
        found = context.count(text)
        if found != 1:
            raise ValueError(
                f'{where}: the answer "{brief(text, 60)}" occurs {found} times in the passage: '
                "give its position, in characters from 0, in the column answer_start."
            )
        start = context.index(text)
    if not isinstance(start, int):
        raise ValueError(
            f"{where}: 'answer_start' should be the position of the answer in the passage, in "
            f'characters from 0, but is "{brief(start, 60)}". Correct the row.'
        )
    return [{"text": text, "answer_start": start}]
