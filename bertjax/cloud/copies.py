"""Local copies of what is read from gs:// and s3:// buckets: prepared data, models, tokenizers.

A copy is made once on each machine, in `bertjax.files.cache_folder()` unless another folder is
given. Before each use, the files in the bucket are listed, and only new and changed ones are
copied. A copy that was interrupted continues where it stopped.
"""

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.cloud.addresses import explained, file_system, place, repeated
from bertjax.files import cache_folder, is_remote, write_json
from bertjax.lock import waiting_lock

# Number of bytes in one request; a copy that stops is continued after the last whole request.
BLOCK = 1 << 24
# The list of the files that are complete, in the folder of a copy.
LIST_FILE = ".copied.json"
PART_SUFFIX = ".part"
# Number of bytes from which the user is told that something is copied.
SAID_FROM = 1 << 26


class BucketFile(NamedTuple):
    """A file in a bucket: its path there, relative name, size in bytes, version and MD5."""

    path: str
    name: str
    size: int
    version: str
    md5: str | None


def local_copy(address: Any, cache: str | Path | None = None) -> Any:
    """Returns the path of a local copy of a file or folder in a bucket.

    Several processes of a machine share a copy: one copies, the others wait. The environment
    variable XDG_CACHE_HOME changes the place of the copies.

    Args:
        address: an address gs://... or s3://..., or a local path, which is returned as it is.
        cache: the folder of the copies; None: a folder in the user's cache.

    Raises:
        FileNotFoundError: there is no such file or folder in the bucket.
        ImportError: the client library of the bucket is not installed.
        OSError: the bucket cannot be read, or the disk not be written.
        ValueError: the bucket is neither gs:// nor s3://.
    """
    if not is_remote(address):
        return address
    address = os.fspath(address).rstrip("/")
    place(address)  # refuses other schemes
    scheme, _, rest = address.partition("://")
    target = Path(cache) if cache else cache_folder() / "buckets"
    target = (target / scheme / rest).expanduser()
    with explained(address):
        system, files = listed(address)
        is_folder = files[0].name != ""
        folder = target if is_folder else target.parent
        folder.mkdir(parents=True, exist_ok=True)
        with waiting_lock(folder / ".lock"):
            _update(system, files, folder, address)
    return target


def listed(address: str) -> tuple[Any, list[BucketFile]]:
    """Returns the file system of a bucket, and the file at `address` or the files below it.

    The name of the file at `address` itself is "".
    """
    system, root = file_system(address)
    system.invalidate_cache()
    try:
        found: dict[str, Any] = repeated(lambda: system.find(root, detail=True), address)
    except FileNotFoundError:
        found = {}
    files = []
    for path, info in sorted(found.items()):
        name = path.removeprefix(root).lstrip("/")
        if name and not path.startswith(f"{root}/") or path.endswith("/"):
            continue  # another object with the same beginning, or the mark of an empty folder
        # An ETag of S3 is not always an MD5: of encrypted files and of those uploaded in parts, it
        # is another number that looks like one.
        encoded = info.get("md5Hash")
        md5 = base64.b64decode(encoded).hex() if encoded else None
        version = info.get("generation") or info.get("ETag") or info["size"]
        files.append(BucketFile(path, name, int(info["size"]), str(version), md5))
    if not files:
        raise FileNotFoundError(
            f"There is no file or folder {address}: check the names of the bucket and the folder."
        )
    return system, files


def _update(system: Any, files: list[BucketFile], folder: Path, address: str) -> None:
    """Copies the files that `folder` lacks, and removes those that the bucket has no longer."""
    list_file = folder / LIST_FILE
    try:
        done = json.loads(list_file.read_bytes())
    except (OSError, ValueError):
        done = {}
    done = done if isinstance(done, dict) else {}
    is_folder = files[0].name != ""
    local = {file: folder / (file.name or Path(file.path).name) for file in files}
    names = {file: local[file].relative_to(folder).as_posix() for file in files}
    todo = [
        file
        for file in files
        if done.get(names[file]) != [file.size, file.version]
        or not local[file].is_file()
        or local[file].stat().st_size != file.size
    ]
    total = sum(file.size for file in todo)
    if total >= SAID_FROM:
        print(f"copying {address} ({total / 1e9:,.2f} GB) to {folder}", flush=True)
    with _progress(total) as advance:
        for file in todo:
            local[file].parent.mkdir(parents=True, exist_ok=True)
            download(system, file, local[file], advance)
            done[names[file]] = [file.size, file.version]
            write_json(list_file, done)
    if is_folder and (gone := done.keys() - set(names.values())):
        for name in gone:
            (folder / name).unlink(missing_ok=True)
            done.pop(name)
        write_json(list_file, done)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Any]:
    """Yields a function that advances a progress bar by a number of bytes, on a terminal."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if total < SAID_FROM or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        *(progress.TextColumn("copying"), progress.BarColumn(), progress.DownloadColumn()),
        *(progress.TransferSpeedColumn(), progress.TimeRemainingColumn()),
    )
    with progress.Progress(*columns, console=console) as bar:
        task = bar.add_task("copying", total=total)
        yield lambda count: bar.advance(task, count)


def download(system: Any, file: BucketFile, local: Path, advance: Any) -> None:
    """Copies one file of a bucket; continues a part of the same version that is on the disk."""
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
