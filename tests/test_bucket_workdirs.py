"""Runs whose workdir is in a bucket equal those on a disk, also when they go on elsewhere."""

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import bertjax
from bertjax import pretrain, report
from bertjax.base import addresses
from bertjax.base import lock as locks
from bertjax.base.lock import BucketLock, Locked
from bertjax.base.signals import Interrupted
from bertjax.cloud.mirror import UPLOAD_SECONDS, Mirror, mirror_folder
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.devices import host_watch
from bertjax.devices.activity import Clock
from bertjax.devices.host_watch import HostWatch
from bertjax.train.workdir import opened
from bertjax.weights import load_model
from tests.bucket_servers import first_with
from tests.steps import run_until


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the user, and locks that are taken and found stale within a second."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(locks, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(locks, "BUCKET_POLL_SECONDS", 0.1)
    monkeypatch.setattr(locks, "BUCKET_BEAT_SECONDS", 0.2)
    return tmp_path / "cache"


def system_of(address):
    system = fsspec.filesystem(address.partition(":")[0])
    system.invalidate_cache()
    return system


def names_in(address):
    """The names of the files below an address."""
    root = address.partition("://")[2]
    return {path.removeprefix(f"{root}/") for path in system_of(address).find(root)}


def read(address, name):
    return system_of(address).cat_file(f"{address.partition('://')[2]}/{name}")


def losses(text):
    lines = [json.loads(line) for line in text.decode().splitlines()]
    return [(line["step"], line.get("train/loss"), line.get("eval/mlm_loss")) for line in lines]


@pytest.fixture
def config(prepared, one_layer_config, tmp_path):
    return PretrainConfig(
        model=one_layer_config,
        data=str(prepared),
        workdir=str(tmp_path / "local"),
        phases=(Phase(num_steps=6, max_length=16, batch_size=16),),
        optimizer=OptimizerConfig(warmup_steps=1),
        unroll=1,
        eval_rows=8,
        eval_every=0,
        save_every=3,
        log_every=1,
        peak_tflops=0.1,
    )


@pytest.mark.slow
@pytest.mark.exhaustive
@first_with("gs")
def test_a_dry_run_of_a_run_in_a_bucket_only_reads_it(bucket, config, capsys):
    remote = dataclasses.replace(config, workdir=f"{bucket}/runs/planned")
    pretrain.dry_run(remote)
    assert not names_in(remote.workdir)
    pretrain.run(remote)
    before = names_in(remote.workdir)
    capsys.readouterr()
    pretrain.dry_run(remote)
    assert "all 6 steps are done already" in capsys.readouterr().out
    with pytest.raises(ValueError, match="seed: 0 -> 1"):
        pretrain.dry_run(dataclasses.replace(remote, seed=1))
    assert names_in(remote.workdir) == before


@pytest.mark.slow
@pytest.mark.exhaustive
@first_with("gs")
def test_a_run_in_a_bucket_that_goes_on_elsewhere_equals_one_on_a_disk(
    bucket, config, cache, monkeypatch
):
    pretrain.run(config)
    local = Path(config.workdir)
    address = f"{bucket}/runs/base"
    remote = dataclasses.replace(config, workdir=address)
    run_until(2, lambda: pretrain.run(remote), monkeypatch)
    assert "run.lock" not in names_in(address)  # released
    assert (
        losses(read(address, "metrics.jsonl")) == losses((local / "metrics.jsonl").read_bytes())[:2]
    )
    shutil.rmtree(cache)  # the run goes on on another machine
    pretrain.run(remote)
    model = (local / "model" / "model.safetensors").read_bytes()
    assert read(address, "model/model.safetensors") == model
    assert losses(read(address, "metrics.jsonl")) == losses((local / "metrics.jsonl").read_bytes())
    names = names_in(address)
    assert {"run.json", "tokenizer/vocab.txt", "model/config.json"} <= names
    steps = {name.split("/")[1] for name in names if name.startswith("checkpoints/")}
    assert steps == {"2", "3", "6"}
    assert len([name for name in names if "tfevents" in name]) == 2  # one per process
    # The model, and the newest checkpoint of the run, are read from the bucket.
    for source in (f"{address}/model", address):
        params, expected = (
            flatten_dict(load_model(model, None).params) for model in (source, local / "model")
        )
        assert params.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(params[name], value)


