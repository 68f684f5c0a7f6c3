"""The user's own files: tables with named columns, or CoNLL's columns, as examples.

In tagging, a row holds words and tags, or a running text and a list of entities, each of which is
{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"], such that text[start:end] is the entity.
Texts without such a list can be given to a model for prediction, but not for training or
evaluation.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.files import brief
from bertjax.base.scratch import scratch_folder
from bertjax.tasks.sources.columns import (
    Columns,
    OwnKind,
    check_columns,
    find_columns,
    score_of,
)
from bertjax.tasks.sources.conll import in_iob2, read_conll, text_example, utf16_hint
from bertjax.tasks.sources.rows import SQL_MISSING, Row, shorten
from bertjax.tasks.sources.tables import (
    CSV_SUFFIXES,
    NAMED_COLUMNS,
    TEXT_SUFFIXES,
    TSV_SUFFIXES,
    Table,
    files_in,
    json_value,
    row_name,
    split_named,
    suffix_of,
    unread_files,
)
from bertjax.tasks.sources.unused import UnusedColumns
from bertjax.tasks.tagging import NO_TAG
from bertjax.tasks.task import MISSING, BadRows, Example, Source


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
    row, such as a list of them or a dataset of Hugging Face's `datasets`, whose class ids become
    the names of the classes. Of a `DatasetDict`, the split is written that the name of `file` says.

    Raises:
        ValueError: `rows` has another type, its columns have different lengths or equal names, it
            is empty, a class id has no name, or a `DatasetDict` lacks the split.
    """
    if isinstance(rows, str | Path):
        return str(rows)
    parts = [*rows.values()] if callable(getattr(rows, "values", None)) else []
    if parts and all(hasattr(part, "features") for part in parts):
        return as_file(rows[split_named([*rows], file.stem, "The DatasetDict")], file)
    features: Any = getattr(rows, "features", None)
    types = features.to_dict() if hasattr(features, "to_dict") else {}
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
    lines = []
    for number, record in enumerate(records, 1):
        try:
            row = {str(key): json_value(value, types.get(key)) for key, value in record.items()}
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
        lines.append(json.dumps(row) + "\n")
    file.write_text("".join(lines), encoding="utf-8")
    return str(file)


# Usual suffixes of files with CoNLL's columns; only in a folder do files need one of them.
CONLL_SUFFIXES = (".conll", ".conll2003", ".conllu", ".bio", ".iob", ".iob2")


# Kinds whose splits may have different columns, such as scored pairs for evaluation alone.
PER_SPLIT = ("embed", "rerank")


