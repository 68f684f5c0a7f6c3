"""python -m bertjax.finetune: a model learns a task (Devlin et al. 2018, 4).

Running the same command again resumes where the last checkpoint stands, bit for bit.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bertjax import command_line
from bertjax.config import FinetuneConfig, load_config_file
from bertjax.data.chunks import write_whole
from bertjax.finetuning.report import grading_metric, print_scores, variants
from bertjax.finetuning.run import SCORES, Run, load_for_task
from bertjax.tasks import Task, TaskOptions, check_task, make_task
from bertjax.tasks.columns import Columns
from bertjax.tasks.training_data import check_splits, write_training_data
from bertjax.train.compilation_cache import use_compilation_cache
from bertjax.train.hooks import Interrupted


def run(config: FinetuneConfig) -> dict[str, dict[str, float]]:
    """Fine-tunes with every seed, or every recipe of the sweep; returns the scores of each.

    Raises:
        Interrupted: a signal came; the state is saved.
        ValueError: config, data and workdir do not fit together.
    """
    config = dataclasses.replace(config, workdir=config.workdir or f"runs/{config.task}")
    use_compilation_cache()
    task = make_task(config.task, task_options(config))
    scores: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = None
        for name, variant in variants(config):
            finished = Path(variant.workdir) / SCORES
            if name and finished.is_file():
                scores[name] = json.loads(finished.read_text(encoding="utf-8"))
                continue
            loaded = load_for_task(variant, task)
            if data is None:
                data = write_training_data(
                    task,
                    loaded.tokenizer,
                    config.max_length or task.max_length,
                    Path(folder) / "train.array_record",
                )
                check_splits(task, loaded.tokenizer, config.max_length or task.max_length)
                for reason, count in getattr(task.source, "counts", {}).items():
                    print(f"{reason}: {count:,}")
            this = Run(variant, task, loaded, data)
            scores[name] = this.write_results(this.train())
            if name:
                _keep_the_best(Path(config.workdir), task, name, scores)
    print_scores(scores, task)
    return scores


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
            "doc_stride": config.doc_stride,
            "max_query_length": config.max_query_length,
            "max_answer_length": config.max_answer_length,
            "null_threshold": config.null_threshold,
        },
    )


def _keep_the_best(
    workdir: Path, task: Task, name: str, scores: dict[str, dict[str, float]]
) -> None:
    """Copies the model of the best run so far to the top; drops checkpoints nobody needs again."""
    metric = grading_metric(task)
    shutil.rmtree(workdir / name / "checkpoints", ignore_errors=True)
    others = [found[metric] for other, found in scores.items() if other != name] if metric else []
    if metric is None or scores[name][metric] > max(others, default=float("-inf")):
        for part in ("model", "predictions"):
            beside = workdir / f"{part}.writing"
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(workdir / name / part, beside)
            shutil.rmtree(workdir / part, ignore_errors=True)
            beside.rename(workdir / part)
    write_whole(workdir / SCORES, json.dumps(scores, indent=2) + "\n")


def parse(argv: Sequence[str] | None = None) -> FinetuneConfig:
    """Reads --task or --config FILE, whose values become the defaults, and all other flags."""
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    before.add_argument("--task")
    before.add_argument("--config")
    first, rest = before.parse_known_args(sys.argv[1:] if argv is None else argv)
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
        default=load_config_file(file, FinetuneConfig) if file else FinetuneConfig(),
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
