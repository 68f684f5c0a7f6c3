"""`bertjax.evaluate` computes the metrics of a fine-tuned model on a benchmark task or a file."""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.checked import read_fields
from bertjax.base.files import read_json
from bertjax.base.run_file import holds_run, read_run, train_file
from bertjax.base.workdir_files import RUN_FILE
from bertjax.config.task_options import OfficialOptions
from bertjax.devices.compilation import start_jax
from bertjax.inference.pretrained import Pretrained
from bertjax.tasks import TASKS, Example, Prediction, Task, check_task, make_task
from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    DistributionTask,
    MultiLabelTask,
    TargetsTask,
    TextTask,
)
from bertjax.tasks.dataset import BadRows, Fold, text_digest
from bertjax.tasks.definition import change_times
from bertjax.tasks.question_answering import IMPOSSIBLE, SpanTask
from bertjax.tasks.registry import options_class, table_kind
from bertjax.tasks.reranking import ranking_task
from bertjax.tasks.sources.annotations import annotation_table
from bertjax.tasks.sources.columns import Columns, candidates
from bertjax.tasks.sources.conll import has_columns
from bertjax.tasks.sources.data_files import (
    NAMED_COLUMNS,
    TEXT_SUFFIXES,
    TSV_SUFFIXES,
    saved_split,
    suffix_of,
)
from bertjax.tasks.sources.label_columns import LabelForm
from bertjax.tasks.sources.own_files import (
    CONLL_SUFFIXES,
    count_choices,
    data_files,
    read_tables,
    with_indices,
)
from bertjax.tasks.sources.squad import read_questions
from bertjax.tasks.sources.tables import Table
from bertjax.tasks.sources.typed_rows import rows_as_files
from bertjax.tasks.tagging import TagTask
from bertjax.weights import load_model

# Settings of question answering that are taken from the model's fine-tuning.
SPAN_OPTIONS = ("max_query_length", "max_answer_length", "null_threshold")


def evaluate(
    model: str | Path | Pretrained,
    task: str | None = None,
    *,
    data: Any = None,
    data_dir: str | Path | None = None,
    tfds_data_dir: str | Path | None = None,
    split: str = "dev",
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    choice_columns: tuple[str, ...] = (),
    label_separator: str | None = None,
    max_length: int | None = None,
    doc_stride: int | None = None,
) -> dict[str, float]:
    """Computes the metrics of a model's predictions for labelled examples.

        bertjax.evaluate("runs/mrpc/model", "mrpc", data_dir="glue/MRPC")
        bertjax.evaluate(result.model, data="test.csv")

    Args:
        model: a result of `load_pretrained`, or what it loads.
        task: a benchmark task (GLUE, SQuAD, SWAG or CoNLL) that has the same labels as the model;
            None: the examples of `data` are evaluated.
        data: a file with labelled examples, a pandas DataFrame or a list of dictionaries.
        data_dir: folder with the published files of the benchmark task; None: it is downloaded
            from the Hugging Face hub, unless TensorFlow Datasets has prepared it.
        tfds_data_dir: data folder of TensorFlow Datasets; None: its default folder, if the
            benchmark is already prepared there.
        split: the split of the benchmark task to evaluate.
        text_column: the column of the texts in `data`; it, `pair_column`, `label_column` and
            `choice_columns` are as in `from_file`.
        label_separator: the string that separates several labels of an example in `data`.
        max_length: as in `Pretrained.predict`, and `doc_stride`.

    Returns:
        The metrics by name, as fractions (not percent). If the names of several splits begin with
        `split`, as dev_matched and dev_mismatched begin with "dev", all of them are evaluated and
        the metrics are named "dev_matched/accuracy" etc.

    Raises:
        ValueError: `task` and `data` are both set or both None, the labels of the task and the
            model differ, or the examples are malformed or have no labels.
        FileNotFoundError: the model or the data does not exist.
    """
    if (task is None) == (data is None):
        raise ValueError("Give either task, the name of a benchmark task, or data, a file.")
    start_jax()
    pretrained = model if isinstance(model, Pretrained) else Pretrained(load_model(model, None))
    if data is not None:
        columns = Columns(
            text=text_column, pair=pair_column, label=label_column, choices=choice_columns
        )
        with rows_as_files(data=data) as files:
            file = files["data"]
            own = pretrained.task_with(max_length, doc_stride)
            own, examples, _ = from_file(
                own, file, columns, label_separator, pretrained.description
            )
            where = "data"
            if isinstance(data, str | Path):
                where = file
            return _scores(pretrained, own, examples, where)
    options = OfficialOptions(
        data_dir=None if data_dir is None else str(data_dir),
        tfds_data_dir=None if tfds_data_dir is None else str(tfds_data_dir),
    )
    if suffix_of(Path(str(task))) in (*NAMED_COLUMNS, *TSV_SUFFIXES, *TEXT_SUFFIXES):
        raise ValueError(f"{task} is a file and not the name of a task: give it as data={task!r}.")
    official = official_task(pretrained, str(task), options, max_length, doc_stride)
    assert official.source is not None
    splits = [name for name in official.source.splits if f"{name}_".startswith(f"{split}_")]
    if not splits:
        raise ValueError(
            f"{task} has no split {split!r}: use one of {', '.join(official.source.splits)}."
        )
    scores = {}
    for name in splits:
        examples = official.source.examples(name)
        of_split = _scores(pretrained, official, examples, f"{task}, {name}")
        if len(splits) == 1:
            return of_split
        for key, value in of_split.items():
            scores[f"{name}/{key}"] = value
    return scores


