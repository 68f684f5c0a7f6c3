"""Runs in the experiment trackers Weights & Biases, MLflow and Trackio, behind one interface.

The packages are optional (extras `wandb`, `mlflow`, `trackio`) and are imported when a run opens
its tracker. The files that trackers write are in the folder `trackers` of the workdir.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import queue
import shlex
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flax.traverse_util import flatten_dict

from bertjax.base.files import did_you_mean, read_json_or_empty, set_aside, write_json
from bertjax.base.workdir_files import METRICS, TRACKERS_FOLDER
from bertjax.config import TrainingConfig
from bertjax.record.events import Finished, Line, Reader, Stopped
from bertjax.record.metrics import read_lines


class Start(NamedTuple):
    """What a tracker needs to create or continue a run.

    `run_id` is the run, in the tracker, to continue, if any; `project` is MLflow's experiment;
    `config` holds JSON values; and `folder` exists, for the files of the tracker.
    """

    run_id: str | None
    name: str
    project: str
    config: dict[str, Any]
    folder: Path


class Entry(NamedTuple):
    """The metrics of a step, {name: finite number}; a step may have several entries."""

    step: int
    metrics: dict[str, float]


class Position(NamedTuple):
    """The last step of which a tracker has metrics, and their names; None: they are unknown."""

    step: int
    names: Sequence[str] | None

    def lacks(self, entry: Entry) -> bool:
        """Returns whether an entry comes after this position."""
        if entry.step != self.step:
            return entry.step > self.step
        return self.names is not None and not entry.metrics.keys() <= set(self.names)

    def after(self, entry: Entry) -> "Position":
        """Returns the position of a tracker that got another entry."""
        if entry.step == self.step:
            return Position(self.step, [*(self.names or ()), *entry.metrics])
        return Position(entry.step, list(entry.metrics))


NOTHING = Position(-1, ())


class Tracker(Protocol):
    """A run in an experiment tracker. All methods may raise any exception.

    A later process continues the run `run_id`; `position` is what the tracker already has of it.
    """

    run_id: str
    position: Position

    def log(self, entries: Sequence[Entry]) -> None:
        """Sends entries, whose steps never decrease."""

    def finish(self, complete: bool) -> None:
        """Ends this process's part of the run, which is `complete` or was stopped."""


# Seconds for which a run that was stopped waits for a tracker.
STOPPED_PATIENCE_SECONDS = 10.0
# MLflow accepts at most 1,000 metrics per request.
ENTRIES_PER_REQUEST = 40


