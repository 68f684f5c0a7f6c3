"""Local copies of what is read from gs:// and s3:// buckets: prepared data, models, tokenizers.

A copy is made once on each machine, in `bertjax.base.files.cache_folder()` unless another folder is
given. Before each use, the files in the bucket are listed, and only new and changed ones are
copied, several at a time. A copy that was interrupted continues where it stopped.
"""

import fnmatch
import hashlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

from bertjax.base.addresses import BucketFile, listed, naming_bucket_errors, repeated
from bertjax.base.files import cache_folder, is_remote, read_json_or_empty, write_json
from bertjax.base.lock import waiting_lock
from bertjax.base.progress import BYTES, progress

# Number of bytes in one request; a copy that stops is continued after the last whole request.
BLOCK = 1 << 24
# Number of files that are copied at a time, because one connection seldom fills the network.
STREAMS = 8
# The list {name: [size, version]} of the files that are complete, in the folder of a copy.
LIST_FILE = ".copied.json"
LOCK_SUFFIX = ".lock"
PART_SUFFIX = ".part"


def local_copy(
    address: Any,
    cache: str | Path | None = None,
    *,
    choose: Callable[[list[str]], Collection[str]] | None = None,
) -> Any:
    """Returns the path of a local copy of a file or folder in a bucket, or of what a glob matches.

    Several processes of a machine share a copy: one copies, the others wait for it. The environment
    variable XDG_CACHE_HOME changes the place of the copies.

    Args:
        address: an address gs://... or s3://..., in which the last parts of the path may be a glob
            such as `*.txt` or `**/*.gz`; or a local path, which is returned as it is.
        cache: the folder of the copies; None: a folder in the user's cache.
        choose: selects which files to copy from a list of names relative to the folder; None: all.

    Raises FileNotFoundError, the errors of `naming_bucket_errors`, or ValueError if the bucket is
    neither gs:// nor s3://.
    """
    if not is_remote(address):
        return address
    address, glob = _split_glob(os.fspath(address).rstrip("/"))
    scheme, _, rest = address.partition("://")
    target = Path(cache) if cache else cache_folder() / "buckets"
    target = (target / scheme / rest).expanduser()
    with naming_bucket_errors(address):
        system, files = listed(address)
        is_folder = files[0].name != ""
        names = {file.name for file in files}
        chosen: Collection[str] = names
        if glob:
            chosen = list(filter(glob_matcher(glob), names))
            if not chosen:
                raise FileNotFoundError(f"No file in {address} matches {glob}: check the glob.")
        elif choose is not None and is_folder:
            chosen = choose([file.name for file in files])
        folder = target if is_folder else target.parent
        folder.mkdir(parents=True, exist_ok=True)
        _update(system, [file for file in files if file.name in chosen], folder, address)
        if is_folder:
            _remove_others(folder, names)
    return target / glob if glob else target


def _split_glob(address: str) -> tuple[str, str]:
    """Splits an address into a folder and a glob relative to it, which is "" if there is none."""
    wildcard = re.search(r"(?<!:/)/[^/]*[*?[]", address)
    if wildcard is None:
        return address, ""
    return address[: wildcard.start()], address[wildcard.start() + 1 :]


def glob_matcher(glob: str) -> Callable[[str], bool]:
    """Returns a function (path) -> whether it matches a glob, in which only ** matches slashes.

    Its time is bounded by the product of the lengths, whatever a stranger's glob is.
    """
    # As in fsspec, a folder is not what is in it: the last ** matches one name at least.
    if glob.endswith("/**"):
        glob = f"{glob.removesuffix('**')}*/**"
    parts = []
    for part in glob.split("/"):
        parts.append(None if part == "**" else re.compile(fnmatch.translate(part)))

    def matches(path: str) -> bool:
        names = path.split("/")
        ends = {0}  # how many of the names the parts so far may match
        for part in parts:
            if not ends:
                return False
            if part is None:
                ends = {*range(min(ends), len(names) + 1)}
            else:
                ends = {n + 1 for n in ends if n < len(names) and part.match(names[n])}
        return len(names) in ends

    return matches


