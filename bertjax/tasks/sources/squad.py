"""SQuAD 1.1, SQuAD 2.0 and a user's questions: files, tasks and official scores.

Questions and passages are read from JSON, TFDS or the hub (Rajpurkar et al. 2016; 2018).

The accepted answers of a question are in the order of the file. If an answer is not found at its
`answer_start`, the start is moved to the nearest occurrence of the answer in the passage. An answer
that does not occur in the passage gets the start -1 and is used for scoring only. A question of the
train split is left out if it has answers, but none of them occurs in the passage.

In a table with a question per row, as Hugging Face's `datasets` writes SQuAD, the columns are id,
question, context (the passage) and answers. The answers are {"text": [...], "answer_start": [...]},
or a list as in SQuAD's JSON. Instead of answers, a row may have one answer, in the columns answer
(or answer_text) and answer_start, as in CSV and TSV; for prediction, it needs none.
"""

import dataclasses
import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertjax.base.files import brief, read_json
from bertjax.tasks.dataset import BadRows, ChangeCounts, Dataset, Example, Fold
from bertjax.tasks.definition import TaskDefinition, files_of
from bertjax.tasks.metrics import Measure, squad1, squad2
from bertjax.tasks.question_answering import (
    IMPOSSIBLE,
    NOWHERE,
    QaOptions,
    SpanTask,
    Squad2Options,
    SquadOptions,
    span_task,
)
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.data_files import (
    CSV_SUFFIXES,
    JSON_SUFFIXES,
    PARQUET_SUFFIXES,
    TSV_SUFFIXES,
    files_in,
    open_text,
    row_name,
    suffix_of,
    unread_files,
)
from bertjax.tasks.sources.held_out import BY_PASSAGE, divide
from bertjax.tasks.sources.official import DatasetRow, decode, official_dataset
from bertjax.tasks.sources.tables import Table
from bertjax.tasks.sources.unused import UnusedColumns

_TEXT_COLUMNS = ("answer", "answer_text")
_ANSWER_COLUMNS = ("answers", *_TEXT_COLUMNS)
# The columns of tables that are read.
_READ = ("id", "question", "context", *_ANSWER_COLUMNS, "answer_start", "is_impossible")
# What stands in answer_start, as a text, where there is no answer.
_NO_PLACE = ("", "None", "nan", "-1", "-1.0", "0", "0.0")


def is_question_table(path: Path) -> bool:
    """Returns whether a file is a table of questions, and not SQuAD's official JSON.

    Raises:
        ValueError: the file is CSV or TSV with a column of lists of answers, or the columns of its
            header cannot be read.
    """
    suffix = suffix_of(path)
    if suffix in (*CSV_SUFFIXES, *TSV_SUFFIXES):
        if "answers" in Table(path).columns:
            raise ValueError(
                f"{path}: a {suffix} file cannot hold lists of answers. Write one answer per row "
                "in the columns answer and answer_start."
            )
        return True
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


class _Asked(NamedTuple):
    """A question of a file, at `where`; `row` are the columns of the user's row, or {}.

    `question` is a dict as in SQuAD's JSON; if it cannot be read, a ValueError that says why.
    """

    where: str
    row: dict[str, Any]
    question: Any
    context: str = ""


def _table_questions(
    path: Path, first: int, ignored: Sequence[str], *, to_train: bool
) -> Iterator[_Asked]:
    """Yields the questions of a table, without the columns `ignored`.

    Those without ids are numbered from `first`.

    With `to_train`, a row is malformed if the place of its answer is not known. To score
    predictions, the text of the answer is enough. A question with an empty list of answers gets
    `is_impossible=True`, unless the row says otherwise.

    Raises:
        ValueError: a CSV, TSV or Parquet file lacks the column of the questions or of the passages.
    """
    table = Table(path)
    if table.is_parquet or not table.is_typed:
        for name in ("question", "context"):
            if name not in table.columns:
                raise ValueError(
                    f"{path} has no column {name!r}, but {brief(', '.join(table.columns), 120)}: "
                    "question answering reads the columns question, context (the passage) and, if "
                    "there are ids, id: rename the columns."
                )
    for index, (number, row) in enumerate(table.rows_and_errors(), first):
        where = row_name(path, number)
        if not isinstance(row, dict):
            yield _Asked(where, {}, row)
            continue
        question = {name: value for name, value in row.items() if name not in ignored}
        try:
            question = _question({"id": str(index), **question}, where, to_train)
            yield _Asked(where, row, question, _text(question, "context", where))
        except ValueError as error:
            yield _Asked(where, row, error)


