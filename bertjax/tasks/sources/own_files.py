"""`OwnFiles`, the base class of the sources that read the user's own files."""

import abc
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertjax.base.files import brief, writing
from bertjax.base.scratch import scratch_folder
from bertjax.tasks.sources.columns import (
    Columns,
    CustomKind,
    check_columns,
    find_columns,
    find_pair_columns,
)
from bertjax.tasks.sources.conll import read_conll, tagged_example
from bertjax.tasks.sources.held_out import Choice, Fold
from bertjax.tasks.sources.official import reset_counts, value_of_split
from bertjax.tasks.sources.rows import KnownClasses, Row, RowExamples, utf16_hint
from bertjax.tasks.sources.tables import (
    NAMED_COLUMNS,
    TEXT_SUFFIXES,
    TSV_SUFFIXES,
    Table,
    files_in,
    place,
    suffix_of,
    unread_files,
)
from bertjax.tasks.tagging import scheme_of
from bertjax.tasks.task import Example

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


class OwnFiles(abc.ABC):
    """Base class of the sources that read the user's own files, one file or folder per split.

    Args:
        bad_rows: "refuse": one ValueError names the rows that cannot be used; "skip": they are left
            out; "report": each becomes an example whose `problem` says why.
        can_skip: whether errors about bad rows recommend --skip_bad_rows.

    Attributes:
        splits: the splits that have a file, and "dev" if a part of the train split is held out.
    """

    splits: tuple[str, ...]

    def __init__(self, bad_rows: BadRows = "refuse", *, can_skip: bool = False):
        self._bad_rows_are: BadRows = bad_rows
        self._can_skip = can_skip
        self._bad_rows: dict[str, list[str]] = {}  # split -> problems
        self._left_out: dict[str, dict[str, str]] = {}  # split -> {where: problem}
        self._held_out: frozenset[int] | None = None

    @abc.abstractmethod
    def read(self, split: str) -> Iterator[Example]:
        """Reads the examples in the file of a split lazily, in the order of the file.

        Raises:
            ValueError: the split has no file, or a row is malformed; the message names the row.
        """

    @abc.abstractmethod
    def path(self, split: str) -> Path:
        """Returns the path of the file of a split; raises ValueError if there is none."""

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split lazily, without those that `leave_out` left out.

        Raises:
            ValueError: the split has no file, or a row is malformed; the message names the row.
        """
        held_out = self._held_out
        if held_out is None or split not in ("train", "dev"):
            examples = self.read(split)
        else:
            numbered = enumerate(self.read("train"))
            examples = (e for index, e in numbered if (index in held_out) == (split == "dev"))
        left_out = self._left_out.get(split, {})
        return (e for e in examples if e.where not in left_out) if left_out else examples

    def _usable(self, split: str, examples: Iterable[Example]) -> Iterator[Example]:
        """Yields the examples without a problem and, if `bad_rows` is "report", all others.

        Raises:
            ValueError: examples have a problem and `bad_rows` is "refuse". After the first problem,
                nothing is yielded; the error is raised at the end and names the rows.
        """
        self._bad_rows[split] = problems = []
        for example in examples:
            if example.problem:
                problems.append(example.problem)
                if self._bad_rows_are == "report":
                    yield example
            elif not problems or self._bad_rows_are != "refuse":
                yield example
        if self._bad_rows_are == "refuse":
            self.refuse(split, problems)

    def refuse(self, split: str, problems: Sequence[str]) -> None:
        """Raises one ValueError about all bad rows of a split, unless `problems` is empty."""
        if problems:
            raise error_of(problems, str(self.path(split)), can_skip=self._can_skip)

    def leave_out(self, split: str, example: Example, problem: str) -> bool:
        """Leaves an example that cannot be encoded out of all later reads of a split.

        `problem` says why it cannot be encoded. Returns True; or returns False, and changes
        nothing, if `bad_rows` is not "skip".
        """
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
        """Returns the index, in the train file, of each example of the held-out dev split.

        The indices are in the order in which `examples` yields the dev split, and count the usable
        examples of the file from 0.
        """
        held_out, left_out = self._held_out or frozenset(), self._left_out.get("dev", {})
        numbered = enumerate(self.read("train"))
        return [i for i, e in numbered if i in held_out and e.where not in left_out]

    def hold_out(
        self,
        fraction: float | None,
        choice: Choice,
        key: Callable[[Example], Any],
        fold: Fold | None = None,
    ) -> str:
        """Makes a part of the train split the dev split, unless there is a dev split already.

        Examples with the same text (the same pair, choices or words) are either all held out or
        all trained on, because otherwise the evaluation would reward what was learnt by heart.

        Args:
            fraction: the fraction of the train split; 0 or None: nothing is held out.
            choice: how the held-out examples are chosen.
            key: a function that returns the property of an example by which they are chosen, such
                as its label.
            fold: the fold of a cross-validation to hold out, instead of a fraction; None: no
                cross-validation.

        Returns:
            A sentence for the user that says what is held out; "" if nothing is held out.

        Raises:
            ValueError: there are fewer different texts than folds, or a fold is empty.
        """
        if "train" not in self.splits or "dev" in self.splits or not (fraction or fold):
            return ""
        keys: dict[bytes, Any] = {}  # of the first example with each text
        text_of = []  # index of each example's text in `keys`
        numbers: dict[bytes, int] = {}
        for example in self.read("train"):
            digest = text_digest(example)
            keys.setdefault(digest, key(example))
            text_of.append(numbers.setdefault(digest, len(numbers)))
        if fold is not None:
            folds = choice.folds(list(keys.values()), fold.count, fold.seed)
            if len(np.unique(folds)) < fold.count:
                raise ValueError(
                    f"--folds {fold.count}: the {len(text_of):,} examples in {self.path('train')} "
                    f"cannot be divided into so many folds ({choice.words}): give fewer folds."
                )
            chosen = frozenset(np.flatnonzero(folds == fold.index).tolist())
        else:
            chosen = choice.fraction(list(keys.values()), fraction or 0.0)
        held_out = frozenset(i for i, text in enumerate(text_of) if text in chosen)
        path = self.path("train")
        if not 0 < len(held_out) < len(text_of):
            return ""
        self._held_out = held_out
        self.splits = (*self.splits, "dev")
        copies = len(text_of) - len(keys)
        return _held_out_note(
            fraction, fold, len(held_out), len(text_of), path.name or path.resolve().name, choice
        ) + (f" {copies:,} examples with a text that occurs before stay with it." if copies else "")

    def repeated_in_dev(self) -> str:
        """Returns a warning if examples of the dev file are in the train file too, else ""."""
        if self._held_out is not None or not {"train", "dev"} <= set(self.splits):
            return ""
        known = {text_digest(example) for example in self.read("train")}
        repeated = [text_digest(example) in known for example in self.read("dev")]
        if not any(repeated):
            return ""
        return (
            f"warning: {sum(repeated):,} of the {len(repeated):,} examples in {self.path('dev')} "
            "have a text that is trained on, so that the scores on them are better than those of "
            "new texts would be."
        )


def _held_out_note(
    fraction: float | None, fold: Fold | None, count: int, total: int, name: str, choice: Choice
) -> str:
    """Returns the sentence that says which `count` of `total` examples of a file are held out."""
    held_out = f"{count:,} of the {total:,} examples in {name} are not trained on, but evaluated"
    if fold is not None:
        return f"Fold {fold.index + 1} of {fold.count}: {held_out} ({choice.words})."
    return (
        f"There is no --dev file: {held_out} (chosen {choice.words}; --dev_fraction {fraction:g}; "
        "with 0, the model is trained on all and not evaluated)."
    )


def text_digest(example: Example) -> bytes:
    """Returns a hash of the texts of an example, which is small where texts are long."""
    texts = (example.text, example.pair, example.words, example.choices)
    return hashlib.blake2b(repr(texts).encode(errors="replace"), digest_size=12).digest()


@contextlib.contextmanager
def rows_as_files(**rows: Any) -> Iterator[dict[str, str]]:
    """Yields {argument: path of a file with its rows}; temporary files are removed at the end.

    Rows are counted from 1, like the lines of the file.

    Args:
        rows: the rows of each argument, as for `as_file`; arguments that are None are left out.

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
    """Writes `rows` to `file` as JSON lines; returns the path of `file`.

    If `rows` is itself the path of a file, nothing is written, and this path is returned.

    Args:
        rows: a path, a pandas DataFrame, a dictionary {column: values}, or dictionaries, one per
            row, such as a list of them or a dataset of Hugging Face's `datasets`.
        file: the file to write.

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
    """Converts a value of a DataFrame or a dictionary to a JSON value; NaN becomes None."""
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


class CustomSource(OwnFiles):
    """Reads the examples of a task from the user's own files.

    Attributes:
        kind: the kind of task: classify, regress, tag, choice or embed.
        splits: the splits that have a file, and "dev" if a part of the train split is held out.
        columns: the column names, set by the user or guessed.
        note: a message that names the guessed columns and warns about odd quotes and files in a
            folder that are not read; it may be empty.
        multi_label: whether an example may have several labels: a list in JSON or Parquet, or a
            text in which a label separator stands between the labels.
    """

    def __init__(
        self,
        kind: CustomKind,
        *,
        train: Path | str | None = None,
        dev: Path | str | None = None,
        test: Path | str | None = None,
        conll: bool | None = None,
        columns: Columns | None = None,
        label_separator: str | None = None,
        bad_rows: BadRows = "refuse",
        can_skip: bool = False,
    ):
        """Reads the headers of the files and finds the columns of text, labels and so on.

        Args:
            kind: the kind of task.
            train: the file of the train split, or a folder of files with the same columns; at
                least one split is required.
            dev: the same for the dev split.
            test: the same for the test split.
            conll: whether the files of a tagging task have CoNLL's columns, except CSV, JSON and
                Parquet files, which never have; None: as True. Other tasks ignore this argument.
            columns: the column names; a name that is not set is guessed from the file of train, or
                else of dev, or else of test.
            label_separator: the string between the labels of an example with several labels; None:
                a text is one label.
            bad_rows: "refuse": one ValueError names the rows that cannot be used; "skip": they are
                left out; "report": each becomes an example whose `problem` says why.
            can_skip: whether errors about bad rows recommend --skip_bad_rows.

        Raises:
            FileNotFoundError: a file does not exist.
            ValueError: no file is given, a file lacks a column or has an unknown suffix, or a
                column cannot be guessed.
        """
        super().__init__(bad_rows, can_skip=can_skip)
        files = {"train": train, "dev": dev, "test": test}
        self.kind: CustomKind = kind
        self._paths = {
            split: Path(path).expanduser() for split, path in files.items() if path is not None
        }
        if not self._paths:
            raise ValueError(f"--task={kind} reads your own files: give --train, --dev or --test.")
        self.splits = tuple(self._paths)
        self.columns, self.note = columns or Columns(), ""
        self.counts: Counter[str] = Counter()
        self._separator, self._reports_bad_rows = label_separator, bad_rows == "report"
        self._classes = KnownClasses(())
        self._files = {split: data_files(path, kind) for split, path in self._paths.items()}
        self._tables = {
            split: [Table(file) for file in files if not self._is_conll(file, conll)]
            for split, files in self._files.items()
        }
        tables = [(split, table) for split, tables in self._tables.items() for table in tables]
        if tables:
            split, table = tables[0]
            if kind == "embed":
                self.columns, self.note = find_pair_columns(table, self.columns)
            else:
                self.columns, self.note = find_columns(
                    table, kind, self.columns, labelled=split != "test"
                )
            for split, table in tables[1:]:
                check_columns(table, self._needed(split))
            self.note = f"{self.note}\n{_quoted(table for _, table in tables)}".strip()
        unread = (unread_files(path, self._files[split]) for split, path in self._paths.items())
        self.note = "\n".join(filter(None, (self.note, *unread)))
        self.multi_label = self._has_several_labels(tables[0][1] if tables else None)

    @property
    def description(self) -> dict[str, Any]:
        """The column names and label separator used in training, for a saved model's task.json."""
        return {
            "columns": dataclasses.asdict(self.columns),
            "label_separator": self._separator,
        }

    def use_classes(self, names: Iterable[str]) -> None:
        """Gives the label 1 the class 1.0, or the other way round, if only one of them is a class.

        `names` are the classes of the model. pandas writes whole numbers as 1.0 if a value is
        missing in their column, so that the same label is written in two ways in two files. Other
        labels that are equal as numbers, such as 1.1 and 1.10 or 2 and 02, stay apart.
        """
        self._classes = KnownClasses(names)

    @property
    def num_choices(self) -> int:
        """The number of choices of the first usable example in the first split; 2 without one.

        Raises:
            ValueError: the file has no examples.
        """
        first = None
        for first in self.examples(self.splits[0]):
            if first.choices:
                return len(first.choices)
        if first is None:
            path = self._paths[self.splits[0]]
            raise ValueError(f"{path} has no examples: check the file.")
        return 2

    def read(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split lazily, in the order of its file.

        Raises:
            ValueError: the split does not exist, or a row is malformed; the message names the row.
        """
        labelled = split != "test"
        files = value_of_split(f"--task={self.kind}", split, self._files)
        if not self._tables[split]:
            return itertools.chain.from_iterable(map(read_conll, files))
        rows = RowExamples(
            self.kind, self.columns, self._separator, self.multi_label, self._classes
        )
        if self.kind != "tag":
            examples = self._converted(
                split, lambda id, row: rows.example(id, row, labelled=labelled)
            )
            return self._usable(split, examples)
        # The tag scheme depends on all tags, which are read first if there are any.
        has_tags = self.columns.label is not None
        scheme = scheme_of(self._tags(split, rows)) if has_tags else None

        reset_counts(self.counts, split)
        first_cut = ""

        def tagged(id: str, row: Row) -> Example:
            nonlocal first_cut
            sentence = rows.sentence(row, labelled=labelled)
            example = tagged_example(id, row.path, sentence, scheme)
            if sentence.cut_word:
                first_cut = first_cut or f"{sentence.cut_word!r} in {row.where}{utf16_hint(row)}"
                reason = (
                    f"entities begin or end within a word (such as {first_cut}) and are taken as "
                    "whole words, in the scores as well"
                )
                self.counts[f"{split}: rows whose {reason}"] += 1
            return dataclasses.replace(example, row=row.values)

        return self._usable(split, self._converted(split, tagged))

    def written_labels(self, split: str) -> Iterator[str]:
        """Yields the labels in the file of a split as they are written; "" where there is none."""
        for _, row, _ in self._rows(split):
            value = row.values.get(self.columns.label or "")
            yield "" if value is None else str(value).strip()

    def _tags(self, split: str, rows: RowExamples) -> Iterator[tuple[str, ...]]:
        """Yields the tags of each sentence of a split, without malformed rows; () if untagged."""
        for _, row, problem in self._rows(split):
            with contextlib.suppress(ValueError):
                if not problem:
                    yield rows.sentence(row, labelled=False).tags or ()

    def path(self, split: str) -> Path:
        """Returns the path of the file of a split.

        Raises:
            ValueError: the split does not exist.
        """
        return value_of_split(f"--task={self.kind}", split, self._paths)

    def _is_conll(self, path: Path, conll: bool | None) -> bool:
        return self.kind == "tag" and conll is not False and suffix_of(path) not in NAMED_COLUMNS

    def _needed(self, split: str) -> tuple[str, ...]:
        """Returns the columns that the file of a split must have.

        These are all columns but the id and, in the test split, the label.
        """
        optional = {self.columns.id, self.columns.label if split == "test" else None}
        return tuple(name for name in self.columns.named() if name not in optional)

    def _has_several_labels(self, table: Table | None) -> bool:
        if self.kind != "classify" or self._separator or table is None:
            return self.kind == "classify" and bool(self._separator)
        label = self.columns.label
        rows = table.rows_and_errors()
        first: Any = next((values for _, values in rows if isinstance(values, dict)), {})
        return label is not None and isinstance(first.get(label), list)

    def _rows(self, split: str) -> Iterator[tuple[str, Row, str]]:
        """Yields (example id, row, problem) for each row in the file of a split.

        `problem` is "" or, if the row is malformed, says what is wrong; a malformed row has no
        values. If there is no column of ids, or the row is malformed, the id is the index of the
        row, counted from 0.
        """
        id = self.columns.id
        rows = ((t, row) for t in self._tables[split] for row in t.rows_and_errors())
        for count, (table, (number, values)) in enumerate(rows):
            if isinstance(values, ValueError):
                yield str(count), Row(table.path, number, {}), str(values)
                continue
            if table.is_text and not values["text"].strip() and not self._reports_bad_rows:
                continue
            name = str(count) if id is None else values.get(id, count)
            yield str(name), Row(table.path, number, values), ""

    def _converted(self, split: str, convert: Callable[[str, Row], Example]) -> Iterator[Example]:
        """Converts each row of a split by the function `convert` from (id, row) to an example.

        A row that is malformed, or for which `convert` raises ValueError, becomes an example whose
        `problem` says why. If bad rows are reported and the row can be converted without its label,
        so that its text can be predicted, the example has the content of the row.
        """
        for id, row, problem in self._rows(split):
            example = Example(id=id, where=row.where, row=row.values, problem=problem)
            if not problem:
                try:
                    example = convert(id, row)
                except ValueError as error:
                    example = dataclasses.replace(example, problem=str(error))
                    label = self.columns.label
                    if self._reports_bad_rows and label in row.values:
                        with contextlib.suppress(ValueError):
                            read = convert(id, row._replace(values=row.values | {label: None}))
                            example = dataclasses.replace(read, row=row.values, problem=str(error))
            yield example


def data_files(path: Path, kind: CustomKind) -> list[Path]:
    """Returns [`path`] or, if `path` is a folder, its files that tasks of the kind `kind` read.

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
                f"warning: {place(table.path, row)} seems to be quoted as in CSV, but quotes have "
                "no meaning in TSV and are read as text: save the table as CSV."
            )
    return ""