class TableSource(Source):
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
        keep: bool = True,
        single_texts: bool = False,
    ):
        """Reads the headers of the files and finds the columns of text, labels and so on.

        `bad_rows` and `keep` are as for `Source`.

        Args:
            train: the file of the train split, or a folder of files with the same columns; the
                same holds for `dev` and `test`.
            conll: whether the files of a tagging task have CoNLL's columns, except CSV, JSON and
                Parquet files, which never have; None: as True. Other tasks ignore this argument.
            columns: the column names; a name that is not set is guessed from the file of train, or
                else of dev, or else of test; of `PER_SPLIT`, from the file of each split, so that a
                model that is trained on pairs can be evaluated on scored pairs.
            label_separator: the string between the labels of an example with several labels; None:
                a text is one label.
            single_texts: for embeddings, whether the train split has one text per row, which is
                both texts of its example.

        Raises:
            FileNotFoundError: a file does not exist.
            ValueError: no file is given, a file lacks a column or has an unknown suffix, or a
                column cannot be guessed.
        """
        given = {"train": train, "dev": dev, "test": test}
        files = {x: Path(path).expanduser() for x, path in given.items() if path is not None}
        super().__init__(f"--task={kind}", files, bad_rows, keep=keep)
        if not files:
            raise ValueError(f"--task={kind} reads your own files: give --train, --dev or --test.")
        self.kind: OwnKind = kind
        self._single_texts = single_texts
        self._separator = label_separator
        self._classes: KnownClasses | None = None
        self._cut: dict[str, str] = {}  # split -> why entities are changed, with the first row
        self._parts = {split: data_files(path, kind) for split, path in files.items()}
        can_be_conll = kind == "tag" and conll is not False
        self._tables = {
            split: [Table(x) for x in parts if not can_be_conll or suffix_of(x) in NAMED_COLUMNS]
            for split, parts in self._parts.items()
        }
        tables = [table for tables in self._tables.values() for table in tables]
        notes = self._find_columns(columns or Columns())
        unread = (unread_files(path, self._parts[split]) for split, path in files.items())
        quoted = next(filter(None, (table.quoting_note() for table in tables)), "")
        self.note = "\n".join(filter(None, dict.fromkeys((*notes, quoted, *unread))))
        self.columns = next(iter(self._columns.values()))
        several = bool(label_separator)
        if tables and tables[0].is_typed and not several:
            row = next(iter(tables[0].first_rows), {})
            several = isinstance(row.get(self.columns.label or ""), list)
        self.multi_label = kind == "classify" and several

    def _find_columns(self, named: Columns) -> list[str]:
        """Finds the columns of each split, and returns messages about the guessed ones."""
        self._named = named
        self._columns, notes = dict.fromkeys(self.files, named), []
        missing = {split for split, tables in self._tables.items() if tables}
        for split, tables in self._tables.items():
            for table in tables:
                if split not in missing:
                    check_columns(table, self._needed(split))
                    continue
                own, labelled = self._named_in(split, named), split != "test"
                if self._single_texts and split == "train":
                    found, note = _find_text(table, own)
                else:
                    found, note = find_columns(table, self.kind, own, labelled=labelled)
                notes.append(note)
                found_for = {split} if self.kind in PER_SPLIT else set(self.files)
                self._columns |= dict.fromkeys(found_for, found)
                missing -= found_for
        return notes

    def _named_in(self, split: str, named: Columns) -> Columns:
        """Returns the named columns that the file of `split` must have.

        Of `PER_SPLIT`, a train file may lack a score that another file has; a dev or test file may
        lack more, but has both texts or neither of them.
        """
        if self.kind not in PER_SPLIT or "train" not in self._tables:
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
            scores=named.scores if set(named.scores) <= own else (),
            ignored=named.ignored,
        )

    def _needed(self, split: str) -> tuple[str, ...]:
        columns = self._columns[split]
        optional = {columns.id, columns.label if split == "test" else None}
        return tuple(name for name in columns.named() if name not in optional)

    @property
    def description(self) -> dict[str, Any]:
        """The column names and label separator used in training, for a saved model's task.json."""
        columns = dataclasses.asdict(self.columns)
        del columns["ignored"]
        return {"columns": columns, "label_separator": self._separator}

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
        if self.kind == "choice":
            return map(self._with_index, examples)
        return examples if self._classes is None else map(self._with_class, examples)

    @functools.cached_property
    def _choice_keys(self) -> str:
        """The way in which the labels of all files name the choices.

        If they do not tell it and there are only predictions to make, the examples have no labels,
        and `note` says so.
        """
        read = (
            example for split in self.splits for example in super(TableSource, self).examples(split)
        )
        labelled = [example for example in read if example.label is not None]
        try:
            return _way_of_keys(self, labelled)
        except ValueError as error:
            if self._bad_rows_are != "report":
                raise
            self.note = f"{self.note}\nwarning: {error} The labels are not read.".lstrip()
            return ""

    def keys_of(self, example: Example) -> dict[str, int]:
        """Returns what the label of an example of multiple choice may mean, {way: index}."""
        row = Row(Path(), 0, dict(example.row))
        return row.choice_keys(example.label, self.columns.choices)

    def _with_index(self, example: Example) -> Example:
        way = self._choice_keys
        label = None if example.label is None else self.keys_of(example).get(way)
        return dataclasses.replace(example, label=label)

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
        for first in super().examples(self.splits[0]):
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
        if not self._tables[split]:
            read = functools.partial(
                read_conll, counts=self.counts, split=split, columns=self._named
            )
            return itertools.chain.from_iterable(map(read, self._parts[split]))
        has_tags = self.kind == "tag" and self._columns[split].label is not None
        # The tag scheme depends on all tags, if there are any.
        return in_iob2(self._rows(split), self.counts, split) if has_tags else self._rows(split)

    def _rows(self, split: str) -> Iterator[Example]:
        """Converts each row of a split to an example, a bad row to an example with a `problem`.

        If bad rows are reported and only the label is bad, the example has the content of the row,
        so that its text can be predicted. Without a column of ids, the id is the index of the row.
        """
        columns, reports = self._columns[split], self._bad_rows_are == "report"
        kind = "" if self._single_texts and split == "train" else self.kind
        unused = UnusedColumns(self.files[split], kind, columns, self._named)
        rows = ((t, row) for t in self._tables[split] for row in t.rows_and_errors())
        for count, (table, (number, values)) in enumerate(rows):
            if isinstance(values, ValueError):
                where = row_name(table.path, number)
                yield Example(id=str(count), where=where, problem=str(values))
                continue
            if table.is_text and not values["text"].strip() and not reports:
                continue
            row = Row(table.path, number, values)
            unused.add(values)
            if reason := unused.says_to_leave_out(values):
                if split != "test":
                    self.counts.add(f"{split}: {reason}", row.where)
                    continue
                values = values | {columns.label or "": None}
                row = row._replace(values=values)
            id = str(count if columns.id is None else values.get(columns.id, count))
            try:
                yield self._example(split, id, row)
            except ValueError as error:
                example = Example(id=id, where=row.where)
                if reports and columns.label in values:
                    with contextlib.suppress(ValueError):
                        unlabelled = row._replace(values=values | {columns.label: None})
                        example = self._example(split, id, unlabelled)
                yield dataclasses.replace(example, row=values, problem=str(error))
        if split != "test":
            unused.check()

    def _example(self, split: str, id: str, row: Row) -> Example:
        """Converts `row` to an example; tags are kept as they are written.

        Raises:
            ValueError: the row is bad; the message names it.
        """
        columns, labelled = self._columns[split], split != "test"
        assert columns.text is not None
        if self.kind == "tag":
            example = _tagged(id, row, columns, labelled=labelled)
            if example.cut:
                reason = (
                    f"{split}: rows whose entities begin or end within a word (such as "
                    f"{example.words[example.cut[0]]!r} in {row.where}{utf16_hint(row)}), are "
                    "learnt as whole words, and count as wrong in the scores"
                )
                self.counts[self._cut.setdefault(split, reason)] += 1
            return dataclasses.replace(example, row=row.values)
        pair = None if columns.pair is None else row.text(columns.pair)
        if self.kind == "embed" and pair is None:
            pair = row.text(columns.text)
        choices = ()
        if self.kind == "choice":
            start = "" if pair is None else f"{pair} "
            choices = tuple(start + choice for choice in row.texts(columns.choices))
            pair = None
        elif listed := columns.negatives or columns.choices:
            single = len(listed) == 1 and not isinstance(row.values.get(listed[0]), list)
            if single:
                _refuse_written_list(row, row.values.get(listed[0]))
            choices = (row.text(listed[0]),) if single else row.texts(listed)
            if pair in choices:
                reason = f"{split}: rows with a hard negative that is their positive as well"
                self.counts.add(reason, row.where)
        return Example(
            id=id,
            where=row.where,
            row=row.values,
            text=row.text(columns.text),
            pair=pair,
            choices=choices,
            scores=row.scores(columns.scores, len(choices) + (pair is not None)),
            label=self._label(columns, row, labelled=labelled),
        )

    def _label(
        self, columns: Columns, row: Row, *, labelled: bool
    ) -> str | float | tuple[str, ...] | None:
        column = columns.label
        value = None if column is None else row.values.get(column)
        if self.kind == "rerank" and columns.negatives:
            return 1.0  # of the positive
        empty = value is None or (isinstance(value, str) and value.strip() in ("", SQL_MISSING))
        if empty and self._separator and column in row.values:
            return ()  # a DataFrame marks an empty cell of CSV by a missing value
        if empty and (value is None or not self.multi_label):
            if not labelled or column is None:
                return None
            raise ValueError(
                f"{row.where} has no label in column {brief(column, 60)!r}: add one, or remove "
                "the row."
            )
        if self.kind == "choice":
            row.choice_keys(value, columns.choices)
            return row.name(value)
        if self.kind != "classify":
            score = score_of(value) if self.kind in PER_SPLIT else None
            return row.number_of(value) if score is None else score
        _refuse_written_list(row, value)
        if not self.multi_label:
            return row.name(value)
        if isinstance(value, str) and self._separator:
            value = [part for part in value.split(self._separator) if part.strip()]
        return _distinct(tuple(row.names(value)))


