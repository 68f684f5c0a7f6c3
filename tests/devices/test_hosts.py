"""Several processes on one machine are one run: equal losses, shared rows, one checkpoint."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest

from bertjax.base.signals import STOPPED
from bertjax.record.predictions import read_scores
from tests.bucket_servers import free_port
from tests.lines import json_lines

STEPS, BATCH, DEVICES = 20, 16, 2
CONFIG = """
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.model import BertConfig

config = PretrainConfig(
    model=BertConfig(
        vocab_size={vocab}, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, initializer_range=0.1,
    ),
    phases=(Phase(num_steps={steps}, max_length=32, batch_size={batch}),),
    optimizer=OptimizerConfig(recipe="adamw", learning_rate=1e-3, warmup_steps=5, schedule="hf"),
    log_every=1, eval_every=0, eval_rows=64, save_every=10, reader_threads=1,
)
"""
# Counts the rows that this process reads of the training shards.
PROGRAM = """
import os, sys
from bertjax import pretrain
from bertjax.data.records import ShardReader

reads, record_of = 0, ShardReader.__getitem__
def counted(self, index):
    global reads
    reads += 1
    return record_of(self, index)

ShardReader.__getitem__ = counted
status = pretrain.main(sys.argv[1:])
print("ROWS READ", reads, flush=True)
sys.exit(status)
"""


FINETUNING = PROGRAM.replace("pretrain", "finetune")


@pytest.fixture(scope="module")
def job(tmp_path_factory, prepared, tokenizer):
    """Starts a command in `processes` processes with `devices` devices each."""
    folder = tmp_path_factory.mktemp("hosts")
    config = folder / "config.py"
    config.write_text(CONFIG.format(vocab=tokenizer.vocab_size, steps=STEPS, batch=BATCH))

    pretraining = ("--config", str(config), "--data", str(prepared))

    def start(
        workdir: Path, processes: int, devices: int, *flags: str, each=(), command=PROGRAM, env=()
    ):
        own_flags = () if command == FINETUNING else pretraining
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        started = []
        for rank in range(processes):
            join = (
                f"--distributed.coordinator_address=localhost:{port}",
                f"--distributed.num_processes={processes}",
                f"--distributed.process_id={rank}",
            )
            own = each[rank] if each else ()
            started.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-c", command, *own_flags),
                        *("--workdir", str(workdir), *flags, *own),
                        *(join if processes > 1 else ()),
                    ],
                    env=os.environ
                    | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
                    | (env[rank] if env else {}),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        return started

    return start


def outputs(started, status=0) -> list[str]:
    texts = [process.communicate(timeout=300)[0] for process in started]
    codes = [process.returncode for process in started]
    assert all(code == status for code in codes), (codes, *texts)
    return texts


def losses(workdir: Path) -> list[float]:
    lines = json_lines(workdir / "metrics.jsonl")
    return [line["train/loss"] for line in lines if "train/loss" in line]


def wait_for_lines(workdir: Path, count: int, started) -> None:
    deadline = time.time() + 200
    while not (workdir / "metrics.jsonl").is_file() or len(losses(workdir)) < count:
        assert time.time() < deadline and all(process.poll() is None for process in started)
        time.sleep(0.2)


@pytest.fixture(scope="module")
def alone(job, tmp_path_factory):
    """The run of one process with eight devices, dropout on."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    outputs(job(workdir, 1, 8))
    assert len(losses(workdir)) == STEPS
    return workdir


def check_shares(texts, steps: int) -> None:
    """Each process has read its own rows of the batches of so many steps, and few others."""
    reads = [int(text.split("ROWS READ ")[1].split()[0]) for text in texts]
    # A few batches are read ahead. All 27 held-out rows are read for the unigram entropy, and this
    # host's share of them, in two batches, for the evaluation.
    share = BATCH // len(texts)
    most = (steps + 5 + 2) * share + 27
    assert all(steps * share <= read <= most for read in reads), reads


