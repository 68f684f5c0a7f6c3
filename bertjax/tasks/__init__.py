"""Tasks to fine-tune on: their examples, features, answers and metrics."""

from bertjax.tasks.registry import TASKS, TaskOptions, check_task, make_task
from bertjax.tasks.task import Example, Prediction, Source, Task

__all__ = [
    "TASKS",
    "Example",
    "Prediction",
    "Source",
    "Task",
    "TaskOptions",
    "check_task",
    "make_task",
]
