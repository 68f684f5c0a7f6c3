"""Addresses in gs:// and s3:// buckets, and clear messages for the errors of their libraries."""

import base64
import contextlib
import functools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertjax.base.files import MALFORMED, NO_ROOM, is_remote

Result = TypeVar("Result")

# Where TensorFlow is installed, etils would import it for gs:// and have no s3://. The variable is
# read once, at the first use of etils in a process, which another library may make.
os.environ.setdefault("EPATH_USE_TF", "false")

# Attempts for one request, and the seconds before the second one, which double each time.
ATTEMPTS = 5
FIRST_WAIT = 1.0
_BUCKET_LIBRARIES = ("gcsfs", "google", "aiohttp", "s3fs", "botocore")


def place(name: Any) -> Path:
    """Converts `name`, a local path or bucket address, to an object with the API of `pathlib.Path`.

    Raises ValueError if `name` has a scheme other than gs:// and s3://.
    """
    if not is_remote(name):
        return Path(name)
    from etils import epath  # imports fsspec, which most runs do not need

    scheme = os.fspath(name).partition("://")[0]
    if scheme not in ("gs", "s3"):
        raise ValueError(f"{name}: {scheme}:// is not supported, use gs://, s3:// or a local path.")
    _forget_listings()
    return epath.Path(name)  # pyright: ignore[reportReturnType]


def file_system(address: str) -> tuple[Any, str]:
    """Returns (fsspec's file system of a bucket, the path of `address` in it)."""
    import fsspec

    place(address)  # refuses other schemes
    return fsspec.core.url_to_fs(address)


