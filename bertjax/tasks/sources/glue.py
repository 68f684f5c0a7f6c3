"""The tasks of GLUE, read from the official files as published (Wang et al. 2018)."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from bertjax.tasks.sources.official_files import existing, path_of_split, task_folder
from bertjax.tasks.sources.table_files import place, read_number, read_tsv
from bertjax.tasks.task import Example

# Split -> names of its file, the first that exists is read.
SPLIT_FILES = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}
MNLI_FILES = {
    "train": ("train.tsv",),
    "dev_matched": ("dev_matched.tsv",),
    "dev_mismatched": ("dev_mismatched.tsv",),
    "test_matched": ("test_matched.tsv",),
    "test_mismatched": ("test_mismatched.tsv",),
}
# MRPC cannot be redistributed: its users have Microsoft's files, or those that GLUE's script makes.
MRPC_FILES = {
    "train": ("train.tsv", "msr_paraphrase_train.txt"),
    "dev": ("dev.tsv", "msr_paraphrase_train.txt"),
    "test": ("test.tsv", "msr_paraphrase_test.txt"),
}
MRPC_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")
NLI = ("entailment", "neutral", "contradiction")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSpec:
    """A task's files, columns and classes.

    Attributes:
        name: as on the command line, and the name of its TFDS configuration.
        folder: the folder in the GLUE archive.
        text: names that the column of the (first) text may have.
        pair: the same of the second text; empty if there is none.
        label: the same of the label.
        labels: classes in the order of their ids, which is Hugging Face's and that of TFDS; empty
            for regression.
        codes: what the files and a submission write for each class.
        submission: split -> file in a submission.
        files: split -> names that its file may have.
        tfds_fields: the text and the second text in TFDS.
        no_header: columns of the splits without a header.
        has_broken_rows: the published files have rows with missing fields, which nobody uses, and
            may have some with an empty text.
    """

    name: str
    folder: str
    text: tuple[str, ...] = ("sentence1",)
    pair: tuple[str, ...] = ("sentence2",)
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...]
    codes: tuple[str, ...] = ()
    submission: dict[str, str]
    files: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: SPLIT_FILES)
    tfds_fields: tuple[str, ...] = ("sentence1", "sentence2")
    no_header: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    has_broken_rows: bool = False

    @property
    def kind(self) -> Literal["classes", "regression"]:
        """The kind of answer."""
        return "classes" if self.labels else "regression"


_COLA_COLUMNS = ("source", "label", "mark", "sentence")

GLUE: dict[str, GlueSpec] = {
    spec.name: spec
    for spec in (
        GlueSpec(
            name="cola",
            folder="CoLA",
            text=("sentence",),
            pair=(),
            labels=("unacceptable", "acceptable"),
            codes=("0", "1"),
            submission={"test": "CoLA.tsv"},
            tfds_fields=("sentence",),
            no_header={"train": _COLA_COLUMNS, "dev": _COLA_COLUMNS},
        ),
        GlueSpec(
            name="sst2",
            folder="SST-2",
            text=("sentence",),
            pair=(),
            labels=("negative", "positive"),
            codes=("0", "1"),
            submission={"test": "SST-2.tsv"},
            tfds_fields=("sentence",),
        ),
        GlueSpec(
            name="mrpc",
            folder="MRPC",
            text=("#1 String",),
            pair=("#2 String",),
            label=("Quality",),
            labels=("not_equivalent", "equivalent"),
            codes=("0", "1"),
            submission={"test": "MRPC.tsv"},
            files=MRPC_FILES,
        ),
        GlueSpec(
            name="stsb",
            folder="STS-B",
            label=("score",),
            labels=(),
            submission={"test": "STS-B.tsv"},
        ),
        GlueSpec(
            name="qqp",
            folder="QQP",
            text=("question1",),
            pair=("question2",),
            label=("is_duplicate",),
            labels=("not_duplicate", "duplicate"),
            codes=("0", "1"),
            submission={"test": "QQP.tsv"},
            tfds_fields=("question1", "question2"),
            has_broken_rows=True,
        ),
        GlueSpec(
            name="mnli",
            folder="MNLI",
            label=("gold_label",),
            labels=NLI,
            codes=NLI,
            submission={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
            files=MNLI_FILES,
            tfds_fields=("premise", "hypothesis"),
        ),
        GlueSpec(
            name="qnli",
            folder="QNLI",
            text=("question",),
            pair=("sentence",),
            labels=("entailment", "not_entailment"),
            codes=("entailment", "not_entailment"),
            submission={"test": "QNLI.tsv"},
            tfds_fields=("question", "sentence"),
        ),
        GlueSpec(
            name="rte",
            folder="RTE",
            labels=("entailment", "not_entailment"),
            codes=("entailment", "not_entailment"),
            submission={"test": "RTE.tsv"},
        ),
        GlueSpec(
            name="wnli",
            folder="WNLI",
            labels=("not_entailment", "entailment"),
            codes=("0", "1"),
            submission={"test": "WNLI.tsv"},
        ),
        # The diagnostic: no training of its own, the model is MNLI's.
        GlueSpec(
            name="ax",
            folder="diagnostic",
            text=("sentence1", "Premise"),
            pair=("sentence2", "Hypothesis"),
            label=("label", "Label"),
            labels=NLI,
            codes=NLI,
            submission={"test": "AX.tsv"},
            files={"test": ("diagnostic.tsv", "AX.tsv", "diagnostic-full.tsv")},
            tfds_fields=("premise", "hypothesis"),
        ),
    )
}


class GlueSource:
    """Examples from a task's official files.

    Attributes:
        spec: the task.
        folder: where its files lie.
        splits: those whose files are there.
        counts: what was left out, by split and reason, of the splits read so far.
    """

    def __init__(self, spec: GlueSpec, data_dir: Path | str):
        """Finds the files.

        Args:
            spec: the task.
            data_dir: the task's own folder, or the one that holds the folders of all tasks.

        Raises:
            FileNotFoundError: no file of the task is there.
        """
        self.spec = spec
        self.counts: Counter = Counter()
        self.folder = task_folder(spec.name, data_dir, (spec.folder, spec.name.upper()), spec.files)
        self._paths = _find_files(spec, self.folder)
        self.splits = tuple(self._paths)

    def path(self, split: str) -> Path:
        """The file of a split.

        Raises:
            ValueError: there is no such split.
        """
        return path_of_split(self.spec.name, split, self._paths)

    def examples(self, split: str) -> Iterator[Example]:
        """The examples of a split in the order of its file, read as they are asked for.

        Raises:
            ValueError: there is no such split, or a row is damaged; it is named.
        """
        path = self.path(split)
        return self._chosen(split, path) if path.suffix == ".txt" else self._read(split, path)

    def _read(self, split: str, path: Path) -> Iterator[Example]:
        """Every example of a file."""
        for reason in [key for key in self.counts if key.startswith(f"{split}: ")]:
            del self.counts[reason]
        return read_glue_file(self.spec, path, split, self.counts)

    def _chosen(self, split: str, path: Path) -> Iterator[Example]:
        """Those examples of Microsoft's MRPC files that GLUE gives to a split."""
        ids = existing(self.folder, MRPC_DEV_IDS)
        if split == "test" or ids is None:
            return self._read(split, path)
        dev = {tuple(fields[:2]) for _, fields in read_tsv(ids)}
        rows = read_tsv(path)
        header = _header(rows, path)
        first, second = header.index("#1 ID"), header.index("#2 ID")
        in_dev = [(fields[first], fields[second]) in dev for _, fields in rows]
        examples = zip(self._read(split, path), in_dev, strict=True)
        return (example for example, is_dev in examples if is_dev == (split == "dev"))


