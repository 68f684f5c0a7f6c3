"""Coordinates the hosts of a run: connection, consistency checks, work that only one host does.

Every host runs the same program with the same config. Only process 0 writes files and prints.
"""

import contextlib
import functools
import hashlib
import importlib.util
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.base import progress
from bertjax.base.files import is_remote
from bertjax.base.signals import END_SECONDS, Interrupted
from bertjax.cloud.copies import ahead
from bertjax.config import DistributedConfig
from bertjax.devices.sharding import replicated

PACKAGE = Path(__file__).parent.parent
Result = TypeVar("Result")
# The interval at which a waiting host touches its file.
RENEW_SECONDS = 2.0
# How long a host that has finished waits for the others to finish.
SHUTDOWN_SECONDS = 60
# How long the other hosts wait for an action of the first host that may take minutes.
PATIENCE_SECONDS = 600
# Numbers the barriers, which every host passes in the same order.
_barriers = itertools.count()
MESSAGE_BYTES = 512


def connect(config: DistributedConfig, meeting_place: Path) -> None:
    """Connects this host with the other hosts; must be called before jax initializes its devices.

    TPU pods, SLURM and Open MPI are detected automatically; on other clusters, all fields of
    `config` must be set. A run on a single host needs no connection. `meeting_place` is a folder
    that all hosts share, on a disk or in a bucket, in which each waiting host keeps a file, so that
    an error message can name a host that never connects.
    """
    known = _rank(config)
    if (known is None and not _on_tpu()) or jax.distributed.is_initialized():
        return
    mark = None
    if known:
        mark = Waiting(meeting_place, *known)
    arrived = threading.Event()
    detection = "deactivate"
    if config.coordinator_address is None:
        detection = None
    watch = threading.Thread(target=_watch, args=(config, known, mark, arrived), daemon=True)
    watch.start()
    # jax's preemption service would handle SIGTERM, which `signals.StopSignal` does here.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            config.coordinator_address,
            config.num_processes,
            config.process_id,
            # jax's timeout is longer than ours, because our message names the missing host.
            initialization_timeout=config.timeout_seconds + 60,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            cluster_detection_method=detection,
        )
        arrived.set()
        if not is_first():
            progress.hide()
    except KeyboardInterrupt:
        time.sleep(END_SECONDS + 1)  # as in `HostWatch.announce_error`
        raise
    finally:
        arrived.set()
        if mark is not None:
            mark.remove()


def _on_tpu() -> bool:
    """Returns whether this process has Cloud TPUs."""
    chips = any(Path(device).exists() for device in ("/dev/accel0", "/dev/vfio/0"))
    wanted = os.environ.get("JAX_PLATFORMS", "tpu").startswith("tpu")
    return chips and wanted and importlib.util.find_spec("libtpu") is not None


