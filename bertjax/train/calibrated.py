"""Calibrates the probabilities of a fine-tuned classifier on its dev split."""

import dataclasses
from pathlib import Path

from bertjax.base.files import read_json, write_json
from bertjax.base.workdir_files import CALIBRATION
from bertjax.record.predictions import SUFFIX, splits_of
from bertjax.tasks import Task
from bertjax.tasks.classification import ClassificationTask
from bertjax.tasks.temperature import Calibration


def check_calibration(task: Task) -> None:
    """Checks that the probabilities of a task can be calibrated.

    Raises:
        ValueError: the task does not have one class per example, or has no dev split.
    """
    if not isinstance(task, ClassificationTask):
        raise ValueError(
            f"--calibrate: {task.name} does not have one class per example, of which a temperature "
            "scales the probabilities: leave it out."
        )
    if not splits_of(task, "dev"):
        raise ValueError(
            "--calibrate fits the temperature on the dev split, but there is none: give --dev, or "
            "leave it out."
        )


def with_temperature(task: Task, calibration: Calibration) -> Task:
    """Returns a copy of the task that scales its probabilities by that of `calibration`."""
    assert isinstance(task, ClassificationTask)
    return dataclasses.replace(task, temperature=calibration.temperature)


def write_calibration(workdir: Path, split: str, calibration: Calibration) -> None:
    """Writes the calibration of a split to calibration.json, and to the data of the report.

    Args:
        workdir: the folder of the run.
        split: the dev split on which the temperature was fitted.
        calibration: the temperature and the errors.
    """
    content = {"split": split, **dataclasses.asdict(calibration)}
    write_json(workdir / CALIBRATION, content)
    summary = workdir / "predictions" / f"{split}{SUFFIX}"
    shown = read_json(summary)
    shown["calibration"]["scaled"] = content
    write_json(summary, shown)
