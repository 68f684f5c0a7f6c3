"""The hook that reports skipped updates, and the check that arrays to be saved are finite.

The compiled train step skips an update whose loss or gradient norm is not finite or a spike: more
than `skip_spikes` (if above 0) standard deviations above the mean of the last steps. To report
skipped updates, the host reads the metric "skipped" of each step a few steps later.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.train.loop import STEPS_AHEAD


class NotFinite(ValueError):
    """Raised if too many consecutive updates were skipped, or arrays to be saved are not finite.

    An update is skipped if its loss or gradient is not finite or a spike.

    Args:
        message: what happened, for the user.
        first_step: see the attribute.
        last_step: see the attribute.

    Attributes:
        first_step: the first of the consecutive steps whose updates were skipped; 0 if the cause of
            the error is an array that is not finite.
        last_step: the last of these steps; None if the cause is an array that is not finite.
    """

    def __init__(self, message: str, first_step: int = 0, last_step: int | None = None):
        super().__init__(message)
        self.first_step, self.last_step = first_step, last_step


class SkippedUpdates:
    """A training hook that reports skipped updates, and raises NotFinite after too many in a row.

    An update is skipped if its loss or gradient is not finite or a spike. The hook reads the
    metrics of a step up to `STEPS_AHEAD` steps later, when the device has computed the step, so
    that the device never waits for the host.

    Args:
        report: a function (step, {metric: value}) that logs the metrics of a step.
        rows_of: a function that maps a step to (index of the phase, first row, last row) of the
            batch that the step trains on.
        log_every: the number of steps between two log lines of the training metrics. Skipped
            updates of the steps before a log line are reported before that line.
        max_bad_steps: the number of consecutive skipped updates after which the run ends; 0: the
            run never ends because of skipped updates.
        in_a_row: the number of consecutive skipped updates just before the run was resumed; 0 for
            a new run.
    """

    def __init__(
        self,
        report: Callable[[int, dict[str, float]], None],
        rows_of: Callable[[int], tuple[int, int, int]],
        *,
        log_every: int,
        max_bad_steps: int,
        in_a_row: int = 0,
    ):
        self._report, self._rows_of, self._max = report, rows_of, max_bad_steps
        self._log_every = log_every
        self.in_a_row = in_a_row
        self._unread: list[tuple[int, dict[str, Any]]] = []

    def __call__(self, step: int, state: Any, metrics: dict[str, Any]) -> None:
        """Notes the `metrics` of `step`, and reports the skipped updates among earlier steps.

        `state` is not used.

        Raises:
            NotFinite: `max_bad_steps` consecutive updates were skipped.
        """
        del state
        names = ("skipped", "loss", "grad_norm")
        self._unread.append((step, {name: metrics[name] for name in names}))
        while len(self._unread) > STEPS_AHEAD:
            self._read(*self._unread.pop(0))
        if step % self._log_every == 0:
            self.read_all()

    def read_all(self) -> None:
        """Waits until all steps so far are computed, and reports their skipped updates.

        Raises:
            NotFinite: at least `max_bad_steps` consecutive updates were skipped.
        """
        while self._unread:
            self._read(*self._unread.pop(0))

    def _read(self, step: int, metrics: dict[str, Any]) -> None:
        if not metrics["skipped"]:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        loss, grad_norm = float(metrics["loss"]), float(metrics["grad_norm"])
        phase, first, last = self._rows_of(step)
        self._report(
            step,
            {
                "skipped/in_a_row": self.in_a_row,
                "skipped/loss": loss,
                "skipped/grad_norm": grad_norm,
                "skipped/phase": phase,
                "skipped/first_row": first,
                "skipped/last_row": last,
            },
        )
        if self._max and self.in_a_row >= self._max:
            begin = step - self.in_a_row + 1
            raise NotFinite(
                f"The last {self.in_a_row} updates, steps {begin} to {step}, were skipped. Step "
                f"{step} had loss {loss:.4g}, gradient norm {grad_norm:.4g}, and used rows {first} "
                f"to {last} of phase {phase}. Skipped updates do not change the model, so all "
                "checkpoints are usable. Run the same command again if the machine may have been "
                "at fault. Otherwise, give --rollback_steps 100 to leave out the rows of skipped "
                "updates, start a new run with a lower --optimizer.learning_rate, or raise "
                "--max_bad_steps.",
                begin,
                step,
            )


def check_finite(params: Any, what: str) -> None:
    """Checks that all floating-point numbers in a tree are finite.

    Args:
        params: a tree of numpy or jax arrays. If arrays are sharded over several hosts, all hosts
            must call this function.
        what: the subject of the error message, such as "The model of step 40".

    Raises:
        NotFinite: an array contains infinity or NaN; the message names the first such array.
    """
    paths = jax.tree_util.tree_leaves_with_path(params)
    finite = jax.device_get(_are_finite([leaf for _, leaf in paths]))
    bad = [
        jax.tree_util.keystr(path)
        for (path, _), is_fine in zip(paths, finite, strict=True)
        if not is_fine
    ]
    if bad:
        raise NotFinite(
            f"{what} is not written: {len(bad)} of {len(paths)} arrays hold infinite numbers or "
            f"NaN, the first one is {bad[0]}. Earlier checkpoints are complete; run the same "
            "command again to resume from the newest one."
        )


@jax.jit
def _are_finite(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.isfinite(x).all() for x in arrays]
