"""Reads examples from TensorFlow Datasets (TFDS) without TensorFlow."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bertjax.data.text.tables import open_tfds_splits
from bertjax.tasks.sources.official_files import reset_counts, value_of_split
from bertjax.tasks.task import Example

# Rows per read. Reading many rows at once is four times as fast as reading one at a time.
ROWS_PER_READ = 256
# Split names of TFDS that have another name in bertjax; a suffix such as "_matched" is kept.
_SPLITS = {"validation": "dev"}
OFFICIAL_FILES = " Or give --data_dir a folder with the official files."


class TfdsRow(NamedTuple):
    """One row of a split in TensorFlow Datasets.

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
    counts: Counter[str]


class TfdsSource:
    """Reads a dataset of TensorFlow Datasets in the order of its prepared files.

    A dataset that was prepared as ArrayRecord is read directly. Any other dataset is downloaded and
    prepared first, which requires TensorFlow for glue and conll2003.

    Attributes:
        name: name of the dataset with its version.
        splits: the splits of the dataset.
        counts: {"SPLIT: REASON": number of changed or omitted examples} of all splits read.
    """

    def __init__(
        self,
        builder: str,
        convert: Callable[[TfdsRow], Example | None],
        data_dir: str | None = None,
    ):
        """Opens the dataset, which is first downloaded and prepared if it is not prepared yet.

        Args:
            builder: name of the dataset, as NAME[/CONFIG][:VERSION].
            convert: function that converts a row to an example, or to None if the row is left out.
            data_dir: data folder of TensorFlow Datasets; if None, the default of the library.

        Raises:
            ValueError: the dataset is unknown or cannot be downloaded, or TensorFlow is missing.
        """
        self._convert = convert
        self.counts: Counter[str] = Counter()
        self.name, sources = open_tfds_splits(builder, data_dir, hint=OFFICIAL_FILES)
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
                example = self._convert(TfdsRow(fields, number, where, split, self.counts))
                if example is not None:
                    yield example


def decode(value: Any) -> str:
    """Converts a text from TensorFlow Datasets, which may be bytes, to str."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _our_split(split: str) -> str:
    name, separator, rest = split.partition("_")
    return _SPLITS.get(name, name) + separator + rest


def _split_order(split: str) -> tuple[int, str]:
    names = ("train", "dev", "test")
    first = split.partition("_")[0]
    return (names.index(first) if first in names else len(names), split)
