"""The official examples of a task: its files in a folder, TensorFlow Datasets, or the Hub.

Parquet files of the Hugging Face Hub are read without TensorFlow, and so are prepared TFDS.
"""

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.cloud.hub import fetch
from bertjax.config.task_options import OfficialOptions
from bertjax.data.text.tables import explained_parquet, is_prepared, open_parquet, open_tfds_splits
from bertjax.tasks.dataset import ChangeCounts, Dataset, Example


def find_files(
    task: str, data_dir: Path | str, folders: Sequence[str], names: Mapping[str, Sequence[str]]
) -> tuple[Path, dict[str, Path]]:
    """Finds the official files of a task in `data_dir`, the folder of the task or its parent.

    Args:
        folders: possible names of the folder of the task.
        names: {split: possible file names}; the first file that exists is taken.

    Returns:
        The folder, and {split: its file} for the splits that have one.

    Raises:
        FileNotFoundError: no file of the task exists.
    """
    data_dir = Path(data_dir).expanduser()
    for name in (*folders, ""):
        folder = data_dir / name
        files = {}
        for split, possible in names.items():
            if path := existing(folder, possible):
                files[split] = path
        if files:
            return folder, files
    listed = ", ".join(sorted(set(itertools.chain(*names.values()))))
    raise FileNotFoundError(
        f"No file of {task} ({listed}) is in {data_dir} or {data_dir / folders[0]}: give "
        "--data_dir a folder with the official files."
    )


def existing(folder: Path, names: Sequence[str]) -> Path | None:
    """Returns the path of the first of `names` that is a file in `folder`, or None."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    return None


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


def prepared_dataset(
    builder: str,
    convert: Callable[[DatasetRow], Example | None],
    data_dir: str | None = None,
) -> Dataset:
    """Reads a dataset, in the order of its files, from TFDS or from the Hugging Face hub.

    A dataset that TFDS has prepared as ArrayRecord is read from its folder. Otherwise the Parquet
    files of the Hugging Face hub are downloaded or, if `data_dir`, TFDS's data folder, is
    set, TFDS downloads and prepares the dataset, which requires TensorFlow for glue and conll2003.

    Its name is that of the dataset in TFDS with its version, or on the hub; its splits are named as
    in bertjax ("dev" instead of "validation").

    Args:
        builder: name of the dataset in TFDS, as `NAME[/CONFIG][:VERSION]`.
        convert: function that converts a row to an example, or to None if the row is left out.
        data_dir: data folder of TFDS; if None, the default of the library.

    Raises:
        ValueError: TFDS does not know or cannot prepare the dataset, or a file is damaged.
        FileNotFoundError: the dataset cannot be downloaded from the hub.
    """
    if data_dir is not None or _is_prepared(builder):
        name, data = open_tfds_splits(builder, data_dir, hint=OFFICIAL_FILES)
    else:
        name, data = open_hub(builder)
    # "validation_matched" becomes "dev_matched".
    data = {split.replace("validation", "dev"): rows for split, rows in data.items()}

    def parse(split: str, counts: ChangeCounts) -> Iterator[Example]:
        rows = data[split]
        for start in range(0, len(rows), ROWS_PER_READ):
            numbers = range(start, min(start + ROWS_PER_READ, len(rows)))
            for number, fields in zip(numbers, rows.__getitems__(numbers), strict=True):
                where = f"{name}, {split} {number}"
                example = convert(DatasetRow(fields, number, where, split, counts))
                if example is not None:
                    yield example

    splits = sorted(data, key=_split_order)
    return Dataset.read(name, {split: Path(f"{name}, {split}") for split in splits}, parse)


def official_dataset(
    options: OfficialOptions,
    files: Callable[[str], Dataset],
    builder: str,
    convert: Callable[[DatasetRow], Example | None],
) -> Dataset:
    """Reads `files` in `options.data_dir`, or else a dataset as `prepared_dataset` does."""
    if options.data_dir is not None:
        return files(options.data_dir)
    return prepared_dataset(builder, convert, options.tfds_data_dir)


def _is_prepared(builder: str) -> bool:
    """Returns whether TFDS has prepared a dataset; TFDS is imported only if its folder has one."""
    folder = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    is_there = "://" in folder or (Path(folder).expanduser() / builder).is_dir()
    return (is_there or "tensorflow_datasets" in sys.modules) and is_prepared(builder)


def decode(value: Any) -> str:
    """Converts a text of a dataset, which is bytes if read with TFDS, to str."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return str(value)


def _split_order(split: str) -> tuple[int, str]:
    names = ("train", "dev", "test")
    first = split.partition("_")[0]
    return (names.index(first) if first in names else len(names), split)
