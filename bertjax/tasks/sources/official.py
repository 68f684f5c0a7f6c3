"""The official examples of a task: its files in a folder, TensorFlow Datasets, or the Hub.

Parquet files of the Hugging Face Hub are read without TensorFlow, and so are prepared TFDS.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.cloud.hub import fetch
from bertjax.data.text.tables import explained_parquet, is_prepared, open_parquet, open_tfds_splits
from bertjax.tasks.definition import TaskOptions
from bertjax.tasks.task import ChangeCounts, Example, Source, error_of


class OfficialFiles(Source):
    """Base class of the sources that read the official files of a task, one file per split.

    Attributes:
        task: the name of the task.
        folders: possible names of the folder of the task.
        names: {split: possible file names}; the first file that exists is read.
    """

    task: str
    folders: Sequence[str]
    names: Mapping[str, Sequence[str]]

    def __init__(self, data_dir: Path | str):
        """Finds the file of each split in `data_dir`, the folder of the task or its parent.

        Raises:
            FileNotFoundError: no file of the task exists.
        """
        data_dir = Path(data_dir).expanduser()
        for folder in (*(data_dir / name for name in self.folders), data_dir):
            found = {split: existing(folder, names) for split, names in self.names.items()}
            if files := {split: path for split, path in found.items() if path is not None}:
                self.folder = folder
                super().__init__(self.task, files)
                return
        names = sorted({name for names in self.names.values() for name in names})
        raise FileNotFoundError(
            f"No file of {self.task} ({', '.join(names)}) is in {data_dir} or "
            f"{data_dir / self.folders[0]}: give --data_dir a folder with the official files."
        )


def existing(folder: Path, names: Sequence[str]) -> Path | None:
    """Returns the path of the first of `names` that is a file in `folder`, or None."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


# {name in TFDS: (repository, folder, revision) of its Parquet files on the hub}
HUB: dict[str, tuple[str, str, str]] = {
    **{
        f"glue/{name}": ("nyu-mll/glue", name, "main")
        for name in "cola sst2 mrpc stsb qqp mnli qnli rte wnli ax".split()
    },
    "squad/v1.1": ("rajpurkar/squad", "plain_text", "main"),
    "squad/v2.0": ("rajpurkar/squad_v2", "squad_v2", "main"),
    "swag": ("allenai/swag", "regular", "main"),
    "conll2003": ("eriktks/conll2003", "conll2003", "refs/convert/parquet"),
}
# Files of a split are named SPLIT-00000-of-00001.parquet or SPLIT/0000.parquet.
_SPLIT = re.compile(r"([a-z_]+)(?:-\d+-of-\d+|/\d+)\.parquet")


class ParquetRows:
    """The rows of Parquet files, in memory, read like a data source of TFDS.

    Raises ValueError if a file is damaged.
    """

    def __init__(self, paths: Iterable[Path]):
        import pyarrow

        tables = []
        for path in paths:
            with open_parquet(str(path)) as file, explained_parquet(str(path)):
                tables.append(file.read())
        self._table = pyarrow.concat_tables(tables)

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitems__(self, rows: range) -> list[dict[str, Any]]:
        return self._table.slice(rows.start, len(rows)).to_pylist()


def open_hub(name: str) -> tuple[str, dict[str, ParquetRows]]:
    """Downloads a dataset that is named as in TFDS; returns (name on the hub, {split: rows}).

    Files downloaded before are read from the local cache of the hub, also without a network.

    Raises:
        FileNotFoundError: the dataset is neither in the cache nor can it be downloaded.
        ValueError: a file is damaged, or there are no Parquet files.
    """
    if name not in HUB:
        raise FileNotFoundError(
            f"The hub address of {name} is not known: give --data_dir the folder with its official "
            "files, or --tfds_data_dir a folder in which TensorFlow Datasets prepared it."
        )
    repository, subfolder, revision = HUB[name]
    root = fetch(
        repository,
        [f"{subfolder}/*.parquet", f"{subfolder}/*/*.parquet"],
        kind="dataset",
        revision=revision,
        remedy=" Or give --data_dir a folder with the official files, or --tfds_data_dir one that "
        "TFDS prepared.",
    )
    folder = root / subfolder
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        if match := _SPLIT.fullmatch(path.relative_to(folder).as_posix()):
            files.setdefault(match[1], []).append(path)
    if not files:
        raise ValueError(
            f"{folder} has no Parquet files: delete it, so that they are downloaded again."
        )
    splits = {split: ParquetRows(paths) for split, paths in files.items()}
    return f"{repository}/{subfolder}", splits


