"""Runs whose --workdir is in a gs:// or s3:// bucket.

The run writes its files to a local folder, and `Mirror` uploads them. In gs:// buckets, Orbax reads
and writes the checkpoints of a pretraining directly, from all hosts. Orbax cannot write to s3://,
so there, and in fine-tuning, the checkpoints are written to the local folder and uploaded like all
other files, which takes a single host.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import jax

from bertjax.base.addresses import naming_bucket_errors, place
from bertjax.base.files import is_remote
from bertjax.base.lock import Locked
from bertjax.base.workdir_files import (
    CHECKPOINTS,
    DAMAGED,
    LOCK_FILE,
    PENDING,
    REPLACED,
    ROLLED_BACK,
)
from bertjax.cloud.bucket_lock import BucketLock
from bertjax.cloud.mirror import Mirror, mirror_folder
from bertjax.config import DistributedConfig
from bertjax.devices import hosts
from bertjax.train.workdir import Workdir

CHECKPOINT_FOLDERS = (CHECKPOINTS, DAMAGED, REPLACED, ROLLED_BACK)
MEETING_PLACE = "hosts"


def connect(config: DistributedConfig, address: str | Path) -> None:
    """Connects the hosts of a run, which meet in its workdir, on a disk or in a bucket.

    `config` says how the processes find each other, and `address` is the workdir.

    Raises:
        ImportError, OSError: the bucket cannot be read or written.
    """
    with naming_bucket_errors(address, "written"):
        hosts.connect(config, place(address) / MEETING_PLACE)


@contextlib.contextmanager
def opened(address: str | Path, *, direct: bool) -> Iterator[Workdir]:
    """Yields the workdir at `address`, a local path or a folder in a bucket.

    Every host must enter this context. For a folder in a bucket, the first host has the lock of the
    folder until the end of the `with` block, and uploads what the run writes.

    Args:
        address: the --workdir of a run.
        direct: whether checkpoints in gs:// buckets are read and written without local copies.

    Raises:
        Locked: another run is writing to the folder in the bucket.
        OSError: the bucket cannot be read or written.
        ValueError: several hosts would need local copies of the checkpoints.
    """
    if not is_remote(address):
        yield Workdir(Path(address))
        return
    address = os.fspath(address).rstrip("/")
    direct = direct and address.startswith("gs://")
    if not direct and jax.process_count() > 1:
        raise ValueError(
            f"--workdir {address} cannot be used by {jax.process_count()} processes, which all "
            "write parts of each checkpoint: use one process (it drives all GPUs of its machine), "
            "a file system that all hosts share or, for pretraining, a gs:// bucket."
        )
    lock = BucketLock(
        f"{address}/{LOCK_FILE}",
        place=address,
        what="run",
        remedy="wait until it ends, stop it, or choose another --workdir",
    )
    mirror = Mirror(
        mirror_folder(address, jax.process_index()),
        address,
        without=(PENDING, *(CHECKPOINT_FOLDERS if direct else ())),
        check=lock.check,
    )
    try:
        hosts.on_first_patiently(lock.take)
        hosts.on_all(mirror.pull)
        if hosts.is_first():
            mirror.start()
        yield Workdir(mirror.folder, mirror, direct=direct)
    except BaseException:
        if hosts.is_first() and lock.held:
            try:
                mirror.close()
            except (OSError, Locked) as error:  # the error of the run is what the user must see
                print(f"warning: {error}", flush=True)
        lock.release()
        raise
    try:
        if hosts.is_first():
            mirror.close()
    finally:
        lock.release()