def _way_of_keys(source: TableSource, examples: Sequence[Example]) -> str:
    """Returns the way in which all labels name choices.

    Raises:
        ValueError: there is no such way, or several, with different choices.
    """
    first: dict[frozenset[str], Example] = {}  # the first example with each set of ways
    for example in examples:
        first.setdefault(frozenset(source.keys_of(example)), example)
    ways = frozenset.intersection(*first) if first else frozenset(["indices"])
    if not ways:
        shown = ", ".join(f"{x.label!r} ({x.where})" for x in first.values())
        raise ValueError(
            f"{source.name}: the labels name the choices in several ways, {shown}: write "
            "indices from 0, numbers from 1, letters (also beside numbers from 1) or texts, but "
            "the same in all rows of all files."
        )
    if "indices" in ways and source.columns.choices[0].endswith("0"):
        ways -= {"numbers", "letters"}  # columns such as ending0 count from 0
    for example in examples:
        keys = source.keys_of(example)
        if len({keys[way] for way in ways}) > 1:
            raise ValueError(
                f"{example.where}: the label {example.label!r} may name one choice or another "
                f"({', '.join(sorted(ways))}), and no other label tells: write the labels in "
                "another way, such as letters (A, B and so on) or texts."
            )
    return min(ways)


def _find_text(table: Table, named: Columns) -> tuple[Columns, str]:
    """Finds the one column of texts, as that of a classifier, and that of ids."""
    found, note = find_columns(table, "classify", named, labelled=False, pairs=False)
    if others := {*found.named()} - {found.text, found.id, found.label}:
        raise ValueError(
            f"{table.path}: --loss simcse takes one text per row: leave out {', '.join(others)}."
        )
    return dataclasses.replace(found, label=None), note