def _scores(
    model: Pretrained, task: Task, examples: Iterable[Example], where: str
) -> dict[str, float]:
    unlabelled = 0

    def counted() -> Iterator[tuple[Example, Prediction]]:
        nonlocal unlabelled
        for example, prediction in model.predictions(task, examples):
            unlabelled += example.label is None and not example.answers
            yield example, prediction

    scores = task.score(counted())
    if scores and unlabelled:
        print(
            f"{where}: examples without a label, which the metrics leave out: {unlabelled:,}",
            file=sys.stderr,
        )
    if not scores:
        raise ValueError(
            f"{where}: the examples have no labels, so there are no metrics. Name the label column "
            "with label_column, use another split, or use python -m bertjax.predict."
        )
    return scores


def from_file(
    task: Task,
    path: str | Path,
    columns: Columns,
    label_separator: str | None = None,
    description: Mapping[str, Any] | None = None,
    bad_rows: BadRows = "refuse",
) -> tuple[Task, Iterable[Example], str]:
    """Reads the examples of a user's file, with or without labels.

    A column that `columns` does not set is that of the training, if the file has all text columns
    that are then read; otherwise, it is guessed. Question answering has fixed column names.
    `label_separator` is as in training if it is None; `description` is the content of task.json.

    Returns:
        The task with the file as its source (for multiple choice, also with the number of choices
        in the file), the examples, and a message about the file, or "".

    Raises:
        ValueError: the file cannot be read for the task, or column names are set for question
            answering.
    """
    path = saved_split(Path(path).expanduser(), "test")
    if isinstance(task, SpanTask):
        if columns != Columns():
            raise ValueError(
                f"Column names are set ({', '.join(columns.named())}), but question answering "
                "reads the columns question, context and answers, as in SQuAD: rename the columns "
                "of the file."
            )
        questions = read_questions({"test": path}, bad_rows, keep=False)
        read = questions.examples("test")
        if not task.with_impossible:
            read = (_without_impossible(x, report=bad_rows == "report") for x in read)
        return dataclasses.replace(task, source=questions), read, questions.note
    description = description or {}
    first = data_files(path, tags=isinstance(task, TagTask))[0]
    export = annotation_table(first, table_kind(task), columns.label)
    conll = (
        export is None
        and isinstance(task, TagTask)
        and (suffix_of(first) in CONLL_SUFFIXES or has_columns(first, task.labels))
    )
    ranks_by = ""
    if not conll:
        table = export or Table(first)
        if not isinstance(task, ChoiceTask) and (columns.choices or candidates(table, columns)):
            task, ranks_by = ranking_task(task, str(path))
        columns = _as_trained(columns, description.get("columns") or {}, table.columns)
        others = {*table.columns} - columns.taken()
        if not columns.label and len(task.labels) > 1 and others.issuperset(task.labels):
            columns = dataclasses.replace(columns, labels=task.labels)
    label_separator = label_separator or description.get("label_separator")
    form = None
    if columns.labels or isinstance(task, DistributionTask | TargetsTask):
        form = LabelForm(task.label_kind, task.labels)
    data = read_tables(
        table_kind(task),
        test=path,
        conll=conll,
        bad_rows=bad_rows,
        columns=columns,
        label_separator=label_separator if isinstance(task, MultiLabelTask) else None,
        keep=False,
        form=form,
    )
    if data.kind.label == "class":
        data = data.labelled(task.labels)
    if isinstance(task, TextTask):
        read = " and ".join(filter(None, (data.columns.text, data.columns.pair)))
        task.check_pairs(f"{path} ({read})", has_pair=data.columns.pair is not None)
    if isinstance(task, ChoiceTask):
        data = with_indices(data)
        task = dataclasses.replace(task, num_choices=count_choices(data))
    note = " ".join(filter(None, (data.note, ranks_by)))
    return dataclasses.replace(task, source=data), data.examples("test"), note


