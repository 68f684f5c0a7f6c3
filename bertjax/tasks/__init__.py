"""Fine-tuning tasks: reading and encoding examples, decoding model outputs, and metrics."""

from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.registry import TASKS, check_task, make_task
from bertjax.tasks.task import Example, Prediction, Source, Task

__all__ = [
    "TASKS",
    "Example",
    "Prediction",
    "Source",
    "Task",
    "TaskDefinition",
    "TaskOptions",
    "check_task",
    "make_task",
]
