"""One row of the user's own files, converted with error messages that name it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.table_files import check_utf8, place, read_number


def shorten(value: Any) -> str:
    """A value as JSON for an error message, at most 60 characters and an ellipsis."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."


class Row(NamedTuple):
    """The values of a row by column.

    The methods raise ValueError with the row and the column if a value has a wrong type.
    """

    path: Path
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """File and row, for error messages."""
        return place(self.path, self.number)

    def text(self, column: str) -> str:
        """Returns a text that is not empty."""
        if column not in self.values:
            raise ValueError(
                f"{self.where} has no {column!r}; it has {', '.join(self.values)[:200]}. Correct "
                "the row."
            )
        return self._checked(self.values[column], column)

    def texts(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the texts of several columns, or the list in a single column."""
        if len(columns) == 1:
            return self.listed(columns[0])
        return tuple(self.text(column) for column in columns)

    def listed(self, column: str) -> tuple[str, ...]:
        """Returns a list of texts."""
        listed = self.values.get(column)
        if not isinstance(listed, list) or not listed:
            raise ValueError(
                f"{self.where}: {column!r} should be a list of texts, but is {shorten(listed)}."
            )
        return tuple(self._checked(value, column) for value in listed)

    def _checked(self, value: Any, column: str) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{self.where}: {column!r} should be a text, but is {shorten(value)}.")
        if not value or value.isspace():
            raise ValueError(
                f"{self.where}: the text in {column!r} is empty; fill it or remove the row."
            )
        # JSON can write half of a character: "\ud83d".
        check_utf8(value, self.path, self.number)
        return value

    def name(self, value: Any) -> str:
        """Returns the name of a class; numbers and booleans as JSON writes them."""
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, bool | int | float):
            return json.dumps(value)
        raise ValueError(
            f"{self.where}: the label {shorten(value)} is not the name of a class. For several "
            "labels per example, write lists in every row, or give --label_separator."
        )

    def names(self, values: Any) -> list[str]:
        """Returns the names in a list of classes or tags."""
        if not isinstance(values, list):
            raise ValueError(f"{self.where}: labels should be a list, but are {shorten(values)}.")
        return [self.name(value) for value in values]

    def number_of(self, value: Any) -> float:
        """Returns a number, written as text or as a JSON number."""
        number = None if isinstance(value, bool | list | dict) else read_number(str(value))
        if number is None:
            raise ValueError(
                f"{self.where}: the label {shorten(value)} is not a number, as --task=regress "
                "needs: write 3.5, for example. For names of classes, use --task=classify."
            )
        return number

    def choice_of(self, value: Any, columns: Columns, count: int) -> int:
        """Returns the index of the correct choice, given as number from 0, text or letter."""
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
            f"{self.where}: the label {shorten(value)} is none of the {count} choices: write its "
            f"number, 0 to {count - 1}, its text, or its letter."
        )
