"""Reads official tasks from the Parquet files on the Hugging Face hub, without TensorFlow."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.data.text.tables import explained_parquet, open_parquet
from bertjax.tokenization.hub import fetch


class HubDataset(NamedTuple):
    """A dataset on the hub that has the data of a benchmark task as Parquet files.

    Attributes:
        repository: the repository, OWNER/NAME.
        folder: the folder with the Parquet files.
        revision: the branch with the Parquet files.
    """

    repository: str
    folder: str
    revision: str = "main"


# Names of datasets in TFDS, and where the hub has the same rows.
HUB: dict[str, HubDataset] = {
    **{
        f"glue/{name}": HubDataset("nyu-mll/glue", name)
        for name in "cola sst2 mrpc stsb qqp mnli qnli rte wnli ax".split()
    },
    "squad/v1.1": HubDataset("rajpurkar/squad", "plain_text"),
    "squad/v2.0": HubDataset("rajpurkar/squad_v2", "squad_v2"),
    "swag": HubDataset("allenai/swag", "regular"),
    "conll2003": HubDataset("eriktks/conll2003", "conll2003", "refs/convert/parquet"),
}
# Files of a split are named SPLIT-00000-of-00001.parquet or SPLIT/0000.parquet.
_SPLIT = re.compile(r"([a-z_]+)(?:-\d+-of-\d+|/\d+)\.parquet")


class ParquetRows:
    """The rows of Parquet files, read like a data source of TFDS: by `len` and `__getitems__`."""

    def __init__(self, paths: Iterable[Path]):
        """Reads the files `paths` into memory.

        Raises:
            ValueError: a file is damaged.
        """
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
    dataset = HUB.get(name)
    if dataset is None:
        raise FileNotFoundError(
            f"The hub address of {name} is not known: give --data_dir the folder with its official "
            "files, or --tfds_data_dir a folder in which TensorFlow Datasets prepared it."
        )
    root = fetch(
        dataset.repository,
        [f"{dataset.folder}/*.parquet", f"{dataset.folder}/*/*.parquet"],
        kind="dataset",
        revision=dataset.revision,
        remedy=" Or give --data_dir a folder with the official files, or --tfds_data_dir one that "
        "TFDS prepared.",
    )
    folder = root / dataset.folder
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        if match := _SPLIT.fullmatch(path.relative_to(folder).as_posix()):
            files.setdefault(match[1], []).append(path)
    if not files:
        raise ValueError(
            f"{folder} has no Parquet files: delete it, so that they are downloaded again."
        )
    splits = {split: ParquetRows(paths) for split, paths in files.items()}
    return f"{dataset.repository}/{dataset.folder}", splits
