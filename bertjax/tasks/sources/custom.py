"""Examples from the user's own files: CSV, TSV, JSON lines; CoNLL's columns for tagging.

Files are read as examples are asked for, a row at a time, so their size does not matter.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

from bertjax.tasks.sources.columns import Columns, CustomKind, check_columns, find_columns
from bertjax.tasks.sources.conll import Sentence, order_tags, read_conll, scheme_of, tagged_example
from bertjax.tasks.sources.official_files import path_of_split
from bertjax.tasks.sources.table_files import JSON_SUFFIXES, Table, check_utf8, place, read_number
from bertjax.tasks.task import Example, Source

# More classes than any such task has; more likely the labels are numbers or texts.
MAX_LABELS = 1000


class CustomSource:
    """Examples from files of the user's own.

    Attributes:
        kind: classify, regress, tag or choice.
        splits: those that a file was given for.
        columns: names of the columns, given or guessed.
        note: what was guessed, for the user to read; may be empty.
        multi_label: whether an example has several labels: they are apart by a separator, or lists
            in JSON.
    """

    def __init__(
        self,
        kind: CustomKind,
        *,
        train: Path | str | None = None,
        dev: Path | str | None = None,
        test: Path | str | None = None,
        columns: Columns | None = None,
        label_separator: str | None = None,
    ):
        """Opens the files and finds their columns.

        Args:
            kind: of the task.
            train, dev, test: the files; at least one.
            columns: those to read; what is not named is guessed from the first file.
            label_separator: what parts the labels of an example, if it has several.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: no file was given, or one has not the columns.
        """
        if kind not in get_args(CustomKind):
            raise ValueError(f"Unknown kind {kind!r}: {', '.join(get_args(CustomKind))}.")
        given = {"train": train, "dev": dev, "test": test}
        self.kind: CustomKind = kind
        self._paths = {
            split: Path(path).expanduser() for split, path in given.items() if path is not None
        }
        if not self._paths:
            raise ValueError(f"--task={kind} reads your own files: give --train, --dev or --test.")
        self.splits = tuple(self._paths)
        self.columns, self.note = columns or Columns(), ""
        self._separator = label_separator
        self._tables = {
            split: Table(path) for split, path in self._paths.items() if not self._is_conll(path)
        }
        if self._tables:
            first, *rest = self._tables
            self.columns, self.note = find_columns(
                self._tables[first], kind, self.columns, labelled=first != "test"
            )
            for split in rest:
                check_columns(self._tables[split], self._needed(split))
        self.multi_label = self._has_several_labels()

    @property
    def description(self) -> dict[str, Any]:
        """What `task.json` keeps, so that files to predict are read as those of training were."""
        return {
            "columns": dataclasses.asdict(self.columns),
            "label_separator": self._separator,
        }

    @property
    def num_choices(self) -> int:
        """How many choices the first example has."""
        return len(next(self.examples(self.splits[0])).choices)

    def examples(self, split: str) -> Iterator[Example]:
        """The examples of a split in the order of its file, read as they are asked for.

        Raises:
            ValueError: there is no such split, or a row is damaged; it is named.
        """
        path = path_of_split(f"--task={self.kind}", split, self._paths)
        if self.kind != "tag":
            return self._texts(split)
        if split not in self._tables:
            return read_conll(path)
        scheme = scheme_of(sentence.tags or () for _, sentence in self._sentences(split))
        return (
            tagged_example(id, path, sentence, scheme) for id, sentence in self._sentences(split)
        )

    def _is_conll(self, path: Path) -> bool:
        if self.kind != "tag" or path.suffix.lower() in JSON_SUFFIXES:
            return False
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        return True

    def _needed(self, split: str) -> tuple[str, ...]:
        """Columns that a file must have; ids may be missing, and labels in a test file."""
        optional = {self.columns.id, self.columns.label if split == "test" else None}
        return tuple(name for name in self.columns.named() if name not in optional)

    def _has_several_labels(self) -> bool:
        if self.kind != "classify" or self._separator:
            return self.kind == "classify"
        label = self.columns.label
        _, first = next(next(iter(self._tables.values())).rows(), (0, {}))
        return label is not None and isinstance(first.get(label), list)

    def _rows(self, split: str) -> Iterator[tuple[str, "_Row"]]:
        """(id, row) of each row."""
        table, id = self._tables[split], self.columns.id
        for count, (number, values) in enumerate(table.rows()):
            name = str(count) if id is None else values.get(id, count)
            yield str(name), _Row(table.path, number, values)

    def _texts(self, split: str) -> Iterator[Example]:
        columns = self.columns
        assert columns.text is not None
        for id, row in self._rows(split):
            pair = None if columns.pair is None else row.text(columns.pair)
            choices = ()
            if self.kind == "choice":
                start = "" if pair is None else f"{pair} "
                choices = tuple(start + choice for choice in row.texts(columns.choices))
                pair = None
            yield Example(
                id=id,
                where=row.where,
                text=row.text(columns.text),
                pair=pair,
                choices=choices,
                label=self._label(row, split, len(choices)),
            )

    def _sentences(self, split: str) -> Iterator[tuple[str, Sentence]]:
        columns = self.columns
        assert columns.text is not None
        for id, row in self._rows(split):
            words = row.listed(columns.text)
            given = row.values.get(columns.label) if columns.label is not None else None
            if given is None and split != "test":
                raise ValueError(f"{row.where} has no tags in {columns.label!r}: write a list.")
            tags = None if given is None else tuple(row.names(given))
            if tags is not None and len(tags) != len(words):
                raise ValueError(f"{row.where} has {len(words)} words, but {len(tags)} tags.")
            yield id, Sentence(row.number, words, tags)

    def _label(
        self, row: "_Row", split: str, num_choices: int
    ) -> str | float | int | tuple[str, ...] | None:
        column = self.columns.label
        value = None if column is None else row.values.get(column)
        empty = value is None or (isinstance(value, str) and not value.strip())
        if empty and (value is None or not self.multi_label):
            if split == "test":
                return None
            raise ValueError(
                f"{row.where} has no label in column {column!r}: give one, or remove the row."
            )
        if self.kind == "regress":
            return row.number_of(value)
        if self.kind == "choice":
            return row.choice_of(value, self.columns, num_choices)
        if not self.multi_label:
            return row.name(value)
        if isinstance(value, str) and self._separator:
            value = [part for part in value.split(self._separator) if part.strip()]
        return tuple(row.names(value))


class _Row(NamedTuple):
    """The values of a row, read with errors that name it."""

    path: Path
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        return place(self.path, self.number)

    def text(self, column: str) -> str:
        """A text that is not empty."""
        if column not in self.values:
            raise ValueError(
                f"{self.where} has no {column!r}; it has {', '.join(self.values)[:200]}."
            )
        return self._checked(self.values[column], column)

    def texts(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The texts of several columns, or of the list in a single one."""
        if len(columns) == 1:
            return self.listed(columns[0])
        return tuple(self.text(column) for column in columns)

    def listed(self, column: str) -> tuple[str, ...]:
        """The texts in a list."""
        listed = self.values.get(column)
        if not isinstance(listed, list) or not listed:
            raise ValueError(
                f"{self.where}: {column!r} should be a list of texts, but is {_short(listed)}."
            )
        return tuple(self._checked(value, column) for value in listed)

    def _checked(self, value: Any, column: str) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{self.where}: {column!r} should be a text, but is {_short(value)}.")
        if not value or value.isspace():
            raise ValueError(
                f"{self.where}: the text in {column!r} is empty; fill it or remove the row."
            )
        # JSON can write half of a character: "\ud83d".
        check_utf8(value, self.path, self.number)
        return value

    def name(self, value: Any) -> str:
        """The name of a class; numbers and truth values as JSON writes them."""
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, bool | int | float):
            return json.dumps(value)
        raise ValueError(
            f"{self.where}: the label {_short(value)} is no name of a class. Several labels are "
            "lists in every row, or names with a --label_separator between them."
        )

    def names(self, values: Any) -> list[str]:
        """The names in a list of classes or tags."""
        if not isinstance(values, list):
            raise ValueError(f"{self.where}: labels should be a list, but are {_short(values)}.")
        return [self.name(value) for value in values]

    def number_of(self, value: Any) -> float:
        """A number, written or as JSON has it."""
        number = None if isinstance(value, bool | list | dict) else read_number(str(value))
        if number is None:
            raise ValueError(
                f"{self.where}: the label {_short(value)} is not a number, as --task=regress "
                "needs: write 3.5 for example. Names of classes are for --task=classify."
            )
        return number

    def choice_of(self, value: Any, columns: Columns, count: int) -> int:
        """Which choice is right: its number from 0, its text, or its letter."""
        written = self.name(value)
        if written.isdecimal() and int(written) < count:
            return int(written)
        texts = [text.strip() for text in self.texts(columns.choices)]
        if texts.count(written) == 1:
            return texts.index(written)
        letters = "abcdefghijklmnopqrstuvwxyz"[:count]
        if len(written) == 1 and written.lower() in letters:
            return letters.index(written.lower())
        raise ValueError(
            f"{self.where}: the label {_short(value)} is none of the {count} choices: write its "
            f"number, 0 to {count - 1}, its text, or its letter."
        )


def learn_labels(source: Source) -> tuple[str, ...]:
    """The labels that occur in training, sorted; numbers as numbers, tags as `order_tags` does.

    Raises:
        ValueError: there are none, only one, or so many that they cannot be classes.
    """
    seen: set[str] = set()
    tags = False
    for example in source.examples("train"):
        label = example.label
        tags = bool(example.words)
        seen.update(label if isinstance(label, tuple) else (str(label),))
        if len(seen) > MAX_LABELS:
            raise ValueError(
                f"{example.where}: more than {MAX_LABELS:,} different labels so far, the latest "
                f"{_short(label)}. If they are numbers, use --task=regress; if they are texts, "
                "name another column with --label_column."
            )
    if len(seen) < 2:
        only = f"a single label, {min(seen)!r}" if seen else "no labels"
        raise ValueError(f"Training has {only}: a classifier needs examples of two at least.")
    if tags:
        return order_tags(seen)
    numbers = {label: read_number(label) for label in seen}
    if None in numbers.values():
        return tuple(sorted(seen))
    return tuple(sorted(seen, key=lambda label: (numbers[label], label)))


def _short(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 60 else f"{written[:60]}..."