# Lists as pandas, NumPy and Python write them into a cell, and JSON's.
_WRITTEN_LIST = re.compile(
    r"""\s*(?:\[[\d\s.,-]*\]|[\[({]\s*(['"]).*\1,?\s*[\])}])\s*""", re.DOTALL
)


def _refuse_written_list(row: Row, value: Any) -> None:
    if isinstance(value, str) and _WRITTEN_LIST.fullmatch(value):
        raise ValueError(
            f"{row.where}: {shorten(value)} is a list that was written as a text: write JSON lines "
            "or Parquet, which hold lists; labels in CSV may stand as a|b with --label_separator, "
            "and words and tags as JSON lists."
        )


def _tagged(id: str, row: Row, columns: Columns, *, labelled: bool) -> Example:
    """Converts a row with a list of words, or with a running text, as `text_example` does."""
    text, label = columns.text or "", columns.label
    row = _with_lists(row, text, label)
    if isinstance(row.values.get(text), str):
        example = text_example(id, row, text, label)
        if example.label is None and labelled:
            raise ValueError(
                f"{row.where} has no list of entities in {brief(label, 60)!r}: write [] for a text "
                "without entities."
            )
        return example
    words = row.listed(text)
    value = row.values.get(label) if label is not None else None
    if value is None and labelled:
        raise ValueError(f"{row.where} has no tags in {brief(label, 60)!r}: write a list of tags.")
    if isinstance(value, list):  # such as the id -1 of a class
        value = [NO_TAG if tag is None else tag for tag in value]
    tags = None if value is None else tuple(row.names(value))
    if tags is not None and len(tags) != len(words):
        raise ValueError(
            f"{row.where} has {len(words)} words, but {len(tags)} tags: write one tag per word."
        )
    return Example(id=id, where=row.where, words=words, label=tags)


