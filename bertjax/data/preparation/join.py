"""Joins the shards of the chunks to few large shards, in the order of the chunks.

A joined shard holds rows of one source only (see `bertjax.data.mixture`).

Each chunk of text has its own shards, because chunks are prepared in parallel and survive an
interruption. A run that reads thousands of them would exceed the usual limit of open files, so
they are joined once all chunks are finished. For each joined shard, a JSON file in the folder of
the chunks lists the shards that it replaces; these are deleted once the JSON file is written. An
interrupted join continues where it stopped.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertjax.base.addresses import place
from bertjax.base.files import write_text
from bertjax.base.progress import BYTES, progress
from bertjax.data.checksums import Remembered, describe, is_intact
from bertjax.data.metadata import Shard
from bertjax.data.records import has_records, read_shard, write_shard
from bertjax.data.storage import read_locally, written_locally

CHUNK_FOLDER = "chunks"
# Shards have at least this size, except the last one, so that small data has few shards ...
SHARD_BYTES = 256 << 20
# ... and larger ones if there were more than this number for one split and maximum length.
MAX_SHARDS = 24


def join_shards(
    directory: Path, name: str, sources: Sequence[Sequence[Shard]], *, several: bool = False
) -> list[list[Shard]]:
    """Joins the shards of all chunks of one split and maximum length.

    Returns the joined shards of each source.

    Args:
        directory: the prepared directory.
        name: the beginning of the file names of the joined shards, such as "train-128".
        sources: for each source, the shards of its chunks, in the order of the chunks.
        several: whether other processes may join the same shards at the same time. The processes
            then write the same bytes.

    Raises:
        OSError: a shard cannot be read or written.
        ValueError: a shard of a chunk is damaged.
    """
    least = _least([shard for shards in sources for shard in shards])
    groups = [list(_groups(shards, least)) for shards in sources]
    total = sum(map(len, groups))
    numbers = itertools.count()
    return [
        [
            _join(directory, f"{name}-{next(numbers):05d}-of-{total:05d}", group, several)
            for group in of_source
        ]
        for of_source in groups
    ]


def joined_files(directory: Path) -> frozenset[str]:
    """Returns the names of the chunks' shards that joined shards contain."""
    return frozenset(file for name in _names(directory) for file in _parts(directory, name)[1])


def remove_damaged(directory: Path, remembered: Remembered) -> None:
    """Deletes damaged joined shards in `directory`, so that their chunks are prepared again.

    Shards in the list `remembered` of verified shards are not verified again.
    """
    with progress("verifying the shards that are already prepared", unit=BYTES) as state:
        for name in _names(directory):
            shard, _ = _parts(directory, name)
            if shard is None or not is_intact(directory, shard, remembered, state.advance):
                _description(directory, name).unlink(missing_ok=True)
                (directory / f"{name}.array_record").unlink(missing_ok=True)


def _names(directory: Path) -> list[str]:
    return [path.stem for path in (directory / CHUNK_FOLDER).glob("*-of-*.json")]


def _description(directory: Path, name: str) -> Path:
    return directory / CHUNK_FOLDER / f"{name}.json"


def _size(shard: Shard) -> int:
    # Older versions stored no sizes; the number of records is as good a measure.
    return shard.size or shard.records


def _least(shards: Sequence[Shard]) -> int:
    """Returns the smallest size in bytes of the joined shards, except the last of each source."""
    return max(SHARD_BYTES, sum(map(_size, shards)) // MAX_SHARDS)


def _groups(shards: Sequence[Shard], least: int) -> Iterator[list[Shard]]:
    """Divides the shards of a source, in their order, into groups of about `least` bytes."""
    begins = (before // least for before in itertools.accumulate(map(_size, shards), initial=0))
    for _, group in itertools.groupby(zip(begins, shards, strict=False), lambda item: item[0]):
        yield [shard for _, shard in group]


def _join(directory: Path, name: str, shards: list[Shard], several: bool) -> Shard:
    """Joins `shards` to the shard `name`, if this has not been done; then deletes `shards`."""
    joined, _ = _parts(directory, name)
    if joined is None:
        try:
            joined = _write(directory, name, shards, several)
        except (OSError, ValueError):
            # Another process may have deleted the shards that it joined.
            joined, _ = _parts(directory, name)
            if joined is None:
                raise
    for shard in shards:
        (directory / shard.file).unlink(missing_ok=True)
    return joined


def _write(directory: Path, name: str, shards: list[Shard], several: bool) -> Shard:
    files = [shard.file for shard in shards]
    target = place(directory) / f"{name}.array_record"
    with read_locally(directory, files) as folder, written_locally(target) as local:
        rows = itertools.chain.from_iterable(read_shard(folder / file) for file in files)
        joined = describe(local, write_shard(local, rows, unique=several))
    content = {"shard": dataclasses.asdict(joined), "chunk_shards": files}
    write_text(_description(directory, name), json.dumps(content), unique=several)
    return joined


def _parts(directory: Path, name: str) -> tuple[Shard | None, list[str]]:
    """Returns the joined shard `name` and the names of the shards in it.

    Returns (None, []) if the joined shard is missing or incomplete.
    """
    try:
        content = json.loads(_description(directory, name).read_text(encoding="utf-8"))
        shard, files = Shard(**content["shard"]), list(content["chunk_shards"])
    except (OSError, ValueError, TypeError, KeyError):
        return None, []
    return (shard, files) if has_records(directory / shard.file, shard.records) else (None, [])
