"""Reads SQuAD's questions and passages from JSON, TFDS or the hub (Rajpurkar et al. 2016; 2018).

The accepted answers of a question are in the order of the file. If an answer is not found at its
`answer_start`, the start is moved to the nearest occurrence of the answer in the passage. An answer
that does not occur in the passage gets the start -1 and is used for scoring only. A question of the
train split is left out if it has answers, but none of them occurs in the passage.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from bertjax.files import brief, read_json
from bertjax.tasks.question_answering import IMPOSSIBLE, NOWHERE
from bertjax.tasks.sources.bad_rows import BadRows
from bertjax.tasks.sources.datasets import DatasetRow, decode
from bertjax.tasks.sources.official_files import ChangeCounts, reset_counts, value_of_split
from bertjax.tasks.sources.own_files import OwnFiles
from bertjax.tasks.sources.question_tables import is_question_table, question_rows
from bertjax.tasks.sources.table_files import (
    JSON_SUFFIXES,
    PARQUET_SUFFIXES,
    files_in,
    unread_files,
)
from bertjax.tasks.task import Example

Version = Literal["1.1", "2.0"]
# Maximum size of a file in bytes; the largest official one has 42 MB.
MAX_BYTES = 1 << 30
SUFFIXES = (*JSON_SUFFIXES, *PARQUET_SUFFIXES)
FOLDERS = ("", "squad", "SQuAD", "SQUAD")
# Values of is_impossible as texts in lower case, without the ".0" that pandas may write after 1.
_TRUTH = dict.fromkeys(("", "false", "no", "0"), False) | dict.fromkeys(("true", "yes", "1"), True)


class SquadSource(OwnFiles):
    """Reads SQuAD's official JSON files, or a user's files: the same format or tables of questions.

    Attributes:
        splits: the splits that have a file, and "dev" if a part of the train split is held out.
        counts: {"SPLIT: REASON": number of moved answers or omitted questions} of all splits read.
    """

    def __init__(
        self,
        files: Mapping[str, Path | str],
        bad_rows: BadRows = "refuse",
        *,
        can_skip: bool = False,
    ):
        """Checks that the file, or folder of files, of each split exists.

        Args:
            files: {split: path of the file or folder}.
            bad_rows: "refuse": one ValueError names the malformed questions; "skip": they are left
                out; "report": each becomes an example whose `problem` says why.
            can_skip: whether errors about malformed questions recommend --skip_bad_rows.

        Raises:
            FileNotFoundError: a file does not exist.
        """
        super().__init__(bad_rows, can_skip=can_skip)
        self.files = {split: Path(path).expanduser() for split, path in files.items()}
        for split, path in self.files.items():
            if not path.exists():
                raise FileNotFoundError(f"{path} ({split} split) does not exist: check its name.")
        self.splits = tuple(self.files)
        self.counts = ChangeCounts()

    @classmethod
    def in_directory(cls, data_dir: Path | str, version: Version) -> "SquadSource":
        """Finds the files of SQuAD's `version` in `data_dir`, such as `train-v1.1.json`.

        A file with a part of a split, such as `train-v1.1.a.json`, is used if the complete file
        `train-v1.1.json` does not exist.

        Raises:
            FileNotFoundError: there is neither a train nor a dev file.
            ValueError: a split has several such files and no complete file.
        """
        data_dir = Path(data_dir).expanduser()
        for folder in FOLDERS:
            found = {split: _find(data_dir / folder, split, version) for split in ("train", "dev")}
            files = {split: path for split, path in found.items() if path is not None}
            if files:
                return cls(files)
        raise FileNotFoundError(
            f"Neither train-v{version}.json nor dev-v{version}.json is in {data_dir}: give "
            "--data_dir the folder of SQuAD's files, or leave it out to download them."
        )

    @property
    def note(self) -> str:
        """A warning about files in folders that are not read; "" if there are none."""
        folders = [path for path in self.files.values() if path.is_dir()]
        unread = (unread_files(path, files_in(path, SUFFIXES)) for path in folders)
        return "\n".join(filter(None, unread))

    def path(self, split: str) -> Path:
        return value_of_split("SQuAD", split, self.files)

    def read(self, split: str) -> Iterator[Example]:
        """Reads the questions of a split in the order of the file.

        Raises:
            ValueError: the split does not exist, or a field is missing or has a wrong type; the
                message names the question.
        """
        path = self.path(split)
        reset_counts(self.counts, split)
        questions = (
            (self._rows if is_question_table(file) else self._questions)(split, file)
            for file in files_in(path, SUFFIXES)
        )
        return self._usable(split, itertools.chain.from_iterable(questions))

    def _questions(self, split: str, path: Path) -> Iterator[Example]:
        """Yields the questions of a file in SQuAD's JSON.

        A malformed article, paragraph or question becomes one example without a text, whose
        `problem` says what is wrong.
        """
        count = itertools.count()
        for article_number, article in enumerate(_articles(path), 1):
            place = f"{path}, article {article_number}"
            try:
                paragraphs = _get(article, "paragraphs", list, place)
            except ValueError as error:
                yield Example(id=str(next(count)), where=place, problem=str(error))
                continue
            for number, paragraph in enumerate(paragraphs, 1):
                at = f"{place}, paragraph {number}"
                yield from self._of_paragraph(split, paragraph, at, count)

    def _rows(self, split: str, path: Path) -> Iterator[Example]:
        """Yields the questions of a table with one question per row.

        A malformed row becomes an example without a text, whose `problem` says what is wrong.
        """
        for row in question_rows(path, to_train=split == "train"):
            try:
                if isinstance(row.question, ValueError):
                    raise row.question
                context = _text(row.question, "context", row.where)
                example = self._example(
                    split, row.question, context, row.where, placed=split == "train"
                )
            except ValueError as error:
                example = Example(id=row.id, where=row.where, problem=str(error))
            if example is not None:
                yield dataclasses.replace(example, row=row.values)

    def _of_paragraph(
        self, split: str, paragraph: Any, place: str, count: Iterator[int]
    ) -> Iterator[Example]:
        """Yields the questions of a paragraph.

        A malformed paragraph or question becomes an example whose `problem` says what is wrong.
        Without an id, the example gets its number in the file, which `count` counts from 0.
        """
        try:
            context = _text(paragraph, "context", place)
            questions = _get(paragraph, "qas", list, place)
        except ValueError as error:
            yield Example(id=str(next(count)), where=place, problem=str(error))
            return
        for question in questions:
            number = next(count)
            try:
                example = self._example(split, question, context, place)
            except ValueError as error:
                name = question.get("id") if isinstance(question, dict) else None
                name = name if isinstance(name, str | int) else number
                example = Example(id=str(name), where=place, problem=str(error))
            if example is not None:
                yield example

    def _example(
        self, split: str, question: Any, context: str, place: str, *, placed: bool = False
    ) -> Example | None:
        """Converts a question of SQuAD's JSON to an example, or to None if it is left out.

        Raises:
            ValueError: a field is missing or has a wrong type, a text is empty, or, if `placed`, no
                answer occurs in the passage; the message names the question.
        """
        name = question.get("id") if isinstance(question, dict) else None
        if not isinstance(name, str | int) or name == "":
            raise ValueError(f'{place}: a question has no "id": give each question a unique one.')
        where = f"{place}, question {brief(name, 60)}"
        text = _text(question, "question", where)
        for what, content in (("question", text), ("passage", context)):
            if not content.strip():
                raise ValueError(f"{where}: the {what} is empty; fill it or remove the row.")
        asked = Example(id=str(name), where=where, text=text, pair=context)
        impossible = question.get("is_impossible")
        meaning = "" if impossible is None else str(impossible).strip().lower().removesuffix(".0")
        if meaning not in _TRUTH:
            raise ValueError(
                f"{where}: is_impossible is {brief(repr(impossible), 60)}: write true if the "
                "passage does not answer the question, and else false."
            )
        if _TRUTH[meaning]:
            return dataclasses.replace(asked, label=IMPOSSIBLE)
        if split in ("train", "dev") and "answer" in question and "answers" not in question:
            raise ValueError(
                f'{where} has "answer" in place of "answers": write "answers": [{{"text": "...", '
                '"answer_start": 0}], with the number of characters before the answer.'
            )
        if split == "train" and "answers" not in question:
            raise ValueError(
                f'{where} has no answer: give one, or "is_impossible": true if the passage does '
                "not answer the question."
            )
        answers = []
        for answer in _get(question, "answers", list, where) if "answers" in question else []:
            start = answer.get("answer_start", 0) if isinstance(answer, dict) else 0
            answers.append((_text(answer, "text", where), start))
            if type(start) is not int or abs(start) >= 1 << 31:
                raise ValueError(
                    f"{where}: answer_start is {brief(repr(start), 60)}; it must be a whole number."
                )
        if placed and answers and not any(answer in context for answer, _ in answers):
            raise ValueError(
                f"{where}: the answer {brief(repr(answers[0][0]), 60)} does not occur in the "
                "passage. Correct the answer or the passage."
            )
        return with_answers(asked, answers, split, self.counts)


def with_answers(
    asked: Example, answers: Iterable[tuple[str, int]], split: str, counts: ChangeCounts
) -> Example | None:
    """Adds `answers` to the question `asked`, and corrects their starts.

    Args:
        asked: the question, whose `pair` is the passage.
        answers: (text, start) of each accepted answer, with the start in characters.
        split: the split of the question.
        counts: the counts to which corrected starts and omitted questions are added.

    Returns:
        The question with its answers; None if `split` is train and the question has answers, but
        no answer occurs in the passage.
    """
    placed = []
    for text, start in answers:
        placed.append((text, nearest(text, asked.pair or "", start)))
        if placed[-1][1] not in (start, NOWHERE):
            reason = f"{split}: answers moved to their nearest occurrence in the passage"
            counts.add(reason, asked.where)
    if split == "train" and placed and all(start == NOWHERE for _, start in placed):
        reason = "train: questions left out, because no answer occurs in the passage"
        counts.add(reason, asked.where)
        return None
    return dataclasses.replace(asked, answers=tuple(placed))


def nearest(text: str, context: str, start: int) -> int:
    """Returns the start of the occurrence of `text` in `context` nearest to `start`, or -1.

    The result is -1 if `text` does not occur in `context`, or is blank.
    """
    if not text.strip():
        return NOWHERE
    if start >= 0 and context.startswith(text, start):
        return start
    before = context.rfind(text, 0, max(start, 0) + len(text))
    after = context.find(text, max(start, 0))
    places = [place for place in (before, after) if place >= 0]
    return min(places, key=lambda place: abs(place - start), default=NOWHERE)


def _find(folder: Path, split: str, version: str) -> Path | None:
    name = f"{split}-v{version}.json"
    if (folder / name).is_file():
        return folder / name
    parts = sorted(folder.glob(f"{split}-v{version}*.json"))
    if len(parts) > 1:
        raise ValueError(
            f"{folder} holds {len(parts)} files for the {split} split: "
            f"{', '.join(part.name for part in parts)}. Rename the file that is to be used to "
            f"{name}, or remove the other files."
        )
    return parts[0] if parts else None


def _articles(path: Path) -> list[Any]:
    content = read_json(path, "give a file in SQuAD's format", MAX_BYTES)
    return _get(content, "data", list, str(path))


def _text(value: Any, key: str, where: str) -> str:
    text = _get(value, key, str, where)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {key!r} holds a lone surrogate (\\u{ord(text[error.start]):04x}) at "
            f"position {error.start}: remove it."
        ) from error
    return text


def _get(value: Any, key: str, kind: type, where: str) -> Any:
    field = value.get(key) if isinstance(value, dict) else None
    if not isinstance(field, kind):
        needed = {list: "a list", str: "a text"}[kind]
        found = "is missing" if field is None else f"is {brief(repr(field), 40)}"
        nested = (
            ' The format is {"data": [{"paragraphs": [{"context": "", "qas": [{"id": "", '
            '"question": "", "answers": [{"text": "", "answer_start": 0}]}]}]}]}.'
        )
        hint = nested if key in ("data", "paragraphs", "qas") else " Correct it."
        raise ValueError(f"{where}: {key!r} should be {needed}, but {found}.{hint}")
    return field


def read_dataset_row(row: DatasetRow) -> Example | None:
    """Converts a row of SQuAD in TFDS or on the hub to a question.

    Returns None for a question of the train split that has answers, but none in the passage.
    """
    fields = row.fields
    asked = Example(
        id=decode(fields["id"]),
        where=row.where,
        text=decode(fields["question"]),
        pair=decode(fields["context"]),
    )
    texts, starts = fields["answers"]["text"], fields["answers"]["answer_start"]
    # The hub has no `is_impossible`, but only impossible questions have no answers there.
    if fields.get("is_impossible", not len(texts)):
        return dataclasses.replace(asked, label=IMPOSSIBLE)
    answers = [(decode(text), int(start)) for text, start in zip(texts, starts, strict=True)]
    return with_answers(asked, answers, row.split, row.counts)
