"""Experiment trackers show each line of metrics.jsonl once, over all resumes, and stop no run."""

import dataclasses
import importlib.util
import json
import os
import shlex
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bertjax import pretrain
from bertjax.base.workdir_files import TRACKERS_FOLDER
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.record import trackers
from bertjax.record.metrics import MetricWriter, read_lines
from bertjax.record.trackers import TRACKERS, Tracking, check_installed
from bertjax.train.workdir import Workdir
from tests import tracker_stand_ins as stand_ins
from tests.tracker_stand_ins import DOWN, SERVERS, curve

NAMES = sorted(TRACKERS)


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    stand_ins.install(monkeypatch)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


class Process:
    """A process of a run that starts at `step`: its metric files and its tracker."""

    def __init__(self, name, folder, step, rollbacks=0, factor=1.0):
        self.folder, self.step, self.factor = folder, step, factor
        self.writer = MetricWriter(folder, step)
        self.tracker = Tracking(name, folder, "project", {"seed": 1, "a": {"b": 2}}, rollbacks)

    def log(self, step, metrics):
        self.writer.write(step, metrics)
        self.tracker.write(step, metrics)

    def train(self, until):
        for step in range(self.step + 1, until + 1):
            metrics = {"train/loss": self.factor / step, "bad": float("nan"), "note": "text"}
            self.log(step, metrics)
            if step % 2 == 0:
                self.log(step, {"eval/loss": 2 * self.factor / step, "inf": float("inf")})
        return self

    def end(self, complete=True):
        self.tracker.close(complete=complete)
        self.writer.close()

    def settle(self):
        """Waits until the tracker has got all lines."""
        step, key, _ = numbers(self.folder)[-1]
        ended = time.monotonic() + 30
        while (saved := self.tracker._saved()).get("step") != step or key not in saved["names"]:
            assert time.monotonic() < ended
            time.sleep(0.005)
        return self

    def kill(self):
        """Ends without a word to the tracker."""
        self.settle().writer.close()


