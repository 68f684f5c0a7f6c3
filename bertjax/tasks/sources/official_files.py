"""Finds the official data files of a task, such as train.tsv of a GLUE task, in a folder."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertjax.files import did_you_mean

Value = TypeVar("Value")


class OfficialFiles:
    """Base class of the sources that read the official files of a task, one file per split.

    Attributes:
        task: name of the task.
        folder: the folder that contains the files.
        splits: the splits whose files exist.
        counts: {"SPLIT: REASON": number of changed or omitted examples} of all splits read.
    """

    def __init__(
        self,
        task: str,
        data_dir: Path | str,
        folders: Sequence[str],
        files: Mapping[str, Sequence[str]],
    ):
        """Finds the official file of each split.

        Args:
            task: name of the task.
            data_dir: the folder of the task, or the parent of this folder.
            folders: possible names of the folder of the task.
            files: {split: possible file names}; the first file that exists is read.

        Raises:
            FileNotFoundError: no file of the task exists.
        """
        self.task = task
        self.counts = ChangeCounts()
        data_dir = Path(data_dir).expanduser()
        for folder in (*(data_dir / name for name in folders), data_dir):
            found = {split: existing(folder, names) for split, names in files.items()}
            self._paths = {split: path for split, path in found.items() if path is not None}
            if self._paths:
                self.folder, self.splits = folder, tuple(self._paths)
                return
        names = sorted({name for names in files.values() for name in names})
        raise FileNotFoundError(
            f"No file of {task} ({', '.join(names)}) is in {data_dir} or {data_dir / folders[0]}: "
            "give --data_dir a folder with the official files."
        )

    def path(self, split: str) -> Path:
        """Returns the path of the official file of a split.

        Raises:
            ValueError: the split does not exist.
        """
        return value_of_split(self.task, split, self._paths)


def existing(folder: Path, names: Sequence[str]) -> Path | None:
    """Returns the path of the first name in `names` that is a file in `folder`, or None."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def value_of_split(task: str, split: str, values: Mapping[str, Value]) -> Value:
    """Returns `values[split]`, for example the path of the file of a split of the task `task`.

    Raises:
        ValueError: `values` has no such split; the message suggests the nearest name.
    """
    if split in values:
        return values[split]
    hint = did_you_mean(split, values)
    raise ValueError(f"{task} has no split {split!r}. {hint}There are: {', '.join(values)}.")


class ChangeCounts(Counter[str]):
    """Counts changed or omitted examples by reason, "SPLIT: REASON".

    Attributes:
        first: {reason: file and row, or question, of the first such example}.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, str] = {}

    def add(self, reason: str, where: str) -> None:
        """Counts one example, which is at `where` and was changed or left out for `reason`."""
        if reason not in self:
            self.first[reason] = where
        self[reason] += 1


def change_notes(source: Any) -> list[str]:
    """Returns a sentence per reason for which `source` changed or left out examples so far."""
    counts = getattr(source, "counts", {})
    first = counts.first if isinstance(counts, ChangeCounts) else {}
    return [
        f"{reason}: {count:,}" + (f" (the first: {first[reason]})" if reason in first else "")
        for reason, count in counts.items()
    ]


def reset_counts(counts: Counter[str], split: str) -> None:
    """Deletes the entries of `split` from `counts`, before the split is read again."""
    for reason in [key for key in counts if key.startswith(f"{split}: ")]:
        del counts[reason]
