"""Reads examples from TensorFlow Datasets (TFDS) or the Hugging Face hub without TensorFlow."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bertjax.data.text.tables import is_prepared, open_tfds_splits
from bertjax.tasks.sources.hub_datasets import open_hub
from bertjax.tasks.sources.official_files import ChangeCounts, reset_counts, value_of_split
from bertjax.tasks.task import Example

# Rows per read. Reading many rows at once is four times as fast as reading one at a time.
ROWS_PER_READ = 256
# Split names of datasets that have another name in bertjax; a suffix such as "_matched" is kept.
_SPLITS = {"validation": "dev"}
OFFICIAL_FILES = " Or give --data_dir a folder with the official files."


class DatasetRow(NamedTuple):
    """One row of a split of a dataset.

    Attributes:
        fields: the values of the row by field name.
        number: the index of the row in the split, from 0.
        where: dataset, split and index of the row, for error messages.
        split: the name of the split.
        counts: a counter of changed or omitted examples, with keys "SPLIT: REASON".
    """

    fields: Mapping[str, Any]
    number: int
    where: str
    split: str
    counts: ChangeCounts


class DatasetSource:
    """Reads a dataset, in the order of its files, from TFDS or from the Hugging Face hub.

    A dataset that TFDS has prepared as ArrayRecord is read from its folder. Otherwise the Parquet
    files of the Hugging Face hub are downloaded or, if `data_dir`, TFDS's data folder, is
    set, TFDS downloads and prepares the dataset, which requires TensorFlow for glue and conll2003.

    Attributes:
        name: name of the dataset in TFDS with its version, or its name on the hub.
        splits: the splits of the dataset, named as in bertjax ("dev" instead of "validation").
        counts: {"SPLIT: REASON": number of changed or omitted examples} of all splits read.
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
        self.counts = ChangeCounts()
        if data_dir is not None or is_prepared(builder, None):
            self.name, sources = open_tfds_splits(builder, data_dir, hint=OFFICIAL_FILES)
        else:
            self.name, sources = open_hub(builder)
        self._sources = {_our_split(split): source for split, source in sources.items()}
        self.splits = tuple(sorted(self._sources, key=_split_order))

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split lazily, in the order of the dataset.

        Raises:
            ValueError: the split does not exist.
        """
        source = value_of_split(self.name, split, self._sources)
        reset_counts(self.counts, split)
        return self._read(split, source)

    def _read(self, split: str, source: Any) -> Iterator[Example]:
        for start in range(0, len(source), ROWS_PER_READ):
            rows = range(start, min(start + ROWS_PER_READ, len(source)))
            for number, fields in zip(rows, source.__getitems__(rows), strict=True):
                where = f"{self.name}, {split} {number}"
                example = self._convert(DatasetRow(fields, number, where, split, self.counts))
                if example is not None:
                    yield example


def decode(value: Any) -> str:
    """Converts a text of a dataset (bytes if read with TFDS, str if from the hub) to str."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _our_split(split: str) -> str:
    name, separator, rest = split.partition("_")
    return _SPLITS.get(name, name) + separator + rest


def _split_order(split: str) -> tuple[int, str]:
    names = ("train", "dev", "test")
    first = split.partition("_")[0]
    return (names.index(first) if first in names else len(names), split)
