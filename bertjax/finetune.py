"""python -m bertjax.finetune: a model learns a task (Devlin et al. 2018, 4).

Running the same command again resumes where the last checkpoint stands, bit for bit.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from bertjax import command_line
from bertjax.config import FinetuneConfig, load_config_file
from bertjax.data.preparation.chunks import write_whole
from bertjax.devices.compilation_cache import use_compilation_cache
from bertjax.tasks import Task, TaskOptions, check_task, make_task
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.submission import SUBMISSION, add_to_submission_zip
from bertjax.tasks.training_data import TrainingData, check_splits, write_training_data
from bertjax.training.finetuning import SCORES, Run, load_for_task
from bertjax.training.finetuning_teacher import Teacher, load_teacher, run_identity
from bertjax.training.hooks import Interrupted
from bertjax.training.variants import grading_metric, print_scores, splits_of, variants
from bertjax.training.workdir import Workdir


def run(config: FinetuneConfig) -> dict[str, dict[str, float]]:
    """Fine-tunes with every seed, or every recipe of the sweep; returns the scores of each.

    Raises:
        Interrupted: a signal came; the state is saved.
        ValueError: config, data and workdir do not fit together.
    """
    config = dataclasses.replace(config, workdir=config.workdir or f"runs/{config.task}")
    use_compilation_cache()
    runs = variants(config)
    # Of several runs the best is submitted, in the end.
    given = dataclasses.replace(config, submission=None) if len(runs) > 1 else config
    task = make_task(config.task, task_options(given))
    if (config.sweep or config.patience) and not splits_of(task, "dev"):
        raise ValueError("--sweep and --patience choose by a dev split, and there is none.")
    with tempfile.TemporaryDirectory() as folder:
        first = load_for_task(runs[0][1], task)
        teacher = load_teacher(config, task, first)
        max_length = config.max_length or task.max_length
        file = Path(folder) / "train.array_record"
        data = write_training_data(task, first.tokenizer, max_length, file)
        check_splits(task, first.tokenizer, max_length)
        for reason, count in getattr(task.source, "counts", {}).items():
            print(f"{reason}: {count:,}")
        scores = {name: _train(variant, task, data, teacher, name) for name, variant in runs}
    if len(runs) > 1:
        _publish_the_best(Path(config.workdir), task, scores)
        if config.submission:
            _submit(Path(config.workdir) / "predictions" / SUBMISSION, config.submission)
    print_scores(scores, task)
    return scores


def _train(
    config: FinetuneConfig, task: Task, data: TrainingData, teacher: Teacher | None, name: str
) -> dict[str, float]:
    """Trains one run, unless it is one of several and has been finished before."""
    workdir = Workdir(Path(config.workdir))
    finished = workdir.path / SCORES
    if name and finished.is_file():
        workdir.check(run_identity(config, teacher), data.fingerprint)
        return json.loads(finished.read_text(encoding="utf-8"))
    this = Run(config, task, load_for_task(config, task), data, teacher)
    scores = this.write_results(this.train())
    if name:  # of many runs nobody goes on with the checkpoints
        shutil.rmtree(workdir.checkpoints, ignore_errors=True)
    return scores


def _submit(made: Path, submission: str) -> None:
    """Puts the files of the best run's zip, if its task had a test split, into another."""
    if made.is_file():
        with zipfile.ZipFile(made) as files:
            texts = {name: files.read(name).decode() for name in files.namelist()}
        add_to_submission_zip(submission, texts)


def task_options(config: FinetuneConfig) -> TaskOptions:
    """What the flags say of the task's data."""
    return TaskOptions(
        data_dir=config.data_dir,
        tfds_data_dir=config.tfds_data_dir,
        train=config.train,
        dev=config.dev,
        test=config.test,
        columns=Columns(
            text=config.text_column,
            pair=config.pair_column,
            label=config.label_column,
            id=config.id_column,
            choices=config.choice_columns,
        ),
        label_separator=config.label_separator,
        submission=config.submission,
        span_options={
            name: getattr(config, name)
            for name in ("doc_stride", "max_query_length", "max_answer_length", "null_threshold")
            if getattr(config, name) != getattr(FinetuneConfig, name)
        },
    )


def _publish_the_best(workdir: Path, task: Task, scores: dict[str, dict[str, float]]) -> None:
    """Copies model and predictions of the best run, the first of equals, to the top."""
    metric = grading_metric(task)
    best = max(scores, key=lambda name: scores[name].get(metric or "", 0.0))
    for part in ("model", "predictions"):
        beside = workdir / f"{part}.writing"
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(workdir / best / part, beside)
        shutil.rmtree(workdir / part, ignore_errors=True)
        beside.rename(workdir / part)
    write_whole(workdir / SCORES, json.dumps(scores, indent=2) + "\n")


def parse(argv: Sequence[str] | None = None) -> FinetuneConfig:
    """Reads --task or --config FILE, whose values become the defaults, and all other flags."""
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    before.add_argument("--task")
    before.add_argument("--config")
    first, rest = before.parse_known_args(sys.argv[1:] if argv is None else argv)
    if first.task == "ax":
        raise ValueError("ax has no train split: fine-tune on mnli, then predict with --task ax.")
    if first.task is not None:
        rest = ["--task", first.task, *rest]
        check_task(first.task)
    file = first.config or (first.task and f"configs/finetune/{first.task}.py")
    return command_line.parse(
        FinetuneConfig,
        rest,
        prog="python -m bertjax.finetune",
        description="Fine-tunes a model on a task; the same command again resumes. The defaults "
        "are those of configs/finetune/TASK.py, or of --config FILE.",
        default=load_config_file(file, FinetuneConfig),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    try:
        return command_line.run_reporting_errors(lambda: run(parse(argv)))
    except Interrupted as interrupted:
        print(f"{interrupted}; run the same command again to go on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
