"""Orbax checkpoints of the training state and of the position in the data: save, check, restore.

The functions at the end put the folder of the checkpoints in order before a run resumes: a
replacement that was interrupted is undone, and damaged checkpoints are moved away, so that the
newest one is whole.
"""

import contextlib
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from bertjax.base.addresses import move_folder, place, remove_folder, without_traceback
from bertjax.base.checksums import (
    WRITTEN_LAST,
    damage_of,
    damaged_steps,
    steps_in,
    unfinished,
    write_checksums,
)
from bertjax.base.files import is_remote
from bertjax.base.signals import signals_deferred
from bertjax.base.workdir_files import DAMAGED, DELETED, REPLACED
from bertjax.devices import hosts
from bertjax.devices.activity import SAVING, Clock
from bertjax.devices.host_watch import HostWatch
from bertjax.record.predictions import TIE_BREAKER
from bertjax.train.step import TrainState

# Orbax warns of saves that follow each other closely, although they only wait for each other.
logging.getLogger("absl").addFilter(
    lambda record: "Waiting for previous save" not in record.getMessage()
)
logging.getLogger("absl").addFilter(without_traceback)


class Checkpointer:
    """Saves checkpoints in the background; keeps the last `keep` checkpoints and the best one.

    The best checkpoint has the lowest `metric` (the highest one if `higher_is_better`) among those
    of the latest phase that has evaluated ones; of equally good ones, the one with the lowest
    `TIE_BREAKER` or else the last. A missing, NaN or infinite metric is never the best.

    If a save in the background fails, the next method call raises an OSError. Incomplete
    checkpoints, whose save was interrupted, are never restored.

    Args:
        directory: the folder of the checkpoints, on a disk or in a gs:// bucket.
        clock: counts the time of saves; None: nobody reads it.
        watch: tells the other hosts of errors; None: there are no others.

    Raises:
        OSError: the folder of the checkpoints cannot be created or read.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        clock: Clock | None = None,
        watch: HostWatch | None = None,
        keep: int = 3,
        metric: str = "eval/mlm_loss",
        higher_is_better: bool = False,
    ):
        self._directory = place(directory) if is_remote(directory) else Path(directory).absolute()
        self._clock = clock or Clock()
        self._watch = watch
        self._is_closed = False
        # The step of the newest complete checkpoint, as far as known without waiting; 0: none.
        # None while it is replaced. A thread reads it.
        self.saved_step: int | None = None
        self._keep = keep
        self._metric = metric
        self._sign = -1.0 if higher_is_better else 1.0
        rank: Any = self._badness  # Orbax sorts by it
        best = checkpoint_managers.BestN(
            get_metric_fn=rank, reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(
                [checkpoint_managers.LatestN(keep), best]
            ),
            # Without `best_fn`, Orbax stores no metrics, so a resumed run could not find the best.
            best_fn=lambda metrics: -self._badness(metrics)[0],
            cleanup_tmp_directories=True,
            # Renamed first, as a kill while it is deleted would leave one that counts as damaged.
            # In a bucket, one request deletes 100 files, the mark of a whole checkpoint among them.
            todelete_subdir=None if is_remote(directory) else DELETED,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
        )
        logging.getLogger("absl").addFilter(self._notice)
        with self._explained("Opening the checkpoints"):
            self._sweep(DELETED)
            self._manager = ocp.CheckpointManager(self._directory, options=options)
        self.saved_step = self._manager.latest_step() or 0

    def _seal(self) -> None:
        """Writes the checksums of a checkpoint's files into its folder, before Orbax renames it.

        By these checksums, `restore` detects damaged files.
        """
        if hosts.is_first():
            for folder in unfinished(self._directory):
                write_checksums(folder, without=WRITTEN_LAST)

    def _notice(self, record: logging.LogRecord) -> bool:
        """Ends all hosts if Orbax logs that a save in the background has failed on this one.

        Otherwise, this host would wait for the others, and they for it, for ten minutes. Errors,
        which are raised as well, are logged with BERTJAX_TRACEBACK alone.
        """
        error = sys.exc_info()[1]
        if error is not None and self._watch and "Failed to run" in record.getMessage():
            self._watch.end(self._failure("Writing a checkpoint", error))
        return record.levelno < logging.ERROR or bool(os.environ.get("BERTJAX_TRACEBACK"))

    def _sweep(self, names: str) -> None:
        if not is_remote(self._directory) and hosts.is_first():
            for folder in self._directory.glob(names):
                remove_folder(folder)

    def _badness(self, metrics: Mapping[str, float]) -> tuple[float, float]:
        """Returns numbers that are lower for a better checkpoint, the second for a tie.

        The first is infinite without a finite metric. Later phases rank as better, because losses
        depend on the sequence length.
        """
        value = metrics.get(self._metric, math.nan)
        loss = metrics.get(TIE_BREAKER, math.nan)
        if not math.isfinite(loss):
            loss = math.inf
        if not math.isfinite(value):
            return math.inf, loss
        return self._sign * value - 1e3 * metrics.get("phase", 0), loss

    def _graded(self) -> list[tuple[tuple[float, float], int]]:
        """Returns (badness, -step) of each checkpoint with a finite metric; the least is best."""
        self.wait()
        graded = []
        for step in self._manager.all_steps():
            badness = self._badness(self._manager.metrics(step) or {})
            if badness[0] < math.inf:
                graded.append((badness, -step))
        return graded

    @property
    def best_step(self) -> int | None:
        """The step of the best stored checkpoint; None: there is none."""
        _, negated = min(self._graded(), default=(0, 0))
        return -negated or None

    def would_be_best(self, metrics: Mapping[str, float]) -> bool:
        """Returns whether a new checkpoint would be at least as good as all stored checkpoints.

        `metrics` has "phase", the index of the phase: later phases are always better. False if the
        constructor's `metric` is missing, NaN or infinite.
        """
        badness = self._badness(metrics)
        return badness[0] < math.inf and all(badness <= other for other, _ in self._graded())

    @property
    def latest_step(self) -> int | None:
        """The step of the newest complete checkpoint; None if there is no complete checkpoint."""
        self.wait()
        return self._manager.latest_step()

    def wait(self) -> None:
        """Waits for the save in progress.

        Raises:
            OSError: the save failed.
        """
        # A signal is handled after it: an exception would leave Orbax's threads without the objects
        # that they use, and they would print tracebacks.
        saving = self._clock.doing(SAVING, "saving a checkpoint")
        with saving, self._explained(), signals_deferred():
            self._manager.wait_until_finished()
            self.saved_step = self._manager.latest_step() or 0

    def delete_superseded(self) -> None:
        """Deletes all stored checkpoints except the last `keep` checkpoints and the best one.

        Superseded checkpoints remain if a process is killed between a save and Orbax's deletion.
        """
        best = self.best_step
        for step in sorted(self._manager.all_steps())[: -self._keep]:
            if step != best:
                self._manager.delete(step)

    @contextlib.contextmanager
    def _explained(self, what: str = "Writing a checkpoint") -> Iterator[None]:
        """Converts exceptions in the `with` block to OSErrors whose messages begin with `what`."""
        try:
            yield
        except Exception as error:
            raise self._failure(what, error) from error

    def _failure(self, what: str, error: BaseException) -> OSError:
        return OSError(
            f"{what} in {self._directory} failed ({_summary(error)}): is the disk full? "
            "Earlier checkpoints are complete; make room, then run the same command again."
        )

    def save(
        self,
        step: int,
        state: Any,
        progress: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts to write a checkpoint of `state`, a pytree of arrays, in the background.

        Args:
            step: the step of the state.
            state: the state.
            progress: values to store as JSON, such as the position in the data.
            metrics: the metrics of the evaluation of `state`, and "phase", the index of the phase;
                None: it has not been evaluated. Metrics that are NaN or infinite are left out.
        """
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(jax.tree.map(_kept, _stored(state))),
            progress=ocp.args.JsonSave(dict(progress)),
        )
        # Orbax would warn if `metrics` were None, and JSON has neither NaN nor infinity.
        kept = {key: value for key, value in (metrics or {}).items() if math.isfinite(value)}
        with self._explained(), signals_deferred():
            self._manager.check_for_errors()
            if not self._manager.save(step, args=items, metrics=kept, force=True):
                raise RuntimeError(f"Orbax did not save step {step}")
        threading.Thread(target=self._sweep, args=(f"{DELETED}/*",), daemon=True).start()

    def replace(
        self, step: int, state: Any, progress: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """Replaces the newest checkpoint, which is of `step`, by one that stores `metrics`.

        Returns when it is written; the old one is kept until then, so that a kill loses nothing.
        """
        self.wait()
        self.saved_step = None  # a signal must not interrupt the replacement
        with self._explained():
            hosts.on_first(lambda: move_checkpoint(self._directory, step, REPLACED))
            self._manager.reload()
        self.save(step, state, progress, metrics)
        self.wait()
        hosts.on_first(lambda: undo_replacements(self._directory))

    def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns (state, progress) of the checkpoint of `step`; None: the newest one.

        `like` is a tree with the shapes, dtypes and shardings of the state.

        Raises:
            FileNotFoundError: there is no complete checkpoint.
            ValueError: the checkpoint is damaged, or its arrays do not match `like`.
        """
        step = self.latest_step if step is None else step
        if step is None:
            raise FileNotFoundError(f"No complete checkpoint in {self._directory}.")

        hosts.on_first(lambda: self._check(step))
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(_stored(like)), progress=ocp.args.JsonRestore()
        )
        try:
            restored = self._manager.restore(step, args=items)
        except Exception as error:  # Orbax raises many types, with long messages.
            raise ValueError(
                f"The checkpoint of step {step} in {self._directory} cannot be read "
                f"({_summary(error)}). If another version of bertjax wrote the workdir, use that "
                "version."
            ) from error
        return _from_stored(restored["state"], like), restored["progress"]

    def _check(self, step: int) -> None:
        if damage := damage_of(self._directory / str(step)):
            raise ValueError(
                f"The checkpoint of step {step} in {self._directory} is damaged: {damage}. Run the "
                "same command again: it resumes from the newest undamaged checkpoint."
            )

    def close(self) -> None:
        """Waits for the save in progress and closes Orbax's manager."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._clock.doing(SAVING, "saving the last checkpoint"):
            self.wait()
            logging.getLogger("absl").removeFilter(self._notice)
            with self._explained():
                self._manager.check_for_errors()
                self._manager.close()
                self._sweep(DELETED)

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: object) -> None:
        # After an error on one host alone, `close` would wait for the other hosts.
        alone = not getattr(error, "on_all_hosts", error is None)
        if not (alone and self._watch and self._watch.announce_error(error)):
            self.close()