def _json_questions(path: Path) -> Iterator[_Asked]:
    """Yields the questions of a file in SQuAD's JSON, and its malformed parts."""
    content = read_json(path, "give a file in SQuAD's format", MAX_BYTES)
    for number, article in enumerate(_get(content, "data", list, str(path)), 1):
        place = f"{path}, article {number}"
        try:
            paragraphs = _get(article, "paragraphs", list, place)
        except ValueError as error:
            yield _Asked(place, {}, error)
            continue
        for number, paragraph in enumerate(paragraphs, 1):
            yield from _paragraph_questions(paragraph, f"{place}, paragraph {number}")


def _paragraph_questions(paragraph: Any, place: str) -> Iterator[_Asked]:
    try:
        context = _text(paragraph, "context", place)
        questions = _get(paragraph, "qas", list, place)
    except ValueError as error:
        yield _Asked(place, {}, error)
        return
    for question in questions:
        yield _Asked(place, {}, question, context)


def _question(row: dict[str, Any], where: str, to_train: bool) -> dict[str, Any]:
    """Converts the row of a table to a question as in SQuAD's JSON."""
    given = [name for name in _ANSWER_COLUMNS if row.get(name) not in (None, "")]
    if len(given) > 1:
        raise ValueError(
            f"{where} has an answer in {' and in '.join(given)}: keep one of them, or give "
            f"--ignore_columns {given[-1]}."
        )
    answers = row.pop("answers", None)
    if answers is None:
        answers = _one_answer(row, where, to_train)
    if answers is None:
        return row
    if isinstance(answers, dict):
        texts = answers.get("text")
        starts = answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError(
                f"{where}: 'answers' is {brief(repr(answers), 60)}, but should have lists 'text' "
                "and 'answer_start' of equal lengths."
            )
        answers = list(map(_answer, texts, starts))
    if row.get("is_impossible") in (None, ""):
        row["is_impossible"] = answers == [] or None
    return {**row, "answers": answers}


def _answer(text: Any, start: Any) -> dict[str, Any]:
    return {"text": text, "answer_start": start}


def _one_answer(row: dict[str, Any], where: str, to_train: bool) -> list[dict[str, Any]] | None:
    """Returns [the answer] or None; `to_train` needs its start or exactly one occurrence."""
    texts = [row.pop(name) for name in _TEXT_COLUMNS if name in row]
    if not texts:
        return None
    text = next(filter(None, texts), texts[0])  # the first one that is filled
    start = row.pop("answer_start", None)
    context = row.get("context")
    if text in (None, ""):
        if str(start).strip() not in _NO_PLACE:
            raise ValueError(
                f"{where}: answer_start is {brief(repr(start), 60)}, but there is no answer: add "
                "it, or leave answer_start empty if the passage does not answer the question."
            )
        return []
    if isinstance(start, str) and re.fullmatch(r"\s*[0-9]+(\.0)?\s*", start):
        start = int(float(start))
    if isinstance(start, int):
        return [_answer(text, start)]
    if not isinstance(text, str) or not isinstance(context, str):
        return [_answer(text, 0)]  # the caller names the problem
    if not to_train:
        return [_answer(text, context.find(text))]
    if start not in (None, ""):
        raise ValueError(
            f"{where}: 'answer_start' should be the position of the answer in the passage, in "
            f'characters from 0, but is "{brief(start, 60)}". Correct the row.'
        )
    if (count := context.count(text)) != 1:
        raise ValueError(
            f'{where}: the answer "{brief(text, 60)}" occurs {count} times in the passage: give '
            "its position, in characters from 0, in the column answer_start."
        )
    return [_answer(text, context.index(text))]


Version = Literal["1.1", "2.0"]
# Maximum size of a file in bytes; the largest official one has 42 MB.
MAX_BYTES = 1 << 30
SUFFIXES = (*JSON_SUFFIXES, *PARQUET_SUFFIXES)
FOLDERS = ("", "squad", "SQuAD", "SQUAD")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# Values of is_impossible as texts in lower case, without the ".0" that pandas may write after 1.
_FALSE = ("", "false", "f", "no", "n", "0")
_TRUE = ("true", "t", "yes", "y", "1")