def _remove_others(folder: Path, names: set[str]) -> None:
    """Removes the copies of files other than `names`."""
    if not read_json_or_empty(folder / LIST_FILE).keys() - names:
        return
    with waiting_lock(folder / LOCK_SUFFIX):
        done = read_json_or_empty(folder / LIST_FILE)
        for name in done.keys() - names:
            (folder / name).unlink(missing_ok=True)
            del done[name]
        write_json(folder / LIST_FILE, done)


def _update(system: Any, files: list[BucketFile], folder: Path, address: str) -> None:
    """Copies new and changed files to `folder`."""

    def is_current(file: BucketFile, done: dict[str, Any]) -> bool:
        if done.get(file.local_name) != [file.size, file.version]:
            return False
        local = folder / file.local_name
        return local.is_file() and local.stat().st_size == file.size

    def copy(file: BucketFile) -> None:
        name = file.local_name
        mark = hashlib.sha256(name.encode()).hexdigest()[:12]
        with waiting_lock(folder / f".{mark}{LOCK_SUFFIX}"):
            done = read_json_or_empty(folder / LIST_FILE)
            if is_current(file, done):  # another process has copied it meanwhile
                state.advance(file.size)
                return
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            download(system, file, folder / name, state.advance)
            with waiting_lock(folder / LOCK_SUFFIX):
                done = read_json_or_empty(folder / LIST_FILE)
                done[name] = [file.size, file.version]
                write_json(folder / LIST_FILE, done)

    done = read_json_or_empty(folder / LIST_FILE)
    todo = [file for file in files if not is_current(file, done)]
    total = sum(file.size for file in todo)
    with progress(f"copying {address}", total, BYTES, shown=bool(todo)) as state:
        for _ in ahead(copy, todo, STREAMS):
            pass


def ahead(make: Callable[[Any], Any], items: Iterable[Any], count: int = 1) -> Iterator[Any]:
    """Yields `make(item)` for each item; meanwhile, the next `count` are made in daemon threads.

    A process that is stopped does not wait for daemon threads.
    """

    def start(item: Any) -> Future:
        future = Future()

        def run() -> None:
            try:
                future.set_result(make(item))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="reads ahead", daemon=True).start()
        return future

    futures = map(start, items)
    started = deque(islice(futures, count))
    while started:
        made = started.popleft().result()
        started.extend(islice(futures, 1))
        yield made


def download(system: Any, file: BucketFile, local: Path, advance: Any) -> None:
    """Copies one file of a bucket; continues a part of the same version that is on the disk.

    `advance` is called with each number of bytes that has arrived. Raises OSError if the bucket
    cannot be read, the disk is full, or the MD5 differs.
    """
    mark = hashlib.sha256(file.version.encode()).hexdigest()[:12]
    part = local.with_name(f"{local.name}.{mark}{PART_SUFFIX}")
    for other in local.parent.glob(f"{local.name}.*{PART_SUFFIX}"):
        if other != part:
            other.unlink()  # of a version that the bucket has no longer
    with part.open("ab") as output:
        start = output.tell()
        if start > file.size:
            output.truncate(0)
            start = 0
        advance(start)
        while start < file.size:
            end = min(start + BLOCK, file.size)
            content = repeated(
                lambda start=start, end=end: _block(system, file, start, end), file.path
            )
            output.write(content)
            advance(len(content))
            start = end
        output.flush()
        os.fsync(output.fileno())
    if file.md5 is not None:
        with part.open("rb") as content:
            md5 = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False))
        if md5.hexdigest() != file.md5:
            part.unlink()
            raise OSError(
                f"{file.path}: the copy has another MD5 than the file in the bucket, so it was "
                "damaged or the file was written meanwhile. Run the same command again."
            )
    part.replace(local)


def _block(system: Any, file: BucketFile, start: int, end: int) -> bytes:
    content = system.cat_file(file.path, start=start, end=end)
    if len(content) != end - start:
        raise OSError(f"{file.path}: {len(content)} of {end - start} bytes arrived")
    return content
