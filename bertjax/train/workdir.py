"""The workdir of a run: its paths (`base.workdir_files`), its config and a lock.

A run whose --workdir is in a bucket writes to a local folder, and `Mirror` uploads its files. In
gs:// buckets, Orbax reads and writes the checkpoints of a pretraining directly, from all hosts. It
cannot write to s3://, so there, and in fine-tuning, the checkpoints are uploaded like all other
files, which takes a single host.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bertjax.base.addresses import place, remove_folder
from bertjax.base.checksums import TEMPORARY, steps_in
from bertjax.base.files import (
    is_remote,
    listed,
    naming_write_errors,
    set_aside,
)
from bertjax.base.lock import BucketLock, Lock, Locked
from bertjax.base.outputs import others_in
from bertjax.base.run_file import (
    checked_run_id,
    holds_run,
    is_run,
    read_run,
    read_run_file,
    train_file,
    write_run,
)
from bertjax.base.workdir_files import (
    CHECKPOINTS,
    DAMAGED,
    DELETED,
    HOSTS,
    LOCK_FILE,
    METRICS,
    MODEL,
    PENDING,
    REPLACED,
    RESULTS,
    ROLLED_BACK,
    RUN_FILE,
    SCORES,
    SPARE_FILE,
    TOKENIZER,
    TRACKERS_FOLDER,
)
from bertjax.cloud.mirror import LIST_FILE, Mirror, mirror_folder
from bertjax.config import differences
from bertjax.devices import hosts
from bertjax.devices.host_watch import HostWatch
from bertjax.record.metrics import last_evaluation

# Config fields that may differ when a run is resumed, since no update depends on them. Data files
# and a teacher may have moved, because hashes of their content identify them.
MAY_CHANGE = (
    "data data_cache workdir mesh distributed unroll remat attention log_every eval_every "
    "eval_rows eval_data eval_at_start save_every keep_checkpoints reader_threads peak_tflops "
    "submission train dev test data_dir tfds_data_dir teacher.model distillation.teacher "
    "accumulation_steps max_bad_steps rollback_steps deterministic overwrite stall_seconds "
    "push_to_hub push_every hub_private track track_project machine"
).split()
_CHECKPOINT = re.compile(rf"\d+(-\d+)?$|{DELETED}$|.*{TEMPORARY}")
LOCK_REMEDY = "wait until it ends, stop it, or choose another --workdir"


# A function (differences, saved config, step of the newest checkpoint) that returns the differences
# with which a run must not resume, and the reasons.
Refused = Callable[[list[str], dict[str, Any], int], list[str]]


class SavedRun(NamedTuple):
    """What a workdir says about its run.

    Attributes:
        address: what messages call the workdir.
        newest_step: the step of the newest checkpoint; 0: there is none.
        content: run.json; None: there is none that can be read.
        is_finished: whether the run has written its scores.
        problem: why no run can be made in the workdir; "": one can.
    """

    address: str
    newest_step: int
    content: dict[str, Any] | None
    is_finished: bool
    problem: str


def changes_of(
    saved: Mapping[str, Any],
    step: int,
    config: Mapping[str, Any],
    data_fingerprint: str,
    *,
    defaults: Mapping[str, Any] | None,
    refused: Refused,
) -> list[str]:
    """Returns why the run `saved`, of run.json, cannot go on from a step; as in `Workdir.check`."""
    changed = differences(config, saved["config"], ignore=MAY_CHANGE, defaults=defaults)
    changed = refused(changed, saved["config"], step)
    if data_fingerprint != saved["data_fingerprint"]:
        where = saved["config"].get("data") or train_file(saved["config"])
        changed.append("the data differs from the data of " + (where or "the task's files"))
    return changed


def another_run(address: str, changed: Sequence[str]) -> str:
    """Returns the error about a workdir that holds a run with other values of `changed`."""
    return (
        f"{address} holds a run of another config: {'; '.join(changed)}. Resume with "
        "the old config, or choose another --workdir, or delete that run with "
        "--overwrite; to start a new run from the model of this one, choose another "
        f"--workdir and give --init {address}."
    )


class Workdir:
    """The workdir of a run: the paths of its files, and the lock against other processes.

    Args:
        path: the local folder of the run.
        mirror: uploads the files of `path` to a bucket; None: the workdir is `path` itself.
        direct: whether the checkpoints are in the bucket of `mirror` and not in `path`.

    Attributes:
        address: what messages call the workdir: `path`, or the folder in the bucket.
        checkpoints: the folder of the checkpoints, which may be in a bucket.
    """

    def __init__(self, path: Path, mirror: Mirror | None = None, *, direct: bool = False):
        self.path = path
        self._mirror = mirror
        self.address = mirror.address if mirror is not None else str(path)
        self.tokenizer = path / TOKENIZER
        self.model = path / MODEL
        self.metrics = path / METRICS
        self.checkpoints = (place(self.address) if direct else path) / CHECKPOINTS
        self._run = path / RUN_FILE
        self._lock = Lock(path / LOCK_FILE, place=str(path), what="run", remedy=LOCK_REMEDY)

    def read(self) -> dict[str, Any]:
        """Returns run.json or, if that is damaged or missing, its spare copy.

        {"config": config of the run, "data_fingerprint": hash of its data, "run_id": its name}.

        Raises:
            FileNotFoundError, ValueError: both files are missing or damaged.
        """
        return read_run(self.path)

    def last_evaluation(self) -> dict[str, Any] | None:
        """Returns the logged metrics of the last evaluation; None if there was no evaluation."""
        return last_evaluation(self.metrics)

    @property
    def newest_step(self) -> int:
        """The step of the newest complete checkpoint; 0 if there is no checkpoint."""
        return max(steps_in(self.checkpoints), default=0)

    def look(self) -> SavedRun:
        """Returns what is known of the run without locking the workdir."""
        content = None
        with contextlib.suppress(OSError, ValueError):
            content = self.read()
        is_finished = (self.path / SCORES).is_file()
        return SavedRun(self.address, self.newest_step, content, is_finished, self._problem())

    def _problem(self) -> str:
        if holds_run(self.path):
            if is_run(self.path):
                return ""
            return (
                f"{self._run} was not written by bertjax, so that nothing in {self.address} is "
                "changed: choose another --workdir, or move these files away."
            )
        if self.path.exists():
            names = {entry.name for entry in self.path.iterdir()} - {HOSTS, LIST_FILE}
            if any(not name.startswith(LOCK_FILE) for name in names):
                return f"{self.address} is not empty and holds no run: choose another --workdir."
        return ""

    def publish(self) -> None:
        """Uploads all changes, if the workdir is in a bucket."""
        if self._mirror is not None:
            self._mirror.sync()

    def publish_if_possible(self) -> None:
        """Uploads all changes as `publish`; a failure is a warning, since it may pass."""
        try:
            self.publish()
        except OSError as error:
            print(f"warning: {error}", flush=True)

    def refresh(self) -> None:
        """Reads what the first host has published, on another host, if it is in a bucket."""
        if self._mirror is not None and not hosts.is_first():
            self._mirror.pull()

    def check(
        self,
        config: Mapping[str, Any],
        data_fingerprint: str,
        *,
        defaults: Mapping[str, Any] | None = None,
        refused: Refused = lambda changed, *_: changed,
    ) -> None:
        """Checks that the run in this workdir has the given config and training data.

        Config fields in `MAY_CHANGE`, such as paths and kernels, are not compared.

        Args:
            config: {field: value} of the run's config, as run.json stores it.
            data_fingerprint: a hash of the training data.
            defaults: {config field: value} of the fields that a run.json of an older version lacks.
            refused: selects the differences with which the run must not resume; by default all.

        Raises:
            ValueError: the config or the data of the run differs.
        """
        saved = self.read()
        step = self.newest_step
        changed = changes_of(
            saved, step, config, data_fingerprint, defaults=defaults, refused=refused
        )
        before = saved["config"].get("machine")
        now = config.get("machine")
        if before not in (None, now) and not changed:
            print(
                f"note: the run goes on with {now}, after {before}: the batches and masks are the "
                "same, and losses are equal within rounding",
                flush=True,
            )
        if changed:
            raise ValueError(another_run(self.address, changed))

    def check_shared(self) -> None:
        """Checks that this host shares the workdir with the first host."""
        self.refresh()
        if not self._run.is_file():
            raise ValueError(
                f"{self.path} has no run.json on this host, although the first process has written "
                "one: choose a --workdir on a file system that all hosts share."
            )

    def lock(self) -> None:
        """Creates the workdir, and locks it until `release` is called or this process ends.

        Raises:
            Locked: another process has locked it.
            ValueError: it holds files but no run of bertjax.
        """
        if problem := self._problem():
            raise ValueError(problem)
        with naming_write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._lock.held:
                self._lock.take()

    def release(self) -> None:
        """Unlocks the workdir for other processes."""
        self._lock.release()

    def claim(
        self,
        config: Mapping[str, Any],
        data_fingerprint: str,
        *,
        overwrite: bool = False,
        **checks: Any,
    ) -> None:
        """Locks the workdir until `release` is called, and writes run.json.

        A run without checkpoints may be replaced by a run with any config, because no work is lost.
        With `overwrite`, a run of another config or data is deleted. The other arguments are as in
        `check`.

        Raises:
            ValueError: the workdir holds checkpoints of another run, and `overwrite` is False, or
                files that `overwrite` would delete although bertjax did not write them; it
                holds files but no run; or another process has locked it.
        """
        has_run = holds_run(self.path)
        self.lock()
        try:
            if has_run:
                self._compare(config, data_fingerprint, checks)
            run_id = self._run_id()
        except ValueError:
            if not self.newest_step:
                remove_folder(self.path / TRACKERS_FOLDER)
            elif overwrite:
                self.delete_run()
            else:
                raise
            run_id = uuid.uuid4().hex
        # If the phases of the run have changed, run.json stores the new phases from now on.
        write_run(self.path, config, data_fingerprint, run_id)

    def _run_id(self) -> str:
        """Returns the name of the run in run.json, else in the checkpoints, else a new one."""
        run_id = ""
        with contextlib.suppress(OSError, ValueError):
            run_id = self.read().get("run_id", "")
        return checked_run_id(self.checkpoints, run_id) or uuid.uuid4().hex

    def _compare(self, config: Any, data_fingerprint: str, checks: Mapping[str, Any]) -> None:
        """Checks the run as `check`; says what was used if run.json was damaged, which is kept."""
        consequence = "its spare copy is used"
        try:
            self.read()
        except (FileNotFoundError, ValueError):
            consequence = (
                "the run resumes with the config and the data of this command, which could not be "
                "compared with the original ones"
            )
        else:
            self.check(config, data_fingerprint, **checks)
        if not self.newest_step:
            return
        try:
            read_run_file(self._run)
        except FileNotFoundError:
            print(f"{self._run} is missing; {consequence}.", flush=True)
        except ValueError as error:
            copy = set_aside(self._run)
            print(f"{error} The damaged file was copied to {copy}; {consequence}.", flush=True)

    def delete_run(self) -> None:
        """Deletes what the run has left in the workdir, for another run (--overwrite)."""
        others = [f"{MODEL}/{name}" for name in others_in(self.path / MODEL)]
        for folder in CHECKPOINT_FOLDERS:
            for path in (self.path / folder).glob("*"):
                if not _CHECKPOINT.match(path.name):
                    others.append(f"{folder}/{path.name}")
        if others:
            raise ValueError(
                f"--overwrite would delete files in {self.address} that bertjax did not write or "
                f"that were changed since: {listed(others)}. Move them to another folder, or "
                "choose another --workdir."
            )
        for parent in {self.path, self.checkpoints.parent}:
            for name in RESULTS:
                path = parent / name
                if path.is_dir():
                    remove_folder(path)
                else:
                    path.unlink(missing_ok=True)
        print(f"{self.address}: the earlier run was deleted (--overwrite)", flush=True)


CHECKPOINT_FOLDERS = (CHECKPOINTS, DAMAGED, REPLACED, ROLLED_BACK)


def unopened(address: str | Path, folder: Path) -> Workdir:
    """Returns the workdir at `address`, which is only read.

    `folder`/run gets copies of the files that describe a run in a bucket.
    """
    if not is_remote(address):
        return Workdir(Path(address))
    copies = folder / "run"
    copies.mkdir()
    for name in (RUN_FILE, SPARE_FILE, SCORES):
        with contextlib.suppress(FileNotFoundError):
            (copies / name).write_bytes((place(address) / name).read_bytes())
    workdir = Workdir(copies)
    workdir.address = os.fspath(address)
    workdir.checkpoints = place(address) / CHECKPOINTS
    return workdir


@contextlib.contextmanager
def opened(
    address: str | Path, *, direct: bool, watch: HostWatch | None = None
) -> Iterator[Workdir]:
    """Yields the workdir at `address`, a local path or a folder in a bucket.

    Every host must enter this context. For a folder in a bucket, the first host has the lock of the
    folder until the end of the `with` block, and uploads what the run writes.

    Args:
        address: the --workdir of a run.
        direct: whether checkpoints in gs:// buckets are read and written without local copies.
        watch: may end the process; it then uploads what is left and unlocks the bucket before.

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
    lock = BucketLock(f"{address}/{LOCK_FILE}", place=address, what="run", remedy=LOCK_REMEDY)
    mirror = Mirror(
        mirror_folder(address, jax.process_index()),
        address,
        without=(PENDING, *(CHECKPOINT_FOLDERS if direct else ())),
        check=lock.check,
    )

    def leave(reason: BaseException) -> None:
        del reason
        with contextlib.suppress(OSError, Locked):
            if lock.held:
                mirror.close()
        lock.release()

    failed = True
    if watch is not None:
        watch.at_end.append(leave)
    try:
        hosts.on_first_patiently(lock.take)
        hosts.on_all(mirror.pull)
        if hosts.is_first():
            mirror.start()
        yield Workdir(mirror.folder, mirror, direct=direct)
        failed = False
    finally:
        try:
            if hosts.is_first() and (lock.held or not failed):
                mirror.close()
        except (OSError, Locked) as error:
            if not failed:
                raise
            print(f"warning: {error}", flush=True)  # the user must see the error of the run
        finally:
            lock.release()
