"""Reads examples from TensorFlow Datasets without TensorFlow."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bertjax.data.text.tables import open_tfds_splits
from bertjax.tasks.sources.official_files import reset_counts, value_of_split
from bertjax.tasks.task import Example

# Reading many rows at once is four times as fast as reading one at a time.
ROWS_PER_READ = 256
# Our names of the splits whose names differ. What follows "_" (as in dev_matched) is the same.
_SPLITS = {"validation": "dev"}
OFFICIAL_FILES = " Or give --data_dir a folder with the official files."


class TfdsRow(NamedTuple):
    """One row of a split.

    Attributes:
        fields: the values by name.
        number: position in the split.
        where: dataset, split and position, for error messages.
        split: name of the split.
        counts: counts the examples that were changed or left out, by split and reason.
    """

    fields: Mapping[str, Any]
    number: int
    where: str
    split: str
    counts: Counter[str]


class TfdsSource:
    """Reads a dataset in the order of its prepared files.

    A dataset that was prepared as ArrayRecord is read directly. Any other is downloaded and
    prepared first, for which glue and conll2003 need TensorFlow.

    Attributes:
        name: name of the dataset with its version.
        splits: the splits of the dataset.
        counts: number of examples that were changed or left out, by split and reason, for the
            splits that have been read.
    """

    def __init__(
        self,
        builder: str,
        convert: Callable[[TfdsRow], Example | None],
        data_dir: str | None = None,
    ):
        """Opens the dataset, and prepares it first if necessary.

        Args:
            builder: NAME[/CONFIG][:VERSION].
            convert: converts a row to an example, or to None to leave it out.
            data_dir: data folder of TensorFlow Datasets; None: its default.

        Raises:
            ValueError: the dataset is unknown, cannot be downloaded, or TensorFlow is missing.
        """
        self._convert = convert
        self.counts: Counter[str] = Counter()
        self.name, sources = open_tfds_splits(builder, data_dir, otherwise=OFFICIAL_FILES)
        self._sources = {_our_split(split): source for split, source in sources.items()}
        self.splits = tuple(sorted(self._sources, key=_split_order))

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split lazily.

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
    """Converts a text of TensorFlow Datasets, which is in bytes, to str."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _our_split(split: str) -> str:
    name, separator, rest = split.partition("_")
    return _SPLITS.get(name, name) + separator + rest


def _split_order(split: str) -> tuple[int, str]:
    names = ("train", "dev", "test")
    first = split.partition("_")[0]
    return (names.index(first) if first in names else len(names), split)
