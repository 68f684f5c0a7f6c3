"""Atomic replacement of a model directory."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

# A directory with one of these files is a model, which may be replaced by another.
_MARKS = ("config.json", "bert_config.json")


@contextlib.contextmanager
def replaced_whole(directory: str | Path) -> Iterator[Path]:
    """Yields an empty directory that replaces `directory` when the block ends without an error.

    Raises:
        ValueError: `directory` is a file, or holds files but no model.
        OSError: it could not be written (the disk is full); the previous content remains.
    """
    directory = Path(directory).resolve()
    scratch = directory.with_name(f"{directory.name}.writing")
    _tidy(directory, scratch)  # after a process that was killed
    if directory.exists() and not _may_be_replaced(directory):
        raise ValueError(
            f"{directory} exists and is no model directory (it has no {' or '.join(_MARKS)}), so "
            "it is not replaced: name a new directory, or that of an older model."
        )
    try:
        (scratch / "new").mkdir(parents=True)
        yield scratch / "new"
        if directory.exists():
            directory.rename(scratch / "old")
        (scratch / "new").rename(directory)
    except OSError as error:
        raise OSError(
            f"Writing {directory} failed ({error}); what was there is as it was. Make room, or "
            "choose another place, then run the command again."
        ) from error
    finally:
        _tidy(directory, scratch)


def _tidy(directory: Path, scratch: Path) -> None:
    """Removes the scratch directory; moves the old directory back if nothing has replaced it."""
    if (scratch / "old").exists() and not directory.exists():
        (scratch / "old").rename(directory)
    shutil.rmtree(scratch, ignore_errors=True)


def _may_be_replaced(directory: Path) -> bool:
    if not directory.is_dir():
        return False
    return not any(directory.iterdir()) or any((directory / mark).is_file() for mark in _MARKS)
