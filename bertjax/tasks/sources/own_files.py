"""`OwnFiles`, the base class of the sources that read the user's own files."""

import abc
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertjax.base.files import brief, writing
from bertjax.base.scratch import scratch_folder
from bertjax.tasks.sources.columns import (
    Columns,
    OwnKind,
    check_columns,
    find_columns,
)
from bertjax.tasks.sources.conll import in_iob2, read_conll
from bertjax.tasks.sources.held_out import Choice, Fold
from bertjax.tasks.sources.official import ChangeCounts, value_of_split
from bertjax.tasks.sources.rows import KnownClasses, Row, RowReader
from bertjax.tasks.sources.tables import (
    NAMED_COLUMNS,
    TEXT_SUFFIXES,
    TSV_SUFFIXES,
    Table,
    files_in,
    row_name,
    suffix_of,
    unread_files,
)
from bertjax.tasks.task import Example, KeptExamples

# refuse: one error names the bad rows; skip: the other rows are used; report: a bad row becomes an
# example whose `problem` is the reason, without content unless only the label is bad.
BadRows = Literal["refuse", "skip", "report"]
# The most problems in an error, and the most characters of a problem's rows and description.
PROBLEMS = 20
ROWS_LENGTH = 100
LINE_LENGTH = 200
# Names of columns (in '...'), quoted values, and numbers that are not a part of a word.
_VALUES = r"""'[^']*'|"[^"]*"|(?<![\w.])-?\d+(\.\d+)?(?!\w)"""


