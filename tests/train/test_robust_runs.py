"""Robust runs: updates that are skipped, rollbacks, best checkpoints, and stop signals."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax import finetune
from bertjax.base.checksums import steps_in
from bertjax.base.signals import STOPPED, Interrupted, StopSignal, signal_name
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.devices.activity import Clock
from bertjax.devices.host_watch import HostWatch
from bertjax.record.ledger import read_ledger, read_processes
from bertjax.tasks import finetune_config
from bertjax.train import pretraining
from bertjax.train.bad_steps import NotFinite, check_finite
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.held_out_evaluation import HeldOutEvaluation
from bertjax.train.pretraining import PretrainingJob
from bertjax.train.step import HISTORY, empty_history, is_spike, recorded
from tests.browser import data_of
from tests.lines import metrics_of
from tests.steps import run_until, with_states

STEPS = 16


@pytest.fixture(scope="module")
def config(prepared, one_layer_config, tokenizer) -> PretrainConfig:
    return PretrainConfig(
        data=str(prepared),
        model=dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size),
        phases=(Phase(num_steps=STEPS, max_length=16, batch_size=16),),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=3),
        unroll=1,
        log_every=5,
        eval_every=4,
        eval_rows=16,
        save_every=4,
        keep_checkpoints=2,
        peak_tflops=0.1,
        max_bad_steps=3,
    )


def train(config, workdir, **changes):
    pretraining.pretrain(dataclasses.replace(config, workdir=str(workdir), **changes))
    return load_file(workdir / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole") / "run"
    return train(config, workdir), metrics_of(workdir)


def with_batches(monkeypatch, is_bad):
    """Makes the loss NaN in the batches of a phase whose number `is_bad` accepts."""
    original = pretraining.PretrainingJob.batches

    def batches(self, phase_index, first_step):
        for number, batch in enumerate(original(self, phase_index, first_step), first_step):
            if is_bad(number):
                weights = batch["masked_weights"]
                batch = batch | {"masked_weights": weights * jnp.float32(math.nan)}
            yield batch

    monkeypatch.setattr(pretraining.PretrainingJob, "batches", batches)


def break_state(step, state):
    """Makes the parameters NaN at step 10."""
    nan = lambda x: x * math.nan if step == 10 else x  # noqa: E731
    return state._replace(params=jax.tree.map(nan, state.params))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_parameters_that_are_not_finite_end_the_run_and_no_checkpoint_holds_them(
    config, whole, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        with_states(patch, break_state)
        with pytest.raises(NotFinite, match="last 3 updates, steps 10 to 12, were skipped"):
            train(config, tmp_path / "run")
    assert steps_in(tmp_path / "run" / "checkpoints") == [4, 8]
    assert not (tmp_path / "run" / "model").exists()
    # The same command goes on from the last good checkpoint, as if nothing had been.
    model = train(config, tmp_path / "run")
    assert all((model[name] == whole[0][name]).all() for name in model)
    assert metrics_of(tmp_path / "run") == whole[1]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_fine_tuning_ends_at_parameters_that_are_not_finite_and_goes_on_without_them(
    encoder, files, tmp_path, monkeypatch
):
    config = finetune_config(
        **{"task": "classify", "init": str(encoder), "max_length": 32, "batch_size": 8},
        **{"num_epochs": 2, "max_steps": 16, "unroll": 1, "log_every": 4, "evals_per_epoch": 2},
        **files["classify"],
        max_bad_steps=3,
    )
    whole = finetune.run(dataclasses.replace(config, workdir=str(tmp_path / "whole")))
    broken = dataclasses.replace(config, workdir=str(tmp_path / "run"))
    with monkeypatch.context() as patch:
        with_states(patch, break_state)
        with pytest.raises(NotFinite, match="last 3 updates, steps 10 to 12, were skipped"):
            finetune.run(broken)
    assert max(steps_in(tmp_path / "run" / "checkpoints")) < 10
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "scores.json").exists()
    assert list(finetune.run(broken).values()) == list(whole.values())
    models = [load_file(tmp_path / w / "model" / "model.safetensors") for w in ("run", "whole")]
    assert all((models[0][name] == models[1][name]).all() for name in models[1])


@pytest.mark.slow
def test_one_bad_batch_changes_nothing_and_is_reported(config, tmp_path, monkeypatch):
    with_batches(monkeypatch, lambda number: number == 6)
    states = {}
    with_states(monkeypatch, lambda step, state: states.setdefault(step, jax.device_get(state)))
    train(config, tmp_path / "run")
    before, after, later = (jax.tree.leaves(states[step].params) for step in (7, 8, 9))
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    assert not all((a == b).all() for a, b in zip(after, later, strict=True))
    (line,) = (x for x in metrics_of(tmp_path / "run") if "skipped/in_a_row" in x)
    assert line["step"] == 7 and line["skipped/in_a_row"] == 1 and line["skipped/phase"] == 0
    assert (line["skipped/first_row"], line["skipped/last_row"]) == (96, 111)
    logged = next(x for x in metrics_of(tmp_path / "run") if x["step"] == 10 and "train/loss" in x)
    assert math.isfinite(logged["train/loss"])
    report = data_of((tmp_path / "run" / "report.html").read_text())["runs"][0]
    assert report["status"]["state"] == "finished" and report["skipped"]["count"] == 1


@pytest.mark.slow
def test_a_rollback_leaves_the_bad_batches_out(config, tmp_path, monkeypatch, capsys):
    with_batches(monkeypatch, lambda number: 8 <= number < 12)
    model = train(config, tmp_path / "run", rollback_steps=3)
    assert all(np.isfinite(x).all() for x in model.values())
    (record,) = json.loads((tmp_path / "run" / "rollbacks.json").read_text())["rollbacks"]
    # Steps 9 to 11 are bad, the checkpoint of step 4 is 3 steps before; batches 4 to 10 are left
    # out, and the one bad batch that remains is skipped.
    assert record == {"to_step": 4, "from_step": 11, "phase": 0, "batches": 7}
    assert [x.name for x in (tmp_path / "run" / "rolled_back").iterdir()] == ["8"]
    assert "rollback: the run continues from step 4" in capsys.readouterr().out
    skipped = [x for x in metrics_of(tmp_path / "run") if "skipped/in_a_row" in x]
    assert [x["step"] for x in skipped] == [5] and skipped[0]["skipped/first_row"] == 11 * 16


@pytest.mark.slow
@pytest.mark.exhaustive
def test_looking_for_spikes_changes_no_bit_where_there_is_none(config, whole, tmp_path):
    model = train(config, tmp_path / "run", skip_spikes=6.0)
    assert all((model[name] == whole[0][name]).all() for name in model)
    assert metrics_of(tmp_path / "run") == whole[1]


def test_a_spike_is_what_numpy_calls_one():
    rng = np.random.default_rng(0)
    losses, norms = rng.normal(3, 0.1, 300), rng.normal(1, 0.2, 300)
    history = empty_history(3.0)
    is_over, record = jax.jit(is_spike), jax.jit(recorded)
    for i, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        known = slice(max(0, i - HISTORY), i)
        for factor in (1.0, 1.05, 1.2):
            over = any(
                value * factor > values[known].mean() + 3 * values[known].std(ddof=1)
                for values, value in ((losses, loss), (norms, norm))
                if i >= HISTORY // 2
            )
            assert bool(is_over(history, loss * factor, norm * factor)) == over
        if i >= HISTORY // 2:
            bound = losses[known].mean() + 3 * losses[known].std(ddof=1)
            assert is_over(history, 1.0005 * bound, 0) and not is_over(history, 0.9995 * bound, 0)
        history = record(history, loss, norm, True)
    same = recorded(history, math.nan, math.inf, False)
    assert all((a == b).all() for a, b in zip(history, same, strict=True))


def test_what_is_not_finite_is_neither_saved_nor_exported():
    check_finite({"a": jnp.ones(3), "b": np.zeros(2, np.int32)}, "The model")
    with pytest.raises(NotFinite, match=r"The model is not written: 1 of 2 arrays.*\['b'\]\['c'\]"):
        check_finite({"a": jnp.ones(3), "b": {"c": np.array([1.0, np.inf])}}, "The model")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_evaluation_that_is_best_is_saved_between_two_checkpoints(
    config,
    tmp_path,
    monkeypatch,
):
    losses = iter((3.0, 2.0, 2.5, 2.2))  # at steps 4, 8, 12 and 16
    monkeypatch.setattr(PretrainingJob, "evaluate", lambda *_: {"eval/mlm_loss": next(losses)})
    train(config, tmp_path / "run", save_every=100, keep_checkpoints=1)
    # Step 4 was the best until step 8; step 16 is the last.
    assert steps_in(tmp_path / "run" / "checkpoints") == [8, 16]


@pytest.mark.parametrize("stop_at", [pytest.param(8, marks=pytest.mark.exhaustive), 16])
@pytest.mark.slow
def test_a_signal_during_an_evaluation_saves_at_once_and_nothing_is_missing(
    config,
    whole,
    tmp_path,
    monkeypatch,
    stop_at,
):
    original, batches = HeldOutEvaluation.batches, []

    def slow(self, held_out, phase):
        for batch in original(self, held_out, phase):
            batches.append(batch)
            evaluated = len(batches) - 1  # the first batch is that of `compile_evaluation`
            if evaluated == stop_at // 4:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(HeldOutEvaluation, "batches", slow)
        with pytest.raises(Interrupted, match=f"stopped after step {stop_at} of 16"):
            train(config, tmp_path / "run")
    lines = metrics_of(tmp_path / "run")
    assert not any("eval/mlm_loss" in x and x["step"] == stop_at for x in lines)
    # A signal while the checkpoint is replaced by one with the metrics does not interrupt that.
    replace, replaced = Checkpointer.replace, []

    def replace_with_signal(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        replace(*args)
        replaced.append(args)

    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=f"step {stop_at} of 16"):
        patch.setattr(Checkpointer, "replace", replace_with_signal)
        train(config, tmp_path / "run")
    assert len(replaced) == 1
    model = train(config, tmp_path / "run")
    assert all((model[name] == whole[0][name]).all() for name in model)
    assert sorted(map(json.dumps, metrics_of(tmp_path / "run"))) == sorted(
        map(json.dumps, whole[1])
    )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_checkpoint_after_a_signal_tells_the_place_in_its_own_phase(
    config, tmp_path, monkeypatch
):
    phases = (Phase(num_steps=5, max_length=16, batch_size=16),)
    phases += (Phase(num_steps=2, max_length=16, batch_size=8),)
    changes = {"phases": phases, "eval_every": 0, "save_every": 100}
    run_until(3, lambda: train(config, tmp_path / "run", **changes), monkeypatch)
    saved = json.loads((tmp_path / "run/checkpoints/3/progress/metadata").read_text())
    assert (saved["phase"], saved["row"]) == (0, 3 * 16)


WAITING = """
import hashlib, sys, time
from pathlib import Path
from bertjax.base import signals
from bertjax.devices.activity import Clock
from bertjax.devices.host_watch import HostWatch
from bertjax.record.events import Started
from bertjax.train.run import Session

