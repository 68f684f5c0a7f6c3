"""Files and folders that are written whole or not at all, JSON with a message, nearest names."""

import contextlib
import difflib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_REMOTE = re.compile(r"[a-z0-9]+://")


def is_remote(path: Any) -> bool:
    """Whether a path, or its name, is in a bucket: gs://..., s3://..."""
    return _REMOTE.match(os.fspath(path)) is not None


@contextlib.contextmanager
def writing(path: str | Path, *, unique: bool = False) -> Iterator[Path]:
    """Yields a temporary path beside `path`, which takes its name at the end of the block.

    Whatever goes wrong in the block, `path` keeps its old content and the temporary file is
    removed. If the block writes nothing, nothing happens.

    Args:
        path: a file on a disk.
        unique: gives the temporary file a random name, for a file that several processes or
            machines may write at the same time.

    Raises:
        OSError: the disk is full or fails.
    """
    path = Path(path)
    random = f".{uuid.uuid4().hex}" if unique else ""
    temporary = path.with_name(f"{path.name}{random}.tmp")
    try:
        yield temporary
        if temporary.exists():
            os.replace(temporary, path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise  # explained already, or about another file that the block reads
        raise OSError(
            f"Writing {path} failed ({error}): make room or choose another place, then run the "
            "same command again."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, unique: bool = False) -> None:
    """Writes a small file whole or not at all; `path` may be one of a bucket.

    Raises:
        OSError: the disk is full or fails.
    """
    if is_remote(path):  # an object of a bucket appears whole or not at all
        path.write_bytes(content)
        return
    with writing(path, unique=unique) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Writes a small file of text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: Any) -> None:
    """Writes a small JSON file, as `write_bytes` does."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path, remedy: str = "copy or download it again") -> dict[str, Any]:
    """The object in a JSON file in UTF-8, with or without a byte order mark.

    Args:
        path: the file; may be one of a bucket.
        remedy: what the message of an error advises.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read, because it is not JSON in UTF-8 ({error}): {remedy}."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} cannot be read, because it holds a {type(content).__name__}, not an object: "
            f"{remedy}."
        )
    return content


@contextlib.contextmanager
def replacing_folder(folder: str | Path, marks: Sequence[str] = ()) -> Iterator[Path]:
    """Yields a fresh folder that takes the place of `folder` if nothing goes wrong.

    The old content stays until the end of the block, and is removed afterwards.

    Args:
        folder: a new folder, an empty one, or one that may be replaced.
        marks: names of files, one of which a folder with content must have to be replaced.

    Raises:
        ValueError: `folder` is a file, or has content and none of the marks.
        OSError: it could not be written (no space); the old content is unchanged.
    """
    folder = Path(folder).resolve()
    scratch = folder.with_name(f"{folder.name}.writing")
    _tidy(folder, scratch)  # after a process that was killed
    if not _may_be_replaced(folder, marks):
        raise ValueError(
            f"{folder} exists and is no model directory (it has no {' or '.join(marks)}), so it "
            "is not replaced: name a new directory, or the directory of an older model."
        )
    try:
        (scratch / "new").mkdir(parents=True)
        yield scratch / "new"
        if folder.exists():
            folder.rename(scratch / "old")
        (scratch / "new").rename(folder)
    except OSError as error:
        raise OSError(
            f"Writing {folder} failed ({error}); its old content is unchanged. Make room, or "
            "choose another place, then run the command again."
        ) from error
    finally:
        _tidy(folder, scratch)


def _tidy(folder: Path, scratch: Path) -> None:
    """Removes the scratch folder, and puts the old content back if nothing took its place."""
    if (scratch / "old").exists() and not folder.exists():
        (scratch / "old").rename(folder)
    shutil.rmtree(scratch, ignore_errors=True)


def _may_be_replaced(folder: Path, marks: Sequence[str]) -> bool:
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    return not marks or not any(folder.iterdir()) or any((folder / m).is_file() for m in marks)


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """`Did you mean 'x'? ` with the nearest of the known names; empty if none is similar."""
    matches = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.4)
    return f"Did you mean {matches[0]!r}? " if matches else ""
