"""Addresses in gs:// and s3:// buckets, and clear messages for the errors of their libraries."""

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bertjax.base.files import is_remote

Result = TypeVar("Result")

# Where TensorFlow is installed, etils would import it for gs:// and have no s3://. The variable is
# read once, at the first use of etils in a process, which may be that of another library.
os.environ.setdefault("EPATH_USE_TF", "false")

# Attempts for one request, and the seconds before the second one, which double each time.
ATTEMPTS = 5
FIRST_WAIT = 1.0
_BUCKET_LIBRARIES = ("gcsfs", "google", "aiohttp", "s3fs", "botocore")


def place(name: Any) -> Path:
    """Converts `name`, a local path or bucket address, to an object with the API of `pathlib.Path`.

    Raises:
        ValueError: `name` is an address with a scheme other than gs:// and s3://.
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
        new_path, files = file_system(os.fspath(target))[1], system.find(path)
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


@functools.cache
def _forget_listings() -> None:
    """Makes the clients list buckets anew each time, because other hosts write to them, too."""
    import fsspec.config

    for scheme in ("gs", "gcs", "s3"):
        fsspec.config.conf.setdefault(scheme, {})["use_listings_cache"] = False


@contextlib.contextmanager
def naming_bucket_errors(name: Any, doing: str = "read") -> Iterator[None]:
    """Converts exceptions of a bucket's client library to an error with a clear message.

    Args:
        name: the file or directory that the `with` block accesses, to be named in the message.
        doing: what the block does with it, "read" or "written".

    Raises:
        ImportError: the client library of the bucket (gcsfs or s3fs) is not installed.
        PermissionError: the credentials do not allow it.
        OSError: the bucket cannot be reached, read or written.
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
    """Calls `request` until it succeeds, at most `ATTEMPTS` times, and says why it failed.

    Where a file does not exist, or rights or credentials are missing, nothing is asked for again.

    Args:
        request: the request to a bucket or to the Hub.
        what: the file there, to be named in messages.
        doing: what the request does with it, "read" or "written".

    Raises:
        OSError: the connection failed in every attempt.
    """
    for attempt in range(ATTEMPTS):
        try:
            return request()
        except (FileNotFoundError, PermissionError, ImportError):
            raise
        except Exception as error:
            if "Credentials" in type(error).__name__:
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