# In CI, two processes begin a run together that a signal stops.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("processes", "mesh"), [(2, ()), (4, ()), (2, ("--mesh.fsdp", "2"))])
def test_several_processes_train_as_one_and_share_the_rows(job, alone, tmp_path, processes, mesh):
    texts = outputs(job(tmp_path / "run", processes, DEVICES, *mesh))
    found, expected = losses(tmp_path / "run"), losses(alone)
    assert found == pytest.approx(expected, abs=1e-5)
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    check_shares(texts, STEPS)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (1, 1)])
def test_a_checkpoint_goes_on_with_other_processes_and_devices(
    job, alone, tmp_path, processes, devices
):
    workdir = tmp_path / "run"
    shutil.copytree(alone, workdir)
    shutil.rmtree(workdir / "checkpoints" / str(STEPS))
    check_shares(outputs(job(workdir, processes, devices)), STEPS - 10)
    # The lines after the checkpoint were cut and written anew.
    assert losses(workdir) == pytest.approx(losses(alone), abs=1e-5)
    assert losses(workdir)[:10] == losses(alone)[:10]


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_at_one_step(job, tmp_path):
    workdir = tmp_path / "run"
    started = job(workdir, 2, DEVICES, "--phases.0.num_steps=100000", "--save_every=100000")
    wait_for_lines(workdir, 3, started)
    started[1].send_signal(signal.SIGTERM)
    outputs(started, status=75)
    steps = [int(path.name) for path in (workdir / "checkpoints").iterdir()]
    assert len(steps) == 1 and steps[0] == len(losses(workdir))


# The first process prepares the workdir while the second one waits for it in the collectives.
STARTING = """
import sys, time
import bertjax.train.run as run
from bertjax import pretrain
from bertjax.base import signals

def put_in_order(*args, **flags):
    print("STARTS", flush=True)
    time.sleep(60)

run.put_in_order = put_in_order
signals.leave(pretrain.main(sys.argv[1:]))
"""


# The first process has connected, and the second one waits for it in C++ code.
CONNECTING = """
import sys, time
from bertjax import pretrain
from bertjax.base import signals
from bertjax.devices import hosts

is_first = hosts.is_first
def slowly():
    if "--distributed.process_id=0" in sys.argv:
        print("STARTS", flush=True)
        time.sleep(60)
    return is_first()

hosts.is_first = slowly
signals.leave(pretrain.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "program, ranks",
    [(STARTING, [0]), (STARTING, [0, 1]), (CONNECTING, [0, 1])],
    ids=["one of two", "both", "both while they connect"],
)
def test_a_signal_while_a_run_of_several_processes_starts_is_a_stop_of_all(
    job, tmp_path, program, ranks
):
    started = job(tmp_path / "run", 2, 1, command=program)
    while "STARTS" not in started[0].stdout.readline():
        assert started[0].poll() is None
    time.sleep(3)  # the second process waits in C++ code
    for rank in ranks:
        started[rank].send_signal(signal.SIGTERM)
    since = time.monotonic()
    texts = outputs(started, STOPPED)
    assert time.monotonic() - since < 15
    assert all("Traceback" not in text for text in texts)


# The two processes have caches of their own, as on two machines, or share that of one machine.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "caches", [("first", "second"), ("one", "one")], ids=["two machines", "one machine"]
)
def test_processes_without_a_common_folder_share_a_bucket_and_one_process_goes_on(
    job, alone, bucket, tmp_path, caches
):
    if bucket.startswith("s3"):
        pytest.skip("Orbax does not write to S3")
    workdir = f"{bucket}/run"
    system = fsspec.filesystem("gs")

    def lines():
        with contextlib.suppress(FileNotFoundError):
            return system.cat_file(f"{workdir}/metrics.jsonl".partition("://")[2]).decode()
        return ""

    def machines(*names):
        return [{"XDG_CACHE_HOME": str(tmp_path / name)} for name in names]

    started = job(workdir, 2, 2, env=machines(*caches))
    # The first checkpoint is that of step 10; metrics are uploaded before it.
    deadline = time.time() + 200
    while lines().count("train/loss") < 10:
        assert time.time() < deadline and all(process.poll() is None for process in started)
        time.sleep(0.2)
    started[1].send_signal(signal.SIGTERM)
    texts = outputs(started, 75)
    assert all("run the same command again" in text for text in texts)
    (stopped,) = {re.search(r"stopped after step (\d+)", text).group(1) for text in texts}
    outputs(job(workdir, 1, 4, env=machines("third")))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(lines())
    assert 10 <= int(stopped) <= STEPS
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(alone), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_processes_of_different_configs_or_without_a_shared_workdir_are_refused(job, tmp_path):
    each = ((), ("--seed", "7"))
    texts = outputs(job(tmp_path / "run", 2, 1, each=each), status=1)
    assert all("differ in the config" in text and "process 1 has" in text for text in texts)
    each = ((), ("--workdir", str(tmp_path / "elsewhere")))
    texts = outputs(job(tmp_path / "run", 2, 1, each=each), status=1)
    assert "on a file system that all hosts share" in texts[1]
    assert "Process 1 stopped with an error" in texts[0] or "process 1 ended" in texts[0]


# Statements that make one part of a run slow enough to be interrupted in it.
SLOW_PARTS = {
    "stepping": """