def error_of(problems: Sequence[str], where: str, *, can_skip: bool = False) -> ValueError:
    """Returns one ValueError about bad rows of a file or split, `where`.

    Rows with the same problem are listed together. Problems that differ only in quoted values and
    numbers count as similar; the values of the first row are shown. The message describes the
    `PROBLEMS` most frequent problems; if `can_skip`, it recommends --skip_bad_rows.
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
    """Writes (split, problem) of each bad row to a file of JSON lines."""
    with writing(path) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for split, problem in rows:
            line = {"split": split, "problem": problem}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")


class OwnFiles(abc.ABC):
    """Base class of the sources that read the user's own files, one file or folder per split.

    A file is parsed once: all of its examples are kept, because a fine-tuning reads the train split
    several times before its first step, and the dev split at each evaluation. Examples that are
    held out of the train split are kept apart, so that an evaluation reads only them. What is kept
    of the train split is forgotten after it has been encoded.

    Args:
        files: {split: path of a file or folder}.
        bad_rows: "refuse": one ValueError names the rows that cannot be used; "skip": they are left
            out; "report": each becomes an example whose `problem` says why.
        can_skip: whether errors about bad rows recommend --skip_bad_rows.
        keep: whether examples are kept; else, a split is parsed whenever it is read, so that
            predictions begin before a file has been read.

    Attributes:
        splits: the splits that have a file, and "dev" if a part of the train split is held out.
        counts: {"SPLIT: REASON": number of changed or omitted examples} of all splits read.
        note: a message about the files for the user; it may be empty.
    """

    note: str

    def __init__(
        self,
        task: str,
        files: Mapping[str, Path | str],
        bad_rows: BadRows = "refuse",
        *,
        can_skip: bool = False,
        keep: bool = True,
    ):
        self.files = {split: Path(path).expanduser() for split, path in files.items()}
        self.splits = tuple(self.files)
        self.counts = ChangeCounts()
        self._task, self._can_skip, self._keeps = task, can_skip, keep
        self._bad_rows_are: BadRows = bad_rows
        self._kept: dict[str, KeptExamples] = {}
        self._bad_rows: dict[str, list[str]] = {}  # split -> problems
        self._left_out: dict[str, dict[str, str]] = {}  # split -> {where: problem}
        self._held_out: frozenset[int] = frozenset()

    @abc.abstractmethod
    def parse(self, split: str) -> Iterator[Example]:
        """Parses the file of a split; a row that cannot be used is an example with a `problem`.

        Raises:
            ValueError: the split has no file, or the rows after a malformed one cannot be read.
        """

    def path(self, split: str) -> Path:
        """Returns the path of the file that has a split; raises ValueError if there is none."""
        held_out = split == "dev" and self._held_out
        return value_of_split(self._task, "train" if held_out else split, self.files)

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split, in the order of its file, without those left out.

        Raises:
            ValueError: the split has no file, or a row is malformed; the message names the row.
        """
        self.path(split)  # refuses a split without a file
        held_out = self._held_out if split == "train" else ()
        left_out = self._left_out.get(split, {})
        numbered = enumerate(self.usable(split))
        return (e for i, e in numbered if i not in held_out and e.where not in left_out)

    def all_examples(self, split: str) -> Iterable[Example]:
        """Returns the examples of a split that `parse` yields, parsed now or kept."""
        if not self._keeps:
            return self.parse(split)
        if split not in self._kept:
            self._kept[split] = KeptExamples(self.parse(split))
        return self._kept[split]

    def usable(self, split: str) -> Iterator[Example]:
        """Yields the examples without a problem, also held-out ones of the train split.

        If `bad_rows` is "report", those with a problem are yielded as well.

        Raises:
            ValueError: examples have a problem and `bad_rows` is "refuse". After the first problem,
                nothing is yielded; the error is raised at the end and names the rows.
        """
        self._bad_rows[split] = problems = []
        for example in self.all_examples(split):
            if example.problem:
                problems.append(example.problem)
                if self._bad_rows_are == "report":
                    yield example
            elif not problems or self._bad_rows_are != "refuse":
                yield example
        if self._bad_rows_are == "refuse":
            self.refuse(split, problems)

    def forget(self, split: str) -> None:
        """Frees what is kept of a split, which is parsed again if it is read again."""
        self._kept.pop(split, None)

    def refuse(self, split: str, problems: Sequence[str]) -> None:
        """Raises one ValueError about all bad rows of a split, unless `problems` is empty."""
        if problems:
            raise error_of(problems, str(self.path(split)), can_skip=self._can_skip)

    def leave_out(self, split: str, example: Example, problem: str) -> bool:
        """Leaves an example out of later reads if `bad_rows` is "skip"; returns whether it does."""
        if self._bad_rows_are != "skip":
            return False
        self._left_out.setdefault(split, {})[example.where] = problem
        return True

    def all_bad_rows(self) -> list[tuple[str, str]]:
        """Returns (split, problem) of each row that could not be read or encoded."""
        read = [(split, text) for split, texts in self._bad_rows.items() for text in texts]
        left_out = self._left_out.items()
        return read + [(split, text) for split, rows in left_out for text in rows.values()]

    def held_out_indices(self) -> list[int]:
        """Returns the index of each "dev" example among the usable examples of the train file."""
        if not self._held_out:
            return []
        left_out = self._left_out.get("dev", {})
        numbered = zip(sorted(self._held_out), self.usable("dev"), strict=True)
        return [index for index, example in numbered if example.where not in left_out]

    def divide(
        self,
        fraction: float | None,
        fold: Fold | None,
        choice: Choice,
        key: Callable[[Example], Any],
    ) -> None:
        """Holds out a dev split if there is none, and tells the user about it and about `note`.

        Examples with the same text (the same pair, choices or words) are either all held out or
        all trained on, because otherwise the evaluation would reward what was learnt by heart.

        Args:
            fraction: the fraction of the train split to hold out; 0 or None: nothing.
            fold: the fold of a cross-validation to hold out, instead of a fraction.
            key: function (example) -> by what it is chosen, such as its label.

        Raises:
            ValueError: there are fewer different texts than folds, or a fold is empty.
        """
        if self.note:
            print(self.note)
        if "train" not in self.splits:
            return
        if "dev" in self.splits:
            message = self._repeated_in_dev()
        else:
            message = self._hold_out(fraction, fold, choice, key) if fraction or fold else ""
        if message:
            print(message)

    def _hold_out(
        self,
        fraction: float | None,
        fold: Fold | None,
        choice: Choice,
        key: Callable[[Example], Any],
    ) -> str:
        keys: dict[bytes, Any] = {}  # of the first example with each text
        text_of = []  # index of each example's text in `keys`
        numbers: dict[bytes, int] = {}
        for example in self.usable("train"):
            digest = text_digest(example)
            keys.setdefault(digest, key(example))
            text_of.append(numbers.setdefault(digest, len(numbers)))
        total, path = len(text_of), self.path("train")
        if fold is not None:
            folds = choice.folds(list(keys.values()), fold.count, fold.seed)
            if len(np.unique(folds)) < fold.count:
                raise ValueError(
                    f"--folds {fold.count}: the {total:,} examples in {path} cannot be divided "
                    f"into so many folds ({choice.words}): give fewer folds."
                )
            chosen = frozenset(np.flatnonzero(folds == fold.index).tolist())
        else:
            chosen = choice.fraction(list(keys.values()), fraction or 0.0)
        held_out = frozenset(i for i, text in enumerate(text_of) if text in chosen)
        if not 0 < len(held_out) < total:
            return ""
        numbered = enumerate(self.usable("train"))
        self._kept["dev"] = KeptExamples(e for i, e in numbered if i in held_out)
        deque(self._kept["dev"], maxlen=0)  # now, because the train split will be forgotten
        self._held_out, self.splits = held_out, (*self.splits, "dev")
        name = path.name or path.resolve().name
        message = (
            f"{len(held_out):,} of the {total:,} examples in {name} are not trained on, but "
            "evaluated"
        )
        if fold is not None:
            message = f"Fold {fold.index + 1} of {fold.count}: {message} ({choice.words})."
        else:
            message = (
                f"There is no --dev file: {message} (chosen {choice.words}; --dev_fraction "
                f"{fraction:g}; with 0, the model is trained on all and not evaluated)."
            )
        if copies := total - len(keys):
            message += f" {copies:,} examples with a text that occurs before stay with it."
        return message

    def _repeated_in_dev(self) -> str:
        known = {text_digest(example) for example in self.usable("train")}
        repeated = [text_digest(example) in known for example in self.usable("dev")]
        if not any(repeated):
            return ""
        return (
            f"warning: {sum(repeated):,} of the {len(repeated):,} examples in {self.path('dev')} "
            "have a text that is trained on, so that the scores on them are better than those of "
            "new texts would be."
        )


