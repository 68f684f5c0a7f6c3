"""Multi-host runs: joining, agreement between hosts, stop signals, work of the first host.

Every host runs the same program with the same config. Only the first host (process 0) writes files
and prints.
"""

import hashlib
import importlib.util
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bertjax.config import DistributedConfig
from bertjax.devices.sharding import replicated

PACKAGE = Path(__file__).parent.parent
Result = TypeVar("Result")
RENEW_SECONDS = 2.0


def connect(config: DistributedConfig, meeting_place: Path) -> None:
    """Joins the other hosts, if there are any; must be called before jax is asked for devices.

    TPU pods, SLURM and Open MPI are detected automatically; other clusters need the config.

    Args:
        config: address and number of the processes, where they are not detected.
        meeting_place: a folder that all hosts share. Each host leaves a mark there while it waits,
            so that a host that never joins can be named.
    """
    alone = config.coordinator_address is None and not _in_a_cluster()
    if alone or jax.distributed.is_initialized():
        return
    known = _rank(config)
    mark = Waiting(meeting_place, *known) if known else None
    arrived = threading.Event()
    threading.Thread(target=_watch, args=(config, known, mark, arrived), daemon=True).start()
    try:
        jax.distributed.initialize(
            config.coordinator_address,
            config.num_processes,
            config.process_id,
            # Longer than our own timeout, whose message names the missing host.
            initialization_timeout=config.timeout_seconds + 60,
            cluster_detection_method=None if config.coordinator_address is None else "deactivate",
        )
    finally:
        arrived.set()
        if mark is not None:
            mark.remove()


