"""Fine-tuning tasks: reading and encoding examples, decoding model outputs, and metrics."""

from bertjax.tasks.dataset import Dataset, Example
from bertjax.tasks.definition import TaskDefinition
from bertjax.tasks.registry import (
    TASKS,
    check_task,
    finetune_config,
    make_task,
    with_task_options,
)
from bertjax.tasks.task import Prediction, Task

__all__ = [
    "TASKS",
    "Dataset",
    "Example",
    "Prediction",
    "Task",
    "TaskDefinition",
    "check_task",
    "finetune_config",
    "make_task",
    "with_task_options",
]