def read_questions(
    files: Mapping[str, Path | str],
    bad_rows: BadRows = "refuse",
    *,
    can_skip: bool = False,
    keep: bool = True,
    ignored: tuple[str, ...] = (),
) -> Dataset:
    """Reads SQuAD's official JSON files, or a user's: the same format, or tables of questions.

    `bad_rows`, `can_skip` and `keep` are as for `Dataset`; `ignored` are columns of tables that are
    not meant to be used.

    Raises FileNotFoundError if a file does not exist.
    """
    paths = {}
    notes = []
    for split, file in files.items():
        path = paths[split] = Path(file).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"{path} ({split} split) does not exist: check its name.")
        if path.is_dir():
            notes.append(unread_files(path, files_in(path, SUFFIXES)))

    def parse(split: str, counts: ChangeCounts) -> Iterator[Example]:
        reader = _Reader(split, ignored, counts)
        for path in files_in(paths[split], SUFFIXES):
            yield from reader.examples(path)

    return Dataset.read(
        "SQuAD",
        paths,
        parse,
        keep=keep,
        note="\n".join(filter(None, notes)),
        bad_rows=bad_rows,
        can_skip=can_skip,
    )


def read_squad(data_dir: Path | str, version: Version) -> Dataset:
    """Reads the files of SQuAD's `version` in `data_dir`, such as `train-v1.1.json`.

    A file with a part of a split, such as `train-v1.1.a.json`, is used if the complete file
    `train-v1.1.json` does not exist.

    Raises:
        FileNotFoundError: there is neither a train nor a dev file.
        ValueError: a split has several such files and no complete file.
    """
    data_dir = Path(data_dir).expanduser()
    for folder in FOLDERS:
        files = {}
        for split in ("train", "dev"):
            if path := _find(data_dir / folder, split, version):
                files[split] = path
        if files:
            return read_questions(files)
    raise FileNotFoundError(
        f"Neither train-v{version}.json nor dev-v{version}.json is in {data_dir}: give --data_dir "
        "the folder of SQuAD's files, or leave it out to download them."
    )


class _Reader:
    """Converts the questions of a split, in one or several files, to examples."""

    def __init__(self, split: str, ignored: tuple[str, ...], counts: ChangeCounts):
        self._split = split
        self._ignored = ignored
        self._counts = counts
        self._to_train = split == "train"
        self._seen: set[str] = set()

    def examples(self, path: Path) -> Iterator[Example]:
        """Yields the questions of a file; a bad one is an example with a `problem`."""
        in_table = is_question_table(path)
        if in_table:
            questions = _table_questions(
                path, len(self._seen), self._ignored, to_train=self._to_train
            )
        else:
            questions = _json_questions(path)
        unused = UnusedColumns(path, None, Columns(ignored=(*_READ, *self._ignored)), Columns())
        for number, asked in enumerate(questions):
            unused.add(asked.row)
            if reason := unused.says_to_leave_out(asked.row):
                self._counts.add(reason, asked.where)
                continue
            try:
                example = self._example(asked, placed=in_table and self._to_train)
            except ValueError as error:
                example = Example(id=_id_of(asked, number), where=asked.where, problem=str(error))
            if example is None:
                continue
            if example.id in self._seen:
                same = "questions with the id of an earlier one, each read by itself"
                self._counts.add(same, example.where)
            self._seen.add(example.id)
            yield dataclasses.replace(example, row=asked.row)
        if self._split != "test":
            unused.check()

    def _example(self, asked: _Asked, *, placed: bool) -> Example | None:
        """Converts a question to an example or None; `placed`: an answer must be in the passage."""
        question = asked.question
        context = asked.context
        if isinstance(question, ValueError):
            raise question
        name = None
        if isinstance(question, dict):
            name = question.get("id")
        if not isinstance(name, str | int) or name == "":
            raise ValueError(
                f'{asked.where}: a question has no "id": give each question a unique one.'
            )
        where = f"{asked.where}, question {brief(name, 60)}"
        text = _text(question, "question", where)
        for what, content in (("question", text), ("passage", context)):
            if not content.strip():
                raise ValueError(f"{where}: the {what} is empty; fill it or remove the row.")
        example = Example(id=str(name), where=where, text=text, pair=context)
        if _is_impossible(question, where, self._split):
            return dataclasses.replace(example, label=IMPOSSIBLE)
        if "answers" not in question:
            if self._split in ("train", "dev"):
                raise ValueError(
                    f'{where} has no "answers": write "answers": [{{"text": "...", '
                    '"answer_start": 0}] with the number of characters before the answer or, in '
                    'tables, an "answer".'
                )
            return example
        answers = _answers(question, where)
        if placed and answers and not any(answer in context for answer, _ in answers):
            raise ValueError(
                f"{where}: the answer {brief(repr(answers[0][0]), 60)} does not occur in the "
                "passage. Correct the answer or the passage."
            )
        return with_answers(example, answers, self._split, self._counts)


