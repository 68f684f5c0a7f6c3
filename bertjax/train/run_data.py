"""The prepared data of a pretraining run on this machine's disk.

Data in a bucket is copied length by length: a run starts as soon as the rows of its first phase are
here, and the rows of later phases are copied while it trains.
"""

import threading
from collections.abc import Sequence

from bertjax.base.files import is_remote
from bertjax.cloud.copies import local_copy
from bertjax.data.checksums import verify_shards
from bertjax.data.metadata import Metadata, open_prepared, read_metadata
from bertjax.devices import hosts

SHARD_SUFFIX = ".array_record"


class RunData:
    """Prepared data, in a local directory or copied from a bucket to `directory`.

    `cache` is the folder of local copies; None: a folder in the user's cache.

    Raises:
        FileNotFoundError: there is no metadata.json, or shards are missing.
        OSError: the bucket or the disk cannot be read or written.
        ValueError: metadata.json or a shard is damaged.
    """

    def __init__(self, address: str, cache: str | None = None):
        self._address = address
        self._cache = cache
        # The lengths whose shards are here and verified; None: all.
        self._ready: set[int] | None = set() if is_remote(address) else None
        if self._ready is not None:
            self.directory = str(local_copy(address, cache, choose=_small_files))
            self.metadata: Metadata = read_metadata(self.directory)
        else:
            self.directory = str(address)
            self.metadata = open_prepared(self.directory)
            _verify(self.directory, self.metadata)

    def require(self, length: int) -> None:
        """Waits until all rows of the maximum length `length` are here and verified; raises as
        above.
        """
        if self._ready is None or length in self._ready:
            return
        names = {shard.file for shard in self.metadata.shards([length])}
        local_copy(self._address, self._cache, choose=lambda _: names)
        open_prepared(self.directory, [length])
        _verify(self.directory, self.metadata, [length])
        self._ready.add(length)

    def require_in_background(self, lengths: Sequence[int]) -> None:
        """Starts to copy the rows of these maximum lengths, one after the other, in a thread.

        If it fails, the message is printed, and `require` tries again when the rows are needed.
        """
        if self._ready is None or not lengths:
            return

        def copy() -> None:
            try:
                for length in lengths:
                    self.require(length)
            except Exception as error:
                print(f"warning: rows of a later phase are not copied yet ({error})", flush=True)

        # A daemon, so that a run that is stopped does not wait; the next one continues the copy.
        threading.Thread(target=copy, name="copies data", daemon=True).start()


def _small_files(names: list[str]) -> set[str]:
    """Returns the names of the metadata and the tokenizer, without shards and folders."""
    return {name for name in names if "/" not in name and not name.endswith(SHARD_SUFFIX)}


def _verify(directory: str, metadata: Metadata, lengths: list[int] | None = None) -> None:
    if note := verify_shards(directory, metadata, lengths).note:
        hosts.say(note)