def _rank(config: DistributedConfig) -> tuple[int, int] | None:
    """Returns (rank, number of processes) from `config`, SLURM or Open MPI; None if unknown."""
    if config.coordinator_address is not None:
        assert config.process_id is not None and config.num_processes is not None
        return config.process_id, config.num_processes
    for rank_name, count_name in (
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        count = int(os.environ.get(count_name, "1"))
        if rank_name in os.environ and count > 1:
            return int(os.environ[rank_name]), count
    return None


class Waiting:
    """Finds hosts that do not connect: at the start, each waiting host keeps touching its own file.

    The modification times of the files come from the shared file system, so the clocks of the
    `count` hosts may differ. `folder` is a folder that all hosts share.
    """

    def __init__(self, folder: Path, rank: int, count: int):
        self._folder = folder
        self._rank = rank
        self._count = count
        self._file = folder / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        self.renew()

    def renew(self) -> None:
        """Touches the file of this host."""
        self._file.write_text("waiting\n", encoding="utf-8")

    def missing(self) -> list[int]:
        """Returns the ranks of the hosts without a file, or with an older file than this host's.

        A difference of up to 4 * RENEW_SECONDS is allowed.
        """
        oldest = self._last_seen(self._rank) - 4 * RENEW_SECONDS
        return [rank for rank in range(self._count) if self._last_seen(rank) < oldest]

    def _last_seen(self, rank: int) -> float:
        try:
            status: Any = (self._folder / str(rank)).stat()
        except OSError:
            return float("-inf")
        if is_remote(self._folder):
            return status.mtime
        return status.st_mtime

    def remove(self) -> None:
        """Removes the file of this host."""
        self._file.unlink(missing_ok=True)


def _watch(
    config: DistributedConfig,
    known: tuple[int, int] | None,
    mark: Waiting | None,
    arrived: threading.Event,
) -> None:
    """Touches this host's file until all hosts are connected; ends the process after a timeout.

    The error message names the missing hosts, unlike the message of jaxlib after its own timeout.
    """
    deadline = time.monotonic() + config.timeout_seconds
    while (left := deadline - time.monotonic()) > 0:
        if arrived.wait(min(RENEW_SECONDS, left)):
            return
        if mark is not None:
            with contextlib.suppress(Exception):  # the bucket may answer next time
                mark.renew()
    who = "this process"
    absent = "at least one process"
    if known is not None and mark is not None:
        who = f"process {known[0]} of {known[1]}"
        if missing := mark.missing():
            absent = f"process {', '.join(map(str, missing))}"
    print(
        f"error: {who} waited {config.timeout_seconds} s, but {absent} never connected to "
        f"{config.coordinator_address or 'the coordinator of the cluster'}: look at the log of the "
        "missing process.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def coordination_client() -> Any:
    """Returns the client of jax's coordination service, or None in a run of a single process."""
    from jax._src import distributed  # jax has no public name for it

    return distributed.global_state.client


def is_first() -> bool:
    """Returns whether this host is process 0, the only host that writes files and prints."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints `text` on the first host only."""
    if is_first():
        print(text, flush=True)


def on_all(action: Callable[[], Result]) -> Result:
    """Runs `action` and returns its result on this host; raises an error if any host fails.

    Every host must call this function. If `action` were called directly, the other hosts would wait
    for a host that fails. `action` must not contain collective operations, in which they would wait
    as well.

    Raises:
        BaseException: the exception that `action` raised on this host.
        Interrupted: a signal came to another host while it ran `action`.
        ValueError: `action` failed on another host.
    """
    if jax.process_count() == 1:
        return action()
    try:
        result = action()
    except BaseException as error:
        _messages(str(error) or type(error).__name__)
        raise
    for process, message in enumerate(_messages("")):
        if message.startswith(Interrupted.BEGINNING):
            reason = f"stopped with process {process} ({message})"
            raise Interrupted(reason, on_all_hosts=True)
        if message:
            raise ValueError(f"Process {process} stopped with an error: {message}")
    return result


def _messages(text: str) -> list[str]:
    """Exchanges the first bytes of a text with all hosts; returns the text of each host."""
    padded = text.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0")
    message = np.frombuffer(padded, np.uint8)
    messages = np.asarray(multihost_utils.process_allgather(message))  # [hosts, bytes]
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in messages]


def on_first(action: Callable[[], object]) -> None:
    """Calls `action` on the first host; the other hosts wait until `action` has ended.

    Every host must call this function. If `action` fails, the first host raises the exception of
    `action`, and the other hosts raise ValueError.
    """
    on_all(action if is_first() else lambda: None)


def on_first_patiently(action: Callable[[], object]) -> None:
    """Calls `action` on the first host, as `on_first`; `action` may take up to ten minutes.

    The other hosts wait in the coordination service of jax, because a collective operation of CPUs
    fails if a host arrives more than 30 seconds after the others; a stop signal ends their wait.
    """
    error = None
    try:
        if is_first():
            action()
    except BaseException as raised:
        error = raised
    if jax.process_count() > 1:
        barrier = f"bertjax/patient/{next(_barriers)}"
        wait = coordination_client().wait_at_barrier
        meet = functools.partial(wait, timeout_in_ms=PATIENCE_SECONDS * 1000)
        next(ahead(meet, [barrier]))

    def end() -> None:
        if error is not None:
            raise error

    on_all(end)


def check_equal(facts: Mapping[str, str]) -> None:
    """Checks that the values in `facts`, such as {"the data": hash}, are the same on all hosts.

    Raises:
        ValueError: a value differs between hosts; the message gives the name of the value and the
            indices of the processes.
    """
    digests = [hashlib.sha256(value.encode()).digest() for value in facts.values()]
    mine = np.frombuffer(b"".join(digests), np.uint8).reshape(len(facts), -1)
    everyone = np.asarray(multihost_utils.process_allgather(mine))  # [hosts, facts, 32]
    problems = []
    for index, name in enumerate(facts):
        first, *others = [digest.tobytes().hex()[:8] for digest in everyone[:, index]]
        differing = []
        for process, digest in enumerate(others, 1):
            if digest != first:
                differing.append(f"process {process} has {digest}")
        if differing:
            problems.append(f"{name} (hash {first} in process 0): {', '.join(differing)}")
    if problems:
        raise ValueError(
            "The processes do not run the same program. They differ in "
            f"{'; '.join(problems)}. Give all processes the same code, config and data."
        )


def code_fingerprint() -> str:
    """Returns a hash of the Python files of this package and of the versions of jax and Python."""
    digest = hashlib.sha256(f"{jax.__version__} {sys.version_info[:2]}".encode())
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(file.relative_to(PACKAGE)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def any_host(flag: bool) -> jax.Array:
    """Starts to compute whether `flag` is True on any host; returns the result as a jax scalar."""
    hosts, maximum = _maximum_over_hosts()
    flags = jax.make_array_from_process_local_data(hosts, np.array([flag]))
    return maximum(flags).addressable_data(0)


@functools.cache
def _maximum_over_hosts() -> tuple[NamedSharding, Any]:
    first = {device.process_index: device for device in reversed(jax.devices())}
    of_hosts = [first[process] for process in sorted(first)]
    mesh = Mesh(np.array(of_hosts), ("hosts",))
    return NamedSharding(mesh, P("hosts")), jax.jit(jnp.any, out_shardings=replicated(mesh))


def fetch(tree: Any, mesh: Mesh) -> Any:
    """Copies a tree of jax arrays, even if sharded over all hosts, to numpy arrays on each host.

    All hosts must call this function, because the arrays are first gathered on every device.
    """
    if jax.process_count() > 1:
        tree = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))(tree)
    return jax.device_get(tree)
