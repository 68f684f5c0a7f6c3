"""Reads the user's own files: tables in several formats, or CoNLL's columns for tagging.

The files are read one row at a time, so that a file may be larger than the memory.
"""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bertjax.tasks.sources.bad_rows import BadRows
from bertjax.tasks.sources.columns import (
    Columns,
    CustomKind,
    check_columns,
    find_columns,
    find_pair_columns,
)
from bertjax.tasks.sources.conll import read_conll, tagged_example
from bertjax.tasks.sources.custom_row import Row
from bertjax.tasks.sources.official_files import reset_counts, value_of_split
from bertjax.tasks.sources.own_files import OwnFiles
from bertjax.tasks.sources.row_examples import KnownClasses, RowExamples
from bertjax.tasks.sources.row_readers import place
from bertjax.tasks.sources.table_files import (
    NAMED_COLUMNS,
    TEXT_SUFFIXES,
    TSV_SUFFIXES,
    Table,
    files_in,
    suffix_of,
    unread_files,
)
from bertjax.tasks.sources.tagged_text import utf16_hint
from bertjax.tasks.tag_schemes import scheme_of
from bertjax.tasks.task import Example

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