class Tracking(Reader):
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
        self._name = name
        self._rollbacks = rollbacks
        folder = workdir / TRACKERS_FOLDER
        self._file = folder / f"{name}.json"
        shown = workdir.name
        if rollbacks:
            shown += f"-rollback{rollbacks}"
        self._start = Start(None, shown, project, config, folder)
        self._entries: queue.SimpleQueue[Entry | bool] = queue.SimpleQueue()
        for line in read_lines(workdir / METRICS).lines:
            self.write(line.pop("step"), line)
        self._thread = threading.Thread(target=self._run, name=f"tracks {name}", daemon=True)
        self._thread.start()

    def read(self, event: Any) -> None:
        match event:
            case Line(step=step, metrics=metrics):
                self.write(step, metrics)
            case Stopped():
                self.close(complete=False)
            case Finished():
                self.close(complete=True)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Sends the metrics of a step; texts and numbers that are not finite are left out."""
        numbers = {}
        for key, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                numbers[key] = float(value)
        if numbers:
            self._entries.put(Entry(step, numbers))

    def close(self, *, complete: bool) -> None:
        """Waits until all lines have been sent, or less long for a run that is not complete."""
        self._entries.put(complete)
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
        for entries in self._batches():
            new = []
            for entry in entries:
                if position.lacks(entry):
                    new.append(entry)
                    position = position.after(entry)
            if new:
                tracker.log(new)
                self._save(tracker.run_id, position)
        tracker.finish(self._complete)

    def _batches(self) -> Iterator[list[Entry]]:
        """Yields lists of the entries that are waiting, until `close` is called."""
        while True:
            batch = []
            item = self._entries.get()
            while not isinstance(item, bool):
                batch.append(item)
                if self._entries.empty() or len(batch) == ENTRIES_PER_REQUEST:
                    break
                item = self._entries.get()
            yield batch
            if isinstance(item, bool):
                self._complete = item
                return

    def _saved(self) -> dict[str, Any]:
        content = read_json_or_empty(self._file)
        if content.get("rollbacks") != self._rollbacks:
            return {}
        return content

    def _save(self, run_id: str, position: Position) -> None:
        content = {
            "id": run_id,
            "rollbacks": self._rollbacks,
            "step": position.step,
            "names": list(position.names or ()),
        }
        write_json(self._file, content)


def open_trackers(config: TrainingConfig, workdir: Path, rollbacks: int) -> list[Tracking]:
    """Returns the trackers of --track; each continues the run that it has of `workdir`, if any."""
    content = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    content["command"] = shlex.join(sys.orig_argv)
    return [
        Tracking(name, workdir, config.track_project, content, rollbacks)
        for name in dict.fromkeys(config.track)
    ]


# Seconds for which the end of a run waits for a tracker that does not answer.
PATIENCE_SECONDS = 60.0
# MLflow accepts at most 100 parameters per request, and 500 characters in their values before 2.8.
_PARAMS_PER_REQUEST = 100
_PARAM_LENGTH = 500


class WandbTracker(Tracker):
    """A run of Weights & Biases.

    The server knows how far a run is, and refuses lower steps. WANDB_MODE=offline writes to the
    disk only; a killed process loses a part of that, so each process writes the whole run anew.
    """

    def __init__(self, start: Start):
        wandb = import_module("wandb")
        online = wandb.setup().settings.mode not in ("offline", "disabled", "dryrun")
        # Without this check, `init` would ask for a key on the terminal.
        if online and not wandb.login(prompt=False, verify=False):
            raise ValueError(
                "there is no API key: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline"
            )
        self._run = wandb.init(
            project=start.project,
            name=start.name,
            id=start.run_id,
            resume="allow" if online and start.run_id else None,
            config=start.config,
            dir=os.environ.get("WANDB_DIR") or str(start.folder),
            reinit="create_new",  # an earlier run may still wait for the server
            settings={"console": "off", "finish_timeout": PATIENCE_SECONDS},
        )
        self.run_id = str(self._run.id)
        resumed = self._run.resumed and self._run.starting_step
        self.position = Position(self._run.starting_step - 1, None) if resumed else NOTHING

    def log(self, entries: Sequence[Entry]) -> None:
        for step, metrics in entries:
            self._run.log(metrics, step=step)

    def finish(self, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


class MlflowTracker(Tracker):
    """A run of MLflow: at MLFLOW_TRACKING_URI or, if that is not set, in `mlflow.db`."""

    def __init__(self, start: Start):
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        artifacts = None
        if not uri:
            database = start.folder.resolve() / "mlflow.db"
            _replace_damaged_database(database)
            uri = f"sqlite:///{database}"
            artifacts = (database.parent / "mlruns").as_uri()
        mlflow = import_module("mlflow")
        self._metric = import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        run = None
        if start.run_id:
            run = self._existing(start.run_id, mlflow.MlflowException)
        if run is None:
            run = self._created(start, artifacts)
            self.position = NOTHING
        else:
            self._client.update_run(run.info.run_id, status="RUNNING")
            self.position = self._position_of(run)
        self.run_id = str(run.info.run_id)

    def _existing(self, run_id: str, error_class: type[Exception]) -> Any:
        """Returns the run, or None if the store has no such run (any more)."""
        try:
            run = self._client.get_run(run_id)
        except error_class as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        if run.info.lifecycle_stage == "active":
            return run
        return None

    def _created(self, start: Start, artifacts: str | None) -> Any:
        experiment = self._client.get_experiment_by_name(start.project)
        if experiment is None:
            number = self._client.create_experiment(start.project, artifact_location=artifacts)
        else:
            number = experiment.experiment_id
        run = self._client.create_run(number, run_name=start.name)
        parameter = import_module("mlflow.entities").Param
        flat: Any = flatten_dict(start.config, sep=".")
        params = (parameter(k, str(x)[:_PARAM_LENGTH]) for k, x in flat.items() if x is not None)
        while part := list(itertools.islice(params, _PARAMS_PER_REQUEST)):
            self._client.log_batch(run.info.run_id, params=part)
        return run

    def _position_of(self, run: Any) -> Position:
        history = [
            metric
            for key in run.data.metrics
            for metric in self._client.get_metric_history(run.info.run_id, key)
        ]
        last = max((metric.step for metric in history), default=-1)
        return Position(last, [metric.key for metric in history if metric.step == last])

    def log(self, entries: Sequence[Entry]) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._metric(key, value, now, step)
            for step, values in entries
            for key, value in values.items()
        ]
        self._client.log_batch(self.run_id, metrics=metrics)

    def finish(self, complete: bool) -> None:
        self._client.set_terminated(self.run_id, status="FINISHED" if complete else "KILLED")


class TrackioTracker(Tracker):
    """A run of Trackio: on the local disk (TRACKIO_DIR), or in a Space (TRACKIO_SPACE_ID)."""

    def __init__(self, start: Start):
        # Trackio continues the run of the same name, so that the name must be unique.
        self.run_id = start.run_id or f"{start.name}-{uuid.uuid4().hex[:6]}"
        self._run = import_module("trackio").init(
            project=start.project,
            name=self.run_id,
            config=start.config,
            resume="allow",
            embed=False,
        )
        self.position = Position(self._run._next_step - 1, None)

    log = WandbTracker.log

    def finish(self, complete: bool) -> None:
        del complete
        self._run.finish()


TRACKERS: dict[str, Callable[[Start], Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
}


def check_installed(names: Sequence[str]) -> None:
    """Checks the names of trackers, and that their packages are installed, before a run begins."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(
                f"--track {name}: there is no such tracker. {did_you_mean(name, TRACKERS)}Choose "
                f"among {', '.join(TRACKERS)}."
            )
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:
            spec = None
        # A folder of this name, such as wandb's own in the current folder, has no origin.
        if spec is None or spec.origin is None:
            raise ImportError(
                f"--track {name} needs a package that is not installed: run pip install "
                f"'bertjax[{name}]'."
            )


def _replace_damaged_database(path: Path) -> None:
    """Sets a damaged SQLite file aside, such as a copy in a bucket made during a write.

    The run is then sent anew, from metrics.jsonl.
    """
    if not path.is_file():
        return
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            (answer,) = database.execute("PRAGMA quick_check").fetchone()
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        print(f"{path} is damaged ({answer}); it was copied to {set_aside(path)}.", flush=True)
        path.unlink()
