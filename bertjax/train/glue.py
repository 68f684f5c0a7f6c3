"""Fine-tunes on all tasks of GLUE, one after the other, and summarises their scores."""

import dataclasses
import json
import statistics
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from bertjax.base import printable
from bertjax.base.addresses import place
from bertjax.base.files import is_remote, listed, refuse_links_outside, write_bytes
from bertjax.base.lock import scratch_folder
from bertjax.base.workdir_files import METRICS, PREDICTIONS, REPORT, SCORES
from bertjax.config import FinetuneConfig
from bertjax.config.finetune_config import GLUE_TASK
from bertjax.devices import hosts
from bertjax.devices.activity import Clock
from bertjax.inference.evaluation import official_task
from bertjax.inference.pretrained import Pretrained
from bertjax.record.report import report_page, run_data
from bertjax.tasks import TASKS
from bertjax.tasks.sources.glue import (
    COLUMNS,
    DIAGNOSTIC,
    GLUE,
    SUBMISSION,
    AllGlueOptions,
    Average,
    Published,
    add_to_submission_zip,
    columns_of,
    glue_average,
    paper_average,
    published_scores,
    tasks_in,
)
from bertjax.train import experiments
from bertjax.train.experiments import FinetuneResult
from bertjax.weights import load_model

SUBMITTED = tuple(name for spec in GLUE.values() for name in spec.submission.values())
_AVERAGES = (
    ("paper", "Average as in Devlin et al. 2018, table 1 (nine columns, without WNLI)"),
    ("glue", "GLUE score (mean of the means of nine tasks)"),
)


@dataclasses.dataclass(frozen=True)
class GlueResult:
    """The result of a fine-tuning on all tasks of GLUE.

    Attributes:
        tasks: {name of a task: its result, with the scores of its runs and its model}.
        missing: {name of a task: why it was not trained on}.
        columns: {name of a column of `COLUMNS`: score}, on the dev splits.
        paper_average: the average as Devlin et al. 2018 count it.
        glue_average: the average as GLUE counts it.
        submission: the path or address of the zip file for GLUE's server.
    """

    tasks: dict[str, FinetuneResult]
    missing: dict[str, str]
    columns: dict[str, float]
    paper_average: Average
    glue_average: Average
    submission: str

    @property
    def runs(self) -> dict[str, dict[str, float]]:
        """The scores of each task's best run: {task: {split/metric: score}}."""
        return {name: result.scores for name, result in self.tasks.items()}


def finetune_glue(
    config: FinetuneConfig,
    config_of: Callable[[str], FinetuneConfig] | None = None,
    clock: Clock | None = None,
) -> GlueResult:
    """Fine-tunes on each task of GLUE whose data is at hand, in WORKDIR/TASK.

    A call that was interrupted continues when it is repeated: finished tasks are not trained again.

    Args:
        config: the config, with the task "glue"; its `workdir` and `data_dir` are for all tasks.
        config_of: function (name of a task) -> config of its run, whose `task`, `workdir` and
            `submission` are replaced; None: all tasks have the settings of `config`.
        clock: counts the time of the first task; None: from now.

    Raises:
        FileNotFoundError: `data_dir` has no task of GLUE.
        ValueError: a setting cannot be used with a task, or a workdir belongs to another run.
        Interrupted: a stop signal arrived; the same call continues.
    """
    configs = configs_of_tasks(config, config_of)
    results = {}
    for number, name in enumerate(configs, 1):
        hosts.say(f"GLUE: {name}, task {number} of {len(configs)}")
        results[name] = experiments.finetune(configs[name], clock)
        clock = None  # the time of the next task begins now
    options: Any = config.options
    workdir = _workdir(config)
    columns = columns_of({name: result.scores for name, result in results.items()})
    result = GlueResult(
        results,
        tasks_in(options.data_dir)[1],
        columns,
        paper_average(columns),
        glue_average(columns),
        options.submission or f"{workdir}/{SUBMISSION}",
    )
    hosts.on_first(lambda: _publish(config, workdir, result))
    return result


def _workdir(config: FinetuneConfig) -> str:
    return (config.workdir or f"runs/{GLUE_TASK}").rstrip("/")