def _without_impossible(question: Example, *, report: bool) -> Example:
    """Makes a question without an answer unlabelled, for a model that answers every question."""
    if question.label != IMPOSSIBLE:
        return question
    if not report:
        return dataclasses.replace(question, label=None)
    problem = (
        f"{question.where}: the question has no answer, but the model answers every question, "
        "because those that it was fine-tuned on have answers: the prediction is not scored."
    )
    return dataclasses.replace(question, label=None, problem=problem)


def _as_trained(columns: Columns, trained: Mapping[str, Any], names: Sequence[str]) -> Columns:
    """Fills the unset `columns` with the columns in `trained` that a file with `names` has.

    If it lacks a text column then, or two are the same, `columns` is returned unchanged. The label
    is "", which is no column, if it lacks only the column of the labels.
    """
    filled = Columns(
        text=columns.text or trained.get("text"),
        pair=columns.pair or trained.get("pair"),
        choices=columns.choices or tuple(trained.get("choices", ())),
    )
    texts = filled.named()
    used = [name for name in (*texts, columns.label, columns.id) if name]
    if not set(texts) <= set(names) or len(set(used)) < len(used):
        return columns
    free = set(names) - set(used)
    label = columns.label
    id = columns.id
    if not label and trained.get("label"):
        label = ""
        if trained["label"] in free:
            label = trained["label"]
    if not id and trained.get("id") in free:
        id = trained["id"]
    return dataclasses.replace(filled, label=label, id=id)


def official_task(
    model: Pretrained,
    name: str,
    options: OfficialOptions,
    max_length: int | None = None,
    doc_stride: int | None = None,
) -> Task:
    """Creates a benchmark task (GLUE, SQuAD, SWAG or CoNLL) for the evaluation of a model.

    The order of the labels, the calibration, the limits and `SPAN_OPTIONS` come from the model.

    Raises ValueError if no benchmark task has this `name`, or it does not fit the model.
    """
    name = check_task(name)
    definition = TASKS[name]
    own = model.task_with(max_length, doc_stride)
    if definition.own_files:
        raise ValueError(
            f"--task={name} has no official files: give your own with --input (in Python: data)."
        )
    fields = vars(options)
    if type(own) in definition.kinds:
        known = {field.name for field in dataclasses.fields(definition.options)}
        same = {"doc_stride", *SPAN_OPTIONS} & known
        fields = fields | {key: getattr(own, key) for key in same if hasattr(own, key)}
    task = make_task(name, definition.options(**fields))
    if task.head != own.head or set(task.labels) != set(own.labels):
        raise ValueError(
            f"--task={task.name} has the labels {list(task.labels)}, but {model.where} was "
            f"fine-tuned on {own.name} and predicts {list(own.labels)}: use a model that was "
            f"fine-tuned on {task.name}."
        )
    if isinstance(own, ClassificationTask) and isinstance(task, ClassificationTask):
        task = dataclasses.replace(task, temperature=own.temperature)
    return dataclasses.replace(task, labels=own.labels, max_length=own.max_length)


