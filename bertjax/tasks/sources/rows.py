"""`Row`, one row of a user's file, whose values are read as texts, classes, numbers and lists."""

import json
import math
import re
import string
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.sources.tables import check_utf8, read_number, row_name, suffix_of

SQL_MISSING = r"\N"


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


def is_blank(text: str) -> bool:
    """Returns whether a text has only spaces and characters that have no width, such as U+200B."""
    return not text or all(
        character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text
    )


class Row(NamedTuple):
    """One row of a user's file, {column: value} in `values`.

    All methods raise ValueError if a value has a wrong type; the message names the row.
    """

    path: Path
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """The path of the file and the number of the row, for error messages."""
        return row_name(self.path, self.number)

    def text(self, column: str) -> str:
        """Returns the text in a column, which must not be empty."""
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
        """Returns the texts in the list in a column, of which there must be at least one."""
        listed = self.values.get(column)
        if not isinstance(listed, list) or not listed:
            raise ValueError(
                f"{self.where}: {brief(column, 60)!r} should be a list of texts, but is "
                f"{shorten(listed)}. Correct the row."
            )
        return tuple(self._checked(value, column, i) for i, value in enumerate(listed, 1))

    def _checked(self, value: Any, column: str, entry: int = 0) -> str:
        if not isinstance(value, str):
            nested = isinstance(value, dict | list) and suffix_of(self.path) == ".json"
            remedy = " pandas writes one object per row with to_json(orient='records')." * nested
            raise ValueError(
                f"{self.where}: {brief(column, 60)!r} should be a text, but is {shorten(value)}. "
                f"Correct the row.{remedy}"
            )
        if is_blank(value) or value == SQL_MISSING:
            state = "empty" if not value or value.isspace() else f"{value!a}, which shows nothing"
            state = f"{value}, a missing value of SQL" if value == SQL_MISSING else state
            what = f"entry {entry} of the list" if entry else "the text"
            remedy = "remove it, and its tag, if any" if entry else "fill it or remove the row"
            raise ValueError(
                f"{self.where}: {what} in {brief(column, 60)!r} is {brief(state, 60)}; {remedy}."
            )
        # JSON can contain a lone surrogate, such as "\ud83d".
        check_utf8(value, self.path, self.number)
        return value

    def name(self, value: Any) -> str:
        """Converts a label to a class name; numbers and booleans become their JSON text.

        The JSON numbers 3 and 3.0 are one class, "3": pandas writes whole numbers as floats if a
        value is missing in their column.
        """
        if isinstance(value, str) and value.strip():
            check_utf8(value, self.path, self.number)
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
        """Converts a list of labels or tags to a list of class names."""
        if not isinstance(values, list):
            raise ValueError(
                f"{self.where}: labels should be a list, but are {shorten(values)}. Write a list."
            )
        return [self.name(value) for value in values]

    def number_of(self, value: Any) -> float:
        """Converts a label, given as a text or as a JSON number, to a float."""
        number = None if isinstance(value, bool | list | dict) else read_number(str(value))
        if number is None:
            raise ValueError(
                f"{self.where}: the label {shorten(value)} is not a number like 1250.5, with a "
                "decimal point, but without separators of thousands, currency or unit. To train "
                "on names of classes, use --task=classify."
            )
        return number

    def scores(self, columns: tuple[str, ...], count: int) -> tuple[float, ...]:
        """Returns the `count` finite numbers in `columns`, or in the list in a single column."""
        values: Any = [self.values.get(column) for column in columns]
        values = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        if columns and len(values) != count:
            raise ValueError(
                f"{self.where} has {len(values)} scores in {brief(', '.join(columns), 60)!r}, but "
                f"{count} texts to compare: give a score of each, of the positive first."
            )
        numbers = [None if type(x) is bool else read_number(str(x)) for x in values]
        if None in numbers:
            raise ValueError(
                f"{self.where}: the score {shorten(values[numbers.index(None)])} in "
                f"{brief(', '.join(columns), 60)!r} is not a finite number: correct it, or remove "
                "the row."
            )
        return tuple(number for number in numbers if number is not None)

    def choice_keys(self, value: Any, columns: tuple[str, ...]) -> dict[str, int]:
        """Returns {way: index of the choice} of the ways in which a label may name a choice.

        The ways are "indices" from 0, "numbers" from 1, "letters" and "texts". Files with letters
        may also have numbers from 1.
        """
        written = self.name(value)
        texts = [text.strip() for text in self.texts(columns)]
        keys: dict[str, int] = {}
        if re.fullmatch(r"\d{1,3}(\.0)?", written, re.ASCII):
            number = int(float(written))
            keys |= {"indices": number, "numbers": number - 1, "letters": number - 1}
        elif len(written) == 1:
            keys["letters"] = string.ascii_lowercase.find(written.lower())
        keys = {way: index for way, index in keys.items() if 0 <= index < len(texts)}
        if texts.count(written) == 1:
            keys["texts"] = texts.index(written)
        if not keys:
            raise ValueError(
                f"{self.where}: the label {shorten(value)} is none of the {len(texts)} choices: "
                f"write the index, 0 to {len(texts) - 1}, the text or the letter of the correct "
                "choice."
            )
        return keys
