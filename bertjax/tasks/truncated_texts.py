"""Counts the texts that may be truncated, to tell the user about them."""

from collections.abc import Sequence

from bertjax.data.batches.features import Feature
from bertjax.tasks.task import Example, Task


class TruncatedTexts:
    """Counts the examples encoded as `max_length` tokens, whose texts may have been truncated.

    If the task splits long texts into windows, as tagging and question answering always do, no
    example is counted.

    Args:
        task: the task that encodes the examples.
        max_length: maximum number of tokens per sequence.
    """

    def __init__(self, task: Task, max_length: int):
        self._can_read_windows = hasattr(task, "doc_stride")
        self._is_windowed = task.reads_windows
        self._max_length = max_length
        self._count, self._first = 0, ""

    def add(self, example: Example, features: Sequence[Feature]) -> None:
        """Counts `example`, which was encoded as `features`, if it has the maximum length."""
        longest = max((max(feature.lengths) for feature in features), default=0)
        if longest >= self._max_length and not self._is_windowed:
            self._count += 1
            self._first = self._first or example.where

    @property
    def message(self) -> str:
        """A sentence with the number of counted examples and the row of the first; "" if none."""
        if not self._count:
            return ""
        remedy = " (--doc_stride reads them in windows)" if self._can_read_windows else ""
        return (
            f"{self._count:,} texts have max_length={self._max_length} tokens or more, and longer "
            f"ones are truncated{remedy}. The first of these texts: {self._first}"
        )
