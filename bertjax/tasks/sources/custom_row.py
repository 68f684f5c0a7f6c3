"""Checks and converts the values in a row of a user's file; error messages name the row."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.row_readers import check_utf8, place, read_number


def shorten(value: Any) -> str:
    """Converts a value of a row to JSON text for an error message, cut after 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = f"a nested {type(value).__name__}"
    if len(text) <= 60:
        return text
    # A string is closed after the dots, so that what follows in the message is not read as its end.
    return f"{brief(text[:60])}...{text[-1] if isinstance(value, str) else ''}"


class Row(NamedTuple):
    """One row of a user's file.

    All methods of `Row` raise ValueError if a value has a wrong type; the message names the row.

    Attributes:
        path: the path of the file.
        number: the number of the row.
        values: {column: value}.
    """

    path: Path
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """The path of the file and the number of the row, for error messages."""
        return place(self.path, self.number)

    def text(self, column: str) -> str:
        """Returns the text in the column `column` of the row.

        Raises:
            ValueError: the row lacks the column, or its value is not a text or is empty.
        """
        if column not in self.values:
            raise ValueError(
                f"{self.where} has no column {brief(column, 60)!r}, only "
                f"{brief(', '.join(self.values))}. Correct the row."
            )
        return self._checked(self.values[column], column)

    def texts(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the text in each of `columns` or, if it is one column, the texts in its list."""
        if len(columns) == 1:
            return self.listed(columns[0])
        return tuple(self.text(column) for column in columns)

    def listed(self, column: str) -> tuple[str, ...]:
        """Returns the list of texts in the column `column` of the row, as a tuple.

        Raises:
            ValueError: the value is not a list, or is empty, or an element is not a text or is
                empty.
        """
        listed = self.values.get(column)
        if not isinstance(listed, list) or not listed:
            raise ValueError(
                f"{self.where}: {brief(column, 60)!r} should be a list of texts, but is "
                f"{shorten(listed)}. Correct the row."
            )
        return tuple(self._checked(value, column) for value in listed)

    def _checked(self, value: Any, column: str) -> str:
        if not isinstance(value, str):
            raise ValueError(
                f"{self.where}: {brief(column, 60)!r} should be a text, but is {shorten(value)}. "
                "Correct the row."
            )
        if not value or value.isspace():
            raise ValueError(
                f"{self.where}: the text in {brief(column, 60)!r} is empty; fill it or remove the "
                "row."
            )
        # JSON can contain a lone surrogate, such as "\ud83d".
        check_utf8(value, self.path, self.number)
        return value

    def name(self, value: Any) -> str:
        """Converts the label `value` to a class name; numbers and booleans become their JSON text.

        The JSON numbers 3 and 3.0 are one class, "3": pandas writes whole numbers as floats if a
        value is missing in their column.

        Raises:
            ValueError: the label is neither a text that is not blank, nor a finite number or a
                boolean.
        """
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return json.dumps(value)
        raise ValueError(
            f"{self.where}: the label {shorten(value)} is not the name of a class. For several "
            "labels per example, write lists in every row, or give --label_separator."
        )

    def names(self, values: Any) -> list[str]:
        """Converts `values`, a list of labels or tags, to a list of class names.

        Raises:
            ValueError: `values` is not a list, or `name` rejects an element.
        """
        if not isinstance(values, list):
            raise ValueError(f"{self.where}: labels should be a list, but are {shorten(values)}.")
        return [self.name(value) for value in values]

    def number_of(self, value: Any) -> float:
        """Converts the label `value`, given as a text or as a JSON number, to a float.

        Raises:
            ValueError: the label is not a number.
        """
        number = None if isinstance(value, bool | list | dict) else read_number(str(value))
        if number is None:
            raise ValueError(
                f"{self.where}: the label {shorten(value)} is not a number like 1250.5, with a "
                "decimal point, but without separators of thousands, currency or unit. To train "
                "on names of classes, use --task=classify."
            )
        return number

    def choice_of(self, value: Any, columns: Columns, count: int) -> int:
        """Converts the label `value`, the index, text or letter of a choice, to its index.

        Indices count from 0, letters from a. The example has `count` choices, whose texts are in
        the columns `columns.choices`.

        Raises:
            ValueError: the label is none of these.
        """
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
            f"{self.where}: the label {shorten(value)} is none of the {count} choices: write the "
            f"index, 0 to {count - 1}, the text or the letter of the correct choice."
        )
