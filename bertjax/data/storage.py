"""Reads and writes local files and, with the etils library, files in gs:// and s3:// buckets.

A file in a bucket is never incomplete, because a write to a bucket is atomic, so record counts and
checksums are verified for local files only.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertjax.base.addresses import place
from bertjax.base.files import is_remote


@contextlib.contextmanager
def written_locally(path: Any) -> Iterator[Path]:
    """Yields `path` if it is local, else a temporary local path.

    At the end of the `with` block, a file at the temporary path is uploaded to `path`.
    """
    if not is_remote(path):
        yield Path(path)
        return
    with folder_written_locally(place(path).parent) as folder:
        yield folder / place(path).name


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
