"""GLUE's tasks (Wang et al. 2018): files, definitions, submissions, averages, published scores.

A new task with files in GLUE's format needs an entry in `GLUE` and a config in configs/finetune/.
"""

import dataclasses
import functools
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief, naming_write_errors, write_text, writing
from bertjax.config.task_options import OfficialOptions
from bertjax.tasks.classification import ClassificationTask, RegressionTask
from bertjax.tasks.dataset import ChangeCounts, Dataset, Example, Fold
from bertjax.tasks.definition import (
    CalibrationOptions,
    ClassOptions,
    TaskDefinition,
    WindowOptions,
)
from bertjax.tasks.metrics import (
    Measure,
    Metric,
    accuracy,
    accuracy_and_f1,
    matthews,
    measured,
    pearson_spearman,
)
from bertjax.tasks.sources.data_files import row_name
from bertjax.tasks.sources.official import (
    DatasetRow,
    decode,
    existing,
    find_files,
    official_dataset,
)
from bertjax.tasks.sources.tables import read_number, read_tsv
from bertjax.tasks.task import Export, Pairs, Prediction, Task

SPLIT_FILES = {split: (f"{split}.tsv",) for split in ("train", "dev", "test")}
# File names of GLUE's list of the rows of MRPC's train file that form the dev split.
MRPC_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSpec:
    """Describes a task of GLUE, or a task with files in GLUE's format.

    Attributes:
        folder: the folder of the task in the GLUE archive.
        best_metric: name of the metric, among those of `metric`, that selects the best checkpoint.
        text: possible names of the column with the text or the first text of a pair.
        pair: possible names of the column with the second text; empty if there is no second text.
        label: possible names of the column with the label.
        labels: class names in the order of the class ids of Hugging Face and TFDS; empty for
            regression.
        codes: the string for each class in the files and in a submission, in the order of `labels`;
            empty: the class names.
        submission: {split: name of the predictions file in a submission to GLUE's server}.
        files: {split: possible names of the official file of the split}.
        dataset_fields: names of the one or two fields of texts in TFDS and on the hub; empty: the
            first ones of `text` and `pair`.
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
    dataset_fields: tuple[str, ...] = ()
    no_header: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    has_broken_rows: bool = False

    @property
    def written(self) -> tuple[str, ...]:
        """The classes as files and submissions write them, in the order of `labels`."""
        return self.codes or self.labels


def read_glue(spec: GlueSpec, data_dir: Path | str) -> Dataset:
    """Reads the official files of a GLUE task in its folder, or in the folder of all tasks.

    The dev split of MRPC consists of rows of Microsoft's train file, if that is the file there.

    Raises:
        FileNotFoundError: no file of the task exists.
    """
    folder, files = find_files(spec.name, data_dir, (spec.folder, spec.name.upper()), spec.files)
    ids = existing(folder, MRPC_DEV_IDS)
    if ids is None and "dev" in files and files["dev"].suffix == ".txt":
        del files["dev"]  # without GLUE's list, the dev rows in Microsoft's train file are unknown

    def parse(split: str, counts: ChangeCounts) -> Iterator[Example]:
        path = files[split]
        examples = read_glue_file(spec, path, split, counts)
        if split == "test" or path.suffix != ".txt" or ids is None:
            return examples
        return _mrpc_part(examples, path, ids, is_dev=split == "dev")

    return Dataset.read(spec.name, files, parse)


def _mrpc_part(
    examples: Iterable[Example], path: Path, ids: Path, *, is_dev: bool
) -> Iterator[Example]:
    """Yields the examples of Microsoft's train file whose pair is, or is not, in GLUE's list."""
    dev = {tuple(fields[:2]) for _, fields in read_tsv(ids)}
    rows = read_tsv(path)
    header = _header(rows, path)
    first, second = header.index("#1 ID"), header.index("#2 ID")
    for example, (_, fields) in zip(examples, rows, strict=True):
        if ((fields[first], fields[second]) in dev) == is_dev:
            yield example


def read_glue_file(
    spec: GlueSpec, path: Path, split: str, counts: Counter[str] | None = None
) -> Iterator[Example]:
    """Reads the examples of a file in GLUE's format, which may have any name.

    A file has no header if `spec.no_header` has its split. Omitted rows are counted in `counts`.

    Raises:
        ValueError: a row is malformed; the message names the row.
    """
    counts = Counter() if counts is None else counts
    rows = read_tsv(path)
    header = spec.no_header.get(split) or _header(rows, path)
    columns = _columns(spec, header, path)
    last = max(columns.values())
    for count, (number, fields) in enumerate(rows):
        where = row_name(path, number)
        # Extra tabs at the end of a row and missing fields that are not read are harmless.
        if len(fields) <= last or any(fields[len(header) :]):
            if spec.has_broken_rows and not split.startswith("test"):
                counts["rows with missing fields"] += 1
                continue
            raise ValueError(
                f"{where} has {len(fields)} fields instead of {len(header)} "
                f"({brief(', '.join(header))}) with tabs between them. Restore the official file."
            )
        found = {name: fields[index] for name, index in columns.items()}
        if found.get("label") == "-":
            counts["rows without a gold label"] += 1
            continue
        yield Example(
            id=found.get("id", str(count)),
            where=where,
            text=_legible(spec, found["text"]),
            pair=_legible(spec, found["pair"]) if spec.pair else None,
            label=_gold(spec, found["label"], where) if "label" in found else None,
        )


def _columns(spec: GlueSpec, header: Sequence[str], path: Path) -> dict[str, int]:
    """Returns {field of an example: its column} of the columns that a file has."""
    possible = {
        "text": spec.text,
        "pair": spec.pair,
        "label": spec.label,
        "id": ("index", "id"),
    }
    columns = {}
    for field, names in possible.items():
        for name in reversed(names):  # the first one counts
            if name in header:
                columns[field] = header.index(name)
    needed = [possible[field][0] for field in ("text", "pair") if possible[field]]
    if len(columns.keys() & {"text", "pair"}) < len(needed):
        raise ValueError(
            f"{row_name(path, 1)} should name the columns of {spec.name}, with "
            f"{', '.join(needed)} among them, but reads: {brief(', '.join(header))}. Restore the "
            "official file."
        )
    return columns


def _gold(spec: GlueSpec, code: str, where: str) -> str | float:
    label = read_label(spec, code, where)
    if isinstance(label, float) and not LOWEST_SCORE <= label <= HIGHEST_SCORE:
        raise ValueError(
            f"{where}: the score {label:g} of {spec.name} is not within {LOWEST_SCORE:g} to "
            f"{HIGHEST_SCORE:g}. Correct the row."
        )
    return label


def _legible(spec: GlueSpec, text: str) -> str:
    """Returns `text`, or "?" for an empty text of a task that `has_broken_rows`."""
    if spec.has_broken_rows and not text.strip():
        return "?"
    return text


def read_label(spec: GlueSpec, code: str, where: str) -> str | float:
    """Converts a code in a GLUE file to a class name or, for regression, to a number.

    Raises ValueError, which begins with `where`, if it is neither.
    """
    if not spec.labels:
        expected = "a number"
        score = read_number(code)
        if score is not None:
            return score
    else:
        expected = f"one of {', '.join(spec.written)}"
        if code in spec.written:
            return spec.labels[spec.written.index(code)]
    raise ValueError(
        f"{where}: label {brief(code, 60)!r} of {spec.name} is not {expected}. Correct the row."
    )


def _header(rows: Iterator[tuple[int, list[str]]], path: Path) -> tuple[str, ...]:
    for _, fields in rows:
        return tuple(field.strip() for field in fields)
    raise ValueError(f"{path} is empty. Restore the official file.")


def _read_dataset_row(spec: GlueSpec, row: DatasetRow) -> Example:
    """Converts a row of a GLUE task in a dataset to an `Example`."""
    names = spec.dataset_fields or (*spec.text[:1], *spec.pair[:1])
    text, *pair = (_legible(spec, decode(row.fields[name])) for name in names)
    label = row.fields["label"]
    # Test splits hold -1 in place of a class or a score.
    known = label >= 0
    return Example(
        id=str(row.fields["idx"]),
        where=row.where,
        text=text,
        pair=pair[0] if pair else None,
        label=(spec.labels[label] if spec.labels else float(label)) if known else None,
    )


SUBMISSION = "submission.zip"
HEADER = ("index", "prediction")
# The server accepts only STS-B scores in the range of the gold scores.
LOWEST_SCORE = 0.0
HIGHEST_SCORE = 5.0


def format_glue_predictions(spec: GlueSpec, predictions: Mapping[str, str | float]) -> str:
    """Formats {id: class name or score} as the text of a submission's TSV file, with a header.

    Scores are limited to 0 to 5, as in STS-B. Raises ValueError for a name that is no class.
    """
    lines = ["\t".join(HEADER)]
    for id, prediction in predictions.items():
        if not spec.labels:
            written = f"{min(max(float(prediction), LOWEST_SCORE), HIGHEST_SCORE):.4f}"
        elif prediction in spec.labels:
            written = spec.written[spec.labels.index(str(prediction))]
        else:
            raise ValueError(
                f"Prediction {prediction!r} of example {id} is not a class of {spec.name}: "
                f"{', '.join(spec.labels)}."
            )
        lines.append(f"{id}\t{written}")
    return "\n".join(lines) + "\n"


def read_glue_predictions(path: Path | str, spec: GlueSpec) -> dict[str, str | float]:
    """Reads {id: class name or score} from a TSV file of predictions for a task.

    The file may also give the codes of GLUE's files, such as "1", for classes.

    Raises:
        ValueError: a row does not consist of an id and a prediction, an id occurs twice, or a
            prediction is not a class of the task (for regression: not a number).
    """
    predictions: dict[str, str | float] = {}
    for number, fields in read_tsv(Path(path)):
        where = row_name(path, number)
        if len(fields) != len(HEADER):
            raise ValueError(
                f"{where} has {len(fields)} fields, but must have an index and a prediction with a "
                "tab between them."
            )
        id, code = (field.strip() for field in fields)
        if not predictions and (id, code) == HEADER:
            continue
        if id in predictions:
            raise ValueError(
                f"{where}: index {id} has a prediction already. Remove one of the two rows."
            )
        predictions[id] = code if code in spec.labels else read_label(spec, code, where)
    return predictions


def add_to_submission_zip(zip_path: Path | str, files: Mapping[str, str]) -> None:
    """Adds {file name: text} to a zip, which is replaced atomically and keeps its other files.

    Raises:
        ValueError: the file at `zip_path` is not a zip.
        OSError: the zip cannot be written.
    """
    zip_path = Path(zip_path)
    kept: dict[str, bytes] = {}
    if zip_path.is_file():
        if not zipfile.is_zipfile(zip_path):
            raise ValueError(
                f"{zip_path} is not a zip file: delete it, or choose another --submission."
            )
        with zipfile.ZipFile(zip_path) as old:
            kept = {name: old.read(name) for name in old.namelist() if name not in files}
    with naming_write_errors(zip_path):
        zip_path.parent.mkdir(parents=True, exist_ok=True)
    with (
        writing(zip_path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name, content in sorted({**kept, **files}.items()):
            # Without the present time, the same predictions are the same bytes.
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o644 << 16
            new.writestr(entry, content, zipfile.ZIP_DEFLATED)


def export_submission(spec: GlueSpec, zip_path: str | None) -> Export:
    """Returns an `Export` that writes test predictions to a TSV file and to a zip.

    No file is written for splits that are not part of a submission, such as dev. If `zip_path` is
    None, the zip is submission.zip in the folder of the predictions.
    """

    def export(folder: Path, split: str, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
        name = spec.submission.get(split)
        predictions: dict[str, str | float] = {}
        for example, prediction in pairs:
            if name is not None:
                predictions[example.id] = prediction["label" if spec.labels else "score"]
            yield example, prediction
        if name is not None:
            text = format_glue_predictions(spec, predictions)
            write_text(folder / name, text)
            add_to_submission_zip(zip_path or folder / SUBMISSION, {name: text})

    return export


def score_submission(spec: GlueSpec, gold: Path, predictions: Path) -> Measure:
    """Measures the metrics of the file `predictions` against `gold`, an official labelled file.

    Raises:
        ValueError: a file is not in GLUE's format, `gold` has no labels, or the files contain
            different examples.
    """
    # The gold file is read as a dev split, because in CoLA only labelled splits lack a header.
    split = next((name for name in spec.files if name.startswith("dev")), "test")
    left_out: Counter[str] = Counter()
    golds = {}
    for example in read_glue_file(spec, gold, split, left_out):
        if example.label is None:
            raise ValueError(
                f"{gold} has no column {spec.label[0]!r}: give a file with labels, such as dev.tsv."
            )
        if example.id in golds:
            raise ValueError(
                f"{example.where}: index {example.id} occurs twice. Remove one of the rows."
            )
        golds[example.id] = example.label
    answers = read_glue_predictions(predictions, spec)
    missing = [id for id in golds if id not in answers]
    unknown = sorted(answers.keys() - golds.keys())
    if left_out.total():  # rows without a gold label may have predictions
        unknown = []
    faults = []
    if missing:
        faults.append(f"{len(missing):,} rows have no prediction (such as index {missing[0]})")
    if unknown:
        faults.append(f"{len(unknown):,} predictions have no row (such as index {unknown[0]})")
    if faults:
        raise ValueError(
            f"{predictions} must have one prediction for each of the {len(golds):,} labelled rows "
            f"of {gold}, but {' and '.join(faults)}. Use the index column of the official file or, "
            "if there is none, count its rows from 0, without the header."
        )
    return measured(spec.metric, [*golds.values()], [answers[id] for id in golds])


MNLI_SPLITS = "train dev_matched dev_mismatched test_matched test_mismatched".split()
MNLI_FILES = {split: (f"{split}.tsv",) for split in MNLI_SPLITS}
# MRPC may not be redistributed: users have Microsoft's files, or those that GLUE's script writes.
MRPC_FILES = {
    "train": ("train.tsv", "msr_paraphrase_train.txt"),
    "dev": ("dev.tsv", "msr_paraphrase_train.txt"),
    "test": ("test.tsv", "msr_paraphrase_test.txt"),
}
NLI = ("entailment", "neutral", "contradiction")
_COLA_COLUMNS = ("source", "label", "mark", "sentence")

GLUE: dict[str, GlueSpec] = {
    spec.name: spec
    for spec in (
        GlueSpec(
            name="cola",
            folder="CoLA",
            metric=matthews,
            best_metric="matthews",
            text=("sentence",),
            pair=(),
            labels=("unacceptable", "acceptable"),
            codes=("0", "1"),
            submission={"test": "CoLA.tsv"},
            no_header={"train": _COLA_COLUMNS, "dev": _COLA_COLUMNS},
        ),
        GlueSpec(
            name="sst2",
            folder="SST-2",
            metric=accuracy,
            text=("sentence",),
            pair=(),
            labels=("negative", "positive"),
            codes=("0", "1"),
            submission={"test": "SST-2.tsv"},
        ),
        GlueSpec(
            name="mrpc",
            folder="MRPC",
            metric=functools.partial(accuracy_and_f1, positive="equivalent"),
            best_metric="accuracy_f1",
            text=("#1 String",),
            pair=("#2 String",),
            label=("Quality",),
            labels=("not_equivalent", "equivalent"),
            codes=("0", "1"),
            submission={"test": "MRPC.tsv"},
            files=MRPC_FILES,
            dataset_fields=("sentence1", "sentence2"),
        ),
        GlueSpec(
            name="stsb",
            folder="STS-B",
            metric=pearson_spearman,
            best_metric="pearson_spearman",
            label=("score",),
            labels=(),
            submission={"test": "STS-B.tsv"},
        ),
        GlueSpec(
            name="qqp",
            folder="QQP",
            metric=functools.partial(accuracy_and_f1, positive="duplicate"),
            best_metric="accuracy_f1",
            text=("question1",),
            pair=("question2",),
            label=("is_duplicate",),
            labels=("not_duplicate", "duplicate"),
            codes=("0", "1"),
            submission={"test": "QQP.tsv"},
            has_broken_rows=True,
        ),
        GlueSpec(
            name="mnli",
            folder="MNLI",
            metric=accuracy,
            label=("gold_label",),
            labels=NLI,
            submission={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
            files=MNLI_FILES,
            dataset_fields=("premise", "hypothesis"),
        ),
        GlueSpec(
            name="qnli",
            folder="QNLI",
            metric=accuracy,
            text=("question",),
            pair=("sentence",),
            labels=("entailment", "not_entailment"),
            submission={"test": "QNLI.tsv"},
        ),
        GlueSpec(
            name="rte",
            folder="RTE",
            metric=accuracy,
            labels=("entailment", "not_entailment"),
            submission={"test": "RTE.tsv"},
        ),
        GlueSpec(
            name="wnli",
            folder="WNLI",
            metric=accuracy,
            labels=("not_entailment", "entailment"),
            codes=("0", "1"),
            submission={"test": "WNLI.tsv"},
        ),
        # The diagnostic set has no train split; it evaluates models fine-tuned on MNLI.
        GlueSpec(
            name="ax",
            folder="diagnostic",
            metric=matthews,
            best_metric="matthews",
            text=("sentence1", "Premise"),
            pair=("sentence2", "Hypothesis"),
            label=("label", "Label"),
            labels=NLI,
            submission={"test": "AX.tsv"},
            files={"test": ("diagnostic.tsv", "AX.tsv", "diagnostic-full.tsv")},
            dataset_fields=("premise", "hypothesis"),
        ),
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueRegressionOptions(WindowOptions, OfficialOptions):
    """Options of --task=stsb."""

    submission: str | None = None
    """Zip file for the GLUE server, to which the test predictions are added; None: submission.zip
    in the folder of the predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueOptions(CalibrationOptions, ClassOptions, GlueRegressionOptions):
    """Options of a classification of GLUE."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllGlueOptions(CalibrationOptions, GlueRegressionOptions):
    """Options of --task=glue, which trains on all tasks of GLUE, one after the other."""

    recipes = ("lora",)


def _make(spec: GlueSpec, options: GlueRegressionOptions | GlueOptions, fold: Fold | None) -> Task:
    convert = functools.partial(_read_dataset_row, spec)
    files = functools.partial(read_glue, spec)
    data = official_dataset(options, files, f"glue/{spec.name}", convert)
    fields: dict[str, Any] = {
        "name": spec.name,
        "source": data,
        "metric": spec.metric,
        "best_metric": spec.best_metric,
        "pairs": bool(spec.pair),
        "doc_stride": options.doc_stride,
        "export": export_submission(spec, options.submission),
    }
    if not spec.labels:
        return RegressionTask(**fields)
    return ClassificationTask(labels=spec.labels, **fields)


GLUE_TASKS = tuple(
    TaskDefinition(
        name=spec.name,
        kinds=(ClassificationTask if spec.labels else RegressionTask,),
        options=GlueOptions if spec.labels else GlueRegressionOptions,
        make=functools.partial(_make, spec),
        metric=spec.metric,
        score_files=functools.partial(score_submission, spec),
    )
    for spec in GLUE.values()
)


# The diagnostic set, which has no train split: models that were fine-tuned on MNLI are evaluated.
DIAGNOSTIC = "ax"
# {task: scores of one run as {split/metric: score}}
TaskScores = Mapping[str, Mapping[str, float]]


class Column(NamedTuple):
    """A score of a task that GLUE reports.

    `name` is as in published tables, "MNLI-m accuracy"; `key` is the split and metric of a run.
    """

    name: str
    task: str
    key: str


# All metrics of all tasks (Wang et al. 2018, table 1).
COLUMNS = (
    Column("CoLA Matthews", "cola", "dev/matthews"),
    Column("SST-2 accuracy", "sst2", "dev/accuracy"),
    Column("MRPC accuracy", "mrpc", "dev/accuracy"),
    Column("MRPC F1", "mrpc", "dev/f1"),
    Column("STS-B Pearson", "stsb", "dev/pearson"),
    Column("STS-B Spearman", "stsb", "dev/spearman"),
    Column("QQP accuracy", "qqp", "dev/accuracy"),
    Column("QQP F1", "qqp", "dev/f1"),
    Column("MNLI-m accuracy", "mnli", "dev_matched/accuracy"),
    Column("MNLI-mm accuracy", "mnli", "dev_mismatched/accuracy"),
    Column("QNLI accuracy", "qnli", "dev/accuracy"),
    Column("RTE accuracy", "rte", "dev/accuracy"),
    Column("WNLI accuracy", "wnli", "dev/accuracy"),
)
GLUE_NAMES = tuple(dict.fromkeys(column.task for column in COLUMNS))
# The nine columns of Devlin et al. 2018, table 1, whose mean is its column "Average": F1 of QQP and
# MRPC, Spearman of STS-B, both test sets of MNLI, and no WNLI. The means of the published rows are
# the published averages: 79.6 for BERT-base and 82.1 for BERT-large.
PAPER_COLUMNS = (
    "MNLI-m accuracy",
    "MNLI-mm accuracy",
    "QQP F1",
    "QNLI accuracy",
    "SST-2 accuracy",
    "CoLA Matthews",
    "STS-B Spearman",
    "MRPC F1",
    "RTE accuracy",
)


@dataclasses.dataclass(frozen=True)
class Average:
    """A mean of scores, as fractions, some of which may be missing.

    `complete` is the mean of all `total` scores, None if one is missing; `present` is the mean of
    the `count` scores that are there, None if there is none.
    """

    complete: float | None
    present: float | None
    count: int
    total: int
    missing: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, float | None]) -> "Average":
        """Averages {name: score}, where the score None is missing."""
        there = [value for value in values.values() if value is not None]
        present = sum(there) / len(there) if there else None
        missing = tuple(name for name, value in values.items() if value is None)
        complete = None if missing else present
        return cls(complete, present, len(there), len(values), missing)


def columns_of(scores: TaskScores) -> dict[str, float]:
    """Returns {name of a column of `COLUMNS`: score} for the columns that `scores` has."""
    return {
        column.name: scores[column.task][column.key]
        for column in COLUMNS
        if column.key in scores.get(column.task, {})
    }


def paper_average(columns: Mapping[str, float]) -> Average:
    """Averages {column: score} as Devlin et al. 2018 do: nine columns, without WNLI."""
    return Average.of({name: columns.get(name) for name in PAPER_COLUMNS})


def glue_average(columns: Mapping[str, float]) -> Average:
    """Averages {column: score} as GLUE does: the mean of the means of all nine tasks.

    The score of a task with several metrics, or with two dev splits, is their unweighted mean (Wang
    et al. 2018). A task of which one of these scores is missing is missing.
    """
    means: dict[str, float | None] = {}
    for task in GLUE_NAMES:
        names = [column.name for column in COLUMNS if column.task == task]
        values = [columns[name] for name in names if name in columns]
        means[GLUE[task].folder] = sum(values) / len(values) if len(values) == len(names) else None
    return Average.of(means)


def tasks_in(data_dir: str | None) -> tuple[list[str], dict[str, str]]:
    """Finds the tasks of GLUE whose official files are in subfolders of `data_dir` (None: all).

    Returns the names of the tasks that have a train and a dev split, and {name of another task:
    what is missing}. Raises FileNotFoundError if there is no task.
    """
    if data_dir is None:
        return list(GLUE_NAMES), {}
    folder = Path(data_dir).expanduser()
    present = []
    missing = {}
    for name in GLUE_NAMES:
        spec = GLUE[name]
        try:
            files = read_glue(spec, folder).files
        except FileNotFoundError:
            files = {}
        of_task = {path.parent for path in files.values()}
        # The files of another task may be in `folder` itself.
        if not files or folder in of_task:
            missing[name] = f"{folder / spec.folder} has no files of the task"
            continue
        kinds = {split.partition("_")[0] for split in files}
        if lacking := [kind for kind in ("train", "dev") if kind not in kinds]:
            missing[name] = f"{min(of_task)} has no {' and no '.join(lacking)} split"
        else:
            present.append(name)
    if not present:
        folders = ", ".join(GLUE[name].folder for name in GLUE_NAMES)
        raise FileNotFoundError(
            f"--data_dir {data_dir} has none of the folders of GLUE's tasks ({folders}): name the "
            "folder that contains them."
        )
    return present, missing


class Published(NamedTuple):
    """Published scores of a model on GLUE, in per cent.

    The keys of `scores` are names of `COLUMNS`, or of tasks where the source states no metric.
    """

    source: str
    split: str
    scores: Mapping[str, float]


# {name of a model on the hub, without its owner: published scores}
PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    model: tuple(Published(**row) for row in rows)
    for model, rows in json.loads(
        (resources.files("bertjax.tasks") / "published.json").read_text(encoding="utf-8")
    ).items()
}


def published_scores(model: str) -> tuple[Published, ...]:
    """Returns the published scores of a model by its name on the hub, with or without the owner.

    Only the name is known, and not the weights: of a folder of such a name, they are returned, too.
    """
    return PUBLISHED.get(model.rstrip("/").rpartition("/")[2].lower(), ())
