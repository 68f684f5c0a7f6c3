"""The rows of several ArrayRecord shards as one data source, whose errors name the shard."""

import bisect
import itertools
import re
import threading
from collections.abc import Sequence
from typing import SupportsIndex

from bertjax.base import addresses
from bertjax.base.files import brief
from bertjax.data.records import Row, ShardReader, count_or_none, decode_row

# How array_record's messages name a failed call of the operating system: "pread() failed: ...".
_FAILED_CALL = re.compile(r"\w\(\) failed: ")
# Files that a run opens besides the shards: checkpoints, logs, libraries, connections.
_OTHER_FILES = 128
_LEAST_SHARDS = 16


class Rows:
    """Data source of the rows in several shards, whose indices continue from shard to shard.

    Args:
        paths: the ArrayRecord files of the shards, in order.

    Raises:
        OSError: a shard cannot be read: the file is missing, the user lacks permission, or the disk
            or bucket has an error; the message names the shard.
        ValueError: a shard or one of its records is damaged; the message names the shard.
    """

    def __init__(self, paths: Sequence[str]):
        self._shards = [str(path) for path in paths]
        # The readers of the shards that are open, the least recently opened one first.
        self._readers: dict[int, ShardReader] = {}
        self._most_open = files_to_keep_open(len(self._shards))
        self._lock = threading.Lock()
        try:
            self._counts = [len(self._reader(i)) for i in range(len(self._shards))]
        except Exception as error:  # array_record raises several kinds
            raise self._explained(None, error) from error
        self._ends = list(itertools.accumulate(self._counts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: SupportsIndex) -> Row:
        return self._getitems([int(index)])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Row]:
        """Reads several rows; Grain calls this method, if there is one, for batches of rows."""
        return [self._row(index) for index in indices]

    def _row(self, index: int) -> Row:
        try:
            shard = bisect.bisect_right(self._ends, index)
            position = index - self._ends[shard] + self._counts[shard]
            return decode_row(self._reader(shard)[position])
        except Exception as error:
            raise self._explained(index, error) from error

    def _reader(self, shard: int) -> ShardReader:
        reader = self._readers.get(shard)
        if reader is None:
            reader = ShardReader(self._shards[shard])
            with self._lock:
                while len(self._readers) >= self._most_open:
                    # It is closed when the last thread that reads from it drops it.
                    del self._readers[next(iter(self._readers))]
                self._readers[shard] = reader
        return reader

    def _explained(self, key: int | None, error: Exception) -> Exception:
        """Converts an error of array_record to an OSError or a ValueError that names a shard.

        Args:
            key: the index of the record whose reading failed; None: opening the shards failed.
            error: the error of array_record.
        """
        reason = brief(error, 200)
        failed = _FAILED_CALL.search(str(error)) is not None
        named = [path for path in self._shards if failed and path in str(error)]
        path, where = (named[0], named[0]) if named else self._place(key)
        try:
            _read_all(path)
        except OSError as failure:
            failed, reason = True, brief(failure.strerror or failure, 200)
        if failed:
            return OSError(
                f"{path} cannot be read ({reason}): check that the file exists, that you have the "
                "right to read it, and that its disk or bucket works. Then run the same command "
                "again."
            )
        return ValueError(
            f"{where} cannot be read, because it is damaged ({reason}): copy this file again, or "
            "run the prepare command again, which writes it again."
        )

    def _place(self, key: int | None) -> tuple[str, str]:
        """Returns the path of the shard that caused an error, and its name in the error message.

        The name is the path, or words such as "Row 5 of PATH" or "One of 3 shards, ...". The shard
        is the first shard that cannot be opened. If all shards can be opened, it is the shard that
        contains record `key`; if `key` is None or no shard contains it, the first shard.
        To count the records, this method opens all shards.
        """
        counts = [count_or_none(path) for path in self._shards]
        for path, count in zip(self._shards, counts, strict=True):
            if count is None:
                return path, path
        ends = list(itertools.accumulate(count or 0 for count in counts))
        for path, count, end in zip(self._shards, counts, ends, strict=True):
            if key is not None and key < end:
                return path, f"Row {key - end + (count or 0)} of {path}"
        first = self._shards[0]
        return first, f"One of {len(self._shards)} shards, the first of which is {first},"


def files_to_keep_open(wanted: int) -> int:
    """Returns how many of `wanted` files may be open at a time, at least _LEAST_SHARDS.

    If the limit of open files of this process (`ulimit -n`) is too low, it is raised as far as the
    system allows.
    """
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    needed = wanted + _OTHER_FILES
    if soft != unlimited and soft < needed:
        soft = needed if hard == unlimited else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == unlimited else max(min(wanted, soft - _OTHER_FILES), _LEAST_SHARDS)


def _read_all(path: str) -> None:
    """Reads the file `path` to the end, to check that the disk or bucket can read the file.

    Raises:
        OSError: the file cannot be read.
    """
    with addresses.naming_bucket_errors(path), addresses.place(path).open("rb") as file:
        while file.read(1 << 22):
            pass
