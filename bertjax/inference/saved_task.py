"""A fine-tuned model with the task that it answers."""

from typing import Any

from bertjax.files import read_json
from bertjax.tasks import Task
from bertjax.tasks.saved import saved_task
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.tagger_weights import with_saved_tagger

DESCRIPTION = "task.json"


def load_with_task(model: str) -> tuple[LoadedModel, Task, dict[str, Any]]:
    """A model with its head, or its tagger, the task that it was trained for, and `task.json`."""
    loaded = load_model(model, None)
    file = loaded.source.where / DESCRIPTION
    description = read_json(file) if file.is_file() else {}
    loaded = with_saved_tagger(loaded, description)
    task = saved_task(
        loaded.head,
        loaded.labels,
        loaded.model.num_labels,
        loaded.source.config,
        description,
        loaded.config.max_length,
    )
    return loaded, task, description