def _in_a_cluster() -> bool:
    """Whether jax detects the other hosts."""
    env = os.environ
    many = int(env.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in env
    many |= int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1
    return many or _on_tpu()


def _on_tpu() -> bool:
    """Whether this is a host of Cloud TPUs."""
    chips = any(Path(device).exists() for device in ("/dev/accel0", "/dev/vfio/0"))
    wanted = os.environ.get("JAX_PLATFORMS", "tpu").startswith("tpu")
    return chips and wanted and importlib.util.find_spec("libtpu") is not None


def _rank(config: DistributedConfig) -> tuple[int, int] | None:
    """Rank of this process and number of processes; None if only joining tells them."""
    if config.coordinator_address is not None:
        assert config.process_id is not None and config.num_processes is not None
        return config.process_id, config.num_processes
    for rank, count in (
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        if rank in os.environ and count in os.environ:
            return int(os.environ[rank]), int(os.environ[count])
    return None


class Waiting:
    """Marks of the hosts that wait: files named by rank, renewed every few seconds.

    Their times are those of the shared file system, so the clocks of the hosts may differ.
    """

    def __init__(self, folder: Path, rank: int, count: int):
        self._folder, self._rank, self._count = folder, rank, count
        folder.mkdir(parents=True, exist_ok=True)
        self.renew()

    def renew(self) -> None:
        """Renews the mark of this host."""
        (self._folder / str(self._rank)).write_text("waiting\n", encoding="utf-8")

    def missing(self) -> list[int]:
        """Ranks of the hosts whose mark is missing or old."""
        times = {rank: self._last_seen(rank) for rank in range(self._count)}
        return [r for r, seen in times.items() if seen < times[self._rank] - 4 * RENEW_SECONDS]

    def _last_seen(self, rank: int) -> float:
        try:
            return (self._folder / str(rank)).stat().st_mtime
        except OSError:
            return float("-inf")

    def remove(self) -> None:
        """Removes the mark of this host."""
        (self._folder / str(self._rank)).unlink(missing_ok=True)


def _watch(
    config: DistributedConfig,
    known: tuple[int, int] | None,
    mark: Waiting | None,
    arrived: threading.Event,
) -> None:
    """Renews the mark until all hosts have joined; ends the process with a message after a timeout.

    jaxlib waits in C++ and would end the process without naming the missing host.
    """
    deadline = time.monotonic() + config.timeout_seconds
    while time.monotonic() < deadline:
        if arrived.wait(min(RENEW_SECONDS, max(0.0, deadline - time.monotonic()))):
            return
        if mark is not None:
            mark.renew()
    who = f"process {known[0]} of {known[1]}" if known else "this process"
    missing = mark.missing() if mark else []
    absent = f"process {', '.join(map(str, missing))} never came" if missing else "one never came"
    print(
        f"error: {who} waited {config.timeout_seconds} s for all others at "
        f"{config.coordinator_address or 'the coordinator of the cluster'}: {absent}. Look at its "
        "log and check that it can reach the address; --distributed.timeout_seconds waits longer.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def is_first() -> bool:
    """Whether this is the first host, which writes files and prints."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints on the first host only."""
    if is_first():
        print(text, flush=True)


def on_all(action: Callable[[], Result]) -> Result:
    """Calls `action` on every host and returns its result; fails on all hosts if it fails on one.

    Otherwise the other hosts would wait for a host that has ended.

    Raises:
        ValueError, OSError, ImportError: the error of `action`, or that another host had one.
    """
    result, error = None, None
    try:
        result = action()
    except (ValueError, OSError, ImportError) as raised:
        error = raised
    if jax.process_count() > 1:
        failed = np.asarray(multihost_utils.process_allgather(np.int32(error is not None)))
        if failed.any() and error is None:
            where = ", ".join(map(str, np.flatnonzero(failed)))
            raise ValueError(f"Process {where} stopped with an error: look at its output.")
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]


def on_first(action: Callable[[], None]) -> None:
    """Calls `action` on the first host while the others wait; fails on all hosts if it fails."""
    on_all(action if is_first() else lambda: None)


def check_equal(facts: Mapping[str, str]) -> None:
    """Checks that facts are the same on all hosts.

    Args:
        facts: name -> value, such as the hash of the data.

    Raises:
        ValueError: hosts differ; the message names the facts and the hosts.
    """
    digests = [hashlib.sha256(value.encode()).digest() for value in facts.values()]
    mine = np.frombuffer(b"".join(digests), np.uint8).reshape(len(facts), -1)
    everyone = np.asarray(multihost_utils.process_allgather(mine))  # [hosts, facts, 32]
    problems = []
    for index, name in enumerate(facts):
        hashes = [everyone[host, index].tobytes().hex()[:8] for host in range(len(everyone))]
        others = [f"process {n} has {h}" for n, h in enumerate(hashes) if h != hashes[0]]
        if others:
            problems.append(f"{name} (hash {hashes[0]} in process 0): " + ", ".join(others))
    if problems:
        raise ValueError(
            "The processes do not run the same program. They differ in "
            + "; ".join(problems)
            + ". Give all of them the same code, config and data."
        )


def code_fingerprint() -> str:
    """A hash of the files of this package and of the versions of jax and Python."""
    found = hashlib.sha256(f"{jax.__version__} {sys.version_info[:2]}".encode())
    for file in sorted(PACKAGE.rglob("*.py")):
        found.update(str(file.relative_to(PACKAGE)).encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def fetch(tree: Any, mesh: Mesh) -> Any:
    """Copies arrays from the devices of all hosts into numpy arrays on each host."""
    if jax.process_count() > 1:
        tree = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))(tree)
    return jax.device_get(tree)


class StopSignal:
    """Turns the first SIGINT or SIGTERM into a request to stop after the step under way."""

    def __init__(self):
        self.received = False

    def __call__(self, step: int) -> bool:
        del step
        return self.received

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        if self.received:
            raise KeyboardInterrupt
        # Not print: the signal may have come in the middle of one.
        os.write(2, f"signal {number}: saving a checkpoint, then stopping\n".encode())
        self.received = True

    def __enter__(self) -> "StopSignal":
        self._before = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class AgreedStop:
    """Asks after each step whether a host was told to stop; all hosts learn it at the same step.

    jax's own service watches for SIGTERM and finds a step that no host has passed. Ctrl-C becomes
    a SIGTERM.
    """

    # The service counts the calls of a process and expects them to grow, whatever step a run
    # resumes at and however many runs a process has.
    _calls = itertools.count(1)

    def __init__(self) -> None:
        self.received = False

    def __call__(self, step: int) -> bool:
        del step
        call = next(AgreedStop._calls)
        self.received = self.received or multihost_utils.reached_preemption_sync_point(call)
        return self.received

    def _receive(self, number: int, frame: Any) -> None:
        del number, frame
        os.kill(os.getpid(), signal.SIGTERM)

    def __enter__(self) -> "AgreedStop":
        self._before = signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)


def stop_signal() -> StopSignal | AgreedStop:
    """Turns a stop signal into a request to stop after a step: the same step on all hosts."""
    return AgreedStop() if jax.process_count() > 1 else StopSignal()