def configs_of_tasks(
    config: FinetuneConfig, config_of: Callable[[str], FinetuneConfig] | None
) -> dict[str, FinetuneConfig]:
    """Returns {task: config of its run} of the tasks whose data is at hand; as `finetune_glue`."""
    workdir = _workdir(config)
    options = config.options
    refuse_links_outside(workdir)
    assert isinstance(options, AllGlueOptions)
    names, missing = tasks_in(options.data_dir)
    for name, reason in missing.items():
        hosts.say(f"GLUE: {name} is missing: {reason}")
    configs = {}
    for name in names:
        of_task = config_of(name) if config_of else config
        folder = f"{workdir}/{name}"
        fields = dataclasses.asdict(options) | {"submission": None}
        if not GLUE[name].labels and fields.pop("calibrate"):  # a regression has no classes
            hosts.say(f"GLUE: {name} predicts numbers and is not calibrated")
        configs[name] = dataclasses.replace(
            of_task, task=name, workdir=folder, options=TASKS[name].options(**fields)
        )
    return configs


def _publish(config: FinetuneConfig, workdir: str, result: GlueResult) -> None:
    """Prints the table of all tasks, and writes it and the submission to the workdir."""
    summary = _summary(config, result, published_scores(config.init))
    files = {
        "glue.json": json.dumps(summary, indent=2) + "\n",
        "glue.md": _markdown(summary),
        SCORES: json.dumps(result.runs, indent=2) + "\n",
    }
    runs = []
    for task in result.tasks.values():
        run = task.directory.parent / task.best
        if (run / METRICS).is_file():
            runs.append(run_data(run, name=_name(run)))
    if runs:
        files[REPORT] = report_page(runs)
    for name, text in files.items():
        _write(f"{workdir}/{name}", text.encode())
    texts = _submitted(config, result)
    if texts:
        _write_submission(config, result.submission, texts)
    _print(summary)
    if texts:
        print(f"predictions for GLUE's server written to {result.submission}")
    lacking = [name for name in SUBMITTED if name not in texts]
    if lacking:
        print(
            f"The server needs {len(SUBMITTED)} files; {len(lacking)} are missing, because their "
            f"test splits are not there: {listed(lacking, 200)}"
        )
    print(f"the table is in {workdir}/glue.md and glue.json, and the curves are in {REPORT}")


def _write_submission(config: FinetuneConfig, address: str, texts: Mapping[str, str]) -> None:
    options: Any = config.options
    with scratch_folder() as folder:
        made = folder / SUBMISSION
        if options.submission and place(address).is_file():  # other files in it stay
            made.write_bytes(place(address).read_bytes())
        add_to_submission_zip(made, texts)
        _write(address, made.read_bytes())


def _name(run: Path) -> str:
    """Returns "cola" for a run in WORKDIR/cola, and "cola/seed1" for one in WORKDIR/cola/seed1."""
    if run.name in GLUE:
        return run.name
    return f"{run.parent.name}/{run.name}"


def _write(address: str, content: bytes) -> None:
    if not is_remote(address):
        Path(address).parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place(address), content)


def _submitted(config: FinetuneConfig, result: GlueResult) -> dict[str, str]:
    """Returns {file name: text} of the test predictions of all tasks in GLUE's format."""
    texts = {}
    for name, task in result.tasks.items():
        made = task.directory.parent / PREDICTIONS / SUBMISSION
        if made.is_file():
            with zipfile.ZipFile(made) as archive:
                for file in archive.namelist():
                    if file in GLUE[name].submission.values():
                        texts[file] = archive.read(file).decode()
    if "mnli" in result.tasks:
        texts |= _diagnostic(config, result.tasks["mnli"].directory)
    return texts