class Saved:  # a save is in progress, for a second
    pass

def run():
    clock, step, workdir = Clock(), int(sys.argv[1]), Path(sys.argv[2])
    watch, saved, begin = HostWatch(clock), Saved(), time.monotonic()
    Saved.saved_step = property(lambda _: step if time.monotonic() > begin + 1 else None)
    with (
        Session(workdir, clock, watch) as session,
        signals.StopSignal(saved, watch, clock),
    ):
        for reader in (session.ledger, session.report):
            reader.read(Started(workdir, "run", step, {"step": step}))
        clock.step = step
        print("ready", flush=True)
        # Like a compilation, the first one handles no signal; like a program in Python, the second.
        {work}

signals.GRACE_SECONDS = 0.3
status = signals.run_reporting_errors(run)
print("returned", flush=True)
signals.leave(status)
"""
COMPILING, PYTHON = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", "time.sleep(60)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "work, number, step, text",
    [
        (COMPILING, signal.SIGTERM, 0, "stopped by SIGTERM (no training step was done yet"),
        (PYTHON, signal.SIGINT, 1034, "stopped by Ctrl-C (everything up to step 1,034 is saved"),
    ],
)
def test_a_signal_ends_what_looks_at_none_while_nothing_is_to_be_saved(
    work, number, step, text, tmp_path
):
    command = [sys.executable, "-c", WAITING.replace("{work}", work), str(step), str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        printed, errors = process.communicate(timeout=30)
    assert process.returncode == STOPPED
    assert text in errors and "Traceback" not in errors
    # A program that calls the command goes on, unless only its end stops the compiler.
    assert ("returned" in printed) == (work == PYTHON)
    # What the run leaves does not say that it still runs.
    (line,), (ended,) = read_ledger(tmp_path), read_processes(tmp_path)
    assert line["first_step"] == line["last_step"] == step
    assert text in ended["ended"]["reason"]
    sentence = f"Stopped after step {step:,}: {signal_name(number)} ("
    assert sentence in (tmp_path / "report.html").read_text()


def test_a_signal_at_the_end_of_the_process_does_not_change_its_status():
    code = (
        "import atexit, os, signal; from bertjax.base import signals;"
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM); signals.leave(0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_second_signal_ends_a_run_without_saving():
    clock = Clock()
    with StopSignal(SimpleNamespace(saved_step=2), HostWatch(clock), clock) as stop:
        clock.step = 3
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop() and stop.agreed
        with pytest.raises(Interrupted, match="second signal"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_signal_while_a_run_starts_is_a_stop_and_no_crash(tmp_path):
    """Three runs, because threads of XLA crash in Python's shutdown in two of three cases only."""
    rows = "".join(f"a text of {n} words,{'ab'[n % 2]}\n" for n in range(64))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    command = [sys.executable, "-m", "bertjax.finetune", "--task=classify", "--max_steps=60"]
    command += [f"--{name}={tmp_path / 'rows.csv'}" for name in ("train", "dev")]
    runs = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        workdir = tmp_path / number.name
        flags = ["--init=bertjax:tiny", f"--workdir={workdir}"]
        runs.append((number, workdir, subprocess.Popen([*command, *flags], cwd=tmp_path)))
    for number, workdir, process in runs:
        while not (workdir / "processes.jsonl").is_file():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(number)
    assert [process.wait(timeout=60) for *_, process in runs] == [STOPPED] * 3


@pytest.mark.parametrize("name", ["run[1]", "a*", "what?", "[x]/run"])
def test_a_name_that_orbax_reads_as_a_pattern_is_refused_before_the_run(config, name, tmp_path):
    with pytest.raises(ValueError, match="one of the characters .*, with which checkpoints could"):
        train(config, tmp_path / name)
    assert not (tmp_path / name).exists()
