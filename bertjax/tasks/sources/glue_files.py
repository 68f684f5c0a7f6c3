"""Reads the official files of the GLUE tasks (Wang et al. 2018)."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from bertjax.files import brief
from bertjax.tasks.metrics import Metric
from bertjax.tasks.sources.datasets import DatasetRow, decode
from bertjax.tasks.sources.official_files import OfficialFiles, existing, reset_counts
from bertjax.tasks.sources.row_readers import place, read_number, read_tsv
from bertjax.tasks.task import Example

# Possible file names of each split.
SPLIT_FILES = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}
# File names of GLUE's list of the rows of MRPC's train file that form the dev split.
MRPC_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSpec:
    """Describes a task of GLUE, or a task with files in GLUE's format.

    Attributes:
        name: the name of the task on the command line, in TFDS and on the hub.
        folder: the folder of the task in the GLUE archive.
        metric: the official metric.
        best_metric: name of the metric, among those that `metric` computes, that selects the best
            checkpoint.
        text: possible names of the column with the text or the first text of a pair.
        pair: possible names of the column with the second text; empty if there is no second text.
        label: possible names of the column with the label.
        labels: class names in the order of the class ids of Hugging Face and TFDS; empty for
            regression.
        codes: the string for each class in the files and in a submission, in the order of `labels`.
        submission: {split: name of the predictions file in a submission to GLUE's server}.
        files: {split: possible names of the official file of the split}.
        dataset_fields: names of the fields with the text and, if any, the second text in TFDS and
            on the hub.
        no_header: {split: column names} for the splits whose files have no header.
        has_broken_rows: whether the official files have malformed rows. If so, rows with missing
            fields are left out of the train and dev splits, and an empty text is replaced by "?".
    """

    name: str
    folder: str
    metric: Metric
    best_metric: str = "accuracy"
    text: tuple[str, ...] = ("sentence1",)
    pair: tuple[str, ...] = ("sentence2",)
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...]
    codes: tuple[str, ...] = ()
    submission: dict[str, str] = dataclasses.field(default_factory=dict)
    files: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: SPLIT_FILES)
    dataset_fields: tuple[str, ...] = ("sentence1", "sentence2")
    no_header: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    has_broken_rows: bool = False


class GlueSource(OfficialFiles):
    """Reads the official files of a GLUE task.

    Attributes:
        spec: the `GlueSpec` of the task.
    """

    def __init__(self, spec: GlueSpec, data_dir: Path | str):
        """Finds the task's files in `data_dir`, which is the folder of the task or of all tasks."""
        super().__init__(spec.name, data_dir, (spec.folder, spec.name.upper()), spec.files)
        self.spec = spec
        is_msr = "dev" in self._paths and self._paths["dev"].suffix == ".txt"
        if is_msr and not existing(self.folder, MRPC_DEV_IDS):
            # Without GLUE's list, the dev rows in Microsoft's train file are unknown.
            del self._paths["dev"]
            self.splits = tuple(self._paths)

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split lazily, in the order of its file.

        Raises:
            ValueError: the split does not exist, or a row is malformed; the message names the row.
        """
        path = self.path(split)
        reset_counts(self.counts, split)
        if path.suffix == ".txt":
            return self._read_msr(split, path)
        return read_glue_file(self.spec, path, split, self.counts)

    def _read_msr(self, split: str, path: Path) -> Iterator[Example]:
        """Reads those rows of a Microsoft MRPC file that belong to the split `split` of GLUE.

        GLUE's dev split consists of listed rows of Microsoft's train file.
        """
        examples = read_glue_file(self.spec, path, split, self.counts)
        ids = existing(self.folder, MRPC_DEV_IDS)
        if split == "test" or ids is None:
            return examples
        dev = {tuple(fields[:2]) for _, fields in read_tsv(ids)}
        rows = read_tsv(path)
        header = _header(rows, path)
        first, second = header.index("#1 ID"), header.index("#2 ID")
        in_dev = [(fields[first], fields[second]) in dev for _, fields in rows]
        pairs = zip(examples, in_dev, strict=True)
        return (example for example, is_dev in pairs if is_dev == (split == "dev"))


def read_glue_file(
    spec: GlueSpec, path: Path, split: str, counts: Counter[str] | None = None
) -> Iterator[Example]:
    """Reads the examples of a file in GLUE's format, in the order of the rows.

    Args:
        spec: the `GlueSpec` of the task.
        path: the file, which may have any name.
        split: the split of the file; the file has no header if `spec.no_header` has this split.
        counts: counter to which the numbers of omitted rows are added, under keys "SPLIT: REASON".

    Raises:
        ValueError: a row is malformed; the message names the row.
    """
    counts = Counter() if counts is None else counts
    rows = read_tsv(path)
    header = spec.no_header.get(split) or _header(rows, path)
    columns = _Columns.of(spec, header, path)
    for count, (number, fields) in enumerate(rows):
        # Extra tabs at the end of a row and missing fields that are not read are harmless.
        if len(fields) <= columns.last or any(fields[len(header) :]):
            if spec.has_broken_rows and not split.startswith("test"):
                counts[f"{split}: rows with missing fields"] += 1
                continue
            raise ValueError(
                f"{place(path, number)} has {len(fields)} fields instead of {len(header)} "
                f"({brief(', '.join(header))}) with tabs between them. Restore the official file."
            )
        code = None if columns.label is None else fields[columns.label]
        if code == "-":
            counts[f"{split}: rows without a gold label"] += 1
            continue
        where = place(path, number)
        yield Example(
            id=str(count) if columns.id is None else fields[columns.id],
            where=where,
            text=legible(spec, fields[columns.text]),
            pair=None if columns.pair is None else legible(spec, fields[columns.pair]),
            label=None if code is None else read_label(spec, code, where),
        )


def legible(spec: GlueSpec, text: str) -> str:
    """Returns `text`, or "?" for an empty text if `spec` says that the task `has_broken_rows`."""
    return "?" if spec.has_broken_rows and not text.strip() else text


def read_label(spec: GlueSpec, code: str, where: str) -> str | float:
    """Converts `code`, a label in a GLUE file, to a class name or, for regression, to a number.

    `spec` describes the task, and `where` names the row in the message of an error.

    Raises:
        ValueError: the label is not a class of the task, or is not a number for regression.
    """
    if spec.labels:
        if code in spec.codes:
            return spec.labels[spec.codes.index(code)]
        expected = f"one of {', '.join(spec.codes)}"
    else:
        score = read_number(code)
        if score is not None:
            return score
        expected = "a number"
    raise ValueError(
        f"{where}: label {brief(code, 60)!r} of {spec.name} is not {expected}. Correct the row."
    )


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Column indices of the id, texts and label in a GLUE file; None for a missing column."""

    id: int | None
    text: int
    pair: int | None
    label: int | None

    @property
    def last(self) -> int:
        return max(index for index in dataclasses.astuple(self) if index is not None)

    @classmethod
    def of(cls, spec: GlueSpec, header: tuple[str, ...], path: Path) -> "_Columns":
        def find(names: tuple[str, ...]) -> int | None:
            return next((header.index(name) for name in names if name in header), None)

        text, pair = find(spec.text), find(spec.pair)
        if text is None or (spec.pair and pair is None):
            needed = ", ".join(names[0] for names in (spec.text, spec.pair) if names)
            raise ValueError(
                f"{place(path, 1)} should name the columns of {spec.name}, with {needed} among "
                f"them, but reads: {brief(', '.join(header))}. Restore the official file."
            )
        return cls(find(("index", "id")), text, pair, find(spec.label))


def _header(rows: Iterator[tuple[int, list[str]]], path: Path) -> tuple[str, ...]:
    for _, fields in rows:
        return tuple(field.strip() for field in fields)
    raise ValueError(f"{path} is empty. Restore the official file.")


def dataset_reader(spec: GlueSpec) -> Callable[[DatasetRow], Example]:
    """Returns a function that converts a row of a GLUE task in a dataset to an `Example`."""

    def convert(row: DatasetRow) -> Example:
        texts = [legible(spec, decode(row.fields[name])) for name in spec.dataset_fields]
        label = row.fields["label"]
        # Test splits hold -1 in place of a class or a score.
        known = label >= 0
        return Example(
            id=str(row.fields["idx"]),
            where=row.where,
            text=texts[0],
            pair=texts[1] if len(texts) > 1 else None,
            label=(spec.labels[label] if spec.labels else float(label)) if known else None,
        )

    return convert
