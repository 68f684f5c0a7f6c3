"""The SWAG task: to select which of four endings continues a situation (Zellers et al. 2018)."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertjax.base.checked import Rate
from bertjax.base.files import brief
from bertjax.config.task_options import OfficialOptions
from bertjax.tasks.classification import ChoiceTask
from bertjax.tasks.dataset import Dataset, Example, Fold
from bertjax.tasks.definition import TaskDefinition
from bertjax.tasks.sources.data_files import row_name
from bertjax.tasks.sources.official import DatasetRow, decode, find_files, official_dataset
from bertjax.tasks.sources.tables import Table

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
COLUMNS = ("sent1", "sent2", *ENDINGS)


FILES = {"train": ("train.csv",), "dev": ("val.csv", "dev.csv"), "test": ("test.csv",)}


def read_swag(data_dir: Path | str) -> Dataset:
    """Reads the official CSV files of SWAG; raises FileNotFoundError if there are none.

    A row holds a sentence, the start of the next sentence, and four endings of the next sentence.
    The choices of an example are whole next sentences.
    """
    _, files = find_files("swag", data_dir, ("swag", "SWAG"), FILES)
    return Dataset.read("swag", files, lambda split, _: _examples(files[split]))


def _examples(path: Path) -> Iterator[Example]:
    table = Table(path)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise ValueError(
            f"{row_name(path, 1)} lacks the columns {', '.join(missing)} and has only "
            f"{brief(', '.join(table.columns))}. Restore the official file."
        )
    for count, (number, row) in enumerate(table.rows()):
        where = row_name(path, number)
        label = row.get("label", "")
        if label not in ("", "0", "1", "2", "3"):
            raise ValueError(
                f"{where}: label {brief(label, 60)!r} is none of the endings 0, 1, 2, 3. Restore "
                "the official file."
            )
        # The official files number their rows in a column without a name.
        yield _example(row.get("", str(count)), where, row, int(label or -1))


def _example(id: str, where: str, row: Any, label: int) -> Example:
    return Example(
        id=id,
        where=where,
        text=decode(row["sent1"]),
        choices=tuple(f"{decode(row['sent2'])} {decode(row[ending])}" for ending in ENDINGS),
        label=label if label >= 0 else None,
    )


def read_dataset_row(row: DatasetRow) -> Example:
    """Converts a row of SWAG on the Hugging Face hub to an example."""
    return _example(str(row.number), row.where, row.fields, row.fields["label"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwagOptions(OfficialOptions):
    """Options of --task=swag."""

    label_smoothing: Rate = 0.0
    """Share of each label that is spread evenly over all choices in the training loss."""


def _make(options: SwagOptions, fold: Fold | None) -> ChoiceTask:
    data = official_dataset(options, read_swag, "swag", read_dataset_row)
    return ChoiceTask(name="swag", source=data, num_choices=4)


SWAG_TASK = TaskDefinition(name="swag", kinds=(ChoiceTask,), options=SwagOptions, make=_make)
