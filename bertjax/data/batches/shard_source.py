"""Records of several ArrayRecord shards, with errors that name the damaged shard."""

import itertools
from collections.abc import Sequence
from typing import Any, SupportsIndex

import grain

from bertjax.data.records import Row, count_or_none, decode_row


class Records(grain.sources.ArrayRecordDataSource):
    """The records of several shards; their indices continue from one shard to the next.

    Raises:
        ValueError: a record cannot be read, or a shard cannot be opened; the message names the
            shard.
    """

    def __init__(self, paths: Sequence[str]):
        self._shards = [str(path) for path in paths]
        try:
            super().__init__(self._shards)
        except Exception as error:  # array_record raises several kinds
            raise ValueError(self._message(None, error)) from error

    def __getitem__(self, record_key: SupportsIndex) -> Any:
        try:
            return self.decoded(super().__getitem__(record_key))
        except Exception as error:
            raise ValueError(self._message(int(record_key), error)) from error

    def decoded(self, record: bytes) -> Any:
        """Returns the item that the bytes of a record encode; here, the bytes themselves."""
        return record

    def _message(self, key: int | None, error: Exception) -> str:
        where = self._where(key)
        reason = " ".join(str(error).split())[:200]
        return (
            f"{where} cannot be read, because it is damaged ({reason}): copy this file again, or "
            "run the prepare command again, which writes it again."
        )

    def _where(self, key: int | None) -> str:
        """Returns the place of the damage for an error message.

        The place is the first shard that cannot be opened; else the shard of the record with the
        index `key`, and the index of this record in the shard. All shards are opened to count their
        records, but only after an error.
        """
        counts = [count_or_none(path) for path in self._shards]
        for path, count in zip(self._shards, counts, strict=True):
            if count is None:
                return path
        ends = list(itertools.accumulate(count or 0 for count in counts))
        for path, count, end in zip(self._shards, counts, ends, strict=True):
            if key is not None and key < end:
                return f"Row {key - end + (count or 0)} of {path}"
        return f"One of {len(self._shards)} shards, the first of which is {self._shards[0]},"


class Rows(Records):
    """The rows of several shards of prepared data, see `decode_row`."""

    def decoded(self, record: bytes) -> Row:
        """Returns the row that the bytes of a record encode."""
        return decode_row(record)
