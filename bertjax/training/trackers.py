"""Experiment trackers (Weights & Biases, MLflow, Trackio), which get the lines of metrics.jsonl.

A thread passes the lines on, so that no step waits for a tracker, and a tracker that fails never
ends a run. `tracked.json` in the workdir holds the id of the tracker's run and the last line that
it got: a resumed run continues the same run there, sends the lines that are missing, and does not
send those again that it computes anew, because they are equal.
"""

import importlib.util
import json
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from bertjax.files import write_json
from bertjax.training.metric_files import read_lines

TRACKED = "tracked.json"
# Seconds for which the end of a run waits for a tracker that does not answer.
PATIENCE_SECONDS = 60.0


class Tracker(Protocol):
    """A run in an experiment tracker; `run_id` is its id there."""

    run_id: str

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Sends the metrics of a step; may raise any exception."""

    def finish(self) -> None:
        """Ends the process's part of the run; may raise any exception."""


class WandbTracker:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it in the workdir until `wandb sync`."""

    def __init__(self, run_id: str | None, workdir: Path, project: str, config: dict[str, Any]):
        self._run = import_module("wandb").init(
            project=project,
            name=workdir.name,
            id=run_id,
            resume="allow" if run_id else None,
            config=config,
            dir=str(workdir),
        )
        self.run_id = str(self._run.id)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Sends the metrics of a step, asynchronously."""
        self._run.log(metrics, step=step)

    def finish(self) -> None:
        """Waits until all metrics have been sent."""
        self._run.finish()


class MlflowTracker:
    """A run of MLflow: at MLFLOW_TRACKING_URI, or else in `mlflow.db` in the workdir."""

    def __init__(self, run_id: str | None, workdir: Path, project: str, config: dict[str, Any]):
        local = f"sqlite:///{(workdir / 'mlflow.db').resolve()}"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or local
        self._client = import_module("mlflow").MlflowClient(tracking_uri=uri)
        if run_id is None:
            experiment = self._client.get_experiment_by_name(project)
            if experiment is None:
                experiment_id = self._client.create_experiment(project)
            else:
                experiment_id = experiment.experiment_id
            run = self._client.create_run(experiment_id, run_name=workdir.name)
            run_id = str(run.info.run_id)
            for key, value in _flat(config).items():
                self._client.log_param(run_id, key, str(value)[:500])
        else:
            self._client.update_run(run_id, status="RUNNING")
        self.run_id = run_id

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Sends the metrics of a step."""
        now = int(time.time() * 1000)
        metric = import_module("mlflow.entities").Metric
        values = [metric(key, value, now, step) for key, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=values)

    def finish(self) -> None:
        """Marks the run as ended."""
        self._client.set_terminated(self.run_id)


class TrackioTracker:
    """A run of Trackio, which keeps it on the local disk (TRACKIO_DIR)."""

    def __init__(self, run_id: str | None, workdir: Path, project: str, config: dict[str, Any]):
        # Trackio continues the run of the same name.
        self.run_id = run_id or f"{workdir.name}-{int(time.time())}"
        self._run = import_module("trackio").init(
            project=project, name=self.run_id, config=config, resume="allow", embed=False
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Sends the metrics of a step, asynchronously."""
        self._run.log(metrics, step=step)

    def finish(self) -> None:
        """Waits until all metrics have been stored."""
        self._run.finish()


TRACKERS: dict[str, Callable[[str | None, Path, str, dict[str, Any]], Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
}


def check_installed(names: tuple[str, ...]) -> None:
    """Checks, before a run begins, that the packages of trackers are installed.

    Raises:
        ImportError: a package is not installed.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"--track {name} needs a package that is not installed: run pip install "
                f"'bertjax[{name}]', or leave out --track."
            )


class Tracking:
    """Passes the lines of metrics.jsonl on to one tracker, in a thread.

    Args:
        name: the name of the tracker, one of TRACKERS.
        workdir: the local folder of the run.
        project: the project (MLflow: experiment) in which the run is shown.
        config: the config of the run.
    """

    def __init__(self, name: str, workdir: Path, project: str, config: dict[str, Any]):
        self._name, self._workdir, self._project, self._config = name, workdir, project, config
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._sent = _read(workdir).get(name, {})
        for line in read_lines(workdir / "metrics.jsonl").lines:
            self._lines.put(line)
        self._thread = threading.Thread(target=self._send_all, name=f"tracks {name}", daemon=True)
        self._thread.start()

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Sends the metrics of a step, which metrics.jsonl has, too."""
        self._lines.put({"step": step, **metrics})

    def save(self) -> None:
        """Writes to the workdir which lines have been sent."""
        sent = self._sent
        if sent:
            write_json(self._workdir / TRACKED, _read(self._workdir) | {self._name: sent})

    def close(self) -> None:
        """Waits, for at most a minute, until all lines have been sent."""
        self._lines.put(None)
        self._thread.join(PATIENCE_SECONDS)
        self.save()

    def _send_all(self) -> None:
        try:
            run_id = self._sent.get("id")
            tracker = TRACKERS[self._name](run_id, self._workdir, self._project, self._config)
            while (line := self._lines.get()) is not None:
                self._send(tracker, line)
            tracker.finish()
        except Exception as error:  # of any kind: trackers are not part of the training
            print(
                f"warning: {self._name} does not get further metrics ({type(error).__name__}: "
                f"{error}). metrics.jsonl has all of them; the next start of this run sends those "
                "that are missing.",
                flush=True,
            )

    def _send(self, tracker: Tracker, line: dict[str, Any]) -> None:
        step = line["step"]
        values = {
            key: float(value)
            for key, value in line.items()
            if key != "step" and isinstance(value, int | float) and math.isfinite(value)
        }
        last = self._sent.get("step", -1)
        known = self._sent.get("names", []) if step == last else []
        if step < last or not values or values.keys() <= set(known):
            return
        tracker.log(step, values)
        self._sent = {"id": tracker.run_id, "step": step, "names": [*known, *values]}


def _read(workdir: Path) -> dict[str, Any]:
    """Returns {name of a tracker: what it got last}; a damaged file counts as a missing one."""
    try:
        content = json.loads((workdir / TRACKED).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"field.subfield": value} of a nested config, without values that are None."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat
