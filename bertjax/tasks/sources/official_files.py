"""Finds the official files of a task."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path


def existing(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of the files that is in the folder."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def task_folder(
    task: str, data_dir: Path | str, folders: Sequence[str], files: Mapping[str, Sequence[str]]
) -> Path:
    """The folder with the files of a task.

    Args:
        task: its name.
        data_dir: that folder, or the one above it.
        folders: names that it may have.
        files: split -> names that its file may have.

    Raises:
        FileNotFoundError: no file of the task is there.
    """
    data_dir = Path(data_dir).expanduser()
    for folder in (*(data_dir / name for name in folders), data_dir):
        if any(existing(folder, names) for names in files.values()):
            return folder
    names = sorted({name for names in files.values() for name in names})
    raise FileNotFoundError(
        f"No file of {task} ({', '.join(names)}) lies in {data_dir} or {data_dir / folders[0]}: "
        "give --data_dir a folder with the official files."
    )


def path_of_split(task: str, split: str, paths: Mapping[str, Path]) -> Path:
    """The file of a split.

    Raises:
        ValueError: there is no such split; the nearest is named.
    """
    if split in paths:
        return paths[split]
    near = difflib.get_close_matches(split, paths, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{task} has no split {split!r}.{hint} There are: {', '.join(paths)}.")
