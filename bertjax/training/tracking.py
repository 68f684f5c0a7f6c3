"""`Tracking`: sends the lines of metrics.jsonl to an experiment tracker, in a thread.

No step waits for a tracker, and a tracker that fails never ends a run. What a tracker lacks, such
as lines that were logged while its server was gone, is sent from metrics.jsonl when the run starts
the next time. A resumed run computes some steps again, with the same results; they are not sent
again.
"""

import dataclasses
import json
import math
import queue
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from bertjax.config import TrainingConfig
from bertjax.files import write_json
from bertjax.training.metric_files import read_lines
from bertjax.training.trackers import PATIENCE_SECONDS, TRACKERS, Line, Position, Start

# The folder in the workdir with the files of trackers, and NAME.json, which names the run there.
TRACKERS_FOLDER = "trackers"
# Seconds for which a run that was stopped waits for a tracker.
STOPPED_PATIENCE_SECONDS = 10.0
# MLflow accepts at most 1,000 metrics per request.
LINES_PER_REQUEST = 40


class Listener(Protocol):
    """What gets the metrics of a run, such as a tracker or the report."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Receives the metrics of a step, which are in metrics.jsonl already."""
        ...


class Tracking:
    """Passes the lines of metrics.jsonl on to one tracker, in a thread.

    Args:
        name: the name of the tracker, one of TRACKERS.
        workdir: the local folder of the run; its metrics.jsonl ends at the step from which the run
            goes on.
        project: the project (MLflow: experiment) in which the run is shown.
        config: the config of the run, as nested dictionaries of JSON values.
        rollbacks: the number of rollbacks of the run so far. After a rollback, steps have other
            results than before, so that the tracker shows a new run.
    """

    def __init__(
        self, name: str, workdir: Path, project: str, config: dict[str, Any], rollbacks: int = 0
    ):
        self._name, self._rollbacks = name, rollbacks
        folder = workdir / TRACKERS_FOLDER
        self._file = folder / f"{name}.json"
        shown = f"{workdir.name}-rollback{rollbacks}" if rollbacks else workdir.name
        self._start = Start(None, shown, project, config, folder)
        self._lines: queue.SimpleQueue[Line | bool] = queue.SimpleQueue()
        for line in read_lines(workdir / "metrics.jsonl").lines:
            self.write(line.pop("step"), line)
        self._thread = threading.Thread(target=self._run, name=f"tracks {name}", daemon=True)
        self._thread.start()

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Sends the metrics of a step; texts and numbers that are not finite are left out."""
        numbers = {
            key: float(value)
            for key, value in metrics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        if numbers:
            self._lines.put(Line(step, numbers))

    def close(self, *, complete: bool) -> None:
        """Waits until all lines have been sent, but not long for a tracker that does not answer.

        Args:
            complete: whether the run is complete; if not, it may be about to be killed.
        """
        self._lines.put(complete)
        self._thread.join(PATIENCE_SECONDS if complete else STOPPED_PATIENCE_SECONDS)
        if self._thread.is_alive():
            print(
                f"warning: {self._name} does not answer. metrics.jsonl has all metrics; the next "
                "start of this run sends those that are missing.",
                flush=True,
            )

    def _run(self) -> None:
        try:
            self._send_all()
        # Trackers are not part of the training, whatever they raise.
        except (Exception, SystemExit) as error:
            print(
                f"warning: {self._name} gets no further metrics ({type(error).__name__}: {error}). "
                "metrics.jsonl has all of them; the next start of this run sends those that are "
                "missing.",
                flush=True,
            )

    def _send_all(self) -> None:
        self._start.folder.mkdir(parents=True, exist_ok=True)
        saved = self._saved()
        tracker = TRACKERS[self._name](self._start._replace(run_id=saved.get("id")))
        position = tracker.position
        if position.names is None and position.step == saved.get("step"):
            position = Position(position.step, saved.get("names", ()))
        self._save(tracker.run_id, position)
        for lines in self._batches():
            new = []
            for line in lines:
                if _is_new(line, position):
                    new.append(line)
                    before = position.names or () if line.step == position.step else ()
                    position = Position(line.step, [*before, *line.metrics])
            if new:
                tracker.log(new)
                self._save(tracker.run_id, position)
        tracker.finish(self._complete)

    def _batches(self) -> Iterator[list[Line]]:
        """Yields lists of the lines that are waiting, until `close` is called."""
        while True:
            batch, item = [], self._lines.get()
            while not isinstance(item, bool):
                batch.append(item)
                if self._lines.empty() or len(batch) == LINES_PER_REQUEST:
                    break
                item = self._lines.get()
            yield batch
            if isinstance(item, bool):
                self._complete = item
                return

    def _saved(self) -> dict[str, Any]:
        """Returns what `_save` wrote; {} if there is nothing, or after a rollback."""
        try:
            content = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        known = isinstance(content, dict) and content.get("rollbacks") == self._rollbacks
        return content if known else {}

    def _save(self, run_id: str, position: Position) -> None:
        names = list(position.names or ())
        content = {"id": run_id, "rollbacks": self._rollbacks, "step": position.step}
        write_json(self._file, content | {"names": names})


def open_trackers(config: TrainingConfig, workdir: Path, rollbacks: int) -> list[Tracking]:
    """Returns the trackers of --track; each continues the run that it has of `workdir`, if any.

    `config` is the config of the run, and `rollbacks` the number of its rollbacks so far, after
    which trackers show a new run.
    """
    content = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    content["command"] = shlex.join(sys.orig_argv)
    return [
        Tracking(name, workdir, config.track_project, content, rollbacks)
        for name in dict.fromkeys(config.track)
    ]


def _is_new(line: Line, position: Position) -> bool:
    """Whether a line is not among the lines up to `position`."""
    if line.step != position.step:
        return line.step > position.step
    return position.names is not None and not line.metrics.keys() <= set(position.names)
