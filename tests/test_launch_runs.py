"""The commands of launch/tpu_vm.sh are executed: hosts are folders, the bucket is an emulator.

`gcloud` and `uv` are programs in `launch_stand_ins`, first on PATH.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest

ROOT = Path(__file__).parent.parent
STAND_INS = Path(__file__).parent / "launch_stand_ins"
STEPS = 300


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


@pytest.mark.slow
def test_a_slice_is_kept_until_the_run_ends(bucket, prepared, small_run, tmp_path):
    if bucket.startswith("s3"):
        pytest.skip("Cloud TPUs use gs://")
    system = fsspec.filesystem("gs")
    for file in prepared.rglob("*"):
        if file.is_file():
            target = f"{bucket}/data/{file.relative_to(prepared).as_posix()}"
            system.pipe_file(target.partition("://")[2], file.read_bytes())
    config = small_run(STEPS, save_every=20)
    cloud, workdir = tmp_path / "cloud", f"{bucket}/run"
    cloud.mkdir()
    env = os.environ | {
        "CLOUD": str(cloud),
        "JOB_ID": str(random.randrange(4096)),
        "PATH": f"{STAND_INS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEST_PYTHON": sys.executable,
        "BERTJAX_POLL_SECONDS": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
    }
    run = ["--config", str(config), "--data", f"{bucket}/data", "--workdir"]

    def slice_command(command, *flags):
        place = ["--name", "bert", "--zone", "z", "--spot"]
        script = ["bash", str(ROOT / "launch" / "tpu_vm.sh"), command, *place, *flags]
        return subprocess.Popen(
            script, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    kept = slice_command("keep", "--delete", "--", *run, workdir)
    deadline = time.monotonic() + 240
    while steps_done(workdir) < 40:
        assert time.monotonic() < deadline and kept.poll() is None, kept.communicate()
        time.sleep(0.5)
    subprocess.run(
        [STAND_INS / "gcloud", "compute", "tpus", "tpu-vm", "preempt", "bert"], env=env, check=True
    )
    said = kept.communicate(timeout=300)[0]
    assert kept.returncode == 0, said
    assert "preempted (1 times so far)" in said
    assert "the run is finished, after 1 preemptions" in said
    assert not (cloud / "bert").exists()  # --delete
    log = (cloud / "log").read_text()
    assert log.count(" create bert") == 2 and log.count(" scp ") == 2
    ledger = file_in(f"{workdir}/goodput.jsonl").decode().splitlines()
    assert len(ledger) == 2

    undisturbed = tmp_path / "undisturbed"
    program = [sys.executable, "-m", "bertjax.pretrain", *run, str(undisturbed)]
    subprocess.run(program, env=env | {"JAX_NUM_CPU_DEVICES": "2"}, check=True, capture_output=True)
    model = (undisturbed / "model" / "model.safetensors").read_bytes()
    assert file_in(f"{workdir}/model/model.safetensors") == model
    print([json.loads(line)["seconds"] for line in ledger])