# Rows per read. Reading many rows at once is four times as fast as reading one at a time.
ROWS_PER_READ = 256
OFFICIAL_FILES = " Or give --data_dir a folder with the official files."


class DatasetRow(NamedTuple):
    """One row of a split: `number` counts from 0 in it, and `where` is for error messages."""

    fields: Mapping[str, Any]
    number: int
    where: str
    split: str
    counts: ChangeCounts


class DatasetSource(Source):
    """Reads a dataset, in the order of its files, from TFDS or from the Hugging Face hub.

    A dataset that TFDS has prepared as ArrayRecord is read from its folder. Otherwise the Parquet
    files of the Hugging Face hub are downloaded or, if `data_dir`, TFDS's data folder, is
    set, TFDS downloads and prepares the dataset, which requires TensorFlow for glue and conll2003.

    Its name is that of the dataset in TFDS with its version, or on the hub; its splits are named as
    in bertjax ("dev" instead of "validation").
    """

    def __init__(
        self,
        builder: str,
        convert: Callable[[DatasetRow], Example | None],
        data_dir: str | None = None,
    ):
        """Opens the dataset, which is downloaded first if necessary.

        Args:
            builder: name of the dataset in TFDS, as `NAME[/CONFIG][:VERSION]`.
            convert: function that converts a row to an example, or to None if the row is left out.
            data_dir: data folder of TFDS; if None, the default of the library.

        Raises:
            ValueError: TFDS does not know or cannot prepare the dataset, or a file is damaged.
            FileNotFoundError: the dataset cannot be downloaded from the hub.
        """
        self._convert = convert
        if data_dir is not None or _is_prepared(builder):
            name, data = open_tfds_splits(builder, data_dir, hint=OFFICIAL_FILES)
        else:
            name, data = open_hub(builder)
        # "validation_matched" becomes "dev_matched".
        data = {split.replace("validation", "dev"): rows for split, rows in data.items()}
        super().__init__(name, {split: data[split] for split in sorted(data, key=_split_order)})

    def parse(self, split: str) -> Iterator[Example]:
        data = self.files[split]
        for start in range(0, len(data), ROWS_PER_READ):
            rows = range(start, min(start + ROWS_PER_READ, len(data)))
            for number, fields in zip(rows, data.__getitems__(rows), strict=True):
                where = f"{self.name}, {split} {number}"
                example = self._convert(DatasetRow(fields, number, where, split, self.counts))
                if example is not None:
                    yield example

    def refuse(self, split: str, problems: Sequence[str]) -> None:
        if problems:
            raise error_of(problems, split)


def official_source(
    options: TaskOptions,
    files: Callable[[str], Source],
    builder: str,
    convert: Callable[[DatasetRow], Example | None],
) -> Source:
    """Opens `files` in the folder `options.data_dir`, or else a dataset as `DatasetSource` does."""
    if options.data_dir is not None:
        return files(options.data_dir)
    return DatasetSource(builder, convert, options.tfds_data_dir)


def _is_prepared(builder: str) -> bool:
    """Returns whether TFDS has prepared a dataset; TFDS is imported only if its folder has one."""
    folder = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    is_there = "://" in folder or (Path(folder).expanduser() / builder).is_dir()
    return (is_there or "tensorflow_datasets" in sys.modules) and is_prepared(builder)


def decode(value: Any) -> str:
    """Converts a text of a dataset, which is bytes if read with TFDS, to str."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _split_order(split: str) -> tuple[int, str]:
    names = ("train", "dev", "test")
    first = split.partition("_")[0]
    return (names.index(first) if first in names else len(names), split)