def _stored(state: Any) -> Any:
    """Returns the tree that a checkpoint holds: trained and fixed parameters together."""
    if not isinstance(state, TrainState):
        return state
    stored = state._asdict()
    stored["params"] = state.params | stored.pop("fixed")
    return stored


def _from_stored(stored: Any, like: Any) -> Any:
    """Returns the state of which `_stored` made the tree, which has the structure of `like`."""
    if not isinstance(like, TrainState):
        return stored
    fixed = {name: stored["params"].pop(name) for name in like.fixed}
    return TrainState(fixed=fixed, **stored)


def _kept(x: jax.Array) -> jax.Array:
    """Returns an array that Orbax can read in the background while the next train step runs.

    On CPUs this is a copy, because the step donates `x`. From accelerators, Orbax copies the arrays
    to the host before `save` returns.
    """
    if x.is_fully_addressable and x.is_fully_replicated:
        # Orbax would split it into one slice per device and write them slowly, one after another.
        x = x.addressable_data(0)
    on_cpu = next(iter(x.sharding.device_set)).platform == "cpu"
    return x.copy() if on_cpu else x


def _summary(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]


def move_checkpoint(directory: Path, step: int, folder: str) -> Path:
    """Moves the checkpoint of `step` to `folder` beside `directory`; returns its new path."""
    target = directory.parent / folder / str(step)
    number = 1
    while target.exists():
        number += 1
        target = target.with_name(f"{step}-{number}")
    move_folder(directory / str(step), target)
    return target