from bertjax.train.bad_steps import BadSteps
read = BadSteps.read
BadSteps.read = lambda self, event: (time.sleep(0.5), read(self, event))[1]
""",
    "evaluating": """
from bertjax.train.held_out_evaluation import HeldOutEvaluation
batches = HeldOutEvaluation.batches
def slowly(self, held_out, phase):
    return (time.sleep(4) or batch for batch in batches(self, held_out, phase))
HeldOutEvaluation.batches = slowly
""",
    "saving": """
import bertjax.train.checkpoint as checkpoint
save = checkpoint.Checkpointer.save
checkpoint.Checkpointer.save = lambda self, *args: (time.sleep(20), save(self, *args))[1]
""",
}
# The steps at which the process stops; evaluations and checkpoints are those of step 4.
STALLS_AFTER = {"stepping": 6, "evaluating": 4, "saving": 4}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", list(STALLS_AFTER))
def test_a_stopped_process_is_named_with_what_it_was_doing(job, tmp_path, part):
    flags = ["--stall_seconds", "12", "--phases.0.num_steps=5000", "--save_every=100000"]
    if part == "evaluating":
        flags += ["--eval_every", "4"]
    if part == "saving":
        flags += ["--save_every", "4"]
    command = PROGRAM.replace("import os, sys", f"import os, sys, time\n{SLOW_PARTS[part]}", 1)
    started = job(tmp_path / "run", 4, 1, *flags, command=command)
    wait_for_lines(tmp_path / "run", STALLS_AFTER[part], started)
    time.sleep(5)  # the processes tell each other every 3 s what they are doing
    started[2].send_signal(signal.SIGSTOP)
    at = time.monotonic()
    found = ""
    while "does not respond" not in found:
        assert time.monotonic() - at < 12 + 10, found
        found += os.read(started[0].stdout.fileno(), 1 << 16).decode()
    print(f"{part}: named after {time.monotonic() - at:.1f} s")
    assert "Process 2 does not respond since" in found
    assert f"it was {part}, after step" in found or part == "stepping"
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_process_that_never_comes_is_named(job, tmp_path):
    started = job(tmp_path / "run", 3, 1, "--distributed.timeout_seconds", "20")
    started[1].kill()
    started[1].communicate()
    texts = outputs([started[0], started[2]], status=1)
    assert all("process 1 never connected" in text for text in texts)
    assert "process 2 of 3 waited 20 s" in texts[1]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_process_that_never_comes_is_named_without_a_common_folder(job, bucket, tmp_path):
    if bucket.startswith("s3"):
        pytest.skip("the program is the same, and the test waits for 25 s")
    env = [{"XDG_CACHE_HOME": str(tmp_path / str(rank))} for rank in range(3)]
    started = job(f"{bucket}/run", 3, 1, "--distributed.timeout_seconds", "25", env=env)
    started[1].kill()
    started[1].communicate()
    texts = outputs([started[0], started[2]], status=1)
    assert all("process 1 never connected" in text for text in texts)


def reading(statement: str) -> str:
    """Returns PROGRAM with a statement that is executed before each batch is read."""
    patch = f"""
import time
import bertjax.data.batches.pretraining_batches as batches
read = batches._HostBatches.__getitem__
def patched(self, index):
    {statement}
    return read(self, index)
