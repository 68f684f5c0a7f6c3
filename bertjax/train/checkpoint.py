"""Orbax checkpoints of the training state and of how far the run has come."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers


class Checkpointer:
    """Saves in the background; keeps the last `keep` and the one with the lowest metric.

    Errors of a background save are raised by the next call, so no run goes on believing in a
    checkpoint that was not written. A save that was interrupted is never listed.
    """

    def __init__(self, directory: str | Path, *, keep: int = 3, metric: str = "eval/mlm_loss"):
        self._directory = Path(directory).absolute()
        policy = checkpoint_managers.AnyPreservationPolicy(
            [
                checkpoint_managers.LatestN(keep),
                checkpoint_managers.BestN(
                    get_metric_fn=lambda metrics: metrics[metric],
                    reverse=True,
                    n=1,
                    keep_checkpoints_without_metrics=False,
                ),
            ]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    @property
    def latest_step(self) -> int | None:
        """The newest step that was written whole."""
        self._manager.wait_until_finished()
        return self._manager.latest_step()

    def save(
        self,
        step: int,
        state: Any,
        progress: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts to write a checkpoint; `progress` is anything that JSON can hold.

        Raises:
            RuntimeError: the step was not taken, for example because it exists.
        """
        self._manager.check_for_errors()
        # The arrays are copied first: the next train step donates them, and on CPU what Orbax
        # reads in the background would be the very memory that this step overwrites.
        copied = jax.tree.map(lambda x: x.copy(), state)
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(copied), progress=ocp.args.JsonSave(dict(progress))
        )
        if not self._manager.save(step, args=items, metrics=metrics and dict(metrics), force=True):
            raise RuntimeError(f"The checkpoint of step {step} in {self._directory} was not taken.")

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

    def restore_params(self) -> Any:
        """Reads the parameters of the newest checkpoint, whatever optimizer stands beside them."""
        step = self.latest_step
        if step is None:
            raise FileNotFoundError(f"No complete checkpoint in {self._directory}.")
        items = ocp.args.Composite(state=ocp.args.StandardRestore())
        return self._manager.restore(step, args=items)["state"]["params"]

    def close(self) -> None:
        """Waits for the save under way; raises if it failed."""
        self._manager.wait_until_finished()
        self._manager.check_for_errors()
        self._manager.close()
