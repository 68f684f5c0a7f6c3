"""The SWAG task: to select which of four endings continues a situation (Zellers et al. 2018)."""

from collections.abc import Iterator
from pathlib import Path

from bertjax.base.files import brief
from bertjax.tasks.classification import ChoiceTask
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.sources.official import DatasetRow, DatasetSource, OfficialFiles, decode
from bertjax.tasks.sources.tables import Table, row_name
from bertjax.tasks.task import Example

FILES = {"train": ("train.csv",), "dev": ("val.csv", "dev.csv"), "test": ("test.csv",)}
ENDINGS = ("ending0", "ending1", "ending2", "ending3")
COLUMNS = ("sent1", "sent2", *ENDINGS)


class SwagSource(OfficialFiles):
    """Reads the official CSV files of SWAG.

    A row holds a sentence, the start of the next sentence, and four endings of the next sentence.
    """

    def __init__(self, data_dir: Path | str):
        """Finds the files of SWAG in `data_dir` or in its subfolder `swag`."""
        super().__init__("swag", data_dir, ("swag", "SWAG"), FILES)

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split, whose choices are whole next sentences."""
        table = Table(self.path(split))
        missing = [name for name in COLUMNS if name not in table.columns]
        if missing:
            raise ValueError(
                f"{row_name(table.path, 1)} lacks the columns {', '.join(missing)} and has only "
                f"{brief(', '.join(table.columns))}. Restore the official file."
            )
        return _read(table)


def _read(table: Table) -> Iterator[Example]:
    for count, (number, row) in enumerate(table.rows()):
        where = row_name(table.path, number)
        label = row.get("label", "")
        if label not in ("", "0", "1", "2", "3"):
            raise ValueError(
                f"{where}: label {brief(label, 60)!r} is none of the endings 0, 1, 2, 3. Restore "
                "the official "
                "file."
            )
        yield Example(
            # The official files number their rows in a column without a name.
            id=row.get("", str(count)),
            where=where,
            text=row["sent1"],
            choices=tuple(f"{row['sent2']} {row[ending]}" for ending in ENDINGS),
            label=int(label) if label else None,
        )


def read_dataset_row(row: DatasetRow) -> Example:
    """Converts a row of SWAG on the Hugging Face hub to an example."""
    fields = row.fields
    return Example(
        id=str(row.number),
        where=row.where,
        text=decode(fields["sent1"]),
        choices=tuple(f"{decode(fields['sent2'])} {decode(fields[name])}" for name in ENDINGS),
        label=fields["label"] if fields["label"] >= 0 else None,
    )


def _make(options: TaskOptions) -> ChoiceTask:
    if options.data_dir is not None:
        source = SwagSource(options.data_dir)
    else:
        source = DatasetSource("swag", read_dataset_row, options.tfds_data_dir)
    return ChoiceTask(name="swag", source=source, num_choices=4)


SWAG_TASK = TaskDefinition(name="swag", kinds=(ChoiceTask,), make=_make)