def numbers(folder):
    """(step, metric, value) of the numbers in metrics.jsonl, in the order of the file."""
    return [
        (line["step"], key, value)
        for line in read_lines(folder / "metrics.jsonl").lines
        for key, value in line.items()
        if key != "step" and isinstance(value, int | float)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_continues_its_curve_and_sends_nothing_twice(tmp_path, name):
    folder = tmp_path / "my-run"
    Process(name, folder, 0).train(7).kill()
    Process(name, folder, 5).train(10).kill()
    Process(name, folder, 10).train(11).end()
    assert curve(name) == numbers(folder) and len(numbers(folder)) == 16
    (run,) = SERVERS[name].values()
    assert run.name.startswith("my-run")
    assert run.config == ({"seed": "1", "a.b": "2"} if name == "mlflow" else run.config)
    assert run.ended in (0, "FINISHED", "finished")


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_between_training_and_evaluation_of_a_step_loses_neither(tmp_path, name):
    first = Process(name, tmp_path, 0).train(3)
    first.log(4, {"train/loss": 0.25})
    first.kill()
    Process(name, tmp_path, 3).train(5).end()
    assert curve(name) == numbers(tmp_path) and (4, "eval/loss", 0.5) in curve(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_fails_warns_once_and_gets_the_rest_later(tmp_path, capsys, name):
    first = Process(name, tmp_path, 0).train(2).settle()
    DOWN.add(name)
    first.step = 2
    first.train(4).end()
    Process(name, tmp_path, 4).train(6).end()
    assert capsys.readouterr().out.count(f"warning: {name} gets no further metrics (Conn") == 2
    DOWN.clear()
    Process(name, tmp_path, 6).end()
    assert curve(name) == numbers(tmp_path) and numbers(tmp_path)[-1][0] == 6


def test_the_step_loop_and_a_stop_do_not_wait_for_a_tracker(tmp_path, capsys, monkeypatch):
    free = threading.Event()
    monkeypatch.setitem(TRACKERS, "wandb", lambda start: free.wait(20) and None)
    monkeypatch.setattr(trackers, "STOPPED_PATIENCE_SECONDS", 0.1)
    began = time.monotonic()
    Process("wandb", tmp_path, 0).train(50).end(complete=False)
    assert time.monotonic() - began < 5
    assert "warning: wandb does not answer" in capsys.readouterr().out
    free.set()


def test_after_a_rollback_a_new_run_shows_the_new_values(tmp_path):
    Process("mlflow", tmp_path, 0).train(6).end()
    Process("mlflow", tmp_path, 3, rollbacks=1, factor=7.0).train(6).end()
    before, after = SERVERS["mlflow"].values()
    assert after.name == f"{tmp_path.name}-rollback1" and before.name == tmp_path.name
    lines = [(step, key, value) for step, line in after.lines for key, value in line.items()]
    assert lines == numbers(tmp_path) and (6, "train/loss", 7 / 6) in lines


def test_a_damaged_database_of_mlflow_is_set_aside_and_the_run_sent_anew(tmp_path, capsys):
    Process("mlflow", tmp_path, 0).train(3).end()
    database = tmp_path / TRACKERS_FOLDER / "mlflow.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table t (x)")
    connection.close()
    Process("mlflow", tmp_path, 3).end()
    assert len(SERVERS["mlflow"]) == 1 and database.is_file()
    database.write_bytes(database.read_bytes()[:100] + b"x" * 5000)
    SERVERS["mlflow"].clear()
    Process("mlflow", tmp_path, 3).end()
    assert "mlflow.db is damaged" in capsys.readouterr().out
    assert curve("mlflow") == numbers(tmp_path) and not database.exists()


def test_a_replaced_run_without_checkpoints_is_a_new_run_in_the_tracker(tmp_path):
    workdir, state = Workdir(tmp_path / "run"), tmp_path / "run" / TRACKERS_FOLDER / "wandb.json"
    for config, is_kept in ({"seed": 1}, False), ({"seed": 1}, True), ({"seed": 2}, False):
        workdir.claim(config, "data")
        workdir.release()
        assert state.is_file() == is_kept
        state.parent.mkdir(exist_ok=True)
        state.write_text("{}")


@pytest.mark.slow
def test_a_run_is_tracked_over_a_resume(prepared, one_layer_config, tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.train.run.check_installed", lambda _: None)
    config = PretrainConfig(
        data=str(prepared),
        workdir=str(tmp_path / "run"),
        model=one_layer_config,
        phases=(Phase(num_steps=4, max_length=16, batch_size=8),),
        optimizer=OptimizerConfig(warmup_steps=1),
        unroll=1,
        log_every=1,
        eval_every=2,
        eval_rows=8,
        save_every=2,
        peak_tflops=0.1,
        track=("wandb",),
        track_project="project",
    )
    pretrain.run(config)
    pretrain.run(dataclasses.replace(config, track=("wandb", "mlflow")))  # --track may change
    for name in config.track:
        assert sorted(curve(name)) == sorted(numbers(tmp_path / "run"))
    (run,) = SERVERS["wandb"].values()
    assert run.config["model"]["hidden_size"] == one_layer_config.hidden_size
    assert run.config["command"] == shlex.join(sys.orig_argv)


def test_a_missing_package_is_an_error_and_a_folder_is_not_a_package(tmp_path, monkeypatch):
    (tmp_path / "trackio_of_the_test").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("trackio_of_the_test", "not_installed", "json"):
        monkeypatch.setitem(TRACKERS, name, TRACKERS["trackio"])
    for name in ("trackio_of_the_test", "not_installed"):
        with pytest.raises(ImportError, match=rf"pip install 'bertjax\[{name}\]'"):
            check_installed((name,))
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match="mlflow"):
        check_installed(("mlflow",))
    check_installed(("json",))
    with pytest.raises(ValueError, match="--track trackoi.*trackio"):
        check_installed(("trackoi",))


# Run with the real packages: a process logs `until` steps after `step` and is killed or ends.
PROCESS = """
import os, sys, time
from pathlib import Path
from tests.record.test_trackers import Process
name, folder, step, until, kill = sys.argv[1:]
process = Process(name, Path(folder), int(step)).train(int(until))
if kill == "True":
    process.kill()
    time.sleep(2)
    os.kill(os.getpid(), 9)
process.end()
"""


# Prints what the tracker has.
READERS = {
    "mlflow": """
import json, sys
from mlflow import MlflowClient
folder = sys.argv[1] + "/trackers"
client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
run_id = json.load(open(folder + "/mlflow.json"))["id"]
keys = client.get_run(run_id).data.metrics
history = [m for key in keys for m in client.get_metric_history(run_id, key)]
print(json.dumps([(m.step, m.key, m.value) for m in history]))
""",
    "trackio": """
import json
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_run_records("project")
lines = SQLiteStorage.get_logs("project", run["name"], run_id=run["id"])
names = ("train/loss", "eval/loss")
print(json.dumps([(x["step"], name, x[name]) for x in lines for name in names if name in x]))
""",
}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(READERS))
def test_the_real_tracker_continues_a_killed_run(tmp_path, monkeypatch, name):
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    paths = os.pathsep.join([str(Path(__file__).parent.parent.parent), *sys.path])
    own = {"PYTHONPATH": paths, "MLFLOW_DISABLE_TELEMETRY": "true"}
    env = os.environ | own | {"TRACKIO_DIR": str(tmp_path / "trackio")}
    for step, until, kill in (0, 7, True), (5, 10, True), (10, 11, False):
        values = [name, str(tmp_path), str(step), str(until), str(kill)]
        process = subprocess.run([sys.executable, "-c", PROCESS, *values], env=env)
        assert process.returncode == (-9 if kill else 0)
    reader = [sys.executable, "-c", READERS[name], str(tmp_path)]
    printed = subprocess.run(reader, env=env, check=True, stdout=subprocess.PIPE).stdout
    curve = [tuple(value) for value in json.loads(printed.splitlines()[-1])]
    assert sorted(curve) == sorted(numbers(tmp_path))