# A run that takes long enough to be killed in it, and locks that are found stale within a second.
PROGRAM = """
import sys, time
from bertjax import pretrain
from bertjax.base import lock as locks
import bertjax.data.batches.pretraining_batches as batches

locks.STALE_SECONDS, locks.SETTLE_SECONDS, locks.BUCKET_POLL_SECONDS = 1, 0.05, 0.1
locks.BUCKET_BEAT_SECONDS = 0.2
read = batches._HostBatches.__getitem__
batches._HostBatches.__getitem__ = lambda self, i: (time.sleep(0.1), read(self, i))[1]
sys.exit(pretrain.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ten_kills(bucket, prepared, one_layer, tmp_path):
    flags = ["--data", str(prepared), "--init", str(one_layer), "--unroll", "1", "--save_every"]
    flags += ["5", "--log_every", "1", "--eval_rows", "8", "--eval_every", "20", "--config"]
    phase = "Phase(num_steps=400, max_length=16, batch_size=16)"
    (tmp_path / "config.py").write_text(
        "from bertjax.config import OptimizerConfig, Phase, PretrainConfig\n"
        f"config = PretrainConfig(phases=({phase},), optimizer=OptimizerConfig(warmup_steps=1))\n"
    )
    command = [sys.executable, "-c", PROGRAM, *flags, str(tmp_path / "config.py"), "--workdir"]

    def start(workdir, machine):
        env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / machine), "JAX_PLATFORMS": "cpu"}
        return subprocess.Popen(
            [*command, workdir], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    address, rng = f"{bucket}/run", random.Random(0)
    for kill in range(10):
        process = start(address, f"machine{kill}")
        time.sleep(rng.uniform(3, 12))
        assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()
    process = start(address, "last")
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output
    assert "resuming at step" in output, output
    process = start(str(tmp_path / "local"), "machine of the local run")
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output
    local = tmp_path / "local"
    model = (local / "model" / "model.safetensors").read_bytes()
    assert read(address, "model/model.safetensors") == model
    metrics = (local / "metrics.jsonl").read_bytes()
    assert losses(read(address, "metrics.jsonl")) == losses(metrics)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_of_twenty_requests_one_fails(bucket, config, cache, unreliable, monkeypatch, capsys):
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.01)
    pretrain.run(config)
    remote = dataclasses.replace(config, workdir=f"{bucket}/run")
    unreliable(0.05)
    run_until(3, lambda: pretrain.run(remote), monkeypatch)
    shutil.rmtree(cache)
    pretrain.run(remote)
    unreliable(0)
    local = Path(config.workdir)
    model = (local / "model" / "model.safetensors").read_bytes()
    assert read(remote.workdir, "model/model.safetensors") == model
    metrics = (local / "metrics.jsonl").read_bytes()
    assert losses(read(remote.workdir, "metrics.jsonl")) == losses(metrics)


@pytest.mark.slow
@pytest.mark.exhaustive
@first_with("gs")
def test_a_run_in_a_bucket_is_finished_repaired_or_replaced(bucket, config, capsys, cache):
    remote = dataclasses.replace(config, workdir=f"{bucket}/run")
    pretrain.run(remote)
    before = names_in(remote.workdir)
    capsys.readouterr()
    pretrain.run(remote)
    assert "is finished (step 6 of 6): nothing is left to train" in capsys.readouterr().out
    assert {n for n in names_in(remote.workdir) if "tfevents" not in n} == {
        n for n in before if "tfevents" not in n
    }
    with pytest.raises(ValueError, match=f"{remote.workdir} holds a run of another config: seed"):
        pretrain.run(dataclasses.replace(remote, seed=1))
    # A damaged checkpoint is set aside, and the run goes on from the one before.
    name = next(n for n in before if n.startswith("checkpoints/6/state/d/"))
    system_of(bucket).pipe_file(f"{remote.workdir}/{name}".partition("://")[2], b"damaged")
    shutil.rmtree(cache)
    capsys.readouterr()
    pretrain.run(remote)
    out = capsys.readouterr().out
    assert "the checkpoint of step 6 is damaged" in out and "resuming at step 3" in out
    assert any(name.startswith("damaged/6/") for name in names_in(remote.workdir))
    phases = (dataclasses.replace(config.phases[0], num_steps=2),)
    pretrain.run(dataclasses.replace(remote, phases=phases, overwrite=True))
    out = capsys.readouterr().out
    assert f"{remote.workdir}: the earlier run was deleted" in out and "resuming" not in out
    assert not any(name.startswith("damaged/") for name in names_in(remote.workdir))


@first_with("s3")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_export_and_report_from_a_bucket(bucket, config, cache, tmp_path, capsys):
    remote = dataclasses.replace(config, workdir=f"{bucket}/run")
    pretrain.run(remote)
    assert b"Finished after step" in read(remote.workdir, "report.html")
    capsys.readouterr()
    assert report.main([remote.workdir, "--output", str(tmp_path / "report.html")]) == 0
    assert f"{remote.workdir}: Finished after step" in capsys.readouterr().out
    model = read(remote.workdir, "model/model.safetensors")
    system_of(bucket).rm(f"{remote.workdir}/model".partition("://")[2], recursive=True)
    shutil.rmtree(cache)
    pretrain.export(remote.workdir)
    assert read(remote.workdir, "model/model.safetensors") == model
    assert (
        load_model(f"{remote.workdir}/model", None).config
        == load_model(remote.workdir, None).config
    )


@first_with("s3")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_fine_tuning_in_a_bucket(bucket, one_layer, files, tmp_path):
    fields = {
        "task": "classify",
        "train": files["classify"]["train"],
        "dev": files["classify"]["dev"],
        "init": str(one_layer),
        "max_steps": 4,
        "batch_size": 8,
        "max_length": 16,
        "unroll": 1,
        "evals_per_epoch": 2,
    }
    local = bertjax.finetune(workdir=str(tmp_path / "local"), **fields)
    address = f"{bucket}/tuned"
    remote = bertjax.finetune(workdir=address, **fields)
    assert remote.scores == local.scores
    names = names_in(address)
    assert {"scores.json", "model/task.json", "metrics.jsonl"} <= names
    weights = (tmp_path / "local" / "model" / "model.safetensors").read_bytes()
    assert read(address, "model/model.safetensors") == weights
    assert json.loads(read(address, "scores.json")) == json.loads(
        (tmp_path / "local" / "scores.json").read_text()
    )


def lock_of(address):
    return BucketLock(f"{address}/run.lock", place=address, what="run", remedy="wait")


@first_with("gs")
def test_of_two_runs_in_one_workdir_the_second_is_refused(bucket, config):
    address = f"{bucket}/run"
    lock = lock_of(address)
    lock.take()
    with pytest.raises(Locked, match=f"{address} is being written by another run .process "):
        pretrain.run(dataclasses.replace(config, workdir=address))
    assert names_in(address) == {"run.lock"}
    lock.release()


@pytest.mark.slow
@first_with("gs")
def test_a_lock_of_a_killed_process_is_taken_and_a_lock_that_is_lost_is_noticed(
    bucket, monkeypatch
):
    address = f"{bucket}/run"
    killed, other = lock_of(address), lock_of(address)
    killed.take()
    killed._ended.set()  # its beats end
    other.take()
    assert other.held
    other.check()
    other._ended.set()
    third = lock_of(address)
    third.take()
    other._ended.clear()
    other._renew(other._ended)
    with pytest.raises(Locked):
        other.check()
    third.release()
    assert names_in(address) == set()


def test_a_lock_is_gone_if_a_signal_comes_while_it_is_taken(bucket, monkeypatch):
    lock = lock_of(f"{bucket}/run")

    def stop(seconds):
        raise Interrupted("stopped by SIGTERM")

    with monkeypatch.context() as patch:
        patch.setattr(locks.time, "sleep", stop)
        with pytest.raises(Interrupted):
            lock.take()
    assert names_in(bucket) == set() and not lock.held
    lock.take()
    lock.release()


def test_a_process_that_is_ended_uploads_what_is_left_and_unlocks_the_bucket(
    bucket, monkeypatch, cache
):
    address, folder = f"{bucket}/run", cache / "bertjax/workdirs" / bucket.replace("://", "/")
    watch = HostWatch(Clock())
    with opened(address, direct=True, watch=watch) as workdir:
        (workdir.path / "metrics.jsonl").write_text("{}\n")
        assert "run.lock" in names_in(address) and folder / "run" == workdir.path
        watch.leave(Interrupted("stopped"))
        assert names_in(address) == {"metrics.jsonl"}
    monkeypatch.setattr(host_watch, "GRACE_SECONDS", 0.05)
    watch.at_end.append(lambda _: time.sleep(60))  # a bucket that does not answer
    begin = time.monotonic()
    watch.leave(Interrupted("stopped"))
    assert time.monotonic() - begin < 30


def test_a_run_that_has_lost_its_lock_uploads_nothing(bucket, tmp_path):
    lock = lock_of(f"{bucket}/run")
    made = Mirror(tmp_path / "folder", f"{bucket}/run", check=lock.check)
    made.pull()
    (made.folder / "a.txt").write_text("a")
    lock._taken_by = "another process"
    with pytest.raises(Locked, match="another process"):
        made.close()
    assert names_in(made.address) == set()


@pytest.fixture
def mirror(bucket, tmp_path):
    made = Mirror(tmp_path / "folder", f"{bucket}/mirror")
    made.pull()
    return made


def test_a_mirror_uploads_changes_and_removals(mirror):
    (mirror.folder / "sub").mkdir()
    (mirror.folder / "sub" / "a.txt").write_text("a")
    (mirror.folder / "b.txt.tmp").write_text("unfinished")
    (mirror.folder / "empty").write_text("")
    mirror.sync()
    assert names_in(mirror.address) == {"sub/a.txt", "empty"}
    (mirror.folder / "sub" / "a.txt").write_text("changed")
    (mirror.folder / "empty").unlink()
    mirror.close()
    assert names_in(mirror.address) == {"sub/a.txt"}
    assert read(mirror.address, "sub/a.txt") == b"changed"
    again = Mirror(mirror.folder.with_name("other"), mirror.address)
    again.pull()
    assert (again.folder / "sub" / "a.txt").read_text() == "changed"


def test_a_model_is_visible_when_it_is_whole(mirror, monkeypatch):
    folder = mirror.folder / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (folder / name).write_text("old")
    mirror.sync()
    (folder / "model.safetensors").write_text("newer")
    seen, upload = [], Mirror._upload

    def watched(self, name):
        seen.append((name, "model/config.json" in names_in(mirror.address)))
        upload(self, name)

    monkeypatch.setattr(Mirror, "_upload", watched)
    mirror.sync()
    assert seen == [("model/model.safetensors", False), ("model/config.json", False)]
    assert "model/config.json" in names_in(mirror.address)


def test_a_failed_upload_is_repeated_and_then_said(mirror, monkeypatch, capsys):
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.01)
    system = type(system_of(mirror.address))
    pipe, failures = system._pipe_file, iter([True, True])

    async def failing(self, *args, **options):
        if next(failures, False):
            raise ConnectionResetError("the connection was cut")
        return await pipe(self, *args, **options)

    monkeypatch.setattr(system, "_pipe_file", failing)
    system.clear_instance_cache()
    (mirror.folder / "a.txt").write_text("a")
    mirror.sync()
    assert read(mirror.address, "a.txt") == b"a"
    assert capsys.readouterr().out.count("could not be written (ConnectionResetError") == 2
    failures = iter([True] * 9)
    (mirror.folder / "a.txt").write_text("ab")
    with pytest.raises(OSError, match="could not be written in 5 attempts"):
        mirror.sync()
    # The change is still on the disk, and another process does not lose it.
    other = Mirror(mirror.folder, mirror.address)
    other.pull()
    kept = next(mirror.folder.parent.glob("folder.unsent-*"))
    assert [path.name for path in kept.iterdir()] == ["a.txt"]
    assert (kept / "a.txt").read_text() == "ab" and (other.folder / "a.txt").read_text() == "a"
    assert f"kept in {kept}" in capsys.readouterr().out


def test_a_checkpoint_that_was_uploaded_in_part_is_not_read(mirror):
    step = mirror.folder / "checkpoints" / "4"
    step.mkdir(parents=True)
    (step / "data").write_text("data")
    mirror.sync()  # as if the process were killed before checksums.json
    other = Mirror(mirror.folder.with_name("other"), mirror.address)
    other.pull()
    assert not (other.folder / "checkpoints").exists()
    other.sync()
    assert names_in(mirror.address) == set()


def test_a_checkpoint_that_was_removed_in_part_is_not_read(mirror, monkeypatch):
    names = ("checksums.json", "_CHECKPOINT_METADATA", "progress/metadata", "state/d/0")
    for name in names:
        for step in ("4", "deleted/2"):
            path = mirror.folder / "checkpoints" / step / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
    mirror.sync()
    assert names_in(mirror.address) == {f"checkpoints/4/{name}" for name in names}
    shutil.rmtree(mirror.folder / "checkpoints" / "4")
    remove, removed = Mirror._remove, []

    def killed(self, name):
        remove(self, name)
        removed.append(name)
        raise SystemExit

    monkeypatch.setattr(Mirror, "_remove", killed)
    with pytest.raises(SystemExit):
        mirror.sync()
    assert len(removed) == 1
    other = Mirror(mirror.folder.with_name("other"), mirror.address)
    other.pull()
    assert not (other.folder / "checkpoints").exists()


def test_a_bucket_that_does_not_exist_is_named(bucket, config):
    scheme = bucket.partition(":")[0]
    with pytest.raises(OSError, match=f"{scheme}://nothing-here"):
        pretrain.run(dataclasses.replace(config, workdir=f"{scheme}://nothing-here/run"))


def test_folders_of_the_cache(cache):
    assert mirror_folder("gs://b/run", 1) != mirror_folder("gs://b/run")
    assert mirror_folder("gs://b/run/") == cache / "bertjax" / "workdirs" / "gs" / "b" / "run"
    assert UPLOAD_SECONDS <= 60


@pytest.mark.slow
def test_a_lock_is_gone_after_its_release_even_during_a_beat(bucket, monkeypatch):
    monkeypatch.setattr(locks, "BUCKET_BEAT_SECONDS", 0.01)
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.0)
    lock = BucketLock(f"{bucket}/run.lock", place="run", what="run", remedy="wait")
    lock.take()
    write, begun = lock._write, threading.Event()

    def slowly():
        begun.set()
        time.sleep(0.3)
        write()

    monkeypatch.setattr(lock, "_write", slowly)
    assert begun.wait(30)
    lock.release()
    time.sleep(0.5)  # a beat would have been written
    assert "run.lock" not in names_in(bucket)