def _diagnostic(config: FinetuneConfig, model: Path) -> dict[str, str]:
    """Predicts GLUE's diagnostic set with the model of MNLI; {} if the set is not at hand."""
    options: Any = config.options
    loaded = Pretrained(load_model(model, None))
    try:
        task = official_task(loaded, DIAGNOSTIC, options)
    except FileNotFoundError:
        return {}
    with scratch_folder() as folder:
        pairs = loaded.predictions(task, task.data.examples("test"))
        for _ in task.write_predictions(folder, "test", pairs):
            pass
        names = GLUE[DIAGNOSTIC].submission.values()
        return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def _summary(
    config: FinetuneConfig, result: GlueResult, published: tuple[Published, ...]
) -> dict[str, Any]:
    """Returns the table of all tasks as JSON values; scores are fractions."""
    rows = []
    for column in COLUMNS:
        row: dict[str, Any] = {
            "column": column.name,
            "task": column.task,
            "score": result.columns.get(column.name),
            "published": [_published_score(column.name, one) for one in published],
        }
        if column.task in result.tasks:
            all_scores = result.tasks[column.task].runs.values()
            runs = [scores[column.key] for scores in all_scores if column.key in scores]
            if len(runs) > 1:
                mean = statistics.fmean(runs)
                row["runs"] = {"count": len(runs), "mean": mean, "std": statistics.stdev(runs)}
        rows.append(row)
    sources = []
    for one in published:
        average = one.scores.get("average")
        sources.append({"source": one.source, "split": one.split, "average": average})
    return {
        "init": config.init,
        "rows": rows,
        "averages": {
            "paper": dataclasses.asdict(result.paper_average),
            "glue": dataclasses.asdict(result.glue_average),
        },
        "missing_tasks": result.missing,
        "published": sources,
    }


def _published_score(column: str, published: Published) -> float | None:
    """Returns the published score of a column; of a task without a stated metric, in one column."""
    task = column.rpartition(" ")[0].removesuffix("-m")
    is_first = column in ("MRPC accuracy", "STS-B Pearson", "QQP accuracy", "MNLI-m accuracy")
    return published.scores.get(column, published.scores.get(task) if is_first else None)


def _cells(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the titles of the columns and the cells of the table of all tasks."""
    with_runs = any("runs" in row for row in summary["rows"])
    titles = ["", "dev"]
    if with_runs:
        titles.append("mean ± sd of runs")
    titles += [f"published, {one['split']}" for one in summary["published"]]
    rows = []
    for row in summary["rows"]:
        cells = [row["column"], _percent(row["score"])]
        if runs := row.get("runs"):
            spread = f"{_percent(runs['mean'])} ± {_percent(runs['std'])}"
            cells.append(f"{spread} ({runs['count']})")
        elif with_runs:
            cells.append("")
        cells += ["" if score is None else f"{score:g}" for score in row["published"]]
        rows.append(cells)
    return titles, rows


def _sentences(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields the averages (without a mean of all, if scores are missing), and the sources."""
    for name, words in _AVERAGES:
        average = summary["averages"][name]
        if average["complete"] is not None:
            yield f"{words}: {_percent(average['complete'])}"
            continue
        missing = average["missing"]
        is_missing = f"{listed(missing, 200)} {'is' if len(missing) == 1 else 'are'} missing"
        mean = ""
        if average["count"]:
            mean = f": {_percent(average['present'])}"
        yield (
            f"{words}: not known, because {is_missing}; mean of the {average['count']} of "
            f"{average['total']} that are there, which is not comparable{mean}"
        )
    for one in summary["published"]:
        average = ""
        if one["average"]:
            average = f", with an average of {one['average']:g}"
        yield f"published, {one['split']}: {one['source']}{average}"
    if summary["published"]:
        yield (
            "Where a source states no metric (MRPC, QQP, STS-B) or no split (MNLI), its score is "
            "in the first row of the task. Scores on test are not comparable with those on dev."
        )


def _markdown(summary: Mapping[str, Any]) -> str:
    titles, rows = _cells(summary)
    lines = [f"# GLUE: {summary['init']}\n"]
    for cells in (titles, ["---"] * len(titles), *rows):
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\n{sentence}" for sentence in _sentences(summary)]
    return "\n".join(lines) + "\n"


def _print(summary: Mapping[str, Any]) -> None:
    titles, rows = _cells(summary)
    table = Table(*titles, title=f"GLUE: {summary['init']}")
    for cells in rows:
        table.add_row(*cells)
    printable.console(width=100).print(table)
    print(*_sentences(summary), sep="\n")


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2f}"