def undo_replacements(directory: Path) -> None:
    """Deletes or restores the checkpoints in the folder `replaced` beside `directory`.

    A run moves a checkpoint to `replaced` while it writes a new checkpoint of the same step. If the
    new one is complete and undamaged, the old one is deleted. Otherwise, the old one is moved back
    to `directory`, and a damaged new one to the folder `damaged` beside `directory`.
    """
    replaced = directory.parent / REPLACED
    # `move_checkpoint` names a second checkpoint of step 100 "100-2"; the last one comes first.
    for old in sorted(replaced.glob("[0-9]*"), reverse=True):
        new = directory / old.name.partition("-")[0]
        if new.exists() and damage_of(new) is None:
            remove_folder(old)
            continue
        if new.exists():
            move_checkpoint(directory, int(new.name), DAMAGED)
        move_folder(old, new)
    if not is_remote(replaced):  # buckets have no empty folders
        with contextlib.suppress(OSError):  # it does not exist, or holds something else
            replaced.rmdir()


def move_damaged(directory: Path) -> None:
    """Moves each damaged checkpoint to the folder `damaged` beside `directory`; prints a warning.

    First, `undo_replacements` restores checkpoints whose replacement was interrupted. Raises
    ValueError if all checkpoints in `directory` are damaged; they stay in `directory`.
    """
    undo_replacements(directory)
    damaged = damaged_steps(directory)
    whole = [step for step in steps_in(directory) if step not in damaged]
    if damaged and not whole:
        step, damage = max(damaged.items())
        raise ValueError(
            f"All checkpoints in {directory} ({len(damaged)}) are damaged; in the newest, of step "
            f"{step}, {damage.rstrip('.')}. Restore them from a copy or, to train from the "
            "beginning, give --overwrite."
        )
    for step, damage in damaged.items():
        moved = move_checkpoint(directory, step, DAMAGED)
        print(
            f"warning: the checkpoint of step {step} is damaged ({damage}): it is now in {moved}, "
            f"and the run resumes from step {max(whole)}",
            flush=True,
        )
