"""Notices that examples to be scored are among those that a model was fine-tuned on."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertjax.base.files import read_json
from bertjax.base.run_file import holds_run, read_run
from bertjax.inference.saved_task import TaskModel
from bertjax.tasks import Example, Task
from bertjax.tasks.prediction_inputs import from_file
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.own_files import text_digest

# Larger training files are not searched, because that would take longer than the prediction.
MOST_BYTES = 1 << 28


class TrainingOverlap:
    """Counts the labelled examples whose text is in the file that a model was fine-tuned on.

    The file is known if the model is in the workdir of its run. Part of the file may have been held
    out from the training.

    Args:
        model: the model.
        input: the file or folder with the examples.

    Attributes:
        labelled: the number of labelled examples so far.
        repeated: the number of those whose text is in the training file.
        train: the training file; None: it is unknown, does not exist any more, or is too large.
        held_out: the scores of the run on the examples that were not trained on, {metric: value};
            {} if there are none.
    """

    def __init__(self, model: TaskModel, input: str | Path):
        self._model, self._input = model, Path(input)
        self.labelled = self.repeated = 0
        self.train, self.held_out = _training_of(Path(model.name))
        self._known: set[bytes] | None = None

    def observe(self, task: Task, examples: Iterable[Example]) -> Iterator[Example]:
        """Yields the examples of `task` unchanged, and counts them."""
        for example in examples:
            if self.train is not None and (example.label is not None or example.answers):
                self.labelled += 1
                self.repeated += self._is_known(task, example)
            yield example

    def _is_known(self, task: Task, example: Example) -> bool:
        assert self.train is not None
        if self.train.resolve() == self._input.resolve():
            return True
        if self._known is None:
            try:
                _, read, _ = from_file(
                    task, self.train, Columns(), None, self._model.description, "report"
                )
                self._known = {text_digest(x) for x in read if not x.problem}
            except (OSError, ValueError):  # the file is not what it was in the training
                self._known = set()
        return text_digest(example) in self._known


def _training_of(model: Path) -> tuple[Path | None, dict[str, float]]:
    """Returns (training file, scores on held-out examples) of a model in the workdir of its run."""
    folder = model.resolve().parent
    # The workdir of several runs, such as those of several seeds, has the runs in subfolders.
    runs = [run for run in (folder, *sorted(folder.glob("*/"))) if holds_run(run)]
    try:
        train: Any = read_run(runs[0])["config"].get("train") if runs else None
        found: Any = read_json(runs[0] / "scores.json") if runs == [folder] else {}
    except (OSError, ValueError):
        return None, {}
    path = Path(train).expanduser() if isinstance(train, str) else None
    if path is None or not path.exists() or _size(path) > MOST_BYTES:
        return None, {}
    prefix = "dev/"
    return path, {key.removeprefix(prefix): x for key, x in found.items() if key.startswith(prefix)}


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
