"""Reads and writes local files and, with the etils library, files in gs:// and s3:// buckets.

A file in a bucket is never incomplete, because a write to a bucket is atomic, so record counts and
checksums are verified for local files only.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertjax.files import is_remote

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
    return epath.Path(name)  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def explained(name: Any) -> Iterator[None]:
    """Converts exceptions of a bucket's client library to an error with a clear message.

    Args:
        name: the file or directory that the `with` block accesses, to be named in the message.

    Raises:
        ImportError: the client library of the bucket (gcsfs or s3fs) is not installed.
        OSError: the bucket cannot be reached, read or written.
    """
    try:
        yield
    except ImportError as error:
        if not is_remote(name):
            raise
        raise ImportError(
            f"{name} needs the client library for its bucket ({error}): for gs://, run "
            "pip install 'bertjax[gcs]'; for s3://, run pip install s3fs."
        ) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _BUCKET_LIBRARIES:
            raise
        raise OSError(
            f"{name} is not accessible ({type(error).__name__}: {error}): check the name of the "
            "bucket and your credentials (gcloud auth application-default login)."
        ) from error


@contextlib.contextmanager
def written_locally(path: Any) -> Iterator[Path]:
    """Yields `path` if it is local, else a temporary local path.

    At the end of the `with` block, a file at the temporary path is uploaded to `path`.
    """
    if not is_remote(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="bertjax-") as folder:
        local = Path(folder) / place(path).name
        yield local
        if local.is_file():
            place(path).write_bytes(local.read_bytes())


@contextlib.contextmanager
def folder_written_locally(folder: Any) -> Iterator[Path]:
    """Yields `folder` if it is local, else a temporary local folder.

    At the end of the `with` block, all files in the temporary folder are uploaded to `folder`.
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
        for name in names:
            file = place(folder) / name
            if file.exists():
                (Path(local) / name).write_bytes(file.read_bytes())
        yield Path(local)


def remove_folder(folder: Path) -> None:
    """Removes a folder, which may be in a bucket, and its contents."""
    if is_remote(folder):
        folder.rmtree()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        shutil.rmtree(folder)
