"""Checks of the settings that make a fine-tuning of several runs: GLUE, folds and few shots."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.config.finetune_config import FinetuneConfig

# The task that stands for all tasks of GLUE.
GLUE_TASK = "glue"
# The value of `select_by` with which the dev split selects no checkpoint.
LAST = "last"


def check_runs(config: "FinetuneConfig") -> None:
    """Checks the fields `folds`, `shots`, `select_by` and, for all tasks of GLUE, all fields.

    Raises:
        ValueError: a value is out of its range, or a setting has no effect with the others.
    """
    if config.select_by == LAST:
        given = {"patience": config.patience or None}
        given["evals_per_epoch"] = None if config.evals_per_epoch == 1 else config.evals_per_epoch
        default = "" if config.shots is None else " (the default of --shots)"
        _refuse(
            f"--select_by {LAST}{default}",
            given,
            "the dev split is evaluated only once, with the model of the last step",
        )
    if config.shots is not None:
        _check_shots(config)
    if config.folds:
        _check_folds(config)
    if config.task.lower() == GLUE_TASK:
        _check_glue(config)


def _check_shots(config: "FinetuneConfig") -> None:
    assert config.shots is not None
    if config.shots < 1:
        raise ValueError(f"shots={config.shots}: it must be at least 1.")
    _refuse(
        f"--shots {config.shots}",
        {"sweep": config.sweep or None},
        "a dev split that is many times as large as the training data would choose the settings",
    )
    _refuse(
        f"--shots {config.shots}",
        {"doc_stride": config.doc_stride},
        "a long text has several windows, and a shot would be one of them",
    )


def _check_folds(config: "FinetuneConfig") -> None:
    if config.folds < 2:
        raise ValueError(f"folds={config.folds}: give at least 2, or 0 for no cross-validation.")
    _refuse(
        f"--folds {config.folds}",
        {
            "dev": config.dev,
            "dev_fraction": config.dev_fraction,
            "shots": config.shots,
            "seeds": config.seeds if config.seeds > 1 else None,
            "sweep": config.sweep or None,
            "calibrate": config.calibrate or None,
        },
        "the folds take the place of a dev split, and the exported model is trained on all rows",
    )
    _refuse(
        f"--folds {config.folds}",
        {
            "patience": config.patience or None,
            "select_by": None if config.select_by == LAST else config.select_by,
            "evals_per_epoch": None if config.evals_per_epoch == 1 else config.evals_per_epoch,
        },
        "a fold that selects a checkpoint cannot measure it",
    )


def _check_glue(config: "FinetuneConfig") -> None:
    _refuse(
        f"--task {GLUE_TASK}",
        {
            **{name: getattr(config, name) for name in ("train", "dev", "test", "dev_fraction")},
            "shots": config.shots,
            "folds": config.folds or None,
            "feature_layers": config.feature_layers or None,
            "teacher": config.teacher,
            "class_weights": config.class_weights,
            "select_by": None if config.select_by == LAST else config.select_by,
            "push_to_hub": config.push_to_hub,
        },
        "it would have to be another one for each task; run the task alone with it, such as --task "
        "mnli, in its folder WORKDIR/mnli",
    )


def _refuse(mode: str, given: dict[str, Any], reason: str) -> None:
    """Raises ValueError if a value of `given`, {name of a field: value}, is not None."""
    flags = [
        f"--{name}" if value is True else f"--{name} {value}"
        for name, value in given.items()
        if value is not None
    ]
    if flags:
        raise ValueError(
            f"{mode} cannot be combined with {', '.join(flags)}: {reason}. Leave one of them out."
        )