def move_folder(source: Path, target: Path) -> None:
    """Moves the folder `source` on a disk or in a bucket to `target`, which must not exist."""
    if is_remote(source):
        # All files are copied before the first one is removed, so that one of the two folders is
        # always complete. The `mv` of some clients moves the files one by one.
        system, path = file_system(os.fspath(source))
        new_path = file_system(os.fspath(target))[1]
        files = system.find(path)
        copies = [f"{new_path}{file.removeprefix(path)}" for file in files]
        system.copy(files, copies, on_error="raise")
        system.rm(files)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def remove_folder(folder: Path) -> None:
    """Removes a folder on a disk or in a bucket, if it exists."""
    if not is_remote(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    system, path = file_system(os.fspath(folder))
    with contextlib.suppress(FileNotFoundError):
        system.rm(path, recursive=True)


def without_traceback(record: logging.LogRecord) -> bool:
    """A filter of a library's log, for errors that it logs and raises as well."""
    if not os.environ.get("BERTJAX_TRACEBACK"):
        record.exc_info = None
    return True


@functools.cache
def _forget_listings() -> None:
    """Makes the clients list buckets anew each time, because other hosts write to them, too."""
    import fsspec.config

    logging.getLogger("gcsfs").addFilter(without_traceback)
    for scheme in ("gs", "gcs", "s3"):
        fsspec.config.conf.setdefault(scheme, {})["use_listings_cache"] = False


@contextlib.contextmanager
def naming_bucket_errors(name: Any, doing: str = "read") -> Iterator[None]:
    """Converts exceptions of a bucket's client library to an error that names `name`.

    `doing` says what the `with` block does with `name`: "read" or "written". Raises ImportError
    without the library of the bucket, PermissionError or OSError.
    """
    try:
        yield
    except ImportError as error:
        if not is_remote(name):
            raise
        raise ImportError(
            f"{name} needs the client library for its bucket ({error}): for gs://, run "
            "pip install 'bertjax[gcs]'; for s3://, run pip install 'bertjax[s3]'."
        ) from error
    except PermissionError as error:
        if not is_remote(name) or error.filename is not None:  # of the local disk
            raise
        raise PermissionError(
            f"{name} may not be {doing} with these credentials ({error}): get the right to list, "
            "read and write the bucket, or log in with other credentials (gs://: gcloud auth "
            "application-default login; s3://: aws configure)."
        ) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _BUCKET_LIBRARIES:
            raise
        raise OSError(
            f"{name} is not accessible ({type(error).__name__}: {error}): check the name of the "
            "bucket and your credentials (gs://: gcloud auth application-default login; s3://: aws "
            "configure)."
        ) from error


def repeated(request: Callable[[], Result], what: str, doing: str = "read") -> Result:
    """Calls `request` until it succeeds, at most `ATTEMPTS` times; then raises OSError.

    Where a file does not exist, rights or credentials are missing, an answer makes no sense or the
    disk is full, nothing is asked for again.
    `what` and `doing` ("read", "written") are said in messages.
    """
    for attempt in range(ATTEMPTS):
        try:
            return request()
        except (FileNotFoundError, PermissionError, ImportError, *MALFORMED):
            raise
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in NO_ROOM
            if full or any(x in type(error).__name__ for x in ("Credentials", "Validation")):
                raise
            if attempt == ATTEMPTS - 1:
                raise OSError(
                    f"{what} could not be {doing} in {ATTEMPTS} attempts ({type(error).__name__}: "
                    f"{error}): check the network and the name, then run the same command again, "
                    "which goes on where it stopped."
                ) from error
            wait = FIRST_WAIT * 2**attempt
            print(
                f"{what} could not be {doing} ({type(error).__name__}: {error}); again in "
                f"{wait:g} s",
                flush=True,
            )
            time.sleep(wait)
    raise AssertionError("unreachable")


class BucketFile(NamedTuple):
    """A file in a bucket."""

    path: str
    name: str  # relative to the folder that is listed
    size: int
    version: str  # what changes when the file is overwritten: a generation, ETag or size
    md5: str | None  # in hexadecimal digits; None if the bucket does not tell it

    @property
    def local_name(self) -> str:
        """The name of the local copy; for a file outside of a folder, the last part of its path."""
        return self.name or self.path.rpartition("/")[2]


def listed(address: str) -> tuple[Any, list[BucketFile]]:
    """Returns the file system of a bucket, and the file at `address` or the files below it.

    The name of the file at `address` itself is "". Raises FileNotFoundError if there is none, or
    OSError if the bucket cannot be read.
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
        if ".." in name.split("/"):
            raise ValueError(f"{path} has a name that leads out of {address}: remove the object.")
        # An ETag of S3 is not always an MD5: of encrypted files and of those uploaded in parts, it
        # is another number that looks like one.
        encoded = info.get("md5Hash")
        md5 = None
        if encoded:
            md5 = base64.b64decode(encoded).hex()
        version = info.get("generation") or info.get("ETag") or info["size"]
        files.append(BucketFile(path, name, int(info["size"]), str(version), md5))
    if not files:
        raise FileNotFoundError(
            f"There is no file or folder {address}: check the names of the bucket and the folder."
        )
    return system, files


@contextlib.contextmanager
def written_locally(path: Any) -> Iterator[Path]:
    """Yields `path` if it is local, else a temporary path whose file is uploaded at the end."""
    if not is_remote(path):
        yield Path(path)
        return
    with folder_written_locally(place(path).parent) as folder:
        yield folder / place(path).name


@contextlib.contextmanager
def folder_written_locally(folder: Any) -> Iterator[Path]:
    """Yields `folder` if it is local, else a temporary folder whose files are uploaded at the end.

    A write to a bucket is atomic, so that a file in a bucket is never incomplete.
    """
    if not is_remote(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="bertjax-") as local:
        yield Path(local)
        for file in sorted(Path(local).iterdir()):
            (place(folder) / file.name).write_bytes(file.read_bytes())


@contextlib.contextmanager
def read_locally(folder: Any, names: Iterable[str]) -> Iterator[Path]:
    """Yields `folder` if local, else a temporary folder with copies of the files in `names`."""
    if not is_remote(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="bertjax-") as local:
        for file in (place(folder) / name for name in names):
            if file.exists():
                (Path(local) / file.name).write_bytes(file.read_bytes())
        yield Path(local)
