"""Tasks to fine-tune on: their examples, features, answers and metrics."""

from bertjax.tasks.task import Example, Prediction, Source, Task

__all__ = ["Example", "Prediction", "Source", "Task"]