# Larger training files are not searched, because that would take longer than the prediction.
MOST_BYTES = 1 << 28


class TrainingOverlap:
    """Counts the labelled examples whose text is in a row that a model was fine-tuned on.

    `labelled` and `repeated` count all labelled examples so far, and examples whose text is in such
    a row. `train` is the training file; None: it is unknown (the model is not in the workdir of its
    run), does not exist any more, or is too large. Rows of it that were held out or left out do not
    count, unless `is_divided` is False: then it cannot be told which these were. `held_out` are the
    run's scores on held-out examples, {metric: value}, or {}.
    """

    def __init__(self, model: Pretrained):
        self._model = model
        self.labelled = self.repeated = 0
        self.train, self.held_out = _training_of(model.where)
        self.is_divided = False
        self._known: set[bytes] | None = None

    def observe(self, task: Task, examples: Iterable[Example]) -> Iterator[Example]:
        """Yields the examples of `task` unchanged, and counts them."""
        for example in examples:
            if self.train is not None and (example.label is not None or example.answers):
                self.labelled += 1
                self.repeated += self._is_known(task, example)
            yield example

    def _is_known(self, task: Task, example: Example) -> bool:
        assert self.train is not None
        if self._known is None:
            rows = _trained_rows(_runs_of(self._model.where)[0])
            self.is_divided = rows is not None
            self._known = set()
            # A file that is not what it was in the training may be unreadable.
            with contextlib.suppress(OSError, ValueError):
                _, read, _ = from_file(
                    task, self.train, Columns(), None, self._model.description, "report"
                )
                for known in read:
                    if not known.problem and (rows is None or known.where in rows):
                        self._known.add(text_digest(known))
        return text_digest(example) in self._known


def _trained_rows(run: Path) -> frozenset[str] | None:
    """Returns the places of the rows of the train file that a run was trained on.

    The files are divided again as the run has divided them. None if it cannot be told: files were
    moved or changed since, or only some shots of each class were drawn.
    """
    try:
        config: Any = read_run(run)["config"]
        options = read_fields(config["options"], options_class(config["task"]))
        began = (run / RUN_FILE).stat().st_mtime
        if config.get("shots") or max(change_times(options)) > began:
            return None
        fold = None
        if count := config.get("folds"):
            index = int(run.name.removeprefix("fold")) - 1
            fold = Fold(index, count, config["seed"])
        with contextlib.redirect_stdout(io.StringIO()):  # the run has said it
            task = make_task(config["task"], options, fold)
            return frozenset(example.where for example in task.data.examples("train"))
    except (OSError, ValueError, KeyError):  # older versions saved no options
        return None


def _runs_of(model: Path) -> list[Path]:
    """Returns the workdirs of the runs of which one has exported a model."""
    folder = model.resolve().parent
    # The workdir of several runs, such as runs with several seeds, has the runs in subfolders.
    folders = (folder, *sorted(folder.glob("*/")))
    return [run for run in folders if holds_run(run)]


def _training_of(model: Path) -> tuple[Path | None, dict[str, float]]:
    """Returns (training file, scores on held-out examples) of a model in the workdir of its run."""
    folder = model.resolve().parent
    runs = _runs_of(model)
    if not runs:
        return None, {}
    try:
        train = train_file(read_run(runs[0])["config"])
        if not isinstance(train, str):
            return None, {}
        path = saved_split(Path(train).expanduser(), "train")
        scores: Any = read_json(folder / "scores.json") if runs == [folder] else {}
    except (OSError, ValueError):
        return None, {}
    if not path.exists() or _size(path) > MOST_BYTES:
        return None, {}
    held_out = {}
    for name, score in scores.items():
        if name.startswith("dev/"):
            held_out[name.removeprefix("dev/")] = score
    return path, held_out


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
