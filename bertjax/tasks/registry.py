"""The tasks by name."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping

from bertjax.tasks.glue import GLUE, GlueSource, GlueSpec
from bertjax.tasks.metrics import METRICS
from bertjax.tasks.task import Source, Task
from bertjax.tasks.text import ClassificationTask, RegressionTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Where the data of a task is, and what the user says of it.

    Attributes:
        data_dir: folder of the official files; None: TensorFlow Datasets.
        tfds_data_dir: where TensorFlow Datasets keeps its data.
    """

    data_dir: str | None = None
    tfds_data_dir: str | None = None


def _glue(spec: GlueSpec) -> Callable[[TaskOptions], Task]:
    def make(options: TaskOptions) -> Task:
        assert options.data_dir
        source: Source = GlueSource(spec, options.data_dir)
        metric = METRICS[spec.name]
        if spec.kind == "regression":
            return RegressionTask(
                name=spec.name, source=source, metric=metric, best_metric="pearson_spearman"
            )
        best = {"cola": "matthews", "ax": "matthews", "mrpc": "accuracy_f1", "qqp": "accuracy_f1"}
        return ClassificationTask(
            name=spec.name,
            source=source,
            labels=spec.labels,
            metric=metric,
            best_metric=best.get(spec.name, "accuracy"),
        )

    return make


TASKS: Mapping[str, Callable[[TaskOptions], Task]] = {
    name: _glue(spec) for name, spec in GLUE.items()
}


def check_task(name: str) -> None:
    """Refuses the name of a task that there is not.

    Raises:
        ValueError: with the nearest name.
    """
    if name not in TASKS:
        nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown task {name!r}. Did you mean {nearest!r}? Known: {', '.join(TASKS)}."
        )


def make_task(name: str, options: TaskOptions) -> Task:
    """The task of a name, with its data.

    Raises:
        ValueError: there is none of that name, or the options do not suit it.
        FileNotFoundError: its data is not there.
    """
    check_task(name)
    return TASKS[name](options)