def text_digest(example: Example) -> bytes:
    """Returns a hash of the texts of an example, which is small where texts are long."""
    texts = (example.text, example.pair, example.words, example.choices)
    return hashlib.blake2b(repr(texts).encode(errors="replace"), digest_size=12).digest()


@contextlib.contextmanager
def rows_as_files(**rows: Any) -> Iterator[dict[str, str]]:
    """Yields {argument: path of a file with its rows}; temporary files are removed at the end.

    Rows are counted from 1, like the lines of the file. Arguments that are None are left out.

    Raises:
        ValueError: the block raises ValueError; the message names the argument, such as "train, row
            3", and not the temporary file.
    """
    given = {name: value for name, value in rows.items() if value is not None}
    with scratch_folder() as folder:
        files = {name: str(folder / f"{name}.jsonl") for name in given}
        try:
            paths = {}
            for name, value in given.items():
                try:
                    paths[name] = as_file(value, Path(files[name]))
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
            yield paths
        except ValueError as error:
            for name, file in files.items():
                error.args = tuple(
                    arg.replace(file, name) if isinstance(arg, str) else arg for arg in error.args
                )
            raise


def as_file(rows: Any, file: Path) -> str:
    """Writes `rows` to `file` as JSON lines, and returns its path; a path is returned as it is.

    `rows` are a path, a pandas DataFrame, a dictionary {column: values}, or dictionaries, one per
    row, such as a list of them or a dataset of Hugging Face's `datasets`.

    Raises:
        ValueError: `rows` has another type, its columns have different lengths or equal names, or
            it is empty.
    """
    if isinstance(rows, str | Path):
        return str(rows)
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a DataFrame
        if twice := [name for name, count in Counter(rows.columns).items() if count > 1]:
            raise ValueError(
                f"Several columns are named {brief(repr(twice[0]), 60)}: give each column its own "
                "name."
            )
        records = rows.to_dict("records")
    elif isinstance(rows, Mapping):
        lengths = {key: len(values) for key, values in rows.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"The columns have different lengths, {brief(lengths)}: make them equal."
            )
        records = [
            dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)
        ]
    else:
        records = list(rows) if isinstance(rows, Iterable) else [rows]
    other = next((record for record in records if not isinstance(record, Mapping)), None)
    if other is not None or not records:
        reads = f"{brief(repr(other), 60)} is no row" if records else "There are no rows"
        raise ValueError(
            f"{reads}: give a path, a DataFrame, a dictionary of columns or a list of dictionaries "
            "such as {'text': 'a film', 'label': 'good'}."
        )
    lines = [
        json.dumps({str(key): _in_json(value) for key, value in record.items()}) + "\n"
        for record in records
    ]
    file.write_text("".join(lines), encoding="utf-8")
    return str(file)