def _id_of(asked: _Asked, number: int) -> str:
    """Returns the id of a question that may be malformed; `number` is its index in the file."""
    named = asked.question if isinstance(asked.question, dict) else asked.row
    id = named.get("id")
    if isinstance(id, str | int) and id != "":
        return str(id)
    return str(number)


def _is_impossible(question: Mapping[str, Any], where: str, split: str) -> bool:
    """Returns whether a question says that the passage does not answer it."""
    impossible = question.get("is_impossible")
    if impossible is None:
        return False
    meaning = str(impossible).strip().lower().removesuffix(".0")
    said = f"{where}: is_impossible is {brief(repr(impossible), 60)}"
    if meaning not in _FALSE + _TRUE:
        raise ValueError(
            f"{said}: write true if the passage does not answer the question, and else false."
        )
    if meaning in _TRUE:
        return True
    if split == "train" and meaning and not question.get("answers", ["missing"]):
        raise ValueError(f"{said}, but there is no answer: add the answer, or write true.")
    return False


def _answers(question: Mapping[str, Any], where: str) -> list[tuple[str, int]]:
    """Returns (text, start) of the answers of a question."""
    answers = []
    for answer in _get(question, "answers", list, where):
        start = 0
        if isinstance(answer, dict):
            start = answer.get("answer_start", 0)
        answers.append((_text(answer, "text", where), start))
        if type(start) is not int or abs(start) >= 1 << 31:
            raise ValueError(
                f"{where}: answer_start is {brief(repr(start), 60)}; it must be a whole number."
            )
    return answers


def with_answers(
    asked: Example, answers: Iterable[tuple[str, int]], split: str, counts: ChangeCounts
) -> Example | None:
    """Adds `answers`, (text, start in characters), to a question, and corrects their starts.

    Returns None if `split` is train and the question has answers, but none occurs in the passage.
    Such questions of all splits, and corrected starts, are counted in `counts`.
    """
    placed = []
    for text, start in answers:
        place = nearest(text, asked.pair or "", start)
        placed.append((text, place))
        if place not in (start, NOWHERE):
            counts.add("answers moved to their nearest occurrence in the passage", asked.where)
    if placed and all(start == NOWHERE for _, start in placed):
        done = "that cannot be answered right"
        if split == "train":
            done = "left out"
        counts.add(f"questions {done}, because no answer occurs in the passage", asked.where)
        if split == "train":
            return None
    return dataclasses.replace(asked, answers=tuple(placed))


def nearest(text: str, context: str, start: int) -> int:
    """Returns the start of the occurrence of `text` in `context` nearest to `start`, or -1."""
    if not text.strip():
        return NOWHERE
    if start >= 0 and context.startswith(text, start):
        return start
    before = context.rfind(text, 0, max(start, 0) + len(text))
    after = context.find(text, max(start, 0))
    if before < 0 or after < 0:
        return max(before, after)
    if start - before <= after - start:
        return before
    return after


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


def _text(value: Any, key: str, where: str) -> str:
    text = _get(value, key, str, where)
    if lone := _LONE_SURROGATE.search(text):
        raise ValueError(
            f"{where}: {key!r} holds a lone surrogate ({lone[0]!a}) at position {lone.start()}: "
            "remove it."
        )
    return text


def _get(value: Any, key: str, kind: type, where: str) -> Any:
    field = None
    if isinstance(value, dict):
        field = value.get(key)
    if not isinstance(field, kind):
        needed = "a list" if kind is list else "a text"
        state = "is missing" if field is None else f"is {brief(repr(field), 40)}"
        hint = "Correct it."
        if key in ("data", "paragraphs", "qas"):
            hint = (
                'The format is {"data": [{"paragraphs": [{"context": "", "qas": [{"id": "", '
                '"question": "", "answers": [{"text": "", "answer_start": 0}]}]}]}]}.'
            )
        raise ValueError(f"{where}: {key!r} should be {needed}, but {state}. {hint}")
    return field


