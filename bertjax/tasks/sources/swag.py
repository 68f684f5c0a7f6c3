"""SWAG, read from its official files (Zellers et al. 2018)."""

from collections.abc import Iterator
from pathlib import Path

from bertjax.tasks.sources.official_files import existing, path_of_split, task_folder
from bertjax.tasks.sources.table_files import Table, place
from bertjax.tasks.task import Example

SWAG_FILES = {"train": ("train.csv",), "dev": ("val.csv", "dev.csv"), "test": ("test.csv",)}
ENDINGS = ("ending0", "ending1", "ending2", "ending3")
NEEDED = ("sent1", "sent2", *ENDINGS)


class SwagSource:
    """A sentence, the beginning of the next one, and four endings of it.

    Attributes:
        folder: where the files lie.
        splits: those whose files are there.
    """

    def __init__(self, data_dir: Path | str):
        """Finds the files in `data_dir`, or its folder `swag`.

        Raises:
            FileNotFoundError: none is there.
        """
        self.folder = task_folder("swag", data_dir, ("swag", "SWAG"), SWAG_FILES)
        found = {split: existing(self.folder, names) for split, names in SWAG_FILES.items()}
        self._paths = {split: path for split, path in found.items() if path is not None}
        self.splits = tuple(self._paths)

    def path(self, split: str) -> Path:
        """The file of a split.

        Raises:
            ValueError: there is no such split.
        """
        return path_of_split("swag", split, self._paths)

    def examples(self, split: str) -> Iterator[Example]:
        """The examples of a split; each choice is the beginning with an ending.

        Raises:
            ValueError: there is no such split, or a row is damaged; it is named.
        """
        table = Table(self.path(split))
        missing = [name for name in NEEDED if name not in table.columns]
        if missing:
            raise ValueError(
                f"{place(table.path, 1)} lacks the columns {', '.join(missing)}; it names "
                f"{', '.join(table.columns)[:200]}. Restore the official file."
            )
        return _read(table)


def _read(table: Table) -> Iterator[Example]:
    for count, (number, row) in enumerate(table.rows()):
        where = place(table.path, number)
        label = row.get("label", "")
        if label not in ("", "0", "1", "2", "3"):
            raise ValueError(f"{where}: label {label!r} is none of the endings 0, 1, 2, 3.")
        yield Example(
            # The official files number their rows in a column without a name.
            id=row.get("", str(count)),
            where=where,
            text=row["sent1"],
            choices=tuple(f"{row['sent2']} {row[ending]}" for ending in ENDINGS),
            label=int(label) if label else None,
        )