def read_glue_file(
    spec: GlueSpec, path: Path, split: str, counts: Counter[str] | None = None
) -> Iterator[Example]:
    """The examples of a file in its order.

    Args:
        spec: the task.
        path: a file of any name.
        split: which one it is: some have no header, some may have broken rows.
        counts: of the rows left out, by split and reason; they are added to.

    Raises:
        ValueError: a row is damaged; it is named.
    """
    counts = Counter() if counts is None else counts
    rows = read_tsv(path)
    header = spec.no_header.get(split) or _header(rows, path)
    columns = _Columns.of(spec, header, path)
    for count, (number, fields) in enumerate(rows):
        # Tabs at the end of a row are harmless, as are missing fields that nobody reads.
        if len(fields) <= columns.last or any(fields[len(header) :]):
            if spec.has_broken_rows and not split.startswith("test"):
                counts[f"{split}: rows with missing fields"] += 1
                continue
            raise ValueError(
                f"{place(path, number)} has {len(fields)} fields, expected {len(header)} "
                f"({', '.join(header)}): tabs part them. Restore the official file."
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
    """The text, or a question mark for an empty one of a task that has such: no row gets lost."""
    return "?" if spec.has_broken_rows and not text.strip() else text


def read_label(spec: GlueSpec, code: str, where: str) -> str | float:
    """The class that a file writes as `code`, or a score.

    Raises:
        ValueError: it is none of the task's.
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
    raise ValueError(f"{where}: label {code!r} of {spec.name} is not {expected}.")


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Which field of a row is what."""

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
                f"them, but reads: {', '.join(header)[:200]}. Restore the official file."
            )
        return cls(find(("index", "id")), text, pair, find(spec.label))


def _header(rows: Iterator[tuple[int, list[str]]], path: Path) -> tuple[str, ...]:
    for _, fields in rows:
        return tuple(field.strip() for field in fields)
    raise ValueError(f"{path} is empty. Restore the official file.")


def _find_files(spec: GlueSpec, folder: Path) -> dict[str, Path]:
    found = {split: existing(folder, names) for split, names in spec.files.items()}
    paths = {split: path for split, path in found.items() if path is not None}
    if "dev" in paths and paths["dev"].suffix == ".txt" and not existing(folder, MRPC_DEV_IDS):
        # Without GLUE's list nobody can tell which rows of Microsoft's file are its dev split.
        del paths["dev"]
    return paths