def _in_json(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_in_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _in_json(item) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None  # pandas marks missing values with NaN
    if value is None or isinstance(value, str | int | float | bool):
        return value
    text = str(value)
    return None if text in ("<NA>", "NaT") else text


# Usual suffixes of files with CoNLL's columns; only in a folder do files need one of them.
CONLL_SUFFIXES = (".conll", ".conll2003", ".bio", ".iob", ".iob2")


class TableSource(OwnFiles):
    """Reads the user's own tables in several formats or, for tagging, CoNLL's columns.

    Attributes:
        columns: the column names of the first split, set by the user or guessed.
        multi_label: whether an example may have several labels: a list in JSON or Parquet, or a
            text in which a label separator stands between the labels.
    """

    def __init__(
        self,
        kind: OwnKind,
        *,
        train: Path | str | None = None,
        dev: Path | str | None = None,
        test: Path | str | None = None,
        conll: bool | None = None,
        columns: Columns | None = None,
        label_separator: str | None = None,
        bad_rows: BadRows = "refuse",
        can_skip: bool = False,
        keep: bool = True,
    ):
        """Reads the headers of the files and finds the columns of text, labels and so on.

        `bad_rows`, `can_skip` and `keep` are as for `OwnFiles`.

        Args:
            train: the file of the train split, or a folder of files with the same columns; the
                same holds for `dev` and `test`.
            conll: whether the files of a tagging task have CoNLL's columns, except CSV, JSON and
                Parquet files, which never have; None: as True. Other tasks ignore this argument.
            columns: the column names; a name that is not set is guessed from the file of train, or
                else of dev, or else of test; embed: from the file of each split, so that a model
                that is trained on pairs can be evaluated on scored pairs.
            label_separator: the string between the labels of an example with several labels; None:
                a text is one label.

        Raises:
            FileNotFoundError: a file does not exist.
            ValueError: no file is given, a file lacks a column or has an unknown suffix, or a
                column cannot be guessed.
        """
        given = {"train": train, "dev": dev, "test": test}
        files = {split: path for split, path in given.items() if path is not None}
        super().__init__(f"--task={kind}", files, bad_rows, can_skip=can_skip, keep=keep)
        if not files:
            raise ValueError(f"--task={kind} reads your own files: give --train, --dev or --test.")
        self.kind: OwnKind = kind
        self._separator = label_separator
        self._classes: KnownClasses | None = None
        self._parts = {split: data_files(path, kind) for split, path in self.files.items()}
        self._tables = {
            split: [Table(part) for part in parts if not self._is_conll(part, conll)]
            for split, parts in self._parts.items()
        }
        tables = [table for tables in self._tables.values() for table in tables]
        notes = self._find_columns(columns or Columns())
        unread = (unread_files(path, self._parts[split]) for split, path in self.files.items())
        self.note = "\n".join(filter(None, dict.fromkeys((*notes, _quoted(tables), *unread))))
        self.columns = next(iter(self._columns.values()))
        several = bool(label_separator)
        if tables and tables[0].is_typed and not several:
            row = next(iter(tables[0].first_rows), {})
            several = isinstance(row.get(self.columns.label or ""), list)
        self.multi_label = kind == "classify" and several

    def _find_columns(self, named: Columns) -> list[str]:
        """Finds the columns of each split, and returns messages about the guessed ones."""
        self._columns, notes = dict.fromkeys(self.files, named), []
        missing = {split for split, tables in self._tables.items() if tables}
        for split, tables in self._tables.items():
            for table in tables:
                if split not in missing:
                    check_columns(table, self._needed(split))
                    continue
                own = self._named_in(split, named)
                found, note = find_columns(table, self.kind, own, labelled=split != "test")
                notes.append(note)
                found_for = {split} if self.kind == "embed" else set(self.files)
                self._columns |= dict.fromkeys(found_for, found)
                missing -= found_for
        return notes

    def _named_in(self, split: str, named: Columns) -> Columns:
        """Returns the named columns that the file of `split` must have.

        For embeddings, a train file may lack a score that another file has; a dev or test file may
        lack more, but has both texts or neither of them.
        """
        if self.kind != "embed" or "train" not in self._tables:
            return named
        names = {split: set(tables[0].columns) for split, tables in self._tables.items()}
        own = names[split]
        if split == "train":
            elsewhere = named.label in set().union(*names.values()) - own
            return dataclasses.replace(named, label=None) if elsewhere else named
        both = {named.text, named.pair} - {None} <= own
        return Columns(
            text=named.text if both else None,
            pair=named.pair if both else None,
            label=named.label if named.label in own else None,
            id=named.id if named.id in own else None,
            negatives=named.negatives if set(named.negatives) <= own else (),
        )

    def _needed(self, split: str) -> tuple[str, ...]:
        columns = self._columns[split]
        optional = {columns.id, columns.label if split == "test" else None}
        return tuple(name for name in columns.named() if name not in optional)

    def _is_conll(self, path: Path, conll: bool | None) -> bool:
        return self.kind == "tag" and conll is not False and suffix_of(path) not in NAMED_COLUMNS

    @property
    def description(self) -> dict[str, Any]:
        """The column names and label separator used in training, for a saved model's task.json."""
        return {
            "columns": dataclasses.asdict(self.columns),
            "label_separator": self._separator,
        }

    def has_scores(self, split: str) -> bool:
        """Returns whether the pairs of a split have scores."""
        return self._columns.get(split, self.columns).label is not None

    def use_classes(self, names: Iterable[str]) -> None:
        """Gives the label 1 the class 1.0, or the other way round, if only one of them is a class.

        `names` are the classes of the model. pandas writes whole numbers as 1.0 if a value is
        missing in their column, so that the same label is written in two ways in two files. Other
        labels that are equal as numbers, such as 1.1 and 1.10 or 2 and 02, stay apart.
        """
        if self.kind == "classify":
            self._classes = KnownClasses(names)

    def examples(self, split: str) -> Iterator[Example]:
        examples = super().examples(split)
        return examples if self._classes is None else map(self._with_class, examples)

    def _with_class(self, example: Example) -> Example:
        assert self._classes is not None
        label = self._classes.of(example.label)
        return example if label == example.label else dataclasses.replace(example, label=label)

    @property
    def num_choices(self) -> int:
        """The number of choices of the first usable example that has some, or 2.

        Raises ValueError if the file has no examples.
        """
        first = None
        for first in self.examples(self.splits[0]):
            if first.choices:
                return len(first.choices)
        if first is None:
            path = self.path(self.splits[0])
            raise ValueError(f"{path} has no examples: check the file.")
        return 2

    def written_labels(self, split: str) -> Iterator[str]:
        """Yields the labels in the file of a split as they are written; "" where there is none."""
        for example in self.all_examples(split):
            value = example.row.get(self.columns.label or "")
            yield "" if value is None else str(value).strip()

    def parse(self, split: str) -> Iterator[Example]:
        parts = value_of_split(self._task, split, self._parts)
        if not self._tables[split]:
            return itertools.chain.from_iterable(map(read_conll, parts))
        self.counts.reset(split)
        columns = self._columns[split]
        reader = RowReader(
            self.kind, columns, self._separator, self.multi_label, labelled=split != "test"
        )
        examples = self._converted(split, columns, reader)
        # The tag scheme depends on all tags, if there are any.
        return in_iob2(examples) if self.kind == "tag" and columns.label is not None else examples

    def _converted(self, split: str, columns: Columns, reader: RowReader) -> Iterator[Example]:
        """Converts each row of a split to an example, a bad row to an example with a `problem`.

        If bad rows are reported and only the label is bad, the example has the content of the row,
        so that its text can be predicted. Without a column of ids, the id is the index of the row.
        """
        reports = self._bad_rows_are == "report"
        rows = ((t, row) for t in self._tables[split] for row in t.rows_and_errors())
        for count, (table, (number, values)) in enumerate(rows):
            if isinstance(values, ValueError):
                where = row_name(table.path, number)
                yield Example(id=str(count), where=where, problem=str(values))
                continue
            if table.is_text and not values["text"].strip() and not reports:
                continue
            row = Row(table.path, number, values)
            id = str(count if columns.id is None else values.get(columns.id, count))
            try:
                example = reader.example(id, row)
            except ValueError as error:
                example = Example(id=id, where=row.where, problem=str(error))
                if reports and columns.label in values:
                    with contextlib.suppress(ValueError):
                        unlabelled = row._replace(values=values | {columns.label: None})
                        example = reader.example(id, unlabelled)
                example = dataclasses.replace(example, row=values, problem=str(error))
            yield example
        for reason, number in reader.counts.items():
            self.counts[f"{split}: {reason}"] += number


def data_files(path: Path, kind: OwnKind) -> list[Path]:
    """Returns [`path`] or, if it is a folder, its files that tasks of a kind read.

    In a folder, the suffix decides: .csv, .tsv, .jsonl, .parquet and similar or, if there are no
    such files, .txt and, for tagging, .conll, .iob and similar.

    Raises:
        FileNotFoundError: there is no file or folder at `path`, or the folder has no such file.
    """
    tables = (*NAMED_COLUMNS, *TSV_SUFFIXES)
    suffixes = (*tables, *TEXT_SUFFIXES, *(CONLL_SUFFIXES if kind == "tag" else ()))
    files = files_in(path, suffixes)
    # A text beside tables is a README rather than a table without a header.
    return [file for file in files if suffix_of(file) in tables] or files


def _quoted(tables: Iterable[Table]) -> str:
    """Returns a warning about the first row of TSV that seems quoted as in CSV, or ""."""
    for table in tables:
        if row := table.first_quoted_row():
            return (
                f"warning: {row_name(table.path, row)} seems to be quoted as in CSV, but quotes "
                "have no meaning in TSV and are read as text: save the table as CSV."
            )
    return ""
