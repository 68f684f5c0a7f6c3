"""Cross-validation of a fine-tuning on the user's own files: `finetune --folds K`.

The train split is divided into K folds. Run `foldI` is trained on the other folds and predicts fold
I, once, with the model of its last step, so that the fold selects nothing. The run `all` is trained
with the same settings on all examples; its model is exported, and the mean over the folds estimates
its score.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.files import write_json, writing
from bertjax.base.scratch import scratch_folder
from bertjax.config import FinetuneConfig
from bertjax.config.finetune_config import LAST
from bertjax.devices import hosts
from bertjax.record.predictions import print_scores
from bertjax.tasks import Task
from bertjax.tasks.sources.held_out import Fold
from bertjax.tasks.sources.own_files import OwnFiles
from bertjax.train import experiments as variants
from bertjax.train.experiments import FinetuneResult

ALL = "all"
CROSS_VALIDATION = "cross_validation.json"
OUT_OF_FOLD = "out_of_fold.jsonl"


def cross_validate(config: FinetuneConfig) -> FinetuneResult:
    """Trains a model per fold and one on all examples, in WORKDIR/foldI and WORKDIR/all.

    A call that was interrupted continues when it is repeated. WORKDIR/cross_validation.json has the
    mean and the standard deviation of the scores over the folds, and
    WORKDIR/predictions/out_of_fold.jsonl the prediction for each example by the model that was not
    trained on it, in the order of the file.

    Returns:
        The scores of all runs; the best run is `all`, whose model is exported.

    Raises:
        ValueError: the examples cannot be divided into so many folds; or as `variants.finetune`.
        Interrupted: a stop signal arrived; the same call continues.
    """
    return variants.finetune(config, _cross_validate)


def _cross_validate(config: FinetuneConfig) -> FinetuneResult:
    workdir = Path(config.workdir)
    variants.check_outputs(config)
    scores, indices = {}, {}
    with scratch_folder() as folder:
        for index in range(config.folds):
            name, run = variants.variant_of(config, f"fold{index + 1}", test=None, select_by=LAST)
            fold = Fold(index, config.folds, config.seed)
            of_fold, scores[name] = _run(name, run, folder, fold)
            assert isinstance(of_fold.source, OwnFiles)  # no other task accepts folds
            indices[name] = of_fold.source.held_out_indices()
        whole = {"folds": 0, "dev_fraction": 0.0, "select_by": None}
        name, run = variants.variant_of(config, ALL, **whole)
        hosts.say(f"The model that is exported is trained on all examples, in {run.workdir}")
        task, scores[name] = _run(name, run, folder, None)
    folds = {name: scores[name] for name in indices}

    def publish() -> None:
        variants.publish(workdir, ALL, scores, None)
        _write_predictions(workdir, indices)
        write_json(workdir / CROSS_VALIDATION, _summary(config, folds))
        print_scores(folds, task)
        print(
            f"{workdir}/model was trained on all examples. The mean over the folds estimates its "
            f"score; each example's prediction is in {workdir}/predictions/{OUT_OF_FOLD}."
        )

    hosts.on_first(publish)
    variants.push(config, workdir)
    return FinetuneResult(scores, ALL, workdir / "model")


def _run(
    name: str, config: FinetuneConfig, folder: Path, fold: Fold | None
) -> tuple[Task, dict[str, float]]:
    """Trains a run, unless it is finished; returns (its task, {split/metric: score})."""
    part = folder / name
    hosts.on_all(lambda: part.mkdir(exist_ok=True))
    task, loaded, data, teacher = hosts.on_all(
        lambda: variants.load_run(config, config, part, [config.workdir], fold)
    )
    return task, variants.train_run(config, task, loaded, data, teacher, name)


def _write_predictions(workdir: Path, indices: dict[str, list[int]]) -> None:
    """Writes the predictions of all folds to one file, in the order of the examples.

    `indices` holds, for each fold, the index of each line of its predictions in the train file.
    """
    lines = {}
    for name, rows in indices.items():
        text = (workdir / name / "predictions" / "dev.jsonl").read_text(encoding="utf-8")
        # Not `splitlines`: texts may contain other line separators than "\n".
        for index, line in zip(rows, text.removesuffix("\n").split("\n"), strict=True):
            lines[index] = {**json.loads(line), "fold": name}
    path = workdir / "predictions" / OUT_OF_FOLD
    path.parent.mkdir(exist_ok=True)
    with writing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for index in sorted(lines):
            file.write(json.dumps(lines[index], ensure_ascii=False) + "\n")


def _summary(config: FinetuneConfig, folds: dict[str, dict[str, float]]) -> dict[str, Any]:
    metrics = {}
    for key in sorted({key for scores in folds.values() for key in scores}):
        values = [scores[key] for scores in folds.values()]
        metrics[key.removeprefix("dev/")] = {
            "mean": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)),
            "folds": values,
        }
    return {"folds": config.folds, "seed": config.seed, "metrics": metrics}
