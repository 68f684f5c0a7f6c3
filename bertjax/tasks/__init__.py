"""Fine-tuning tasks: reading and encoding examples, decoding model outputs, and metrics."""

from bertjax.tasks.dataset import Dataset, Example
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.registry import TASKS, check_task, make_task
from bertjax.tasks.task import Prediction, Task

__all__ = [
    "TASKS",
    "Dataset",
    "Example",
    "Prediction",
    "Task",
    "TaskDefinition",
    "TaskOptions",
    "check_task",
    "make_task",
]
