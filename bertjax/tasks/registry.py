"""The registry of all tasks by name; the modules in `sources` define the tasks."""

from collections.abc import Mapping
from pathlib import Path

from bertjax.base.files import did_you_mean
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.sources.conll import CONLL_TASK
from bertjax.tasks.sources.custom_tasks import CUSTOM_TASKS
from bertjax.tasks.sources.glue import GLUE_TASKS
from bertjax.tasks.sources.squad import SQUAD_TASKS
from bertjax.tasks.sources.swag import SWAG_TASK
from bertjax.tasks.sources.text_pairs import EMBED_TASK
from bertjax.tasks.task import Task

TASKS: Mapping[str, TaskDefinition] = {
    task.name: task
    for task in (
        *(*GLUE_TASKS, *SQUAD_TASKS, SWAG_TASK, CONLL_TASK),
        *(*CUSTOM_TASKS, EMBED_TASK),
    )
}


def check_task(name: str, *others: str) -> str:
    """Checks that `name` is a task of the registry, or in `others`; returns it in lower case.

    Raises:
        ValueError: there is no task named `name`; the message suggests the nearest name.
    """
    known = (*TASKS, *others)
    if not name:
        raise ValueError(f"No task is set: give --task, one of {', '.join(known)}.")
    if name.lower() not in known:
        hint = did_you_mean(name, known)
        raise ValueError(f"Unknown task {name!r}. {hint}Known: {', '.join(known)}.")
    return name.lower()


def make_task(name: str, options: TaskOptions) -> Task:
    """Creates the task named `name`, with the source of its examples, from the user's options.

    Raises:
        ValueError: no task is named `name`, or the task does not accept an option that is set.
        FileNotFoundError: the data of the task does not exist.
    """
    name = check_task(name)
    TASKS[name].check(options)
    if (
        options.train
        and options.dev
        and Path(options.train).resolve() == Path(options.dev).resolve()
    ):
        print(
            f"warning: {options.dev} is both --train and --dev, so the scores do not tell how well "
            "other texts are predicted: leave --dev out to hold out a part of --train."
        )
    return TASKS[name].make(options)