def _with_lists(row: Row, text: str, label: str | None) -> Row:
    """Converts the cells of CSV that hold JSON lists, of words, tags or entities, to lists.

    Texts that merely begin with "[" remain; an empty label becomes None.
    """
    if suffix_of(row.path) not in CSV_SUFFIXES:
        return row
    values = dict(row.values)
    words = _json_list(values.get(text))
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        values[text] = words
    if label is not None and isinstance(values.get(label), str):
        values[label] = _json_list(values[label]) if values[label].strip() else None
    for column in {text, label} & values.keys():
        if not str(values[column]).strip("[]0123456789., "):
            continue  # a text such as [1]
        _refuse_written_list(row, values[column])
    return row._replace(values=values)


def _json_list(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


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


# What programs and people write where a label is missing, in lower case.
PLACEHOLDERS = MISSING | {"-", "--", "?", "_", "-1", "-100"}
# The values of multi-hot lists, as names of labels.
MULTI_HOT = frozenset({"0", "1", "0.0", "1.0", "false", "true"})
# A whole number as it is usually written, or as pandas writes it in a column of floats.
_WHOLE = re.compile(r"(0|-?[1-9]\d*)(?:\.0)?", re.ASCII)


class KnownClasses:
    """Finds the class, one of `names`, of a label that another program writes in another way.

    It compares whole numbers, such as 1 and 1.0, and truth values, such as true and TRUE.
    """

    def __init__(self, names: Iterable[str]):
        self._names = frozenset(names)
        # A number or truth value -> the classes that it may be.
        self._written: dict[str, list[str]] = {}
        for name in sorted(self._names):
            if value := _value(name):
                self._written.setdefault(value, []).append(name)
        self._classes = {key: found[0] for key, found in self._written.items() if len(found) == 1}

    def alike(self) -> list[str]:
        """Returns classes that are written in several ways, such as ["1", "1.0"], or [].

        Other ways are other cases, spaces, hyphens, underscores, and forms of Unicode.
        """
        spelt: dict[str, list[str]] = {}
        for name in sorted(self._names):
            letters = unicodedata.normalize("NFKC", name).casefold()
            key = _value(name) or re.sub(r"[\s_\u200b-\u200f\ufeff-]", "", letters)
            spelt.setdefault(key, []).append(name)
        return next((names for names in spelt.values() if len(names) > 1), [])

    def of(self, label: Any) -> Any:
        """Returns the class of a label, or of each of a tuple; unknown labels stay as they are.

        A label that marks a missing one becomes None.
        """
        if isinstance(label, tuple):
            return _distinct(tuple(map(self.of, label)))
        if not isinstance(label, str) or label in self._names:
            return label
        if label.lower() in PLACEHOLDERS:
            return None
        return self._classes.get(_value(label), label)


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Removes repetitions, but not from multi-hot lists, which are refused for their length."""
    return names if MULTI_HOT.issuperset(names) else tuple(dict.fromkeys(names))


def _value(name: str) -> str:
    """Returns the whole number or truth value that `name` writes, in one form, or ""."""
    if name.lower() in ("true", "false"):
        return name.lower()
    found = _WHOLE.fullmatch(name)
    return found[1] if found else ""