def read_dataset_row(row: DatasetRow) -> Example | None:
    """Converts a row of SQuAD in TFDS or on the hub to a question, or to None as `with_answers`."""
    fields = row.fields
    asked = Example(
        id=decode(fields["id"]),
        where=row.where,
        text=decode(fields["question"]),
        pair=decode(fields["context"]),
    )
    texts = fields["answers"]["text"]
    starts = fields["answers"]["answer_start"]
    # The hub has no `is_impossible`, but only impossible questions have no answers there.
    if fields.get("is_impossible", not len(texts)):
        return dataclasses.replace(asked, label=IMPOSSIBLE)
    answers = [(decode(text), int(start)) for text, start in zip(texts, starts, strict=True)]
    return with_answers(asked, answers, row.split, row.counts)


def _make(
    name: str, version: Version, options: SquadOptions | Squad2Options, fold: Fold | None
) -> SpanTask:
    files = functools.partial(read_squad, version=version)
    data = official_dataset(options, files, f"squad/v{version}", read_dataset_row)
    return span_task(options, name=name, source=data, with_impossible=version == "2.0")


def _make_qa(options: QaOptions, fold: Fold | None) -> SpanTask:
    files = files_of(options)
    if not files:
        raise ValueError("--task=qa reads your own files: give --train, --dev or --test.")
    bad_rows = "refuse"
    if options.skip_bad_rows:
        bad_rows = "skip"
    apart = {*options.dividing_columns}.difference(_READ)
    ignored = (*options.ignore_columns, *apart)
    data = read_questions(files, bad_rows, can_skip=True, ignored=ignored)
    data = divide(data, options, fold, BY_PASSAGE)
    counts = []
    impossible = False
    for split in data.splits:
        labels = Counter(example.label for example in data.examples(split))
        counts.append(f"{labels[IMPOSSIBLE]:,} of {labels.total():,} in {split}")
        impossible |= IMPOSSIBLE in labels
    if impossible:
        print(
            f"Questions without an answer: {', '.join(counts)}. The model can give no answer, and "
            "the scores are those of SQuAD 2.0."
        )
    return span_task(options, name="qa", source=data, with_impossible=impossible)


def _score_files(
    version: Version,
    gold: Path,
    predictions: Path,
    na_probs: Path | None = None,
    na_prob_thresh: float = 1.0,
) -> Measure:
    golds: dict[str, list[str]] = {}
    for example in read_questions({"gold": gold}, keep=False).examples("gold"):
        if example.id in golds:
            raise ValueError(
                f"{example.where}: an earlier question has the same id. Restore the official file."
            )
        golds[example.id] = [text for text, _ in example.answers]
    answers = _read_by_id(predictions, str, "texts")
    missing = len(golds.keys() - answers.keys())
    if golds and missing == len(golds):
        raise ValueError(
            f"None of the {missing:,} questions of {gold} has a prediction in {predictions}: give "
            "predictions for the same version and split."
        )
    if version == "2.0":
        null_odds = None
        if na_probs:
            null_odds = _read_by_id(na_probs, int | float, "numbers")
        return squad2.measure(golds, answers, null_odds, na_prob_thresh)
    if missing:
        count = f"{missing:,} of {len(golds):,}"
        print(f"{count} questions have no prediction and count as wrong", file=sys.stderr)
    return squad1.measure(golds, answers)


def _read_by_id(path: Path, kind: Any, what: str) -> dict[str, Any]:
    remedy = f"write a JSON object that maps question ids to {what}"
    values = read_json(path, remedy, MAX_BYTES)
    pairs = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=list)
    if len(pairs) > len(values):
        raise ValueError(
            f"{path} repeats {len(pairs) - len(values):,} ids: give one prediction for each id."
        )
    for name, value in values.items():
        if not isinstance(value, kind):
            raise ValueError(
                f"{path}: the value of question {brief(name, 60)} is {brief(repr(value), 50)}, but "
                f"all values must be {what}."
            )
    return values


SQUAD_TASKS = (
    TaskDefinition(
        name="squad",
        kinds=(SpanTask,),
        options=SquadOptions,
        make=functools.partial(_make, "squad", "1.1"),
        score_files=functools.partial(_score_files, "1.1"),
    ),
    TaskDefinition(
        name="squad2",
        kinds=(SpanTask,),
        options=Squad2Options,
        make=functools.partial(_make, "squad2", "2.0"),
        score_files=functools.partial(_score_files, "2.0"),
        scores_null_odds=True,
    ),
    TaskDefinition(name="qa", kinds=(SpanTask,), options=QaOptions, make=_make_qa),
)
