"""Experiment trackers get the lines of metrics.jsonl once each, and never stop a run."""

import dataclasses
import json
import subprocess
import sys
import types

import pytest

from bertjax import pretrain
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.training import trackers
from bertjax.training.trackers import TRACKERS, Tracking, check_installed
from bertjax.training.writers import MetricWriter

SEEN: dict = {}


class Recorded:
    """A tracker that keeps what it gets in SEEN, by the id of the run, and fails if told to."""

    fails = False

    def __init__(self, run_id, workdir, project, config):
        self.run_id = run_id or f"{project}/{workdir.name}/{len(SEEN)}"
        self.lines = SEEN.setdefault(self.run_id, [])
        self.config = config

    def log(self, step, metrics):
        if self.fails:
            raise ConnectionError("no network")
        self.lines.append({"step": step, **metrics})

    def finish(self):
        self.lines.append("finished")


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    SEEN.clear()
    monkeypatch.setitem(TRACKERS, "wandb", Recorded)
    monkeypatch.setattr(trackers, "check_installed", lambda _: None)


def writer(folder, step):
    config = {"seed": 1}
    return MetricWriter(
        folder, step, open_trackers=lambda: [Tracking("wandb", folder, "project", config)]
    )


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def curve():
    (lines,) = SEEN.values()
    return [line for line in lines if line != "finished"]


def test_a_resumed_run_continues_its_curve_and_sends_nothing_twice(tmp_path):
    first = writer(tmp_path, 0)
    for step in range(1, 8):
        first.write(step, {"train/loss": 1 / step, "bad": float("nan")})
        if step == 5:
            first.write(step, {"eval/loss": 0.5})
            first.flush()
    first.close()
    # The process was killed after step 7, and resumes from the checkpoint of step 5.
    second = writer(tmp_path, 5)
    for step in range(6, 11):
        second.write(step, {"train/loss": 1 / step, "bad": float("nan")})
    second.close()
    expected = [{k: v for k, v in line.items() if v is not None} for line in lines_of(tmp_path)]
    assert curve() == expected and len(expected) == 11


def test_a_tracker_that_fails_is_said_and_gets_the_rest_later(tmp_path, monkeypatch, capsys):
    first = writer(tmp_path, 0)
    first.write(1, {"train/loss": 1.0})
    first.close()
    monkeypatch.setattr(Recorded, "fails", True)
    second = writer(tmp_path, 1)
    for step in (2, 3):
        second.write(step, {"train/loss": 1.0})
    second.close()
    said = capsys.readouterr().out
    assert said.count("warning: wandb does not get further metrics (ConnectionError") == 1
    monkeypatch.setattr(Recorded, "fails", False)
    third = writer(tmp_path, 3)
    third.close()
    assert curve() == lines_of(tmp_path)


def test_a_run_is_tracked_and_resumed(prepared, one_layer_config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    monkeypatch.setattr("bertjax.training.pretraining.check_installed", lambda _: None)
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
    )
    pretrain.run(config)
    assert curve() == lines_of(tmp_path / "run")
    pretrain.run(dataclasses.replace(config, track=()))  # --track may change


def test_without_the_package_or_the_flag(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises((ImportError, ValueError), match="mlflow"):
        check_installed(("mlflow",))
    code = (
        "import sys, bertjax.training.trainer;"
        "assert not {'wandb', 'mlflow', 'trackio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
