"""Orbax checkpoints of the training state and of how far the run has come."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers


class Checkpointer:
    """Saves in the background; keeps the last `keep` and the best one.

    The best has the lowest `metric`, or the highest, of the last phase that was evaluated.

    Errors of a background save are raised by the next call, so no run goes on believing in a
    checkpoint that was not written. A save that was interrupted is never listed.
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
            # Without it the metrics are not written, and a resumed run forgets which was the best.
            best_fn=lambda metrics: -self._badness(metrics),
            cleanup_tmp_directories=True,
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def _badness(self, metrics: Any) -> float:
        """Lower is better. Losses of phases of other lengths do not compare: the later one wins."""
        if self._metric not in metrics:
            return math.inf
        return self._sign * metrics[self._metric] - 1e3 * metrics.get("phase", 0)

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation among those that are kept; the last, if several are."""
        with self._explained():
            self._manager.wait_until_finished()
        found = ((step, self._manager.metrics(step)) for step in self._manager.all_steps())
        graded = [(self._badness(metrics or {}), -step) for step, metrics in found]
        known = [pair for pair in graded if pair[0] < math.inf]
        return -min(known)[1] if known else None

    @property
    def latest_step(self) -> int | None:
        """The newest step that was written whole."""
        with self._explained():
            self._manager.wait_until_finished()
        return self._manager.latest_step()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns whatever Orbax and the file system raise while writing into one message."""
        try:
            yield
        except Exception as error:
            raise OSError(
                f"Writing a checkpoint in {self._directory} failed ({error}): is the disk full? "
                "The checkpoints before it are whole; make room, then run the same command again."
            ) from error

    def save(
        self,
        step: int,
        state: Any,
        progress: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts to write a checkpoint; `progress` is anything that JSON can hold.

        Raises:
            OSError: this or the save before failed, for example on a full disk.
        """
        # The arrays are copied first: the next train step donates them, and on CPU what Orbax
        # reads in the background would be the very memory that this step overwrites.
        copied = jax.tree.map(lambda x: x.copy(), state)
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(copied), progress=ocp.args.JsonSave(dict(progress))
        )
        # Without any, Orbax would warn each time.
        kept = dict(metrics or {})
        with self._explained():
            self._manager.check_for_errors()
            if not self._manager.save(step, args=items, metrics=kept, force=True):
                raise RuntimeError(f"step {step} was not taken")

    def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reads state and progress of `step` (None: the newest) into shapes and shardings `like`.

        Raises:
            FileNotFoundError: there is no whole checkpoint.
            ValueError: the checkpoint holds other arrays than `like`.
        """
        step = self.latest_step if step is None else step
        if step is None:
            raise FileNotFoundError(f"No complete checkpoint in {self._directory}.")
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(like), progress=ocp.args.JsonRestore()
        )
        restored = self._manager.restore(step, args=items)
        return restored["state"], restored["progress"]

    def close(self) -> None:
        """Waits for the save under way; raises if it failed."""
        with self._explained():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
            self._manager.close()
