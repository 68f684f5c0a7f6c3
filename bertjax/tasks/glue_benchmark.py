"""GLUE as a whole: which of its tasks are at hand, its averages, and published scores of models."""

import dataclasses
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from bertjax.tasks.sources.glue import GLUE, read_glue

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
    *("MNLI-m accuracy", "MNLI-mm accuracy", "QQP F1", "QNLI accuracy", "SST-2 accuracy"),
    *("CoLA Matthews", "STS-B Spearman", "MRPC F1", "RTE accuracy"),
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
    folder, present, missing = Path(data_dir).expanduser(), [], {}
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
