"""The commands for SLURM and Kubernetes of docs/clusters.md are executed on this machine.

`sbatch`, `srun`, `scontrol` and `kubectl` are programs in `launch_stand_ins`, first on PATH.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest

from tests.conftest import SMALL_RUN
from tests.launch_commands import ROOT, executes, replaced

pytestmark = pytest.mark.slow
STAND_INS = Path(__file__).parent / "launch_stand_ins"
STEPS, STOP_AFTER = 200, 20


@pytest.fixture(scope="module")
def config(tmp_path_factory, tokenizer):
    file = tmp_path_factory.mktemp("config") / "config.py"
    file.write_text(SMALL_RUN.format(vocab=tokenizer.vocab_size, steps=STEPS, save_every=40))
    return file


@pytest.fixture
def env(tmp_path):
    """The environment of a user of a cluster, whose machines are this one."""
    (tmp_path / "cluster").mkdir()
    return os.environ | {
        "CLUSTER": str(tmp_path / "cluster"),
        "JOB_ID": str(random.randrange(4000)),
        "PATH": f"{STAND_INS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, config, prepared):
    """The bytes of the model of one process."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    program = [sys.executable, "-m", "bertjax.pretrain", "--config", str(config)]
    subprocess.run(
        [*program, "--data", str(prepared), "--workdir", str(workdir)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"},
        check=True,
        capture_output=True,
    )
    return (workdir / "model" / "model.safetensors").read_bytes()


def start(command, env, folder):
    return subprocess.Popen(
        ["bash", "-c", command.replace("launch/", f"{ROOT}/launch/")],
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(condition, process, logs):
    deadline = time.monotonic() + 200
    while not condition():
        said = [file.read_text() for file in logs() if file.is_file()]
        assert time.monotonic() < deadline and process.poll() is None, said
        time.sleep(0.1)


def steps_in(text):
    return max((json.loads(line)["step"] for line in text.splitlines()), default=0)


def prepared_rows(folder):
    rows = {file.name: file.read_bytes() for file in folder.glob("*.array_record")}
    assert rows
    return rows


@executes("sbatch --nodes")
@pytest.mark.exhaustive
def test_slurm_requeues_a_job_that_nears_its_time_limit(
    env, config, prepared, undisturbed, tmp_path
):
    workdir, metrics = tmp_path / "large", tmp_path / "large" / "metrics.jsonl"
    command = replaced(
        "sbatch --nodes",
        {
            "--nodes=4": "--nodes=2 --ntasks-per-node=1",
            "configs/pretrain/bert_large.py": str(config),
            "--data data": f"--data {prepared}",
        },
    )
    job = start(command, env, tmp_path)
    log = tmp_path / f"bertjax-{env['JOB_ID']}.log"
    wait_until(
        lambda: metrics.is_file() and steps_in(metrics.read_text()) >= STOP_AFTER,
        job,
        lambda: [log],
    )
    (tmp_path / "cluster" / "time_limit").touch()
    job.communicate(timeout=200)
    assert job.returncode == 0, log.read_text()
    assert "saving a checkpoint, then stopping" in log.read_text()
    assert len((workdir / "goodput.jsonl").read_text().splitlines()) == 2
    assert (workdir / "model" / "model.safetensors").read_bytes() == undisturbed


@executes("sbatch --array")
def test_an_array_of_slurm_jobs_prepares_what_one_command_does(env, corpus, prepared, tmp_path):
    command = replaced(
        "sbatch --array",
        {
            "0-15": "0-1",
            "'text/*'": f"'{corpus}/*.txt'",
            "bert-base-uncased": f"{corpus}/tokenizer",
            "128 512": "16 32 --eval_fraction 0.1 --num_processes 1",
        },
    )
    array = start(command, env, tmp_path)
    array.communicate(timeout=100)
    assert array.returncode == 0, [file.read_text() for file in tmp_path.glob("*.log")]
    assert prepared_rows(tmp_path / "data") == prepared_rows(prepared)
    assert len([*tmp_path.glob("bertjax-prepare-*.log")]) == 2


@executes(
    "launch/kubernetes.sh prepare",
    "launch/kubernetes.sh pretrain",
    "launch/kubernetes.sh watch",
    "launch/kubernetes.sh delete",
)
@pytest.mark.exhaustive
def test_pods_prepare_and_train_in_a_bucket_and_survive_an_eviction(
    bucket, env, config, corpus, undisturbed, tmp_path
):
    pytest.importorskip("kubernetes_validate")
    if bucket.startswith("s3"):
        pytest.skip("several hosts write checkpoints to gs:// only")
    system, jobs = fsspec.filesystem("gs"), tmp_path / "cluster" / "jobs"
    system.pipe_file(f"{bucket[5:]}/text/a.txt", (corpus / "text.txt").read_bytes())

    def ends():
        return [*tmp_path.glob("cluster/pods/*/log"), *jobs.glob("*/*")]

    def run(command, process_env=env):
        done = start(command, process_env, tmp_path)
        said = done.communicate(timeout=200)[0]
        assert done.returncode == 0, (said, [file.read_text() for file in ends()])
        return said

    def steps():
        system.invalidate_cache()
        name = f"{bucket[5:]}/large/metrics.jsonl"
        return steps_in(system.cat_file(name).decode()) if system.exists(name) else 0

    run(
        replaced(
            "launch/kubernetes.sh prepare",
            {
                "--hosts 16": "--hosts 2",
                "gs://BUCKET": bucket,
                "bert-base-uncased": f"{corpus}/tokenizer",
                "128 512": "16 32 --eval_fraction 0.1 --num_processes 1",
            },
        )
    )
    assert (jobs / "bert" / "condition").read_text() == "Complete"
    training = replaced(
        "launch/kubernetes.sh pretrain",
        {
            "--hosts 4": "--hosts 2",
            "configs/pretrain/bert_large.py": str(config),
            "gs://BUCKET": bucket,
        },
    )
    # The ended job of the preparation has the same name, and is replaced.
    job = start(training, env, tmp_path)
    wait_until(lambda: [*tmp_path.glob("cluster/pods/bert-0-0002/log")], job, ends)
    watched = start(replaced("launch/kubernetes.sh watch", {}), env, tmp_path)
    refused = start(training, env, tmp_path)
    assert "is active" in refused.communicate(timeout=60)[0] and refused.returncode == 2
    wait_until(lambda: steps() >= STOP_AFTER, job, ends)
    subprocess.run(["kubectl", "drain", "node-1"], env=env, check=True)
    said = job.communicate(timeout=200)[0]
    assert job.returncode == 0, said
    condition = (jobs / "bert" / "condition").read_text()
    assert condition == "Complete", [file.read_text() for file in ends()]
    # Neither the evicted pod nor the one that stopped with it counts as a failure.
    actions = [line.split()[-1] for line in (jobs / "bert" / "ends").read_text().splitlines()]
    assert actions == ["Ignore", "Ignore"]
    model = system.cat_file(f"{bucket[5:]}/large/model/model.safetensors")
    assert model == undisturbed
    assert "step" in watched.communicate(timeout=60)[0]
    run(replaced("launch/kubernetes.sh delete", {}))
    assert not (jobs / "bert").exists()


def test_a_job_whose_flags_are_wrong_fails_at_once(env, tmp_path):
    pytest.importorskip("kubernetes_validate")
    job = start(
        "launch/kubernetes.sh prepare --name bad --image i --hosts 1 -- --no_such_flag 1",
        env,
        tmp_path,
    )
    job.communicate(timeout=100)
    assert (tmp_path / "cluster" / "jobs" / "bad" / "condition").read_text() == "Failed"
    assert (tmp_path / "cluster" / "jobs" / "bad" / "ends").read_text().split()[1:] == [
        "2",
        "FailJob",
    ]


@executes("python -m bertjax.pretrain --config configs/pretrain/bert_base.py")
@pytest.mark.exhaustive
def test_processes_with_ranks_train_what_one_process_does(
    env, config, prepared, undisturbed, tmp_path
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        start(
            replaced(
                "python -m bertjax.pretrain --config configs/pretrain/bert_base.py",
                {
                    "configs/pretrain/bert_base.py": str(config),
                    "--data data": f"--data {prepared}",
                    "10.0.0.1:8476": f"127.0.0.1:{port}",
                    "num_processes 4": "num_processes 2",
                    "process_id 0": f"process_id {rank}",
                },
            ),
            env,
            tmp_path,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    model = tmp_path / "shared" / "run" / "model" / "model.safetensors"
    assert model.read_bytes() == undisturbed
