"""The commands of launch/tpu_vm.sh are executed: hosts are folders, the bucket is an emulator.

`gcloud` and `uv` are programs in `launch_stand_ins`, first on PATH.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest

from tests.bucket_servers import upload
from tests.launch_commands import ROOT, executes, replaced

STAND_INS = Path(__file__).parent / "launch_stand_ins"
STEPS = 80
BASE = ("create", "install", "run", "watch", "stop", "delete")
LARGE = ("create", "install", "run")


def file_in(address):
    system = fsspec.filesystem("gs")
    system.invalidate_cache()
    try:
        return system.cat_file(address.partition("://")[2])
    except FileNotFoundError:
        return b""


def steps_done(workdir):
    lines = file_in(f"{workdir}/metrics.jsonl").decode().splitlines()
    return max((json.loads(line)["step"] for line in lines), default=0)


@pytest.fixture
def cloud(bucket, prepared, tmp_path):
    """The environment of a user of Cloud TPUs, and the bucket with prepared data in it."""
    if bucket.startswith("s3"):
        pytest.skip("Cloud TPUs use gs://")
    upload(prepared, f"{bucket}/data")
    (tmp_path / "cloud").mkdir()
    return os.environ | {
        "CLOUD": str(tmp_path / "cloud"),
        "JOB_ID": str(random.randrange(4096)),
        "PATH": f"{STAND_INS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEST_PYTHON": sys.executable,
        "BERTJAX_POLL_SECONDS": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
    }


def start(command, env):
    return subprocess.Popen(
        ["bash", "-c", command.replace("launch/", f"{ROOT}/launch/", 1)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_steps(workdir, steps, kept=None):
    deadline = time.monotonic() + 240
    while steps_done(workdir) < steps:
        assert time.monotonic() < deadline
        assert kept is None or kept.poll() is None, kept.communicate()
        time.sleep(0.5)


@executes("launch/tpu_vm.sh keep")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_slice_is_kept_until_the_run_ends(cloud, bucket, small_run, tmp_path):
    config, workdir = small_run(STEPS, save_every=20), f"{bucket}/base"
    changes = {"configs/pretrain/bert_base.py": str(config), "gs://BUCKET": bucket}
    kept = start(replaced("launch/tpu_vm.sh keep", changes), cloud)
    wait_for_steps(workdir, 20, kept)
    preempt = [STAND_INS / "gcloud", "compute", "tpus", "tpu-vm", "preempt", "bert-base"]
    subprocess.run(preempt, env=cloud, check=True)
    said = kept.communicate(timeout=300)[0]
    assert kept.returncode == 0, said
    assert "preempted (1 times so far)" in said
    assert "the run is finished, after 1 preemptions" in said
    assert not (tmp_path / "cloud" / "bert-base").exists()  # --delete
    log = (tmp_path / "cloud" / "log").read_text()
    assert log.count(" create bert-base") == 2 and log.count(" scp ") == 2
    ledger = file_in(f"{workdir}/goodput.jsonl").decode().splitlines()
    assert len(ledger) == 2

    undisturbed = tmp_path / "undisturbed"
    program = [sys.executable, "-m", "bertjax.pretrain", "--config", str(config)]
    subprocess.run(
        [*program, "--data", f"{bucket}/data", "--workdir", str(undisturbed)],
        env=cloud | {"JAX_NUM_CPU_DEVICES": "2"},
        check=True,
        capture_output=True,
    )
    model = (undisturbed / "model" / "model.safetensors").read_bytes()
    assert file_in(f"{workdir}/model/model.safetensors") == model
    print([json.loads(line)["seconds"] for line in ledger])


@executes(
    *(f"launch/tpu_vm.sh {command} --name bert-base" for command in BASE),
    *(f"launch/tpu_vm.sh {command} --name bert-large" for command in LARGE),
)
@pytest.mark.slow
@pytest.mark.exhaustive
def test_slices_are_created_used_and_deleted(cloud, bucket, small_run, tmp_path):
    config = small_run(20_000, save_every=10_000)
    changes = {"gs://BUCKET": bucket}

    def run(command, name, changes=None):
        done = start(replaced(f"launch/tpu_vm.sh {command} --name {name}", changes or {}), cloud)
        said = done.communicate(timeout=200)[0]
        assert done.returncode == 0, said
        return said

    run("create", "bert-base")
    run("install", "bert-base")
    run("run", "bert-base", changes | {"configs/pretrain/bert_base.py": str(config)})
    watch = start(replaced("launch/tpu_vm.sh watch --name bert-base", {}), cloud)
    wait_for_steps(f"{bucket}/base", 20)
    assert "again to resume" in run("stop", "bert-base")
    host = tmp_path / "cloud" / "bert-base" / "host0"
    assert (host / "bertjax.status").read_text() == "75\n"
    os.killpg(watch.pid, signal.SIGTERM)  # it follows the log until the user ends it
    assert "step" in watch.communicate(timeout=20)[0]
    run("delete", "bert-base")
    assert not host.exists()

    config = small_run(20, save_every=20)
    run("create", "bert-large")
    run("install", "bert-large")
    run("run", "bert-large", changes | {"configs/pretrain/bert_large.py": str(config)})
    wait_for_steps(f"{bucket}/large", 20)
    hosts = [tmp_path / "cloud" / "bert-large" / f"host{rank}" for rank in range(2)]
    deadline = time.monotonic() + 100
    while not all((host / "bertjax.status").is_file() for host in hosts):
        assert time.monotonic() < deadline, [(host / "bertjax.log").read_text() for host in hosts]
        time.sleep(0.5)
    assert [(host / "bertjax.status").read_text() for host in hosts] == ["0\n", "0\n"]
