"""Stand-ins for the packages wandb, mlflow and trackio, with the parts of their API that are used.

What their servers hold is in `SERVERS`, {package: {id of a run: run}}; a run has `name`, `config`,
`lines` of (step, {metric: value}), and `ended`, the status with which it ended, if any. Like the
real ones, wandb keeps the row of the current step back until a later step, and refuses lower steps;
mlflow accepts everything; trackio continues the run of the same name.
"""

import sys
import types
from types import SimpleNamespace

import pytest

SERVERS: dict[str, dict] = {}
DOWN: set[str] = set()


def curve(package: str) -> list[tuple[int, str, float]]:
    """(step, metric, value) of all that the only run has, in the order in which it came."""
    (run,) = SERVERS[package].values()
    return [(step, key, value) for step, line in run.lines for key, value in line.items()]


def _new(package, name, config):
    run = SimpleNamespace(name=name, config=config, lines=[], ended=None)
    runs = SERVERS[package]
    run.id = f"{package}{len(runs)}"
    runs[run.id] = run
    return run


def _check_up(package):
    if package in DOWN:
        raise ConnectionError("no network")


class WandbRun:
    def __init__(self, run, resumed):
        self._run, self.id, self.resumed = run, run.id, resumed
        self.starting_step = run.lines[-1][0] + 1 if run.lines else 0
        self._row = (self.starting_step, {})

    def log(self, metrics, step):
        _check_up("wandb")
        if step < self._row[0]:
            return
        if step > self._row[0]:
            self._commit()
            self._row = (step, {})
        self._row[1].update(metrics)

    def _commit(self):
        if self._row[1]:
            self._run.lines.append(self._row)

    def finish(self, exit_code):
        self._commit()
        self._run.ended = exit_code


def wandb():
    def init(*, project, name, id, resume, config, dir, reinit, settings):
        assert project == "project" and (resume == "allow") == (id is not None)
        _check_up("wandb")
        known = SERVERS["wandb"].get(id)
        return WandbRun(known or _new("wandb", name, config), known is not None)

    module = types.ModuleType("wandb")
    module.setup = lambda: SimpleNamespace(settings=SimpleNamespace(mode="online"))
    module.login = lambda prompt, verify: True
    module.init = init
    return {"wandb": module}


class MlflowException(Exception):
    error_code = "RESOURCE_DOES_NOT_EXIST"


class MlflowClient:
    def __init__(self, tracking_uri):
        _check_up("mlflow")

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name, artifact_location):
        assert name == "project"
        return "1"

    def create_run(self, experiment_id, run_name):
        run = _new("mlflow", run_name, {})
        return self.get_run(run.id)

    def get_run(self, run_id):
        if run_id not in SERVERS["mlflow"]:
            raise MlflowException
        info = SimpleNamespace(run_id=run_id, lifecycle_stage="active")
        metrics = {key: value for _, key, value in self._values(run_id)}
        return SimpleNamespace(info=info, data=SimpleNamespace(metrics=metrics))

    def _values(self, run_id):
        lines = SERVERS["mlflow"][run_id].lines
        return [(step, key, value) for step, line in lines for key, value in line.items()]

    def get_metric_history(self, run_id, key):
        return [SimpleNamespace(key=k, step=s) for s, k, _ in self._values(run_id) if k == key]

    def update_run(self, run_id, status):
        SERVERS["mlflow"][run_id].ended = None

    def log_batch(self, run_id, metrics=(), params=()):
        _check_up("mlflow")
        run = SERVERS["mlflow"][run_id]
        run.config |= {param.key: param.value for param in params}
        run.lines += [(metric.step, {metric.key: metric.value}) for metric in metrics]

    def set_terminated(self, run_id, status):
        SERVERS["mlflow"][run_id].ended = status


def mlflow():
    module, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    module.MlflowClient, module.MlflowException = MlflowClient, MlflowException
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(
        key=key, value=value, step=step
    )
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)
    return {"mlflow": module, "mlflow.entities": entities}


class TrackioRun:
    def __init__(self, run):
        self._run = run
        self._next_step = run.lines[-1][0] + 1 if run.lines else 0

    def log(self, metrics, step):
        _check_up("trackio")
        self._run.lines.append((step, metrics))

    def finish(self):
        self._run.ended = "finished"


def trackio():
    def init(*, project, name, config, resume, embed):
        assert project == "project" and resume == "allow"
        _check_up("trackio")
        named = [run for run in SERVERS["trackio"].values() if run.name == name]
        return TrackioRun(named[-1] if named else _new("trackio", name, config))

    module = types.ModuleType("trackio")
    module.init = init
    return {"trackio": module}


MODULES = {"wandb": wandb, "mlflow": mlflow, "trackio": trackio}


def install(patch: pytest.MonkeyPatch) -> None:
    """Makes `import wandb`, `mlflow` and `trackio` return stand-ins with empty servers."""
    DOWN.clear()
    for package, make in MODULES.items():
        SERVERS[package] = {}
        for name, module in make().items():
            patch.setitem(sys.modules, name, module)
