"""Addresses in gs:// and s3:// buckets, and clear messages about what their libraries raise."""

import contextlib
import os
from collections.abc import Iterator
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
            "pip install 'bertjax[gcs]'; for s3://, run pip install 'bertjax[s3]'."
        ) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _BUCKET_LIBRARIES:
            raise
        raise OSError(
            f"{name} is not accessible ({type(error).__name__}: {error}): check the name of the "
            "bucket and your credentials (gcloud auth application-default login)."
        ) from error
