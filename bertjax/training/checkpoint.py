"""Orbax checkpoints of the training state and of the position in the data."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from bertjax.checkpoint_files import (
    REPLACED,
    TEMPORARY,
    add_checksums,
    damage_of,
    restore_replaced,
    set_aside,
)
from bertjax.devices import hosts


class Checkpointer:
    """Saves checkpoints in the background; keeps the last `keep` checkpoints and the best one.

    The best checkpoint is the one with the best `metric` among the evaluated checkpoints of the
    latest phase. A checkpoint whose metric is NaN or infinite is never the best.

    If a save in the background fails, the next method call raises the error, so that a run does not
    rely on a checkpoint that was not written. A checkpoint whose save was interrupted is not used.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int = 3,
        metric: str = "eval/mlm_loss",
        higher_is_better: bool = False,
    ):
        self._directory = Path(directory).absolute()
        self._is_closed = False
        self._keep = keep
        self._metric, self._sign = metric, -1.0 if higher_is_better else 1.0
        policy = checkpoint_managers.AnyPreservationPolicy(
            [
                checkpoint_managers.LatestN(keep),
                checkpoint_managers.BestN(
                    get_metric_fn=self._badness,
                    reverse=True,
                    n=1,
                    keep_checkpoints_without_metrics=False,
                ),
            ]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            # Without `best_fn`, Orbax stores no metrics, so a resumed run could not find the best.
            best_fn=lambda metrics: -self._badness(metrics),
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
        )
        with self._explained("Opening the checkpoints"):
            self._manager = ocp.CheckpointManager(self._directory, options=options)

    def _seal(self) -> None:
        """Writes checksums into a checkpoint's temporary folder, before Orbax renames it."""
        if hosts.is_first():
            for folder in self._directory.glob(f"*{TEMPORARY}*"):
                add_checksums(folder)

    def _badness(self, metrics: Any) -> float:
        """Returns a number that is lower for a better checkpoint, from the checkpoint's metrics.

        A later phase is always better, because losses depend on the row length, which differs
        between phases. The number is infinite if the metric is missing, NaN or infinite.
        """
        value = metrics.get(self._metric)
        if value is None or not math.isfinite(value):
            return math.inf
        return self._sign * value - 1e3 * metrics.get("phase", 0)

    def _graded(self) -> list[tuple[float, int]]:
        """Returns (badness, -step) of each stored checkpoint whose metric is known and finite."""
        with self._explained():
            self._manager.wait_until_finished()
        steps = ((step, self._manager.metrics(step)) for step in self._manager.all_steps())
        graded = [(self._badness(metrics or {}), -step) for step, metrics in steps]
        return [pair for pair in graded if pair[0] < math.inf]

    @property
    def best_step(self) -> int | None:
        """The step of the best stored checkpoint; of equally good ones, the last.

        It is None if no stored checkpoint has a finite metric.
        """
        known = self._graded()
        return -min(known)[1] if known else None

    def would_be_best(self, metrics: Mapping[str, float]) -> bool:
        """Whether a checkpoint with `metrics` would be at least as good as all stored ones."""
        badness = self._badness(metrics)
        return badness < math.inf and all(badness <= other for other, _ in self._graded())

    @property
    def latest_step(self) -> int | None:
        """The step of the newest complete checkpoint; None if there is none."""
        with self._explained():
            self._manager.wait_until_finished()
        return self._manager.latest_step()

    def delete_superseded(self) -> None:
        """Deletes the checkpoints that a run keeps no longer, which a kill after a save left."""
        best, steps = self.best_step, sorted(self._manager.all_steps())
        for step in steps[: -self._keep]:
            if step != best:
                self._manager.delete(step)

    @contextlib.contextmanager
    def _explained(self, what: str = "Writing a checkpoint") -> Iterator[None]:
        """Turns errors of Orbax and of the file system into an OSError with a one-line message."""
        try:
            yield
        except Exception as error:
            summary = str(error).strip().partition("\n")[0][:300]
            raise OSError(
                f"{what} in {self._directory} failed ({summary}): is the disk full? Earlier "
                "checkpoints are complete; make room, then run the same command again."
            ) from error

    def save(
        self,
        step: int,
        state: Any,
        progress: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts writing a checkpoint in the background; `progress` is stored as JSON.

        Raises:
            OSError: this save or the previous one failed, for example because the disk is full.
        """
        # The arrays are copied first: the next train step donates them, and on CPUs it would
        # overwrite the memory that Orbax reads in the background.
        copied = jax.tree.map(lambda x: _single(x).copy(), state)
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(copied), progress=ocp.args.JsonSave(dict(progress))
        )
        # Orbax would warn if `metrics` were None, and JSON has neither NaN nor infinity.
        kept = {key: value for key, value in (metrics or {}).items() if math.isfinite(value)}
        with self._explained():
            self._manager.check_for_errors()
            if not self._manager.save(step, args=items, metrics=kept, force=True):
                raise RuntimeError(f"Orbax did not save step {step}")

    def replace(
        self, step: int, state: Any, progress: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """Replaces the newest checkpoint by one that also stores the metrics of its evaluation.

        The old one is kept until the new one is complete, so that a kill loses neither.

        Raises:
            OSError: the new checkpoint cannot be written.
        """
        with self._explained():
            self._manager.wait_until_finished()
            hosts.on_first(lambda: set_aside(self._directory, step, REPLACED))
            self._manager.reload()
        self.save(step, state, progress, metrics)
        with self._explained():
            self._manager.wait_until_finished()
        hosts.on_first(lambda: restore_replaced(self._directory))

    def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reads the state and progress of the checkpoint at `step` (None: the newest).

        `like` is a tree with the shapes, dtypes and shardings of the state.

        Raises:
            FileNotFoundError: there is no complete checkpoint.
            ValueError: the checkpoint is damaged, or its arrays do not match the shapes in `like`.
        """
        step = self.latest_step if step is None else step
        if step is None:
            raise FileNotFoundError(f"No complete checkpoint in {self._directory}.")
        hosts.on_first(lambda: self._check(step))
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(like), progress=ocp.args.JsonRestore()
        )
        try:
            restored = self._manager.restore(step, args=items)
        except Exception as error:  # Orbax raises many types, with long messages.
            summary = str(error).strip().partition("\n")[0][:300]
            raise ValueError(
                f"The checkpoint of step {step} in {self._directory} cannot be read ({summary}). "
                "If another version of bertjax wrote the workdir, use that version; if not, move "
                "this checkpoint to another folder and run the same command again, which then uses "
                "the previous checkpoint."
            ) from error
        return restored["state"], restored["progress"]

    def _check(self, step: int) -> None:
        damage = damage_of(self._directory / str(step))
        if damage is not None:
            raise ValueError(
                f"The checkpoint of step {step} in {self._directory} is damaged: {damage}. Run the "
                "same command again: it sets this checkpoint aside and uses another one."
            )

    def abandon(self) -> None:
        """Makes `close` return at once, because the hosts it would wait for may have ended."""
        self._is_closed = True

    def close(self) -> None:
        """Waits for the save in progress and raises its error if it failed."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._explained():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
            self._manager.close()


def _single(x: jax.Array) -> jax.Array:
    """Returns the copy on one device of an array that is replicated over this process's devices.

    Orbax would cut a replicated array into one slice per device and write the slices slowly, one
    after another. Sharded arrays are returned unchanged. So are arrays that span several processes:
    there the slices are useful, because each process writes only its own.
    """
    whole = x.is_fully_addressable and x.is_fully_replicated
    return x.addressable_data(0) if whole else x