batches._HostBatches.__getitem__ = patched
status ="""
    return PROGRAM.replace("status =", patch)


# Process 1 cannot read its data from batch 8 on.
DAMAGED = reading(
    """if index >= 8 and "--distributed.process_id=1" in sys.argv:
        raise OSError(5, "Input/output error", "train-32-00000.array_record")"""
)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_killed_on_8_then_2_x_2_then_1_device_and_ended_on_8_sees_the_same_batches(
    job, alone, tmp_path
):
    workdir, slowly = tmp_path / "run", reading("time.sleep(0.3)")
    for processes, devices, lines in ((1, 8, 5), (2, 2, 10), (1, 1, 15)):
        started = job(workdir, processes, devices, "--save_every=3", command=slowly)
        wait_for_lines(workdir, lines, started)
        for process in started:
            process.kill()
        outputs(started, status=-signal.SIGKILL)
    outputs(job(workdir, 1, 8, "--save_every=3"))
    # Other batches have losses that differ by far more.
    expected = losses(alone)
    assert losses(workdir) == pytest.approx(expected, abs=1e-5)
    assert min(abs(a - b) for a, b in itertools.pairwise(expected)) > 1e-5


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_failing_process_is_named_by_the_others_with_its_error(job, tmp_path):
    texts = outputs(job(tmp_path / "run", 2, 1, command=DAMAGED), status=1)
    said = "Input/output error: 'train-32-00000.array_record'"
    assert f"error: [Errno 5] {said}" in texts[1]
    assert f"error: process 1 ended: [Errno 5] {said}. Process 0 ends, too" in texts[0]
    assert "Traceback" not in "".join(texts)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_within_a_minute_of_a_killed_or_stopped_process(job, tmp_path, number):
    workdir = tmp_path / "run"
    started = job(workdir, 2, 1, "--phases.0.num_steps=100000", "--save_every=100000")
    wait_for_lines(workdir, 3, started)
    since = time.time()
    started[1].send_signal(number)
    text = outputs(started[:1], status=1)[0]
    assert time.time() - since < 60
    assert "error: process 1 has shown no sign of life for 40 s" in text
    started[1].kill()
    started[1].communicate()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_fine_tuning_in_two_processes_equals_one_and_each_reads_its_own_rows(
    job, encoder, files, tmp_path
):
    flags = (
        *("--task", "classify", "--train", files["classify"]["train"], "--init", str(encoder)),
        *("--dev", files["classify"]["dev"], "--max_length", "32", "--batch_size", "16"),
        *("--num_epochs", "2", "--log_every", "1", "--reader_threads", "1"),
        *("--dropout", "0.1", "--optimizer.learning_rate", "1e-3"),
    )
    (one,) = outputs(job(tmp_path / "one", 1, 4, *flags, command=FINETUNING))
    two = outputs(job(tmp_path / "two", 2, 2, *flags, command=FINETUNING))
    assert len(losses(tmp_path / "one")) == 2 * 64 // 16
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    for file in ("scores.json", "predictions/dev.jsonl"):
        assert (tmp_path / "two" / file).is_file()
    scores = [read_scores(tmp_path / run / "scores.json") for run in ("one", "two")]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    reads = [int(text.split("ROWS READ ")[1].split()[0]) for text in (one, *two)]
    # A host reads the examples in its rows. The first host has more of them, because examples share
    # rows, and those that remain empty are the last ones.
    assert sum(reads[1:]) <= 1.2 * reads[0], reads
    assert all(0.1 * reads[0] <= read <= 0.9 * reads[0] for read in reads[1:]), reads


PATIENT = """
import sys, time
from pathlib import Path
from bertjax.base import signals
from bertjax.config import DistributedConfig
from bertjax.devices import host_watch, hosts
from bertjax.devices.activity import Clock

def run():
    address, rank, folder = sys.argv[1:]
    config = DistributedConfig(
        coordinator_address=address, num_processes=2, process_id=int(rank), timeout_seconds=100
    )
    hosts.connect(config, Path(folder))
    with host_watch.watching(Clock()):
        print("connected", flush=True)
        hosts.on_first_patiently(lambda: time.sleep(100))

signals.leave(signals.run_reporting_errors(run, trains=True))
"""


@pytest.mark.slow
def test_a_stop_signal_to_a_host_that_waits_for_the_first_one_ends_both(tmp_path):
    address = f"localhost:{free_port()}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PATIENT, address, str(rank), str(tmp_path)],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            while "connected" not in process.stdout.readline():
                assert process.poll() is None
        time.sleep(1)
        started[1].send_signal(signal.SIGTERM)
        text = started[1].communicate(timeout=10)[0]
        assert started[1].returncode == 75 and "stopped by SIGTERM" in text
        text = started[0].communicate(timeout=30)[0]
        assert started[0].returncode == 75 and "process 1 ended: stopped by SIGTERM" in text
    finally:
        for process in started:
            process.kill()
            process.communicate()


FAILING_SAVE = PROGRAM.replace(
    "status =",
    """
from bertjax.train import checkpoint
def failing(*args, **kwargs):
    raise OSError(5, "Input/output error")
checkpoint.write_checksums = failing
status =""",
)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_save_that_fails_on_one_host_ends_all_within_a_minute(job, tmp_path):
    started = job(tmp_path / "run", 2, 2, command=FAILING_SAVE)
    texts = []
    try:
        for process in started:
            texts.append(process.communicate(timeout=120)[0])
    finally:
        for process in started:
            process.kill()
    first, second = texts
    assert [process.returncode for process in started] == [1, 1], texts
    assert "error: Writing a checkpoint" in first and "Input/output error" in first
    assert "process 0 ended: Writing a checkpoint" in second
    assert not any("Traceback" in text for text in texts)
