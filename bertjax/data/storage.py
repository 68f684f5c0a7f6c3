"""Files that may lie in a bucket: gs:// and s3:// by etils, all else as the system has them.

An object in a bucket appears whole or not at all, and its size is not looked into again: what is
checked on a disk is taken as it is there.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_REMOTE = re.compile(r"[a-z0-9]+://")
_BUCKET_LIBRARIES = ("gcsfs", "google", "aiohttp", "s3fs", "botocore")


def is_remote(name: Any) -> bool:
    """Whether a name, or a path of `place`, is that of a bucket."""
    return _REMOTE.match(os.fspath(name)) is not None


def place(name: Any) -> Path:
    """A path with the methods of pathlib, wherever it is.

    Raises:
        ValueError: it is in a kind of place that is not known.
    """
    if not is_remote(name):
        return Path(name)
    from etils import epath  # pulls in fsspec, which most runs do without

    scheme = os.fspath(name).partition("://")[0]
    if scheme not in ("gs", "s3"):
        raise ValueError(f"{name}: buckets are gs:// or s3://, and files have no {scheme}://.")
    return epath.Path(name)  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def explained(name: Any) -> Iterator[None]:
    """Turns what a bucket's library raises into one message.

    Raises:
        ImportError: the library is not installed.
        OSError: the bucket cannot be reached or written.
    """
    try:
        yield
    except ImportError as error:
        if not is_remote(name):
            raise
        raise ImportError(
            f"{name} needs the library of its bucket ({error}): pip install 'bertjax[gcs]', or "
            "s3fs for s3://."
        ) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _BUCKET_LIBRARIES:
            raise
        raise OSError(
            f"{name} cannot be reached ({type(error).__name__}: {error}): check the name of the "
            "bucket and your credentials (gcloud auth application-default login)."
        ) from error


@contextlib.contextmanager
def written_locally(path: Any) -> Iterator[Path]:
    """Yields where on a disk to write the file `path`; it is put there at the end."""
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
    """Yields a folder on a disk whose files are put into `folder` at the end."""
    if not is_remote(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="bertjax-") as local:
        yield Path(local)
        for file in sorted(Path(local).iterdir()):
            (place(folder) / file.name).write_bytes(file.read_bytes())


@contextlib.contextmanager
def read_locally(folder: Any, names: Iterable[str]) -> Iterator[Path]:
    """Yields a folder on a disk with those of the files that `folder` has."""
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
    """Removes a folder with all in it."""
    if is_remote(folder):
        folder.rmtree()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        shutil.rmtree(folder)
